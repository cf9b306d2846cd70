"""What the recorders of NCCL and of nccl2 wrote on a GPU, and that of a hook on CPUs, while jobs
hung: `tests/golden`."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

import frd
from frd.flight.decode import parse
from frd.model import AttemptKey, Confidence
from frd.offline.analysis.analyze import Analysis
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.transitions import RecorderTracker
from frd_agent.uplink.dictionary import Dictionary
from tests.world.traces import suspects

GOLDEN = Path(__file__).parents[2] / "golden"
STUCK = {1: "cpu_stuck"}
ORDER = {0: "order", 1: "order"}
TRUTH = {
    "nccl": {
        "cpu": STUCK,
        "kernel": {},
        "kernel_timing": {1: "device_stuck"},
        "mismatch": {0: "mismatch", 1: "mismatch"},
        "abort": STUCK,
        "batch": STUCK,
        "receive": ORDER,
        "order": ORDER,
    },
    "nccl2": {
        "cpu": STUCK,
        "sharded": STUCK,
        "abort": STUCK,
        "mismatch": {1: "mismatch"},
        "order": ORDER,
        "kernel": {},
    },
    "hooks": {
        "absent": {2: "cpu_stuck"},
        "crossed": ORDER,
        "size": {2: "mismatch"},
        "killed": {},
        "receive": ORDER,
    },
}
"""By recorder and job: the reason by suspect. Of two ranks that differ in size, either may be
wrong."""


@pytest.mark.parametrize(
    ("recorder", "job", "ending"),
    [
        *(("nccl", job, "json") for job in TRUTH["nccl"]),
        ("nccl", "cpu", "pickle"),
        *(("nccl", job, "active.json") for job in ("cpu", "batch", "order")),
        ("nccl", "abort", "aborted"),
        *(("nccl2", job, "file") for job in TRUTH["nccl2"]),
    ],
)
def test_the_verdict_on_a_recorded_hang(
    recorder: str, job: str, ending: str, tmp_path: Path
) -> None:
    """JSON and pickle of the worker server, only active entries, files of torch's watchdog, and
    files that the handler `fr_dump_file` wrote."""
    found = verdict(tmp_path, recorder, job, ending)
    assert len(found.findings) == 1
    assert suspects(found) == TRUTH[recorder][job]


def test_the_end_of_a_coalesced_collective_bounds_no_clock(tmp_path: Path) -> None:
    """The files of an abort in which one rank's uneven all_gather is marked as completed before its
    peers enqueued it: one finding, as live, and none about a clock."""
    found = verdict(tmp_path, "nccl", "abort_clock", "aborted")
    assert len(found.findings) == 1
    assert suspects(found) == {2: "cpu_stuck"}


@pytest.mark.parametrize(
    ("job", "ending"),
    [
        *((job, ending) for job in TRUTH["hooks"] for ending in ("file", "active.json")),
        *(("absent", "aborted"), ("size", "aborted")),
    ],
)
@pytest.mark.parametrize("form", ["late", "issue"])
def test_the_verdict_on_what_a_hook_recorded(
    form: str, job: str, ending: str, tmp_path: Path
) -> None:
    """As in the live job, from the whole ring and from active entries. A rank without a file is
    named as unknown. Where ops are retired when they are issued, it is not known which rank waits:
    the confidence is medium, and the text has the reason."""
    found = verdict(tmp_path, "hooks", f"{job}_{form}", ending)
    (finding,) = found.findings
    if job == "killed" or (job, ending) == ("absent", "aborted"):
        assert not finding.suspects
        assert finding.unknown == (2,)
        return
    named = {1: "cpu_stuck"} if (job, form) == ("receive", "issue") else TRUTH["hooks"][job]
    assert suspects(found) == named
    if form == "issue" and job != "size":
        assert {one.confidence for one in finding.suspects} == {Confidence.MEDIUM}
        assert all(
            "no entry of issue shows whether its op has ended" in one.evidence
            for one in finding.suspects
        )
    if job == "size":
        assert finding.collective is not None
        assert finding.collective.waited_s < 60


def verdict(scratch: Path, recorder: str, job: str, ending: str) -> Analysis:
    for path in (GOLDEN / recorder / job).glob(f"rank_?.{ending}.gz"):
        shutil.copy(path, scratch / path.name.partition(".")[0])
    return frd.load(scratch)


WAITING = {
    "batch": {
        0: ["nccl:send 0->1", "nccl:recv 0<-2", "nccl:coalesced"],
        1: [],
        2: ["nccl:send 2->0", "nccl:recv 2<-1", "nccl:coalesced"],
    },
    "receive": {
        0: ["nccl:send 0->1", "nccl:recv 0<-2", "nccl:coalesced"],
        1: ["nccl:all_reduce"],
        2: ["nccl:all_reduce"],
    },
}
"""Ops in flight by rank. In the other jobs a rank has at most its last all_reduce in flight."""


@pytest.mark.parametrize("job", TRUTH["nccl"])
def test_the_agent_sees_what_is_in_flight(job: str) -> None:
    """No batch of sends and no coalesced collective that is over stays open, although their parts
    never complete."""
    for path in sorted((GOLDEN / "nccl" / job).glob("rank_?.json.gz")):
        rank = int(path.name[5])
        dump = parse(path.read_bytes(), source=path.name)
        dictionary = Dictionary()
        naming = Naming(dictionary, dictionary.attempt(AttemptKey("job", 0), 4))
        naming.learn(dump.groups.values())
        tracker = RecorderTracker()
        tracker.apply(dump, max(e.time_created_ns for e in dump.entries) + 10**9, naming)
        waiting = [item.entry for item in tracker.open.items]
        names = [entry.profiling_name for entry in waiting]
        if job in WAITING:
            assert names == WAITING[job][rank]
        else:
            assert names in ([], ["nccl:all_reduce"])
        assert tuple(waiting) == dump.entries[len(dump.entries) - len(waiting) :]


def answer(folder: str, rank: int, ending: str) -> dict[str, Any]:
    data = gzip.decompress((GOLDEN / folder / f"rank_{rank}.{ending}.gz").read_bytes())
    said: dict[str, Any] = json.loads(data)
    return said


def test_what_a_recorder_of_nccl_never_says() -> None:
    """Facts that the parser rests on: ops of a batch stay scheduled, the end of the batch is no
    P2P op and repeats a seq, and the counters of a group with sends go back."""
    dump = answer("nccl/cpu", 0, "json")
    end = next(e for e in dump["entries"] if e["profiling_name"] == "nccl:coalesced")
    before = [e for e in dump["entries"][: end["record_id"]] if e["pg_id"] == end["pg_id"]][-3:]
    assert [(e["is_p2p"], e["state"]) for e in before[1:]] == [(True, "scheduled")] * 2
    assert (end["is_p2p"], end["state"]) == (False, "completed")
    assert end["collective_seq_id"] == before[0]["collective_seq_id"]
    other = answer("nccl/kernel", 0, "json")
    status = other["pg_status"]["0"]
    assert (status["last_enqueued_collective"], status["last_completed_collective"]) == ("33", "2")
    assert other["entries"][-2]["state"] == "completed"


# -- facts of nccl2 in docs/gpu.md ----------------------------------------------------------------


def ring(job: str, rank: int) -> dict[str, Any]:
    data = gzip.decompress((GOLDEN / "nccl2" / job / f"rank_{rank}.file.gz").read_bytes())
    whole: dict[str, Any] = pickle.loads(data)  # noqa: S301  of this repository
    return whole


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_json_handler_gives_active_entries_only(rank: int) -> None:
    entries = ring("cpu", rank)["entries"]
    active = [one["record_id"] for one in entries if one["state"] != "completed"]
    given = answer("nccl2/cpu", rank, "nccl2.json").get("entries", [])
    assert [one["record_id"] for one in given] == active
    assert len(entries) - len(active) == 22 - (rank == 2)
    for of_earlier_recorder in ("json", "generic.json"):
        assert "entries" not in answer("nccl2/cpu", rank, of_earlier_recorder)


def test_parts_of_a_batch_count_as_completed_while_it_hangs() -> None:
    """Nothing shows that ranks 0 and 2 wait in a batch of sends, which rank 1 never enters. The
    batch itself has no entry."""
    for rank in (0, 2):
        *_, send, receive = ring("batch", rank)["entries"]
        assert (send["is_p2p"], send["state"], send["retired"]) == (True, "completed", True)
        assert (receive["is_p2p"], receive["state"]) == (True, "completed")
        assert send["time_discovered_completed_ns"] - send["time_created_ns"] < 1_000_000
        assert "entries" not in answer("nccl2/batch", rank, "nccl2.json")


def test_counters_are_op_ids_and_differ_between_ranks() -> None:
    """Sends count, so ranks that are equally far have different counters."""
    last = [ring("kernel", rank)["entries"][-1] for rank in range(3)]
    assert [one["collective_seq_id"] for one in last] == [20, 20, 20]
    counters = [ring("kernel", rank)["pg_status"]["0"] for rank in range(3)]
    assert [one["last_enqueued_collective"] for one in counters] == [22, 22, 21]
    assert [one["op_id"] for one in last] == [22, 22, 21]


def test_timing_gives_durations_and_no_started_ops() -> None:
    """So a device that never starts an op looks like the others."""
    entries = [one for rank in range(3) for one in ring("kernel_timing", rank)["entries"]]
    assert any(one.get("duration_ms") for one in entries)
    assert {one["state"] for one in entries} == {"completed", "scheduled"}
    assert not any(one.get("duration_ms") for one in ring("kernel", 0)["entries"])
