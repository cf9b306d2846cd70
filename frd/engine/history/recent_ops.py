"""The last ops of some ranks, with aligned times: what a timeline shows.

Ops come from the entry rows that were applied last. A rank that has been stuck for so long that the
rows of others have replaced its own still has the op that it is inside of, which its watermarks
say. An op is missing at a rank if another rank waits in it and this one has not joined it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np

from frd.engine.history.copies import Copies, OpenWaits
from frd.engine.history.recent_entries import EntryColumnsBatch
from frd.engine.views import MissingOps, RecentOps
from frd.model import AlignedNs, Bools, Flags, Int64s

_NEVER: Final = np.iinfo(np.int64).max
_OVER: Final = int(Flags.COMPLETED | Flags.FAILED)


class _Ops:
    """One element an op, sorted by pair and seq; node times."""

    def __init__(self, rows: EntryColumnsBatch) -> None:
        order = np.lexsort((rows.seq, rows.pair))
        pair, seq = rows.pair[order].astype(np.int64), rows.seq[order]
        is_new = np.ones(len(order), np.bool_)
        is_new[1:] = (pair[1:] != pair[:-1]) | (seq[1:] != seq[:-1])
        first = np.flatnonzero(is_new)
        self.pair, self.seq = pair[first], seq[first]
        self.signature = rows.signature[order][first].astype(np.int64)
        if not len(first):
            self.created = self.started = self.completed = self.reported = np.zeros(0, np.int64)
            self.failed = np.zeros(0, np.bool_)
            return
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
    copies: Copies, ranks: Collection[int], most: int, until: AlignedNs | None = None
) -> RecentOps:
    """See `History.ops`."""
    wanted = np.zeros(max(copies.world_size, len(copies.state)), np.bool_)
    wanted[[rank for rank in ranks if 0 <= rank < len(wanted)]] = True
    ops = _Ops(_rows_of(copies, wanted))
    progress, done = copies.progress, copies.progress.completed()
    waits = copies.waits()
    # What is only known from watermarks.
    inside = np.flatnonzero(wanted[progress.rank[waits.row]])
    row, seq = waits.row[inside], waits.seq[inside]
    is_known = _in(row, seq, ops.pair, ops.seq)
    row, seq = row[~is_known], seq[~is_known]
    pair, op_seq = np.append(ops.pair, row), np.append(ops.seq, seq)
    none = np.zeros(len(row), np.int64)
    open_signature = progress.signature_of(progress.group[row], seq)
    signature = np.append(ops.signature, open_signature)
    rank, group = progress.rank[pair].astype(np.int64), progress.group[pair].astype(np.int64)
    enqueued = copies.to_aligned(rank, np.append(ops.created, progress.head[row]))
    started = copies.to_aligned(rank, np.append(ops.started, none))
    completed = copies.to_aligned(rank, np.append(ops.completed, none))
    reported = np.append(ops.reported, np.full(len(row), _NEVER))
    failed = np.append(ops.failed, np.zeros(len(row), np.bool_))
    is_over = (reported < _NEVER) | (op_seq <= done[pair])
    latest = np.minimum(reported, copies.now)
    ended = np.where(is_over, np.where(completed > 0, completed, latest), 0)
    ended = np.where(is_over, np.maximum(ended, enqueued), 0)
    first, last = _joins(group, op_seq, enqueued)
    waits_for_all = np.append(copies.synchronizing, False)[signature]
    earliest = np.where(waits_for_all, last, enqueued)
    earliest = np.where(failed, enqueued, earliest)  # a time-out waits for no rank
    ended_from = np.where(is_over & (completed == 0), np.minimum(earliest, ended), ended)
    keep = np.flatnonzero((enqueued > 0) & (first <= (copies.now if until is None else until)))
    keep = keep[np.lexsort((enqueued[keep], rank[keep]))]
    keep = keep[_place_from_end(rank[keep]) < most]
    names = sorted({one.op for one in copies.signatures})
    by_signature = np.array([*(names.index(one.op) for one in copies.signatures), -1], np.int64)
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
        groups=copies.infos,
        ops=names,
        missing=_missing(copies, waits, wanted, by_signature, until),
        uncertainty_ns={
            int(r): int(copies.uncertainty_ns[r])
            for r in np.flatnonzero(wanted).tolist()
            if copies.knows_clock(r)
        },
        reached=_reached(copies, wanted, done),
    )


def _rows_of(copies: Copies, wanted: Bools) -> EntryColumnsBatch:
    """The rows of these ranks."""
    parts = [
        batch.at_rows(np.flatnonzero(wanted.take(batch.rank, mode="clip")))
        for batch in copies.batches
    ]
    return EntryColumnsBatch.of(parts)


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


def _reached(copies: Copies, wanted: Bools, done: Int64s) -> dict[tuple[int, int], tuple[int, int]]:
    progress = copies.progress
    row = np.flatnonzero(wanted[progress.rank])
    keys = zip(progress.rank[row].tolist(), progress.group[row].tolist(), strict=True)
    seqs = zip(progress.enqueued[row].tolist(), done[row].tolist(), strict=True)
    return dict(zip(keys, seqs, strict=True))


def _missing(
    copies: Copies,
    waits: OpenWaits,
    wanted: Bools,
    by_signature: Int64s,
    until: AlignedNs | None,
) -> MissingOps:
    """Only of waits that have lasted: of every op, some rank is the last one to join."""
    progress, lasting = copies.progress, waits.lasting()
    if not len(lasting.row):
        return MissingOps()
    group = progress.group[lasting.row].astype(np.int64)
    order = np.lexsort((lasting.seq, group))
    group, seq, since = group[order], lasting.seq[order], lasting.since[order]
    edge = np.ones(len(order), np.bool_)
    edge[1:] = (group[1:] != group[:-1]) | (seq[1:] != seq[:-1])
    first = np.flatnonzero(edge)
    since = np.minimum.reduceat(since, first)
    found: list[tuple[int, int, int, int]] = []
    layout = progress.layout
    starts = np.append(layout.starts, len(layout.order))
    place = {int(handle): at for at, handle in enumerate(layout.groups.tolist())}
    for one, number, at in zip(
        group[first].tolist(), seq[first].tolist(), since.tolist(), strict=True
    ):
        rows = layout.order[starts[place[one]] : starts[place[one] + 1]]
        if until is not None and at > until:
            continue
        rows = rows[wanted[progress.rank[rows]]]
        absent = rows[copies.has_not_joined(rows, number, at)]
        found += [(int(progress.rank[row]), one, number, at) for row in absent.tolist()]
    # A rank that misses several ops of a group misses the first one first.
    found.sort(key=lambda item: (item[0], item[1], item[2]))
    firsts = {(rank, one): (rank, one, number, at) for rank, one, number, at in reversed(found)}
    columns = np.array(sorted(firsts.values()), np.int64).reshape(-1, 4).T
    signature = progress.signature_of(columns[1].astype(np.int32), columns[2])
    rank, group, seq, since = columns
    return MissingOps(rank, group, seq, by_signature[signature], since)
