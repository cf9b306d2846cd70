"""A node's clock as shown in the API, in metrics, in `frd status` and in dumps."""

from __future__ import annotations

from typing import Any, NamedTuple

from frd.engine.clocks.alignment import Alignment
from frd.model import AlignedNs


class ClockView(NamedTuple):
    """What is known at `now`. Its figures are computed when they are read: that is rare, and there
    is a view of each of twelve thousand agents every second."""

    now: AlignedNs
    used: Alignment
    raw_ns: int
    """Node raw time of `now`."""
    ahead: tuple[int, int] | None
    """How far the node's wall clock is ahead of its raw one, less how far the service's is ahead of
    aligned time, and the largest error of that, in ns; None while no reading of it is known."""
    rate: float
    """How fast the service's raw clock gains on the node's, in ns per ns."""
    exchanged_at: AlignedNs
    """When the last exchange was learned of; 0 before the first."""
    steps: int
    """Of the node's wall clock, in this session."""

    @property
    def reason(self) -> str:
        """Why it is unsynchronized; empty otherwise."""
        return self.used.reason

    @property
    def offset_s(self) -> float | None:
        """Service clock minus the node's wall clock; None while no reading of that is known."""
        if self.ahead is None:
            return None
        return (self.used.one_to_aligned(self.raw_ns) - self.raw_ns - self.ahead[0]) / 1e9

    @property
    def uncertainty_s(self) -> float | None:
        """Largest error of the offset; None while nothing bounds it, and without an offset."""
        if self.ahead is None:
            return None
        bound_ns = self.used.uncertainty_ns(self.raw_ns)
        return None if bound_ns is None else (bound_ns + self.ahead[1]) / 1e9

    @property
    def age_s(self) -> float | None:
        """Since the last exchange; None before the first."""
        return max(0, self.now - self.exchanged_at) / 1e9 if self.exchanged_at else None

    @property
    def is_synchronized(self) -> bool:
        return not self.reason


def clock_json(clock: ClockView) -> dict[str, Any]:
    """JSON form of a clock in the API and in dumps."""
    return {
        "clock_state": "synchronized" if clock.is_synchronized else "unsynchronized",
        "clock_reason": clock.reason,
        "clock_offset_s": clock.offset_s,
        "clock_uncertainty_s": clock.uncertainty_s,
        "clock_drift_ppm": round(clock.rate * 1e6, 3),
        "clock_age_s": clock.age_s,
        "clock_steps": clock.steps,
    }
