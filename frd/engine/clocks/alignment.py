"""What is known of one agent session's clock at one time, as a value: node times in, aligned out.

Node time is the raw clock of the node, which is neither stepped nor slewed, and so is the clock of
the service that it is compared with: one straight line leads from one to the other. How far it may
be off is known at one time, and grows with the distance from it as fast as two raw clocks drift.

Alignments are tuples of plain numbers: thousands are made a second, and some are written down and
read again.

One time is before another only if the difference exceeds the uncertainty of both clocks; times of
one clock need no such margin. Everything else is a tie. In the same way, two states were true
together only if their intervals meet by more than both uncertainties (`UncertainTime`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from frd.model import AlignedNs, Float64s, Int32s, Int64s

FAR_NS: Final = (1 << 62) - (1 << 56)
"""Times and offsets beyond this (the year 2113) are clipped to it: their sums fit into 64 bits."""
GROWTH_PPM: Final = 102
"""The offset of two raw clocks changes at most so fast: 100 ppm of drift, and a little because ages
are measured with these very clocks."""
WANDER_PPM: Final = 0.1
"""The relative drift of two hosts changes by at most so much in a second: see `offset_interval`."""
HORIZON_NS: Final = 1_500_000_000
"""An alignment in use must hold until another ping has come: for so long with a ping a second."""
UNKNOWN_NS = 2**62 - 1
"""The uncertainty of an unknown clock; the sum of two does not overflow."""


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


@dataclass(frozen=True, slots=True)
class ClockLines:
    """Looked up once per row, for several columns of times. Each is one item per row."""

    at: Int64s
    """Node time of a moment."""
    aligned: Int64s
    """Aligned time of that moment."""
    rate: Float64s
    """How fast aligned time gains on node time, in ns per ns."""

    def take(self, rows: Int32s | Int64s | int) -> ClockLines:
        """The lines of some rows, of which one beyond the last counts as the last."""
        return ClockLines(
            self.at.take(rows, mode="clip"),
            self.aligned.take(rows, mode="clip"),
            self.rate.take(rows, mode="clip"),
        )

    def to_aligned(self, node_ns: Int64s, now: AlignedNs | Int64s) -> Int64s:
        """Aligned times, not after `now` (of all rows, or by row): what was reported has happened.
        0, which says unknown, stays 0."""
        passed = node_ns - self.at
        gained = (passed * self.rate).astype(np.int64)
        aligned = np.minimum(gained + passed + self.aligned, now)
        return np.where(node_ns == 0, 0, aligned)


@dataclass(frozen=True, slots=True)
class UncertainTime:
    at: AlignedNs
    node: int
    """A number that times of one clock have in common."""
    uncertainty_ns: int | None
    """None when nothing bounds it."""

    @property
    def uncertainty_s(self) -> float | None:
        return None if self.uncertainty_ns is None else self.uncertainty_ns / 1e9

    def margin_ns(self, other: UncertainTime) -> int | None:
        """How far apart the two must be to have an order; None: they have none."""
        if self.node == other.node:
            return 0
        if self.uncertainty_ns is None or other.uncertainty_ns is None:
            return None
        return self.uncertainty_ns + other.uncertainty_ns

    def later(self, ns: int) -> UncertainTime:
        return UncertainTime(AlignedNs(self.at + ns), self.node, self.uncertainty_ns)

    def is_before(self, other: UncertainTime, least_ns: int = 0) -> bool:
        """Certainly earlier, by more than `least_ns`."""
        margin_ns = self.margin_ns(other)
        return margin_ns is not None and other.at - self.at > margin_ns + least_ns


FOREVER: Final = 2**62
"""The end of an interval that nothing ends; sums with an uncertainty do not overflow."""


class Interval(NamedTuple):
    """A stretch of time, on one clock, during which something is known to have been true."""

    since: int
    as_of: int
    node: int
    uncertainty_ns: int | None

    def meets(self, other: Interval) -> bool:
        """Both were true together at some moment, however far the two clocks are off within their
        uncertainty; see `assumed_ns`."""
        margin = 0
        if self.node != other.node:
            margin = (self.uncertainty_ns or 0) + (other.uncertainty_ns or 0)
        return self.since + margin <= other.as_of and other.since + margin <= self.as_of


def assumed_ns(uncertainty_ns: Int64s) -> Int64s:
    """What states are compared with. An unknown clock counts as exact, because a stall lasts longer
    than most clocks are off; but what rests on such a comparison is never certain."""
    return np.where(uncertainty_ns < UNKNOWN_NS, uncertainty_ns, 0)


@dataclass(frozen=True, slots=True)
class RankClocks:
    """How well the clocks of ranks are known: arrays parallel to the ranks of a snapshot."""

    node: Int32s
    """Ranks of one number share one clock."""
    uncertainty_ns: Int64s
    """`UNKNOWN_NS` while unsynchronized."""

    def moment(self, row: int, at: AlignedNs) -> UncertainTime:
        bound = int(self.uncertainty_ns[row])
        return UncertainTime(at, int(self.node[row]), bound if bound < UNKNOWN_NS else None)

    def margins_ns(self, rows: Int64s | slice, moment: UncertainTime) -> Int64s:
        """How much later than `moment` a time of these ranks must be to be after it; see
        `assumed_ns`."""
        margins = assumed_ns(self.uncertainty_ns[rows]) + (moment.uncertainty_ns or 0)
        return np.where(self.node[rows] == moment.node, 0, margins)


def ties(moments: Sequence[UncertainTime], least_ns: int = 0) -> list[bool]:
    """Which of them have no order with another; for an order they must be `least_ns` apart."""
    return [
        any(
            not one.is_before(other, least_ns) and not other.is_before(one, least_ns)
            for at, other in enumerate(moments)
            if at != number
        )
        for number, one in enumerate(moments)
    ]
