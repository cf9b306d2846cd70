"""Worlds in which the service asks agents for stacks, dumps, what ranks are blocked in, and RAS.

More worlds: `python -m tests.sim --asks --strict --seeds 1000`, and with `--mutate`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from frd.model import Reason
from tests.sim.faults import Fault, FaultKind
from tests.sim.jobs import GLOO
from tests.sim.oracle import Violation
from tests.sim.run import live
from tests.sim.scenario import draw
from tests.sim.world import World
from tests.world.clocks import S
from tests.world.seeds import ALL

MISSED: dict[int, str] = {
    118: "of two ranks that hold a job up, only the one that stopped first is named",
}
"""Seeds with a fault that frd does not find, and why."""
_QUICK: Final = 4


@pytest.mark.parametrize("seed", [n for n in range(100 if ALL else _QUICK) if n not in MISSED])
def test_a_world_with_answers_keeps_every_promise(seed: int) -> None:
    """Agents answer late, seldom or never, and ranks wait in what no recorder shows: no innocent
    rank is named for sure, and none that provably waits while a cause is missing as well."""
    live(seed, asks=True, strict=True)


@pytest.mark.parametrize("seed", range(300, 340 if ALL else 302))
def test_false_answers_change_no_verdict_for_the_worse(seed: int) -> None:
    """Answers come a minute late, twice, from another process, or contradict each other."""
    live(seed, asks=True, mutate=True)


@pytest.mark.parametrize("seed", MISSED)
@pytest.mark.xfail(raises=Violation, strict=True)
def test_a_fault_is_missed(seed: int) -> None:
    """Once frd finds the fault, the seed leaves `MISSED`."""
    live(seed, asks=True, ends=False)


def test_a_rank_that_does_not_come_to_a_call_is_named(tmp_path: Path) -> None:
    """All ranks but one wait in a call that leaves no record: stacks prove that, and the finding
    names the one that reads a file."""
    drawn = draw(3, asks=True)
    plan = replace(GLOO, world=4, tensor=2, pipeline=1, data=2, expert=1)
    world = World(replace(drawn, plan=plan, events=()), tmp_path)
    world.begin()
    try:
        world.kernel.run(12 * S)
        world.settle()
        job = world.runs[-1].job
        job.inject(Fault(FaultKind.CALL, (2, 0, 1, 3)))
        world.kernel.run(90 * S)
        (finding,) = world.oracle.findings.values()
        assert [(s.rank, s.reason) for s in finding.suspects] == [(2, Reason.CPU_STUCK)]
        assert finding.collective is not None
        assert finding.collective.waiting_ranks == (0, 1, 3)
        assert world.requests["stack"] >= 8
        assert world.oracle._evidence.is_enough(job.injected[0], world.runs[-1])
        world.oracle.findings.clear()
        with pytest.raises(Violation, match="not found, call"):
            world.oracle.check_found()
    finally:
        world.close()
