"""Stalls, and the parts of a `Snapshot`, from the tables of an attempt.

Pure functions from tables to fresh arrays. `stalls` runs at every tick over every pair and must
stay cheap: one contiguous pass drops all recent waits, and usually nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, TypedDict

import numpy as np

from frd.engine.clocks.uncertain_time import UNKNOWN_NS, RankClocks
from frd.engine.state.attempt_tables import AttemptTables
from frd.engine.state.snapshot import ANY_SEQ, PairColumns, StallTable
from frd.engine.state.tables import EXITED, LIVE, STATES, PairTable, RankTable
from frd.model import UNKNOWN_SEQ, AlignedNs, Bools, ExitInfo, Int32s, Int64s, RankInfo, RankState

_FAR: Final = np.iinfo(np.int64).max
_RESTING_NS: Final = 2_000_000_000
"""By then all members of a group have reported: only watermarks that rest this long are checked."""

_NO_STALLS: Final = StallTable(
    np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64)
)
EndsEarly: TypeAlias = Callable[[Int32s, Int64s], Bools]
"""Of groups and seqs: whether a member may complete the op before all members have joined it."""


def stalls(tables: AttemptTables, latest: AlignedNs, ends_early: EndsEarly) -> StallTable:
    """Waiting that the ranks' own telemetry confirms to be longer than their group's threshold.

    `latest` is the enqueue time of the youngest op that any threshold could call late. A rank that
    is gone does not wait. The wait counts from the enqueue of the op, or from the last time at
    which the op before it was not complete, if that is later: a program that runs far ahead of
    its device is not stalled. Nor is a rank with impossible watermarks; `ends_early` says which
    collectives a member may complete before all members have joined.
    """
    pairs, channels = tables.pairs, tables.channels
    n = pairs.count
    old = (pairs.enqueued[:n] > pairs.completed[:n]) & (pairs.head[:n] <= latest)
    row = np.flatnonzero(old)
    row = row[pairs.head[row] > 0]
    if not len(row) and not channels.are_waiting(latest):
        return _NO_STALLS
    since = np.maximum(pairs.head[row], pairs.idle_until[row])
    stuck = np.flatnonzero(_confirmed(tables, pairs.rank[row], pairs.group[row], since))
    if len(stuck):
        limit = _limits(tables, row[stuck], ends_early)
        stuck = stuck[completed(tables, row[stuck]) <= limit]
    row = row[stuck]
    p2p = channels.waiting_before(latest)
    late = _confirmed(tables, p2p.rank, p2p.group, p2p.since)
    return StallTable(
        np.concatenate((pairs.group[row], p2p.group[late])),
        np.concatenate((pairs.rank[row], p2p.rank[late])),
        np.concatenate((completed(tables, row) + 1, np.full(late.sum(), UNKNOWN_SEQ))),
        np.concatenate((since[stuck], p2p.since[late])),
    )


def _confirmed(tables: AttemptTables, rank: Int32s, group: Int32s, since: Int64s) -> Bools:
    ranks = tables.ranks
    running: Bools = ranks.state[rank] < EXITED
    return running & (ranks.as_of[rank] - since >= tables.groups.threshold_ns[group])


def _limits(tables: AttemptTables, row: Int64s, ends_early: EndsEarly) -> Int64s:
    """The highest seq that each row can have completed: a member cannot complete an op that another
    member, by a later report, has not joined."""
    groups, pairs = tables.groups, tables.pairs
    group, done = pairs.group[row], completed(tables, row)
    layout = pairs.layout()
    come = pairs.enqueued[layout.order]
    least = np.zeros(groups.count, np.int64)
    least[layout.groups] = np.minimum.reduceat(np.where(come < 0, _FAR, come), layout.starts)
    odd = np.flatnonzero(done > least[group])
    odd = odd[~ends_early(group[odd], done[odd])]
    odd = odd[np.argsort(group[odd], kind="stable")]
    limit = np.full(len(row), _FAR, np.int64)
    for rows_of_group in np.split(odd, np.flatnonzero(np.diff(group[odd])) + 1) if len(odd) else ():
        members = groups.rows(int(group[rows_of_group[0]]))
        at = _completed_by(tables, row[rows_of_group])
        limit[rows_of_group] = _least_joined(tables, members, at)
    return limit


def _completed_by(tables: AttemptTables, row: Int64s) -> Int64s:
    """By when the rows had completed what they have; `_FAR` if that is unknown."""
    pairs = tables.pairs
    at = _by(pairs.completed[row], pairs.completed_at[row], _FAR)
    return np.where(at < _FAR, at + _margin_ns(tables.ranks, pairs.rank[row]), _FAR)


def _least_joined(tables: AttemptTables, members: slice | list[int], after: Int64s) -> Int64s:
    """For each time in `after`: the lowest seq joined by members whose reports are later."""
    ranks, pairs = tables.ranks, tables.pairs
    rank, come = pairs.rank[members], pairs.enqueued[members]
    known = ranks.knows(rank) & (come > UNKNOWN_SEQ)
    known[known] = pairs.last_session[members][known] == ranks.session[rank[known]]
    rank, come = rank[known], come[known]
    as_of = ranks.as_of[rank] - _margin_ns(ranks, rank)
    order = np.argsort(-as_of, kind="stable")
    least = np.minimum.accumulate(np.concatenate(([_FAR], come[order])))
    return least[np.searchsorted(-as_of[order], -after)]


def completed(tables: AttemptTables, row: Int64s) -> Int64s:
    """Completed watermarks; a rank in its first collective counts as done with the one before."""
    pairs = tables.pairs
    marks = pairs.completed[row]
    first = tables.groups.first_seq[pairs.group[row]]
    return np.where((marks < 0) & (first <= pairs.enqueued[row]), first - 1, marks)


class RankColumns(TypedDict):
    """The fields of a `Snapshot` about ranks: state, reports and clocks."""

    rank: Int32s
    as_of: Int64s
    state: list[RankState]
    state_since: Int64s
    detail: list[str]
    connected: Bools
    gap: Bools
    info: dict[int, RankInfo]
    moved_at: Int64s
    clocks: RankClocks
    exits: dict[int, ExitInfo]


def ranks(tables: AttemptTables, now: AlignedNs) -> RankColumns:
    table = tables.ranks
    rank, known = table.sorted(), table.statuses
    return RankColumns(
        rank=rank,
        as_of=table.as_of[rank],
        state=[STATES[code] for code in table.state[rank].tolist()],
        state_since=table.state_since[rank],
        detail=[known[r].detail if r in known else "" for r in rank.tolist()],
        connected=table.connected[rank],
        gap=_lossy(table, rank),
        info=dict(table.infos),
        moved_at=_moved_at(tables, now)[rank],
        clocks=RankClocks(table.session[rank], table.uncertainty_ns[rank]),
        exits={r: status.exit for r, status in known.items() if status.exit is not None},
    )


def _moved_at(tables: AttemptTables, now: AlignedNs) -> Int64s:
    """By when each rank had made its last progress, by its own clock; 0 for none."""
    ranks, pairs = tables.ranks, tables.pairs
    moved_at = np.zeros(ranks.count, np.int64)
    rows = np.flatnonzero(ranks.knows(pairs.rank[: pairs.count]))
    rank = pairs.rank[rows]
    for seqs, times in _reports(pairs):
        np.maximum.at(moved_at, rank, _by(seqs[rows], times[rows], now))
    for mover, at in tables.channels.moved_at().items():
        moved_at[mover] = max(moved_at.item(mover), at)
    return moved_at


def _reports(pairs: PairTable) -> tuple[tuple[Int64s, Int64s], ...]:
    """Each watermark with the time by which it was reached."""
    return (
        (pairs.enqueued, pairs.enqueued_at),
        (pairs.started, pairs.started_at),
        (pairs.completed, pairs.completed_at),
    )


def _by(seqs: Int64s, times: Int64s, unknown: int) -> Int64s:
    """By when these were reached; 0 where nothing was."""
    return np.where(seqs == UNKNOWN_SEQ, 0, np.where(times == 0, unknown, times))


def _margin_ns(ranks: RankTable, rank: Int32s) -> Int64s:
    """How far a time of a rank may be off; a clock without bounds is used as it is."""
    margin_ns = np.zeros(len(rank), np.int64)
    known = np.flatnonzero(ranks.knows(rank))
    bound = ranks.uncertainty_ns[rank[known]]
    margin_ns[known] = np.where(bound < UNKNOWN_NS, bound, 0)
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
    order = table.layout().order
    members, joined, started = table.rank[order], table.enqueued[order], table.started[order]
    done, head = completed(tables, order), table.head[order]
    rests = np.flatnonzero(_completed_by(tables, order) < now - _RESTING_NS)
    rests = rests[ranks.knows(members[rests])]
    rests = rests[ranks.state[members[rests]] == LIVE]  # a timeout completes what never was
    limit = _limits(tables, order[rests], ends_early)
    false = done[rests] > limit
    odd, most = rests[false], limit[false] - 1  # nor to be done with what the others are in
    joined[odd], started[odd], done[odd] = most, np.minimum(started[odd], most), most
    known = ranks.knows(members)
    lossy = known.copy()
    lossy[known] = _lossy(ranks, members[known])
    joined_most = np.where(lossy | _unheard(tables, order, done, ends_early), ANY_SEQ, joined)
    done_most = np.where((joined > done) & (head == 0), joined, done)
    joined_most[odd] = done_most[odd] = ANY_SEQ  # what else such a member is in is not known either
    first = np.searchsorted(table.group[order], np.arange(groups.count + 1))
    return PairColumns(
        first,
        members,
        joined,
        joined_most,
        started,
        done,
        done_most,
        head,
        _moved_by(tables, order, now),
    )


def _moved_by(tables: AttemptTables, row: Int64s, now: AlignedNs) -> Int64s:
    """By when the rows had started and completed what they have."""
    _, *ends = _reports(tables.pairs)
    return np.maximum(*(_by(seqs[row], times[row], now) for seqs, times in ends))


def _lossy(table: RankTable, rank: Int32s) -> Bools:
    """Rows of the rank are known to be missing."""
    lossy: Bools = table.gap_at[rank] >= table.as_of[rank]
    return lossy
