"""Node clocks to the service's clock, from one-way messages.

Every watermark message tells when its node sent it. `receive time - send time` is the offset plus
the time under way, which is never negative, so the least of it over a window is an upper bound of
the offset (service clock minus node clock), and a close one when messages come every second.

Honest limits: the estimate is high by the fastest way through the network and the event loop
(tens of microseconds on one host, more elsewhere), nothing bounds the offset from below, so the
uncertainty is unknown and reported as such; a node clock that steps *back* is followed only when
the window has passed, one that steps forward at once. Orders across nodes may rest on this only
when they differ by much more than a network round trip. A two-way exchange gives intervals; it
can replace this module without its users noticing, they see `to_aligned` only.

The clock domain is the boot id: all ranks of a host share one. Time enters as an argument.
"""

from __future__ import annotations

from typing import Final

from frd.model import AlignedNs, Int64s, NodeNs

WINDOW_S: Final = 60
_BUCKETS: Final = 6
_BUCKET_NS: Final = WINDOW_S * 1_000_000_000 // _BUCKETS
_FORGET_NS: Final = 3600 * 1_000_000_000
MAX_NODES: Final = 32_768
"""Beyond this the ones that have been silent for longest are forgotten at once."""


class _Node:
    """Least one-way delay of each of the last buckets of time."""

    __slots__ = ("buckets", "offset", "seen")

    def __init__(self, delay: int, bucket: int, now: AlignedNs) -> None:
        self.buckets = {bucket: delay}
        self.offset = delay
        self.seen = now

    def sample(self, delay: int, bucket: int, now: AlignedNs) -> None:
        self.seen = now
        least = self.buckets.get(bucket)
        if least is None:
            self.buckets[bucket] = delay
            for old in [b for b in self.buckets if b <= bucket - _BUCKETS]:
                del self.buckets[old]
            self.offset = min(self.buckets.values())
        elif delay < least:
            self.buckets[bucket] = delay
            self.offset = min(self.offset, delay)


class Clocks:
    """The offset of every boot id that was heard of lately."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def sample(self, boot_id: str, sent_at: NodeNs, received_at: AlignedNs) -> int:
        """Learn from one message; returns how long it was under way beyond the fastest, in ns."""
        delay = received_at - sent_at
        bucket = received_at // _BUCKET_NS
        node = self._nodes.get(boot_id)
        if node is None:
            if len(self._nodes) >= MAX_NODES:
                self._make_room()
            node = self._nodes[boot_id] = _Node(delay, bucket, received_at)
        else:
            node.sample(delay, bucket, received_at)
        return delay - node.offset

    def offset_ns(self, boot_id: str) -> int | None:
        """Service clock minus node clock; None while nothing is known."""
        node = self._nodes.get(boot_id)
        return None if node is None else node.offset

    def uncertainty_ns(self, boot_id: str) -> int | None:
        """Half the width of the offset's interval; one-way messages give none."""
        return None

    def to_aligned(self, boot_id: str, node_ns: Int64s) -> Int64s:
        """Node times on the service's clock; 0, which says unknown, stays 0."""
        offset = self.offset_ns(boot_id)
        if not offset:
            return node_ns
        aligned: Int64s = node_ns + offset
        aligned[node_ns == 0] = 0
        return aligned

    def one_to_aligned(self, boot_id: str, node_ns: NodeNs) -> AlignedNs:
        return AlignedNs(node_ns + (self.offset_ns(boot_id) or 0)) if node_ns else AlignedNs(0)

    def _make_room(self) -> None:
        """A quarter at a time, so that it costs little a node."""
        oldest = sorted(self._nodes, key=lambda boot_id: self._nodes[boot_id].seen)
        for boot_id in oldest[: MAX_NODES // 4]:
            del self._nodes[boot_id]

    def forget(self, now: AlignedNs) -> None:
        """Drop nodes that have been silent for an hour."""
        for boot_id in [b for b, n in self._nodes.items() if now - n.seen > _FORGET_NS]:
            del self._nodes[boot_id]
