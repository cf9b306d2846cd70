"""Daemons that run out of disk, file descriptors or memory, and what frd says meanwhile.

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
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import grpc.aio
import pytest

from frd.model import GroupInfo, Signature
from frd.store.journal import segments
from frd.wire.messages import Declare, GroupDecl, SignatureDecl
from tests.e2e.faults.job import Training
from tests.e2e.faults.world import Daemon, World, blamed, until
from tests.world.daemons import run_program
from tests.world.streams import Service, peer

pytestmark = pytest.mark.timeout(180)

STALL_S: Final = 2.0
LATE_S: Final = 5.0
HELD: Final = 2
CULPRIT: Final = (HELD, "cpu_stuck")


@contextmanager
def scene(folder: Path, data_dir: Path | None = None) -> Iterator[tuple[World, Training]]:
    """A service, and a job of four ranks on two nodes whose agents have reported it."""
    with ExitStack() as stack:
        world = stack.enter_context(
            World(folder, data_dir=data_dir, stall_after_s=STALL_S, telemetry_late_s=LATE_S)
        )
        training = stack.enter_context(Training([world.run_dir(0), world.run_dir(1)]))
        for _ in range(2):
            world.start_agent()
        world.begin(training)
        until(lambda: world.steps(training) > 0, "the job is not reported")
        yield world, training


def accounted(world: World, training: Training) -> None:
    """The rank that was held comes: what is open closes, and every row is accounted for."""
    training.release(HELD)
    until(lambda: not world.findings("open"), lambda: str(world.findings("open")))
    training.rest()
    world.settled(training)


# -- disk ----------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "frd-test", str(folder)]
    done = run_program(mount)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_silences_no_alert(small_disk: Path, tmp_path: Path) -> None:
    """The disk is full when a rank hangs: the finding and its stack are shown nevertheless, what
    could not be stored is counted, and with space again the finding and the journal are written."""
    with scene(tmp_path, small_disk / "data") as (world, training):
        filler = fill(small_disk)
        training.hold(HELD)
        until(lambda: CULPRIT in blamed(world.findings("open"), "high"), "no finding")
        until(lambda: world.findings("open")[0]["suspects"][0]["stack"], "no stack")
        assert world.metric("frd_suspect") == 1
        for store in ("findings", "journal", "dumps"):
            errors = f'frd_store_errors_total{{store="{store}"}}'
            until(lambda series=errors: world.metric(series) > 0, f"{store}: no error is counted")  # type: ignore[misc]
        (found,) = world.findings("open")

        filler.unlink()
        until(lambda: stored(world) == {found["id"]: "open"}, "the finding is not stored")
        journal = world.data_dir / "journal"
        written = len(segments(journal))
        until(lambda: len(segments(journal)) > written, "the journal does not continue")
        training.release(HELD)
        until(lambda: stored(world) == {found["id"]: "closed"}, "its end is not stored")


def fill(disk: Path) -> Path:
    """The file that takes all that is left."""
    path = disk / "filler"
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return path


def stored(world: World) -> dict[str, str]:
    """State by id, as on the disk."""
    with closing(sqlite3.connect(world.data_dir / "findings.sqlite3")) as db:
        return dict(db.execute("SELECT id, state FROM findings"))


# -- file descriptors ----------------------------------------------------------------------------


@contextmanager
def no_more_descriptors(daemon: Daemon) -> Iterator[None]:
    """Those that it has stay open; it can open no other."""
    limits = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    yield
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)


def test_a_service_without_descriptors(tmp_path: Path) -> None:
    """The service may open nothing more: streams that stand go on and a hang is found, a new agent
    and a new reader wait; they are served once it may again."""
    with scene(tmp_path) as (world, training):
        host, _, port = world.http.rpartition(":")
        with closing(http.client.HTTPConnection(host, int(port), timeout=20)) as open_line:
            open_line.request("GET", "/-/healthy")
            assert open_line.getresponse().read()
            with no_more_descriptors(world.service):
                late = world.start_agent()
                training.hold(HELD)
                until(lambda: CULPRIT in blamed(asked(open_line), "high"), "no finding")
                with pytest.raises(OSError, match="timed out"):
                    world.get("/api/v1/findings", timeout_s=1)
                log = late.log
                until(lambda: "no welcome" in log.read_text(), "the new agent is not kept waiting")
        until(lambda: world.agent_metric(2, "frd_agent_connected") == 1, "it is not let in")
        accounted(world, training)
        assert len(world.findings()) == 1


def asked(line: http.client.HTTPConnection) -> list[dict[str, object]]:
    """The open findings, over an open connection."""
    line.request("GET", "/api/v1/findings?state=open")
    found: list[dict[str, object]] = json.load(line.getresponse())["findings"]
    return found


def test_an_agent_without_descriptors(tmp_path: Path) -> None:
    """An agent may open nothing more while its ranks live, and one of them hangs: none of them is
    taken for dead, and once it may open files again the hang is reported correctly."""
    with scene(tmp_path) as (world, training):
        with no_more_descriptors(world.agents[1]):
            until(lambda: late_ranks(world) == {2, 3}, "its ranks are not seen as late")
            assert world.findings() == []
            training.hold(HELD)
            until(lambda: world.findings("open"), "no finding")
            assert not blamed(world.findings(), "high")
        until(lambda: CULPRIT in blamed(world.findings("open"), "high"), "not named")
        assert world.metric("frd_findings_total") == 1
        accounted(world, training)


def late_ranks(world: World) -> set[int]:
    ranks = world.get("/api/v1/jobs/training")["ranks"]
    return {rank["rank"] for rank in ranks if (rank["age_s"] or 0) > LATE_S}


# -- memory --------------------------------------------------------------------------------------

GREEDY: Final = 16
ROOM_BYTES: Final = 32 * 1024 * 1024
"""For what they want several hundred megabytes."""


async def greed(world: World, number: int) -> None:
    """A stream that declares as much as it is let to."""
    assert world.service.process is not None
    service = Service(world.service.process, world.grpc, world.http)
    async with peer(service, number % 2, f"greedy-{number}", f"greedy-{number}") as one:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await one.introduce()
            for first in range(1, 8001, 200):
                await one.send(
                    Declare(
                        groups=tuple(
                            GroupDecl(n, 0, GroupInfo(f"{number}-{n}", "x" * 500, (0, 1, 2, 3)))
                            for n in range(first, first + 200)
                        ),
                        signatures=tuple(
                            SignatureDecl(n, Signature("gloo", "all_reduce", ((n, number) * 30,)))
                            for n in range(first, first + 200)
                        ),
                    )
                )


def test_a_service_without_memory(tmp_path: Path) -> None:
    """Greedy streams meet a limit on the service's memory: it refuses them or dies, not in silence,
    and the job is reported as before once there is memory again."""
    with scene(tmp_path) as (world, training):
        pid = world.service.pid
        limits = resource.prlimit(pid, resource.RLIMIT_AS)
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        allowed = pages * resource.getpagesize() + ROOM_BYTES
        resource.prlimit(pid, resource.RLIMIT_AS, (allowed, limits[1]))

        async def all_of_them() -> None:
            await asyncio.gather(*(greed(world, number) for number in range(GREEDY)))

        asyncio.run(all_of_them())
        until(lambda: suffered(world), "it had memory enough")
        if world.service.is_alive:
            resource.prlimit(pid, resource.RLIMIT_AS, limits)
        else:
            world.service.kill()
            world.start_service()
        training.hold(HELD)
        until(lambda: CULPRIT in blamed(world.findings("open"), "high"), "no finding")
        assert {finding["job"] for finding in world.findings()} == {training.job}
        accounted(world, training)


def suffered(world: World) -> bool:
    """It died, or went on and said so: streams refused as its own fault, or errors in its log."""
    if not world.service.is_alive or "MemoryError" in world.service.log.read_text():
        return True
    return world.metric('frd_ingest_refused_total{reason="fault"}') > 0
