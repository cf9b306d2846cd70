"""Stacks of a rank's child processes, such as DataLoader workers: often they are what is stuck.
And processor time of a process between two looks: a rank that burns a core is busy, not stuck.

Child processes have no tap and no socket, so the agent reads them from outside: a few at a time,
only when the stacks of their rank are requested, and at most `MAX_CHILDREN` of them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Collection
from typing import Final

from frd.flight.stacks.text import RESTED, USAGE, child_header
from frd_agent.inspection.reading.threads import comm
from frd_agent.proc import TICKS_PER_S, by_parent, content, descendants, link, read_all, read_stat
from frd_agent.ranks.rank_process import RankProcess
from frd_agent.ranks.stacks.reader import from_outside

LOOK_AGAIN_S: Final = 1.0
_LEAST_S: Final = 0.3
"""Shorter measurements are ignored: the kernel counts in ticks of 10 ms."""
_BUSY: Final = 0.5
_IDLE: Final = 0.05
"""Cores. torch's own threads and the agent's requests cost a rank a few hundredths."""


class Meter:
    """Starts to measure one process immediately."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began_s = time.monotonic()
        self._ticks = _ticks(pid)
        self._ran_ns, self._queued_ns = _schedstat(pid)

    async def settled(self) -> None:
        """Wait until the measurement is long enough."""
        await asyncio.sleep(max(self._began_s + LOOK_AGAIN_S - time.monotonic(), 0))

    def lines(self) -> str:
        """``# usage: busy: uses 1.0 cores``, and whether the main thread has run at all; empty if
        the process is gone or was not measured for long."""
        ran_ns, _ = _schedstat(self._pid)
        rested = ran_ns > 0 and ran_ns == self._ran_ns
        return self._usage() + (f"{RESTED}{ran_ns} ns\n" if rested else "")

    def _usage(self) -> str:
        passed_s = time.monotonic() - self._began_s
        ticks = _ticks(self._pid)
        if ticks is None or self._ticks is None or passed_s < _LEAST_S:
            return ""
        used_s = (ticks - self._ticks) / TICKS_PER_S
        queued_s = max(_schedstat(self._pid)[1] - self._queued_ns, 0) / 1e9
        return f"{USAGE}{usage_text(used_s / passed_s, queued_s / passed_s)}\n"


def usage_text(cores: float, queued: float = 0.0) -> str:
    """`queued`: share of the time in which the main thread could have run and had no processor,
    for on a crowded machine a rank that computes uses less than a core."""
    if cores >= _BUSY:
        return f"busy: uses {cores:.1f} cores"
    if cores + queued >= _BUSY:
        return f"busy: uses {cores:.1f} cores and waits for more"
    if cores < _IDLE:
        return "idle: used no processor time"
    return f"uses {cores:.2f} cores"


def _ticks(pid: int) -> int | None:
    try:
        stat = read_stat(pid)
    except OSError:
        return None
    return None if stat is None else stat.cpu_ticks


def _schedstat(pid: int) -> tuple[int, int]:
    """How long its main thread has run, and has waited for a processor; 0 where the kernel does not
    count."""
    ran_ns, queued_ns, *_ = content(f"{pid}/schedstat").split() or (b"0", b"0")
    return int(ran_ns), int(queued_ns)


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


async def child_stacks(rank: RankProcess, timeout_s: float, ranks: Collection[int] | None) -> str:
    """A section of text for each Python child process that a rank has now; raises nothing.

    `ranks`: pids of all ranks of the node, which are never workers; None if no text is wanted.
    Takes about `timeout_s`.
    """
    try:
        found = await asyncio.to_thread(_python_below, rank, ranks)
    except OSError as error:
        return f"# child processes: {error.strerror}\n"
    children = found[:MAX_CHILDREN]
    meters = [Meter(pid) for pid, _ in children]
    gate = asyncio.Semaphore(_AT_ONCE)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s

    async def read(pid: int) -> str:
        async with gate:
            left_s = deadline - loop.time()
            stack = await from_outside(rank, left_s, child=pid)
        return stack.text[:_MAX_TEXT].rstrip("\n") + "\n"

    texts = await asyncio.gather(*(read(pid) for pid, _ in children))
    for meter in meters:
        await meter.settled()
    parts = [
        child_header(pid, name) + meter.lines() + text
        for (pid, name), meter, text in zip(children, meters, texts, strict=True)
        if _HELPER not in text
    ]
    if left_out := len(found) - len(children):
        parts.append(f"# {left_out} more child processes were not read\n")
    return "".join(parts)


def _python_below(rank: RankProcess, ranks: Collection[int] | None) -> list[tuple[int, str]]:
    """Pids and names, DataLoader workers first."""
    if ranks is None or (pid := rank.readable) is None:
        return []
    below = filter(
        rank.may_read, descendants(pid, by_parent(read_all()), but=ranks, most=_MAX_BELOW)
    )
    named = [(child, name) for child in below if (name := _python_name(child)) is not None]
    return sorted(named, key=lambda one: (one[1] != _LOADER, one))


def _python_name(pid: int) -> str | None:
    """Name of the process as the kernel shows it; None if it does not run Python."""
    return comm(pid, pid) or None if _PYTHON.fullmatch(link(pid, "exe")) else None
