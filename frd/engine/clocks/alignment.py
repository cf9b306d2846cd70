"""What is known of one node's clock at one time, as a value: node times in, aligned times out.

The past of a node's real clock is a list of knots: moments at which its offset (aligned time minus
node time) was known to lie in an interval. From a knot on, an offset cannot leave its interval
faster than clocks drift and slew, so every time between knots has its interval, and every time
after the last one, unless a clock stepped since. A step of a clock, the node's or the service's,
starts a new segment of knots; nothing is claimed of the times between two segments' knots. When a
clock steps back it shows the same times twice: such a time counts as the later one, unless that is
far in the future, and its interval covers both.

Times of the last seconds lie on one line, which costs a few additions a column. Alignments are
tuples of plain numbers: thousands are made a second, and some are written down and read again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from frd.model import AlignedNs, Int64s

FAR_NS: Final = (1 << 62) - (1 << 56)
"""Times and offsets beyond this (the year 2113) are clipped to it: their sums fit into 64 bits."""
GROWTH_PPM: Final = 1_305
"""An offset changes at most so fast: drift between the hosts and slew on either side, and a little
because ages are measured with these very clocks."""

Knot: TypeAlias = tuple[int, int, int]
"""Time of the node's real clock, offset, half of the interval's width; all in ns."""


class Segment(NamedTuple):
    """The node's real clock from one step to the next."""

    start_ns: int
    """The clock showed no less in this segment."""
    end_ns: int
    """The clock showed no more; for the current segment a generous guess."""
    sure: bool
    """False: nothing is bounded, because the knots are contradicted, or there are none."""
    knots: tuple[Knot, ...]
    """In order of time."""

    def interval(self, node_ns: int, *, is_current: bool) -> tuple[int, int] | None:
        """Bounds of the offset at a time of this segment; None: nothing bounds it.

        Between two knots a step may hide that is too small to differ from slew, so either knot may
        be the one that holds.
        """
        i = bisect_right(self.knots, node_ns, key=_at)
        if not self.sure or not i or (node_ns > self.knots[-1][0] and not is_current):
            return None
        low, high = FAR_NS, -FAR_NS
        for at, offset, half in self.knots[i - 1 : i + 1]:
            reach = half + abs(node_ns - at) * GROWTH_PPM // 1_000_000 + 1
            low, high = min(low, offset - reach), max(high, offset + reach)
        return low, high


class Alignment(NamedTuple):
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
    """The line holds for node times from here on, up to `line_to_ns`."""
    drift_ppm: float
    """Of the service's raw clock against the node's."""
    age_s: float
    """Time since the last exchange."""
    segments: tuple[Segment, ...]
    """The last one is current."""
    line_to_ns: int = FAR_NS

    @property
    def offset_ns(self) -> int:
        """Service clock minus node clock, now."""
        return self._line(self.now_ns - self.line_ns)

    def is_better_than(self, other: Alignment) -> bool:
        """Times that `other` has aligned should be aligned again with this one: at least as much is
        known, and the clock was not set in between, which would make earlier times ambiguous."""
        if not other.reason and self.reason:
            return False
        starts = [one.segments[-1].start_ns for one in (self, other) if one.segments]
        return len(set(starts)) < 2

    def uncertainty_ns(self, node_ns: int) -> int | None:
        """Largest error of the offset at this node time; None when nothing bounds it."""
        if self.reason:
            return None
        estimate = self.one_to_aligned(node_ns) - node_ns
        widest = -1
        for segment in self.segments:
            if not segment.start_ns <= node_ns <= segment.end_ns:
                continue
            interval = segment.interval(node_ns, is_current=segment is self.segments[-1])
            if interval is None:
                return None
            low, high = interval
            widest = max(widest, high - estimate, estimate - low)
        return widest if widest >= 0 else None

    def to_aligned(self, node_ns: Int64s) -> Int64s:
        """Node times on the service's clock; 0, which says unknown, stays 0."""
        times = np.maximum(np.minimum(node_ns, FAR_NS), -FAR_NS)  # a third of what np.clip takes
        offset: Int64s = ((times - self.at_ns) * self.rate).astype(np.int64)
        offset += self.line_ns
        unknown = node_ns == 0
        off_line = (times < self.line_from_ns) | (times > self.line_to_ns)
        if off_line.any():
            off_line &= ~unknown
            offset[off_line] = self._off_line(times[off_line])
        aligned: Int64s = times + offset
        aligned[unknown] = 0
        return aligned

    def one_to_aligned(self, node_ns: int) -> AlignedNs:
        if self.line_from_ns <= node_ns <= self.line_to_ns:
            return AlignedNs(node_ns + self._line(node_ns))
        return AlignedNs(int(self.to_aligned(np.array([node_ns]))[0]))

    def _line(self, node_ns: int) -> int:
        return self.line_ns + int((node_ns - self.at_ns) * self.rate)

    def _off_line(self, node_ns: Int64s) -> Int64s:
        """Offsets at times off the line, by the newest segment that each may belong to."""
        offset = np.full(len(node_ns), self.line_ns)
        reach = -FAR_NS
        for segment in self.segments:
            mine = (node_ns >= segment.start_ns) & ((node_ns <= segment.end_ns) | (node_ns > reach))
            if reach == -FAR_NS:
                mine[:] = True
            if segment.knots and mine.any():
                offset[mine] = _between(segment.knots, node_ns[mine])
                reach = max(reach, segment.end_ns)
        return offset


def _between(knots: Iterable[Knot], node_ns: Int64s) -> Int64s:
    """Straight from knot to knot, relative to the first one: whole times do not fit into floats."""
    at, offset = np.array([(at, offset) for at, offset, _ in knots]).T
    beyond: Int64s = np.interp(node_ns - at[0], at - at[0], offset - offset[0]).astype(np.int64)
    whole: Int64s = beyond + offset[0]
    return whole


def _at(knot: Knot) -> int:
    return knot[0]
