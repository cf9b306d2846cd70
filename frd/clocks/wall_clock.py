"""What the wall clock of a host showed at times of its raw clock, and so when a stamp was made.

Ranks and recorders stamp with CLOCK_REALTIME, which is slewed and stepped. CLOCK_MONOTONIC_RAW is
neither, but two containers of one host may show different values of it, so a stamp of another
process comes as wall time. Whoever reads it turns it into raw time soon after it was made; from
then on no step of the wall clock can move it.

Readings of both clocks side by side make segments. Within one the wall clock was only slewed, so
straight lines lead from reading to reading. Two readings in a row that differ by more than slewing
explains have a step between them, and another segment begins. The moment of the step is unknown:
between these two readings the clock may have shown the time of either segment.

A wall clock that is set back shows the same times twice. A stamp then counts as the newest moment
that is not in the future: a stamp is mostly read within a second of the event, and an event that
was read has happened. A time that no segment shows, because the clock skipped it or was set back
before the first reading, has no result: a guess would be a wait that never was.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import numpy as np

from frd.model import Int64s, NodeNs, NodeRawNs

SLEW_PPM: Final = 601
"""At most, of a wall clock against the raw one of the same host: the kernel slews by at most 500,
and corrects the drift of the raw clock besides."""
_USUAL_PPM: Final = 50
"""How much faster one of them usually runs: decides whether a loose reading is worth more than
an older one. No bound rests on it."""
MOST_SEGMENTS: Final = 32
"""Some clocks are corrected by many small steps."""
MOST_READINGS: Final = 64
"""Of one segment."""
_FRESH: Final = 32
"""Readings that are all kept; of older ones every second one is dropped again and again, so that
a segment reaches back to its first reading, less densely the older."""
_SPACING_NS: Final = 200_000_000
"""The newest reading replaces the one before if they are closer than this."""
_EVER: Final = -(1 << 62)
_NOW_NS: Final = 1_000_000
"""A stamp that is later than now by less counts as now: clocks are read one after the other."""


class _Segment:
    """From one step to the next: moments of the raw clock, and how far the wall clock was ahead."""

    __slots__ = ("aheads", "raws", "since", "until", "walls")

    def __init__(self, since: int) -> None:
        self.since = since
        """The raw clock at the last reading before the segment, or a little earlier: what slewing
        since then moves a stamp."""
        self.until = 0
        """And at the first reading after it, or a little later; 0 for the current segment."""
        self.raws: list[int] = []
        self.walls: list[int] = []
        self.aheads: list[int] = []

    def add(self, raw: int, wall: int) -> None:
        if len(self.raws) > 1 and raw - self.raws[-2] < _SPACING_NS:
            for column in (self.raws, self.walls, self.aheads):
                del column[-1]
        for column, item in ((self.raws, raw), (self.walls, wall), (self.aheads, wall - raw)):
            column.append(item)
            if len(column) > MOST_READINGS:
                del column[1:-_FRESH:2]

    def one(self, wall: int) -> int:
        """The raw time of a stamp, as if the segment had no ends."""
        walls, aheads = self.walls, self.aheads
        i = bisect_right(walls, wall)
        if not 0 < i < len(walls):
            return wall - aheads[min(i, len(walls) - 1)]
        since, length = wall - walls[i - 1], walls[i] - walls[i - 1]
        return wall - aheads[i - 1] - (aheads[i] - aheads[i - 1]) * since // length

    def column(self, walls: Int64s) -> Int64s:
        """`one` of each, within a nanosecond. Whole times do not fit into floats."""
        at, ahead = np.array(self.walls), np.array(self.aheads)
        more = np.interp(walls - at[-1], at - at[-1], ahead - ahead[-1])
        raws: Int64s = walls - ahead[-1] - np.floor(more).astype(np.int64)
        return raws


class WallClock:
    """The wall clock of one host."""

    __slots__ = ("_now", "_segments", "_slack")

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._now = 0
        """The raw clock at the newest reading."""
        self._slack = 0

    def read(self, raw: NodeRawNs, wall: NodeNs, slack_ns: int) -> int:
        """Add a reading of both clocks, `wall` within `slack_ns` of the moment of `raw`; returns
        the size of the step that it shows, mostly 0.

        A reading is ignored if it is not later than the newest one, or if it is less exact than the
        newest one still is.
        """
        gap = raw - self._now
        if not self._segments:
            self._begin(raw, wall, slack_ns, _EVER)
            return 0
        if gap <= 0:
            return 0
        current = self._segments[-1]
        moved = wall - raw - current.aheads[-1]
        still = self._slack + _slewed(raw - current.raws[-1])
        if abs(moved) > still + slack_ns:
            self._begin(raw, wall, slack_ns, current.raws[-1])
            return moved
        self._now = raw
        worth = self._slack + (raw - current.raws[-1]) * _USUAL_PPM // 1_000_000
        if slack_ns <= worth and wall > current.walls[-1]:
            current.add(raw, wall)
            self._slack = slack_ns
        return 0

    def _begin(self, raw: int, wall: int, slack_ns: int, since: int) -> None:
        if self._segments:
            spare = self._slack + slack_ns + _slewed(raw - since)
            self._segments[-1].until = raw + spare
            since -= spare
        segment = _Segment(since)
        segment.add(raw, wall)
        self._segments.append(segment)
        self._now, self._slack = raw, slack_ns
        if len(self._segments) > MOST_SEGMENTS:
            del self._segments[0]
            self._segments[0].since = _EVER

    def one_to_raw(self, wall: NodeNs) -> NodeRawNs:
        """The raw time of a stamp, 1 if it is of before the boot; 0, which says unknown, if no
        reading agrees with it. The clocks have just been read."""
        most = self._latest()
        for segment in reversed(self._segments) if wall > 0 else ():
            if segment.since < (raw := segment.one(wall)) <= (segment.until or most):
                return NodeRawNs(max(min(raw, self._now), 1))
        return NodeRawNs(0)

    def to_raw(self, walls: Int64s) -> Int64s:
        """`one_to_raw` of each, within a nanosecond; 0 if it is of before the boot."""
        most = self._latest()
        result = np.zeros_like(walls)
        rest = np.flatnonzero(walls > 0)
        for segment in reversed(self._segments):
            raws = segment.column(walls[rest])
            shown = (max(segment.since, 0) < raws) & (raws <= (segment.until or most))
            result[rest[shown]] = np.minimum(raws[shown], self._now)
            rest = rest[~shown]
            if not len(rest):
                break
        return result

    def _latest(self) -> int:
        """What a stamp of now may seem to be by the newest line."""
        return self._now + _NOW_NS + self._slack + _slewed(self._now - self._segments[-1].raws[-1])


def _slewed(ns: int) -> int:
    return ns * SLEW_PPM // 1_000_000 + 1
