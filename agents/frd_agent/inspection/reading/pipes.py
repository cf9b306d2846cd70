"""Processes that hold a pipe or a socket: an index of the descriptors of many processes.

A pipe has one inode for both of its ends; which end a descriptor is shows in its access mode. After
a fork most processes of a family hold most ends of most pipes, so a holder is a candidate and no
proof.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frd_agent.inspection.reading.files import links
from frd_agent.inspection.reading.threads import read_file
from frd_agent.proc import PROC

MAX_PROCESSES: Final = 1024
"""Whose descriptors are listed at a time."""
_ACCESS: Final = {0: "r", 1: "w", 2: "rw"}


@dataclass(frozen=True, slots=True)
class End:
    """A process that holds a pipe or socket."""

    pid: int
    access: str
    """``r``, ``w`` or ``rw``."""


class Descriptors:
    """What the descriptors of some processes lead to, as of one moment."""

    def __init__(self, pids: Iterable[int], proc: Path = PROC) -> None:
        self._proc = proc
        self._found: dict[str, list[tuple[int, int]]] = {}
        for pid in list(pids)[:MAX_PROCESSES]:
            for fd, target in links(pid, proc).items():
                self._found.setdefault(target, []).append((pid, fd))

    def ends(self, link: str) -> tuple[End, ...]:
        """The holders of `link`, one row for each process and access mode."""
        found = {
            End(pid, access): None
            for pid, fd in self._found.get(link, ())
            if (access := self._access(pid, fd))
        }
        return tuple(found)

    def _access(self, pid: int, fd: int) -> str:
        try:
            lines = read_file(f"{self._proc}/{pid}/fdinfo/{fd}").splitlines()
            flags = next(line for line in lines if line.startswith(b"flags:"))
            return _ACCESS.get(int(flags.split()[1], 8) & 3, "")
        except (OSError, StopIteration, ValueError, IndexError):
            return ""
