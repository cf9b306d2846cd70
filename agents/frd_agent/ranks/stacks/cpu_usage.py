"""Processor time of a process between two looks: a rank that burns a core is busy, not stuck."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from frd.flight.stacks.text import RESTED, USAGE
from frd_agent.proc import TICKS_PER_S, content, read_stat

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
        self._queued_ns = _queued_ns(pid)
        self._ran_ns = _ran_ns(pid)

    async def settled(self) -> None:
        """Wait until the measurement is long enough."""
        await asyncio.sleep(max(self._began_s + LOOK_AGAIN_S - time.monotonic(), 0))

    def lines(self) -> str:
        """``# usage: busy: uses 1.0 cores``, and whether the main thread has run at all; empty if
        the process is gone or was not measured for long."""
        ran_ns = _ran_ns(self._pid)
        rested = ran_ns is not None and ran_ns == self._ran_ns
        return self._usage() + (f"{RESTED}{ran_ns} ns\n" if rested else "")

    def _usage(self) -> str:
        passed_s = time.monotonic() - self._began_s
        ticks = _ticks(self._pid)
        if ticks is None or self._ticks is None or passed_s < _LEAST_S:
            return ""
        used_s = (ticks - self._ticks) / TICKS_PER_S
        queued_s = max(_queued_ns(self._pid) - self._queued_ns, 0) / 1e9
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


def _ran_ns(pid: int) -> int | None:
    """How long its main thread has run; None where the kernel does not count."""
    return _schedstat(pid, 0) or None


def _queued_ns(pid: int) -> int:
    """How long its main thread has waited for a processor; 0 where the kernel does not count."""
    return _schedstat(pid, 1)


def _schedstat(pid: int, field: int) -> int:
    return int((content(f"{pid}/schedstat").split() or [b"0"] * 2)[field])
