"""The worst of the last seconds: what a scrape has to see, though it comes only now and then."""

from __future__ import annotations

from typing import Final

WINDOW_S: Final = 15
"""As long as a usual scrape interval, so that no scrape misses the worst case."""


class RecentPeak:
    """The largest number noted within `WINDOW_S`, to the second; it holds one number a second."""

    def __init__(self) -> None:
        self._worst: dict[int, float] = {}

    def note(self, value: float, now_s: float) -> None:
        second = int(now_s)
        self._worst[second] = max(value, self._worst.get(second, value))
        self._forget(second)

    def worst(self, now_s: float) -> float:
        """0 when nothing was noted."""
        self._forget(int(now_s))
        return max(self._worst.values(), default=0.0)

    def _forget(self, second: int) -> None:
        """Those to come as well: the clock was set back."""
        for other in [at for at in self._worst if abs(second - at) >= WINDOW_S]:
            del self._worst[other]
