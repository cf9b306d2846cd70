"""Real gloo jobs whose initialization takes long, or never ends: which ranks are known, how they
stand, and which one is named."""

from __future__ import annotations

import contextlib
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import Scenario
from frd.errors import FrdError
from tests.world.daemons import JOBS, Stage, findings, throughout, until, watched
from tests.world.verdicts import high_at_most

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
JOB = "demo-initialization"

Rank = dict[str, Any]


@contextlib.contextmanager
def job(place: str) -> Iterator[tuple[Stage, Client, Path]]:
    """With the file that lets rank 2 go on."""
    scenario = Scenario("initialization", "a long initialization", str(JOBS / "initialization.py"))
    with (
        tempfile.TemporaryDirectory() as folder,
        watched(scenario, 4, 3.0, [place, f"{folder}/go"]) as (stage, client),
    ):
        yield stage, client, Path(folder) / "go"


def ranks(client: Client) -> list[Rank]:
    """All ranks of the job that the service knows, in order."""
    with contextlib.suppress(FrdError):  # the job is not known yet
        found: list[Rank] = client.get(f"/api/v1/jobs/{JOB}")["ranks"]
        return found
    return []


def trained(client: Client) -> int:
    """Collectives that all ranks have completed."""
    groups = client.get(f"/api/v1/jobs/{JOB}")["groups"]
    return max((group["completed"] for group in groups), default=-1)


def once(stage: Stage, client: Client, is_right: Callable[[list[Rank]], bool]) -> list[Rank]:
    """The ranks, once they are right."""

    def right() -> list[Rank] | None:
        known = ranks(client)
        return known if is_right(known) else None

    return until(right, lambda: f"{ranks(client)}\n{stage.log('agent')}\n{stage.log('rank0')}")


def waiting(known: list[Rank]) -> list[str]:
    return [rank["waiting_in"] for rank in known]


@pytest.mark.soak
def test_a_rank_that_does_not_come() -> None:
    """Rank 2 loads a model for ever, the others are in init_process_group: all four are known, with
    the processes that they are, and three of them wait. One is stopped, and is silent. Ctrl-C ends
    rank 2."""
    with job("absent") as (stage, client, _):
        inside = "init_process_group"
        known = once(stage, client, lambda all_: waiting(all_) == [inside, inside, "", inside])
        assert [rank["pid"] for rank in known] == [process.pid for process in stage.ranks]
        assert known[2]["detail"] == "has no process group yet"
        assert {rank["state"] for rank in known} == {"live"}
        once(stage, client, lambda all_: all_[0]["waiting_s"] > 4)

        stage.ranks[0].send_signal(signal.SIGSTOP)
        once(stage, client, lambda all_: all_[0]["state"] == "silent")
        stage.ranks[2].send_signal(signal.SIGINT)
        known = once(stage, client, lambda all_: all_[2]["state"] == "finished")
        assert "KeyboardInterrupt" in known[2]["detail"]


@pytest.mark.parametrize(
    ("place", "op", "detail"),
    [
        ("absent", "init_process_group", "has no process group yet"),
        pytest.param("new_group", "new_group", "", marks=pytest.mark.soak),
    ],
)
def test_the_rank_that_does_not_come_is_named(
    place: str, op: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 2 does something else while three ranks wait; the finding has its stack and what it
    waits for."""
    monkeypatch.setenv("FRD_POLICY__INIT_STALL_AFTER_S", "6")  # not a minute
    with job(place) as (stage, client, _):
        known = once(stage, client, lambda all_: waiting(all_) == [op, op, "", op])
        assert known[2]["detail"] == detail
        finding = until(
            lambda: sure(client), lambda: f"{findings(client)}\n{stage.log('agent')}", 60
        )
        high_at_most(stage, client, 2)
    assert (finding["kind"], finding["collective"]["op"]) == ("stall", op)
    (suspect,) = finding["suspects"]
    assert (suspect["rank"], suspect["reason"]) == (2, "cpu_stuck")
    assert suspect["stack"][0].endswith("in load_model")
    assert finding["victims"] == [0, 1, 3]
    assert finding["effect"].startswith(f"holds up 3 ranks in {op} for ")


def sure(client: Client) -> dict[str, Any] | None:
    """The finding, if its suspect is certain, with its stack and what it waits for."""
    for one in findings(client, state="open"):
        (suspect, *others) = one["suspects"]
        is_high = suspect["confidence"] == "high" and not others
        if is_high and suspect["stack"] and "waits_for" in suspect:
            return one
    return None


@pytest.mark.recorder
@pytest.mark.parametrize("place", ["late", pytest.param("helpers", marks=pytest.mark.soak)])
def test_a_slow_start(place: str) -> None:
    """Rank 2 comes some seconds after the others, in one job every rank has helper processes that
    inherit its environment: the processes that were known before train as the same ranks, no rank
    is lost or reported twice, and there is no finding."""
    with job(place) as (stage, client, go):
        pids = [process.pid for process in stage.ranks]
        once(stage, client, lambda all_: waiting(all_).count("init_process_group") == 3)
        go.touch()
        until(lambda: trained(client) > 20, lambda: f"{ranks(client)}\n{stage.log('rank0')}")
        assert [rank["pid"] for rank in ranks(client)] == pids

        def is_well() -> None:
            known = ranks(client)
            assert [(rank["pid"], rank["state"]) for rank in known] == [(p, "live") for p in pids]
            assert findings(client) == []

        throughout(8.0, is_well)


def test_a_rank_that_dies_before_it_comes() -> None:
    """Rank 2 raises before init_process_group: its row says why, and no rank is lost. Then the
    launcher ends the others."""
    with job("dies") as (stage, client, go):
        once(stage, client, lambda all_: len(all_) == 4)
        go.touch()
        known = once(stage, client, lambda all_: all_[2]["state"] == "finished")
        why = "ended before it had a process group: FileNotFoundError: no checkpoint"
        assert known[2]["detail"].startswith(why)
        for number in (0, 1, 3):
            stage.ranks[number].send_signal(signal.SIGTERM)
        known = once(stage, client, lambda all_: {rank["state"] for rank in all_} == {"finished"})
        assert "killed by SIGTERM" in known[0]["detail"]
        assert findings(client) == []
