"""The real agent process with ranks of two jobs: one service for both, and a replica for each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from frd.model import EntryColumns
from frd.wire.messages import Goodbye, Request, ResponsePart
from tests.world import replicas, streams
from tests.world.apart import ApartRank
from tests.world.collector import agent
from tests.world.daemons import (
    agent_command,
    async_until,
    free_address,
    metric,
    running,
    until,
)
from tests.world.played_rank import PlayedRank
from tests.world.replicas import Replica

pytestmark = pytest.mark.timeout(100)
JOBS = ("one", "two")


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[dict[str, PlayedRank]]:
    """A rank of each job in one run directory, with a collective that is done and an open one."""
    with ExitStack() as stack:
        made: dict[str, PlayedRank] = {}
        for job in JOBS:
            rank = made[job] = ApartRank(tmp_path / "run", job=job)
            stack.enter_context(closing(rank))
            rank.enter()
            rank.leave()
            rank.enter()
            rank.publish()
        yield made


def test_one_service_for_both_jobs(tmp_path: Path, ranks: dict[str, PlayedRank]) -> None:
    """Both streams come to one service: it sees one agent, synchronizes its clock for both jobs,
    and refuses none of its pings."""
    metrics = free_address()
    with streams.serving(tmp_path / "data") as service:
        flags = ("--service", service.grpc, "--metrics", metrics)
        with running(agent_command(tmp_path / "run", *flags)):

            def is_watched(job: str) -> bool:
                if job not in [known["job"] for known in service.get("/api/v1/jobs")["jobs"]]:
                    return False
                (node,) = service.get(f"/api/v1/jobs/{job}")["nodes"]
                return bool(node["connected"]) and node["clock_state"] == "synchronized"

            for job in ranks:
                until(lambda job=job: is_watched(job), f"{job} is not watched")  # type: ignore[misc]
            until(lambda: metric(metrics, "frd_agent_streams_total") >= len(JOBS), "no streams")
            assert metric(metrics, "frd_agent_connected") == 1
            pongs = metric(metrics, "frd_agent_clock_pongs_total")
            until(lambda: metric(metrics, "frd_agent_clock_pongs_total") > pongs + 8, "no pings")
            assert service.metric('frd_clock_refused_total{reason="backwards"}') == 0
            assert service.get("/api/v1/findings")["watching"]["agents"] == 1


async def test_a_replica_for_each_job(tmp_path: Path, ranks: dict[str, PlayedRank]) -> None:
    """Either replica redirects the job of the other: each gets its own job's rows, a request is
    answered on the stream where it came, and SIGTERM says goodbye to both."""
    first, second = Replica(), Replica()
    first.owners, second.owners = {"two": second.address}, {"one": first.address}
    owners = {"one": first, "two": second}
    async with replicas.serving(first, second):
        service = f"{first.address},{second.address}"
        async with agent(tmp_path / "run", service) as process:
            for job, owner in owners.items():
                await async_until(lambda owner=owner: owner.open, f"the stream of {job}")  # type: ignore[misc]
                await async_until(
                    lambda job=job, owner=owner: any(  # type: ignore[misc]
                        isinstance(event, EntryColumns) for event in owner.of_job(job)
                    ),
                    f"the rows of {job}",
                )
                await owner.send(Request(7, (0,), True, False, 8.0))
                await async_until(
                    lambda job=job, owner=owner: any(  # type: ignore[misc]
                        isinstance(event, ResponsePart) and event.request_id == 7
                        for event in owner.of_job(job)
                    ),
                    f"the answer of {job}",
                )
            process.terminate()
            assert await asyncio.to_thread(process.wait, 10) == 0
        for job, owner in owners.items():
            assert isinstance(owner.of_job(job)[-1], Goodbye)
            assert JOBS[1 - JOBS.index(job)] not in owner.welcomed
