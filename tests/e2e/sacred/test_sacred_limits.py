"""A program that leaves itself little of a limit trains on: torch's worker server, which would end
it, is not started, and the reason is published."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from frd_agent import tap
from tests.world.daemons import first_line, running, until
from tests.world.sacred import Outcome, command, environment, outcomes

pytestmark = [pytest.mark.torch, pytest.mark.timeout(90)]
CGROUPS = Path("/sys/fs/cgroup/pids")
SERVER = 1 + tap.pool_size()
POINTS = [
    *[("threads", distance) for distance in (0, 1, 7, SERVER + 63)],
    *[("cgroup", 8), ("quarter", -2)],
    *[("address_space", mib) for mib in (12, 70)],
    ("data", 40),
    ("files", 2),
]
GRID = [
    *[(kind, distance) for kind in ("threads", "cgroup") for distance in range(21)],
    *[(kind, mib) for kind in ("address_space", "data") for mib in range(4, 204, 4)],
    *[(kind, 8_200) for kind in ("address_space", "data")],
    *[("files", distance) for distance in range(2, 20, 3)],
]
ENOUGH = [
    *[("threads", SERVER + 64), ("address_space", 8_500)],
    *[
        pytest.param(kind, distance, marks=pytest.mark.soak)
        for kind, distance in (
            *[("cgroup", SERVER + 64), ("quarter", 2)],
            *[("data", 8_500), ("files", 80)],
        )
    ],
]
"""64 threads or descriptors, a quarter of the limit, or 8 GiB remain."""


@contextlib.contextmanager
def cgroup(kind: str) -> Iterator[list[str]]:
    """Arguments for the program: a new cgroup, if it needs one."""
    if kind != "cgroup":
        yield []
        return
    folder = CGROUPS / f"frd-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup of processes can be made: {error}")
    try:
        yield [str(folder)]
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text(), "the end of its processes")
        folder.rmdir()


def socket_error(run_dir: Path) -> str | None:
    (identity,) = [json.loads(path.read_text()) for path in run_dir.glob("*.json")]
    assert identity["exit"]["kind"] == "clean"
    said: str | None = identity["socket_error"]
    return said


def train_near(run_dir: Path, kind: str, distance: int) -> str | None:
    """Asserts that the tap makes no difference; returns why there was no worker server."""
    with cgroup(kind) as more:
        without, with_tap = outcomes(run_dir, "limit", kind, distance, *more)
    assert (without.code, without.stdout) == (0, "trained\n"), without
    assert with_tap == without
    return socket_error(run_dir)


@pytest.mark.parametrize(("kind", "distance"), POINTS)
def test_little_is_left(run_dir: Path, kind: str, distance: int) -> None:
    """The server would need nine threads and 72 MB of address space, and the program the rest."""
    why = train_near(run_dir, kind, distance)
    assert why is not None
    assert why.startswith("torch's worker server is not started: ")
    assert "in use, and" in why


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "distance"), GRID)
def test_every_distance(run_dir: Path, kind: str, distance: int) -> None:
    """From none to almost enough."""
    assert train_near(run_dir, kind, distance) is not None


@pytest.mark.parametrize(("kind", "distance"), ENOUGH)
def test_enough_is_left(run_dir: Path, kind: str, distance: int) -> None:
    """The server is started, and the program trains on."""
    assert train_near(run_dir, kind, distance) == "the program has ended"


# -- signals reach the program only: no thread of the tap or of its worker server takes one --------


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
