"""One attempt as metrics and HTTP show it: ranks and groups of a `frd.engine.views.AttemptView`.

Reduced when it is read for the first time; the objects of 98,304 ranks are made when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from frd.engine.state.attempt_tables import AttemptTables
from frd.engine.state.lazy import LazySequence, once
from frd.engine.state.snapshot import StallTable
from frd.engine.state.snapshot_parts import StateAt
from frd.engine.views import GroupColumns, GroupView, RankColumns, RankView
from frd.model import AlignedNs, Int64s, NodeNs, RankState, RankStatus


class Groups:
    """All groups of an attempt, by handle: as objects, and as columns."""

    def __init__(self, state: StateAt, stalls: StallTable) -> None:
        self._table, self._now = state.tables.groups, state.now
        count, now = self._table.count, state.now
        # These hold no reference to this object: a cycle would keep all copies in memory.
        self._reduced = once(lambda: _reduced(state))
        self._stalled = once(lambda: _stalled(stalls, count, now))

    def views(self) -> Sequence[GroupView]:
        return LazySequence(self._table.count, self._view)

    def _view(self, group: int) -> GroupView:
        info = self._table.infos[group]
        highest, lowest, open_count = self._reduced()
        oldest, stalled = self._stalled()
        return GroupView(
            group_id=info.group_id,
            label=info.label,
            size=len(info.ranks),
            open_collectives=int(open_count[group]),
            stalled_collectives=int(stalled[group]),
            stall_s=float(self._now - oldest[group]) / 1e9,
            matched=int(self._table.matched[group]),
            enqueued=int(highest[group]),
            completed=int(lowest[group]),
            threshold_s=float(self._table.threshold_ns[group]) / 1e9,
        )

    def columns(self) -> GroupColumns:
        oldest, stalled = self._stalled()
        return GroupColumns(
            label=[info.label for info in self._table.infos],
            open_collectives=self._reduced()[2],
            stalled_collectives=stalled,
            stall_s=(self._now - oldest) / 1e9,
            matched=self._table.matched,
            threshold_s=self._table.threshold_ns / 1e9,
        )


def _stalled(stalls: StallTable, count: int, now: AlignedNs) -> tuple[Int64s, Int64s]:
    """By group: the start of its longest stalled wait, and how many of its ops are stalled."""
    oldest = np.full(count, now, np.int64)
    np.minimum.at(oldest, stalls.group, stalls.since)
    instances = np.unique(np.stack((stalls.group, stalls.seq)), axis=1)[0]
    return oldest, np.bincount(instances, minlength=count)


def _reduced(state: StateAt) -> tuple[Int64s, Int64s, Int64s]:
    """By group: highest enqueued, lowest completed, and how many are open between.

    A member without any report leaves the lowest completed seq unknown, but opens nothing.
    """
    pairs, come, first_seq = state.tables.pairs, state.reached, state.tables.groups.first_seq
    count, layout = len(first_seq), pairs.layout()
    highest, lowest = np.full((2, count), -1, np.int64)
    open_count = np.zeros(count, np.int64)
    if len(layout.groups):
        starts, of = layout.starts, layout.groups
        highest[of] = np.maximum.reduceat(layout.view(come.joined), starts)
        lowest[of] = np.minimum.reduceat(layout.view(come.completed), starts)
        # A member that is known, but has not been in the group yet, lacks all that was seen of it.
        row = np.flatnonzero(come.completed < highest[pairs.group])
        row = row[state.tables.ranks.knows(pairs.rank[row])]
        group, behind = pairs.group[row], come.completed[row]
        behind = np.where(behind < 0, np.minimum(first_seq[group] - 1, highest[group]), behind)
        np.maximum.at(open_count, group, highest[group] - behind)
    return highest, lowest, open_count


def rank_columns(tables: AttemptTables, now: AlignedNs) -> RankColumns:
    """Declared ranks."""
    table = tables.ranks
    rank = table.sorted()
    return RankColumns(rank, table.state[rank], table.to_aligned(rank, table.as_of[rank], now))


def ranks(
    state: StateAt, columns: RankColumns, op: Callable[[int, int], str]
) -> Sequence[RankView]:
    """The ranks of `columns`. `op` is that of a group and seq, empty when unknown; it must not
    change afterwards."""
    table, now = state.tables.ranks, state.now
    oldest = once(lambda: _oldest_waits(state))
    every = np.arange(table.count)
    state_since = once(lambda: table.to_aligned(every, table.state_since, now))

    def waits_in(rank: int, status: RankStatus) -> tuple[str, int]:
        if (at := int(oldest()[rank])) >= 0:
            group = int(state.tables.pairs.group[state.waits.row[at]])
            seq, label = int(state.waits.seq[at]), state.tables.groups.infos[group].label
            words = f"{op(group, seq) or 'collective'} #{seq} on {label}"
            return words, int(state.waits.since[at])
        if rank in table.initializing and status.stage is not None:
            began = np.array(status.stage.since_ns)
            return status.stage.op, int(table.to_aligned(rank, began, now))
        return "", now

    def make(at: int) -> RankView:
        rank = int(columns.rank[at])
        status = table.statuses.get(rank) or RankStatus(rank, RankState.LIVE, NodeNs(0))
        waiting_in, since = waits_in(rank, status)
        return RankView(
            info=table.infos[rank],
            status=status,
            as_of=AlignedNs(int(columns.as_of[at])),
            state_since=AlignedNs(int(state_since()[rank])),
            waiting_in=waiting_in,
            waiting_s=max(0.0, float(now - since) / 1e9),
        )

    return LazySequence(len(columns.rank), make)


def _oldest_waits(state: StateAt) -> Int64s:
    """By rank: the place of its oldest one in `waits`, -1 for none."""
    waits, oldest = state.waits, np.full(state.tables.ranks.count, -1, np.int64)
    newest_first = np.argsort(-waits.since, kind="stable")
    oldest[state.tables.pairs.rank[waits.row[newest_first]]] = newest_first
    return oldest
