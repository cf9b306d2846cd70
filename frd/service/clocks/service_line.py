"""From the service's raw clock to aligned time: one straight line, the same for all nodes.

Nodes are compared by the service's raw clock, which is neither stepped nor slewed. People read wall
time. The line follows the service's wall clock to within milliseconds and changes rarely, by its
slope only, so two times of different nodes keep their distance however the wall clock is corrected.
If the wall clock is set, the line moves, for all nodes together.
"""

from __future__ import annotations

from typing import Final

from frd.model import AlignedNs, ServiceRawNs

_LOOSE_NS: Final = 1_000_000
"""How far the line may be from where it should be: people read milliseconds."""
_STEP_NS: Final = 50_000_000
"""A larger difference is a step of the wall clock; slewing would take minutes to follow it."""
_CATCH_UP_NS: Final = 100_000_000_000
"""A smaller difference is made up within this time, so that the slope hardly changes."""
_STEEPEST: Final = 1e-3
"""More than the kernel slews, and a raw clock drifts."""


class ServiceLine:
    __slots__ = ("_aligned", "_error", "_raw", "_wall_rate", "rate")

    def __init__(self, raw: ServiceRawNs, wall: AlignedNs) -> None:
        self._raw, self._aligned = raw, wall
        """Where the line last changed."""
        self._error = 0
        """How far it was behind the wall clock there."""
        self._wall_rate = 0.0
        """Of the wall clock, as estimated there."""
        self.rate = 0.0
        """How fast aligned time gains on the raw clock, in ns per ns."""

    def at(self, raw: int) -> AlignedNs:
        passed = raw - self._raw
        return AlignedNs(self._aligned + passed + int(passed * self.rate))

    def raw_at(self, aligned: AlignedNs) -> ServiceRawNs:
        passed = aligned - self._aligned
        return ServiceRawNs(self._raw + passed - int(passed * self.rate / (1 + self.rate)))

    def follow(self, raw: ServiceRawNs, wall: AlignedNs) -> bool:
        """The wall clock shows `wall` now; True if the line has changed."""
        on_line, passed = self.at(raw), raw - self._raw
        error = wall - on_line
        left = int(self._error * max(0.0, 1 - passed / _CATCH_UP_NS))
        has_caught_up = self._error != 0 and left == 0
        if abs(error - left) < _LOOSE_NS and not has_caught_up:
            return False
        if abs(error) >= _STEP_NS:
            self._aligned, self._error, self.rate = wall, 0, self._wall_rate
        else:
            gained = error - self._error + int(passed * self.rate)
            self._wall_rate = gained / max(passed, 1)
            self._aligned = on_line
            self._error = error if abs(error) >= _LOOSE_NS else 0
            rate = self._wall_rate + self._error / _CATCH_UP_NS
            self.rate = max(-_STEEPEST, min(rate, _STEEPEST))
        self._raw = raw
        return True
