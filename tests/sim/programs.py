"""What the ranks of a simulated job run: its size, its groups, its step."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Everything about a job that is settled before it starts."""

    world: int
    ranks_per_node: int
    backend: str
    """``nccl`` or ``gloo``."""
    timing: bool
    """The recorder's timing is on: it tells ``started`` (NCCL only)."""
    tensor: int
    pipeline: int
    data: int
    """Parallel degrees: world = tensor * pipeline * data."""
    expert: int
    """Divides `data`."""
    ring: int
    """Entries of the Flight Recorder's ring."""
    step_ns: int
    jitter: float
    """Of computing times, relative."""
    depth: int
    """How many ops the CPU may enqueue ahead of the device (NCCL)."""

    @property
    def nodes(self) -> int:
        return -(-self.world // self.ranks_per_node)


def draw_plan(dice: random.Random, *, world: int | None = None) -> JobPlan:
    raise NotImplementedError
