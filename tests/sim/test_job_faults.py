"""Each fault of a simulated job makes the same ranks wait as in a real job."""

from __future__ import annotations

import pytest

from frd.flight.decode import parse
from tests.sim.faults import Fault, FaultKind, Injected
from tests.sim.job import Job
from tests.sim.jobs import (
    DEEP,
    FLAT,
    GLOO,
    PLAN,
    PLANS,
    broken,
    entries,
    job_of,
    moves,
    waiting,
)
from tests.sim.ops import S
from tests.sim.programs import JobPlan

_HANGS = (
    FaultKind.CPU_STUCK,
    FaultKind.GIL_HELD,
    FaultKind.STOPPED,
    FaultKind.CRASH,
    FaultKind.CRASH_RECORDED,
)


def goes_on(job: Job, injected: Injected) -> bool:
    """The job hangs; once it is healed, all ranks make steps again."""
    assert injected.began is not None
    assert not moves(job)
    job.heal(injected)
    assert injected.healed == job.now
    assert not job.is_felt(injected)
    step = job.ranks[0].step
    job.advance(job.now + 20 * S)
    return min(rank.step for rank in job.ranks) > step + 3


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", _HANGS)
def test_a_missing_rank_is_waited_for(plan: JobPlan, kind: FaultKind) -> None:
    """Its peers join the collective that the rank does not join, and in the end all ranks wait;
    until it is healed, unless its process is gone."""
    job, injected = broken(plan, kind)
    victim = job.ranks[5]
    assert injected.began is not None
    assert injected.culprits == {5}
    assert job.is_felt(injected)
    assert waiting(job, injected) - {5}
    assert not moves(job)
    assert victim.alive is (kind not in (FaultKind.CRASH, FaultKind.CRASH_RECORDED))
    assert victim.stopped is (kind is FaultKind.STOPPED)
    assert victim.gil_held is (kind is FaultKind.GIL_HELD)
    assert (victim.exit is not None) is (kind is FaultKind.CRASH_RECORDED)
    if plan.backend == "gloo":
        assert injected.may_name <= {r.rank for r in job.ranks if r.head and r.head.op.is_p2p}
    assert not victim.alive or goes_on(job, injected)


@pytest.mark.parametrize("plan", PLANS)
def test_left_inside(plan: JobPlan) -> None:
    """One rank is in a collective that all others have completed."""
    job, injected = broken(plan, FaultKind.IN_COLLECTIVE_ALONE)
    assert waiting(job, injected) == {5} == injected.culprits
    group = next(g for g in job.ranks[5].groups if g.name == injected.group)
    for member in group.ranks:
        is_over = [over for name, seq, _, over in entries(job.ranks[member])
                   if (name, seq) == (injected.group, injected.seq)]  # fmt: skip
        assert is_over == [member != 5]
    assert goes_on(job, injected)


def test_a_device_that_does_not_start() -> None:
    """A rank has joined; the devices of its peers have started the op, its own has not."""
    job, injected = broken(PLAN, FaultKind.DEVICE_STUCK)
    peers = waiting(job, injected)
    assert peers
    assert 5 not in peers
    for rank in (*peers, 5):
        states = [
            entry.state
            for entry in parse(job.ranks[rank].dump("dump_nccl_trace_json"), source="").entries
            if (entry.group_name, entry.collective_seq_id) == (injected.group, injected.seq)
            and not entry.is_p2p
        ]
        assert states == ["scheduled" if rank == 5 else "started"]
    assert goes_on(job, injected)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("seed", range(4))
def test_one_passes_something_else(plan: JobPlan, seed: int) -> None:
    """All members but one pass the same arguments, and the collective never completes."""
    job = job_of(plan, seed)
    job.advance(20 * S)
    job.inject(Fault(FaultKind.MISMATCH, (5,)))
    job.advance(60 * S)
    (injected,) = job.injected
    group = next(g for g in job.ranks[5].groups if g.name == injected.group)
    assert waiting(job, injected) == set(group.ranks)
    passed = {}
    for member in group.ranks:
        dumps = [parse(job.ranks[member].dump(h), source=h) for h in job.ranks[member].handlers]
        (passed[member],) = [
            (e.profiling_name, e.input_sizes, e.input_dtypes)
            for dump in dumps
            for e in dump.entries
            if (e.group_name, e.collective_seq_id) == (injected.group, injected.seq)
        ]
    assert [rank for rank in passed if rank != 5 and passed[rank] == passed[5]] == []
    assert len({passed[rank] for rank in passed if rank != 5}) == 1
    others = frozenset(group.ranks) - {5}
    assert injected.may_name & others == (others if len(others) == 1 else frozenset())


@pytest.mark.parametrize("plan", PLANS)
def test_opposite_order(plan: JobPlan) -> None:
    """One rank waits in one group for ranks that wait for it in the other."""
    job, injected = broken(plan, FaultKind.ORDER)
    mine = job.ranks[5].head
    assert mine is not None
    assert mine.op.group.name != injected.group
    assert injected.may_name
    assert injected.may_name <= waiting(job, injected)
    assert injected.may_name < set(mine.op.group.ranks)
    assert not moves(job)


@pytest.mark.parametrize("plan", [PLAN, DEEP, GLOO])
def test_a_stage_that_never_sends(plan: JobPlan) -> None:
    """The next stage waits in a receive whose send was never enqueued."""
    job, injected = broken(plan, FaultKind.P2P_STUCK)
    (peer,) = waiting(job, injected)
    head = job.ranks[peer].head
    assert head is not None
    assert (head.op.src, head.op.dst) == (5, peer)
    assert injected.seq == -1
    assert job.is_felt(injected)
    assert (peer in injected.may_name) is plan.hides_p2p


def test_a_straggler_is_late_and_recovers() -> None:
    """Each step takes longer by the delay of one rank, until it is healed."""
    job = job_of(FLAT)
    job.advance(20 * S)
    before = job.ranks[0].step
    job.inject(Fault(FaultKind.STRAGGLER, (5,)))
    job.advance(60 * S)
    (injected,) = job.injected
    slow = job.ranks[0].step - before
    job.heal(injected)
    job.advance(100 * S)
    assert injected.began is not None
    assert injected.times >= slow - 1
    assert len(injected.kept_waiting) >= slow - 2
    assert job.ranks[0].step - before - slow > slow * 1.2


def test_a_fault_that_comes_too_late_never_begins() -> None:
    """In a job that hangs, no rank reaches the op of the next fault."""
    job, first = broken(PLAN, FaultKind.CPU_STUCK)
    for kind in (FaultKind.MISMATCH, FaultKind.P2P_STUCK, FaultKind.NETWORK, FaultKind.STRAGGLER):
        job.inject(Fault(kind, () if kind is FaultKind.NETWORK else (2,)))
    job.advance(90 * S)
    assert [injected.began is None for injected in job.injected] == [False, True, True, True, True]
    for injected in job.injected[1:]:
        job.heal(injected)
    job.heal(first)
    assert moves(job)
