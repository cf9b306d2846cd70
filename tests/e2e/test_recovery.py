"""What frd reports after its own parts, or the job, were killed and started again."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from frd.cli.client import Client
from frd.errors import FrdError
from frd.model import NodeRawNs
from frd_agent.ranks.tap_counters import CountersFile
from tests.world import daemons
from tests.world.daemons import JOBS, STEADY, Stage, exec_command, findings, running, watched

pytestmark = [pytest.mark.torch, pytest.mark.timeout(150)]
until = partial(daemons.until, ignoring=FrdError)
"""Services go and come back here."""


def group(client: Client, job: str, label: str = "default_pg") -> Mapping[str, Any]:
    """FrdError until the service has seen the group: ranks register before they form it."""
    groups: list[Mapping[str, Any]] = client.get(f"/api/v1/jobs/{job}")["groups"]
    for one in groups:
        if one["group"] == label:
            return one
    raise FrdError(f"job {job} has no group {label} yet")


def kill(process: subprocess.Popen[bytes] | None) -> None:
    assert process is not None
    process.kill()
    process.wait()


def ranks_step_on(stage: Stage) -> None:
    """By what they publish: no agent need read it."""

    def steps() -> list[int]:
        files = [CountersFile(path, NodeRawNs) for path in sorted(stage.run_dir.glob("*.shm"))]
        with contextlib.ExitStack() as opened:
            read = [opened.enter_context(contextlib.closing(file)).read() for file in files]
        return [sum(row.enqueued for row in one.counters.values()) for one in read if one]

    before = steps()
    assert len(before) == len(stage.ranks)
    until(lambda: steps() > [each + 100 for each in before], "100 steps of each rank")
    assert all(rank.poll() is None for rank in stage.ranks)


def test_killed_daemons_leave_a_healthy_job_alone() -> None:
    """SIGKILL for the agent: ranks run on, and the next agent's rows are not counted again. SIGKILL
    for the service: ranks and agent run on, and SIGTERM ends the agent with exit code 0."""
    with Stage(STEADY, 2, 3.0) as stage:
        addresses = stage.start_service()
        client = Client(addresses.http)
        stage.start_agent(addresses)
        stage.start_job()
        until(lambda: group(client, stage.job)["completed"] > 200, "200 steps", 40)
        kill(stage.agent)
        ranks_step_on(stage)
        stage.start_agent(addresses)
        resumed = group(client, stage.job)["completed"]
        until(lambda: group(client, stage.job)["completed"] > resumed + 1200, "more steps", 60)
        seen = group(client, stage.job)
        assert seen["matched"] <= seen["completed"]
        assert findings(client) == []

        kill(stage.service)
        ranks_step_on(stage)
        assert stage.agent is not None
        assert stage.agent.poll() is None
        stage.agent.send_signal(signal.SIGTERM)
        assert stage.agent.wait(10) == 0


def test_restarted_job_starts_clean() -> None:
    """torchrun restarts a job after a killed rank: the old attempt's finding closes."""
    with watched(STEADY, 0, 3.0, job=False) as (stage, client):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        torchrun += ["--max-restarts", "1", "--rdzv-id", "phoenix", "--rdzv-backend", "c10d"]
        torchrun += ["--rdzv-endpoint", "localhost:0", str(JOBS / "restarts.py")]
        with running(exec_command(stage.run_dir, *torchrun)) as job:
            until(lambda: client.get("/api/v1/jobs/phoenix")["attempt"] == 1, "attempt 1", 60)
            until(lambda: group(client, "phoenix")["completed"] > 100, "100 steps of attempt 1", 40)
            assert all(f["state"] == "closed" for f in findings(client))
            assert all(f["attempt"] == 0 for f in findings(client))
            lost = [f for f in findings(client) if f["kind"] == "rank_lost"]
            assert [s["rank"] for f in lost for s in f["suspects"]] == [1]
            assert job.wait(60) == 0
            until(lambda: client.get("/api/v1/jobs/phoenix")["ended"], "the end of the job")
            assert [f for f in findings(client) if f["attempt"] == 1] == []
