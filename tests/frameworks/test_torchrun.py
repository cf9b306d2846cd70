"""torchrun: on one node, with a restart, and with a world that grows and shrinks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from frd.errors import FrdError
from tests.frameworks.hangs import BIN, JOBS, Launch, assert_found, launched, needs, watching
from tests.world.daemons import agent_command, exec_command, findings, free_port, throughout

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
LAUNCHERS: dict[str, list[object]] = {
    "torchrun": [BIN / "torchrun"],
    "python -m torch.distributed.run": [sys.executable, "-m", "torch.distributed.run"],
}
JOB = "elastic"
NEW_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""With torch 2.13's shared store, a node that joins later waits for an address that is never
written."""


@pytest.mark.parametrize("name", LAUNCHERS)
def test_one_node(name: str, tmp_path: Path) -> None:
    """Three ranks on one node; rank 1 gets stuck."""
    options = ["--standalone", "--nproc-per-node", "3"]
    with launched(tmp_path, [*LAUNCHERS[name], *options, JOBS / "train.py", tmp_path, 1]) as launch:
        assert_found(launch, name, world=3)


# -- restarts and elastic worlds -------------------------------------------------------------------


@contextmanager
def node(
    launch: Launch, port: int, *, nodes: str = "1:2", rank: int = 1, run_dir: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """One node of two ranks in a job whose nodes meet at `port`; `rank` gets stuck."""
    options = ["--nnodes", nodes, "--nproc-per-node", "2", "--max-restarts", "3"]
    options += ["--rdzv-id", JOB, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}"]
    options += ["--rdzv-conf", "last_call_timeout=2", str(JOBS / "elastic.py")]
    torchrun = [BIN / "torchrun", *options, launch.folder, rank]
    command = exec_command(run_dir or launch.stage.run_dir, *torchrun)
    with launch.starting(command, NEW_STORE) as process:
        yield process


def trains(
    launch: Launch, *, attempt: int, world: int, job: str = JOB, but: Collection[int] = ()
) -> list[int]:
    """The pids of the ranks of this attempt, once all of them train and none is in `but`."""

    def pids() -> list[int] | None:
        with contextlib.suppress(FrdError):  # the job is not known yet
            view: dict[str, Any] = launch.client.get(f"/api/v1/jobs/{quote(job)}")
            live = [rank["pid"] for rank in view["ranks"] if rank["state"] == "live"]
            completed = max((group["completed"] for group in view["groups"]), default=0)
            is_whole = (view["attempt"], len(live)) == (attempt, world)
            if is_whole and completed > 20 and not set(live) & set(but):
                return live
        return None

    found: list[int] = launch.until(pids, f"attempt {attempt} with {world} ranks", 120.0)
    return found


def blamed(launch: Launch) -> list[tuple[int, str, list[int]]]:
    """Attempt, kind and suspects of all findings so far."""
    return [
        (one["attempt"], one["kind"], [suspect["rank"] for suspect in one["suspects"]])
        for one in findings(launch.client)
    ]


def test_a_restart(tmp_path: Path) -> None:
    """Rank 1 is killed, torchrun starts both ranks again, and rank 1 of the second attempt gets
    stuck: the lost rank and the stuck rank are named, each in its attempt."""
    with watching(tmp_path) as launch, node(launch, free_port()):
        first = trains(launch, attempt=0, world=2)
        os.kill(first[1], signal.SIGKILL)
        trains(launch, attempt=1, world=2)
        (tmp_path / "go").touch()
        finding = assert_found(launch, "torchrun, second attempt", world=2)
        assert finding["attempt"] == 1
        assert sorted(blamed(launch)) == [(0, "rank_lost", [1]), (1, "stall", [1])]


def test_nodes_that_count_differently(tmp_path: Path) -> None:
    """Two nodes, each with its agent. A rank of one node fails, and torchrun counts a restart on
    that node only: all ranks of the second world are still one world, in which rank 3, on the other
    node, gets stuck and is named."""
    port, second = free_port(), tmp_path / "run"
    with (
        watching(tmp_path) as launch,
        launch.starting(agent_command(second, "--service", launch.grpc)),
        node(launch, port, nodes="2", rank=3),
        node(launch, port, nodes="2", rank=3, run_dir=second),
    ):
        first = trains(launch, attempt=0, world=4)
        (tmp_path / "fail").touch()
        trains(launch, attempt=0, world=4, but=first)
        (tmp_path / "go").touch()
        assert_found(launch, "torchrun, two nodes, a restart", world=4, rank=3)
        assert sorted(blamed(launch)) == [(0, "rank_lost", [0]), (0, "stall", [3])]


def test_a_world_that_grows(tmp_path: Path) -> None:
    """A second node joins, and torchrun starts all ranks again without counting a restart: the new
    world is a job with another name, its rank 1 is named, and nothing else."""
    port = free_port()
    with watching(tmp_path) as launch, node(launch, port):
        trains(launch, attempt=0, world=2)
        with node(launch, port):
            trains(launch, attempt=0, world=4, job=f"{JOB} (world size 4)")
            (tmp_path / "go").touch()
            finding = assert_found(launch, "torchrun, a node has joined", world=4)
            assert finding["job"] == f"{JOB} (world size 4)"
            assert blamed(launch) == [(0, "stall", [1])]


def test_a_world_that_shrinks(tmp_path: Path) -> None:
    """A node that has joined dies with its ranks, and the first node, which has torchrun's store,
    goes on alone: rank 1 of the second world of two is named, and before that at most ranks that
    were killed."""
    port = free_port()
    with watching(tmp_path) as launch, node(launch, port):
        trains(launch, attempt=0, world=2)
        with node(launch, port) as second:
            trains(launch, attempt=0, world=4, job=f"{JOB} (world size 4)")
            for pid in (second.pid, *children(second.pid)):
                os.kill(pid, signal.SIGKILL)
            trains(launch, attempt=1, world=2)
            (tmp_path / "go").touch()
            finding = assert_found(launch, "torchrun, a node has died", world=2)
            assert finding["attempt"] == 1
            for attempt, kind, ranks in blamed(launch):
                assert (attempt, kind) == (1, "stall") or set(ranks) <= {2, 3}


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# -- jobs of frameworks that end by an exception of a rank, or by Ctrl-C ---------------------------


QUIET_S = 10.0
"""After the end: longer than a stall or a loss takes to become a finding."""


Command = Callable[[Path, int], list[object]]
"""Of the folder, and of the rank that raises an exception."""
NONE = 99


@dataclass(frozen=True)
class Job:
    package: str
    world: int
    command: Command


def _torchrun(script: str) -> Command:
    start: list[object] = [BIN / "torchrun", "--standalone", "--nproc-per-node", "2"]
    return lambda folder, rank: [*start, JOBS / script, folder, rank]


def _program(script: str, *options: object) -> Command:
    return lambda folder, rank: [sys.executable, JOBS / script, folder, rank, *options]


def _accelerate(folder: Path, rank: int) -> list[object]:
    options = ["--multi_gpu", "--num_processes", "3"]
    return [BIN / "accelerate", "launch", *options, JOBS / "accelerated.py", folder, rank]


def _deepspeed(folder: Path, rank: int) -> list[object]:
    command = [BIN / "deepspeed", "--num_accelerators", "2", JOBS / "deepspeeded.py"]
    return [*command, "--folder", folder, "--rank", rank]


FRAMEWORKS = {
    "torchrun": Job("torch", 2, _torchrun("train.py")),
    "accelerate": Job("accelerate", 3, _accelerate),
    "lightning ddp": Job("lightning", 2, _program("lit.py", "ddp")),
    "lightning ddp_spawn": Job("lightning", 2, _program("lit.py", "ddp_spawn")),
    "transformers": Job("transformers", 2, _torchrun("transformed.py")),
    "deepspeed": Job("deepspeed", 2, _deepspeed),
    "ignite": Job("ignite", 2, _program("ignited.py")),
    "multiprocessing": Job("torch", 3, _program("spawned.py", "spawn")),
    "ray": Job("ray", 3, _program("ray_trainer.py")),
}


def of_all(*, but: str = "") -> list[Any]:
    return [
        pytest.param(job, id=name, marks=needs(job.package))
        for name, job in FRAMEWORKS.items()
        if name != but
    ]


def live(launch: Launch) -> list[dict[str, Any]]:
    """Live ranks of all jobs that have completed something."""
    with contextlib.suppress(FrdError):
        found = []
        for job in launch.client.get("/api/v1/jobs")["jobs"]:
            view: dict[str, Any] = launch.client.get(f"/api/v1/jobs/{job['job']}")
            if any(group["completed"] > 5 for group in view["groups"]):
                found += [rank for rank in view["ranks"] if rank["state"] == "live"]
        return found
    return []


@pytest.mark.parametrize("job", of_all(but="ray"))
def test_an_exception(job: Job, tmp_path: Path) -> None:
    """Rank 1 raises an exception, whatever its launcher does to it and to the others: the finding
    names that rank, the exception and the line."""
    (tmp_path / "raises").touch()
    with watching(tmp_path) as launch, launch.running(*job.command(tmp_path, 1)):
        (finding,) = launch.until(lambda: findings(launch.client), "a finding")
        assert finding["kind"] == "rank_lost", finding
        assert [suspect["rank"] for suspect in finding["suspects"]] == [1], finding
        assert "ValueError: shard 40 is damaged" in finding["summary"], finding
        assert "load_shard" in finding["summary"], finding


@pytest.mark.parametrize("whole", [True, False], ids=["terminal", "launcher"])
@pytest.mark.parametrize("job", of_all())
def test_an_interrupt(job: Job, whole: bool, tmp_path: Path) -> None:
    """Ctrl-C, which a terminal sends to all processes of a job, ends a healthy job; SIGINT to its
    launcher alone ends it or, as that of torch.multiprocessing.spawn waits for its children, does
    not: there is no finding, also 10 s later."""
    with watching(tmp_path) as launch, launch.running(*job.command(tmp_path, NONE)) as process:
        launch.until(lambda: len(live(launch)) == job.world, "all ranks train", 120.0)
        (os.killpg if whole else os.kill)(process.pid, signal.SIGINT)
        if whole:
            launch.until(lambda: process.poll() is not None, "the launcher ends")
            launch.until(lambda: not live(launch), "all ranks are gone")

        def none() -> None:
            assert findings(launch.client) == [], launch.log()

        throughout(QUIET_S, none)
