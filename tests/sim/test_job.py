"""The simulated job by itself: its dumps look like real ones, and a straggler is late."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from frd.flight.decode import parse
from frd.flight.names import parse_profiling_name
from frd_agent import tap
from tests.sim.faults import Fault, FaultKind
from tests.sim.jobs import DEEP, FLAT, GLOO, PLAN, PLANS, job_of
from tests.sim.ops import S
from tests.sim.programs import JobPlan


@pytest.mark.parametrize("plan", PLANS)
def test_dumps_show_what_was_recorded(plan: JobPlan) -> None:
    """A large ring shows every entry; a ring that overruns shows the last ones, without holes."""
    whole, small = job_of(replace(plan, ring=10_000)), job_of(replace(plan, ring=32))
    for job in (whole, small):
        job.advance(40 * S)
    for all_of, last in zip(whole.ranks, small.ranks, strict=True):
        recorded = 0
        for handler in all_of.handlers:
            shown, kept = (parse(rank.dump(handler), source="") for rank in (all_of, last))
            assert not shown.warnings
            assert kept.entries == shown.entries[-32:]
            assert [entry.record_id for entry in shown.entries] == list(range(len(shown.entries)))
            recorded += len(shown.entries)
        assert recorded == all_of.recorded + all_of.recorded_p2p
        assert (last.recorded, last.recorded_p2p) == (all_of.recorded, all_of.recorded_p2p)


def test_numbers_of_processes_differ() -> None:
    """Ranks differ in record ids and in the ids of their groups."""
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


def test_batches_end_with_an_entry_of_their_own() -> None:
    """A send or receive of a batch never ends; the entry after it, of the same number, does."""
    job = job_of(replace(DEEP, ring=10_000))
    job.advance(30 * S)
    for rank in job.ranks:
        dump = parse(rank.dump("dump_nccl_trace_json"), source="")
        p2p = [entry for entry in dump.entries if entry.is_p2p]
        for op, end in zip(p2p[::2], p2p[1::2], strict=True):
            assert (op.state, op.retired) == ("scheduled", False)
            assert end.profiling_name == "nccl:coalesced"
            assert op.p2p_seq_id == end.p2p_seq_id
        numbers = [entry.p2p_seq_id for entry in p2p[::2]]
        assert numbers == list(range(1, len(numbers) + 1))
        assert [end.state for end in p2p[1:-1:2]].count("completed") > 10


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


def test_counters_are_those_of_the_dump() -> None:
    """The tap's counters equal those of a dump of the same moment, for every recorder."""
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
