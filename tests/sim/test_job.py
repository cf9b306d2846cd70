"""The simulated job by itself: it is what it says, it never stops unless broken, and every fault
makes those wait whom it would make wait in a real one."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from frd.flight import parse, parse_profiling_name
from frd_agent import tap
from tests.sim.faults import Fault, FaultKind, Injected, draw_fault
from tests.sim.job import Job, SimRank
from tests.sim.programs import JobPlan, S, draw_plan

EPOCH = 1_790_000_000 * S
PLAN = JobPlan(
    world=16, ranks_per_node=4, backend="nccl", timing=True, tensor=2, pipeline=2, data=4, expert=2,
    ring=400, step_ns=S, jitter=0.05, depth=4, chunks=1, microbatches=2, sharded=True, norm=True,
    batched=False, mixed=False, checkpoint_every=20, checkpoint_ns=3 * S,
)  # fmt: skip
GLOO = replace(PLAN, backend="gloo", timing=False)
DEEP = replace(PLAN, depth=32, batched=True, mixed=True, timing=False)
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
    """A job 20 s after it was hit, when whoever can come to wait does."""
    job = job_of(plan)
    job.advance(20 * S)
    job.inject(Fault(kind, () if kind is FaultKind.NETWORK else (rank,)))
    job.advance(60 * S)
    return job, job.injected[0]


def waiting(job: Job, injected: Injected) -> set[int]:
    """Who is at what is stuck."""
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


# -- a healthy job ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_one_seed_is_one_job(seed: int) -> None:
    """The same seed gives the same dumps, byte for byte, faults and all."""

    def dumps() -> list[bytes]:
        dice = random.Random(seed)
        plan = draw_plan(dice, world=8)
        job = job_of(plan, seed)
        for second in range(10, 50, 10):
            job.advance(second * S)
            if (fault := draw_fault(dice, plan, job)) is not None:
                job.inject(fault)
        job.advance(50 * S)
        alive = [rank for rank in job.ranks if rank.alive]
        return [
            rank.dump(h) + repr(rank.counters()).encode() for rank in alive for h in rank.handlers
        ]

    assert dumps() == dumps()


@pytest.mark.parametrize("seed", range(30))
def test_a_healthy_job_never_stops(seed: int) -> None:
    """Whatever its plan, each rank takes step after step, and none is ahead by more than one."""
    plan = draw_plan(random.Random(seed), world=(7, 8, 12, 16, 32)[seed % 5])
    job = job_of(plan, seed)
    for second in range(20, 60, 13):
        before = min(rank.step for rank in job.ranks)
        job.advance(second * S)
        steps = [rank.step for rank in job.ranks]
        assert min(steps) > before
        assert max(steps) - min(steps) <= 1


@pytest.mark.parametrize("plan", PLANS)
def test_members_of_a_group_record_the_same(plan: JobPlan) -> None:
    """All members of a group join the same seqs of it, with the same op, and in the same order."""
    job = job_of(replace(plan, ring=10_000))
    job.advance(30 * S)
    seen: dict[str, dict[int, set[str]]] = {}
    for rank in job.ranks:
        dumps = [parse(rank.dump(handler), source=handler) for handler in rank.handlers]
        for entry in (entry for dump in dumps for entry in dump.entries if not entry.is_p2p):
            ops = seen.setdefault(entry.group_name, {}).setdefault(entry.collective_seq_id, set())
            ops.add(f"{entry.profiling_name} {entry.input_sizes}")
    assert len(seen) > 6
    assert all(len(ops) == 1 for seqs in seen.values() for ops in seqs.values())
    assert all(sorted(seqs) == list(range(1, len(seqs) + 1)) for seqs in seen.values())


@pytest.mark.parametrize("plan", PLANS)
def test_dumps_show_what_was_recorded(plan: JobPlan) -> None:
    """A ring that never overruns shows every entry; one that does shows the last, and no holes."""
    whole, small = job_of(replace(plan, ring=10_000)), job_of(replace(plan, ring=32))
    for job in (whole, small):
        job.advance(40 * S)
    for all_of, last in zip(whole.ranks, small.ranks, strict=True):
        assert len(entries(all_of)) == all_of.recorded + all_of.recorded_p2p
        assert (last.recorded, last.recorded_p2p) == (all_of.recorded, all_of.recorded_p2p)
        for handler in all_of.handlers:
            shown, kept = (parse(rank.dump(handler), source="").entries for rank in (all_of, last))
            assert kept == shown[-32:]
            assert [entry.record_id for entry in shown] == list(range(len(shown)))


def test_numbers_of_processes_differ() -> None:
    """Ranks agree neither on record ids nor on the ids of their groups, nor on those of P2P ops."""
    job = job_of(replace(PLAN, ring=10_000))
    job.advance(30 * S)
    by_seq: dict[tuple[str, int], set[tuple[int, int]]] = {}
    for rank in job.ranks:
        for entry in parse(rank.dump("dump_nccl_trace_json"), source="").entries:
            if not entry.is_p2p:
                key = entry.group_name, entry.collective_seq_id
                by_seq.setdefault(key, set()).add((entry.record_id, entry.pg_id))
    differing = Counter(len(ids) > 1 for ids in by_seq.values())
    assert differing[True] > differing[False]


def test_states_come_in_their_order() -> None:
    """With timing on, what is in flight is scheduled, then started; what is over has all times."""
    job, _ = broken(PLAN, FaultKind.NETWORK)
    states: Counter[str] = Counter()
    for rank in job.ranks:
        for entry in parse(rank.dump("dump_nccl_trace_json"), source="").entries:
            states[entry.state] += 1
            match entry.state:
                case "completed":
                    assert entry.duration_ms is not None
                    assert (
                        entry.time_discovered_completed_ns >= entry.time_discovered_started_ns > 0
                    )
                case "started":
                    assert entry.time_discovered_started_ns > entry.time_created_ns
                case _:
                    assert entry.time_discovered_started_ns == 0
    assert states.keys() == {"scheduled", "started", "completed"}


def test_gloo_hides_sends_and_receives() -> None:
    """Its counters count them, its ring does not show them, and `retired` is the only end."""
    job = job_of(GLOO)
    job.advance(40 * S)
    rank = job.ranks[0]
    dump = parse(rank.dump("fr_trace_json"), source="")
    assert rank.handlers == ("fr_trace_json",)
    assert rank.recorded_p2p == 0
    assert {entry.state for entry in dump.entries} == {"scheduled"}
    assert all(not parse_profiling_name(e.profiling_name).is_p2p_kind for e in dump.entries)
    stages = rank.seats[next(g for g in rank.seats if g.desc.startswith("PIPELINE"))]
    assert stages.op_id > 0
    assert stages.seq == 0
    assert dump.groups == {}


# -- a broken one ----------------------------------------------------------------------------

_HANGS = (
    FaultKind.CPU_STUCK,
    FaultKind.GIL_HELD,
    FaultKind.STOPPED,
    FaultKind.CRASH,
    FaultKind.CRASH_RECORDED,
)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("kind", _HANGS)
def test_who_does_not_come_is_waited_for(plan: JobPlan, kind: FaultKind) -> None:
    """Its peers come to what the rank does not come to, and in the end everybody stands still."""
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


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    "kind",
    [
        FaultKind.CPU_STUCK,
        FaultKind.GIL_HELD,
        FaultKind.STOPPED,
        FaultKind.IN_COLLECTIVE_ALONE,
        FaultKind.DEVICE_STUCK,
        FaultKind.NETWORK,
    ],
)
def test_what_hangs_goes_on_when_healed(plan: JobPlan, kind: FaultKind) -> None:
    """A job stands still, is healed, and goes on as if nothing had been."""
    job, injected = broken(plan, kind)
    assert injected.began is not None
    assert not moves(job)
    job.heal(injected)
    assert injected.healed == job.now
    assert not job.is_felt(injected)
    step = job.ranks[0].step
    job.advance(job.now + 20 * S)
    assert min(rank.step for rank in job.ranks) > step + 3


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


def test_a_device_that_does_not_start() -> None:
    """A rank has joined, and the devices of its peers have started what its own has not."""
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


@pytest.mark.parametrize("plan", PLANS)
def test_all_joined_and_nobody_completes(plan: JobPlan) -> None:
    """A network fails: every member is in it, and nobody is to blame."""
    job, injected = broken(plan, FaultKind.NETWORK)
    member = next(iter(waiting(job, injected)))
    group = next(g for g in job.ranks[member].groups if g.name == injected.group)
    assert waiting(job, injected) == set(group.ranks)
    assert injected.culprits == frozenset()


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("seed", range(4))
def test_one_passes_something_else(plan: JobPlan, seed: int) -> None:
    """All members but one pass the same, and it never completes."""
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
    """One rank waits in one group for those who wait for it in the other."""
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
    """Each step takes longer by what one rank is late, until it is quick again."""
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
    assert job.ranks[0].step - before - slow > slow * 1.2


def test_a_fault_that_comes_too_late_never_begins() -> None:
    """In a job that hangs, nobody gets to where the next fault would be."""
    job, first = broken(PLAN, FaultKind.CPU_STUCK)
    for kind in (FaultKind.MISMATCH, FaultKind.P2P_STUCK, FaultKind.NETWORK, FaultKind.STRAGGLER):
        job.inject(Fault(kind, () if kind is FaultKind.NETWORK else (2,)))
    job.advance(90 * S)
    assert [injected.began is None for injected in job.injected] == [False, True, True, True, True]
    for injected in job.injected[1:]:
        job.heal(injected)
    job.heal(first)
    assert moves(job)


# -- memory, recorders, groups ---------------------------------------------------------------


@pytest.mark.parametrize("kind", [FaultKind.MEMORY_SPIKE, FaultKind.LEAK])
def test_memory_rises_on_one_rank(kind: FaultKind) -> None:
    """What one rank holds rises by gigabytes and comes back, while the job goes on."""
    job = job_of(PLAN)
    job.advance(20 * S)
    before = [rank.memory() for rank in job.ranks]
    job.inject(Fault(kind, (5,)))
    job.advance(60 * S)
    grown = [rank.memory().used - was.used for rank, was in zip(job.ranks, before, strict=True)]
    assert [rank for rank, more in enumerate(grown) if more > 1 << 30] == [5]
    job.heal(job.injected[0])
    job.advance(61 * S)
    assert job.ranks[5].memory().used == before[5].used
    assert moves(job)


def test_out_of_memory_ends_the_rank() -> None:
    """Memory rises to the last byte, torch tells its observer, an exception ends the process."""
    job, injected = broken(PLAN, FaultKind.OOM)
    rank = job.ranks[5]
    assert not rank.alive
    assert rank.exit is not None
    assert rank.exit.kind == "exception"
    assert rank.exit.detail.startswith("OutOfMemoryError: CUDA out of memory")
    (error,) = rank.memory().errors
    assert error.requested > error.free
    assert EPOCH < error.at_ns < rank.exit.at_ns
    assert job.is_felt(injected)
    assert not moves(job)
    job.heal(injected)
    assert injected.healed is None


def test_a_reset_recorder_starts_anew() -> None:
    """Its record ids begin at 0 again; the seqs of its groups go on."""
    job = job_of(PLAN)
    job.advance(20 * S)
    last = parse(job.ranks[5].dump("dump_nccl_trace_json"), source="").entries[-1]
    job.inject(Fault(FaultKind.RECORDER_RESET, (5,)))
    assert parse(job.ranks[5].dump("dump_nccl_trace_json"), source="").entries == ()
    job.advance(25 * S)
    first = parse(job.ranks[5].dump("dump_nccl_trace_json"), source="").entries[0]
    assert first.record_id == 0 < last.record_id
    assert first.time_created_ns > last.time_created_ns
    assert moves(job)


@pytest.mark.parametrize("plan", PLANS)
def test_a_group_made_while_training(plan: JobPlan) -> None:
    """Its members show it and use it from then on, and nobody stops."""
    job = job_of(plan)
    job.advance(20 * S)
    job.inject(Fault(FaultKind.NEW_GROUP, (1, 5, 6, 12)))
    job.advance(30 * S)
    (injected,) = job.injected
    owners = {r.rank for r in job.ranks if any(g.name == injected.group for g in r.groups)}
    assert owners == {1, 5, 6, 12}
    for rank in owners:
        assert sum(name == injected.group for name, *_ in entries(job.ranks[rank])) > 2
    assert moves(job)


def test_a_job_that_is_ended() -> None:
    """Everybody exits cleanly, but for a rank that is stopped."""
    job, _ = broken(PLAN, FaultKind.STOPPED)
    job.end()
    assert not any(rank.alive for rank in job.ranks)
    assert [rank.rank for rank in job.ranks if rank.exit is None] == [5]
    assert {rank.exit.kind for rank in job.ranks if rank.exit} == {"clean"}
    job.advance(100 * S)


def test_counters_are_those_of_the_dump() -> None:
    """What the tap would publish is what a dump of the same moment says, for every recorder."""
    for plan in PLANS:
        job = job_of(plan)
        job.advance(30 * S)
        for rank in job.ranks:
            numbers = {"fr_trace_json": tap.GENERIC, "dump_nccl_trace_json": tap.NCCL}
            dumped = {
                (numbers[handler], pg_id): status
                for handler in rank.handlers
                for pg_id, status in parse(rank.dump(handler), source="").status.items()
            }
            assert dumped == rank.counters()
            assert dumped
