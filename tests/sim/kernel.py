"""Simulated time: a queue of actions."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

Action = Callable[[], None]


class Kernel:
    """True time in nanoseconds since the beginning. Actions happen in order of time, then of
    planning, so that a run is deterministic."""

    def __init__(self) -> None:
        self.now = 0
        self.steps = 0
        """Actions that have happened."""
        self._heap: list[tuple[int, int, Action]] = []
        self._numbers = itertools.count()

    def at(self, time: int, action: Action) -> None:
        heapq.heappush(self._heap, (max(time, self.now), next(self._numbers), action))

    def after(self, delay: int, action: Action) -> None:
        self.at(self.now + delay, action)

    def run(self, until: int) -> None:
        """Run all actions up to and including `until`."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, action = heapq.heappop(self._heap)
            self.steps += 1
            action()
        self.now = until
