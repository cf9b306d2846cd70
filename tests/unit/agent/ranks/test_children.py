"""Child processes of a rank and the processor time of processes, on real ones."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from frd.flight.stacks.places import activity_of
from frd.flight.stacks.text import ADVICE, RESTED, processes
from frd_agent.ranks.stacks.children import MAX_CHILDREN, Meter, child_stacks, usage_text
from frd_agent.ranks.stacks.reader import NOT_INSTALLED, NoStack, StackReader, advice
from tests.unit.agent.inspection.test_workers import child_of
from tests.world.daemons import until
from tests.world.run_dir import process_of
from tests.world.suspects import Suspect, suspect

FAMILY = """
import multiprocessing, os, subprocess, sys, time
def wait_in_child():
    time.sleep(300)
shell = subprocess.Popen(["sleep", "300"])
child = multiprocessing.get_context("fork").Process(target=wait_in_child)
child.start()
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print("ready", child.pid, other.pid, flush=True)
time.sleep(300)
"""


def read(pid: int, ranks: Collection[int] = ()) -> str:
    return asyncio.run(child_stacks(process_of(pid), 20.0, ranks))


def pids(text: str) -> set[int]:
    return {one.pid for one in processes(text) if one.pid}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement takes less than half a second, in which the kernel counts 40 ticks."""
    monkeypatch.setattr("frd_agent.ranks.stacks.children.LOOK_AGAIN_S", 0.4)


@pytest.fixture
def parent() -> Iterator[Suspect]:
    """A rank with two Python children and a shell command."""
    with suspect(FAMILY) as process:
        yield process


def test_python_children_and_no_others(parent: Suspect) -> None:
    """A forked child and another Python are read, ``sleep`` is not, nor one that is a rank."""
    below = {int(pid) for pid in child_of(parent.pid).split()}
    python = {pid for pid in below if "python" in os.readlink(f"/proc/{pid}/exe")}
    assert len(below) == 3

    def all_of_python() -> bool:  # an exec may be under way
        return pids(read(parent.pid)) == python and len(python) == 2

    until(all_of_python)
    rank = min(python)
    assert pids(read(parent.pid, {rank})) == python - {rank}


def test_a_forked_child_has_its_own_frames_only(parent: Suspect) -> None:
    """py-spy shows the frames of the parent below those of the child; they are cut off."""
    text = read(parent.pid)
    if "py-spy: " in text:
        pytest.skip("py-spy is not installed, or may not read other processes here")
    [forked] = [one for one in activity_of(text).workers if "wait_in_child" in str(one.stack)]
    assert forked.stack == ("<string>:4 in wait_in_child",)
    assert forked.usage == "idle: used no processor time"


def test_children_without_py_spy(
    parent: Suspect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel's view of each; of the rank itself, what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    stack = asyncio.run(StackReader(process_of(parent.pid), None).read())
    activity = activity_of(stack.text + read(parent.pid))
    assert activity.note == "pip install py-spy in the agent's environment to see its Python stack"
    assert f"{ADVICE}pip install py-spy" in stack.text
    assert all(one.stack[0].startswith("in the kernel: ") for one in activity.workers)
    assert len(activity.workers) == 2


def test_advice() -> None:
    """What helps, where something helps."""
    assert advice(NoStack(NOT_INSTALLED)).startswith("pip install py-spy")
    assert "CAP_SYS_PTRACE" in advice(NoStack("exit code 1: Error: Permission Denied: Try ..."))
    assert advice(NoStack("no answer within 5 s")) == ""


def test_a_rank_of_very_many_children() -> None:
    """No more than the limit are read, and the text says how many were not."""
    program = f"""
        import os, time
        for _ in range({MAX_CHILDREN + 4}):
            if not os.fork():
                time.sleep(300)
                os._exit(0)
        print("ready", flush=True)
        time.sleep(300)
    """
    with suspect(program) as crowded:
        text = read(crowded.pid)
    assert len(pids(text)) == MAX_CHILDREN
    assert text.endswith("# 4 more child processes were not read\n")


def rests_for(pid: int, seconds: float) -> bool:
    """Its main thread does not run for so long."""
    schedstat = Path(f"/proc/{pid}/schedstat")
    before = schedstat.read_bytes()
    time.sleep(seconds)
    return schedstat.read_bytes() == before


def test_a_process_that_computes_and_one_that_waits() -> None:
    """A process is busy if it uses a processor, and idle if it sleeps or is stopped. That the main
    thread of the idle one has not run is said, too."""

    async def look(*processes: Suspect) -> list[str]:
        meters = [Meter(process.pid) for process in processes]
        for meter in meters:
            await meter.settled()
        return [meter.lines() for meter in meters]

    computes, sleeps = "while True: pass", "import time; time.sleep(300)"
    ready = "print('ready', flush=True)\n"
    with suspect(ready + computes) as busy, suspect(ready + sleeps) as idle:
        of_busy, of_idle = asyncio.run(look(busy, idle))
        assert of_busy.startswith("# usage: busy: uses ")
        assert RESTED not in of_busy
        assert of_idle.startswith("# usage: idle: used no processor time\n")
        os.kill(busy.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, busy.pid, os.WSTOPPED | os.WNOWAIT)
        # It is reported as stopped a moment before it leaves its processor.
        until(lambda: rests_for(busy.pid, 0.2))
        for of_either in asyncio.run(look(busy, idle)):
            rested = rf"# usage: idle: used no processor time\n{RESTED}\d+ ns\n"
            assert re.fullmatch(rested, of_either)


def test_a_process_that_is_gone_has_no_usage() -> None:
    """It has no usage line."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    meter = Meter(process.pid)
    asyncio.run(meter.settled())
    assert meter.lines() == ""


def test_usage_in_words() -> None:
    """A rank that computes on a crowded machine is busy as well."""
    assert usage_text(1.04) == "busy: uses 1.0 cores"
    assert usage_text(0.3, queued=0.6) == "busy: uses 0.3 cores and waits for more"
    assert usage_text(0.3) == "uses 0.30 cores"
    assert usage_text(0.01, queued=0.1) == "idle: used no processor time"
