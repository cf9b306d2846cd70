"""What frd reports after torchrun has started a job again."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from frd.cli.client import Client
from frd.errors import FrdError
from tests.world import daemons
from tests.world.daemons import JOBS, STEADY, exec_command, findings, metric, running, watched

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


@pytest.mark.recorder
@pytest.mark.long
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


@pytest.mark.long
def test_a_job_that_died_by_itself_has_failed() -> None:
    """All ranks raise in their first seconds: no rank is lost, and the job has failed, as the
    service says after its restart, too. (torchrun restarts nothing here: in one of two tries the
    new ranks of torch 2.13 hang in init_process_group, without frd as well.)"""
    scenario = replace(STEADY, policy={**STEADY.policy, "failed_after_s": 4.0})
    with watched(scenario, 0, 3.0, job=False) as (stage, client):

        def lines(attempt: int, state: str) -> list[dict[str, Any]]:
            known = client.get("/api/v1/jobs")["jobs"]
            return [one for one in known if (one["attempt"], one["state"]) == (attempt, state)]

        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        torchrun += ["--nproc-per-node", "2"]
        command = exec_command(stage.run_dir, *torchrun, str(JOBS / "endings.py"), "config")
        with running(command, env={"OMP_NUM_THREADS": "1", "FRD_JOB": "typo"}) as job:
            assert job.wait(60) == 1
        (line,) = until(lambda: lines(0, "failed"), lambda: str(client.get("/api/v1/jobs")), 60)
        assert line["failure"]["exit"]["exception"] == "ValueError: no such option: lr_warmup"
        assert line["failure"]["exit"]["where"].startswith("endings.py:")
        assert metric(client.address, 'frd_job_failed{job="typo"}') == 1
        assert findings(client) == []
        for process in (stage.process("agent"), stage.process("service")):
            process.kill()
            process.wait()
        after = Client(stage.start_service().http)
        (again,) = after.get("/api/v1/jobs")["jobs"]
        assert (again["state"], again["attempt"]) == ("failed", 0)
        assert again["failure"] == {**line["failure"], "age_s": again["failure"]["age_s"]}
