"""Real gloo jobs in which ranks wait in calls that leave no entry in the Flight Recorder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import Scenario
from frd.errors import FrdError
from frd.model import Kind
from tests.world.daemons import JOBS, Stage, findings, throughout, until, watched
from tests.world.hanging_fuse import NoMount, hanging_fuse
from tests.world.verdicts import high_at_most

pytestmark = [pytest.mark.torch, pytest.mark.recorder, pytest.mark.timeout(150)]


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


# -- outside ---------------------------------------------------------------------------------------
# Real gloo jobs whose ranks wait outside of torch.distributed: for a lock, for a file that
# another rank has to write, for a file server, for a request, for a device.


STANDSTILL = MappingProxyType({"standstill_after_s": 3.0})
NO_POLICY: Mapping[str, float] = MappingProxyType({})


@contextmanager
def job(
    place: str, file: Path = Path(), policy: Mapping[str, float] = NO_POLICY
) -> Iterator[tuple[Stage, Client]]:
    """Four ranks in that place."""
    scenario = Scenario("outside", "waits", str(JOBS / "outside.py"), policy=policy)
    with watched(scenario, 4, 2.0, [place, str(file)]) as (stage, client):
        yield stage, client


def settled(stage: Stage, client: Client, *suspects: int) -> dict[str, Any]:
    """The only open finding, once these are its suspects, and it has their stacks and what they
    wait for."""

    def right() -> dict[str, Any] | None:
        seen = findings(client, state="open")
        if len(seen) != 1 or [one["rank"] for one in seen[0]["suspects"]] != [*suspects]:
            return None
        is_known = all(s["stack"] and "waits_for" in s for s in seen[0]["suspects"])
        return seen[0] if is_known else None

    return until(right, lambda: f"{findings(client)}\n{stage.log('rank0')}")


@pytest.mark.parametrize("place", ["flock", pytest.param("filelock", marks=pytest.mark.soak)])
def test_the_holder_of_a_lock_for_which_two_ranks_wait(place: str) -> None:
    """Rank 2 has the lock and waits for a server; 0 and 1 wait in flock(), or poll, 3 waits for all
    in an all_reduce. Only rank 2 is ever sure, and at last it is named alone."""
    with job(place) as (stage, client):
        finding = settled(stage, client, 2)
        high_at_most(stage, client, 2)
    (holder,) = finding["suspects"]
    assert (finding["kind"], holder["reason"]) == ("stall", "cpu_stuck")
    assert finding["victims"] == [0, 1, 3]
    assert "outside.py" in holder["stack"][0]
    assert holder["stack"][0].endswith("in ask")


@pytest.mark.parametrize(
    ("place", "culprit", "line"),
    [
        ("shard", 0, "ask"),
        ("device", 1, "ask"),
        pytest.param("prefetch", 1, "take", marks=pytest.mark.soak),
    ],
)
def test_one_rank_is_blocked_and_the_others_wait_without_a_collective(
    place: str, culprit: int, line: str
) -> None:
    """Three ranks poll for a file that the fourth has to write, or spin in a wait for their devices
    (whose kernels wait for the fourth): it waits for a reply, or for its loader's thread, and is
    named, though nothing is in flight."""
    with job(place) as (stage, client):
        finding = settled(stage, client, culprit)
        high_at_most(stage, client, culprit)
    (suspect,) = finding["suspects"]
    assert (finding["kind"], suspect["reason"]) == ("stall", "cpu_stuck")
    assert suspect["confidence"] in ("medium", "high")
    assert suspect["stack"][0].endswith(f"in {line}")
    assert finding["victims"] == [rank for rank in range(4) if rank != culprit]


@pytest.mark.soak
def test_all_ranks_read_a_file_of_a_dead_server(tmp_path: Path) -> None:
    """No rank is the cause: a standstill, a warning that no rank is sure of, with file and line."""
    try:
        with (
            hanging_fuse(tmp_path) as nas,
            job("mount", nas.folder / "shard.bin", STANDSTILL) as (stage, client),
        ):
            try:
                (finding,) = until(lambda: findings(client), lambda: stage.log("rank0"))
                high_at_most(stage, client)
            finally:
                nas.close()
    except NoMount as error:
        pytest.skip(str(error))
    assert (finding["kind"], finding["severity"]) == ("standstill", "warning")
    assert "outside.py" in finding["summary"]


@pytest.mark.parametrize("rest_s", [6.0, pytest.param(60.0, marks=pytest.mark.soak)])
def test_ranks_that_poll_for_a_request(rest_s: float) -> None:
    """As a server's engine does: there is nothing to find, however long no request comes; nor when
    one has come."""
    with job("requests", policy=STANDSTILL) as (stage, client):

        def matched() -> int:
            groups = client.get(f"/api/v1/jobs/{stage.job}")["groups"]
            return sum(group["matched"] for group in groups)

        until(lambda: matched() >= 40, lambda: stage.log("rank0"), ignoring=FrdError)
        throughout(rest_s, lambda: none(client))
        (stage.folder / "request").touch()
        until(lambda: matched() > 60, lambda: stage.log("rank0"))
        assert high_at_most(stage, client) == []


def none(client: Client) -> None:
    assert findings(client) == []
