"""P2P ops in flight: one small table per rank, because each message replaces all of a rank.

Only the oldest enqueue of each rank is checked at every tick; the tables are read when a rank is
found waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Final

import numpy as np

from frd.engine.state.snapshot import ChannelSnapshot
from frd.model import AlignedNs, ChannelColumns, Int64s


class P2PChannels:
    """Channels with something in flight; `since` is the oldest enqueue by global rank."""

    def __init__(self) -> None:
        self._by_rank: dict[int, ChannelSnapshot] = {}
        self._seen: set[int] = set()
        """Ranks that ever had an op in flight."""
        self._as_of: dict[int, int] = {}
        """Node time of the last report of each rank, if the agent says so."""
        self._moved_at: dict[int, AlignedNs] = {}
        self._node: dict[int, Int64s] = {}
        """`since` on the node's clock, of ranks that can be aligned again."""
        self.since: Int64s = np.zeros(0, np.int64)
        """Aligned ns, 0 for none; at least as long as the highest rank that ever sent."""

    def replace(
        self, columns: ChannelColumns, as_of: AlignedNs, head_node_ns: Int64s | None = None
    ) -> None:
        """Replace all channels of one rank, unless a later report is known. See
        `Attempt.observe_channels`."""
        rank, busy = columns.rank, np.flatnonzero(columns.in_flight)
        if 0 < columns.as_of_ns < self._as_of.get(rank, 0):
            return
        since = columns.head_created_ns[busy].astype(np.int64)
        reported = ChannelSnapshot(
            rank=np.full(len(busy), rank, np.int32),
            group=columns.group[busy].astype(np.int32),
            peer=columns.peer[busy].astype(np.int32),
            is_send=columns.is_send[busy].astype(np.uint8),
            in_flight=columns.in_flight[busy].astype(np.int64),
            since=since,
        )
        if not _alike(self._by_rank.get(rank, _NONE), reported):
            self._moved_at[rank] = as_of
        self._as_of[rank] = columns.as_of_ns
        self._clear(rank)
        if not len(busy):
            return
        self._seen.add(rank)
        self._by_rank[rank] = reported
        if rank >= len(self.since):
            self.since = np.append(self.since, np.zeros(rank + 1, np.int64))
        self.since[rank] = since.min()
        if head_node_ns is not None:
            self._node[rank] = head_node_ns[busy].astype(np.int64)

    def realign(self, ranks: Sequence[int], align: Callable[[Int64s], Int64s]) -> None:
        """Align the times of these ranks again: more is known of their clock."""
        for rank in self._node.keys() & ranks:
            since = align(self._node[rank])
            self._by_rank[rank] = replace(self._by_rank[rank], since=since)
            self.since[rank] = since.min()

    def keep_heads(self, ranks: Sequence[int]) -> None:
        """Do not align the times of these ranks again."""
        for rank in self._node.keys() & ranks:
            del self._node[rank]

    def forget(self, rank: int) -> None:
        self._as_of.pop(rank, None)
        self._moved_at.pop(rank, None)
        self._clear(rank)

    def _clear(self, rank: int) -> None:
        self._node.pop(rank, None)
        if self._by_rank.pop(rank, None) is not None:
            self.since[rank] = 0

    def clear(self) -> None:
        """Forget all ranks."""
        self._by_rank.clear()
        self._seen.clear()
        self._node.clear()
        self._as_of.clear()
        self._moved_at.clear()
        self.since = np.zeros(0, np.int64)

    def ranks_seen(self) -> frozenset[int]:
        """Ranks that have sent or received."""
        return frozenset(self._seen)

    def moved_at(self) -> Mapping[int, AlignedNs]:
        """By when each rank had what it has in flight, if it ever had anything."""
        return self._moved_at

    def are_waiting(self, latest: int) -> bool:
        """Whether `waiting_before(latest)` has any channel."""
        return bool(((self.since > 0) & (self.since <= latest)).any())

    def waiting_before(self, latest: int) -> ChannelSnapshot:
        """All channels of the ranks that have one in flight since `latest` or longer."""
        ranks = np.flatnonzero((self.since > 0) & (self.since <= latest))
        return _joined([self._by_rank[rank] for rank in ranks.tolist()])

    def snapshot(self) -> ChannelSnapshot:
        return _joined([self._by_rank[rank] for rank in sorted(self._by_rank)])


_NONE: Final = ChannelSnapshot(
    rank=np.empty(0, np.int32),
    group=np.empty(0, np.int32),
    peer=np.empty(0, np.int32),
    is_send=np.empty(0, np.uint8),
    in_flight=np.empty(0, np.int64),
    since=np.empty(0, np.int64),
)
_COLUMNS: Final = [column.name for column in fields(ChannelSnapshot)]


def _alike(left: ChannelSnapshot, right: ChannelSnapshot) -> bool:
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in _COLUMNS)


def _joined(tables: list[ChannelSnapshot]) -> ChannelSnapshot:
    if not tables:
        return _NONE
    return ChannelSnapshot(
        *(np.concatenate([getattr(table, name) for table in tables]) for name in _COLUMNS)
    )
