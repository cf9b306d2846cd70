"""Simulated clusters: the worlds that found bugs, and the promises of a run.

The first worlds live in `tests/frozen`, thousands more in `make sim SEEDS=10000`, which also lives
those that found bugs and take long.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Final

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
from tests.sim.ends import EndKind
from tests.sim.faults import Fault, FaultKind
from tests.sim.hooks import FORMS
from tests.sim.jobs import FLAT, GLOO
from tests.sim.oracle import Violation
from tests.sim.run import drawn, live
from tests.sim.scenario import draw
from tests.sim.world import World
from tests.world.clocks import S
from tests.world.daemons import run_program
from tests.world.seeds import ALL

ROOT = Path(__file__).parents[2]
REGRESSIONS: dict[int, str] = {
    229: "alignments: rows aligned by the first guess at a clock kept the error of that guess",
    1465: "alignments: two ops of a rank, aligned differently, changed places",
    1585: "rings: what was gone before it was read was taken for absence; an empty ring at that",
    1539: "rings: the same, while a hang ends",
    1563: "first causes: a circle was not reported when another op never completed either",
    116: "first causes: who was stopped while a device hung already took its place",
    1076: "first causes: who was stopped while others waited in a circle took its place",
    762: "stragglers: a pipeline stage that is the last by its place was late for certain",
    2052: "first causes: the rank of a circle with a different order was not among the suspects",
    2478: "takeovers: ops that only the former agent had reported were awaited for ever",
    2551: "first causes: who was stopped in a circle took its place",
    2618: "liars: one agent's word convicted a rank of another",
    3290: "agents: an exit that was sent into a dead connection was lost with its agent",
    3618: "losses: not reported while nothing shows what the other ranks do",
    3886: "liars: a rank at a false, impossible position closed a circle",
    5220: "stragglers: ranks of one node, aligned by two guesses at its clock",
    5250: "stragglers: a node that is held up by one of its ranks",
    5634: "confidence: a rank that had just come out of something else was stuck for sure",
    1941: "resets: a rank inside a collective that the reset had hidden was stuck for sure",
    70574: "evidence: a wait due to one hang was taken for evidence of another, hidden in sends",
    70174: "liars: an exit that a lying agent invented stays open until the attempt ends",
    1745: "exits: an exit that an agent found after its restart counted as late as it was found",
    5995: "first causes: a silent peer hid the device that had never started",
    769: "losses: others had ended long before the ranks that the launcher killed in the end",
    981: "pauses: a wait for a rank that had ended counted as usual",
    2907: "first causes: a launcher's SIGTERM after another rank had ended was a certain cause",
    7220: "channels: sends that were over when they were read ended none before them",
}
"""Seeds that found something, and what."""
LONG: Final = frozenset({762, 1745, 1941, 2052, 2478, 3886, 5250, 5634, 5995, 70174})
"""Of these, each takes seconds: only `make sim` lives them. What they found in the engine has unit
tests."""
HOOKED: dict[tuple[str, int], str] = {
    ("late", 15): "a completion that was found late made its rank seem alone in a collective",
    ("late", 76): "a first dump of only what is in flight hid how many sends came before",
    ("late", 36): "a rank that held its GIL did not answer, although its counters rested",
    ("issue", 57): "an op that had left the ring counted as in flight, after an agent restart",
}
"""The same for jobs whose recorder is filled by hooks, by form and seed."""
MISSED: dict[int, str] = {
    4243: "the service was down while a rank waited in a circle and was killed: it may "
    "have moved until its last report",
    5820: "a finding without suspects gets none any more once one of its ranks has ended",
    9159: "of two ranks that stop while no agent looks, only the one that is waited for is named",
    70029: "a rank that never joins a collective is not named if other members of it disagree",
}
"""Seeds with a fault that frd does not find yet, and why."""


@pytest.mark.parametrize("seed", [seed for seed in REGRESSIONS if ALL or seed not in LONG])
def test_a_world_keeps_every_promise(seed: int) -> None:
    """With any faults of agents, service, wire, clocks and job, no promise is broken."""
    try:
        live(seed)
    except Exception as error:
        error.add_note(f"seed {seed} {REGRESSIONS[seed]}")
        raise


@pytest.mark.parametrize(
    ("form", "seed"),
    [*HOOKED, *product(FORMS, range(40))] if ALL else [one for one in HOOKED if one[1] != 36],
)
def test_a_world_with_hooks_keeps_every_promise(form: str, seed: int) -> None:
    """The same with nccl2, and with a backend that retires its ops when it issues them: no innocent
    rank is blamed for sure, and what can be known is found."""
    live(seed, hooks=form)


@pytest.mark.parametrize("kind", list(EndKind))
def test_a_job_ends(kind: EndKind) -> None:
    """A healthy job of four ranks ends in each way: a rank that failed is named, no other with high
    confidence, and an end that was asked for is no finding."""
    seed = next(n for n in range(1000) if draw(n).dice("end").choice([*EndKind]) is kind)
    assert live(seed, only=(), world=4).ends == {kind: 1}


@pytest.mark.parametrize("seed", list(MISSED) if ALL else [4243])
@pytest.mark.xfail(raises=Violation, strict=True)
def test_a_fault_is_missed(seed: int) -> None:
    """Once frd finds the fault, the seed belongs to `REGRESSIONS`."""
    live(seed)


def test_a_large_job() -> None:
    """Many ranks in tensor, pipeline, data and expert groups, with few troubles.

    Thousands take minutes: `python -m tests.sim --seed 1 --world 2048`.
    """
    world = 96 if ALL else 32
    assert live(1, world=world).ranks == world


def test_a_seed_is_a_run_byte_for_byte() -> None:
    """Another process, with another hash seed, exchanges exactly the same messages."""
    program = "from tests.sim.run import live; print(live(229).digest)"
    digests = {
        run_program(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1


def test_events_can_be_left_out() -> None:
    """A world without its events is healthy; failing worlds are reduced in this way."""
    seed = next(seed for seed in range(100) if len(draw(seed).events) > 3)
    assert live(seed, only=()).findings == {}


# -- asks ------------------------------------------------------------------------------------------
# Worlds in which the service asks agents for stacks, dumps, what ranks are blocked in, and RAS.
# More worlds: `python -m tests.sim --asks --strict --seeds 1000`, and with `--mutate`.


MISSED_BY_STACKS: dict[int, str] = {
    118: "of two ranks that hold a job up, only the one that stopped first is named",
}
"""Seeds with a fault that frd does not find, and why."""
_QUICK: Final = 4


@pytest.mark.parametrize(
    "seed", [n for n in range(100 if ALL else _QUICK) if n not in MISSED_BY_STACKS]
)
def test_a_world_with_answers_keeps_every_promise(seed: int) -> None:
    """Agents answer late, seldom or never, and ranks wait in what no recorder shows: no innocent
    rank is named for sure, and none that provably waits while a cause is missing as well."""
    live(seed, asks=True, strict=True)


@pytest.mark.parametrize("seed", range(300, 340 if ALL else 302))
def test_false_answers_change_no_verdict_for_the_worse(seed: int) -> None:
    """Answers come a minute late, twice, from another process, or contradict each other."""
    live(seed, asks=True, mutate=True)


@pytest.mark.parametrize("seed", MISSED_BY_STACKS)
@pytest.mark.xfail(raises=Violation, strict=True)
def test_a_fault_is_missed_by_stacks(seed: int) -> None:
    """Once frd finds the fault, the seed leaves `MISSED_BY_STACKS`."""
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


# -- hidden ----------------------------------------------------------------------------------------
# Ranks wait in more that no recorder shows, and agents of this release report what they see of
# it. More worlds: `python -m tests.sim --hidden --strict --seeds 1000`.


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
