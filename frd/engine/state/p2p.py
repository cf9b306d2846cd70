"""P2P ops in flight: one small table per rank, because each message replaces all of a rank.

Only the oldest enqueue of each rank is checked at every tick; the tables are read when a rank is
found waiting.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Final

import numpy as np

from frd.engine.state.snapshot import ChannelSnapshot
from frd.engine.state.tables import RankTable
from frd.model import AlignedNs, ChannelColumns, Int64s


class P2PChannels:
    """Channels with something in flight; `since` is the oldest enqueue by global rank."""

    def __init__(self) -> None:
        self._by_rank: dict[int, ChannelSnapshot] = {}
        """`ChannelSnapshot.since` is node time here."""
        self.seen: set[int] = set()
        """Ranks that ever had an op in flight."""
        self._as_of: dict[int, int] = {}
        """Node time of the last report of each rank, if the agent says so."""
        self.moved_at: dict[int, int] = {}
        """Node time by which the ops of each rank had changed last."""
        self.since: Int64s = np.zeros(0, np.int64)
        """Node time, 0 for none; at least as long as the highest rank that ever sent."""

    def replace(self, columns: ChannelColumns, at: int) -> None:
        """Replace all channels of one rank, as they were at node time `at`, unless a later report
        is known. See `Attempt.observe_channels`."""
        rank = columns.rank
        if 0 < columns.as_of_ns < self._as_of.get(rank, 0):
            return
        self._as_of[rank] = columns.as_of_ns
        known = self._by_rank.pop(rank, None)
        if not columns.in_flight.any():
            if known is not None:
                self.since[rank] = 0
                self.moved_at[rank] = at
            return
        self.seen.add(rank)
        if rank >= len(self.since):
            self.since = np.append(self.since, np.zeros(rank + 1, np.int64))
        since = columns.head_created_ns
        self.since[rank] = since[columns.in_flight > 0].min()
        calls = columns.batch, columns.signature, columns.posted
        channels = np.full(len(since), rank), columns.group, columns.peer, columns.is_send
        reported = ChannelSnapshot.of((*channels, columns.in_flight, since, *calls))
        self._by_rank[rank] = reported
        if known is None or not _alike(known, reported):
            self.moved_at[rank] = at

    def move_times(self, rank: int, by_ns: int) -> None:
        """See `AttemptTables.move_times`."""
        for times in (self.moved_at, self._as_of):
            if times.get(rank):
                times[rank] += by_ns
        if (known := self._by_rank.get(rank)) is not None:
            since = known.since + by_ns * (known.since > 0)
            self._by_rank[rank] = replace(known, since=since)
            self.since[rank] = since.min()

    def forget(self, rank: int) -> None:
        self.moved_at.pop(rank, None)
        self._as_of.pop(rank, None)
        if self._by_rank.pop(rank, None) is not None:
            self.since[rank] = 0

    def clear(self) -> None:
        """Forget all ranks."""
        for of_ranks in (self._by_rank, self.seen, self.moved_at, self._as_of):
            of_ranks.clear()
        self.since = np.zeros(0, np.int64)

    def waiting(self, ranks: RankTable, least_ns: int) -> ChannelSnapshot:
        """All channels of the ranks that have had one in flight for so long by their last report;
        their times are node times."""
        since = self.since[: ranks.count]
        waited = (since > 0) & (ranks.as_of[: len(since)] - since >= least_ns)
        return _joined([self._by_rank[rank] for rank in np.flatnonzero(waited).tolist()])

    def snapshot(self, ranks: RankTable, now: AlignedNs) -> ChannelSnapshot:
        table = _joined([self._by_rank[rank] for rank in sorted(self._by_rank)])
        return replace(table, since=ranks.to_aligned(table.rank, table.since, now))


_NONE: Final = ChannelSnapshot.of(np.empty((9, 0)))
_COLUMNS: Final = [column.name for column in fields(ChannelSnapshot)]
_OPS: Final = ("group", "peer", "is_send", "in_flight", "since")


def _alike(left: ChannelSnapshot, right: ChannelSnapshot) -> bool:
    """The same ops are in flight, whatever else another agent knows of them."""
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in _OPS)


def _joined(tables: list[ChannelSnapshot]) -> ChannelSnapshot:
    columns = ([getattr(table, name) for table in (_NONE, *tables)] for name in _COLUMNS)
    return ChannelSnapshot(*map(np.concatenate, columns))
