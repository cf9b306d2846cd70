"""A node's clock as shown in the API, in metrics, in `frd status` and in dumps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ClockView:
    """Computed on request, because requests are rare."""

    reason: str
    """Why it is unsynchronized; empty otherwise."""
    offset_s: float | None
    """Service clock minus the node's wall clock; None while no reading of that is known."""
    uncertainty_s: float | None
    """Largest error of the offset; None while nothing bounds it, and
    without an offset."""
    drift_ppm: float
    """Of the service's raw clock against the node's."""
    age_s: float | None
    """Since the last exchange; None before the first."""
    steps: int = 0
    """Of the node's wall clock, in this session."""

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
        "clock_drift_ppm": round(clock.drift_ppm, 3),
        "clock_age_s": clock.age_s,
        "clock_steps": clock.steps,
    }
