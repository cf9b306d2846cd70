"""The interval in which the offset between two raw clocks lies, from exchanges of timestamps.

Nobody steps or slews a raw clock; two of them drift apart by at most 100 ppm, however the drift
changes meanwhile. So a bound that held at one moment holds at another if it is widened by that
much of the time between. Of all bounds from one side a single one binds from now on; when a newer
exchange binds more, that takes its place, and nothing else needs to be remembered.
"""

from __future__ import annotations

from typing import Final

from frd.engine.clocks.alignment import FAR_NS
from frd.engine.clocks.exchange import Exchange

DRIFT: Final = 9_900
"""One part in so many is a drift of 101 ppm: 100, and what measuring it by a clock that drifts
adds."""


class OffsetBounds:
    """The interval of service raw minus node raw, at times of the node's raw clock."""

    __slots__ = ("_half", "_half_at", "_high", "_high_at", "_low", "_low_at", "first")

    def __init__(self, first: Exchange) -> None:
        self.first = first
        self._high, self._high_at = first.t2 - first.t1, first.t1
        self._low, self._low_at = first.t3 - first.t4, first.t4
        self._half, self._half_at = FAR_NS, 0

    def narrow(self, x: Exchange) -> bool:
        """Keep what binds from now on; False when nothing is left."""
        t1, t2, t3, t4 = x
        if (t2 - t1 - self._high) * DRIFT <= t1 - self._high_at:
            self._high, self._high_at = t2 - t1, t1
        if (t4 - t3 + self._low) * DRIFT <= t4 - self._low_at:
            self._low, self._low_at = t3 - t4, t4
        return (self._low - self._high - 2) * DRIFT <= abs(self._low_at - self._high_at)

    def at(self, raw: int) -> tuple[int, int]:
        return (
            self._low - abs(raw - self._low_at) // DRIFT - 1,
            self._high + abs(raw - self._high_at) // DRIFT + 1,
        )

    def settle(self, raw: int, wished: int) -> tuple[int, int]:
        """An estimate within the interval, as near as may be to what is wished, and how far off it
        is at most: never more than what could have been said without the latest exchanges."""
        low, high = self.at(raw)
        half = self._half + abs(raw - self._half_at) // DRIFT + 2
        least = low if low > high - half else high - half
        most = high if high < low + half else low + half
        estimate = least if wished < least else most if wished > most else wished
        half = high - estimate if high - estimate > estimate - low else estimate - low
        self._half, self._half_at = half, raw
        return estimate, half
