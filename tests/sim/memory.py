"""GPU memory of one simulated rank: a plateau with a sawtooth, and what faults add to it.

A function of true time, so that asking costs nothing between two asks and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OomError:
    """One failed allocation, as torch tells its observers."""

    number: int
    """From 1."""
    at_ns: int
    """CLOCK_REALTIME of the node."""
    requested: int
    free: int


@dataclass(frozen=True, slots=True)
class MemoryOfRank:
    """What the tap and NVML would read now; all in bytes. Every rank has a device of its own."""

    uuid: bytes
    """Of the device."""
    allocated: int
    reserved: int
    peak: int
    """Of `allocated`."""
    used: int
    """Of the device, by all that use it."""
    total: int
    errors: tuple[OomError, ...]
