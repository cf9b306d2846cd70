"""Frameworks, most of which start ranks themselves: Accelerate, Lightning, the Trainer of
Transformers, DeepSpeed, Ignite, Ray Train."""

from __future__ import annotations

import secrets
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


@needs("transformers")
def test_transformers(tmp_path: Path) -> None:
    """torchrun starts two ranks of the Trainer of Transformers."""
    command = [BIN / "torchrun", "--standalone", "--nproc-per-node", "2"]
    with launched(tmp_path, [*command, JOBS / "transformed.py", tmp_path, 1]) as launch:
        assert_found(launch, "Trainer of Transformers", world=2)


@needs("ignite")
def test_ignite(tmp_path: Path) -> None:
    """`ignite.distributed.Parallel` spawns two ranks; the engine of rank 1 gets stuck."""
    with launched(tmp_path, [PYTHON, JOBS / "ignited.py", tmp_path, 1]) as launch:
        assert_found(launch, "Ignite", world=2)


# -- Ray Train: its workers are children of Ray's daemon, and train in a thread --------------------


@needs("ray")
def test_ray_of_the_program(tmp_path: Path) -> None:
    """`ray.init` in the program starts Ray, which inherits the environment of exec."""
    with launched(tmp_path, [PYTHON, JOBS / "ray_trainer.py", tmp_path, 1]) as launch:
        assert_found(launch, "Ray Train, ray.init below exec", world=3)


@needs("ray")
def test_an_exception_in_ray(tmp_path: Path) -> None:
    """The train function of rank 1 raises an exception, which Ray keeps to itself before it ends
    all workers: the finding names that rank and the line."""
    (tmp_path / "raises").touch()
    with launched(tmp_path, [PYTHON, JOBS / "ray_trainer.py", tmp_path, 1]) as launch:
        (finding,) = launch.until(lambda: findings(launch.client), "a finding")
        (suspect,) = finding["suspects"]
        assert (finding["kind"], suspect["rank"]) == ("rank_lost", 1), finding
        assert "ValueError: shard 40 is damaged" in finding["summary"], finding
        assert "load_shard" in finding["summary"], finding


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
