"""A dump while the program captures a CUDA graph: the thread that dumps is exempt from captures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from frd_agent.recorder import worker_server
from frd_agent.recorder.worker_server import Busy, First, Handlers
from frd_agent.tap import IGNORE_CAPTURES
from tests.world.c_library import shared_library
from tests.world.daemons import JOBS, first_line, running

SOURCE = Path(__file__).parents[1] / "cuda" / "driver.c"
pytestmark = [pytest.mark.torch, pytest.mark.recorder]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    return shared_library(SOURCE, library, f"-Wl,-soname,{library.name}")


@contextmanager
def rank(folder: Path, driver: str, how: str) -> Iterator[tuple[subprocess.Popen[str], Handlers]]:
    socket = folder / "rank.sock"
    command = [sys.executable, str(JOBS / "capturing.py"), str(socket), driver, how]
    with running(command, stdin=subprocess.PIPE) as process:
        assert first_line(process) == "ready\n"
        yield process, Handlers(socket)


async def test_the_thread_that_dumps_ignores_captures(
    tmp_path: Path, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tap's handler runs on the thread of the server that runs the next handler, each time;
    the rank then ends well, although torch frees the handler after the interpreter's end."""
    monkeypatch.setattr(worker_server, "_FIRST_S", 20.0)  # this machine may stall
    with rank(tmp_path, driver, "sleep") as (process, handlers):
        assert IGNORE_CAPTURES in await handlers.names()
        for _ in range(20):
            first = First(IGNORE_CAPTURES)
            exempt, answered = (await handlers.ask("threads", first=first)).split()
            assert first.answered
            assert exempt == answered
        process.communicate("end\n", timeout=60)
        assert process.returncode == 0


async def test_a_held_gil_prevents_a_dump(tmp_path: Path, driver: str) -> None:
    """While C code holds the GIL, the handler does not answer, and there is no dump, unless it is
    wanted nevertheless."""
    with rank(tmp_path, driver, "gil") as (_, handlers):
        with pytest.raises(Busy):
            await handlers.ask("fr_trace_json", first=First(IGNORE_CAPTURES))
        first = First(IGNORE_CAPTURES, required=False)
        assert await handlers.ask("fr_trace_json", first=first)
        assert not first.answered


async def test_a_rank_without_the_handler(
    tmp_path: Path, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says that it has no such handler: the dump comes."""
    monkeypatch.setattr(worker_server, "_FIRST_S", 20.0)
    with rank(tmp_path, driver, "sleep") as (_, handlers):
        assert await handlers.ask("fr_trace_json", first=First("no_such_handler"))
