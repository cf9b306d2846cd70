"""The processor time of a rank's main thread, as the kernel of its node counts it.

It only grows, and only while the thread runs: two looks that show the same time show one wait.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from tests.sim.ops import MS, S

_SWITCH_NS: Final = 30_000
"""What it takes to begin or to end a wait."""


class Mode(Enum):
    """What the thread does, by how often it wakes and for how long it then runs."""

    RUNS = (1, 1)
    """It computes, or spins in a wait for its device."""
    RESTS = (1, 0)
    POLLS = (100 * MS, 80_000)
    """It sleeps, looks, and sleeps again."""
    STORE = (10 * S, 300_000)
    """It waits for the store, and looks at its time-out now and then."""

    def used_ns(self, elapsed_ns: int) -> int:
        every_ns, for_ns = self.value
        return elapsed_ns // every_ns * for_ns


class MainThread:
    __slots__ = ("_is_frozen", "_ran_ns", "_since", "mode")

    def __init__(self, now: int) -> None:
        self.mode = Mode.RUNS
        self._since = now
        self._ran_ns = 2 * S  # imports
        self._is_frozen = False

    def go(self, mode: Mode, now: int) -> None:
        """From now on it does that; while it is stopped, later."""
        self._ran_ns = self.ran_ns(now) + _SWITCH_NS
        self._since = now
        self.mode = mode

    def freeze(self, now: int) -> None:
        self._ran_ns, self._is_frozen = self.ran_ns(now), True

    def thaw(self, now: int) -> None:
        self._since, self._is_frozen = now, False

    def ran_ns(self, now: int) -> int:
        """Processor time until `now`, which is not before the last change."""
        if self._is_frozen:
            return self._ran_ns
        return self._ran_ns + self.mode.used_ns(now - self._since)
