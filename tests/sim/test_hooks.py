"""The recorder that hooks fill, by itself: it writes what nccl2's recorder wrote on a GPU."""

from __future__ import annotations

import gzip
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from frd.flight.decode import parse
from frd.flight.entry import Dump
from frd.flight.names import parse_profiling_name
from frd_agent import tap
from tests.sim.faults import Fault, FaultKind
from tests.sim.hooks import BACKEND, FORMS
from tests.sim.job import Job
from tests.sim.jobs import DEEP, PLAN, job_of
from tests.sim.ops import S

GOLDEN: Final = Path(__file__).parents[1] / "golden/nccl2"
STUCK: Final = 5


def real(name: str) -> dict[str, Any]:
    data = gzip.decompress((GOLDEN / f"{name}.gz").read_bytes())
    answer: dict[str, Any] = json.loads(data) if name.endswith("json") else pickle.loads(data)  # noqa: S301  of this repository
    return answer


def active(job: Job, rank: int) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(job.ranks[rank].dump("fr_trace_json", BACKEND))
    return answer


def whole(job: Job, rank: int) -> Dump:
    return parse(job.ranks[rank].dump(tap.TRACE, BACKEND), source="")


def hung(form: str) -> Job:
    """All ranks wait for one, sooner or later."""
    job = job_of(replace(PLAN, ring=10_000).hooked(form))
    job.advance(20 * S)
    job.inject(Fault(FaultKind.CPU_STUCK, (STUCK,)))
    job.advance(40 * S)
    return job


def test_an_answer_looks_like_a_real_one() -> None:
    """It has the keys that torch writes, and entries only of ops in flight: none, and no key for
    them, in the rank that hangs."""
    job, of_waiting, of_idle = (
        hung("late"),
        real("cpu/rank_0.nccl2.json"),
        real("batch/rank_0.nccl2.json"),
    )
    waiting = next(a for a in (active(job, rank) for rank in range(16)) if "entries" in a)
    assert waiting.keys() == of_waiting.keys()
    one, other = waiting["entries"][0], of_waiting["entries"][0]
    assert one.keys() == other.keys()
    times = ("time_discovered_started_ns", "time_discovered_completed_ns")
    for key in ("state", "retired", "is_p2p", "timeout_ms", *times):
        assert one[key] == other[key]
    assert waiting["pg_status"]["0"].keys() == of_waiting["pg_status"]["0"].keys()
    assert waiting["pg_status"]["0"]["last_started_collective"] == "-1"
    assert active(job, STUCK).keys() == of_idle.keys() == of_waiting.keys() - {"entries"}


def test_the_whole_ring_looks_like_a_real_one() -> None:
    """Ops are numbered from 0, sends too. Completions are found a second late at most, several at
    the same time; a part of a batch has ended when it is issued, and nothing closes the batch."""
    job = job_of(replace(DEEP, ring=10_000, mixed=False).hooked("late"))
    job.advance(20 * S)
    keys = real("batch/rank_0.file")["entries"][0].keys()
    ring = json.loads(job.ranks[0].dump(tap.TRACE, BACKEND))
    assert ring["entries"][0].keys() == keys
    for rank in range(16):
        dump = whole(job, rank)
        names = [parse_profiling_name(entry.profiling_name) for entry in dump.entries]
        assert {name.backend for name in names} == {BACKEND}
        assert not any(name.op.endswith("coalesced") for name in names)
        for pg_id, status in dump.status.items():
            of_group = [entry for entry in dump.entries if entry.pg_id == pg_id]
            assert [entry.op_id for entry in of_group] == list(range(len(of_group)))
            assert (status.enqueued, status.started) == (of_group[-1].op_id, -1)
        sends = [entry for entry in dump.entries if entry.is_p2p]
        assert all(one.time_discovered_completed_ns == one.time_created_ns for one in sends)
        ends = [e.time_discovered_completed_ns for e in dump.entries if not e.is_p2p]
        assert ends == [e.time_discovered_started_ns for e in dump.entries if not e.is_p2p]
        assert len(set(ends)) <= 21
        assert [e.retired for e in dump.entries] == [e.state == "completed" for e in dump.entries]
        shown = active(job, rank).get("entries", [])
        assert [one["record_id"] for one in shown] == [
            entry.record_id for entry in dump.entries if not entry.time_discovered_completed_ns
        ]


def test_durations_are_exact() -> None:
    """With timing, an op has its own duration, although its end is found late."""
    job = job_of(replace(PLAN, ring=10_000).hooked("late"))
    job.advance(20 * S)
    over = [entry for entry in whole(job, 0).entries if entry.state == "completed"]
    assert all(entry.duration_ms is not None for entry in over)
    seen_ms = [(e.time_discovered_completed_ns - e.time_created_ns) / 1e6 for e in over]
    assert all(e.duration_ms <= ms for e, ms in zip(over, seen_ms, strict=True) if e.duration_ms)
    assert max(seen_ms) > 500


def test_ops_that_are_retired_at_issue_stay_active() -> None:
    """No end is ever shown: torch's handler answers with the whole ring."""
    job = hung("issue")
    for rank in range(16):
        shown, all_of = active(job, rank)["entries"], whole(job, rank).entries
        assert [one["record_id"] for one in shown] == [one.record_id for one in all_of]
        assert {(one["state"], one["retired"]) for one in shown} == {("scheduled", True)}
        assert {one.time_discovered_completed_ns for one in all_of} == {0}


@pytest.mark.parametrize("form", FORMS)
def test_records_start_again_after_a_reset(form: str) -> None:
    """The counters go on."""
    job = hung(form)
    before = whole(job, 0).status
    job.inject(Fault(FaultKind.RECORDER_RESET, (0,)))
    assert not whole(job, 0).entries
    assert whole(job, 0).status == before
    job.heal(job.injected[0])
    job.advance(60 * S)
    assert [entry.record_id for entry in whole(job, 0).entries][:2] == [0, 1]


@pytest.mark.parametrize("form", FORMS)
def test_counters_are_those_of_the_answer(form: str) -> None:
    """The tap publishes them under the number of the first recorder that hooks fill."""
    job = hung(form)
    for rank in job.ranks:
        dumped = {(tap.HOOKED, pg_id): of for pg_id, of in whole(job, rank.rank).status.items()}
        assert dumped == rank.counters()


def test_other_recorders_are_empty() -> None:
    """torch's earlier handlers exist and show nothing; so does an unknown backend."""
    job = hung("late")
    for name, backend in (("fr_trace_json", ""), ("dump_nccl_trace_json", ""), (tap.TRACE, "ucc")):
        answer = json.loads(job.ranks[0].dump(name, backend))
        assert (answer["pg_config"], answer["pg_status"], "entries" in answer) == ({}, {}, False)
