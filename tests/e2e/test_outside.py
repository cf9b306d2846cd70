"""Real gloo jobs whose ranks wait outside of torch.distributed: for a lock, for a file that another
rank has to write, for a file server, for a request, for a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import Scenario
from frd.errors import FrdError
from tests.world.daemons import JOBS, Stage, findings, throughout, until, watched
from tests.world.hanging_fuse import NoMount, hanging_fuse
from tests.world.verdicts import high_at_most

pytestmark = [pytest.mark.torch, pytest.mark.recorder, pytest.mark.timeout(150)]

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


def only(stage: Stage, client: Client, *suspects: int) -> dict[str, Any]:
    """The only open finding, once these are its suspects, and it has their stacks and what they
    wait for."""

    def settled() -> dict[str, Any] | None:
        seen = findings(client, state="open")
        if len(seen) != 1 or [one["rank"] for one in seen[0]["suspects"]] != [*suspects]:
            return None
        is_known = all(s["stack"] and "waits_for" in s for s in seen[0]["suspects"])
        return seen[0] if is_known else None

    return until(settled, lambda: f"{findings(client)}\n{stage.log('rank0')}")


@pytest.mark.parametrize("place", ["flock", pytest.param("filelock", marks=pytest.mark.soak)])
def test_the_holder_of_a_lock_for_which_two_ranks_wait(place: str) -> None:
    """Rank 2 has the lock and waits for a server; 0 and 1 wait in flock(), or poll, 3 waits for all
    in an all_reduce. Only rank 2 is ever sure, and at last it is named alone."""
    with job(place) as (stage, client):
        finding = only(stage, client, 2)
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
        finding = only(stage, client, culprit)
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
