"""The service's clock: aligned time, which no correction of the wall clock moves, and UTC.

Aligned time is the raw clock plus a constant; it was UTC when the process began. Intervals,
thresholds and the journal use it. How far UTC is ahead of it is measured again and again, and added
only where times are shown or stored: the engine adds it to findings as they leave it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from frd.model import AlignedNs, ServiceRawNs

_LOOSE_NS: Final = 1_000_000
"""People read milliseconds: UTC may be off by so much, and two readings so far apart."""


def raw_now() -> ServiceRawNs:
    return ServiceRawNs(time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW))


class RealTime:
    """Call it for the aligned time of now. `wall` is a CLOCK_REALTIME, `raw` a raw clock."""

    def __init__(
        self, wall: Callable[[], int] = time.time_ns, raw: Callable[[], ServiceRawNs] = raw_now
    ) -> None:
        self.raw = raw
        self._wall = wall
        self._origin_ns = wall() - raw()
        self.ahead_ns = 0
        """UTC minus aligned time, as of the last call of `follow`."""
        self.follow()  # the process may have lost its core between the two readings

    def __call__(self) -> AlignedNs:
        return self.at(self.raw())

    def at(self, raw: int) -> AlignedNs:
        return AlignedNs(raw + self._origin_ns)

    def raw_at(self, aligned: AlignedNs) -> ServiceRawNs:
        return ServiceRawNs(aligned - self._origin_ns)

    def utc(self) -> AlignedNs:
        """To be stored or shown."""
        return AlignedNs(self() + self.ahead_ns)

    def follow(self) -> None:
        """Compare with the wall clock, which may have drifted or was set."""
        before, wall, after = self.raw(), self._wall(), self.raw()
        ahead_ns = wall - self.at((before + after) // 2)
        if after - before < _LOOSE_NS <= abs(ahead_ns - self.ahead_ns):
            self.ahead_ns = ahead_ns
