"""Stacks of a rank's program, by the best method that still works.

torch's `dump_traceback` handler is exact but needs the rank's GIL, which a stuck rank may never
release. Reading from outside needs nothing from the rank. py-spy reads the memory of the process
without stopping it (``--nonblocking``); it may be missing, or forbidden to the agent. /proc always
works but shows no Python: only the state of the process and where its threads wait in the kernel.

One request at a time: the handler walks the list of threads while CPython adds the unready thread
of a second request to it, and the rank dies of a segmentation fault (seen within seconds of three
concurrent requests, never with one). Agents do not know of each other, so they take turns by a lock
on the rank's counters file.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frd.errors import FrdError
from frd.flight.stacks.text import ADVICE
from frd_agent.inspection.reading.rights import yama_advice
from frd_agent.proc import path_of
from frd_agent.ranks.process import HIDDEN
from frd_agent.ranks.rank_process import RankProcess
from frd_agent.recorder.worker_server import Handlers
from frd_agent.untrusted_files import try_lock

_TURN_S = 0.02
"""How often to try whether another agent's request has been answered."""
_PATIENCE_S = 3_600.0
"""For a request without a waiting caller, see `StackReader`."""
MAX_TEXT = 256 * 1024
"""Characters of one stack."""
NOT_INSTALLED: Final = "not installed: pip install py-spy"
_ADVICE: Final = ADVICE.removeprefix("# ")
_MAX_THREADS = 64
_TRIES = 4
_TRY_AGAIN_S = 0.05
_END_S = 0.5


@dataclass(frozen=True, slots=True)
class StackText:
    """The stack, under a line for each method that failed: why it failed is evidence, too."""

    source: str
    """``dump_traceback``, ``py-spy``, ``proc``, or ``none`` when the process is gone."""
    text: str


class NoStack(FrdError):
    """One method failed; the caller tries the next method."""


class _Moved(NoStack):
    """The running process changed its frames while py-spy read them."""


async def from_outside(
    process: RankProcess, timeout_s: float, *notes: str, child: int | None = None
) -> StackText:
    """The stack of a rank or of its process `child` by the best method that still works; raises
    nothing. No text of a rank in another pid namespace: its number here is another process's.

    `timeout_s` is for py-spy; /proc always answers immediately. `notes`: other methods that failed.
    The rank's `may_read` is asked before anything is read, and again afterwards.
    """
    failed, pid, may_read = list(notes), child or process.pid, process.may_read
    if pid is None:
        return _noted("none", [*failed, _ADVICE + HIDDEN], "")
    stack = await _read(pid, timeout_s, failed) if may_read(pid) else None
    if stack is None or not may_read(pid):
        why = f"process {pid} is gone, or another user's than the rank's identity"
        return _noted("none", [*notes, why], "")
    return stack


async def _read(pid: int, timeout_s: float, failed: list[str]) -> StackText:
    try:
        return _noted("py-spy", failed, await from_py_spy(pid, timeout_s))
    except NoStack as error:
        failed.append(f"py-spy: {error}")
        if what_to_do := advice(error):
            failed.append(_ADVICE + what_to_do)
    try:
        return _noted("proc", failed, _from_proc(Path(path_of(str(pid)))))
    except NoStack as error:
        failed.append(f"proc: {error}")
    return _noted("none", failed, "")


def _noted(source: str, failed: list[str], text: str) -> StackText:
    return StackText(source, "".join(f"# {' '.join(note.split())}\n" for note in failed) + text)


async def from_py_spy(pid: int, timeout_s: float) -> str:
    """
    Raises:
        NoStack: py-spy is absent, is not allowed to read the process, or took too long.
    """
    command = py_spy()
    if timeout_s <= 0:
        raise NoStack("no time left")
    try:
        async with asyncio.timeout(timeout_s):
            for _ in range(_TRIES - 1):
                try:
                    return await _dump(command, pid)
                except _Moved:
                    await asyncio.sleep(_TRY_AGAIN_S)
            return await _dump(command, pid)
    except TimeoutError as error:
        raise NoStack(f"no answer within {timeout_s:g} s") from error


async def _dump(command: str, pid: int) -> str:
    try:
        status, out, errors = await output_of(
            *(command, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid))
        )
    except OSError as error:
        raise NoStack(f"{command}: {error.strerror}: reinstall py-spy") from error
    if status == 0 and b"Thread " in out:
        return decoded(out)[:MAX_TEXT]
    lines = decoded(errors).strip().splitlines() or ["no thread in the answer"]
    kind = _Moved if b"Failed to get stack traces" in errors else NoStack
    raise kind(f"exit code {status}: {lines[0][:200]}")


async def output_of(
    *command: str, env: Mapping[str, str] | None = None
) -> tuple[int | None, bytes, bytes]:
    """Exit status, stdout and stderr. The process is killed if this is cancelled.

    Raises:
        OSError: it cannot be started.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=env
    )
    try:
        out, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            with suppress(TimeoutError):  # if it hangs in the kernel, it stays for as long as that
                await asyncio.wait_for(process.wait(), _END_S)
    return process.returncode, out, errors


def advice(error: NoStack) -> str:
    """Advice that lets the next stack be read; empty if there is none."""
    if NOT_INSTALLED in str(error):
        return "pip install py-spy in the agent's environment to see its Python stack"
    if "ermission" in str(error):
        return yama_advice() or (
            "let py-spy read it (same user as the rank, or CAP_SYS_PTRACE) to see its stack"
        )
    return ""


def py_spy() -> str:
    """The command, on the path or in the agent's environment."""
    own_bin = Path(sys.executable).parent
    if command := shutil.which("py-spy") or shutil.which("py-spy", path=str(own_bin)):
        return command
    raise NoStack(NOT_INSTALLED)


def _from_proc(process: Path) -> str:
    """The kernel's view; an agent without privileges sees less of it.

    Raises:
        NoStack: the process is gone.
    """
    if not process.exists():
        raise NoStack(f"process {process.name} is gone")
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
    return "".join(parts)[:MAX_TEXT]


def _part(path: Path) -> str:
    return f"== {path}\n{_content(path)}\n"


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return decoded(file.read(MAX_TEXT)).strip()
    except OSError as error:
        return f"({error.strerror})"


def decoded(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


class StackReader:
    """Reads the stack of one rank process repeatedly. Keep one per process.

    A request that waits for the GIL holds one of about 32 threads of torch's worker server until
    the GIL is released; when all threads are held, the rank answers nothing. So only one request
    waits, and later calls wait for its answer, which shows the stack at the time of the answer.
    """

    def __init__(self, process: RankProcess, handlers: Handlers | None, turn: Path | None = None):
        """`handlers` is None if the rank has no socket. `turn` is the file that every agent locks
        during a request to this rank."""
        self._process = process
        self._handlers = handlers
        self._turn = turn
        self._request: asyncio.Task[bytes] | None = None

    async def read(
        self, handler_timeout_s: float = 2.0, py_spy_timeout_s: float = 5.0
    ) -> StackText:
        """The stack as of now, within about the sum of the timeouts; raises nothing."""
        try:
            return StackText("dump_traceback", await self._from_handler(handler_timeout_s))
        except FrdError as error:
            why = f"dump_traceback: {error}"
            return await from_outside(self._process, py_spy_timeout_s, why)

    async def _from_handler(self, timeout_s: float) -> str:
        if self._handlers is None:
            raise NoStack("the rank has no socket")
        if self._request is None or self._request.done():
            self._request = asyncio.create_task(self._ask(self._handlers))
            self._request.add_done_callback(_ignore_failure)
        request = self._request
        await asyncio.wait({request}, timeout=timeout_s)
        if not request.done():
            raise NoStack(f"no answer within {timeout_s:g} s: the GIL may be held")
        text = decoded(request.result())[:MAX_TEXT]
        if "File " not in text:
            raise NoStack("no Python frame in the answer")
        return text

    async def _ask(self, handlers: Handlers) -> bytes:
        async with _turn_at(self._turn):
            return await handlers.ask("dump_traceback", timeout_s=_PATIENCE_S)


@asynccontextmanager
async def _turn_at(path: Path | None) -> AsyncIterator[None]:
    """Hold the lock on `path`; without such a file, hold nothing."""
    try:
        fd = os.open(path or "", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield
        return
    except OSError as error:
        raise NoStack(f"{path}: {error.strerror}") from error
    try:
        while not try_lock(fd):
            await asyncio.sleep(_TURN_S)
        yield
    finally:
        os.close(fd)


def _ignore_failure(request: asyncio.Task[bytes]) -> None:
    """Retrieve the exception, so that asyncio does not log a failure without a waiting caller."""
    if not request.cancelled():
        request.exception()
