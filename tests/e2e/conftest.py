"""Real processes that several end-to-end tests need."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.world.daemons import JOBS, first_line, running

HAS_TORCH = importlib.util.find_spec("torch") is not None


def shows_gloo() -> bool:
    """The worker server of this torch answers with what Gloo recorded, since 2.10. By its version:
    to import it would take each worker seconds."""
    release = importlib.metadata.version("torch").split(".")
    return [int(part) for part in release[:2]] >= [2, 10]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests with real ranks are skipped where torch is not installed, or shows too little."""
    if not HAS_TORCH and item.get_closest_marker("torch"):
        pytest.skip("torch is not installed")
    if item.get_closest_marker("recorder") and not shows_gloo():
        pytest.skip("this torch does not show what Gloo recorded: 2.10 and later do")


@dataclass(frozen=True)
class StandingRank:
    """A real rank that is stuck in `load_batch` and serves torch's worker socket."""

    process: subprocess.Popen[str]
    socket: Path


@pytest.fixture
def standing_rank(tmp_path: Path) -> Iterator[Callable[[str], StandingRank]]:
    """Starts ranks that are stuck in a ``sleep`` or in a C call that holds the ``gil``."""
    with ExitStack() as stack:

        def start(how: str) -> StandingRank:
            socket = tmp_path / f"{how}.sock"
            command = [sys.executable, str(JOBS / "standing_rank.py"), str(socket), how]
            process = stack.enter_context(running(command))
            assert first_line(process) == "standing\n"
            return StandingRank(process, socket)

        yield start
