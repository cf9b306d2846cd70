"""What a rank's program is doing right now, by the best means that still works on it.

torch's `dump_traceback` handler is exact but needs the rank's GIL, which a stuck rank may never let
go. py-spy reads the process's memory from outside and needs nothing of it, but may be absent or
forbidden. /proc is always there and shows no Python: the state of the process and where its threads
wait in the kernel. Each means that failed leaves a line at the top of the text, because why a stack
could not be had is evidence too.

One question at a time: the handler walks the list of threads while CPython adds the thread of a
second question to it, unready, and the rank dies of a segmentation fault (seen within seconds of
asking from three sides at once, never from one). Agents do not know of each other, so they take
turns by a lock on the rank's counters file.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from frd.errors import FrdError
from frd_agent.handlers import Handlers

MAX_TEXT = 256 * 1024
"""Characters of one stack."""
_MAX_THREADS = 64
_TURN_S = 0.02
"""How often to try whether another agent's question has been answered."""
_PATIENCE_S = 3_600.0
"""For a question that nobody waits for any more, see `StackReader`."""
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class StackText:
    """What was found, under a line for each means that failed."""

    source: str
    """``dump_traceback``, ``py-spy``, ``proc``, or ``none`` when the process is gone."""
    text: str


class _NoStack(FrdError):
    """One means did not work; the next one follows."""


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
            text = await _from_py_spy(self._pid, py_spy_timeout_s)
            return StackText("py-spy", _under(notes, text))
        except FrdError as error:
            notes.append(f"py-spy: {error}")
        try:
            return StackText("proc", _under(notes, _from_proc(_PROC / str(self._pid))))
        except FrdError as error:
            notes.append(f"proc: {error}")
        return StackText("none", _under(notes, ""))

    async def _from_handler(self, timeout_s: float) -> str:
        if self._handlers is None:
            raise _NoStack("the rank has no socket")
        if self._question is None or self._question.done():
            self._question = asyncio.create_task(self._ask(self._handlers))
            self._question.add_done_callback(_taken_note_of)
        question = self._question
        await asyncio.wait({question}, timeout=timeout_s)
        if not question.done():
            raise _NoStack(f"no answer within {timeout_s:g} s: the GIL may be held")
        if question.cancelled():
            raise _NoStack("given up")
        text = _decoded(question.result())[:MAX_TEXT]
        if "File " not in text:
            raise _NoStack("no Python frame in the answer")
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
        raise _NoStack(f"{path}: {error.strerror}") from error
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
    """An answer that came when nobody waited any more is no news, nor is a failure."""
    if not question.cancelled():
        question.exception()


def _under(notes: list[str], text: str) -> str:
    return "".join(f"# {' '.join(note.split())}\n" for note in notes) + text[:MAX_TEXT]


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


async def _from_py_spy(pid: int, timeout_s: float) -> str:
    command = _py_spy()
    try:
        process = await asyncio.create_subprocess_exec(
            *(command, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise _NoStack(f"{command}: {error.strerror}: reinstall py-spy") from error
    try:
        async with asyncio.timeout(timeout_s):
            out, said = await process.communicate()
    except TimeoutError as error:
        raise _NoStack(f"no answer within {timeout_s:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0 or b"Thread " not in out:
        lines = _decoded(said).strip().splitlines() or ["no thread in the answer"]
        raise _NoStack(f"exit code {process.returncode}: {lines[0][:200]}")
    return _decoded(out)


def _py_spy() -> str:
    """The command, on the path or installed beside the agent."""
    beside = Path(sys.executable).parent
    if command := shutil.which("py-spy") or shutil.which("py-spy", path=str(beside)):
        return command
    raise _NoStack("not installed: pip install py-spy")


def _from_proc(process: Path) -> str:
    """The kernel's view; an agent without privileges sees less of it."""
    if not process.exists():
        raise _NoStack(f"process {process.name} is gone")
    parts = [_part(process / name) for name in ("status", "wchan", "syscall", "stack")]
    try:
        threads = sorted((process / "task").iterdir(), key=lambda task: int(task.name))
    except OSError as error:
        threads = []
        parts.append(f"== {process / 'task'}: {error.strerror}\n")
    for thread in threads[:_MAX_THREADS]:
        comm, wchan, syscall = (_content(thread / name) for name in ("comm", "wchan", "syscall"))
        parts.append(f"== thread {thread.name} {comm}: wchan {wchan}, syscall {syscall}\n")
    if len(threads) > _MAX_THREADS:
        parts.append(f"== {len(threads) - _MAX_THREADS} more threads\n")
    return "".join(parts)


def _part(path: Path) -> str:
    return f"== {path}\n{_content(path)}\n"


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return _decoded(file.read(MAX_TEXT)).strip()
    except OSError as error:
        return f"({error.strerror})"
