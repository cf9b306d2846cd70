"""Stacks of real ranks, by every means in turn."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frd.flight.stacks.places import activity_of
from frd_agent.ranks.stacks.reader import StackReader, StackText
from frd_agent.recorder.worker_server import Handlers
from tests.world.daemons import freeze
from tests.world.run_dir import process_of

pytestmark = pytest.mark.torch

PY_SPY = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
needs_py_spy = pytest.mark.skipif(PY_SPY is None, reason="py-spy is not installed")


def read(reader: StackReader, **timeouts: float) -> StackText:
    return asyncio.run(reader.read(**timeouts))


def test_a_rank_that_gives_the_gil(standing_rank: Callable[[str], Any]) -> None:
    """A rank in time.sleep reports its own stack, and the user's line is the innermost frame."""
    rank = standing_rank("sleep")
    stack = read(StackReader(process_of(rank.process.pid), Handlers(rank.socket)))
    assert stack.source == "dump_traceback"
    frames = activity_of(stack.text).stack
    assert frames[0].startswith("standing_rank.py:")
    assert frames[0].endswith(" in load_batch")
    assert [frame.partition(" in ")[2] for frame in frames][:3] == [
        "load_batch",
        "main",
        "<module>",
    ]


@needs_py_spy
@pytest.mark.parametrize("how", ["gil", "stopped"])
def test_a_rank_that_cannot_answer(standing_rank: Callable[[str], Any], how: str) -> None:
    """A held GIL and SIGSTOP are read from outside, with a note on what was tried before."""
    rank = standing_rank("gil" if how == "gil" else "sleep")
    if how == "stopped":
        freeze(rank.process)
    stack = read(
        StackReader(process_of(rank.process.pid), Handlers(rank.socket)), handler_timeout_s=0.3
    )
    if stack.source == "proc" and "ermission" in stack.text:
        pytest.skip("py-spy may not read other processes here")
    assert stack.source == "py-spy"
    assert stack.text.startswith("# dump_traceback: no answer within 0.3 s")
    assert activity_of(stack.text).stack[0].endswith(" in load_batch")


def test_without_socket_and_py_spy(
    standing_rank: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With nothing but /proc there is no Python frame, but the state of process and threads. A
    process that has died has no stack, and the text says so."""
    rank = standing_rank("sleep")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    process = process_of(rank.process.pid)
    stack = read(StackReader(process, None))
    assert stack.source == "proc"
    first, second, *_ = stack.text.splitlines()
    assert first == "# dump_traceback: the rank has no socket"
    assert second == "# py-spy: not installed: pip install py-spy"
    assert "State:\t" in stack.text  # asleep, or just about to be
    assert "pt_workerserver" in stack.text
    assert activity_of(stack.text).stack == ()
    rank.process.kill()
    rank.process.wait()
    stack = read(StackReader(process, Handlers(rank.socket)))
    assert stack.source == "none"
    assert f"# proc: process {rank.process.pid} is gone\n" in stack.text


def test_a_py_spy_that_hangs(
    standing_rank: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A py-spy that does not end is ended, and the next means follows."""
    rank = standing_rank("sleep")
    (tmp_path / "py-spy").write_text("#!/bin/sh\nexec sleep 300\n")
    (tmp_path / "py-spy").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    stack = read(StackReader(process_of(rank.process.pid), None), py_spy_timeout_s=0.3)
    assert stack.source == "proc"
    assert "# py-spy: no answer within 0.3 s\n" in stack.text


async def test_asking_again_and_again_leaves_the_rank_answering(
    standing_rank: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A hundred stacks of a rank that holds its GIL do not use up its server's threads."""
    rank = standing_rank("gil")
    handlers = Handlers(rank.socket)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    reader = StackReader(process_of(rank.process.pid), handlers)
    for _ in range(100):
        assert (await reader.read(handler_timeout_s=0.01)).source == "proc"
    assert await handlers.ask("ping", timeout_s=5) == b"pong"
