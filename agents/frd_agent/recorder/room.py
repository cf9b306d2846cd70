"""Whether a rank can accept a connection: torch's worker server ends the process if it cannot.

The server takes every error of accept(2) but EMFILE for the end of its socket, and throws on a
thread where nothing catches it. The kernel returns such an error when the machine is out of file
handles (ENFILE), or it or the cgroup of the rank out of memory (ENOMEM, ENOBUFS). So the agent does
not connect while one of them is short, and says so. A rank's own descriptors count too: an accepted
connection must not take the program's last one.

A check and the connection after it are microseconds apart. A shortage that begins in between, and
one that the agent cannot see, remain a risk (docs/security.md).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Final

from frd_agent.memory.host import cgroup
from frd_agent.proc import path_of, read_file

_HANDLES: Final = 10_000
_MEMORY: Final = 256 << 20
_CGROUP_MEMORY: Final = 64 << 20
_DESCRIPTORS: Final = 16
_FIND_S: Final = 30.0
"""Interval at which the cgroup of a rank is looked up again."""


def of_node() -> str:
    """What the machine is short of, as text for users; empty: of nothing."""
    with contextlib.suppress(OSError, ValueError):
        used, unused, most = map(int, read_file("sys/fs/file-nr").split())
        free = most - used + unused
        if free < min(_HANDLES, most // 10):
            return f"the node is short of file handles: {free} of {most} are free"
    with contextlib.suppress(OSError, ValueError, KeyError):
        sizes = {}
        for line in read_file("meminfo").decode("ascii").splitlines()[:8]:
            name, _, size = line.partition(":")
            sizes[name] = int(size.split()[0]) << 10
        free, most = sizes["MemAvailable"], sizes["MemTotal"]
        if free < min(_MEMORY, most // 100):
            return f"the node is short of memory: {free >> 20} of {most >> 20} MiB are available"
    return ""


class Room:
    """Of one rank. `pid`: in this pid namespace; None if its process is not seen."""

    def __init__(self, pid: Callable[[], int | None]) -> None:
        self._pid = pid
        self._cgroup: cgroup.Cgroup | None = None
        self._find_at = float("-inf")

    def shortage(self) -> str:
        """As `of_node`, of the machine or of the rank."""
        pid = self._pid()
        return of_node() or ("" if pid is None else self._of_rank(pid))

    def _of_rank(self, pid: int) -> str:
        now = time.monotonic()
        if now >= self._find_at:
            self._find_at, self._cgroup = now + _FIND_S, cgroup.find(pid)
        limit = self._cgroup.limit if self._cgroup is not None else 0
        reading = self._cgroup.read() if self._cgroup is not None and limit else None
        if reading is not None and limit - reading.used < min(_CGROUP_MEMORY, limit // 50):
            free = max(limit - reading.used, 0) >> 20
            return f"its cgroup is short of memory: {free} of {limit >> 20} MiB are free"
        with contextlib.suppress(OSError, ValueError, IndexError):
            limits = read_file(f"{pid}/limits").decode("ascii")
            most = int(limits.partition("Max open files")[2].split()[0])
            used = len(os.listdir(path_of(f"{pid}/fd")))
            if most - used < _DESCRIPTORS:
                return f"it is short of file descriptors: {most - used} of {most} are free"
        return ""
