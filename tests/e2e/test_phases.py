"""Phases that a real program names, from its `with` to the finding."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from frd.cli.commands.demo.scenarios import SCENARIOS, Scenario
from tests.world.daemons import JOBS, finding_with, frd, until, watched

pytestmark = pytest.mark.torch


@pytest.mark.recorder
@pytest.mark.timeout(120)
def test_a_hang_in_eval_says_so() -> None:
    """Rank 1 sleeps in the eval of epoch 2, the other waits in epoch 3's first all_reduce: the
    finding has the phase of rank 1 and when it began, and so has a replay of the journal."""
    scenario = Scenario("phased", "rank 1 stays in eval", str(JOBS / "phased.py"))
    with watched(scenario, 2, 4.0) as (stage, client):
        finding = finding_with(client, "suspects")
        (suspect,) = finding["suspects"]
        assert suspect["rank"] == 1
        assert suspect["phase"]["path"] == ["epoch 2", "eval"]
        assert "in phase epoch 2 / eval since " in suspect["evidence"]
        began, opened = map(
            datetime.fromisoformat, (suspect["phase"]["since"], finding["opened_at"])
        )
        assert 3 < (opened - began).total_seconds() < 60
        replayed = frd("replay", stage.folder / "data" / "journal", "--json")
        (again,) = json.loads(replayed.stdout)["findings"]
        (same,) = again["suspects"]
        assert (same["phase"], same["evidence"][:30]) == (
            suspect["phase"],
            suspect["evidence"][:30],
        )


@pytest.mark.recorder
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("trouble", "policy_of", "kind"),
    [
        pytest.param("late", "straggler", "straggler", marks=pytest.mark.soak),
        ("killed", "killed", "rank_lost"),
    ],
)
def test_trouble_in_eval_says_so(trouble: str, policy_of: str, kind: str) -> None:
    """Rank 1 has left train and is in eval when it comes late in each step, or when it is killed:
    the finding that names it says eval."""
    policy = SCENARIOS[policy_of].policy
    job = Scenario("trouble", "in eval", str(JOBS / "trouble_in_eval.py"), policy=policy)
    with watched(job, 2, 10.0, [trouble]) as (stage, client):
        first = finding_with(client, "suspects", 80.0)

        def suspect_in_phase() -> dict[str, Any] | None:
            """The agent may report the phase after the finding has opened."""
            (suspect,) = client.get(f"/api/v1/findings/{first['id']}")["suspects"]
            return suspect if "phase" in suspect else None

        suspect = until(suspect_in_phase, lambda: f"{first}\n{stage.log('agent')}")
        assert (first["kind"], suspect["rank"], suspect["phase"]["path"]) == (kind, 1, ["eval"])
        assert "in phase eval since " in suspect["evidence"]
