"""Real gloo jobs that hang in initialization: which rank the finding names."""

from __future__ import annotations

from typing import Any

import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import Scenario
from tests.world.daemons import JOBS, Stage, findings, until, watched

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
SCENARIO = Scenario("initialization", "a long initialization", str(JOBS / "initialization.py"))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service of a test waits for six seconds, not for a minute."""
    monkeypatch.setenv("FRD_POLICY__INIT_STALL_AFTER_S", "6")


def sure(stage: Stage, client: Client) -> dict[str, Any]:
    """The finding, once its suspect is certain, with its stack and what it waits for."""

    def right() -> dict[str, Any] | None:
        for one in findings(client, state="open"):
            (suspect, *others) = one["suspects"]
            if (
                not others
                and suspect["confidence"] == "high"
                and suspect["stack"]
                and "waits_for" in suspect
            ):
                return one
        return None

    return until(right, lambda: f"{findings(client)}\n{stage.log('agent')}", 60)


@pytest.mark.parametrize(
    ("place", "op"),
    [
        ("absent", "init_process_group"),
        pytest.param("new_group", "new_group", marks=pytest.mark.soak),
    ],
)
def test_the_rank_that_does_not_come_is_named(place: str, op: str) -> None:
    """Rank 2 does something else; the finding has its stack and what it waits for."""
    with watched(SCENARIO, 4, 3.0, [place]) as (stage, client):
        finding = sure(stage, client)
    assert (finding["kind"], finding["collective"]["op"]) == ("stall", op)
    (suspect,) = finding["suspects"]
    assert (suspect["rank"], suspect["reason"]) == (2, "cpu_stuck")
    assert suspect["stack"][0].endswith("in load_model")
    assert finding["victims"] == [0, 1, 3]
    assert finding["summary"].startswith(f"{op} has waited ")
