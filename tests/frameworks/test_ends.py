"""Jobs of frameworks that end by an exception of a rank, or by Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from frd.errors import FrdError
from tests.frameworks.hangs import BIN, JOBS, Launch, needs, watching
from tests.world.daemons import findings, throughout

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
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
