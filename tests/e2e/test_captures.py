"""A dump while the program captures a CUDA graph: the thread that dumps is exempt from captures."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from frd_agent.recorder.worker_server import First, Handlers
from frd_agent.tap import IGNORE_CAPTURES
from tests.world.daemons import JOBS, first_line, running

SOURCE = Path(__file__).parents[1] / "cuda" / "driver.c"
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    options = ["-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,-soname,{library.name}"]
    subprocess.run([compiler, *options, "-o", str(library), str(SOURCE)], check=True)
    return str(library)


@contextmanager
def rank(folder: Path, driver: str, how: str) -> Iterator[tuple[subprocess.Popen[str], Handlers]]:
    socket = folder / "rank.sock"
    command = [sys.executable, str(JOBS / "capturing.py"), str(socket), driver, how]
    with running(command, stdin=subprocess.PIPE) as process:
        assert first_line(process) == "ready\n"
        yield process, Handlers(socket)


async def test_the_thread_that_dumps_ignores_captures(tmp_path: Path, driver: str) -> None:
    """The tap's handler runs on the thread of the server that runs the next handler, each time;
    the rank then ends well, although torch frees the handler after the interpreter's end."""
    with rank(tmp_path, driver, "sleep") as (process, handlers):
        assert IGNORE_CAPTURES in await handlers.names()
        for _ in range(20):
            first = First(IGNORE_CAPTURES)
            exempt, answered = (await handlers.ask("threads", first=first)).split()
            assert first.answered
            assert exempt == answered
        process.communicate("end\n", timeout=60)
        assert process.returncode == 0


async def test_a_held_gil_delays_a_dump_by_half_a_second(tmp_path: Path, driver: str) -> None:
    """While C code holds the GIL, the handler does not answer, and the dump comes without it."""
    with rank(tmp_path, driver, "gil") as (_, handlers):
        first = First(IGNORE_CAPTURES)
        begun = time.monotonic()
        assert await handlers.ask("fr_trace_json", first=first)
        assert not first.answered
        assert 0.4 < time.monotonic() - begun < 3


async def test_a_rank_without_the_handler(tmp_path: Path, driver: str) -> None:
    """An older tap has no such handler: the dump comes without it."""
    with rank(tmp_path, driver, "sleep") as (_, handlers):
        first = First("no_such_handler")
        assert await handlers.ask("fr_trace_json", first=first)
