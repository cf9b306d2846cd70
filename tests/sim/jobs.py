"""Small simulated jobs for tests, healthy and broken, and questions about them."""

from __future__ import annotations

import random
from dataclasses import replace

from frd.flight.decode import parse
from tests.sim.faults import Fault, FaultKind, Injected
from tests.sim.job import Job
from tests.sim.ops import S
from tests.sim.programs import JobPlan
from tests.sim.ranks import SimRank

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


def entries(rank: SimRank) -> list[tuple[str, int, int, bool]]:
    """Group, seq, p2p_seq and whether it is over, of all that its recorders show."""
    dumps = [parse(rank.dump(handler), source=handler) for handler in rank.handlers]
    assert not any(dump.warnings for dump in dumps)
    return [
        (e.group_name, e.collective_seq_id, e.p2p_seq_id, e.retired or e.state == "completed")
        for dump in dumps
        for e in dump.entries
    ]


def broken(plan: JobPlan, kind: FaultKind, rank: int = 5) -> tuple[Job, Injected]:
    """A job 40 s after the fault, when all ranks that it can delay are waiting."""
    job = job_of(plan)
    job.advance(20 * S)
    job.inject(Fault(kind, () if kind is FaultKind.NETWORK else (rank,)))
    job.advance(60 * S)
    return job, job.injected[0]


def waiting(job: Job, injected: Injected) -> set[int]:
    """The ranks whose device is at the stuck op."""
    heads = {rank.rank: rank.head for rank in job.ranks if rank.alive and rank.head is not None}
    return {
        rank
        for rank, head in heads.items()
        if head.ready_at
        and head.op.group.name == injected.group
        and (head.op.is_p2p if injected.seq < 0 else head.seq == injected.seq)
    }


def moves(job: Job) -> bool:
    """Some rank records something in the next seconds."""
    before = [rank.recorded for rank in job.ranks]
    job.advance(job.now + 12 * S)
    return [rank.recorded for rank in job.ranks] != before
