"""Signals reach the program only: no thread of the tap or of its worker server takes one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.world.daemons import first_line, running
from tests.world.sacred import Outcome, command, environment, outcomes

pytestmark = [pytest.mark.torch, pytest.mark.timeout(90)]
FAULTS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"}
NEVER = {"SIGKILL", "SIGSTOP"}
OURS = {"frd-tap", "pt_workerserver"}


@contextmanager
def waiting(run_dir: Path | None, numbers: Sequence[int]) -> Iterator[subprocess.Popen[str]]:
    env = environment(run_dir)
    options = {"env": env, "without": ("FRD_",), "stderr": subprocess.PIPE}
    with running(command("wait_for", *map(int, numbers)), **options) as process:
        assert first_line(process).split()[1:] == [str(int(number)) for number in sorted(numbers)]
        yield process


def masks(pid: int) -> dict[str, list[set[str]]]:
    """The signals that threads block, by the threads' names. Not of the main thread, which says its
    mask itself: while it waits for a signal, the kernel shows another."""
    found: dict[str, list[set[str]]] = {}
    for task in set(Path(f"/proc/{pid}/task").iterdir()) - {Path(f"/proc/{pid}/task/{pid}")}:
        status = (task / "status").read_text()
        (blocked,) = re.findall(r"SigBlk:\s+(\w+)", status)
        names = {s.name for s in signal.Signals if int(blocked, 16) >> (s - 1) & 1}
        found.setdefault((task / "comm").read_text().strip(), []).append(names)
    return found


@pytest.mark.parametrize(
    "numbers",
    [
        [signal.SIGUSR1],
        [signal.SIGTERM],
        [signal.SIGALRM, signal.SIGINT],
        [signal.SIGCHLD, signal.SIGHUP, signal.SIGRTMIN + 3],
    ],
    ids=str,
)
def test_a_program_that_waits_for_a_signal_gets_it(run_dir: Path, numbers: list[int]) -> None:
    """It blocks signals before its first process group, as for Slurm's --signal or for a checkpoint
    that SIGTERM must not break, trains, and takes them by sigwait."""
    ended = []
    for taps in (None, run_dir):
        with waiting(taps, numbers) as process:
            got = ""
            for number in numbers:
                os.kill(process.pid, number)
                got += first_line(process)
            stdout, stderr = process.communicate(timeout=60)
            done = subprocess.CompletedProcess([], process.returncode, got + stdout, stderr)
            ended.append(Outcome.of(done))
    without, with_tap = ended
    assert without.code == 0, without
    assert with_tap == without


def test_the_masks_of_all_threads(run_dir: Path) -> None:
    """Those of the tap and of its server block all signals but those of faults; the program's own
    threads have the masks that they have without the tap."""
    usr1 = [signal.SIGUSR1]
    with waiting(None, usr1) as process:
        without = masks(process.pid)
    with waiting(run_dir, usr1) as process:
        with_tap = masks(process.pid)
    everything = {s.name for s in signal.Signals} - FAULTS - NEVER
    for name in OURS:
        assert [blocked ^ everything for blocked in with_tap[name] if blocked != everything] == []
    own = {name: blocked for name, blocked in with_tap.items() if name not in OURS}
    assert own == without


def test_a_program_that_limits_its_files(run_dir: Path) -> None:
    """A write beyond the limit raises SIGXFSZ, which ends a process with the default action: not
    for the files of the tap, which says on stderr that it cannot publish."""
    without, with_tap = outcomes(run_dir, "small_files")
    assert (without.code, without.stdout) == (0, "trained\n"), without
    assert (with_tap.code, with_tap.stdout) == (0, "trained\n"), with_tap
