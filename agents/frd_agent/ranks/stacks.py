"""Stacks of a rank's program, by the best means that still works.

torch's `dump_traceback` handler is exact but needs the rank's GIL, which a stuck rank may never let
go. What can be read from outside (`frd_agent.ranks.outside_stacks`) needs nothing of the rank. Each
means that failed leaves a line at the top of the text, because why a stack could not be had is
evidence too.

One question at a time: the handler walks the list of threads while CPython adds the thread of a
second question to it, unready, and the rank dies of a segmentation fault (seen within seconds of
three concurrent requests, never with one). Agents do not know of each other, so they take
turns by a lock on the rank's counters file.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from frd.errors import FrdError
from frd.flight.stacks.text import ADVICE
from frd_agent.ranks.outside_stacks import (
    MAX_TEXT,
    NoStack,
    advice,
    decoded,
    from_proc,
    from_py_spy,
)
from frd_agent.recorder.worker_server import Handlers

_TURN_S = 0.02
"""How often to try whether another agent's question has been answered."""
_PATIENCE_S = 3_600.0
"""For a request without a waiting caller, see `StackReader`."""
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class StackText:
    """What was found, under a line for each means that failed."""

    source: str
    """``dump_traceback``, ``py-spy``, ``proc``, or ``none`` when the process is gone."""
    text: str


class StackReader:
    """Reads the stack of one rank process, time and again. Keep one per process.

    A question that waits for the GIL holds one of about 32 threads of torch's worker server until
    the GIL comes free, and when all are held the rank answers nothing at all. So one question is
    left waiting, and later calls wait for its answer: it will show the rank as of then, not as of
    the question.
    """

    def __init__(self, pid: int, handlers: Handlers | None, turn: Path | None = None) -> None:
        """`handlers` is None where the rank has no socket; `turn` is the file that all who ask
        this rank lock while they do."""
        self._pid = pid
        self._handlers = handlers
        self._turn = turn
        self._question: asyncio.Task[bytes] | None = None

    def close(self) -> None:
        """Gives up the question that still waits, if any."""
        if self._question is not None:
            self._question.cancel()

    async def read(
        self, *, handler_timeout_s: float = 2.0, py_spy_timeout_s: float = 5.0
    ) -> StackText:
        """The stack as of now, within about the sum of the timeouts; raises nothing."""
        notes: list[str] = []
        try:
            return StackText("dump_traceback", await self._from_handler(handler_timeout_s))
        except FrdError as error:
            notes.append(f"dump_traceback: {error}")
        try:
            text = await from_py_spy(self._pid, py_spy_timeout_s)
            return StackText("py-spy", _under(notes, text))
        except NoStack as error:
            notes.append(f"py-spy: {error}")
            if what_to_do := advice(error):
                notes.append(f"{ADVICE.removeprefix('# ')}{what_to_do}")
        try:
            return StackText("proc", _under(notes, from_proc(_PROC / str(self._pid))))
        except FrdError as error:
            notes.append(f"proc: {error}")
        return StackText("none", _under(notes, ""))

    async def _from_handler(self, timeout_s: float) -> str:
        if self._handlers is None:
            raise NoStack("the rank has no socket")
        if self._question is None or self._question.done():
            self._question = asyncio.create_task(self._ask(self._handlers))
            self._question.add_done_callback(_taken_note_of)
        question = self._question
        await asyncio.wait({question}, timeout=timeout_s)
        if not question.done():
            raise NoStack(f"no answer within {timeout_s:g} s: the GIL may be held")
        if question.cancelled():
            raise NoStack("given up")
        text = decoded(question.result())[:MAX_TEXT]
        if "File " not in text:
            raise NoStack("no Python frame in the answer")
        return text

    async def _ask(self, handlers: Handlers) -> bytes:
        async with _turn_at(self._turn):
            return await handlers.ask("dump_traceback", timeout_s=_PATIENCE_S)


@asynccontextmanager
async def _turn_at(path: Path | None) -> AsyncIterator[None]:
    """Holds the lock on `path`; a rank without such a file is asked without."""
    try:
        fd = os.open(path or "", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        raise NoStack(f"{path}: {error.strerror}") from error
    try:
        while not _locked(fd):
            await asyncio.sleep(_TURN_S)
        yield
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _taken_note_of(question: asyncio.Task[bytes]) -> None:
    """A late answer or failure without a waiting caller is ignored."""
    if not question.cancelled():
        question.exception()


def _under(notes: list[str], text: str) -> str:
    return "".join(f"# {' '.join(note.split())}\n" for note in notes) + text[:MAX_TEXT]
