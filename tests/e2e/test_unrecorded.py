"""Real gloo jobs in which ranks wait in calls that leave no entry in the Flight Recorder."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import Scenario
from tests.world.daemons import JOBS, Stage, findings, until, watched

pytestmark = [pytest.mark.torch, pytest.mark.recorder, pytest.mark.timeout(120)]


def found(place: str, is_right: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
    """The only finding of the job with ranks in that place, once it is right."""
    scenario = Scenario("unrecorded", "waits without a record", str(JOBS / "unrecorded.py"))
    with watched(scenario, 4, 2.0, [place]) as (stage, client):
        return only(stage, client, is_right)


def only(
    stage: Stage, client: Client, is_right: Callable[[Mapping[str, Any]], bool]
) -> dict[str, Any]:
    seen: list[dict[str, Any]] = []

    def right() -> dict[str, Any] | None:
        seen[:] = findings(client)
        return seen[0] if len(seen) == 1 and is_right(seen[0]) else None

    return until(right, lambda: f"{seen}\n{stage.log('rank0')}", 60)


def suspects(finding: Mapping[str, Any]) -> dict[int, str]:
    return {suspect["rank"]: suspect["confidence"] for suspect in finding["suspects"]}


@pytest.mark.parametrize("place", ["posted", pytest.param("pipeline", marks=pytest.mark.soak)])
def test_a_rank_that_receives_from_the_first_cause(place: str) -> None:
    """A pipeline: stage 2 computes for ever, stage 3 waits in recv or `work.wait()` for it, 0 and 1
    for both in an all_reduce. Both are absent at first; then only stage 2 is named."""
    finding = found(place, lambda one: suspects(one) == {2: "high"})
    assert finding["victims"] == [0, 1, 3]
    assert finding["collective"]["op"] == "all_reduce"


def test_a_broadcast_with_another_root() -> None:
    """Rank 2 passes another source than the rest: all have joined, and no rank is named, but the
    finding says which ranks have completed it, and from which lines the others came."""
    lines = (
        r"ranks? [-,0-9]+ joined at unrecorded.py:\d+ root, rank 2 joined at unrecorded.py:\d+ root"
    )
    finding = found("root", lambda one: re.search(lines, one["summary"]) is not None)
    assert suspects(finding) == {}
    assert finding["reason"] == "network_or_device"
    assert "their roots may differ, or the link between them failed" in finding["summary"]


@pytest.mark.parametrize(
    ("place", "op"),
    [
        pytest.param("chain", "recv", marks=pytest.mark.soak),
        ("barrier", "monitored_barrier"),
        pytest.param("new_group", "new_group", marks=pytest.mark.soak),
    ],
)
def test_a_call_that_leaves_no_entry(place: str, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 2 computes for ever; the others wait in calls that no recorder shows, for it or for each
    other. It alone is named, with its line."""
    monkeypatch.setenv("FRD_POLICY__INIT_STALL_AFTER_S", "5")  # not a minute

    def is_sure(one: Mapping[str, Any]) -> bool:
        return [s["confidence"] for s in one["suspects"]] == ["high"] and one["suspects"][0][
            "stack"
        ]

    finding = found(place, is_sure)
    assert suspects(finding) == {2: "high"}
    assert finding["victims"] == [0, 1, 3]
    assert finding["collective"]["op"] in (op, "send")
    assert "for rank 2" in finding["summary"]
    assert finding["suspects"][0]["stack"][0].endswith("in compute")
