"""The same job, recorded by NCCL's recorder and by hooks that find its completions a second late.

Both go through the production's agent and service; what they conclude must not depend on it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from frd.engine.views import AttemptView, Histogram
from frd.model import AttemptKey, Confidence, Finding, FindingState, Kind, Reason
from tests.sim.agent import Limits
from tests.sim.faults import Fault, FaultKind, Injected
from tests.sim.hooks import FORMS
from tests.sim.jobs import FLAT, job_of
from tests.sim.ops import DRAIN, MS, S
from tests.sim.programs import JobPlan
from tests.sim.run import MEMORY_FOLDER, calm
from tests.sim.scenario import Scenario
from tests.sim.world import World
from tests.world.seeds import ALL

JOB: Final = replace(
    FLAT, world=4, ranks_per_node=2, tensor=1, expert=1, timing=False, ring=200,
    checkpoint_every=1_000,
)  # fmt: skip
STEPS_MS: Final = (300, 1_000) if ALL else (300,)
HANGS: Final = (
    FaultKind.CPU_STUCK, FaultKind.IN_COLLECTIVE_ALONE, FaultKind.MISMATCH, FaultKind.NETWORK
)  # fmt: skip
LATER_S: Final = 2.0
"""How much later a finding may come."""

KEY: Final = AttemptKey("train", 0)
Script: TypeAlias = Callable[[World], Any]
Label: TypeAlias = tuple[int, Reason, Confidence]


@contextmanager
def world_of(plan: JobPlan, seed: int = 3) -> Iterator[World]:
    """A healthy job without troubles of machines, below agents and a service."""
    folder = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    with calm(), tempfile.TemporaryDirectory(prefix="frd-sim-", dir=folder) as name:
        world = World(Scenario(seed, plan, Limits(), ()), Path(name))
        try:
            world.begin()
            yield world
        finally:
            world.close()


def run(world: World, until_s: float) -> None:
    world.kernel.run(round(until_s * S))
    world.settle()


def named(finding: Finding) -> set[Label]:
    return {(s.rank, s.reason, s.confidence) for s in finding.suspects}


def inject(world: World, kind: FaultKind, rank: int) -> Injected:
    of = world.runs[-1].job
    of.inject(Fault(kind, () if kind is FaultKind.NETWORK else (rank,)))
    return of.injected[-1]


def view(world: World) -> AttemptView:
    assert world.service is not None
    (attempt,) = world.service.evaluator.state.status_view.attempts
    return attempt


def thresholds_s(world: World) -> dict[str, float]:
    """By label of the group."""
    assert world.service is not None
    attempt = world.service.engine.attempt(KEY, JOB.world, world.service.now())
    snapshot = attempt.snapshot(world.service.now())
    labels = [group.label for group in snapshot.groups]
    return dict(zip(labels, (snapshot.threshold_ns / 1e9).tolist(), strict=True))


def judged(world: World, kind: Kind) -> list[tuple[FindingState, tuple[Label, ...]]]:
    """The findings of a kind: state, and rank, reason and confidence of the suspects."""
    return [
        (one.state, tuple((s.rank, s.reason, s.confidence) for s in one.suspects))
        for one in world.oracle.findings.values()
        if one.kind is kind
    ]


def first_opened_s(world: World) -> float:
    """Since the begin of the world."""
    assert world.service is not None
    opened = [one.opened_at for one in world.oracle.findings.values()]
    return world.kernel.now / 1e9 - (world.service.now() - min(opened)) / 1e9


@pytest.fixture(params=STEPS_MS, ids=lambda ms: f"steps of {ms} ms")
def plan(request: pytest.FixtureRequest) -> JobPlan:
    """One with steps that are shorter than the pause between two looks of the watchdog."""
    return replace(JOB, step_ns=request.param * MS)


def both(plan: JobPlan, script: Script, *, eager: bool = True) -> tuple[Any, Any]:
    """The results of a script for a job with NCCL's recorder, and with the late one. `eager`: as
    nccl2, which finds ends also when it issues an op."""
    with world_of(plan) as usual:
        expected = script(usual)
    with world_of(plan.hooked("late", eager=eager)) as late:
        return expected, script(late)


def test_the_jobs_are_the_same(plan: JobPlan) -> None:
    """How a job is recorded does not change what it does."""

    def steps(plan: JobPlan) -> list[int]:
        job = job_of(plan)
        job.advance(20 * S)
        job.inject(Fault(FaultKind.STRAGGLER, (3,)))
        job.advance(60 * S)
        return [rank.step for rank in job.ranks]

    assert steps(plan) == steps(plan.hooked("late")) == steps(plan.hooked("issue"))


@pytest.mark.parametrize("with_durations", [False, True] if ALL else [False])
def test_a_healthy_job_has_no_finding(plan: JobPlan, with_durations: bool) -> None:
    """No rank seems to be inside an op alone, whatever its watchdog has not seen yet. Durations of
    ops do not include the time until their ends were found."""

    def script(world: World) -> tuple[int, dict[str, Histogram]]:
        run(world, 60)
        return len(world.oracle.findings), view(world).duration

    with world_of(plan) as usual:
        findings, expected = script(usual)
    with world_of(replace(plan.hooked("late"), durations=with_durations)) as late:
        found = script(late)
    assert (findings, found[0]) == (0, 0)
    assert expected
    for op, histogram in found[1].items():
        mean_s = histogram.total / max(sum(histogram.counts), 1)
        assert mean_s <= 1.1 * expected[op].total / sum(expected[op].counts)


def test_a_straggler_is_the_same(plan: JobPlan) -> None:
    """Who is late, how sure that is, and what it costs."""

    def script(world: World) -> tuple[Any, float]:
        run(world, 15)
        inject(world, FaultKind.STRAGGLER, 3)
        run(world, 90)
        lost_s = sum(one.lost_s or 0 for one in world.oracle.findings.values())
        return judged(world, Kind.STRAGGLER), lost_s

    expected, found = both(replace(plan, world=8, ranks_per_node=8, data=8), script)
    ((state, ((rank, reason, _),)),) = expected[0]
    assert (state, rank, reason) == (FindingState.OPEN, 3, Reason.LATE)
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1], rel=0.1)


@pytest.mark.parametrize("form", FORMS)
def test_a_rank_that_waits_for_its_device_is_no_straggler(plan: JobPlan, form: str) -> None:
    """Its peers enqueue a step's ops ahead of their devices; it waits for each op, and is last in
    the next: nothing is lost to it, because the op before it still ran."""
    plan = replace(plan, tensor=4, data=1, depth=32, chunks=4, norm=False)
    with world_of(plan.hooked(form, eager=True)) as world:
        rank = world.runs[-1].job.ranks[0]
        step = tuple(task for op in rank.program.step for task in (op, DRAIN))
        rank.program = replace(rank.program, step=step)
        run(world, 70)
        assert judged(world, Kind.STRAGGLER) == []


def test_pauses_are_learned_alike(plan: JobPlan) -> None:
    """A rank makes all others wait for 12 s, again and again: the first time that is a hang, later
    it is usual, with the same threshold."""

    def script(world: World) -> tuple[Any, dict[str, float]]:
        run(world, 15)
        for _ in range(3):
            injected = inject(world, FaultKind.CPU_STUCK, 2)
            run(world, world.kernel.now / S + 12)
            world.runs[-1].job.heal(injected)
            run(world, world.kernel.now / S + 15)
        return judged(world, Kind.STALL), thresholds_s(world)

    expected, found = both(plan, script)
    assert len(expected[0]) == 1
    assert found[0] == expected[0]
    assert max(expected[1].values()) > 12
    assert found[1] == pytest.approx(expected[1], abs=1)


@pytest.mark.parametrize("kind", HANGS if ALL else HANGS[:2])
def test_a_hang_is_named_hardly_later(plan: JobPlan, kind: FaultKind) -> None:
    """It is found two seconds later at most, with the same suspects."""

    def script(world: World) -> tuple[Any, float]:
        run(world, 20)
        inject(world, kind, 3)
        run(world, 40)
        suspects = {s for one in world.oracle.findings.values() for s in named(one)}
        return suspects, first_opened_s(world)

    expected, found = both(plan, script)
    assert found[0] == expected[0]
    assert found[1] <= expected[1] + LATER_S
