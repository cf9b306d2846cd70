"""Real processes that several end-to-end tests stand on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

JOBS = Path(__file__).parent / "jobs"


@dataclass(frozen=True)
class StandingRank:
    """A real rank that stands in `load_batch` and serves torch's worker socket."""

    process: subprocess.Popen[str]
    socket: Path

    def stop(self) -> None:
        """Returns once the process has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)


@pytest.fixture
def standing_rank(tmp_path: Path) -> Iterator[Callable[[str], StandingRank]]:
    """Starts ranks that stand in a ``sleep`` or in a C call that holds the ``gil``."""
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
