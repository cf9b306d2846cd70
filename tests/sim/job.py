"""One attempt of a simulated training job: its ranks and their Flight Recorders, nothing of frd.

Event-driven, in integer nanoseconds of true time, and deterministic: the same plan, clocks and dice
give the same job, byte for byte. The ranks do not know of faults that others have; who waits for
whom comes out of the collectives themselves.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from frd.flight import Status
from frd_agent.taps import ExitRecord
from frd_agent.watch import RawKey
from tests.sim.faults import Fault, Injected
from tests.sim.memory import MemoryOfRank
from tests.sim.programs import JobPlan

Wall: TypeAlias = Callable[[int], int]
"""True time to CLOCK_REALTIME of a node; asked at the moment of an event, with rising times."""


@dataclass(frozen=True, slots=True)
class GroupOfRank:
    """A process group as the tap's identity file lists it."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    backend: str


class SimRank:
    """One rank process, as its tap, its socket and /proc show it."""

    rank: int
    node: int
    local_rank: int
    alive: bool
    stopped: bool
    """By SIGSTOP: neither tap nor socket answer."""
    exit: ExitRecord | None
    """None while it lives, and after SIGKILL."""
    gil_held: bool
    """The tap's thread stands still; the socket answers."""
    groups: tuple[GroupOfRank, ...]
    handlers: tuple[str, ...]
    """Recorder handlers that it offers."""
    recorded: int
    """Entries of collectives that its recorder has written since its start."""
    recorded_p2p: int

    def counters(self) -> dict[RawKey, Status]:
        """What the tap would publish now."""
        raise NotImplementedError

    def dump(self, handler: str) -> bytes:
        """JSON as torch's `handler` writes it."""
        raise NotImplementedError

    def memory(self) -> MemoryOfRank:
        raise NotImplementedError


class Job:
    now: int
    """True time, in ns."""
    ranks: list[SimRank]
    """By global rank."""
    injected: list[Injected]
    """In order of injection."""

    def __init__(
        self, plan: JobPlan, wall: Sequence[Wall], dice: random.Random, begin_ns: int
    ) -> None:
        """`wall` is by node."""
        raise NotImplementedError

    def advance(self, until: int) -> None:
        """Play all events up to and including `until`."""
        raise NotImplementedError

    def inject(self, fault: Fault) -> None:
        """Now; it takes effect at once, or when its rank next reaches the point."""
        raise NotImplementedError

    def heal(self, injected: Injected) -> None:
        """Now. A rank that died, a mismatch and an order deadlock have no healing: see `end`."""
        raise NotImplementedError

    def end(self) -> None:
        """Now: whoever lives exits cleanly."""
        raise NotImplementedError
