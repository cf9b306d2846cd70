"""The largest value of the last seconds: of the delays of messages, and of the event loop."""

from __future__ import annotations

import selectors
import time
from asyncio import SelectorEventLoop
from typing import Final

WINDOW_S: Final = 15
"""The usual scrape interval, so that every peak is in some scrape."""


class RecentPeak:
    """The largest value of the last `WINDOW_S`, in steps of a second."""

    def __init__(self) -> None:
        self._peaks: dict[int, float] = {}

    def add(self, value: float, now_s: float) -> None:
        second = int(now_s)
        before = self._peaks.get(second)
        if before is None or value > before:
            self._peaks[second] = value
        if before is None:
            self._forget(second)

    def value(self, now_s: float) -> float:
        """0 without values."""
        self._forget(int(now_s))
        return max(self._peaks.values(), default=0.0)

    def _forget(self, second: int) -> None:
        for other in [at for at in self._peaks if abs(second - at) >= WINDOW_S]:
            del self._peaks[other]


class _Selector(selectors.DefaultSelector):
    """Adds to `lag` how long each turn of the loop took, and how late each wait ended.

    A long batch, a slow snapshot or a busy processor delays everything else by that. Measured here,
    it needs no timer that wakes an idle process.
    """

    def __init__(self, lag: RecentPeak) -> None:
        super().__init__()
        self._lag = lag
        self._woke_s = time.monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        began_s = time.monotonic()
        found = super().select(timeout)
        turn_s, self._woke_s = began_s - self._woke_s, time.monotonic()
        late_s = 0.0 if timeout is None else self._woke_s - began_s - max(timeout, 0.0)
        self._lag.add(max(turn_s, late_s), self._woke_s)
        return found


def measured_loop(lag: RecentPeak) -> SelectorEventLoop:
    """An event loop that adds to `lag` the seconds by which what it does is delayed."""
    return SelectorEventLoop(_Selector(lag))
