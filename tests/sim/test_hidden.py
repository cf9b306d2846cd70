"""Ranks wait in more that no recorder shows, and agents of this release report what they see of it.

More worlds: `python -m tests.sim --hidden --strict --seeds 1000`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from frd.model import (
    REST,
    AlignedNs,
    Confidence,
    Finding,
    FindingState,
    Kind,
    RankStatus,
    Reason,
    Suspect,
)
from frd.wire.waits import WaitReport
from tests.sim.faults import Fault, FaultKind
from tests.sim.jobs import FLAT
from tests.sim.oracle import Violation
from tests.sim.run import drawn, live
from tests.sim.world import World
from tests.world.clocks import S
from tests.world.seeds import ALL


@pytest.mark.parametrize("seed", range(40 if ALL else 3))
def test_a_world_with_hidden_waits_keeps_every_promise(seed: int) -> None:
    """Ranks poll, spin for their devices, make a group alone, all rest, or serve."""
    live(seed, hidden=True, strict=True)


def test_agents_report_where_ranks_rest_and_who_polls(tmp_path: Path) -> None:
    """One rank reads while it holds a lock that another one looks for: without a question, their
    agents report a rest and a thread that runs; asked, who polls, and who likely has the lock."""
    world = _world(tmp_path)
    try:
        job = world.runs[-1].job
        job.inject(Fault(FaultKind.FILELOCK, (1, 2)))
        world.kernel.run(world.kernel.now + 12 * S)
        world.settle()
        (holder,) = job.injected[0].culprits
        (other,) = {1, 2} - {holder}
        reads, polls = (_status(world, rank).stage for rank in (holder, other))
        assert reads is not None
        assert (reads.op, reads.rests) == (REST, True)
        assert polls is not None
        assert not polls.rests
        assert polls.where.endswith("in lock")
        report = _inspected(world, other)
        assert report.is_poll
        assert report.waits_for.holder is not None
        assert report.waits_for.holder.rank == holder
        job.heal(job.injected[0])
        world.kernel.run(world.kernel.now + 4 * S)
        assert _status(world, other).stage is None
    finally:
        world.close()


def test_who_waits_may_not_be_named_for_sure(tmp_path: Path) -> None:
    """The oracle knows: of a lock only the rank that has it, of ranks that poll for a file none."""
    world = _world(tmp_path, strict=True)
    try:
        run = world.runs[-1]
        for kind, ranks, sure in (
            (FaultKind.FILELOCK, (1, 2), 1),
            (FaultKind.POLL_ALL, (3, 0, 1, 2), 0),
        ):
            run.job.inject(Fault(kind, ranks))
            world.kernel.run(world.kernel.now + 4 * S)  # no finding opens yet
            world.settle()
            wrong = [rank for rank in range(4) if world.oracle.blame.wrong(_accused(rank), run)]
            assert len(wrong) == 4 - sure
            run.job.heal(run.job.injected[-1])
            run.job.injected.clear()
            world.kernel.run(world.kernel.now + 4 * S)
    finally:
        world.close()


def test_a_high_finding_of_ranks_that_serve_is_a_violation(tmp_path: Path) -> None:
    """All ranks wait for a request for half a minute: any finding of a hang breaks a promise."""
    world = _world(tmp_path, strict=True)
    try:
        run = world.runs[-1]
        run.job.inject(Fault(FaultKind.SERVING, (0, 1, 2, 3)))
        world.kernel.run(world.kernel.now + 30 * S)
        with pytest.raises(Violation, match="found, serving"):
            world.oracle._check_service(_accused(0), run)
        run.job.heal(run.job.injected[0])
        world.oracle._check_service(_accused(0), run)
    finally:
        world.close()


def _world(folder: Path, *, strict: bool = False) -> World:
    """Four ranks on a node whose agent answers soon, after a few steps."""
    plan = replace(FLAT, world=4, ranks_per_node=4, tensor=2, data=2, expert=1)
    scenario = replace(drawn(2, hidden=True, strict=strict), plan=plan, events=())
    world = World(scenario, folder)
    world.begin()
    agent = world.nodes[0].agent
    assert agent is not None
    assert agent.mood == "good"
    world.kernel.run(12 * S)
    world.settle()
    return world


def _status(world: World, rank: int) -> RankStatus:
    """What the agent reports of a rank."""
    agent = world.nodes[0].agent
    assert agent is not None
    (number,) = (w.number for w in agent.watched.values() if w.process.rank.rank == rank)
    return agent.current._status.values[number]


def _inspected(world: World, rank: int) -> WaitReport:
    """What the agent answers once it has looked at a rank for some seconds."""
    agent = world.nodes[0].agent
    assert agent is not None
    process = world.runs[-1].processes[rank]
    agent._answers._inspection.ask(process)
    world.kernel.run(world.kernel.now + 4 * S)
    return agent._answers._inspection.ask(process)


def _accused(rank: int) -> Finding:
    suspect = Suspect(rank, "node-0", Reason.CPU_STUCK, Confidence.HIGH, "")
    return Finding(
        "id", Kind.STALL, FindingState.OPEN, "train", 0, AlignedNs(1), suspects=(suspect,)
    )
