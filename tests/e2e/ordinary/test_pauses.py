"""A job that pauses for checkpoints, over three starts: one warning, never critical."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from frd.cli.commands.demo.scenarios import Scenario
from frd.cli.commands.demo.stage import Addresses
from tests.world.daemons import JOBS, Stage, fetch, free_address, get, until

STALL_AFTER_S = 2.0
CHECKPOINT_S = 5.0
CRITICAL_AFTER_S = 12.0
"""A machine that is very busy may stretch a checkpoint."""
pytestmark = [pytest.mark.torch, pytest.mark.recorder, pytest.mark.timeout(300)]


def findings(http: str) -> list[dict[str, Any]]:
    """Oldest first."""
    found: list[dict[str, Any]] = get(http, "/api/v1/findings")["findings"]
    return found[::-1]


def run_job(stage: Stage, *arguments: str) -> None:
    """Start the job once more, under the same name."""
    stage.ranks.clear()
    stage._arguments = list(arguments)
    stage.start_job()


def run_to_end(stage: Stage, http: str, *arguments: str) -> None:
    run_job(stage, *arguments)
    for number, rank in enumerate(stage.ranks):
        assert rank.wait(120) == 0, stage.log(f"rank{number}")
    until(lambda: all(f["state"] == "closed" for f in findings(http)), "the end of every finding")


@pytest.mark.soak
def test_checkpoints_over_three_starts_and_a_restart_of_the_service() -> None:
    """Checkpoints of 5 s with a threshold of 2 s: the first one is a warning, later ones are not,
    also after a restart of the job and of the service. Then the job hangs: the finding opens as a
    warning and becomes critical."""
    policy = {"critical_after_s": CRITICAL_AFTER_S}
    job = Scenario("pauses", "checkpoints", str(JOBS / "checkpoints.py"), policy=policy)
    with Stage(job, 2, STALL_AFTER_S, []) as stage:
        ports = Addresses(free_address(), free_address())
        http = stage.start_service(ports).http
        stage.start_agent(ports)
        run_to_end(stage, http, "2", f"{CHECKPOINT_S}")
        first = findings(http)
        assert len(first) <= 1
        assert {(f["kind"], f["severity"]) for f in first} <= {("stall", "warning")}

        stage.process("service").send_signal(signal.SIGTERM)
        stage.process("service").wait(30)
        stage.start_service(ports)
        run_to_end(stage, http, "1", f"{CHECKPOINT_S}")
        assert [f["id"] for f in findings(http)] == [f["id"] for f in first]

        run_job(stage, "1", f"{CHECKPOINT_S}", "hang")
        hang = until(lambda: findings(http)[len(first) :], "the hang", 90)
        assert [(f["kind"], f["severity"]) for f in hang] == [("stall", "warning")]
        assert hang[0]["collective"]["waiting_s"] > CHECKPOINT_S, "a checkpoint is no hang"
        until(lambda: findings(http)[-1]["severity"] == "critical", "its second stage", 90)
        labels = f'finding="{hang[0]["id"]}",job="{stage.job}",kind="stall"'
        labels += f',namespace="",training_job="{stage.job}"'
        lines = [
            line for line in fetch(http).splitlines() if line.startswith("frd_finding_critical{")
        ]
        assert [line.split() for line in lines] == [[f"frd_finding_critical{{{labels}}}", "1.0"]]
