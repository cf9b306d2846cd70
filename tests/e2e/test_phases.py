"""Phases that a real program names, from its `with` to the finding."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from frd.cli.commands.demo.scenarios import Scenario
from tests.world.daemons import JOBS, finding_with, frd, watched

pytestmark = pytest.mark.torch


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
