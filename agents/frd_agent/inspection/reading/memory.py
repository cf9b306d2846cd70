"""Memory of a process: the path or the descriptors that a blocked call was given, and its maps.

Reading it takes the lock on the address space, which a process in trouble may hold for ever. So it
is read on a helper thread with a deadline. A reading that does not come back keeps that thread, and
until it does no other one is started: of all inspections together, at most one thread hangs.
"""

from __future__ import annotations

import os
import queue
import re
import select
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any, Final, NamedTuple, TypeVar

from frd_agent.proc import path_of, read_file

DEADLINE_S: Final = 0.2
_MAX_PATH: Final = 4096
_PAGE: Final = 4096
_MAX_POLLED: Final = 1024
_POLLFD: Final = struct.Struct("=ihh")
_MAX_MAPS: Final = 16 * 1024 * 1024
_CODE: Final = re.compile(r"\.so(\.[\d.]+)?$|\.pyc?$|/locale/|/gconv/|/locale-archive$|/ld\.so\.")

T = TypeVar("T")


class NotInTime(Exception):
    """The helper did not return within the deadline, or still hangs in an earlier reading."""


class Helper:
    """One daemon thread for what may block, perhaps for ever. Used by one thread at a time."""

    def __init__(self, deadline_s: float = DEADLINE_S, name: str = "frd-memory-of") -> None:
        self._deadline_s = deadline_s
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Future[Any] | None = None
        self.timeouts = 0

    @property
    def hangs(self) -> bool:
        return self._last is not None and not self._last.done()

    def start(self, read: Callable[[], T]) -> Future[T]:
        """
        Raises:
            NotInTime: it is still in an earlier reading.
        """
        if self.hangs:
            raise NotInTime
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        found: Future[T] = Future()

        def job() -> None:
            try:
                found.set_result(read())
            except Exception as error:  # raised where the caller can see it
                found.set_exception(error)

        self._last = found
        self._jobs.put(job)
        return found

    def run(self, read: Callable[[], T]) -> T:
        """
        Raises:
            NotInTime: there is no result yet.
            OSError: `read` raised it.
        """
        found = self.start(read)
        if not wait([found], self._deadline_s).done:
            self.timeouts += 1
            raise NotInTime
        return found.result()

    def _work(self) -> None:
        while True:
            self._jobs.get()()


class Mapping(NamedTuple):
    """A row of /proc/<pid>/maps."""

    start: int
    end: int
    perms: str
    offset: int
    inode: int
    path: str


def read_memory(pid: int, address: int, size: int) -> bytes:
    """
    Raises:
        OSError: no right, or nothing is mapped there.
    """
    fd = os.open(path_of(f"{pid}/mem"), os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, size, address)
    except (OverflowError, ValueError):
        raise OSError(f"{address:#x}: no address") from None
    finally:
        os.close(fd)


def read_path(pid: int, address: int) -> str:
    """The string at an address, read page by page: what follows it may not be mapped.

    Raises:
        OSError: as `read_memory`.
    """
    raw = b""
    while b"\0" not in raw and len(raw) < _MAX_PATH:
        at = address + len(raw)
        raw += (part := read_memory(pid, at, _PAGE - at % _PAGE))
        if not part:
            break
    return os.fsdecode(raw.partition(b"\0")[0][:_MAX_PATH])


class Polled(NamedTuple):
    """A descriptor that a process waits for."""

    fd: int
    writes: bool = False
    """It waits only to be able to write."""


def polled(fd: int, events: int) -> Polled:
    """`events`: a mask of POLLIN and others, which EPOLLIN and others are equal to."""
    return Polled(fd, bool(events & select.POLLOUT) and not events & select.POLLIN)


def read_polled(pid: int, address: int, count: int) -> tuple[Polled, ...]:
    """The descriptors of an array of pollfd.

    Raises:
        OSError: as `read_memory`.
    """
    raw = read_memory(pid, address, _POLLFD.size * min(count, _MAX_POLLED))
    whole = raw[: len(raw) // _POLLFD.size * _POLLFD.size]
    return tuple(polled(fd, events) for fd, events, _ in _POLLFD.iter_unpack(whole) if fd >= 0)


def read_selected(pid: int, count: int, sets: tuple[int, ...]) -> tuple[Polled, ...]:
    """The descriptors below `count` in any of the fd_sets at these addresses: those to read, to
    write, and others.

    Raises:
        OSError: as `read_memory`.
    """
    size = (min(count, _MAX_POLLED) + 7) // 8
    bits = [
        int.from_bytes(read_memory(pid, address, size), "little") if address else 0
        for address in sets
    ]
    found = []
    for fd in range(min(count, _MAX_POLLED)):
        reads, writes, *others = (one >> fd & 1 for one in bits)
        if reads or writes or any(others):
            found.append(Polled(fd, bool(writes) and not reads))
    return tuple(found)


def read_maps(pid: int) -> list[Mapping]:
    """
    Raises:
        OSError: no right, or the process is gone.
    """
    return list(_parse_maps(read_file(f"{pid}/maps", _MAX_MAPS)))


def _parse_maps(raw: bytes) -> Iterator[Mapping]:
    for line in os.fsdecode(raw).split("\n"):  # names may have other characters that end lines
        fields = line.split(None, 5)
        if len(fields) < 5:
            continue
        start, _, end = fields[0].partition("-")
        path = fields[5] if len(fields) > 5 else ""
        yield Mapping(
            int(start, 16), int(end, 16), fields[1], int(fields[2], 16), int(fields[4]), path
        )


def data_files(maps: list[Mapping]) -> tuple[str, ...]:
    """Mapped files that are no program and no library."""
    code = {row.path for row in maps if "x" in row.perms}
    found = {
        row.path
        for row in maps
        if row.path.startswith("/")
        and row.path not in code
        and not _CODE.search(row.path)
        and not row.path.startswith(("/dev/", "/memfd:", "/SYSV", "/anon_hugepage"))
    }
    return tuple(sorted(found))


def shared_at(maps: list[Mapping], address: int) -> tuple[str, str]:
    """Identity and name of the shared memory at an address: processes may map it elsewhere. Both
    are empty if the memory is of this process only."""
    for row in maps:
        if row.start <= address < row.end:
            if row.perms.endswith("p"):
                return "", ""
            identity = f"{row.inode}+{row.offset + address - row.start}"
            return identity, row.path.removesuffix(" (deleted)")
    return f"@{address:x}", ""
