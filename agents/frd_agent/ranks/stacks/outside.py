"""The stack of a process, read from outside: by py-spy, or from /proc.

py-spy reads the memory of the process without stopping it (``--nonblocking``) and needs no help
from it; py-spy may be missing, or forbidden to the agent. /proc always works but shows no Python:
only the state of the process and where its threads wait in the kernel.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frd.errors import FrdError
from frd.flight.stacks.text import ADVICE
from frd_agent.inspection.reading.rights import yama_advice
from frd_agent.proc import path_of
from frd_agent.ranks.process import HIDDEN
from frd_agent.ranks.rank_process import RankProcess

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
