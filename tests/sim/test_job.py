"""What the oracle of the simulated job excuses."""

from __future__ import annotations

import pytest

from tests.sim.faults import Fault, FaultKind
from tests.sim.jobs import PLANS, job_of
from tests.sim.ops import S
from tests.sim.programs import JobPlan


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", [FaultKind.CPU_STUCK, FaultKind.ORDER, FaultKind.MISMATCH])
def test_the_oracle_excuses_only_ranks_that_wait_there(plan: JobPlan, kind: FaultKind) -> None:
    """Who else may be named waits in the same group, or in a send or receive that Gloo hides."""
    job = job_of(plan)
    job.advance(20 * S)
    job.inject(Fault(kind, (5,)))
    job.advance(60 * S)
    (injected,) = job.injected
    ops = {rank.rank: rank.head.op for rank in job.ranks if rank.head}
    there = {
        rank
        for rank, op in ops.items()
        if op.is_p2p
        or (op.group.name == injected.group and (op.size == 2 or kind is not FaultKind.MISMATCH))
    }
    assert injected.may_name | injected.hidden <= there - injected.culprits
