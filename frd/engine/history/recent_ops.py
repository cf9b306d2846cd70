"""The last ops of some ranks, with aligned times: what a timeline shows.

Ops come from the entry rows that were applied last. A rank that has been stuck for so long that the
rows of others have replaced its own still has the op that it is inside of, which its watermarks
say. An op is missing at a rank if another rank waits in it and this one has not joined it.

Of the entry rows (`RecentEntries`), the columns of whole batches are kept as they came, so that a
row costs nothing when it is applied; a ring buffer for each rank would cost as much as matching.
What a reader wants of them is looked up when it asks. Times stay node times, because the clocks are
known better later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from frd.engine.history import group_map
from frd.engine.matching.open_collectives import OpsAt
from frd.engine.state.entry_batch import EntryBatch, EntryRows, joined_arrays
from frd.engine.state.snapshot import run_starts
from frd.engine.state.snapshot_parts import StateAt
from frd.engine.views import GroupMap, MissingOps, OpenOp, RankGroup, RecentOps
from frd.model import AlignedNs, Bools, Flags, Int32s, Int64s, UInt8s

_NEVER: Final = np.iinfo(np.int64).max
_OVER: Final = int(Flags.COMPLETED | Flags.FAILED)
_ROWS_PER_RANK: Final = 256
"""A rank's last hundred ops, most of which have a row when they begin and one when they end."""
_FEWEST: Final = 4_096
_MOST: Final = 262_144
"""Of all ranks together: some 12 MB."""
_OF_ROWS: Final = [column.name for column in fields(EntryRows) if column.name != "rank"]


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


@dataclass(frozen=True, slots=True)
class EntryColumnsBatch:
    """The rows of one batch, one element a row, in the order in which they were applied."""

    rank: Int64s
    pair: Int32s
    seq: Int64s
    signature: Int32s
    flags: UInt8s
    created_ns: Int64s
    started_ns: Int64s
    completed_ns: Int64s
    """Node times; 0 unknown."""
    at: Int64s
    """When the message of the row came, aligned."""

    def __len__(self) -> int:
        return len(self.seq)

    @classmethod
    def of(cls, parts: Sequence[EntryColumnsBatch]) -> EntryColumnsBatch:
        """The rows of all parts."""
        names = [column.name for column in fields(cls)]
        return cls(*(joined_arrays([getattr(part, name) for part in parts]) for name in names))

    def at_rows(self, rows: Bools | Int64s) -> EntryColumnsBatch:
        return EntryColumnsBatch(*(getattr(self, column.name)[rows] for column in fields(self)))


class RecentEntries:
    """Bounded by rows; the oldest batches go first."""

    def __init__(self) -> None:
        self._batches: deque[EntryColumnsBatch] = deque()
        self._rows = 0
        self._forgotten: list[int] = []
        """Ranks whose rows are still to be dropped. One pass over all batches takes milliseconds,
        so it is made once for all ranks that are declared together."""

    def add(self, rows: EntryBatch, ranks: int) -> None:
        """Rows of an attempt with so many ranks have been applied."""
        self._drop()
        columns = {name: rows.column(name) for name in _OF_ROWS}
        batch = EntryColumnsBatch(rank=rows.ranks, at=rows.times, **columns)
        self._batches.append(batch)
        self._rows += len(batch)
        most = min(max(_FEWEST, _ROWS_PER_RANK * ranks), _MOST)
        while self._rows - len(self._batches[0]) >= most:
            self._rows -= len(self._batches.popleft())

    def forget(self, rank: int) -> None:
        """Another process has the rank from now on."""
        self._forgotten.append(rank)

    def _drop(self) -> None:
        if not self._forgotten:
            return
        gone = np.zeros(max(self._forgotten) + 2, np.bool_)  # the last one: of all higher ranks
        gone[self._forgotten] = True
        kept = [batch.at_rows(~gone.take(batch.rank, mode="clip")) for batch in self._batches]
        self._batches = deque(batch for batch in kept if len(batch))
        self._rows = sum(map(len, self._batches))
        self._forgotten = []

    def move(self, rank: int, by_ns: int) -> None:
        """Another session reports this rank, whose clock shows other times."""
        for at, batch in enumerate(self._batches):
            mine = batch.rank == rank
            if mine.any():
                times = ("created_ns", "started_ns", "completed_ns")
                columns = {name: getattr(batch, name) for name in times}
                moved = {name: ns + by_ns * (mine & (ns > 0)) for name, ns in columns.items()}
                self._batches[at] = replace(batch, **moved)

    def clear(self) -> None:
        self._batches.clear()
        self._rows = 0
        self._forgotten = []

    def batches(self) -> tuple[EntryColumnsBatch, ...]:
        """Oldest first; nothing in them changes."""
        self._drop()
        return tuple(self._batches)
