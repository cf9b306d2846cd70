"""What NCCL's recorder really wrote on a GPU, while jobs hung: `tests/golden/nccl`."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from frd.flight.decode import parse
from frd.model import AttemptKey
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.transitions import RecorderTracker
from frd_agent.uplink.dictionary import Dictionary
from tests.world.daemons import frd

RECORDED = Path(__file__).parents[2] / "golden" / "nccl"
TRUTH = {
    "cpu": {1: "cpu_stuck"},
    "kernel": {},
    "kernel_timing": {1: "device_stuck"},
    "mismatch": {0: "mismatch", 1: "mismatch"},
    "abort": {1: "cpu_stuck"},
    "batch": {1: "cpu_stuck"},
    "receive": {0: "order", 1: "order"},
    "order": {0: "order", 1: "order"},
}
"""By job: the reason by suspect. Of two ranks that differ in size, either may be wrong."""


@pytest.mark.parametrize(
    ("job", "ending"),
    [
        *((job, "json") for job in TRUTH),
        ("cpu", "pickle"),
        *((job, "active.json") for job in ("cpu", "batch", "order")),
        ("abort", "aborted"),
    ],
)
def test_the_verdict_on_a_recorded_hang(job: str, ending: str, tmp_path: Path) -> None:
    """JSON and pickle of the worker server, only active entries, and files of torch's watchdog."""
    for path in (RECORDED / job).glob(f"rank_?.{ending}.gz"):
        shutil.copy(path, tmp_path / path.name.partition(".")[0])
    done = frd("analyze", tmp_path, "--json")
    (found,) = json.loads(done.stdout)["findings"]
    assert {one["rank"]: one["reason"] for one in found["suspects"]} == TRUTH[job], done.stdout


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


@pytest.mark.parametrize("job", TRUTH)
def test_the_agent_sees_what_is_in_flight(job: str) -> None:
    """No batch of sends and no coalesced collective that is over stays open, although their parts
    never complete."""
    for path in sorted((RECORDED / job).glob("rank_?.json.gz")):
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


def test_what_a_recorder_of_nccl_never_says() -> None:
    """Facts that the parser rests on: ops of a batch stay scheduled, the end of the batch is no
    P2P op and repeats a seq, and the counters of a group with sends go back."""
    dump = json.loads(gzip.decompress((RECORDED / "cpu" / "rank_0.json.gz").read_bytes()))
    end = next(e for e in dump["entries"] if e["profiling_name"] == "nccl:coalesced")
    before = [e for e in dump["entries"][: end["record_id"]] if e["pg_id"] == end["pg_id"]][-3:]
    assert [(e["is_p2p"], e["state"]) for e in before[1:]] == [(True, "scheduled")] * 2
    assert (end["is_p2p"], end["state"]) == (False, "completed")
    assert end["collective_seq_id"] == before[0]["collective_seq_id"]
    other = json.loads(gzip.decompress((RECORDED / "kernel" / "rank_0.json.gz").read_bytes()))
    status = other["pg_status"]["0"]
    assert (status["last_enqueued_collective"], status["last_completed_collective"]) == ("33", "2")
    assert other["entries"][-2]["state"] == "completed"
