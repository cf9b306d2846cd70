"""How far a host's CLOCK_REALTIME is ahead of its CLOCK_MONOTONIC_RAW, read now and then.

The raw clock only counts; the real one is slewed (by a little) and stepped. Two readings in a row
that differ by more than slewing explains have a step between them; a smaller one may hide there.
The time of the step is unknown: between two readings either of them may hold, so the interval
covers both, each widened with the distance from it. Beyond the last reading it widens with the
distance from that; a step that no reading has shown yet cannot be known.

All arithmetic is in integers: nanoseconds since the epoch have no room in a float.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

SLEW_PPM: Final = 601
"""At most, of a real clock against the raw one of the same host: the kernel slews by at most 500,
and corrects the drift of the raw clock besides."""
CALM_NS: Final = 100_000
"""A smaller difference may be a step or not: slewing explains it, between readings that are a sixth
of a second apart."""

Raw = TypeVar("Raw", bound=int)
Real = TypeVar("Real", bound=int)


class RealtimeTable(Generic[Raw, Real]):
    """Readings of one host, in the order of its raw clock; old ones are forgotten."""

    __slots__ = ("_aheads", "_most", "_raws", "_slacks")

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._raws: list[int] = []
        self._aheads: list[int] = []
        self._slacks: list[int] = []

    def __len__(self) -> int:
        return len(self._raws)

    def read(self, raw: Raw, real: Real, slack_ns: int) -> bool:
        """Add a reading of both clocks, `real` within `slack_ns` of the moment of `raw`; True if it
        shows a step.

        A reading is ignored if it is not later than the last one, or less exact than the last one
        is by now.
        """
        ahead = real - raw
        if not self._raws:
            self._append(raw, ahead, slack_ns)
            return False
        gap = raw - self._raws[-1]
        if gap <= 0:
            return False
        by_now = self._slacks[-1] + _grown(gap)
        if abs(ahead - self._aheads[-1]) <= by_now + slack_ns:
            if slack_ns <= by_now:
                self._append(raw, ahead, slack_ns)
            return False
        self._append(raw, ahead, slack_ns)
        return True

    def read_calm(self, raws: Sequence[int], reals: Sequence[int], slacks: Sequence[int]) -> bool:
        """Add only the last of these readings, if they are in order and show no step; otherwise
        return False and add none."""
        if not raws or not self._raws:
            return False
        at, ahead, slack = self._raws[-1], self._aheads[-1], 0
        for raw, real, slack in zip(raws, reals, slacks, strict=True):
            moved = real - raw - ahead
            if raw <= at or not (-CALM_NS < moved < CALM_NS and 0 <= slack < CALM_NS):
                return False
            at = raw
            ahead += moved
        self._append(at, ahead, slack)
        return True

    def _append(self, raw: int, ahead: int, slack: int) -> None:
        self._raws.append(raw)
        self._aheads.append(ahead)
        self._slacks.append(slack)
        if len(self._raws) > 2 * self._most:
            for column in (self._raws, self._aheads, self._slacks):
                del column[: self._most]

    @property
    def last_raw(self) -> int:
        return self._raws[-1]

    def ahead(self, raw: int) -> tuple[int, int]:
        """real - raw at a raw time: estimate and half of the interval's width."""
        raws = self._raws
        if raw >= raws[-1]:
            return self._aheads[-1], self._slacks[-1] + _grown(raw - raws[-1])
        if raw < raws[0]:
            return self._aheads[0], self._slacks[0] + _grown(raws[0] - raw)
        i = len(raws) - 1 if raw >= raws[-2] else bisect_right(raws, raw)
        since, until = raw - raws[i - 1], raws[i] - raw
        before, after = self._aheads[i - 1], self._aheads[i]
        ahead = before + (after - before) * since // (since + until)
        return ahead, max(
            abs(before - ahead) + self._slacks[i - 1] + _grown(since),
            abs(after - ahead) + self._slacks[i] + _grown(until),
        )


def _grown(ns: int) -> int:
    return ns * SLEW_PPM // 1_000_000 + 1
