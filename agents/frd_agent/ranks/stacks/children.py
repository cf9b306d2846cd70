"""Stacks of a rank's child processes, such as DataLoader workers: often they are what is stuck.

Child processes have no tap and no socket, so the agent reads them from outside: a few at a time,
only when the stacks of their rank are requested, and at most `MAX_CHILDREN` of them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from typing import Final, NamedTuple

from frd.flight.stacks.text import child_header
from frd_agent.inspection.reading.threads import comm
from frd_agent.proc import by_parent, descendants, link, read_all
from frd_agent.ranks.rank_process import RankProcess
from frd_agent.ranks.stacks.cpu_usage import Meter
from frd_agent.ranks.stacks.outside import from_outside

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


class _Child(NamedTuple):
    is_other: bool
    """False for a DataLoader worker: they sort first."""
    pid: int
    name: str


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
    meters = [Meter(child.pid) for child in children]
    gate = asyncio.Semaphore(_AT_ONCE)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s

    async def read(child: _Child) -> str:
        async with gate:
            left_s = deadline - loop.time()
            stack = await from_outside(rank, left_s, child=child.pid)
        return stack.text[:_MAX_TEXT].rstrip("\n") + "\n"

    texts = await asyncio.gather(*map(read, children))
    for meter in meters:
        await meter.settled()
    parts = [
        child_header(child.pid, child.name) + meter.lines() + text
        for child, meter, text in zip(children, meters, texts, strict=True)
        if _HELPER not in text
    ]
    if left_out := len(found) - len(children):
        parts.append(f"# {left_out} more child processes were not read\n")
    return "".join(parts)


def _python_below(rank: RankProcess, ranks: Collection[int] | None) -> list[_Child]:
    if ranks is None or (pid := rank.readable) is None:
        return []
    below = filter(
        rank.may_read, descendants(pid, by_parent(read_all()), but=ranks, most=_MAX_BELOW)
    )
    named = [(child, name) for child in below if (name := _python_name(child)) is not None]
    return sorted(_Child(name != _LOADER, child, name) for child, name in named)


def _python_name(pid: int) -> str | None:
    """Name of the process as the kernel shows it; None if it does not run Python."""
    return comm(pid, pid) or None if _PYTHON.fullmatch(link(pid, "exe")) else None
