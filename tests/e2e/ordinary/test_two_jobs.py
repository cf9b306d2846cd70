"""Two running jobs of one name and a third job: only the second of the two is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import SCENARIOS
from frd.errors import FrdError
from tests.world import daemons
from tests.world.daemons import (
    JOBS,
    Stage,
    exec_command,
    findings,
    frd,
    free_port,
    rank_environment,
    running,
    watched,
)

pytestmark = [pytest.mark.torch, pytest.mark.recorder, pytest.mark.timeout(240)]
until = partial(daemons.until, ignoring=FrdError)


@contextmanager
def launched(stage: Stage, name: str, stop: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """A job of two ranks that goes on until it is killed; rank 1 stops while `stop` exists."""
    port = free_port()
    script = (sys.executable, JOBS / "steady.py", 0.05, 1, 0, stop)
    command = exec_command(stage.run_dir, *script)
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                running(command, env=rank_environment(rank, 2, port) | {"FRD_JOB": name})
            )
            for rank in range(2)
        ]


def pids(client: Client, job: str) -> list[int]:
    ranks = client.get(f"/api/v1/jobs/{job}")["ranks"]
    return [rank["pid"] for rank in ranks if rank["state"] == "live"]


def moves(client: Client, job: str, ranks: list[subprocess.Popen[str]]) -> bool:
    """These processes are the job's ranks, and complete collectives."""
    if pids(client, job) != [process.pid for process in ranks]:
        return False

    def completed() -> int:
        groups = client.get(f"/api/v1/jobs/{job}")["groups"]
        return max((group["completed"] for group in groups), default=0)

    before = completed()
    return bool(until(lambda: completed() > before + 20))


@pytest.mark.long
def test_two_jobs_of_one_name_and_one_that_hangs(tmp_path: Path) -> None:
    """Two jobs called train run on one node, and a third job hangs: the agent's stream goes on, the
    hang is named within the normal time, and a warning says that the second train is refused; when
    the first one ends, the second is watched."""
    stop, never = tmp_path / "stop", tmp_path / "never"
    with (
        watched(SCENARIOS["healthy"], 2, 5.0, job=False) as (stage, client),
        launched(stage, "train", never) as first,
        launched(stage, "other", stop) as other,
    ):
        assert until(lambda: moves(client, "train", first), stage.log("service"))
        assert until(lambda: moves(client, "other", other))
        with launched(stage, "train", never) as second:
            answer: Mapping[str, Any] = until(
                lambda: (jobs := client.get("/api/v1/jobs"))["warnings"] and jobs
            )
            (warning,) = answer["warnings"]
            assert warning["job"] == "train"
            assert re.fullmatch(
                rf"two running jobs on \S+ are called train "
                rf"\(pids {first[0].pid}, {second[0].pid}\): give each its own --job; "
                rf"only the job of pid {first[0].pid} is watched",
                warning["text"],
            ) or re.search(rf"pids {first[1].pid}, {second[1].pid}", warning["text"])
            assert client.get("/api/v1/findings")["warnings"] == [warning]
            assert client.get("/api/v1/findings", {"job": "other"})["warnings"] == []
            for command in ("status", "findings"):
                words = " ".join(frd(command, "--http", client.address).stderr.split())
                assert "give each its own --job" in words
            assert moves(client, "train", first)

            stop.touch()
            (finding,) = until(lambda: findings(client))
            assert finding["job"] == "other"
            (suspect,) = finding["suspects"]
            assert (suspect["rank"], suspect["reason"]) == (1, "cpu_stuck")
            assert finding["collective"]["waiting_s"] < 15

            for process in first:
                process.kill()
            assert until(lambda: moves(client, "train", second), lambda: stage.log("service"))
            assert until(lambda: not client.get("/api/v1/jobs")["warnings"])
            metrics = client.text("/metrics")
            assert 'frd_ingest_refused_total{reason="job_name"} 2.0' in metrics
            labels = 'job="train",namespace="",training_job="train"'
            assert f"frd_job_name_conflicts{{{labels}}} 0.0" in metrics
            streams = re.findall(r": connected, job (\S+)", stage.log("agent"))
            assert sorted(streams) == ["other", "train"], stage.log("agent")
            assert "two running jobs are called train" in stage.log("agent")
            found = findings(client)
            assert {f["job"] for f in found if f["state"] == "open"} == {"other"}, json.dumps(found)
