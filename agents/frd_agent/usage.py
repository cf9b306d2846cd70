"""Processor time of a process between two looks: a rank that burns a core is busy, not stuck."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Final

LOOK_AGAIN_S: Final = 1.0
_LEAST_S: Final = 0.3
"""Looks closer than this say nothing: the kernel counts in ticks of 10 ms."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_BUSY: Final = 0.5
_IDLE: Final = 0.05
"""Cores. torch's own threads and the agent's questions cost a rank a few hundredths."""


class Meter:
    """Begins to measure one process at once."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._stat = proc / str(pid) / "stat"
        self._began_s = time.monotonic()
        self._ticks = _ticks(self._stat)

    async def settled(self) -> None:
        """Waits until the measurement means something."""
        passed_s = time.monotonic() - self._began_s
        if passed_s < LOOK_AGAIN_S:
            await asyncio.sleep(LOOK_AGAIN_S - passed_s)

    def text(self) -> str:
        """``busy: uses 1.0 cores``; empty if the process is gone or was not measured for long."""
        passed_s = time.monotonic() - self._began_s
        ticks = _ticks(self._stat)
        if ticks is None or self._ticks is None or passed_s < _LEAST_S:
            return ""
        return usage_text((ticks - self._ticks) / _TICKS_PER_S / passed_s)


def usage_text(cores: float) -> str:
    if cores >= _BUSY:
        return f"busy: uses {cores:.1f} cores"
    if cores < _IDLE:
        return "idle: used no processor time"
    return f"uses {cores:.2f} cores"


def _ticks(stat: Path) -> int | None:
    """User and system time of all its threads, as fields 14 and 15 of ``stat`` count it."""
    try:
        raw = stat.read_bytes()
        # The command's name is in parentheses and may hold spaces and parentheses of its own.
        fields = raw[raw.rfind(b")") + 2 :].split(maxsplit=14)
        return int(fields[11]) + int(fields[12])
    except (OSError, ValueError, IndexError):
        return None
