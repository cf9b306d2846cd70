"""A node's clock as shown in the API, in metrics, in `frd status` and in dumps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from frd.engine.clocks.alignment import GROWTH_PPM
from frd.engine.clocks.estimator import OffsetEstimate
from frd.model import AlignedNs


@dataclass(frozen=True, slots=True)
class ClockView:
    """Computed on request, because requests are rare."""

    newest: OffsetEstimate
    at: AlignedNs
    """The time of the view."""
    exchanged_at: AlignedNs
    """0 before the first exchange."""
    steps: int = 0
    """Of the node's wall clock, in this session."""

    @property
    def offset_s(self) -> float:
        """Service clock minus node clock."""
        return (self.newest.offset_ns + self._later_ns * self.newest.rate) / 1e9

    @property
    def uncertainty_s(self) -> float | None:
        """Largest error of the offset; None while nothing bounds it."""
        if self.newest.reason:
            return None
        return (self.newest.half_ns + self._later_ns * GROWTH_PPM / 1e6) / 1e9

    @property
    def drift_ppm(self) -> float:
        return self.newest.drift * 1e6

    @property
    def age_s(self) -> float | None:
        """Since the last exchange; None before the first."""
        return max(0, self.at - self.exchanged_at) / 1e9 if self.exchanged_at else None

    @property
    def is_synchronized(self) -> bool:
        return not self.newest.reason

    @property
    def reason(self) -> str:
        """Why it is unsynchronized; empty otherwise."""
        return self.newest.reason

    @property
    def _later_ns(self) -> int:
        """Since the node's clocks were read."""
        return max(0, self.at - self.newest.offset_ns - self.newest.at_ns)


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
