"""What can go wrong in a simulated job, and what an expert would say of it afterwards."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tests.sim.programs import JobPlan

if TYPE_CHECKING:
    from tests.sim.job import Job


class FaultKind(StrEnum):
    CPU_STUCK = "cpu_stuck"
    GIL_HELD = "gil_held"
    """Like `CPU_STUCK`, but the tap's thread stands still too."""
    STOPPED = "stopped"
    """SIGSTOP: neither tap nor socket answer."""
    CRASH = "crash"
    """SIGKILL: no exit record."""
    CRASH_RECORDED = "crash_recorded"
    """An exception that nobody catches: an exit record."""
    IN_COLLECTIVE_ALONE = "in_collective_alone"
    DEVICE_STUCK = "device_stuck"
    MISMATCH = "mismatch"
    ORDER = "order"
    NETWORK = "network"
    """All have joined, nobody completes."""
    P2P_STUCK = "p2p_stuck"
    """A pipeline stage never sends."""
    STRAGGLER = "straggler"
    MEMORY_SPIKE = "memory_spike"
    LEAK = "leak"
    OOM = "oom"
    RECORDER_RESET = "recorder_reset"
    NEW_GROUP = "new_group"
    """A subgroup is made while training: no fault, and nothing to be confused by."""


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    ranks: tuple[int, ...]
    """The victims of the fault, which makes them the first cause."""


@dataclass(slots=True)
class Injected:
    """A fault that was injected, and what became of it."""

    fault: Fault
    at: int
    """True time of the injection."""
    began: int | None = None
    """True time when it took effect: the rank failed to come, the op hung."""
    healed: int | None = None
    group: str = ""
    """Name of the group that is stuck; empty where none is."""
    seq: int = -1
    culprits: frozenset[int] = frozenset()
    """The ranks that an expert would name."""
    may_name: frozenset[int] = frozenset()
    """Ranks that may be named too, with justice."""


def draw_fault(dice: random.Random, plan: JobPlan, job: Job) -> Fault | None:
    """One that can happen to this job now; None if the one that was drawn cannot."""
    raise NotImplementedError
