"""Launchers without a framework: multiprocessing, plain processes, Slurm's variables, a container's
first process, an environment of uv."""

from __future__ import annotations

import shlex
import shutil
import site
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.frameworks.hangs import BIN, JOBS, assert_found, launched, needs, watching
from tests.world.daemons import agent_command, exec_command, free_port, rank_environment

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
PYTHON = sys.executable


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
