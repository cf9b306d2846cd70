"""P2P ops in flight, by rank: each rank tells all of its channels at once.

Kept as told, one small table a rank, because a rank's word replaces its previous one; only the
oldest enqueue of each rank is looked at every tick, the rest when somebody is found waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from frd.engine.state.snapshot import ChannelSnapshot
from frd.model import Int32s, Int64s, UInt8s, UInt32s


class P2PChannels:
    """Channels with something in flight; `since` is the oldest enqueue by global rank."""

    def __init__(self) -> None:
        self._by_rank: dict[int, ChannelSnapshot] = {}
        self._told: set[int] = set()
        """Ranks that ever had something in flight."""
        self._node: dict[int, Int64s] = {}
        """Their `since` by the node's clock, of ranks that told."""
        self.since: Int64s = np.zeros(0, np.int64)
        """Aligned ns, 0 for none; at least as long as the highest rank that ever told."""

    def replace(
        self,
        rank: int,
        group: Int32s,
        peer: Int32s,
        is_send: UInt8s,
        in_flight: UInt32s,
        since: Int64s,
        since_node: Int64s | None = None,
    ) -> bool:
        """False when the rank stands where it stood. `since_node`: `since` before it was aligned,
        for `realign`."""
        known = self._by_rank.get(rank)
        self.forget(rank)
        busy = np.flatnonzero(in_flight)
        if not len(busy):
            return known is not None
        self._told.add(rank)
        if rank >= len(self.since):
            self.since = np.append(self.since, np.zeros(rank + 1, np.int64))
        self.since[rank] = since[busy].min()
        told = self._by_rank[rank] = ChannelSnapshot(
            rank=np.full(len(busy), rank, np.int32),
            group=group[busy].astype(np.int32),
            peer=peer[busy].astype(np.int32),
            is_send=is_send[busy].astype(np.uint8),
            in_flight=in_flight[busy].astype(np.int64),
            since=since[busy].astype(np.int64),
        )
        if since_node is not None:
            self._node[rank] = since_node[busy].astype(np.int64)
        return known is None or not _alike(known, told)

    def realign(self, ranks: Sequence[int], align: Callable[[Int64s], Int64s]) -> None:
        """More is known of the clock of these ranks."""
        for rank in self._node.keys() & ranks:
            since = align(self._node[rank])
            self._by_rank[rank] = replace(self._by_rank[rank], since=since)
            self.since[rank] = since.min()

    def keep_heads(self, ranks: Sequence[int]) -> None:
        """What they have told is not to be aligned again."""
        for rank in self._node.keys() & ranks:
            del self._node[rank]

    def forget(self, rank: int) -> None:
        self._node.pop(rank, None)
        if self._by_rank.pop(rank, None) is not None:
            self.since[rank] = 0

    def has_told(self, rank: int) -> bool:
        """The rank has sent or received, as far as that was seen."""
        return rank in self._told

    def are_waiting(self, latest: int) -> bool:
        """There are channels in `waiting_before(latest)`."""
        return bool(((self.since > 0) & (self.since <= latest)).any())

    def waiting_before(self, latest: int) -> ChannelSnapshot:
        """All channels of the ranks that have one in flight since `latest` or longer."""
        ranks = np.flatnonzero((self.since > 0) & (self.since <= latest))
        return _joined([self._by_rank[rank] for rank in ranks.tolist()])

    def snapshot(self) -> ChannelSnapshot:
        return _joined([self._by_rank[rank] for rank in sorted(self._by_rank)])


_NONE = ChannelSnapshot(
    rank=np.empty(0, np.int32),
    group=np.empty(0, np.int32),
    peer=np.empty(0, np.int32),
    is_send=np.empty(0, np.uint8),
    in_flight=np.empty(0, np.int64),
    since=np.empty(0, np.int64),
)


def _alike(one: ChannelSnapshot, other: ChannelSnapshot) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("group", "peer", "is_send", "in_flight", "since")
    )


def _joined(tables: list[ChannelSnapshot]) -> ChannelSnapshot:
    if not tables:
        return _NONE
    return ChannelSnapshot(
        rank=np.concatenate([t.rank for t in tables]),
        group=np.concatenate([t.group for t in tables]),
        peer=np.concatenate([t.peer for t in tables]),
        is_send=np.concatenate([t.is_send for t in tables]),
        in_flight=np.concatenate([t.in_flight for t in tables]),
        since=np.concatenate([t.since for t in tables]),
    )
