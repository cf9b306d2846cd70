"""Small simulated jobs for tests."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.sim.job import Job
from tests.sim.ops import S
from tests.sim.programs import JobPlan

EPOCH = 1_790_000_000 * S
PLAN = JobPlan(
    world=16, ranks_per_node=4, backend="nccl", timing=True, tensor=2, pipeline=2, data=4, expert=2,
    ring=400, step_ns=S, jitter=0.05, depth=4, chunks=1, microbatches=2, sharded=True, norm=True,
    batched=False, uneven=False, mixed=False, checkpoint_every=20, checkpoint_ns=3 * S,
)  # fmt: skip
GLOO = replace(PLAN, backend="gloo", timing=False)
DEEP = replace(PLAN, depth=32, batched=True, uneven=True, mixed=True, timing=False)
FLAT = replace(PLAN, tensor=4, pipeline=1, data=4, sharded=False)
PLANS = (PLAN, GLOO, DEEP, FLAT)


def job_of(plan: JobPlan, seed: int = 1) -> Job:
    walls = [lambda true, off=node * S // 7: EPOCH + off + true for node in range(plan.nodes)]
    return Job(plan, walls, random.Random(seed), 5 * S)
