"""Worlds in which the service asks agents for stacks, dumps, what ranks are blocked in, and RAS.

More worlds: `python -m tests.sim --asks --strict --seeds 1000`, and with `--mutate`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from frd.model import Reason
from tests.sim import places
from tests.sim.faults import Fault, FaultKind
from tests.sim.jobs import GLOO, PLAN, job_of
from tests.sim.ops import MS
from tests.sim.oracle import Violation
from tests.sim.places import Sys, place_of
from tests.sim.programs import JobPlan
from tests.sim.run import live
from tests.sim.scenario import draw
from tests.sim.stacks import Reading, by_faulthandler
from tests.sim.threads import MainThread, Mode
from tests.sim.world import World
from tests.stacks import call_of
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


@pytest.mark.parametrize("op", [*places.CALLS, "send", "recv"])
def test_stack_texts_show_calls_without_a_record(op: str) -> None:
    """The production's parser finds the call, and the line of the program that made it."""
    is_message = op in ("send", "recv")
    place = places.in_message(sends=op == "send") if is_message else places.in_call(op)
    call = call_of(by_faulthandler(place))
    assert call is not None
    line = "in exchange" if is_message else "train.py:205 in regroup"
    assert call.op == op
    assert call.where.endswith(line)


def test_a_wait_in_gloo_takes_no_processor_time_and_one_for_a_device_does() -> None:
    """A rank does not join: those of Gloo rest in their op, those of NCCL spin in synchronize."""
    for plan, mode in ((replace(GLOO, pipeline=1, data=8), Mode.RESTS), (PLAN, Mode.RUNS)):
        job = job_of(plan)
        job.advance(15 * S)
        job.inject(Fault(FaultKind.CPU_STUCK, (0,)))
        job.advance(25 * S)
        assert {rank.thread.mode for rank in job.ranks if rank.waits} == {mode}
        rank = next(rank for rank in job.ranks if rank.waits)
        reading = Reading(rank, 77, job.now)
        reading.look()
        job.advance(job.now + S)
        rested = "has not run since" in reading.end(job.now)
        assert rested is (mode is Mode.RESTS)
        before = rank.thread.ran_ns(job.now)
        job.heal(job.injected[0])
        job.advance(job.now + S)
        assert rank.thread.ran_ns(job.now) > before


def test_processor_time_stops_with_the_process() -> None:
    """By SIGSTOP, and goes on after SIGCONT; a poll takes a little."""
    thread = MainThread(0)
    begin = thread.ran_ns(0)
    thread.freeze(S)
    assert thread.ran_ns(9 * S) == begin + S
    thread.thaw(9 * S)
    assert thread.ran_ns(10 * S) == begin + 2 * S
    thread.go(Mode.POLLS, 10 * S)
    assert 0 < thread.ran_ns(11 * S) - thread.ran_ns(10 * S) < 2 * MS


@pytest.mark.parametrize("plan", [PLAN, GLOO])
def test_a_lock_is_held_by_the_first_and_given_on(plan: JobPlan) -> None:
    """Three ranks come to a lock; the first reads for ever. When it dies, the others go on."""
    job = job_of(plan)
    job.advance(15 * S)
    job.inject(Fault(FaultKind.LOCK, (1, 2, 3)))
    job.advance(25 * S)
    (holder,) = job.injected[0].culprits
    others = {1, 2, 3} - {holder}
    assert place_of(job.ranks[holder]).sys is Sys.READ
    for number in others:
        place = place_of(job.ranks[number])
        assert (place.sys, place.holder) == (Sys.LOCK, job.ranks[holder])
    assert job.is_felt(job.injected[0])
    job.die(job.ranks[holder], None)
    job.advance(26 * S)
    assert not any(job.ranks[number].is_held for number in others)


@pytest.mark.parametrize("kind", [FaultKind.CALL, FaultKind.RECV_CIRCLE, FaultKind.PAUSE])
def test_a_job_goes_on_once_its_ranks_do(kind: FaultKind) -> None:
    """Nothing moves during a call without a record, a circle of receives, or a long pause; then the
    call is over, or the pause, and the job trains as before."""
    job = job_of(GLOO)
    job.advance(15 * S)
    ranks = (0, 8) if kind is FaultKind.RECV_CIRCLE else tuple(range(16))
    job.inject(Fault(kind, ranks))
    job.advance(25 * S)
    still = [rank.recorded for rank in job.ranks]
    job.advance(32 * S)
    assert [rank.recorded for rank in job.ranks] == still
    job.heal(job.injected[0])
    job.advance(130 * S)
    assert all(rank.step > 20 for rank in job.ranks)
