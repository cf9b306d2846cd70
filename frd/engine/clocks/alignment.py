"""What is known of one agent session's clock at one time, as a value: node times in, aligned out.

Node time is the raw clock of the node, which is neither stepped nor slewed, and so is the clock of
the service that it is compared with: one straight line leads from one to the other. How far it may
be off is known at one time, and grows with the distance from it as fast as two raw clocks drift.

Alignments are tuples of plain numbers: thousands are made a second, and some are written down and
read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from frd.model import AlignedNs, Float64s, Int64s

FAR_NS: Final = (1 << 62) - (1 << 56)
"""Times and offsets beyond this (the year 2113) are clipped to it: their sums fit into 64 bits."""
GROWTH_PPM: Final = 102
"""The offset of two raw clocks changes at most so fast: 100 ppm of drift, and a little because ages
are measured with these very clocks."""
WANDER_PPM: Final = 0.1
"""The relative drift of two hosts changes by at most so much in a second: see `offset_interval`."""
HORIZON_NS: Final = 1_500_000_000
"""An alignment in use must hold until another ping has come: for so long with a ping a second."""


class Alignment(NamedTuple):
    reason: str
    """Why the clock is unsynchronized; empty otherwise."""
    now_ns: AlignedNs
    """When this was made."""
    at_ns: int
    """A recent time of the node."""
    aligned_ns: int
    """The same moment on the service's clock."""
    rate: float
    """How fast aligned time gains on node time, in ns per ns."""
    half_ns: int
    """Largest error at `at_ns`; meaningless while the clock is unsynchronized."""
    growth_ppm: float = GROWTH_PPM
    """How fast it grows with the distance from `at_ns` at first; see `growth_ns`."""
    horizon_ns: int = HORIZON_NS
    """For how long after `now_ns` it is to be used."""

    def uncertainty_ns(self, node_ns: int) -> int | None:
        """Largest error of this node time, aligned; None when nothing bounds it."""
        if self.reason:
            return None
        return self.half_ns + growth_ns(abs(node_ns - self.at_ns), self.growth_ppm, self.rate)

    def to_aligned(self, node_ns: Int64s) -> Int64s:
        """Node times on the service's clock; 0, which says unknown, stays 0."""
        return _along(node_ns, self.at_ns, self.aligned_ns, self.rate)

    def one_to_aligned(self, node_ns: int) -> AlignedNs:
        if not node_ns:
            return AlignedNs(0)
        time = max(min(node_ns, FAR_NS), -FAR_NS)
        offset = self.aligned_ns - self.at_ns
        return AlignedNs(time + offset + int((time - self.at_ns) * self.rate))


def all_to_aligned(clocks: Sequence[Alignment], node_ns: Int64s) -> Int64s:
    """The same for many nodes: (B, T), of which each row has its own alignment."""
    at, aligned, rate = (
        np.array(column)[:, None]
        for column in zip(*[(one.at_ns, one.aligned_ns, one.rate) for one in clocks], strict=True)
    )
    return _along(node_ns, at, aligned, rate)


def _along(
    node_ns: Int64s, at: int | Int64s, aligned_at: int | Int64s, rate: float | Float64s
) -> Int64s:
    times = np.maximum(np.minimum(node_ns, FAR_NS), -FAR_NS)  # a third of what np.clip takes
    aligned: Int64s = ((times - at) * rate).astype(np.int64)
    aligned += times + (aligned_at - at)
    aligned[node_ns == 0] = 0
    return aligned


def growth_ns(distance_ns: int, growth_ppm: float, rate: float) -> int:
    """How much less exactly an offset is known so far from a moment at which its drift was within
    `growth_ppm` of `rate`."""
    growth_ppm += WANDER_PPM / 2e9 * distance_ns
    return int(distance_ns * min(growth_ppm, GROWTH_PPM + abs(rate) * 1e6) / 1e6) + 1
