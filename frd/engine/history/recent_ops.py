"""The last ops of some ranks, with aligned times: what a timeline shows.

Ops come from the entry rows that were applied last. A rank that has been stuck for so long that the
rows of others have replaced its own still has the op that it is inside of, which its watermarks
say. An op is missing at a rank if another rank waits in it and this one has not joined it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.engine.history import group_map
from frd.engine.history.recent_entries import EntryColumnsBatch
from frd.engine.matching.open_collectives import OpsAt
from frd.engine.state.snapshot import run_starts
from frd.engine.state.state_at import StateAt
from frd.engine.views import GroupMap, MissingOps, OpenOp, RankGroup, RecentOps
from frd.model import AlignedNs, Bools, Flags, Int64s

_NEVER: Final = np.iinfo(np.int64).max
_OVER: Final = int(Flags.COMPLETED | Flags.FAILED)


class _Ops:
    """One element an op, sorted by pair and seq; node times."""

    def __init__(self, rows: EntryColumnsBatch) -> None:
        order = np.lexsort((rows.seq, rows.pair))
        pair, seq = rows.pair[order].astype(np.int64), rows.seq[order]
        first = run_starts(pair, seq)
        self.pair, self.seq = pair[first], seq[first]
        self.signature = rows.signature[order][first].astype(np.int64)
        flags = rows.flags[order]
        self.created = _earliest(rows.created_ns[order], first)
        self.started = _earliest(rows.started_ns[order], first)
        self.completed = _earliest(rows.completed_ns[order], first)
        over_at = np.where(flags & _OVER != 0, rows.at[order], _NEVER)
        self.reported = np.minimum.reduceat(over_at, first)
        self.failed = np.bitwise_or.reduceat(flags, first) & int(Flags.FAILED) != 0


def _earliest(times: Int64s, first: Int64s) -> Int64s:
    """Of the rows of each op, the earliest time that is known; 0 if none is."""
    found = np.minimum.reduceat(np.where(times == 0, _NEVER, times), first)
    return np.where(found == _NEVER, 0, found)


def recent_ops(
    at: StateAt,
    opened: OpsAt,
    batches: Sequence[EntryColumnsBatch],
    ranks: Collection[int],
    most: int,
    until: AlignedNs | None,
) -> RecentOps:
    """See `History.ops`."""
    pairs, clocks, waits, done = at.tables.pairs, at.tables.ranks, at.waits, at.reached.completed
    wanted = np.zeros(max(clocks.count, int(pairs.rank.max(initial=0)) + 1), np.bool_)
    wanted[[rank for rank in ranks if 0 <= rank < len(wanted)]] = True
    ops = _Ops(_rows_of(batches, wanted))
    # What is only known from watermarks.
    inside = np.flatnonzero(wanted[pairs.rank[waits.row]])
    row, seq = waits.row[inside], waits.seq[inside]
    is_known = _in(row, seq, ops.pair, ops.seq)
    row, seq = row[~is_known], seq[~is_known]
    pair, op_seq = np.append(ops.pair, row), np.append(ops.seq, seq)
    none = np.zeros(len(row), np.int64)
    open_signature = opened.signature_of(pairs.group[row], seq)
    signature = np.append(ops.signature, open_signature)
    rank, group = pairs.rank[pair].astype(np.int64), pairs.group[pair].astype(np.int64)
    enqueued = clocks.to_aligned(rank, np.append(ops.created, pairs.head[row]), at.now)
    started = clocks.to_aligned(rank, np.append(ops.started, none), at.now)
    completed = clocks.to_aligned(rank, np.append(ops.completed, none), at.now)
    reported = np.append(ops.reported, np.full(len(row), _NEVER))
    failed = np.append(ops.failed, np.zeros(len(row), np.bool_))
    is_over = (reported < _NEVER) | (op_seq <= done[pair])
    latest = np.minimum(reported, at.now)
    ended = np.where(is_over, np.where(completed > 0, completed, latest), 0)
    ended = np.where(is_over, np.maximum(ended, enqueued), 0)
    first, last = _joins(group, op_seq, enqueued)
    waits_for_all = np.append(opened.signatures.synchronizing, False)[signature]
    earliest = np.where(waits_for_all, last, enqueued)
    earliest = np.where(failed, enqueued, earliest)  # a time-out waits for no rank
    ended_from = np.where(is_over & (completed == 0), np.minimum(earliest, ended), ended)
    keep = np.flatnonzero((enqueued > 0) & (first <= (at.now if until is None else until)))
    keep = keep[np.lexsort((enqueued[keep], rank[keep]))]
    keep = keep[_place_from_end(rank[keep]) < most]
    known = opened.signatures.known
    names = sorted({one.op for one in known})
    by_signature = np.array([*(names.index(one.op) for one in known), -1], np.int64)
    return RecentOps(
        rank=rank[keep],
        group=group[keep],
        seq=op_seq[keep],
        op=by_signature[signature[keep]],
        enqueued=enqueued[keep],
        started=started[keep],
        ended_from=ended_from[keep],
        ended=ended[keep],
        failed=failed[keep],
        groups=at.tables.groups.infos,
        ops=names,
        missing=_missing(at, opened, wanted, by_signature, until),
        uncertainty_ns={
            rank: int(clocks.uncertainty_ns[rank])
            for rank in np.flatnonzero(wanted).tolist()
            if at.knows_clock(rank)
        },
        reached=_reached(at, wanted),
    )


def _rows_of(batches: Sequence[EntryColumnsBatch], wanted: Bools) -> EntryColumnsBatch:
    """The rows of these ranks."""
    rows = [np.flatnonzero(wanted.take(batch.rank, mode="clip")) for batch in batches]
    return EntryColumnsBatch.of([b.at_rows(of) for b, of in zip(batches, rows, strict=True)])


def _in(pair: Int64s, seq: Int64s, pairs: Int64s, seqs: Int64s) -> Bools:
    """Which (pair, seq) are among others."""
    known = set(zip(pairs.tolist(), seqs.tolist(), strict=True))
    at = zip(pair.tolist(), seq.tolist(), strict=True)
    return np.fromiter((one in known for one in at), np.bool_, len(pair))


def _joins(group: Int64s, seq: Int64s, enqueued: Int64s) -> tuple[Int64s, Int64s]:
    """Of each op, when the first and the last of these ranks joined it."""
    if not len(group):
        return enqueued, enqueued
    _, of = np.unique(np.stack((group, seq)), axis=1, return_inverse=True)
    of = of.reshape(-1)
    first = np.full(int(of.max()) + 1, _NEVER, np.int64)
    last = np.zeros_like(first)
    np.minimum.at(first, of, enqueued)
    np.maximum.at(last, of, enqueued)
    return first[of], last[of]


def _place_from_end(rank: Int64s) -> Int64s:
    """Of each element of a sorted column: how many follow with the same value."""
    end = np.searchsorted(rank, rank, side="right")
    return end - np.arange(len(rank)) - 1


def _reached(at: StateAt, wanted: Bools) -> dict[tuple[int, int], tuple[int, int]]:
    pairs, come = at.tables.pairs, at.reached
    row = np.flatnonzero(wanted[pairs.rank])
    keys = zip(pairs.rank[row].tolist(), pairs.group[row].tolist(), strict=True)
    seqs = zip(come.joined[row].tolist(), come.completed[row].tolist(), strict=True)
    return dict(zip(keys, seqs, strict=True))


def _missing(
    at: StateAt,
    ops: OpsAt,
    wanted: Bools,
    by_signature: Int64s,
    until: AlignedNs | None,
) -> MissingOps:
    """Only of waits that have lasted: of every op, some rank is the last one to join."""
    pairs, lasting = at.tables.pairs, at.waits.lasting()
    if not len(lasting.row):
        return MissingOps()
    group = pairs.group[lasting.row].astype(np.int64)
    order = np.lexsort((lasting.seq, group))
    group, seq, since = group[order], lasting.seq[order], lasting.since[order]
    first = run_starts(group, seq)
    since = np.minimum.reduceat(since, first)
    found: list[tuple[int, int, int, int]] = []
    for one, number, began in zip(
        group[first].tolist(), seq[first].tolist(), since.tolist(), strict=True
    ):
        if until is not None and began > until:
            continue
        rows = pairs.layout().rows(one)
        rows = rows[wanted[pairs.rank[rows]]]
        absent = rows[at.has_not_joined(rows, number, began)]
        found += [(int(pairs.rank[row]), one, number, began) for row in absent.tolist()]
    # A rank that misses several ops of a group misses the first one first.
    found.sort(key=lambda item: (item[0], item[1], item[2]))
    firsts = {(rank, one): (rank, one, number, at) for rank, one, number, at in reversed(found)}
    columns = np.array(sorted(firsts.values()), np.int64).reshape(-1, 4).T
    signature = ops.signature_of(columns[1].astype(np.int32), columns[2])
    rank, group, seq, since = columns
    return MissingOps(rank, group, seq, by_signature[signature], since)


@dataclass(frozen=True, slots=True)
class AttemptHistory:
    state: StateAt
    open: OpsAt
    batches: Sequence[EntryColumnsBatch]
    world_size: int
    late_s: float
    """A rank without a report for so long is not known."""

    @property
    def at(self) -> AlignedNs:
        return self.state.now

    def ops(self, ranks: Collection[int], most: int, until: AlignedNs | None = None) -> RecentOps:
        return recent_ops(self.state, self.open, self.batches, ranks, most, until)

    def group_map(self, most: int) -> GroupMap:
        return group_map.group_map(self.state, self.late_s, self.world_size, most)

    def open_ops(self, most: int) -> tuple[list[OpenOp], int]:
        return group_map.open_ops(self.state, self.open, most)

    def groups_of(self, rank: int, most: int) -> tuple[list[RankGroup], int]:
        return group_map.groups_of(self.state, self.late_s, rank, most)
