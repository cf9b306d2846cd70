"""Stacks of a rank's child processes, such as DataLoader workers: often they are what is stuck.

Child processes have no tap and no socket, so the agent reads them from outside: a few at a time,
only when the stacks of their rank are requested, and at most `MAX_CHILDREN` of them.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frd.flight.stacks import text as stacktext
from frd_agent.proc import PROC, by_parent, descendants, read_all
from frd_agent.ranks.cpu_usage import Meter
from frd_agent.ranks.outside_stacks import NoStack, from_proc, from_py_spy

MAX_CHILDREN: Final = 16
_MAX_TEXT: Final = 24 * 1024
"""Characters of one child's stack; the text of all children stays below a megabyte."""
_MAX_BELOW: Final = 256
"""Descendants of one rank that are looked at."""
_AT_ONCE: Final = 2
_PYTHON: Final = re.compile(r"(?:.*/)?(?:pypy|python)[\d.]*t?(?: \(deleted\))?")
_LOADER: Final = "pt_data_worker"
"""The name that torch gives to its DataLoader workers."""
_HELPER: Final = "/multiprocessing/resource_tracker.py:"
"""In the stack of a Python process that never runs code of the user. (Its command line would show
this too, but reading it waits for a lock that a process in trouble may hold.)"""


@dataclass(frozen=True, slots=True)
class Child:
    pid: int
    name: str


class ChildStacks:
    """The Python child processes that a rank has now.

    `ranks`: pids of all ranks of the node, which are never workers.
    """

    def __init__(self, pid: int, ranks: Collection[int] = (), proc: Path = PROC) -> None:
        found = sorted(
            _python_below(pid, ranks, proc), key=lambda child: (child.name != _LOADER, child.pid)
        )
        self._proc = proc
        self._left_out = max(len(found) - MAX_CHILDREN, 0)
        self._children = found[:MAX_CHILDREN]
        self._meters = {child.pid: Meter(child.pid, proc) for child in self._children}

    async def read(self, timeout_s: float) -> str:
        """A section of text for each child, within about `timeout_s`; raises nothing."""
        gate = asyncio.Semaphore(_AT_ONCE)
        deadline = asyncio.get_running_loop().time() + timeout_s
        texts = await asyncio.gather(
            *(self._read(child, gate, deadline) for child in self._children)
        )
        for meter in self._meters.values():
            await meter.settled()
        parts = [
            stacktext.child_header(child.pid, child.name) + self._usage(child) + text
            for child, text in zip(self._children, texts, strict=True)
            if _HELPER not in text
        ]
        if self._left_out:
            parts.append(f"# {self._left_out} more child processes were not read\n")
        return "".join(parts)

    async def _read(self, child: Child, gate: asyncio.Semaphore, deadline: float) -> str:
        async with gate:
            left_s = deadline - asyncio.get_running_loop().time()
            try:
                if left_s <= 0:
                    raise NoStack("no time left")
                return _ended(await from_py_spy(child.pid, left_s))
            except NoStack as error:
                note = f"# py-spy: {error}\n"
        try:
            return note + _ended(from_proc(self._proc / str(child.pid)))
        except NoStack as error:
            return f"{note}# proc: {error}\n"

    def _usage(self, child: Child) -> str:
        text = self._meters[child.pid].text()
        return f"{stacktext.USAGE}{text}\n" if text else ""


def _ended(text: str) -> str:
    return text[:_MAX_TEXT].rstrip("\n") + "\n"


def _python_below(pid: int, ranks: Collection[int], proc: Path) -> Iterator[Child]:
    for child_pid in descendants(pid, by_parent(read_all(proc)), but=ranks, most=_MAX_BELOW):
        if (name := _python_name(proc / str(child_pid))) is not None:
            yield Child(child_pid, name)


def _python_name(process: Path) -> str | None:
    """Name of the process as the kernel shows it; None if it does not run Python."""
    try:
        if not _PYTHON.fullmatch(os.readlink(process / "exe")):
            return None
        return (process / "comm").read_text("utf-8", "backslashreplace").strip()
    except OSError:
        return None
