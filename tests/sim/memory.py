"""GPU memory of one simulated rank: a plateau with a sawtooth, and what faults add to it.

A function of true time: reading it changes nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from tests.sim.ops import S

GIB: Final = 1 << 30
_TOTAL: Final = 80 * GIB
_CONTEXT: Final = GIB // 2
"""CUDA and its libraries, in addition to the allocator."""
_FILLS_NS: Final = 3 * S
"""How long a program takes to allocate its weights and optimizer state."""


@dataclass(frozen=True, slots=True)
class OomError:
    """One failed allocation, as torch reports it to its observers."""

    at_ns: int
    """CLOCK_REALTIME of the node."""
    requested: int


@dataclass(frozen=True, slots=True)
class MemoryOfRank:
    """What the tap and NVML read; all in bytes. Every rank has its own device."""

    allocated: int
    reserved: int
    used: int
    """Of the device, by all that use it."""
    total: int
    errors: tuple[OomError, ...]


@dataclass(slots=True)
class Rise:
    """Memory that a fault takes, from `since` on."""

    since: int
    lasts_ns: int
    """From the first byte to the last."""
    most: int
    is_own: bool
    """By the rank's allocator; else by another process on its device."""
    until: int | None = None
    """When it was given back."""

    def give_back(self, now: int) -> None:
        self.until = now

    def at(self, now: int) -> int:
        if self.until is not None and now >= self.until:
            return 0
        return self.most * min(max(now - self.since, 0), self.lasts_ns) // self.lasts_ns


class Memory:
    """The device of one rank."""

    def __init__(self, dice: random.Random, begin: int, step_ns: int) -> None:
        dice.randbytes(16)  # frozen lives depend on what is drawn
        self._begin = begin
        self._period = step_ns
        self._base = dice.randrange(10 * GIB, 40 * GIB)
        self._saw = dice.randrange(GIB, 8 * GIB)
        self._errors: tuple[OomError, ...] = ()
        self._rises: list[Rise] = []

    def rise(self, rise: Rise) -> None:
        self._rises.append(rise)

    def room(self, now: int) -> int:
        """Free bytes of the device when the sawtooth is at its highest."""
        mine = sum(rise.at(now) for rise in self._rises)
        return max(_TOTAL - self._base - self._saw - _CONTEXT - mine, 0)

    def fail(self, now: int, wall_ns: int) -> str:
        """An allocation fails; returns torch's message."""
        requested = self.room(now) + 2 * GIB
        self._errors += (OomError(wall_ns, requested),)
        return f"CUDA out of memory. Tried to allocate {requested / GIB:.2f} GiB. GPU 0 has"

    def at(self, now: int, *, alive: bool) -> MemoryOfRank:
        """If the rank is gone, only what other processes hold on its device."""
        foreign = sum(rise.at(now) for rise in self._rises if not rise.is_own)
        if not alive:
            return MemoryOfRank(0, 0, foreign, _TOTAL, self._errors)
        filled = min(max(now - self._begin, 0), _FILLS_NS)
        base = self._base * filled // _FILLS_NS
        saw = self._saw if filled == _FILLS_NS else 0
        held = sum(rise.at(now) for rise in self._rises if rise.is_own)
        allocated = base + held + saw * ((now - self._begin) % self._period) // self._period
        reserved = base + held + saw
        used = min(reserved + _CONTEXT + foreign, _TOTAL)
        return MemoryOfRank(
            min(allocated, _TOTAL), min(reserved, _TOTAL), used, _TOTAL, self._errors
        )
