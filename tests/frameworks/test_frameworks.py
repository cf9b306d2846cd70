"""Frameworks: Accelerate, Lightning, Trainer, Ray Train, DeepSpeed, Ignite. Each is hung, ends
by an exception, and is interrupted."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.frameworks.hangs import BIN, JOBS, assert_found, launched, needs, watching
from tests.world.daemons import findings, free_port

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
PYTHON = sys.executable


@needs("accelerate")
def test_accelerate_launch(tmp_path: Path) -> None:
    """`accelerate launch` starts three ranks, here of a script that uses no GPU."""
    command = [BIN / "accelerate", "launch", "--multi_gpu", "--num_processes", "3"]
    with launched(tmp_path, [*command, JOBS / "accelerated.py", tmp_path, 1]) as launch:
        assert_found(launch, "accelerate launch", world=3)


@needs("lightning")
@pytest.mark.parametrize("strategy", ["ddp", "ddp_fork", "ddp_spawn"])
def test_lightning(strategy: str, tmp_path: Path) -> None:
    """Lightning's Trainer is rank 0, and starts or forks rank 1, whose data set gets stuck."""
    with launched(tmp_path, [PYTHON, JOBS / "lit.py", tmp_path, 1, strategy]) as launch:
        assert_found(launch, f"Lightning, {strategy}", world=2)


@needs("deepspeed")
def test_deepspeed_launcher(tmp_path: Path) -> None:
    """DeepSpeed's launcher starts two ranks of its engine on a machine without a GPU."""
    options = ["--num_accelerators", "2", "--master_port", free_port(), JOBS / "deepspeeded.py"]
    command = [BIN / "deepspeed", *options, "--folder", tmp_path, "--rank", 1]
    with launched(tmp_path, command) as launch:
        assert_found(launch, "deepspeed", world=2)


# -- Ray Train: its workers are children of Ray's daemon, and train in a thread --------------------


@needs("ray")
def test_ray_of_the_program(tmp_path: Path) -> None:
    """`ray.init` in the program starts Ray, which inherits the environment of exec."""
    with launched(tmp_path, [PYTHON, JOBS / "ray_trainer.py", tmp_path, 1]) as launch:
        assert_found(launch, "Ray Train, ray.init below exec", world=3)


TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
"""Ray's daemons answer only programs that have it."""


@contextmanager
def node_of_ray() -> Iterator[tuple[list[object], str]]:
    """The command that runs a Ray of one node, and its address. Its folder is short: Ray makes
    sockets there."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        command = [BIN / "ray", "start", "--head", "--block", "--num-cpus", "4", "--port", port]
        command += ["--include-dashboard", "false", "--temp-dir", folder]
        yield command, f"127.0.0.1:{port}"


@needs("ray")
def test_ray_below_exec(tmp_path: Path) -> None:
    """`ray start` runs below exec on the node; the program that trains runs without."""
    with (
        node_of_ray() as (ray, address),
        launched(tmp_path, ray, TOKEN) as launch,
        launch.starting([PYTHON, JOBS / "ray_trainer.py", tmp_path, 1, address], TOKEN),
    ):
        assert_found(launch, "Ray Train, ray start below exec", world=3)


@needs("ray")
def test_ray_that_runs_already(tmp_path: Path) -> None:
    """Ray runs without frd; the program names the run directory in its runtime environment, which
    is enough where frd is installed."""
    with (
        node_of_ray() as (ray, address),
        watching(tmp_path) as launch,
        launch.starting(ray, TOKEN),
    ):
        program = [PYTHON, JOBS / "ray_trainer.py", tmp_path, 1, address, launch.stage.run_dir]
        with launch.starting(program, TOKEN):
            assert_found(launch, "Ray Train, runtime_env", world=3)


# -- ends ----------------------------------------------------------------------------------------


def commands(folder: Path) -> dict[str, list[object]]:
    """By framework: a job of at least two ranks, of which rank 1 stops at step 40."""
    torchrun = [BIN / "torchrun", "--nproc-per-node", "2", "--master-port", free_port()]
    deepspeed = [BIN / "deepspeed", "--num_accelerators", "2", "--master_port", free_port()]
    return {
        "accelerate": [
            *(BIN / "accelerate", "launch", "--multi_gpu", "--num_processes", "2"),
            *("--main_process_port", free_port(), JOBS / "accelerated.py", folder),
        ],
        "lightning": [PYTHON, JOBS / "lit.py", folder],
        "transformers": [*torchrun, JOBS / "hf_trainer.py", folder],
        "ignite": [PYTHON, JOBS / "ignited.py", folder],
        "ray": [PYTHON, JOBS / "ray_trainer.py", folder],
        "deepspeed": [*deepspeed, JOBS / "deepspeeded.py", "--folder", folder, "--rank"],
    }


def command(framework: str, folder: Path, rank: int) -> list[object]:
    strategy = ["ddp"] if framework == "lightning" else []
    return [*commands(folder)[framework], rank, *strategy]


FRAMEWORKS = [
    pytest.param(name, marks=needs(name))
    for name in ("accelerate", "lightning", "transformers", "ignite", "ray", "deepspeed")
]


@pytest.mark.parametrize("framework", ["transformers", "ignite"])
def test_a_hang(framework: str, tmp_path: Path) -> None:
    """Rank 1 of two gets stuck."""
    pytest.importorskip(framework)
    with launched(tmp_path, command(framework, tmp_path, 1)) as launch:
        assert_found(launch, framework, world=2)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_exception(framework: str, tmp_path: Path) -> None:
    """Rank 1 raises an exception, which some frameworks catch before they end all ranks: the
    finding names that rank alone, the exception and the line."""
    (tmp_path / "raises").touch()
    with launched(tmp_path, command(framework, tmp_path, 1)) as launch:
        (finding,) = launch.until(lambda: findings(launch.client), "a finding")
        (suspect,) = finding["suspects"]
        assert (finding["kind"], suspect["rank"]) == ("rank_lost", 1), finding
        assert "ValueError: shard 40 is damaged" in finding["summary"], finding
        assert "load_shard" in finding["summary"], finding


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_interrupt(framework: str, tmp_path: Path) -> None:
    """Ctrl-C in the terminal of a healthy job: no finding, also after all losses are judged."""
    with watching(tmp_path) as launch:
        with launch.running(*command(framework, tmp_path, 99)) as job:

            def trains() -> bool:
                jobs = launch.client.get("/api/v1/jobs")["jobs"]
                return any(one["ranks"].get("live", 0) > 1 and one["pace"] for one in jobs)

            launch.until(trains, "ranks that train", 120.0)
            os.killpg(job.pid, signal.SIGINT)
            job.wait(60)

        def is_judged() -> bool:
            jobs = launch.client.get("/api/v1/jobs")["jobs"]
            return all(one["ended"] and one["last_heard_s"] > 5.0 for one in jobs)

        launch.until(is_judged, "the end", 60.0)
        assert findings(launch.client) == []
        assert {one["state"] for one in launch.client.get("/api/v1/jobs")["jobs"]} == {"ended"}
