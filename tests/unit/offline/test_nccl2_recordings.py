"""What the recorder of nccl2 wrote on a GPU, while jobs hung: `tests/golden/nccl2`."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.world.daemons import frd

RECORDED = Path(__file__).parents[2] / "golden" / "nccl2"


@pytest.mark.parametrize(
    ("job", "truth"),
    [
        ("cpu", {1: "cpu_stuck"}),
        ("sharded", {1: "cpu_stuck"}),
        ("abort", {1: "cpu_stuck"}),
        ("mismatch", {1: "mismatch"}),
        ("order", {0: "order", 1: "order"}),
        ("kernel", {}),
    ],
)
def test_the_verdict_on_whole_rings(job: str, truth: dict[int, str], tmp_path: Path) -> None:
    """Files that the handler `fr_dump_file` wrote."""
    for path in (RECORDED / job).glob("rank_?.file.gz"):
        shutil.copy(path, tmp_path / path.name.partition(".")[0])
    done = frd("analyze", tmp_path, "--json")
    (found,) = json.loads(done.stdout)["findings"]
    assert {one["rank"]: one["reason"] for one in found["suspects"]} == truth, done.stdout


def ring(job: str, rank: int) -> dict[str, Any]:
    data = gzip.decompress((RECORDED / job / f"rank_{rank}.file.gz").read_bytes())
    whole: dict[str, Any] = pickle.loads(data)  # noqa: S301  of this repository
    return whole


def answer(job: str, rank: int, ending: str = "nccl2.json") -> dict[str, Any]:
    said: dict[str, Any] = json.loads(
        gzip.decompress((RECORDED / job / f"rank_{rank}.{ending}.gz").read_bytes())
    )
    return said


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_json_handler_gives_active_entries_only(rank: int) -> None:
    entries = ring("cpu", rank)["entries"]
    active = [one["record_id"] for one in entries if one["state"] != "completed"]
    assert [one["record_id"] for one in answer("cpu", rank).get("entries", [])] == active
    assert len(entries) - len(active) == 22 - (rank == 2)
    assert "entries" not in answer("cpu", rank, "json") | answer("cpu", rank, "generic.json")


def test_parts_of_a_batch_count_as_completed_while_it_hangs() -> None:
    """Nothing shows that ranks 0 and 2 wait in a batch of sends, which rank 1 never enters. The
    batch itself has no entry."""
    for rank in (0, 2):
        *_, send, receive = ring("batch", rank)["entries"]
        assert (send["is_p2p"], send["state"], send["retired"]) == (True, "completed", True)
        assert (receive["is_p2p"], receive["state"]) == (True, "completed")
        assert send["time_discovered_completed_ns"] - send["time_created_ns"] < 1_000_000
        assert "entries" not in answer("batch", rank)


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


def test_the_rank_that_is_stuck_writes_no_file_when_the_others_abort() -> None:
    written = sorted(path.name[:6] for path in (RECORDED / "abort").glob("*.aborted.gz"))
    assert written == ["rank_0", "rank_2"]
