"""Real gloo jobs: a healthy one, one with an extra collective and one with stragglers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import Scenario
from frd.cli.commands.demo.stage import examples
from frd.forms import finding_from_json
from tests.world.daemons import JOBS, Stage, finding_with, findings, until, watched

HEALTHY_S = float(os.environ.get("FRD_HEALTHY_SECONDS", "50"))
pytestmark = [pytest.mark.torch, pytest.mark.recorder]


@pytest.mark.soak
@pytest.mark.timeout(HEALTHY_S + 90)
def test_uneven_job_with_a_pause_has_no_finding() -> None:
    """Four ranks with subgroups, uneven steps, a 20 s pause and memory that grows and then stays:
    nothing is found at defaults."""
    script = str(JOBS / "uneven.py")
    scenario = Scenario("uneven", "nothing is wrong", script)
    with watched(scenario, 4, 10.0, [str(HEALTHY_S)]) as (stage, client):
        until(
            lambda: all(rank.poll() is not None for rank in stage.ranks),
            lambda: stage.log("rank0"),
            HEALTHY_S + 60,
        )
        assert [rank.returncode for rank in stage.ranks] == [0, 0, 0, 0]
        until(lambda: client.get("/api/v1/jobs")["jobs"][0]["ended"], "the end of the job")
        assert findings(client) == []


@pytest.mark.timeout(90)
def test_the_line_of_the_extra_call_is_named() -> None:
    """Rank 0 calls all_reduce once more: rank 1 did not join, and rank 0's extra line is named."""
    script = "extra_collective.py"
    (line,) = (
        number
        for number, text in enumerate((examples() / script).read_text().splitlines(), 1)
        if "torch.ones(1024, 1024)" in text
    )
    extra = Scenario("extra", "a collective more", script)
    with watched(extra, 2, 2.0) as (_, client):
        found = finding_with(client, "witness")
        assert [s["rank"] for s in found["suspects"]] == [1]
        assert found["collective"]["missing_ranks"] == [1]
        assert found["collective"]["seq"] == 21
        assert found["witness"]["rank"] == 0
        assert found["witness"]["stack"][0] == f"{script}:{line} in main"


WINDOW_S, SETTLE_S = 9.0, 8.0
S = 1_000_000_000


@pytest.mark.long
@pytest.mark.timeout(180)
def test_stragglers_are_named_with_the_time_that_was_lost(tmp_path: Path) -> None:
    """Rank 1 sleeps 200 ms before every tenth all_reduce, rank 3 20 ms before each: only these two
    are named, and the time lost to each equals the loss by the ranks' own clocks."""
    policy = {
        "straggler_window_s": WINDOW_S,
        "straggler_min_lost_s": 0.5,
        "telemetry_late_s": SETTLE_S,
    }
    script = str(JOBS / "late.py")
    scenario = Scenario("late", "two stragglers", script, policy=policy)
    with watched(scenario, 4, 10.0, [str(tmp_path)]) as (stage, client):
        found = closed(client, stage)
    came = np.array([np.loadtxt(tmp_path / f"{rank}.txt", np.int64) for rank in range(4)])
    by_rank = {finding["suspects"][0]["rank"]: finding for finding in found}
    assert sorted(by_rank) == [1, 3]
    for rank, finding in by_rank.items():
        assert (finding["kind"], len(finding["suspects"])) == ("straggler", 1)
        assert finding["suspects"][0]["reason"] == "late"
        assert finding["close_reason"] == "no longer late"
        assert finding["lost_s"] == pytest.approx(lost_s(came, rank, finding), rel=0.1)


def closed(client: Client, stage: Stage) -> list[dict[str, Any]]:
    """The findings, once the job is at rest and all of them are closed."""

    def all_closed() -> list[dict[str, Any]]:
        found = findings(client)
        are_over = len(found) >= 2 and all(f["state"] == "closed" for f in found)
        return found if are_over else []

    return until(all_closed, lambda: stage.log("rank0"), 150)


def lost_s(came: np.ndarray[Any, Any], rank: int, finding: Mapping[str, Any]) -> float:
    """How long all others had been there when `rank` came last, from the first window on."""
    bucket_ns = round(WINDOW_S * S) // 6
    end = (finding_from_json(dict(finding)).opened_at - round(SETTLE_S * S)) // bucket_ns
    others = np.delete(came, rank, axis=0).max(axis=0)
    waited = np.maximum(came[rank] - others, 0)
    return float(waited[came[rank] >= (end - 6) * bucket_ns].sum()) / S
