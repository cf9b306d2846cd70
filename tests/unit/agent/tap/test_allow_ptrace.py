"""`frd-agent exec --allow-ptrace`: each process of the job lets the agent read it, for itself.

No kernel with Yama is here: the C library's `prctl` is replaced by one that notes its calls.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.world.c_library import shared_library
from tests.world.daemons import exec_command, run_program

SOURCE = Path(__file__).parents[3] / "yama" / "prctl.c"
ANY = -1
JOB = """
import multiprocessing, os, subprocess, sys, time
import torch.distributed

def say(name):
    print(name, os.getpid(), flush=True)

say("program")
if (pid := os.fork()) == 0:
    say("fork")
    os._exit(0)
os.waitpid(pid, 0)
child = multiprocessing.get_context("fork").Process(target=say, args=("multiprocessing",))
child.start()
child.join()
for name, module in (("ranks", "torch.distributed"), ("other", "json")):
    code = f"import os, {module}; print('{name}', os.getpid(), flush=True)"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return shared_library(SOURCE, tmp_path_factory.mktemp("yama") / "prctl.so")


def calls(
    folder: Path, library: str, *options: str, **env: str
) -> tuple[dict[str, int], list[str]]:
    """The job's processes by name, and the lines of its calls."""
    command = exec_command(folder / "run", sys.executable, "-c", JOB)
    command[command.index("exec") + 1 : command.index("exec") + 1] = options
    python_path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    given = {"LD_PRELOAD": library, "PTRACERS": str(folder / "calls"), "PYTHONPATH": python_path}
    done = run_program(command, env=os.environ | given | env)
    warnings = [line for line in done.stderr.splitlines() if "no agent watches" not in line]
    assert (done.returncode, warnings) == (0, [])
    processes = {name: int(pid) for name, pid in re.findall(r"^(\w+) (\d+)$", done.stdout, re.M)}
    assert len(processes) == 5
    noted = folder / "calls"
    return processes, noted.read_text().splitlines() if noted.exists() else []


def test_each_process_of_the_job_asks_for_itself(fake_torch: Path, library: str) -> None:
    """The program, its forked children and a program that it starts, once each, for any reader; a
    Python that never imports torch.distributed does not. That the kernel refuses is no word."""
    processes, noted = calls(fake_torch, library, "--allow-ptrace")
    other = processes.pop("other")
    assert noted == [f"{pid} {ANY}" for pid in processes.values()]
    assert not [line for line in noted if line.startswith(f"{other} ")]


@pytest.mark.parametrize(
    ("env", "asked"),
    [({"FRD_ALLOW_PTRACE": "1"}, 4), ({"FRD_ALLOW_PTRACE": "0"}, 0), ({}, 0)],
    ids=["set in a pod", "another value", "by default"],
)
def test_the_variable_of_a_pod(
    fake_torch: Path, library: str, env: dict[str, str], asked: int
) -> None:
    """Where no exec is typed, FRD_ALLOW_PTRACE=1 is set; otherwise no process is opened."""
    assert len(calls(fake_torch, library, **env)[1]) == asked
