"""The service's clock: wall time that never runs backwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from frd.model import AlignedNs
from frd.service.clocks.pings import raw_now

_SLOWER: Final = 2_500
"""After a step back, the clock loses one part in so many."""


class RealTime:
    """CLOCK_REALTIME that never runs backwards.

    After a step back it continues with the raw clock, a little slower, until the wall clock has
    caught up. A clock that stood still would hide every stall meanwhile. It is slowed no more than
    the kernel slews a clock, because otherwise the clocks of all nodes would seem to run away.
    """

    def __init__(
        self, wall: Callable[[], int] = time.time_ns, raw: Callable[[], int] = raw_now
    ) -> None:
        self._wall = wall
        self._raw = raw
        self._last = wall()
        self._read_at = raw()

    def __call__(self) -> AlignedNs:
        # In this order: the process may lose its core in between, and that time must not count
        # twice.
        wall = self._wall()
        read_at = self._raw()
        passed = read_at - self._read_at
        self._last = max(wall, self._last + passed - passed // _SLOWER)
        self._read_at = read_at
        return AlignedNs(self._last)

    def at_least(self, at: AlignedNs) -> None:
        """Go on from `at`, if that is later, as after a step back of the wall clock to now."""
        self._last = max(self._last, at)
