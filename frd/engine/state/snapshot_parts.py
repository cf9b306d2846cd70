"""Stalls, and what a `Snapshot` shows, from the tables of an attempt.

Pure functions from tables to fresh arrays; node times become aligned times here, a column at a
time. `stalls` runs at every tick over every pair and must stay cheap: it compares times of one rank
with each other, which needs no alignment, and usually nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from frd.engine.clocks.clock_lines import ClockLines
from frd.engine.clocks.uncertain_time import RankClocks, assumed_ns
from frd.engine.state.attempt_tables import AttemptTables
from frd.engine.state.lazy import LazySequence
from frd.engine.state.snapshot import ANY_SEQ, AT_REST, EARLY, PairColumns, Snapshot, StallTable
from frd.engine.state.tables import EXITED, LIVE, RankTable
from frd.engine.views import STATES
from frd.model import UNKNOWN_SEQ, AlignedNs, AttemptKey, Bools, Int32s, Int64s

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
    pairs, ranks, n = tables.pairs, tables.ranks, tables.pairs.count
    row = np.flatnonzero((pairs.enqueued[:n] > pairs.completed[:n]) & (pairs.head[:n] > 0))
    early_ns = round(least_ns * EARLY)
    row = row[ranks.as_of[pairs.rank[row]] - pairs.head[row] >= early_ns]
    p2p = tables.channels.waiting(ranks, early_ns)
    since = np.maximum(pairs.head[row], pairs.idle_until[row])
    usual = thresholds_ns(tables, least_ns)
    lasted = _lasted(ranks, pairs.rank[row], since, now)
    stuck = np.flatnonzero(lasted >= usual[pairs.group[row]] * EARLY)
    if len(stuck):
        limit = _limits(tables, row[stuck], ends_early, now)
        stuck = stuck[completed(tables, row[stuck]) <= limit]
    row = row[stuck]
    lasted_p2p = _lasted(ranks, p2p.rank, p2p.since, now)
    late = (lasted_p2p >= usual[p2p.group] * EARLY) & (p2p.in_flight > 0)
    rank = np.concatenate((pairs.rank[row], p2p.rank[late]))
    group = np.concatenate((pairs.group[row], p2p.group[late]))
    since = np.concatenate((since[stuck], p2p.since[late]))
    early = StallTable(
        group,
        rank,
        np.concatenate((completed(tables, row) + 1, np.full(late.sum(), UNKNOWN_SEQ))),
        ranks.to_aligned(rank, since, now),
    )
    return early.of(np.concatenate((lasted[stuck], lasted_p2p[late])) >= usual[group]), early


def thresholds_ns(tables: AttemptTables, least_ns: int) -> Int64s:
    """How long a wait may take, by group. What is usual counts while all members run: no wait for a
    rank that has ended is usual."""
    pairs, ended = tables.pairs, np.flatnonzero(tables.ranks.state >= EXITED)
    found = tables.groups.threshold_ns[: tables.groups.count].copy()
    if len(ended):
        found[pairs.group[: pairs.count][np.isin(pairs.rank[: pairs.count], ended)]] = least_ns
    return found


def _lasted(ranks: RankTable, rank: Int32s, since: Int64s, now: AlignedNs) -> Int64s:
    """For how long reports confirm these waits; -1 of a rank that is gone."""
    # An agent whose clock is misjudged cannot confirm a wait that has not happened yet.
    as_of = np.minimum(ranks.as_of[rank], ranks.to_node(rank, now))
    return np.where(ranks.state[rank] < EXITED, as_of - since, -1)


def _limits(tables: AttemptTables, row: Int64s, ends_early: EndsEarly, now: AlignedNs) -> Int64s:
    """The highest seq that each row can have completed: a member cannot complete an op that another
    member, by a later report, has not joined."""
    groups, pairs = tables.groups, tables.pairs
    group, done = pairs.group[row], completed(tables, row)
    layout = pairs.layout()
    come = layout.view(pairs.enqueued)
    least = np.zeros(groups.count, np.int64)
    least[layout.groups] = np.minimum.reduceat(np.where(come < 0, _FAR, come), layout.starts)
    odd = np.flatnonzero(done > least[group])
    odd = odd[~ends_early(group[odd], done[odd])]
    odd = odd[np.argsort(group[odd], kind="stable")]
    limit = np.full(len(row), _FAR, np.int64)
    for rows_of_group in np.split(odd, np.flatnonzero(np.diff(group[odd])) + 1) if len(odd) else ():
        members = groups.rows(int(group[rows_of_group[0]]))
        limit[rows_of_group] = _least_joined(tables, members, row[rows_of_group], now)
    return limit


def _least_joined(
    tables: AttemptTables, members: slice | list[int], row: Int64s, now: AlignedNs
) -> Int64s:
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


def completed(tables: AttemptTables, row: Int64s) -> Int64s:
    """Completed watermarks; a rank in its first collective counts as done with the one before."""
    pairs = tables.pairs
    marks = pairs.completed[row]
    first = tables.groups.first_seq[pairs.group[row]]
    return np.where((marks < 0) & (first <= pairs.enqueued[row]), first - 1, marks)


def snapshot(
    tables: AttemptTables,
    key: AttemptKey,
    world_size: int,
    op: Callable[[int, int], str],
    least_ns: int,
    ends_early: EndsEarly,
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


def _unheard(tables: AttemptTables, order: Int64s, done: Int64s, ends_early: EndsEarly) -> Bools:
    """Members without any report, where others have completed an op that takes all members: these
    members joined it before an agent could report it."""
    group = tables.pairs.group[order]
    first = tables.groups.first_seq[group]
    none = tables.pairs.enqueued[order] == UNKNOWN_SEQ
    some = np.zeros(tables.groups.count, np.bool_)
    some[group[none]] = True
    some[group[~none & (done < first)]] = False  # the first op may be open yet
    row = np.flatnonzero(some[group] & (done >= first))
    row = row[~ends_early(group[row], done[row])]
    some[:] = False
    some[group[row]] = True
    unheard: Bools = none & some[group]
    return unheard


def pairs(tables: AttemptTables, ends_early: EndsEarly, now: AlignedNs) -> PairColumns:
    """All members of all groups, by group handle. Watermarks that are impossible are cut to the
    highest possible seq."""
    ranks, groups, table = tables.ranks, tables.groups, tables.pairs
    layout = table.layout()
    order, group = layout.order, layout.copy(table.group)
    members, joined = layout.copy(table.rank), layout.copy(table.enqueued)
    started = layout.copy(table.started)
    done, head = completed(tables, order), layout.view(table.head)
    clocks = ranks.clock_lines(members)
    joined_at = _by(clocks, joined, layout.view(table.enqueued_at), now)
    started_at = _by(clocks, started, layout.view(table.started_at), now)
    done_at = _by(clocks, layout.view(table.completed), layout.view(table.completed_at), now)
    moved_at = np.maximum(started_at, done_at)
    rests = np.flatnonzero(done_at < now - groups.threshold_ns[group] * AT_REST)
    rests = rests[ranks.knows(members[rests])]
    rests = rests[ranks.state[members[rests]] == LIVE]  # a timeout completes what never was
    limit = _limits(tables, order[rests], ends_early, now)
    false = done[rests] > limit
    odd, most = rests[false], limit[false] - 1  # nor to be done with what the others are in
    joined[odd], started[odd], done[odd] = most, np.minimum(started[odd], most), most
    known = ranks.knows(members)
    lossy = known.copy()
    lossy[known] = _lossy(ranks, members[known])
    joined_most = np.where(lossy | _unheard(tables, order, done, ends_early), ANY_SEQ, joined)
    done_most = np.where((joined > done) & (head == 0), joined, done)
    joined_most[odd] = done_most[odd] = ANY_SEQ  # what else such a member is in is not known either
    first = np.searchsorted(group, np.arange(groups.count + 1))
    return PairColumns(
        first,
        members,
        joined,
        joined_most,
        started,
        done,
        done_most,
        clocks.to_aligned(head, now),
        moved_at,
        np.maximum(joined_at, moved_at),
    )


def _lossy(table: RankTable, rank: Int32s) -> Bools:
    """Rows of the rank are known to be missing."""
    lossy: Bools = table.gap_at[rank] >= table.as_of[rank]
    return lossy
