"""File locks: which process holds the one that another process waits for.

/proc/locks shows pids of the reader's own pid namespace, and leaves out locks of processes that the
reader cannot see. It shows the process that took the lock. A lock of flock belongs to the open
file: the process that took it may have closed it or ended while a forked child still has it open. A
lock of an open file description has no pid. So a pid counts only if a descriptor of that process
shows the lock (`fdinfo`) or its descriptors cannot be read; else all processes are searched. Locks
of one file may have other ranges, so the range has to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from frd_agent.inspection.reading.files import Mount, links, open_file, read_mounts
from frd_agent.inspection.reading.threads import read_thread
from frd_agent.proc import content

_MAX_LOCKS: Final = 4 * 1024 * 1024
_MAX_HELD: Final = 32
"""Locks of one process that are looked at."""
_NO_PID: Final = -1
FLOCK, POSIX, OFD = "FLOCK", "POSIX", "OFDLCK"
"""Kinds of locks. The first does not exclude the others, which do exclude each other."""


@dataclass(frozen=True, slots=True)
class LockRow:
    """One line of /proc/locks."""

    number: int
    """Lines of one lock, and of the processes that wait for it, have the same."""
    waits: bool
    kind: str
    """`FLOCK`, `POSIX`, `OFD`, or another one."""
    pid: int
    """-1 of a lock that belongs to an open file description."""
    inode: int
    extent: tuple[str, ...] = ()
    """First and last byte, or ``EOF``."""
    mode: str = ""
    """``READ``, which others may have at the same time, or ``WRITE``."""

    def is_like(self, other: LockRow) -> bool:
        """Both may be one lock, whatever process has it."""
        return (self.kind, self.inode, self.extent) == (other.kind, other.inode, other.extent)

    @property
    def is_whole(self) -> bool:
        """A lock as the package filelock takes it. Databases lock ranges of bytes."""
        is_held = self.mode == "WRITE" and not self.waits
        return is_held and (self.kind, self.extent) == (FLOCK, ("0", "EOF"))


def read_locks() -> tuple[LockRow, ...]:
    text = content("locks", _MAX_LOCKS).decode("ascii", "replace")
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
        extent = tuple(fields[5:7])
        return LockRow(int(number), waits, fields[0], int(fields[3]), inode, extent, fields[2])
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class FileLock:
    """What a process waits for."""

    kind: str
    """As `LockRow.kind`."""
    path: str
    inode: int
    """0 if it is not known (kernels before 5.14)."""


def lock_holder(
    rows: Iterable[LockRow],
    lock: FileLock,
    pid: int,
    others: Callable[[], Iterable[int]],
) -> int | None:
    """The process that blocks `pid`, which may be `pid` itself; None if that is not shown.

    `others`: processes to search, nearest first.
    """
    blocking = _blocking(rows, lock, pid)
    if blocking is None:
        return None
    shown = blocking.pid if blocking.pid > 0 else None
    if shown is not None:
        thread = read_thread(shown, shown)
        if thread is None or thread.state in "ZX":
            shown = None
    if not lock.inode:
        return shown
    if shown is not None:
        found = links(shown)
        if not found or _holds(shown, found, lock.path, blocking):
            return shown
    near = (one for one in others() if one != pid and _holds(one, links(one), lock.path, blocking))
    return next(near, shown)  # which may have the file open by another path, of another mount


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A file that a process has locked."""

    pid: int
    path: str
    mount: Mount | None


class NodeLocks:
    """The files that processes have locked as a whole, so that no other process can. Each process
    is read at most once until `forget`."""

    def __init__(self) -> None:
        self._rows: dict[int, list[LockRow]] | None = None
        self._held: dict[int, frozenset[HeldLock]] = {}

    def forget(self) -> None:
        self._rows, self._held = None, {}

    @property
    def holders(self) -> Mapping[int, list[LockRow]]:
        """By process; which may not have them any more, see `held`."""
        if self._rows is None:
            self._rows = {}
            for row in read_locks():
                if row.is_whole:
                    self._rows.setdefault(row.pid, []).append(row)
        return self._rows

    def held(self, pid: int) -> frozenset[HeldLock]:
        """Those that a descriptor of the process shows: else another process has them now."""
        if pid not in self._held:
            self._held[pid] = frozenset(self._of(pid, self.holders.get(pid, [])[:_MAX_HELD]))
        return self._held[pid]

    def _of(self, pid: int, rows: list[LockRow]) -> Iterator[HeldLock]:
        mounts = read_mounts(pid) if rows else {}
        for fd in links(pid) if rows else ():
            shown = _locks_of(pid, fd)
            if any(row.is_like(one) for row in rows for one in shown):
                file = open_file(pid, fd, mounts)
                yield HeldLock(pid, file.link, file.mount)


def _blocking(rows: Iterable[LockRow], lock: FileLock, pid: int) -> LockRow | None:
    """The lock that `pid` waits for. A waiter with a lock of an open file description has no pid
    either: if there are several, which wait for different locks, none is certain."""
    waiter = _NO_PID if lock.kind == OFD else pid
    held: dict[int, LockRow] = {}
    found: dict[int, LockRow] = {}
    for row in rows:
        if not row.waits:
            held.setdefault(row.number, row)
            continue
        is_mine = (row.kind, row.pid) == (lock.kind, waiter) and lock.inode in (0, row.inode)
        if is_mine and row.number in held:
            found[row.number] = held[row.number]
    return next(iter(found.values())) if len(found) == 1 else None


def _holds(pid: int, found: Mapping[int, str], path: str, blocking: LockRow) -> bool:
    fds = [fd for fd, target in found.items() if target == path]
    return any(row.is_like(blocking) for fd in fds for row in _locks_of(pid, fd))


def _locks_of(pid: int, fd: int) -> list[LockRow]:
    """The locks that a descriptor shows as held."""
    lines = content(f"{pid}/fdinfo/{fd}").decode("ascii", "replace").splitlines()
    rows = [parse_lock(line.removeprefix("lock:").strip()) for line in lines if "lock:" in line]
    return [row for row in rows if row is not None and not row.waits]
