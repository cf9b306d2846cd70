"""One attempt as metrics and HTTP show it: ranks and groups of a `frd.engine.views.AttemptView`.

Made at every tick and read far less often, so columns are reduced immediately, and the objects of
16,384 ranks are made only when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar, overload

import numpy as np

from frd.engine.state import snapshot_parts
from frd.engine.state.attempt_tables import AttemptTables
from frd.engine.state.snapshot import StallTable
from frd.engine.views import GroupView, RankView
from frd.model import AlignedNs, Int32s, Int64s, NodeNs, RankState, RankStatus, Signature

T = TypeVar("T")
SignatureOf: TypeAlias = Callable[[Int32s, Int64s], Int64s]
"""Of groups and seqs: the handles of the ops' signatures, -1 when unknown."""


class LazySequence(Sequence[T], Generic[T]):
    """An immutable sequence whose items are made when they are asked for."""

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, slice):
            return [self._make(i) for i in range(*at.indices(self._count))]
        if not -self._count <= at < self._count:
            raise IndexError(at)
        return self._make(at % self._count)


def groups(tables: AttemptTables, stalls: StallTable, now: AlignedNs) -> Sequence[GroupView]:
    """By group handle."""
    table = tables.groups
    infos = tuple(table.infos)
    matched = table.matched[: table.count].copy()
    threshold_ns = table.threshold_ns[: table.count].copy()
    highest, lowest, open_count = _progress(tables)
    oldest = np.full(table.count, now, np.int64)
    np.minimum.at(oldest, stalls.group, stalls.since)
    instances = np.unique(np.stack((stalls.group, stalls.seq)), axis=1)[0]
    stalled = np.bincount(instances, minlength=table.count)

    def make(group: int) -> GroupView:
        info = infos[group]
        return GroupView(
            group_id=info.group_id,
            label=info.label,
            size=len(info.ranks),
            open_collectives=int(open_count[group]),
            stalled_collectives=int(stalled[group]),
            stall_s=float(now - oldest[group]) / 1e9,
            matched=int(matched[group]),
            enqueued=int(highest[group]),
            completed=int(lowest[group]),
            threshold_s=float(threshold_ns[group]) / 1e9,
        )

    return LazySequence(len(infos), make)


def _progress(tables: AttemptTables) -> tuple[Int64s, Int64s, Int64s]:
    """By group: highest enqueued, lowest completed, and how many are open between.

    A member without any report leaves the lowest completed seq unknown, but opens nothing.
    """
    table, pairs = tables.groups, tables.pairs
    highest, lowest = np.full((2, table.count), -1, np.int64)
    open_count = np.zeros(table.count, np.int64)
    layout = pairs.layout()
    if len(layout.groups):
        order, starts, of = layout.order, layout.starts, layout.groups
        done = snapshot_parts.completed(tables, order)
        highest[of] = np.maximum.reduceat(pairs.enqueued[order], starts)
        lowest[of] = np.minimum.reduceat(done, starts)
        # A member that is known, but has not been in the group yet, lacks all that was seen of it.
        top, first = highest[pairs.group[order]], table.first_seq[pairs.group[order]]
        behind = np.where(done < 0, np.minimum(first - 1, top), done)
        known = tables.ranks.knows(pairs.rank[order])
        open_count[of] = highest[of] - np.minimum.reduceat(np.where(known, behind, top), starts)
    return highest, lowest, np.maximum(open_count, 0)


@dataclass(frozen=True, slots=True)
class _Waits:
    """The oldest outstanding collective by global rank; `group` is -1 where there is none."""

    group: Int64s
    seq: Int64s
    since: Int64s
    signature: Int64s


def _oldest_waits(tables: AttemptTables, signature_of: SignatureOf, now: AlignedNs) -> _Waits:
    ranks, pairs = tables.ranks, tables.pairs
    n = pairs.count
    busy = (pairs.enqueued[:n] > pairs.completed[:n]) & (pairs.head[:n] > 0)
    row = np.flatnonzero(busy)
    since = np.full(ranks.count, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(since, pairs.rank[row], pairs.head[row])
    oldest = row[pairs.head[row] == since[pairs.rank[row]]]
    of_rank = np.full(ranks.count, -1, np.int64)
    of_rank[pairs.rank[oldest]] = oldest
    row = of_rank[of_rank >= 0]
    group, seq, signature = np.full((3, ranks.count), -1, np.int64)
    rank, of = pairs.rank[row], pairs.group[row]
    inside = snapshot_parts.completed(tables, row) + 1
    group[rank], seq[rank], signature[rank] = of, inside, signature_of(of, inside)
    since = ranks.to_aligned(np.arange(ranks.count), np.where(group < 0, 0, since), now)
    return _Waits(group, seq, since, signature)


def ranks(
    tables: AttemptTables,
    signature_of: SignatureOf,
    signatures: Sequence[Signature],
    now: AlignedNs,
) -> Sequence[RankView]:
    """Declared ranks, ascending; `signature_of` gives indexes into `signatures`."""
    table = tables.ranks
    rank = table.sorted()
    as_of = table.to_aligned(rank, table.as_of[rank], now)
    state_since = table.to_aligned(rank, table.state_since[rank], now)
    infos, statuses = dict(table.infos), dict(table.statuses)
    groups = tuple(tables.groups.infos)
    waits = _oldest_waits(tables, signature_of, now)
    stage_since = {
        r: (status.stage.op, int(table.to_aligned(r, np.array(status.stage.since_ns), now)))
        for r, status in statuses.items()
        if status.stage is not None and status.stage.op and status.exit is None
    }

    def make(at: int) -> RankView:
        r = int(rank[at])
        group, signature = int(waits.group[r]), int(waits.signature[r])
        op = signatures[signature].op if signature >= 0 else "collective"
        status = statuses.get(r) or RankStatus(r, RankState.LIVE, NodeNs(0))
        waiting_in = f"{op} #{waits.seq[r]} on {groups[group].label}" if group >= 0 else ""
        since = int(waits.since[r])
        if group < 0 and r in stage_since:
            waiting_in, since = stage_since[r]
        return RankView(
            info=infos[r],
            status=status,
            as_of=AlignedNs(int(as_of[at])),
            state_since=AlignedNs(int(state_since[at])),
            waiting_in=waiting_in,
            waiting_s=max(0.0, float(now - since) / 1e9) if waiting_in else 0.0,
        )

    return LazySequence(len(rank), make)
