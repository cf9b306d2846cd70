"""How late the event loop wakes: the number that shows whether the service keeps up.

A sleeper asks to be woken twenty times a second and notes how late that was. Whatever blocks the
loop (a long batch, a slow snapshot, a starved processor) shows here before it shows anywhere else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

EVERY_S: Final = 0.05
WINDOW_S: Final = 15.0
"""As long as a usual scrape interval, so that no scrape misses the worst case."""


class LoopLag:
    def __init__(self) -> None:
        self._late: deque[float] = deque([0.0], maxlen=round(WINDOW_S / EVERY_S))

    def worst_s(self) -> float:
        """The latest wake-up of the last `WINDOW_S` seconds."""
        return max(self._late)

    async def watch(self) -> None:
        """Runs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self._late.append(max(loop.time() - due, 0.0))
