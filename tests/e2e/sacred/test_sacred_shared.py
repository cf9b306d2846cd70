"""The tap shares nothing with the program: no lock, no setting, no list of threads."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import frd_agent
from tests.world.daemons import run_program
from tests.world.interpreters import interpreter
from tests.world.sacred import Outcome, outcomes

SITE = Path(frd_agent.__file__).parent / "_site"
pytestmark = pytest.mark.timeout(120)


def same(run_dir: Path, *how: object) -> str:
    """What the program prints."""
    without, with_tap = outcomes(run_dir, *how)
    assert without.code == 0, without
    assert with_tap == without
    return without.stdout


@pytest.mark.torch
def test_a_program_chooses_its_temporary_folder_late(run_dir: Path) -> None:
    """TMPDIR, set while it trains, has its effect."""
    assert same(run_dir, "temporary", "/var/tmp") == "/var/tmp\n"


@pytest.mark.torch
def test_a_program_that_joins_all_threads_ends(run_dir: Path) -> None:
    """It sees no thread but its own, and traces none but its own."""
    assert same(run_dir, "count_threads") == "1 []\n"


@pytest.mark.torch
@pytest.mark.parametrize("children", [100, pytest.param(1_000, marks=pytest.mark.soak)])
def test_children_of_many_threads(run_dir: Path, children: int) -> None:
    """Short-lived children of eight threads find no lock held."""
    assert same(run_dir, "fork", 8, children) == "[0]\n"


FORKS = """
import multiprocessing, os, subprocess, sys, threading
import torch.distributed

def child():
    print("child", flush=True)

def fork():
    if (pid := os.fork()) == 0:
        os._exit(0)
    print(os.waitpid(pid, 0)[1], flush=True)

fork()
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
print(process.exitcode, flush=True)
print(subprocess.run(["true"], preexec_fn=os.getpid).returncode, flush=True)
threads = [threading.Thread(target=fork) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(threading.active_count(), flush=True)
"""


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13"])
def test_forks_where_warnings_are_errors(run_dir: Path, fake_torch: Path, version: str) -> None:
    """Python 3.12 and later warn of a fork in a process with threads; with -W error, what forks
    does as without the tap, and nothing is printed."""
    ended = []
    for taps in (None, run_dir):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("FRD_", "PYTHON"))}
        path = [str(fake_torch)]
        if taps is not None:
            env["FRD_RUN_DIR"], path = str(taps), [str(SITE), *path]
        env["PYTHONPATH"] = os.pathsep.join(path)
        python = [interpreter(version), "-W", "error", "-c", FORKS]
        ended.append(Outcome.of(run_program(python, env=env)))
    without, with_tap = ended
    assert without.code == 0, without
    assert with_tap == without


def test_a_start_imports_one_file(run_dir: Path) -> None:
    """Of a Python where frd is installed and that does not import torch: nothing of frd without a
    run directory, and else only the file that waits for torch, which imports nothing more."""
    code = "import sys; print(*sorted(sys.modules)); print(*sys.path)"
    found = []
    for more in ({}, {"FRD_RUN_DIR": str(run_dir)}):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("FRD_", "PYTHON"))}
        done = run_program([sys.executable, "-c", code], env=env | more, check=True)
        found.append([set(line.split()) for line in done.stdout.splitlines()])
    (without, path), (with_run_dir, same_path) = found
    assert with_run_dir - without == {"frd_tap_start"}
    assert not {name for name in without if name.startswith("frd")}
    assert same_path == path
