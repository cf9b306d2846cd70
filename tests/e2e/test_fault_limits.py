"""Daemons that run out of disk, file descriptors or memory, and what frd reports meanwhile.

Limits are set on live processes, as an operator or a neighbour may: a disk is filled, a limit is
lowered. Open streams go on, requests beyond a limit are refused and shown, and all is well again
once there is room. Ranks are scripted; see `tests.e2e.test_faults` for what else can happen.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import grpc.aio
import pytest

from frd.model import GroupInfo, Signature
from frd.store.journal import segments
from frd.wire.messages import Declare, GroupDecl, SignatureDecl
from tests.world.cluster import CULPRIT, HELD, LATE_S, Cluster, Daemon, blamed, scene, until
from tests.world.small_disk import fill, small_disk
from tests.world.streams import Service, peer

pytestmark = pytest.mark.timeout(180)

# -- disk ----------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "2m") as folder:
        yield folder


def test_a_full_disk_silences_no_alert(disk: Path, tmp_path: Path) -> None:
    """The disk is full when a rank hangs: the finding and its stack are shown nevertheless, what
    could not be stored is counted, and with space again the finding and the journal are written."""
    with scene(tmp_path, data_dir=disk / "data") as run:
        cluster, training = run.cluster, run.training
        filler = fill(disk)
        training.hold(HELD)
        until(lambda: run.named() == CULPRIT, "no finding")
        until(lambda: cluster.findings("open")[0]["suspects"][0]["stack"], "no stack")
        assert cluster.metric("frd_suspect") == 1
        for store in ("findings", "journal", "dumps"):
            errors = f'frd_store_errors_total{{store="{store}"}}'
            until(lambda series=errors: cluster.metric(series) > 0, f"{store}: no error is counted")  # type: ignore[misc]
        (found,) = cluster.findings("open")

        filler.unlink()
        until(lambda: stored(cluster) == {found["id"]: "open"}, "the finding is not stored")
        journal = cluster.data_dir / "journal"
        written = len(segments(journal))
        until(lambda: len(segments(journal)) > written, "the journal does not continue")
        training.release(HELD)
        until(lambda: stored(cluster) == {found["id"]: "closed"}, "its end is not stored")


def stored(cluster: Cluster) -> dict[str, str]:
    """State by id, as on the disk."""
    with closing(sqlite3.connect(cluster.data_dir / "findings.sqlite3")) as db:
        return dict(db.execute("SELECT id, state FROM findings"))


# -- file descriptors ----------------------------------------------------------------------------


@contextmanager
def no_more_descriptors(daemon: Daemon) -> Iterator[None]:
    """Open descriptors stay open; the process can open no other."""
    limits = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    yield
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)


def test_a_service_without_descriptors(tmp_path: Path) -> None:
    """The service can open no more descriptors: open streams go on and a hang is found, a new agent
    and a new reader wait; they are served once it can again."""
    with scene(tmp_path) as run:
        cluster, training = run.cluster, run.training
        host, _, port = cluster.http.rpartition(":")
        with closing(http.client.HTTPConnection(host, int(port), timeout=20)) as open_line:
            open_line.request("GET", "/-/healthy")
            assert open_line.getresponse().read()
            with no_more_descriptors(cluster.service):
                late = cluster.start_agent()
                training.hold(HELD)
                until(lambda: blamed(asked(open_line), "high") == CULPRIT, "no finding")
                with pytest.raises(OSError, match="timed out"):
                    cluster.get("/api/v1/findings", timeout_s=1)
                log = late.log
                until(
                    lambda: "not reachable" in log.read_text(), "the new agent is not kept waiting"
                )
        until(lambda: cluster.agent_metric(2, "frd_agent_connected") == 1, "it is not let in")
        run.over(overrun=None)
        assert len(cluster.findings()) == 1


def asked(line: http.client.HTTPConnection) -> list[dict[str, object]]:
    """The open findings, over an open connection."""
    line.request("GET", "/api/v1/findings?state=open")
    found: list[dict[str, object]] = json.load(line.getresponse())["findings"]
    return found


def test_an_agent_without_descriptors(tmp_path: Path) -> None:
    """An agent can open no more descriptors, and one of its ranks hangs: no rank is reported as
    exited, and once the agent can open files again the hang is reported correctly."""
    with scene(tmp_path) as run:
        cluster, training = run.cluster, run.training
        with no_more_descriptors(cluster.agents[1]):
            until(lambda: late_ranks(cluster) == {2, 3}, "its ranks are not seen as late")
            assert cluster.findings() == []
            training.hold(HELD)
            until(lambda: cluster.findings("open"), "no finding")
            assert not run.named()
        until(lambda: run.named() == CULPRIT, "not named")
        assert cluster.metric("frd_findings_total") == 1
        run.over(overrun=None)


def late_ranks(cluster: Cluster) -> set[int]:
    ranks = cluster.get("/api/v1/jobs/training")["ranks"]
    return {rank["rank"] for rank in ranks if (rank["age_s"] or 0) > LATE_S}


# -- memory --------------------------------------------------------------------------------------

GREEDY: Final = 16
_GREED_S: Final = 15.0
ROOM_BYTES: Final = 32 * 1024 * 1024
"""For streams that declare several hundred megabytes."""


async def greed(cluster: Cluster, number: int) -> None:
    """A stream that declares as much as it can. Without memory gRPC may leave it unanswered."""
    assert cluster.service.process is not None
    service = Service(cluster.service.process, cluster.grpc, cluster.http)
    async with peer(service, number % 2, f"greedy-{number}", f"greedy-{number}") as one:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
            await asyncio.wait_for(one.introduce(), _GREED_S)
            for first in range(1, 8001, 200):
                declared = Declare(
                    groups=tuple(
                        GroupDecl(n, 0, GroupInfo(f"{number}-{n}", "x" * 500, (0, 1, 2, 3)))
                        for n in range(first, first + 200)
                    ),
                    signatures=tuple(
                        SignatureDecl(n, Signature("gloo", "all_reduce", ((n, number) * 30,)))
                        for n in range(first, first + 200)
                    ),
                )
                await asyncio.wait_for(one.send(declared), _GREED_S)


@pytest.mark.long
def test_a_service_without_memory(tmp_path: Path) -> None:
    """Greedy streams exceed a limit on the service's memory: it refuses and counts them, or dies,
    and the job is reported as before once there is memory again."""
    with scene(tmp_path) as run:
        cluster, training = run.cluster, run.training
        pid = cluster.service.pid
        limits = resource.prlimit(pid, resource.RLIMIT_AS)
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        allowed = pages * resource.getpagesize() + ROOM_BYTES
        resource.prlimit(pid, resource.RLIMIT_AS, (allowed, limits[1]))

        async def all_of_them() -> None:
            await asyncio.gather(*(greed(cluster, number) for number in range(GREEDY)))

        asyncio.run(all_of_them())
        until(lambda: suffered(cluster), "it had memory enough")
        if cluster.service.is_alive:
            resource.prlimit(pid, resource.RLIMIT_AS, limits)
        else:
            cluster.service.kill()
            cluster.start_service()
        training.hold(HELD)
        until(lambda: run.named() == CULPRIT, "no finding")
        assert {finding["job"] for finding in cluster.findings()} == {training.job}
        run.over(overrun=None)


def suffered(cluster: Cluster) -> bool:
    """It died, refused streams as its own fault, or logged errors."""
    if not cluster.service.is_alive or "MemoryError" in cluster.service.log.read_text():
        return True
    return cluster.metric('frd_ingest_refused_total{reason="fault"}') > 0
