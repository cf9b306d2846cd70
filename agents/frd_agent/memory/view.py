"""What was sampled last, for whoever looks (the agent's metrics)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from frd.model import SeriesInfo
from frd_agent.memory.gpu.nvml import DeviceReading


@dataclass(frozen=True, slots=True)
class MemoryView:
    devices: tuple[DeviceReading, ...] = ()
    values: Mapping[SeriesInfo, int] = field(default_factory=dict)
    """Of living ranks; `rank` is the dictionary's number."""
    driver_silent_s: float = 0.0
