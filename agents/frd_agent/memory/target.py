"""Input and output of the samplers: plain values that may be passed between threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from frd.model import MemoryEvent, SeriesInfo

NO_SAMPLE: Final = -1
ABSURD_BYTES: Final = 1 << 50
"""Larger values are refused: no machine has a pebibyte."""


@dataclass(frozen=True, slots=True)
class Target:
    """A living rank, as the samplers need to know it."""

    number: int
    """Of the rank in the agent's dictionary."""
    attempt: int
    pid: int | None
    """In our own pid namespace; None when the process is out of sight."""
    said_pid: int
    """As the rank sees itself."""
    devices: tuple[str, ...]
    """UUIDs of the GPUs that it reports to use."""
    shm_path: Path
    moving: bool
    """It has made progress lately."""


class Reading(NamedTuple):
    """One value. `series.rank` is the dictionary's number of a rank."""

    attempt: int
    series: SeriesInfo
    capacity: int
    value: int


@dataclass(slots=True)
class Part:
    """What one source read between two moments of the raw clock."""

    begin_ns: int
    end_ns: int
    readings: list[Reading] = field(default_factory=list)
    events: list[MemoryEvent] = field(default_factory=list)
