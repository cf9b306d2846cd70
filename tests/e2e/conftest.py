"""Real processes that several end-to-end tests need."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None
JOBS = Path(__file__).parent / "jobs"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests with real ranks are skipped where torch is not installed; collecting never imports it,
    which would take each worker seconds."""
    if not HAS_TORCH and item.get_closest_marker("torch"):
        pytest.skip("torch is not installed")


@dataclass(frozen=True)
class StandingRank:
    """A real rank that is stuck in `load_batch` and serves torch's worker socket."""

    process: subprocess.Popen[str]
    socket: Path

    def stop(self) -> None:
        """Returns once the process has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)


@pytest.fixture
def standing_rank(tmp_path: Path) -> Iterator[Callable[[str], StandingRank]]:
    """Starts ranks that are stuck in a ``sleep`` or in a C call that holds the ``gil``."""
    started: list[subprocess.Popen[str]] = []

    def start(how: str) -> StandingRank:
        socket = tmp_path / f"{len(started)}.sock"
        process = subprocess.Popen(
            [sys.executable, str(JOBS / "standing_rank.py"), str(socket), how],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "standing\n"
        return StandingRank(process, socket)

    yield start
    for process in started:
        process.kill()
        process.communicate()
