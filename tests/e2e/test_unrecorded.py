"""Real gloo jobs in which ranks wait in calls that leave no entry in the Flight Recorder."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import Scenario
from frd.model import Kind
from tests.world.daemons import JOBS, Stage, findings, until, watched
from tests.world.verdicts import high_at_most

pytestmark = [pytest.mark.torch, pytest.mark.recorder, pytest.mark.timeout(120)]


def found(
    place: str,
    is_right: Callable[[Mapping[str, Any]], bool],
    *culprits: int,
    ranks: int = 4,
) -> dict[str, Any]:
    """The only finding of the job with ranks in that place, once it is right. None but the culprits
    have been `high` at any time."""
    scenario = Scenario("unrecorded", "waits without a record", str(JOBS / "unrecorded.py"))
    with watched(scenario, ranks, 2.0, [place]) as (stage, client):
        finding = only(stage, client, is_right)
        high_at_most(stage, client, *culprits)
        return finding


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
    for both in an all_reduce. Only stage 2 is ever named with high confidence."""
    finding = found(place, lambda one: suspects(one) == {2: "high"}, 2)
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

    finding = found(place, is_sure, 2)
    assert suspects(finding) == {2: "high"}
    assert finding["victims"] == [0, 1, 3]
    assert finding["collective"]["op"] in (op, "send")
    assert finding["headline"].startswith("Rank 2 ")
    assert finding["suspects"][0]["stack"][0].endswith("in compute")


def test_two_ranks_make_a_group_and_the_third_is_in_a_collective() -> None:
    """Each waits for the others: one finding, a circle of all three, of which none is sure."""
    finding = found("circle", lambda one: set(suspects(one)) == {0, 1, 2}, ranks=3)
    assert (finding["kind"], finding["victims"]) == ("order", [])
    assert {suspect["reason"] for suspect in finding["suspects"]} == {"order"}


def test_stages_that_disagree_on_the_number_of_micro_batches() -> None:
    """Stages 0 and 1 wait in recv for a batch that stage 2 leaves out, stage 2 waits for both in an
    all_reduce. It alone is at fault, which nothing shows: no other rank is ever sure."""
    finding = found("batches", lambda one: len(one["suspects"]) > 1, 2, ranks=3)
    assert set(suspects(finding)) in ({0, 1}, {0, 1, 2})


def test_a_group_with_members_of_two_jobs() -> None:
    """Reinforcement learning: the trainer broadcasts to the ranks of the rollout, of which rank 2
    does not come back from `generate`: no other rank is ever sure, in either job."""
    script = str(JOBS / "weight_sync.py")
    with watched(Scenario("sync", "two jobs", script), 5, 2.0, []) as (stage, client):

        def named() -> list[dict[str, Any]]:
            seen = findings(client, job="rollout")
            return [s for one in seen for s in one["suspects"] if s["stack"]]

        (suspect,) = until(named, lambda: stage.log("rank4"))
        assert (suspect["rank"], suspect["reason"]) == (2, "cpu_stuck")
        assert suspect["stack"][0].endswith("in generate")
        until(lambda: findings(client, job="trainer"), lambda: stage.log("rank0"))
        seen = high_at_most(stage, client, 2)
    assert {one.kind for one in seen} == {Kind.STALL}
    assert {suspect.rank for one in seen for suspect in one.suspects} <= {0, 2}
