"""How far a host's CLOCK_REALTIME is ahead of its CLOCK_MONOTONIC_RAW, read now and then.

The raw clock only counts; the real one is slewed (by a little) and stepped. Two
readings in a row that differ by more than slewing explains have a step between them. Nobody saw the
moment: between two readings either of them may hold, so the interval covers both, and widens with
the distance from the nearer one. Beyond the last reading it widens with the distance from that;
a step that no reading has shown yet is beyond what a table can know.

The same table serves a node (its readings come with its pings) and the service (which reads its
own two clocks). All arithmetic is in integers: nanoseconds since the epoch have no room in a float.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, Generic, TypeVar

SLEW_PPM: Final = 601
"""At most, of a real clock against the raw one of the same host: the kernel slews by at most 500,
and corrects the drift of the raw clock besides."""
MOST_READINGS: Final = 256
_RATE_FROM_NS: Final = 1_000_000_000
_RATE_OVER_NS: Final = 8_000_000_000

Raw = TypeVar("Raw", bound=int)
Real = TypeVar("Real", bound=int)


class RealTable(Generic[Raw, Real]):
    """Readings of one host, in the order of its raw clock; old ones are forgotten."""

    __slots__ = ("_aheads", "_raws", "_segment", "_slacks", "_spacing", "step_gap", "stepped_at", "steps")

    def __init__(self, spacing_ns: int = 0) -> None:
        """A reading within `spacing_ns` of the previous one is passed over unless it shows a step,
        so that a table that is read thousands of times a second reaches back as far."""
        self._spacing = spacing_ns
        self._raws: list[int] = []
        self._aheads: list[int] = []
        self._slacks: list[int] = []
        self._segment = 0
        """Raw time of the first reading since the last step."""
        self.steps = 0
        self.stepped_at = 0
        """Raw time of the first reading after the last step; 0 never."""
        self.step_gap = 0
        """Raw time between the readings around the last step."""

    def __len__(self) -> int:
        return len(self._raws)

    def read(self, raw: Raw, real: Real, slack_ns: int) -> bool:
        """Both clocks, `real` within `slack_ns` of the moment of `raw`; True when it shows a step.

        A reading that is not later than the last one is passed over.
        """
        ahead = real - raw
        stepped = False
        if self._raws:
            gap = raw - self._raws[-1]
            if gap <= 0:
                return False
            room = gap * SLEW_PPM // 1_000_000 + 1 + slack_ns + self._slacks[-1]
            stepped = not -room <= ahead - self._aheads[-1] <= room
            if stepped:
                self.steps += 1
                self.stepped_at, self.step_gap = raw, gap
                self._segment = len(self._raws)
            elif gap < self._spacing:
                return False
        self._raws.append(raw)
        self._aheads.append(ahead)
        self._slacks.append(slack_ns)
        if len(self._raws) > 2 * MOST_READINGS:
            self._forget()
        return stepped

    def _forget(self) -> None:
        gone = len(self._raws) - MOST_READINGS
        for column in (self._raws, self._aheads, self._slacks):
            del column[:gone]
        self._segment = max(self._segment - gone, 0)

    @property
    def last_raw(self) -> int:
        return self._raws[-1]

    @property
    def last_real(self) -> int:
        return self._raws[-1] + self._aheads[-1]

    def last(self) -> tuple[int, int, int]:
        """The newest reading: raw, how far real was ahead, slack."""
        return self._raws[-1], self._aheads[-1], self._slacks[-1]

    def ahead(self, raw: int) -> tuple[int, int]:
        """real - raw at a raw time: estimate and half of the interval's width."""
        i = bisect_right(self._raws, raw)
        if i == len(self._raws):
            return self._cone(i - 1, raw)
        if not i:
            return self._cone(0, raw)
        before, after = self._raws[i - 1], self._raws[i]
        a, b = self._aheads[i - 1], self._aheads[i]
        nearest = min(raw - before, after - raw)
        grown = nearest * SLEW_PPM // 1_000_000 + 1
        low = min(a - self._slacks[i - 1], b - self._slacks[i]) - grown
        high = max(a + self._slacks[i - 1], b + self._slacks[i]) + grown
        ahead = a + (b - a) * (raw - before) // (after - before)
        return ahead, max(high - ahead, ahead - low)

    def _cone(self, i: int, raw: int) -> tuple[int, int]:
        grown = abs(raw - self._raws[i]) * SLEW_PPM // 1_000_000 + 1
        return self._aheads[i], self._slacks[i] + grown

    def rate(self) -> float:
        """How fast real gains on raw, over the last seconds without a step; an estimate."""
        last = self._raws[-1]
        i = max(bisect_right(self._raws, last - _RATE_OVER_NS), self._segment)
        gap = last - self._raws[i]
        return (self._aheads[-1] - self._aheads[i]) / gap if gap >= _RATE_FROM_NS else 0.0
