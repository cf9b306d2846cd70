"""A healthy job raises nothing, however odd it looks."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from frd.cli.commands.demo.scenarios import Scenario
from tests.world.daemons import until, watched

SECONDS = float(os.environ.get("FRD_HEALTHY_SECONDS", "50"))
pytestmark = [pytest.mark.torch, pytest.mark.timeout(SECONDS + 90)]


def test_uneven_job_with_a_pause_has_no_finding() -> None:
    """Four ranks with subgroups, uneven steps, a 20 s pause and memory that grows and then stays:
    nothing is found at defaults."""
    script = str(Path(__file__).parent / "jobs" / "uneven.py")
    scenario = Scenario("uneven", "nothing is wrong", script)
    with watched(scenario, 4, 10.0, ["--seconds", str(SECONDS)]) as (stage, client):
        until(
            lambda: all(rank.poll() is not None for rank in stage.ranks),
            lambda: stage.log("rank0"),
            SECONDS + 60,
        )
        time.sleep(2)
        assert [rank.returncode for rank in stage.ranks] == [0, 0, 0, 0]
        assert client.get("/api/v1/findings")["findings"] == []
        (job,) = client.get("/api/v1/jobs")["jobs"]
        assert job["ended"]
