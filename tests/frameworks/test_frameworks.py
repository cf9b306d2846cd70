"""Frameworks, most of which start ranks themselves: Accelerate, Lightning, the Trainer of
Transformers, DeepSpeed, Ignite, Ray Train."""

from __future__ import annotations

import secrets
import shlex
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.frameworks.hangs import BIN, JOBS, assert_found, launched, needs, watching
from tests.world.daemons import agent_command, exec_command, findings, free_port, rank_environment

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


# -- launchers -------------------------------------------------------------------------------------
# Launchers without a framework: multiprocessing, plain processes, Slurm's variables, a
# container's first process, an environment of uv.


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing(method: str, tmp_path: Path) -> None:
    """torch.multiprocessing starts three ranks; rank 1 gets stuck."""
    with launched(tmp_path, [PYTHON, JOBS / "spawned.py", tmp_path, 1, method]) as launch:
        assert_found(launch, f"torch.multiprocessing, {method}", world=3)


def test_plain_processes(tmp_path: Path) -> None:
    """A script of a site starts each rank with variables, each below its own exec."""
    port = free_port()
    with watching(tmp_path) as launch, ExitStack() as ranks:
        for rank in range(3):
            command = [PYTHON, JOBS / "train.py", tmp_path, 1]
            ranks.enter_context(launch.running(*command, env=rank_environment(rank, 3, port)))
        assert_found(launch, "processes with variables", world=3)


# -- Slurm -----------------------------------------------------------------------------------------


def test_variables_of_srun(tmp_path: Path) -> None:
    """Four tasks with the variables that srun sets for two nodes, all on this machine; rank 2, the
    first of the second node, gets stuck. The job has its name and number in Slurm."""
    number = free_port()
    with watching(tmp_path) as launch, ExitStack() as tasks:
        for task in range(4):
            env = {
                "SLURM_JOB_ID": str(number),
                "SLURM_JOB_NAME": "pretrain",
                "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
                "SLURM_NTASKS": "4",
                "SLURM_PROCID": str(task),
                "SLURM_NNODES": "2",
                "SLURM_NODEID": str(task // 2),
                "SLURM_LOCALID": str(task % 2),
            }
            command = [PYTHON, JOBS / "slurm.py", tmp_path, 2]
            tasks.enter_context(launch.running(*command, env=env))
        finding = assert_found(launch, "variables of srun", world=4, rank=2)
        assert finding["job"] == f"pretrain-{number}"


# -- containers ------------------------------------------------------------------------------------

NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc"]


def may_make_namespaces() -> bool:
    return (
        shutil.which("unshare") is not None
        and subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
    )


in_a_namespace = pytest.mark.skipif(
    not may_make_namespaces(), reason="unshare --pid: not permitted here: run as root"
)


@in_a_namespace
def test_the_first_process_of_a_container(tmp_path: Path) -> None:
    """The entrypoint starts an agent and becomes torchrun, which is PID 1; rank 1 gets stuck."""
    torchrun: list[object] = [BIN / "torchrun", "--standalone", "--nproc-per-node", "2"]
    torchrun += [JOBS / "train.py", tmp_path, 1]
    with watching(tmp_path, agent=False) as launch:
        entrypoint = tmp_path / "entrypoint"
        run_dir = launch.stage.run_dir
        agent = agent_command(run_dir, "--service", launch.grpc)
        command = exec_command(run_dir, *torchrun)
        entrypoint.write_text(f"#!/bin/sh\n{shlex.join(agent)} &\nexec {shlex.join(command)}\n")
        entrypoint.chmod(0o755)
        with launch.starting([*NAMESPACE, entrypoint]):
            assert_found(launch, "container, torchrun is PID 1", world=2)


@in_a_namespace
@pytest.mark.parametrize("place", ["on the host", "in another container"])
def test_an_agent_outside_of_the_container(place: str, tmp_path: Path) -> None:
    """Each rank is PID 1 of its container; rank 1 gets stuck. The agent shares the run directory:
    on the host it sees the processes of the ranks, in another container it sees none."""
    port = free_port()
    with watching(tmp_path, agent=False) as launch, ExitStack() as processes:
        inside = [] if place == "on the host" else NAMESPACE
        agent = [*inside, *agent_command(launch.stage.run_dir, "--service", launch.grpc)]
        processes.enter_context(launch.starting(agent))
        for rank in range(2):
            command = [*NAMESPACE, PYTHON, JOBS / "train.py", tmp_path, 1]
            env = rank_environment(rank, 2, port)
            processes.enter_context(launch.running(*command, env=env))
        assert_found(launch, f"container, the agent {place}", world=2)


# -- environments ----------------------------------------------------------------------------------


@needs("uv")
def test_an_environment_of_uv(tmp_path: Path) -> None:
    """`uv run` in an environment that uv has made and that has torch, but not frd."""
    uv, home = str(BIN / "uv"), tmp_path / "environment"
    made = [uv, "venv", "--offline", "--python", PYTHON, str(home)]
    subprocess.run(made, check=True, capture_output=True)
    (packages,) = home.glob("lib/python*/site-packages")
    # A line of a .pth file adds torch, without the .pth files next to it, which would bring frd.
    (packages / "torch.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    torchrun = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = [uv, "run", "--offline", "--no-project", "--python", home / "bin/python"]
    with launched(tmp_path, [*run, *torchrun, JOBS / "train.py", tmp_path, 1]) as launch:
        assert_found(launch, "uv run", world=2)
