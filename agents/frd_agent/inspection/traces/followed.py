"""One trace that is followed: read when it has grown, if it may be read and lets itself be read.

A read of a trace that is on storage that does not answer would hang like the rank. Which file
systems the rank is stuck in shows in its blocked calls; if that is not known, no trace of it is
read. Of two file systems of one server one rarely works alone: while the rank is stuck in one that
is not local, no trace on another such is read.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from frd.model import NodeNs, NodeRawNs
from frd_agent.inspection.claims import RankView
from frd_agent.inspection.reading.files import Mount
from frd_agent.inspection.reading.memory import Helper, NotInTime
from frd_agent.inspection.syscalls import Class
from frd_agent.inspection.traces.history import History, Names
from frd_agent.inspection.traces.open_traces import OpenTrace
from frd_agent.inspection.traces.tail import Buffering, Tail
from frd_agent.inspection.tracking import ENOUGH, Wait
from frd_agent.proc import path_of


def read_chunk(trace: OpenTrace, tail: Tail) -> tuple[int, bytes, int] | None:
    """What `tail` wants of the file, as `Tail.feed` takes it; may block: for a helper only. None if
    the descriptor leads to another file by now, or to one that is not regular. It is first opened
    without touching what is behind it (O_PATH): to open a FIFO would wake its writer, and a device
    may act.

    Raises:
        OSError: no right, or the process is gone.
    """
    place = os.open(path_of(f"{trace.pid}/fd/{trace.fd}"), os.O_PATH | os.O_CLOEXEC)
    try:
        found = os.fstat(place)
        if not stat.S_ISREG(found.st_mode) or found.st_ino != trace.inode:
            return None
        offset, length = tail.wants(found.st_size)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        fd = os.open(f"/proc/self/fd/{place}", flags)
        try:
            return offset, os.pread(fd, length, offset), found.st_size
        finally:
            os.close(fd)
    finally:
        os.close(place)


PAUSE_NS: Final = 30_000_000_000
"""How long a trace is left alone after it could not be read."""


@dataclass(slots=True)
class Traces:
    """What all inspected ranks share. Used by one thread at a time."""

    to_raw: Callable[[NodeNs], NodeRawNs]
    """Takes stamps of the node's wall clock, which `real_now` shows."""
    helper: Helper = field(default_factory=lambda: Helper(name="frd-trace-of"))
    """Not the one that reads memory: if a trace hangs it, no trace is read, and that is all."""
    real_now: Callable[[], int] = time.time_ns
    broken: int = 0
    """Lines and gzip members that were left out."""


class Followed:
    def __init__(self, trace: OpenTrace, names: Names) -> None:
        self.trace = trace
        """As of the last look."""
        self.history = History(names)
        self.problem = ""
        """Why it could not be read: ends a sentence that its path begins."""
        self.quiet = 0
        """Looks in a row at which it had not grown."""
        self.quiet_since_ns = NodeRawNs(0)
        self._tail = Tail(is_packed=trace.is_packed)
        self._read_to = 0
        self._objections = 0
        self._pause_until_ns = 0

    @property
    def buffering(self) -> Buffering:
        return self._tail.buffering if self.trace.written else Buffering.BUFFERED

    def look(self, shared: Traces, view: RankView, now_ns: NodeRawNs) -> None:
        """Read what was appended."""
        if self.trace.written == self._read_to:
            self.quiet += 1
            return
        if now_ns < self._pause_until_ns:
            return
        if why := objection(view, self.trace.mount):
            self._objections += 1
            if self._objections >= ENOUGH:
                self.problem = f"is not read: {why}"
            return
        self._objections, self.problem = 0, ""
        trace, tail = self.trace, self._tail
        try:
            chunk = shared.helper.run(lambda: read_chunk(trace, tail))
        except NotInTime:
            self.problem = "could not be read in time"
        except OSError as error:
            self.problem = f"cannot be read: {error.strerror}"
        else:
            if chunk is not None:
                before = tail.broken
                self.history.add(tail.feed(*chunk))
                shared.broken += tail.broken - before
                self._read_to = trace.written
                self.quiet, self.quiet_since_ns = 0, now_ns
                return
        self._pause_until_ns = now_ns + PAUSE_NS


_LOCAL: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "jfs"}
    | {"tmpfs", "ramfs", "rootfs", "overlay", "fuse.fuse-overlayfs"}
    | {"devtmpfs", "devpts", "proc", "sysfs", "hugetlbfs"}
)
_CALLS: Final = frozenset(
    {Class.READ, Class.WRITE, Class.SYNC, Class.OPEN, Class.FAULT, Class.LOCK}
)


def objection(view: RankView, trace: Mount | None) -> str:
    """Why a trace on this mount is not read now; empty if it may be read."""
    if trace is None:
        return "its file system is not known"
    for stuck in _stuck_in(view):
        if stuck is None:
            return "it is not known in which file system the rank is stuck"
        if stuck.fs == trace.fs:
            return "it is on the file system that the rank is stuck in"
        if not _is_local(stuck) and not _is_local(trace):
            return "neither it nor what the rank is stuck in is on a local file system"
    return ""


def _is_local(mount: Mount) -> bool:
    return mount.fs.partition(" ")[0] in _LOCAL


def _stuck_in(view: RankView) -> Iterator[Mount | None]:
    """By the waits of its processes, and of those that hold a lock that it waits for. None for a
    file system that is not known."""
    waits = [wait for pid in view.family for wait in _waits(view, pid)]
    for wait in waits:
        yield from _of_wait(wait)
        holder = wait.target.holder if wait.target is not None else None
        if holder is not None and holder not in view.family:
            for other in _waits(view, holder):
                yield from _of_wait(other)


def _waits(view: RankView, pid: int) -> tuple[Wait, ...]:
    process = view.processes.get(pid)
    return () if process is None else (process.main, *process.others)


def _of_wait(wait: Wait) -> list[Mount | None]:
    target = wait.target
    if wait.state not in "SD":
        return []
    if target is None or target.call.kind not in _CALLS:
        return [None] if wait.state == "D" else []
    mounts: list[Mount | None] = [None]  # a page fault, or sync()
    if target.path:
        mounts = [target.mount]
    elif target.objects:
        files = [one.file for one in target.objects if not one.is_pipe]
        mounts = [file.mount for file in files if not file.special]
    if target.call.kind is Class.LOCK:  # no matter of storage, unless a server keeps the locks
        mounts = [mount for mount in mounts if mount is None or not _is_local(mount)]
    return mounts
