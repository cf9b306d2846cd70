"""What is known of one node's clock at one moment, as a value: node times in, aligned times out.

A node's history is a list of knots: moments of its real clock at which its offset (aligned time
minus node time) was known to lie in an interval. Between two knots, and beyond the last, an offset
cannot leave a knot's interval faster than clocks drift and slew, so every time has its interval.
A step of a clock, the node's or the service's, starts a new segment of knots. When a clock steps
back it shows the same times twice: such a time is taken for the later one, unless that would be the
future, and its interval covers both.

Times of the last seconds lie on one line, which costs a few additions a column. Only plain
numbers are in here, so that an alignment can be written down and read again.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

import numpy as np

from frd.model import AlignedNs, Int64s

FAR_NS: Final = 1 << 62
"""Times beyond this (the year 2116) are clipped to it, so that sums fit into 64 bits."""
GROWTH_PPM: Final = 1_101
"""An offset changes at most so fast: drift of 100 ppm between the hosts, slew of 500 on each side;
the odd one because ages are measured with these very clocks."""

Knot: TypeAlias = tuple[int, int, int]
"""Time of the node's real clock, offset, half of the interval's width; all in ns."""


class ClockState(StrEnum):
    SYNCHRONIZED = "synchronized"
    UNSYNCHRONIZED = "unsynchronized"


@dataclass(frozen=True, slots=True)
class Segment:
    """The node's real clock from one step to the next; at least one knot, in order of time."""

    start_ns: int
    """The real clock showed no less since the step before."""
    end_ns: int
    """Nor more until the step after; of the current segment a generous guess."""
    knots: tuple[Knot, ...]

    def interval(self, node_ns: int) -> tuple[int, int]:
        """Bounds of the offset at a time of this segment."""
        i = bisect_right(self.knots, node_ns, key=_at)
        around = self.knots[max(i - 1, 0) : i + 1]
        grown = min(abs(node_ns - at) for at, _, _ in around) * GROWTH_PPM // 1_000_000 + 1
        low = min(offset - half for _, offset, half in around)
        high = max(offset + half for _, offset, half in around)
        return low - grown, high + grown


@dataclass(frozen=True, slots=True)
class Alignment:
    state: ClockState
    reason: str
    """Why the clock is unsynchronized; empty otherwise."""
    now_ns: AlignedNs
    """When this was made."""
    at_ns: int
    """A recent time of the node's real clock; `line_ns` is the offset then."""
    line_ns: int
    rate: float
    """How fast the offset grows, in ns per ns."""
    line_from_ns: int
    """The line holds for node times from here on."""
    drift_ppm: float
    """Of the service's raw clock against the node's."""
    age_s: float
    """Time since the last exchange."""
    trusted: int
    """Segments before this one serve estimates only: what came later contradicts them."""
    segments: tuple[Segment, ...]

    @property
    def offset_ns(self) -> int:
        """Service clock minus node clock, now."""
        return self._one(self.now_ns - self.line_ns)

    @property
    def uncertainty_ns_now(self) -> int | None:
        return self.uncertainty_ns(self.now_ns - self.line_ns)

    def uncertainty_ns(self, node_ns: int) -> int | None:
        """The offset at this node time is off by so much at most; None when nothing bounds it."""
        if self.state is not ClockState.SYNCHRONIZED:
            return None
        holding = [i for i, s in enumerate(self.segments) if s.start_ns <= node_ns <= s.end_ns]
        if not holding or holding[0] < self.trusted:
            return None
        bounds = [self.segments[i].interval(node_ns) for i in holding]
        estimate = self._one(node_ns)
        low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
        return max(high - estimate, estimate - low)

    def to_aligned(self, node_ns: Int64s) -> Int64s:
        """Node times on the service's clock; 0, which says unknown, stays 0."""
        node_ns = np.clip(node_ns, -FAR_NS, FAR_NS)
        offset: Int64s = ((node_ns - self.at_ns) * self.rate).astype(np.int64)
        offset += self.line_ns
        early = node_ns < self.line_from_ns
        if early.any():
            early &= node_ns != 0
            for i in np.flatnonzero(early):
                offset[i] = self._one(int(node_ns[i]))
        aligned: Int64s = node_ns + offset
        aligned[node_ns == 0] = 0
        return aligned

    def one_to_aligned(self, node_ns: int) -> AlignedNs:
        return AlignedNs(node_ns + self._one(node_ns) if node_ns else 0)

    def _one(self, node_ns: int) -> int:
        """The offset at one node time, estimated."""
        if node_ns >= self.line_from_ns or not self.segments:
            return self.line_ns + int((node_ns - self.at_ns) * self.rate)
        segment = self._segment(node_ns)
        knots = segment.knots
        i = bisect_right(knots, node_ns, key=_at)
        if not i:
            return knots[0][1]
        at, offset, _ = knots[i - 1]
        if i == len(knots):
            return offset
        next_at, next_offset, _ = knots[i]
        return offset + (next_offset - offset) * (node_ns - at) // (next_at - at)

    def _segment(self, node_ns: int) -> Segment:
        begun = [s for s in self.segments if s.start_ns <= node_ns]
        if not begun:
            return self.segments[0]
        return next((s for s in reversed(begun) if node_ns <= s.end_ns), begun[-1])


def _at(knot: Knot) -> int:
    return knot[0]
