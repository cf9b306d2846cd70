"""File locks: which process holds the one that another process waits for.

/proc/locks shows pids of the reader's own pid namespace, and leaves out locks of processes that the
reader cannot see. It shows the process that took the lock; with flock, a forked child may have
inherited it, and with locks of an open file description there is no pid. Then the descriptors of
processes are searched for the one that shows the lock (`fdinfo`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frd_agent.inspection.reading.files import links
from frd_agent.inspection.reading.threads import read_file
from frd_agent.proc import PROC

_MAX_LOCKS: Final = 4 * 1024 * 1024
_NO_PID: Final = -1


@dataclass(frozen=True, slots=True)
class LockRow:
    """One line of /proc/locks."""

    number: int
    """Lines of one lock, and of the processes that wait for it, have the same."""
    waits: bool
    kind: str
    """``FLOCK``, ``POSIX``, ``OFDLCK``."""
    pid: int
    """-1 of a lock that belongs to an open file description."""
    inode: int


def read_locks(proc: Path = PROC) -> tuple[LockRow, ...]:
    try:
        text = read_file(f"{proc}/locks", _MAX_LOCKS).decode("ascii", "replace")
    except OSError:
        return ()
    return tuple(row for line in text.splitlines() if (row := parse_lock(line)) is not None)


def parse_lock(line: str) -> LockRow | None:
    """``1: -> FLOCK ADVISORY WRITE 77 fe:00:1234 0 EOF``: waits behind the line before it."""
    number, _, rest = line.partition(":")
    fields = rest.split()
    waits = fields[:1] == ["->"]
    fields = fields[1:] if waits else fields
    if len(fields) < 5:
        return None
    try:
        inode = int(fields[4].rpartition(":")[2])
        return LockRow(int(number), waits, fields[0], int(fields[3]), inode)
    except ValueError:
        return None


def lock_holder(rows: Iterable[LockRow], pid: int, inode: int) -> int | None:
    """The process that blocks `pid` on a file with this inode; None if that is not shown.

    `inode` 0: not known (kernels before 5.14): by the pid alone.
    """
    held: dict[int, LockRow] = {}
    for row in rows:
        if not row.waits:
            held.setdefault(row.number, row)
        elif row.pid in (pid, _NO_PID) and (not inode or row.inode == inode):
            holder = held.get(row.number)
            if holder is not None and holder.pid not in (pid, _NO_PID):
                return holder.pid
    return None


def holder_by_descriptor(
    pids: Iterable[int], path: str, inode: int, but: int, proc: Path = PROC
) -> int | None:
    """The first of `pids`, other than `but`, with an open file `path` that has a lock on it."""
    for pid in pids:
        if pid == but:
            continue
        for fd, target in links(pid, proc).items():
            if target == path and _shows_lock(pid, fd, inode, proc):
                return pid
    return None


def _shows_lock(pid: int, fd: int, inode: int, proc: Path) -> bool:
    try:
        lines = read_file(f"{proc}/{pid}/fdinfo/{fd}").decode("ascii", "replace").splitlines()
    except OSError:
        return False
    rows = [parse_lock(line.removeprefix("lock:").strip()) for line in lines if "lock:" in line]
    return any(row and not row.waits and row.inode == inode for row in rows)
