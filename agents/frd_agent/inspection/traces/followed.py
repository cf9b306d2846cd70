"""One trace that is followed: read when it has grown, if it may be read and lets itself be read.

A read of a trace that is on storage that does not answer would hang like the rank. Which file
systems the rank is stuck in shows in its blocked calls; if that is not known, no trace of it is
read. Of two file systems of one server one rarely works alone: while the rank is stuck in one that
is not local, no trace on another such is read.

Traces are found by the descriptors of a process. How far a trace was written is the position of its
descriptor: DFTracer appends through it. So a trace that does not grow is never touched, and neither
is one that nothing was written to yet.

Of its end (`Tail`), at first the last `LOOK` bytes are wanted, then what was appended; of much, the
last part only. Of a plain file, whole lines are used; of a gzipped one, whole members. Both may
begin in the middle of one, end in one, be cut off at the front, or be damaged.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from frd.dftracer.inflate import MAGIC, begins_member
from frd.dftracer.line import Record, records_of
from frd.model import NodeNs, NodeRawNs
from frd_agent.inspection.claims import RankView
from frd_agent.inspection.reading.files import (
    Mount,
    links,
    open_file,
    printable,
    read_mounts,
)
from frd_agent.inspection.reading.memory import Helper, NotInTime
from frd_agent.inspection.syscalls import Class
from frd_agent.inspection.traces.history import History, Names
from frd_agent.inspection.tracking import ENOUGH, Wait
from frd_agent.proc import path_of

MAX_TRACES: Final = 4
"""Of one process."""
_PACKED: Final = ".pfw.gz"
_SUFFIXES: Final = (".pfw", _PACKED)
_DELETED: Final = " (deleted)"
_MAX_WORDS: Final = 120
LOOK: Final = 64 * 1024
"""Bytes of a file that are read at a time."""
_MOST_RAW: Final = 1024 * 1024
"""Of the contents of gzip members: more are not unpacked at a time."""
_WINDOW: Final = 31
"""zlib: a gzip header, and the largest window."""
_FEW: Final = 8
"""Lines that a member has if the writer keeps none back."""
BUFFER: Final = 16 * 1024 * 1024
"""What DFTracer 2 keeps back by default."""
_LINE: Final = 16 * 1024
"""The longest line that it writes."""


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


@dataclass(frozen=True, slots=True)
class OpenTrace:
    """A trace that a process may write."""

    pid: int
    fd: int
    link: str
    inode: int
    written: int
    """Position of the descriptor."""
    mount: Mount | None

    @property
    def path(self) -> str:
        return self.link.removesuffix(_DELETED)

    @property
    def is_packed(self) -> bool:
        return self.path.endswith(_PACKED)

    @property
    def identity(self) -> tuple[str, int]:
        """Two descriptors with the same identity lead to the same file."""
        return (self.mount.fs if self.mount else "", self.inode)


def open_traces(pid: int) -> list[OpenTrace]:
    found = {
        fd: target
        for fd, target in sorted(links(pid).items())
        if target.startswith("/") and target.removesuffix(_DELETED).endswith(_SUFFIXES)
    }
    if not found:
        return []
    mounts = read_mounts(pid)
    traces = []
    for fd, target in found.items():
        file = open_file(pid, fd, mounts)
        if file.link == target and "w" in file.access:
            traces.append(OpenTrace(pid, fd, target, file.inode, file.position, file.mount))
    return traces[:MAX_TRACES]


def refreshed(trace: OpenTrace) -> OpenTrace | None:
    """As it is now; None if the descriptor was closed, or leads to another file."""
    file = open_file(trace.pid, trace.fd, {})
    if (file.link, file.inode) != (trace.link, trace.inode):
        return None
    return replace(trace, written=file.position)


def open_paths(pid: int) -> dict[str, int]:
    """The files that the process has open, with a descriptor for each."""
    return {target: fd for fd, target in links(pid).items() if target.startswith("/")}


def named(path: str) -> str:
    """A path for a report: printable, and of a long one the end."""
    text = printable(path)
    return text if len(text) <= _MAX_WORDS else f"...{text[-_MAX_WORDS:]}"


class Buffering(Enum):
    """Whether the writer keeps lines back."""

    LIVE = "live"
    BUFFERED = "buffered"
    UNKNOWN = "unknown"


class Tail:
    def __init__(self, *, is_packed: bool) -> None:
        self._is_packed = is_packed
        self._next = -1
        """Where the last piece ended; negative before the first one."""
        self._size = -1
        """Negative if nothing has been read yet."""
        self._rest = b""
        """The begin of a line or member."""
        self._is_inside = False
        """The next byte is inside of a line or member whose begin is not known."""
        self._lines = 0
        """Of the last whole member."""
        self._is_large = False
        """There is a member that is larger than what is read."""
        self.broken = 0
        """Lines and members that were left out."""

    def wants(self, size: int) -> tuple[int, int]:
        """What to read of a file that has `size` bytes: offset and length."""
        is_next = 0 <= self._next <= size <= self._next + LOOK
        offset = self._next if is_next else max(0, size - LOOK)
        return offset, size - offset

    def feed(self, offset: int, data: bytes, size: int) -> list[Record]:
        """`data` is at `offset` of a file that has `size` bytes."""
        self._size = size
        if offset != self._next:  # the first piece, or the file was cut off, or grew by too much
            self._rest, self._is_inside = b"", offset > 0
        self._next = offset + len(data)
        pieces = self._members(data) if self._is_packed else [self._whole_lines(data)]
        records: list[Record] = []
        for piece in pieces:
            for line in piece.split(b"\n"):
                found, is_broken = records_of(line)
                records += found
                self.broken += is_broken
        return records

    @property
    def buffering(self) -> Buffering:
        if self._is_packed:
            if self._is_large or self._lines > _FEW:
                return Buffering.BUFFERED
            return Buffering.LIVE if self._lines else Buffering.UNKNOWN
        return buffering_of(self._size) if self._size >= 0 else Buffering.UNKNOWN

    def _whole_lines(self, data: bytes) -> bytes:
        if self._is_inside:
            _, newline, data = data.partition(b"\n")
            self._is_inside = not newline
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest
        if len(rest) > LOOK:
            self.broken += 1
            self._rest, self._is_inside = b"", True
        return whole

    def _members(self, data: bytes) -> Iterator[bytes]:
        """The contents of whole members."""
        packed, left = self._rest + data, _MOST_RAW
        self._rest = b""
        while packed := packed.lstrip(b"\0"):
            if self._is_inside:
                at = _first_member(packed)
                if at < 0:
                    self._is_large = self._is_large or len(packed) >= LOOK // 2
                    return
                packed, self._is_inside = packed[at:], False
            member = zlib.decompressobj(_WINDOW)
            try:
                raw = member.decompress(packed, left)
            except zlib.error:
                self.broken += 1
                packed, self._is_inside = packed[1:], True
                continue
            if member.eof:
                packed, self._lines, self._is_large = member.unused_data, raw.count(b"\n"), False
                left = max(left - len(raw), 1)  # 0 would be no limit
                yield raw
            elif member.unconsumed_tail or len(packed) > LOOK:
                self._is_large = self._is_inside = True
                return
            else:
                self._rest = packed
                return


def _first_member(packed: bytes) -> int:
    """-1 if none begins in it."""
    at = packed.find(MAGIC)
    while at >= 0 and not begins_member(packed[at : at + LOOK]):
        at = packed.find(MAGIC, at + 1)
    return at


def buffering_of(size: int) -> Buffering:
    """Of a plain file with `size` bytes. A full buffer is written in one piece, and its last line
    may exceed it: the size of a file that is written so is a multiple and little more."""
    if not size:
        return Buffering.BUFFERED
    buffers, more = divmod(size, BUFFER)
    if more > (excess := buffers * _LINE):
        return Buffering.LIVE
    return Buffering.BUFFERED if excess <= BUFFER // 16 else Buffering.UNKNOWN
