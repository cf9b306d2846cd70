"""The largest value of the last seconds: of the delays of messages, and of the event loop."""

from __future__ import annotations

import asyncio
from typing import Final

WINDOW_S: Final = 15
"""The usual scrape interval, so that every peak is in some scrape."""
_EVERY_S: Final = 0.05


class RecentPeak:
    """The largest value of the last `WINDOW_S`, in steps of a second."""

    def __init__(self) -> None:
        self._peaks: dict[int, float] = {}

    def add(self, value: float, now_s: float) -> None:
        second = int(now_s)
        self._peaks[second] = max(value, self._peaks.get(second, value))
        self._forget(second)

    def value(self, now_s: float) -> float:
        """0 without values."""
        self._forget(int(now_s))
        return max(self._peaks.values(), default=0.0)

    def _forget(self, second: int) -> None:
        for other in [at for at in self._peaks if abs(second - at) >= WINDOW_S]:
            del self._peaks[other]


async def watch_loop(lag: RecentPeak) -> None:
    """Add to `lag` the seconds by which the event loop wakes late, until cancelled.

    A long batch, a slow snapshot or a busy processor delays the loop, and with it everything else.
    """
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        lag.add(max(loop.time() - due, 0.0), loop.time())
