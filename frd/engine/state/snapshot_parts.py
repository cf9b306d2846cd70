"""Stalls, and what a `Snapshot` shows, from the tables of an attempt.

Pure functions from tables to fresh arrays; node times become aligned times here, a column at a
time. `stalls` runs at every tick over every pair and must stay cheap: it compares times of one rank
with each other, which needs no alignment, and usually nothing is left.

A `StateAt`, for readers in other threads, is made every second and read far less often. So columns
are copied, and what follows from them is computed when it is first read, in whatever thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np

from frd.engine.clocks.alignment import UNKNOWN_NS, ClockLines, RankClocks, assumed_ns
from frd.engine.state.attempt_tables import AttemptTables
from frd.engine.state.lazy import LazySequence
from frd.engine.state.snapshot import (
    ANY_SEQ,
    AT_REST,
    EARLY,
    PairColumns,
    Snapshot,
    StallTable,
)
from frd.engine.state.tables import EXITED, LIVE, RankTable
from frd.engine.views import STATES
from frd.model import UNKNOWN_SEQ, AlignedNs, AttemptKey, Bools, Float64s, Int32s, Int64s

_STATES: Final = np.array(STATES, object)
_FAR: Final = np.iinfo(np.int64).max

EndsEarly: TypeAlias = Callable[[Int32s, Int64s], Bools]
"""Of groups and seqs: whether a member may complete the op before all members have joined it."""


def stalls(
    tables: AttemptTables, least_ns: int, ends_early: EndsEarly, now: AlignedNs
) -> tuple[StallTable, StallTable]:
    """Waiting that the ranks' own telemetry confirms to be longer than their group's threshold, and
    all that is longer than `EARLY` of it.

    No threshold is less than `least_ns`. A rank that is gone does not wait. The wait counts from
    the enqueue of the op, or from the last time at which the op before it was not complete, if that
    is later: a program that runs far ahead of its device is not stalled. Nor is a rank with
    impossible watermarks; `ends_early` says which collectives a member may complete before all
    members have joined.
    """
    pairs, ranks = tables.pairs, tables.ranks
    usual = thresholds_ns(tables, least_ns)
    waits = open_waits(tables, usual, EARLY, ends_early, now)
    p2p = tables.channels.waiting(ranks, round(least_ns * EARLY))
    share = _share(ranks, p2p.rank, p2p.since, usual[p2p.group], now)
    late = (share >= EARLY) & (p2p.in_flight > 0)
    since = ranks.to_aligned(p2p.rank[late], p2p.since[late], now)
    early = StallTable(
        np.concatenate((pairs.group[waits.row], p2p.group[late])),
        np.concatenate((pairs.rank[waits.row], p2p.rank[late])),
        np.concatenate((waits.seq, np.full(late.sum(), UNKNOWN_SEQ))),
        np.concatenate((waits.since, since)),
    )
    return early.of(np.concatenate((waits.share, share[late])) >= 1), early


@dataclass(frozen=True, slots=True)
class OpenWaits:
    """The oldest open op of each member that is inside one: one element for each."""

    row: Int64s
    """The pair."""
    seq: Int64s
    since: Int64s
    """Aligned ns from which the wait counts; see `stalls`."""
    share: Float64s
    """For how long the rank's own telemetry confirms it, as a share of the stall threshold of the
    group."""

    def lasting(self, share: float = AT_REST) -> OpenWaits:
        """Those that have lasted for this share."""
        last = self.share >= share
        if last.all():
            return self
        return OpenWaits(self.row[last], self.seq[last], self.since[last], self.share[last])


def open_waits(
    tables: AttemptTables, usual_ns: Int64s, part: float, ends_early: EndsEarly, now: AlignedNs
) -> OpenWaits:
    """The waits in collectives that have lasted for a part of `usual_ns`, which is by group; all,
    for 0."""
    pairs, ranks, n = tables.pairs, tables.ranks, tables.pairs.count
    row = np.flatnonzero((pairs.enqueued[:n] > pairs.completed[:n]) & (pairs.head[:n] > 0))
    if part:  # few are left, at little cost
        least_ns = round(int(usual_ns.min(initial=_FAR)) * part)
        row = row[ranks.as_of[pairs.rank[row]] - pairs.head[row] >= least_ns]
    rank, since = pairs.rank[row], np.maximum(pairs.head[row], pairs.idle_until[row])
    share = _share(ranks, rank, since, usual_ns[pairs.group[row]], now)
    last = np.flatnonzero(share >= part)
    last = last[completed(tables, row[last]) <= _limits(tables, row[last], ends_early, now)]
    since = ranks.to_aligned(rank[last], since[last], now)
    return OpenWaits(row[last], completed(tables, row[last]) + 1, since, share[last])


def thresholds_ns(tables: AttemptTables, least_ns: int) -> Int64s:
    """How long a wait may take, by group. What is usual counts while all members run: no wait for a
    rank that has ended is usual."""
    pairs, ended = tables.pairs, np.flatnonzero(tables.ranks.state >= EXITED)
    found = tables.groups.threshold_ns[: tables.groups.count].copy()
    if len(ended):
        found[pairs.group[: pairs.count][np.isin(pairs.rank[: pairs.count], ended)]] = least_ns
    return found


def _share(
    ranks: RankTable, rank: Int32s, since: Int64s, usual_ns: Int64s, now: AlignedNs
) -> Float64s:
    """For how long reports confirm these waits, as a share; -1 of a rank that is gone."""
    # An agent whose clock is misjudged cannot confirm a wait that has not happened yet.
    as_of = np.minimum(ranks.as_of[rank], ranks.to_node(rank, now))
    lasted = np.maximum(as_of - since, 0) / usual_ns
    return np.where(ranks.state[rank] < EXITED, lasted, -1)


def _limits(tables: AttemptTables, row: Int64s, ends_early: EndsEarly, now: AlignedNs) -> Int64s:
    """The highest seq that each row can have completed: a member cannot complete an op that another
    member, by a later report, has not joined."""
    limit = np.full(len(row), _FAR, np.int64)
    if not len(row):
        return limit
    group, done = tables.pairs.group[row], completed(tables, row)
    odd = np.flatnonzero(done > _least_of_members(tables)[group])
    odd = odd[~ends_early(group[odd], done[odd])]
    odd = odd[np.argsort(group[odd], kind="stable")]
    for rows_of_group in np.split(odd, np.flatnonzero(np.diff(group[odd])) + 1) if len(odd) else ():
        members = tables.pairs.layout().rows(int(group[rows_of_group[0]]))
        limit[rows_of_group] = _least_joined(tables, members, row[rows_of_group], now)
    return limit


def _least_of_members(tables: AttemptTables) -> Int64s:
    """By group: the least that a member with a report has joined."""
    layout = tables.pairs.layout()
    come = layout.view(tables.pairs.enqueued)
    least = np.zeros(tables.groups.count, np.int64)
    least[layout.groups] = np.minimum.reduceat(np.where(come < 0, _FAR, come), layout.starts)
    return least


def _least_joined(tables: AttemptTables, members: Int64s, row: Int64s, now: AlignedNs) -> Int64s:
    """For each row of a group: the lowest seq joined by members whose reports are certainly later
    than its completion."""
    ranks, pairs = tables.ranks, tables.pairs
    rank, come = pairs.rank[members], pairs.enqueued[members]
    known = ranks.knows(rank) & (come > UNKNOWN_SEQ)
    known[known] = pairs.last_session[members][known] == ranks.session[rank[known]]
    rank, come = rank[known], come[known]
    as_of = ranks.to_aligned(rank, ranks.as_of[rank], now) - _margin_ns(ranks, rank)
    rank = pairs.rank[row]
    after = _by(ranks.clock_lines(rank), pairs.completed[row], pairs.completed_at[row], now)
    after += _margin_ns(ranks, rank)
    order = np.argsort(-as_of, kind="stable")
    least = np.minimum.accumulate(np.concatenate(([_FAR], come[order])))
    return least[np.searchsorted(-as_of[order], -after)]


def completed(tables: AttemptTables, row: Int64s | slice) -> Int64s:
    """Completed watermarks; a rank in its first collective counts as done with the one before."""
    pairs = tables.pairs
    done = np.array(pairs.completed[row])
    none = np.flatnonzero(done < 0)
    first = tables.groups.first_seq[pairs.group[row][none]]
    done[none] = np.where(first <= pairs.enqueued[row][none], first - 1, done[none])
    return done


def snapshot(
    tables: AttemptTables,
    key: AttemptKey,
    world_size: int,
    op: Callable[[int, int], str],
    ends_early: EndsEarly,
    least_ns: int,
    now: AlignedNs,
) -> Snapshot:
    """What the tables show, and nothing else."""
    table, rank, members = tables.ranks, tables.ranks.sorted(), pairs(tables, ends_early, now)
    statuses = dict(table.statuses)

    def detail(at: int) -> str:
        status = statuses.get(int(rank[at]))
        return status.detail if status is not None else ""

    return Snapshot(
        key=key,
        now=now,
        world_size=world_size,
        rank=rank,
        as_of=table.to_aligned(rank, table.as_of[rank], now),
        state=_STATES[table.state[rank]].tolist(),
        state_since=table.to_aligned(rank, table.state_since[rank], now),
        detail=LazySequence(len(rank), detail),
        connected=table.connected[rank],
        left=table.left[rank],
        gap=_lossy(table, rank),
        moved_at=_moved_at(tables, members, now)[rank],
        clocks=RankClocks(table.session[rank], table.uncertainty_ns[rank]),
        info=dict(table.infos),
        groups=tuple(tables.groups.infos),
        threshold_ns=thresholds_ns(tables, least_ns),
        pairs=members,
        op=op,
        channels=tables.channels.snapshot(table, now),
        exits=dict(table.exits),
        p2p_ranks=frozenset(tables.channels.seen),
        unrecorded=tables.unrecorded.snapshot(table, now),
        unshown=frozenset(tables.pairs.group[tables.pairs.unshown].tolist()),
        unread=frozenset(table.unread),
        hidden=frozenset(tables.pairs.rank[tables.pairs.hidden].tolist()),
        unanswered=dict(tables.unrecorded.unanswered),
    )


def _moved_at(tables: AttemptTables, pairs: PairColumns, now: AlignedNs) -> Int64s:
    """By when each rank had made its last progress, by its own clock; 0 for none."""
    ranks = tables.ranks
    moved_at = np.zeros(ranks.count, np.int64)
    movers = tables.channels.moved_at
    rank = np.fromiter(movers, np.int32, len(movers))
    at = np.fromiter(movers.values(), np.int64, len(movers))
    moved_at[rank] = ranks.to_aligned(rank, at, now)
    known = ranks.knows(pairs.rank)
    np.maximum.at(moved_at, pairs.rank[known], pairs.since[known])
    return moved_at


def _by(clocks: ClockLines, seqs: Int64s, times: Int64s, now: AlignedNs) -> Int64s:
    """By when these were reached: now, if no report says more; 0 where nothing was."""
    reached = np.where(times == 0, now, clocks.to_aligned(times, now))
    return np.where(seqs == UNKNOWN_SEQ, 0, reached)


def _margin_ns(ranks: RankTable, rank: Int32s) -> Int64s:
    """How far a time of a rank may be off; see `assumed_ns`."""
    margin_ns = np.zeros(len(rank), np.int64)
    known = np.flatnonzero(ranks.knows(rank))
    margin_ns[known] = assumed_ns(ranks.uncertainty_ns[rank[known]])
    return margin_ns


def _unheard(tables: AttemptTables, done: Int64s, ends_early: EndsEarly) -> Bools:
    """Members without any report, where others have completed an op that takes all members: these
    members joined it before an agent could report it."""
    group = tables.pairs.group[: len(done)]
    none: Bools = tables.pairs.enqueued[: len(done)] == UNKNOWN_SEQ
    if not none.any():
        return none
    some = np.zeros(tables.groups.count, np.bool_)
    some[group[none]] = True
    row = np.flatnonzero(some[group] & ~none)
    some[group[row[done[row] < tables.groups.first_seq[group[row]]]]] = False  # it may be open yet
    row = row[some[group[row]]]
    row = row[~ends_early(group[row], done[row])]
    some[:] = False
    some[group[row]] = True
    return none & some[group]


@dataclass(frozen=True, slots=True)
class Reached:
    """How far each member is known to have come, by pair; see `PairColumns`."""

    joined: Int64s
    completed: Int64s
    in_doubt: Bools
    """The member may have joined more."""
    cut: Int64s
    """Rows with impossible watermarks, cut to the highest possible seq."""


def reached(tables: AttemptTables, ends_early: EndsEarly, now: AlignedNs) -> Reached:
    """Its arrays may be those of the tables, to be read only."""
    ranks, table, every = tables.ranks, tables.pairs, slice(tables.pairs.count)
    group, rank = table.group[every], table.rank[every]
    joined, done = table.enqueued[every], completed(tables, every)
    ahead = np.flatnonzero(done > _least_of_members(tables)[group])
    ahead = ahead[ranks.knows(rank[ahead])]
    ahead = ahead[ranks.state[rank[ahead]] == LIVE]  # a timeout completes what never was
    clocks = ranks.clock_lines(rank[ahead])
    done_at = _by(clocks, table.completed[ahead], table.completed_at[ahead], now)
    ahead = ahead[done_at < now - tables.groups.threshold_ns[group[ahead]] * AT_REST]
    limit = _limits(tables, ahead, ends_early, now)
    false = done[ahead] > limit
    if len(odd := ahead[false]):
        joined = joined.copy()
        joined[odd] = done[odd] = limit[false] - 1  # nor is it done with what the others are in
    in_doubt = _unheard(tables, done, ends_early)
    if (lossy := ranks.declared & _lossy(ranks, slice(None))).any():
        in_doubt |= np.append(lossy, False).take(rank, mode="clip")
    in_doubt[odd] = True  # what else such a member is in is not known either
    return Reached(joined, done, in_doubt, odd)


def pairs(tables: AttemptTables, ends_early: EndsEarly, now: AlignedNs) -> PairColumns:
    """All members of all groups, by group handle."""
    ranks, table, layout = tables.ranks, tables.pairs, tables.pairs.layout()
    come, members = reached(tables, ends_early, now), layout.copy(table.rank)
    joined, done, started = map(layout.copy, (come.joined, come.completed, table.started))
    done_most = np.where((joined > done) & (layout.view(table.head) == 0), joined, done)
    if len(come.cut):
        odd = np.flatnonzero(np.isin(layout.order, come.cut))
        started[odd], done_most[odd] = np.minimum(started[odd], done[odd]), ANY_SEQ
    clocks = ranks.clock_lines(members)
    joined_at = _by(clocks, layout.view(table.enqueued), layout.view(table.enqueued_at), now)
    started_at = _by(clocks, layout.view(table.started), layout.view(table.started_at), now)
    done_at = _by(clocks, layout.view(table.completed), layout.view(table.completed_at), now)
    moved_at = np.maximum(started_at, done_at)
    return PairColumns(
        np.searchsorted(layout.view(table.group), np.arange(tables.groups.count + 1)),
        members,
        joined,
        np.where(layout.view(come.in_doubt), ANY_SEQ, joined),
        started,
        done,
        done_most,
        clocks.to_aligned(layout.view(table.head), now),
        moved_at,
        np.maximum(joined_at, moved_at),
    )


def _lossy(table: RankTable, rank: Int32s | slice) -> Bools:
    """Rows of the rank are known to be missing."""
    return table.gap_at[rank] >= table.as_of[rank]


class StateAt:
    """A rank of a group may be beyond all ranks of the table: no agent has declared it."""

    def __init__(
        self, tables: AttemptTables, ends_early: EndsEarly, least_ns: int, now: AlignedNs
    ) -> None:
        """`ends_early` must not change afterwards; `least_ns`: see `stalls`."""
        self.now = now
        self.tables = tables.frozen()
        self._ends_early = ends_early
        self._least_ns = least_ns

    @cached_property
    def reached(self) -> Reached:
        return reached(self.tables, self._ends_early, self.now)

    @cached_property
    def waits(self) -> OpenWaits:
        """All of them; most have just begun."""
        usual_ns = thresholds_ns(self.tables, self._least_ns)
        return open_waits(self.tables, usual_ns, 0, self._ends_early, self.now)

    @cached_property
    def _as_of(self) -> Int64s:
        """By rank, aligned; the last one is of unknown ranks."""
        ranks = self.tables.ranks
        as_of = ranks.to_aligned(np.arange(ranks.count), ranks.as_of, self.now)
        return np.append(as_of, 0)

    def has_not_joined(self, row: Int64s, seq: Int64s | int, since: Int64s | int) -> Bools:
        """Which of these members are known not to have joined an op that others wait in since then.
        Absence proves nothing of a rank that no agent has declared, whose rows are missing, or of
        which nothing is known since; nor of one that may have joined before its first report."""
        come = self.reached
        heard = self._as_of.take(self.tables.pairs.rank[row], mode="clip") >= since
        return heard & (come.joined[row] < seq) & ~come.in_doubt[row]

    def is_unknown(self, rank: Int32s, late_s: float) -> Bools:
        """Ranks that no agent has declared, or has reported lately."""
        return self.now - self._as_of.take(rank, mode="clip") > late_s * 1e9

    def is_gone(self, rank: Int32s) -> Bools:
        """Which of these ranks have no process any more."""
        return np.append(self.tables.ranks.state, LIVE).take(rank, mode="clip") >= EXITED

    def knows_clock(self, rank: int) -> bool:
        ranks = self.tables.ranks
        return rank < ranks.count and int(ranks.uncertainty_ns[rank]) < UNKNOWN_NS
