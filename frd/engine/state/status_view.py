"""One attempt as metrics and HTTP show it: ranks and groups of a `frd.engine.views.AttemptView`.

Made every second and read far less often. So what is needed is copied, and reduced when it is read
for the first time, in whatever thread; the objects of 98,304 ranks are made when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from frd.engine.state.attempt_tables import AttemptTables
from frd.engine.state.lazy import LazySequence, once
from frd.engine.state.snapshot import StallTable
from frd.engine.views import GroupColumns, GroupView, RankColumns, RankView
from frd.model import AlignedNs, Int32s, Int64s, NodeNs, RankState, RankStatus, Signature

SignatureOf: TypeAlias = Callable[[Int32s, Int64s], Int64s]
"""Of groups and seqs: the handles of the ops' signatures, -1 when unknown."""


class Progress:
    """Copies of what groups and ranks are reduced from, when they are read for the first time. To
    copy columns takes a tenth of the time of a reduction."""

    def __init__(self, tables: AttemptTables, signature_of: SignatureOf) -> None:
        """`signature_of` must not change afterwards."""
        pairs, count = tables.pairs, tables.pairs.count
        self.signature_of = signature_of
        self.layout = pairs.layout()
        self.group, self.rank = pairs.group[:count], pairs.rank[:count]  # rows never change
        self.enqueued = pairs.enqueued[:count].copy()
        self.marks = pairs.completed[:count].copy()
        self.head = pairs.head[:count].copy()
        self.first_seq = tables.groups.first_seq[: tables.groups.count].copy()
        self.known = tables.ranks.declared[: tables.ranks.count].copy()

    def completed(self) -> Int64s:
        """By pair; see `snapshot_parts.completed`."""
        first = self.first_seq[self.group]
        return np.where((self.marks < 0) & (first <= self.enqueued), first - 1, self.marks)


class Groups:
    """All groups of an attempt, by handle: as objects, and as columns."""

    def __init__(
        self, tables: AttemptTables, progress: Progress, stalls: StallTable, now: AlignedNs
    ) -> None:
        table, count = tables.groups, tables.groups.count
        self._infos = tuple(table.infos)
        self._matched = table.matched[:count].copy()
        self._threshold_ns = table.threshold_ns[:count].copy()
        # These hold no reference to this object: a cycle would keep all copies in memory.
        self._reduced = once(lambda: _reduced(progress))
        self._stalled = once(lambda: _stalled(stalls, count, now))
        self._now = now

    def views(self) -> Sequence[GroupView]:
        return LazySequence(len(self._infos), self._view)

    def _view(self, group: int) -> GroupView:
        info = self._infos[group]
        highest, lowest, open_count = self._reduced()
        oldest, stalled = self._stalled()
        return GroupView(
            group_id=info.group_id,
            label=info.label,
            size=len(info.ranks),
            open_collectives=int(open_count[group]),
            stalled_collectives=int(stalled[group]),
            stall_s=float(self._now - oldest[group]) / 1e9,
            matched=int(self._matched[group]),
            enqueued=int(highest[group]),
            completed=int(lowest[group]),
            threshold_s=float(self._threshold_ns[group]) / 1e9,
        )

    def columns(self) -> GroupColumns:
        oldest, stalled = self._stalled()
        return GroupColumns(
            label=[info.label for info in self._infos],
            open_collectives=self._reduced()[2],
            stalled_collectives=stalled,
            stall_s=(self._now - oldest) / 1e9,
            matched=self._matched,
            threshold_s=self._threshold_ns / 1e9,
        )


def _stalled(stalls: StallTable, count: int, now: AlignedNs) -> tuple[Int64s, Int64s]:
    """By group: the start of its longest stalled wait, and how many of its ops are stalled."""
    oldest = np.full(count, now, np.int64)
    np.minimum.at(oldest, stalls.group, stalls.since)
    instances = np.unique(np.stack((stalls.group, stalls.seq)), axis=1)[0]
    return oldest, np.bincount(instances, minlength=count)


def _reduced(progress: Progress) -> tuple[Int64s, Int64s, Int64s]:
    """By group: highest enqueued, lowest completed, and how many are open between.

    A member without any report leaves the lowest completed seq unknown, but opens nothing.
    """
    count, layout = len(progress.first_seq), progress.layout
    highest, lowest = np.full((2, count), -1, np.int64)
    open_count = np.zeros(count, np.int64)
    if len(layout.groups):
        starts, of = layout.starts, layout.groups
        done = layout.view(progress.completed())
        highest[of] = np.maximum.reduceat(layout.view(progress.enqueued), starts)
        lowest[of] = np.minimum.reduceat(done, starts)
        # A member that is known, but has not been in the group yet, lacks all that was seen of it.
        group, rank = layout.view(progress.group), layout.view(progress.rank)
        top, first = highest[group], progress.first_seq[group]
        behind = np.where(done < 0, np.minimum(first - 1, top), done)
        known = progress.known.take(rank, mode="clip") & (rank < len(progress.known))
        open_count[of] = highest[of] - np.minimum.reduceat(np.where(known, behind, top), starts)
    return highest, lowest, np.maximum(open_count, 0)


@dataclass(frozen=True, slots=True)
class _Waits:
    """The oldest outstanding collective by global rank; `group` is -1 where there is none."""

    group: Int64s
    seq: Int64s
    since: Int64s
    """Node time."""
    signature: Int64s


def _oldest_waits(progress: Progress) -> _Waits:
    count, enqueued, head = len(progress.known), progress.enqueued, progress.head
    row = np.flatnonzero((enqueued > progress.marks) & (head > 0))
    since = np.full(count, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(since, progress.rank[row], head[row])
    oldest = row[head[row] == since[progress.rank[row]]]
    of_rank = np.full(count, -1, np.int64)
    of_rank[progress.rank[oldest]] = oldest
    row = of_rank[of_rank >= 0]
    group, seq, signature = np.full((3, count), -1, np.int64)
    rank, of = progress.rank[row], progress.group[row]
    inside = progress.completed()[row] + 1
    group[rank], seq[rank], signature[rank] = of, inside, progress.signature_of(of, inside)
    return _Waits(group, seq, np.where(group < 0, 0, since), signature)


def rank_columns(tables: AttemptTables, now: AlignedNs) -> RankColumns:
    """Declared ranks."""
    table = tables.ranks
    rank = table.sorted()
    return RankColumns(rank, table.state[rank], table.to_aligned(rank, table.as_of[rank], now))


def ranks(
    tables: AttemptTables,
    columns: RankColumns,
    progress: Progress,
    signatures: Sequence[Signature],
    now: AlignedNs,
) -> Sequence[RankView]:
    """The ranks of `columns`; `progress.signature_of` gives indexes into `signatures`."""
    table, rank, as_of = tables.ranks, columns.rank, columns.as_of
    state_since = table.to_aligned(rank, table.state_since[rank], now)
    infos, statuses = dict(table.infos), dict(table.statuses)
    groups = tuple(tables.groups.infos)
    clocks = table.clock_lines(np.arange(table.count))
    stage_since = {
        r: (stage.op, int(table.to_aligned(r, np.array(stage.since_ns), now)))
        for r in table.initializing
        if (stage := statuses[r].stage) is not None
    }

    def oldest_waits() -> tuple[_Waits, Int64s]:
        waits = _oldest_waits(progress)
        return waits, clocks.to_aligned(waits.since, now)

    oldest = once(oldest_waits)

    def make(at: int) -> RankView:
        r = int(rank[at])
        waits, since_of = oldest()
        group, signature = int(waits.group[r]), int(waits.signature[r])
        op = signatures[signature].op if signature >= 0 else "collective"
        status = statuses.get(r) or RankStatus(r, RankState.LIVE, NodeNs(0))
        waiting_in = f"{op} #{waits.seq[r]} on {groups[group].label}" if group >= 0 else ""
        since = int(since_of[r])
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
