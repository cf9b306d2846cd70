"""What a real job loses to its stragglers, by its own account and by frd's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import Scenario
from frd.cli.commands.demo.stage import Stage
from frd.forms import finding_from_json
from tests.world.daemons import until, watched

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

WINDOW_S, SETTLE_S = 9.0, 8.0
S = 1_000_000_000


def test_stragglers_are_named_with_the_time_that_was_lost(tmp_path: Path) -> None:
    """Rank 1 sleeps 200 ms before every tenth all_reduce, rank 3 20 ms before each: both are named,
    no other rank is, and what frd says was lost to each is what the ranks' own clocks say."""
    policy = {
        "straggler_window_s": WINDOW_S,
        "straggler_min_lost_s": 0.5,
        "telemetry_late_s": SETTLE_S,
    }
    script = str(Path(__file__).parent / "jobs" / "late.py")
    scenario = Scenario("late", "two stragglers", script, policy=policy)
    with watched(scenario, 4, 10.0, [str(tmp_path)]) as (stage, client):
        findings = closed(client, stage)
    came = np.array([np.loadtxt(tmp_path / f"{rank}.txt", np.int64) for rank in range(4)])
    by_rank = {finding["suspects"][0]["rank"]: finding for finding in findings}
    assert sorted(by_rank) == [1, 3]
    for rank, finding in by_rank.items():
        assert (finding["kind"], len(finding["suspects"])) == ("straggler", 1)
        assert finding["suspects"][0]["reason"] == "late"
        assert finding["close_reason"] == "no longer late"
        assert finding["lost_s"] == pytest.approx(lost_s(came, rank, finding), rel=0.1)


def closed(client: Client, stage: Stage) -> list[Mapping[str, Any]]:
    """The findings when the job has come to rest and all of them are closed again."""

    def all_closed() -> list[Mapping[str, Any]]:
        findings: list[Mapping[str, Any]] = client.get("/api/v1/findings")["findings"]
        are_over = len(findings) >= 2 and all(f["state"] == "closed" for f in findings)
        return findings if are_over else []

    return until(all_closed, lambda: stage.log("rank0"), 150)


def lost_s(came: np.ndarray[Any, Any], rank: int, finding: Mapping[str, Any]) -> float:
    """How long all others had been there when `rank` came last, from the first window on."""
    bucket_ns = round(WINDOW_S * S) // 6
    end = (finding_from_json(dict(finding)).opened_at - round(SETTLE_S * S)) // bucket_ns
    others = np.delete(came, rank, axis=0).max(axis=0)
    waited = np.maximum(came[rank] - others, 0)
    return float(waited[came[rank] >= (end - 6) * bucket_ns].sum()) / S
