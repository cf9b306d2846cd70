"""Records stack texts of real ranks in known places: ``python -m tests.stacks [PLACE..]``.

They go to `tests/golden/stacks`, one text for each place and means, as the agent sends them,
without paths of this machine. Record them again for a torch with other frames.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from frd.engine.evidence.answers import Stack
from frd.flight.stacks.places import activity_of
from frd.flight.stacks.text import processes
from frd.flight.stacks.waits import Call
from frd_agent.ranks.stacks.children import child_stacks
from frd_agent.ranks.stacks.reader import StackReader, from_py_spy
from frd_agent.recorder.worker_server import Handlers
from tests.world.daemons import until
from tests.world.run_dir import process_of

FOLDER = Path(__file__).parent / "golden" / "stacks"
JOB = Path(__file__).parent / "e2e" / "jobs" / "places.py"
PAIRS = ("barrier", "all_reduce", "wait", "new_group", "recv", "monitored_barrier")
"""Places that need another rank, which does not come."""
PLACES = (
    *("save", "save_sharded", "load", "loader", "pinned", "in_process", "shutdown", "compile"),
    *("collect", "backward", "subprocess", "debugger", "spin", *PAIRS),
)


def call_of(text: str) -> Call | None:
    """The call that the text of a rank's stack shows; None if its main thread is elsewhere."""
    place = Stack.of(text).place
    return place if place is not None and place.op else None


def elsewhere_of(text: str) -> Call | None:
    """Where it shows the main thread, if that is in no call."""
    place = Stack.of(text).place
    return place if place is not None and not place.op else None


def has_stack(text: str) -> bool:
    return Stack.of(text).place is not None


def _record(place: str, folder: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, str(JOB), folder / f"{rank}.sock", place, str(rank), folder / "store"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for rank in range(1 + (place in PAIRS))
    ]
    try:
        assert ranks[0].stdout is not None
        assert ranks[0].stdout.readline() == b"standing\n"
        texts = until(lambda: _settled(ranks[0].pid, folder / "0.sock"))
        for means, text in zip(("handler", "py-spy"), texts, strict=True):
            (FOLDER / f"{place}.{means}.txt").write_text(_anonymous(text, folder))
            print(place, means, activity_of(text).doing)
    finally:
        for process in ranks:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _settled(pid: int, socket: Path) -> tuple[str, str] | None:
    """The text by either means, once two looks in a row show the same."""
    before, after = (asyncio.run(_look(pid, socket)) for _ in range(2))
    return after if _frames(before[0]) == _frames(after[0]) else None


def _frames(text: str) -> list[object]:
    return [(one.main, one.threads) for one in processes(text)]


async def _look(pid: int, socket: Path) -> tuple[str, str]:
    below = await child_stacks(process_of(pid), 30, ())
    handler = await StackReader(process_of(pid), Handlers(socket)).read()
    assert handler.source == "dump_traceback"
    return handler.text + below, await from_py_spy(pid, 30) + below


def _anonymous(text: str, folder: Path) -> str:
    for real, public in (
        (str(folder), "/tmp/job"),
        (str(JOB.parent), "/home/u/job"),
        (sysconfig.get_path("purelib"), "/opt/venv/lib/python3.11/site-packages"),
        (sysconfig.get_path("stdlib"), "/usr/lib/python3.11"),
        (sys.executable, "/opt/venv/bin/python"),
        (str(Path(sys.executable).resolve()), "/usr/bin/python3.11"),
    ):
        text = text.replace(real, public)
    return text


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or PLACES:
        with tempfile.TemporaryDirectory() as temporary:
            _record(name, Path(temporary))
