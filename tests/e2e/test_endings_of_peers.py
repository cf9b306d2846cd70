"""Real gloo jobs in which ranks end because of another rank."""

from __future__ import annotations

from typing import Any

import pytest

from frd.cli.commands.demo.scenarios import Scenario
from tests.world.daemons import JOBS, findings, until, watched
from tests.world.verdicts import high_at_most

pytestmark = [pytest.mark.torch, pytest.mark.recorder, pytest.mark.timeout(120)]


def only(place: str, kind: str, culprit: int) -> dict[str, Any]:
    """The finding of the job with this end, once it is the only open one. No other rank than the
    culprit has been `high` at any time."""
    scenario = Scenario("endings", "ends of peers", str(JOBS / "endings_of_peers.py"))
    with watched(scenario, 4, 2.0, [place]) as (stage, client):

        def right() -> dict[str, Any] | None:
            seen = findings(client, state="open")
            return seen[0] if len(seen) == 1 and seen[0]["kind"] == kind else None

        finding = until(right, lambda: f"{findings(client)}\n{stage.log('rank2')}", 60)
        high_at_most(stage, client, culprit)
        return finding


def test_ranks_in_which_gloo_aborts_are_victims_of_the_mismatch() -> None:
    """Rank 3 skips an all_reduce. Gloo aborts in a peer: the finding is the mismatch."""
    finding = only("skipped", "mismatch", 3)
    assert 3 in {suspect["rank"] for suspect in finding["suspects"]}
    assert "passed [[64, 64]] where" in finding["summary"]
    assert finding["victims"]


@pytest.mark.soak
def test_a_failed_download_is_the_fault_of_its_rank() -> None:
    """The server closes the connection of rank 2; the others lose theirs to rank 2."""
    finding = only("download", "rank_lost", 2)
    assert [(s["rank"], s["confidence"]) for s in finding["suspects"]] == [(2, "high")]
    assert " download) at " in finding["summary"]
