"""What a blocked call acts on: the descriptors, the path, the lock, the peer.

One `Resolver` serves one round of samples of one rank; what it reads for several threads (mounts,
locks, descriptors) it reads once. It is asked again only when a thread has run, or when what holds
the object may have changed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, TypeVar

from frd_agent.inspection.reading.files import (
    Descriptors,
    End,
    Mount,
    OpenFile,
    mount_of,
    open_file,
    read_mounts,
    read_watched,
)
from frd_agent.inspection.reading.locks import (
    FLOCK,
    OFD,
    POSIX,
    FileLock,
    LockRow,
    lock_holder,
    read_locks,
)
from frd_agent.inspection.reading.memory import (
    Helper,
    Mapping,
    NotInTime,
    Polled,
    data_files,
    read_maps,
    read_path,
    read_polled,
    read_selected,
    shared_at,
)
from frd_agent.inspection.reading.sockets import Peer, Sockets
from frd_agent.inspection.reading.threads import Call, ThreadSample
from frd_agent.inspection.syscalls import (
    F_OFD_SETLKW,
    FROZEN,
    FUTEX_PRIVATE,
    SENDFILE,
    SENDFILE_OUT,
    VFORK,
    Class,
    Syscall,
    is_lock,
    syscall_of,
)
from frd_agent.proc import content, inode_of, link

_AT_FDCWD: Final = -100
_P_PID: Final = 1
_MAX_OBJECTS: Final = 64
"""Of one poll that are looked at."""
_PIPE_FUNCTIONS: Final = (b"pipe", b"wait_for_partner", b"fifo")
_SINK_FUNCTIONS: Final = (*_PIPE_FUNCTIONS, b"sk_", b"wait_woken")
_FREEZERS: Final = (b"__refrigerator", b"get_signal", b"do_freezer_trap")
_NEVER_IN_D: Final = (b"nanosleep", b"futex")
"""Waits in which only a frozen thread has the state D (freezer of version 1)."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Object:
    """A descriptor that a call waits for."""

    file: OpenFile
    ends: tuple[End, ...] = ()
    """Other processes that hold the other end of the pipe, or of the socket."""
    peer: Peer | None = None
    is_pipe: bool = False
    """It is a pipe or a FIFO: a FIFO has a path, and does not wait for its file system."""
    writes: bool = False
    """The process waits to be able to write; of other calls than polls, the call says it."""
    is_shared: bool = False
    """The process that waits holds the other end, too; of a socket, as it seems."""
    pair: int = 0
    """The inode of that end of a socket."""
    is_guess: bool = False
    """Who holds the other end is not certain."""


@dataclass(frozen=True, slots=True)
class Target:
    """Of one blocked call."""

    call: Syscall
    objects: tuple[Object, ...] = ()
    is_cut: bool = False
    """A poll has more of them."""
    path: str = ""
    mount: Mount | None = None
    """Of `path`."""
    holder: int | None = None
    """The process that holds the lock."""
    child: int = 0
    """Of wait4, in the pid namespace of the process; 0 any."""
    is_private: bool = False
    """A futex of this process only."""
    is_timed: bool = False
    """A wait for such a futex that ends with a time-out."""
    joins: int = 0
    """The thread whose end it may wait for, in the pid namespace of the process."""
    shared: str = ""
    """Identity of a futex or semaphore that several processes share."""
    name: str = ""
    """File name of that memory."""
    mapped: tuple[str, ...] = ()
    """After a page fault: the mapped files that are no programs and no libraries."""
    problem: str = ""
    """Why the object is not known."""

    @property
    def identity(self) -> tuple[object, ...]:
        """Two calls with the same identity wait for the same thing."""
        links = tuple([one.file.link or f"fd {one.file.fd}" for one in self.objects])
        parts = (links, self.path, self.child, self.is_private, self.shared)
        return (self.call.name, *parts)


@dataclass
class Resolver:
    family: Sequence[int]
    everyone: Callable[[], Sequence[int]]
    """All processes of the node, nearest first."""
    helper: Helper
    _mounts: dict[int, dict[int, Mount]] = field(default_factory=dict)
    _sockets: dict[int, Sockets] = field(default_factory=dict)
    """By process."""

    def target(self, pid: int, thread: ThreadSample, call: Call) -> Target:
        """What `call` of a thread of `pid` acts on."""
        tid = thread.tid
        if self._is_frozen(pid, thread):
            return Target(FROZEN)
        known = syscall_of(call.number)
        target = Target(known)
        match known.kind:
            case Class.FUTEX:
                return self._futex(target, pid, call)
            case Class.SEMAPHORE:
                return replace(target, shared=f"System V semaphore set {call.args[0]}")
            case Class.CHILD:
                return replace(target, child=_child(known, call))
            case Class.FAULT:
                nothing: list[Mapping] = []
                maps, problem = self._ask(lambda: read_maps(pid), nothing)
                return replace(target, mapped=data_files(maps), problem=problem)
            case Class.LOCK if is_lock(known, call.args[1]):
                return self._lock(target, pid, call)
            case Class.OPEN if known.path is not None:
                return self._path(target, pid, call)
            case Class.POLL | Class.SELECT | Class.EPOLL:
                fds, problem = self._polled(pid, known, call)
                found = tuple([self._object(pid, tid, known, *one) for one in fds[:_MAX_OBJECTS]])
                is_cut = len(fds) > _MAX_OBJECTS
                return replace(target, objects=found, is_cut=is_cut, problem=problem)
            case _ if known.name == SENDFILE:
                return self._sendfile(target, pid, tid, call)
            case _ if known.fd is not None:
                one = self._object(pid, tid, known, _signed(call.args[known.fd]))
                if known.offset is not None:
                    file = replace(one.file, position=call.args[known.offset])
                    one = replace(one, file=file)
                return replace(target, objects=(one,))
        return target

    # -- memory --------------------------------------------------------------------------------

    def _ask(self, read: Callable[[], T], otherwise: T) -> tuple[T, str]:
        """The result, or `otherwise` and why."""
        try:
            return self.helper.run(read), ""
        except NotInTime:
            return otherwise, "what the process waits for could not be read in time"
        except OSError as error:
            return otherwise, f"what the process waits for cannot be read: {error.strerror}"

    def _futex(self, target: Target, pid: int, call: Call) -> Target:
        if call.args[1] & FUTEX_PRIVATE:
            is_timed = target.call.timeout is not None and call.args[target.call.timeout] != 0
            return replace(target, is_private=True, is_timed=is_timed)
        at = call.args[0]
        (shared, name), problem = self._ask(lambda: shared_at(read_maps(pid), at), (f"@{at:x}", ""))
        if not shared:
            # The C library waits so for the end of a thread, whose number is the word in memory.
            return replace(target, is_private=True, joins=call.args[2] & 0xFFFFFFFF)
        return replace(target, shared=shared, name=name, problem=problem)

    def _path(self, target: Target, pid: int, call: Call) -> Target:
        known = target.call
        assert known.path is not None
        address = call.args[known.path]
        path, problem = self._ask(lambda: read_path(pid, address), "")
        if path and not path.startswith("/"):
            fd = _AT_FDCWD if known.fd is None else _signed(call.args[known.fd])
            folder = link(pid, "cwd" if fd == _AT_FDCWD else f"fd/{fd}")
            if not folder:
                problem = "the folder that the path is relative to cannot be read"
            path = posixpath.join(folder, path)
        elif not path and known.fd is not None and not problem:  # an empty path: the file itself
            path = link(pid, f"fd/{_signed(call.args[known.fd])}")
        mount = mount_of(path, self._mounts_of(pid)) if path else None
        return replace(target, path=path, mount=mount, problem=problem)

    def _polled(self, pid: int, known: Syscall, call: Call) -> tuple[tuple[Polled, ...], str]:
        args = call.args
        if known.kind is Class.EPOLL:
            return self._ask(lambda: read_watched(pid, _signed(args[0])), ())
        if known.kind is Class.SELECT:
            return self._ask(lambda: read_selected(pid, _signed(args[0]), args[1:4]), ())
        return self._ask(lambda: read_polled(pid, args[0], args[1]), ())

    # -- descriptors ---------------------------------------------------------------------------

    def _mounts_of(self, pid: int) -> dict[int, Mount]:
        if pid not in self._mounts:
            self._mounts[pid] = read_mounts(pid)
        return self._mounts[pid]

    def _object(self, pid: int, tid: int, known: Syscall, fd: int, writes: bool = False) -> Object:
        file = open_file(pid, fd, self._mounts_of(pid))
        is_pipe = file.special == "pipe" or (file.is_path and self._is_in_pipe(pid, tid))
        if is_pipe:
            is_write = writes or known.kind is Class.WRITE
            other = "w" if "r" in file.access and not is_write else "r"
            ends = [end for end in self._ends(file.link, pid) if other in end.access]
            is_shared = End(pid, other) in self._own.ends(file.link)
            return Object(file, tuple(ends), is_pipe=True, writes=writes, is_shared=is_shared)
        if file.special == "socket":
            return replace(self._socket(pid, file), writes=writes)
        return Object(file, writes=writes)

    def _is_in_pipe(self, pid: int, tid: int) -> bool:
        """Whether a path is a FIFO's."""
        function = self._function(pid, tid)
        return any(name in function for name in _PIPE_FUNCTIONS)

    def _is_frozen(self, pid: int, thread: ThreadSample) -> bool:
        function = self._function(pid, thread.tid)
        is_odd = thread.state == "D" and any(name in function for name in _NEVER_IN_D)
        return function in _FREEZERS or is_odd

    def _function(self, pid: int, tid: int) -> bytes:
        """The kernel function that the thread sleeps in; empty if it cannot be read."""
        return content(f"{pid}/task/{tid}/wchan")

    def _socket(self, pid: int, file: OpenFile) -> Object:
        inode = inode_of(file.link)
        if pid not in self._sockets:
            self._sockets[pid] = Sockets(pid)
        peer = self._sockets[pid].peer_of(inode)
        if peer is not None and peer.inode:
            return Object(file, self._ends(f"socket:[{peer.inode}]", pid), peer)
        if peer is not None and _is_unnamed(peer):
            # The ends of a socket pair mostly get successive inodes; so do other sockets.
            pairs = {
                other: self._own.ends(f"socket:[{other}]")
                for other in (inode + 1, inode - 1)
                if _is_unnamed(self._sockets[pid].peer_of(other))
            }
            for held in pairs.values():
                if ends := tuple([end for end in held if end.pid != pid]):
                    return Object(file, ends, peer, is_guess=True)
            pair = next((other for other, held in pairs.items() if held), 0)
            return Object(file, peer=peer, is_shared=pair > 0, pair=pair)
        return Object(file, peer=peer)

    def _ends(self, target: str, but: int) -> tuple[End, ...]:
        """In the rank's own processes if there, else in any process of the node."""
        near = tuple([end for end in self._own.ends(target) if end.pid != but])
        return near or tuple([end for end in self._all.ends(target) if end.pid != but])

    @cached_property
    def _own(self) -> Descriptors:
        return Descriptors(self.family)

    @cached_property
    def _all(self) -> Descriptors:
        return Descriptors(self.everyone())

    def _sendfile(self, target: Target, pid: int, tid: int, call: Call) -> Target:
        """It reads one descriptor and writes another, and where it sleeps shows which it is in."""
        source, sink = (
            self._object(pid, tid, syscall, _signed(call.args[at]))
            for syscall, at in ((target.call, 1), (SENDFILE_OUT, 0))
        )
        if sink.file.is_path and not sink.is_pipe:
            return replace(target, objects=(source,))
        function = self._function(pid, tid)
        if any(name in function for name in _SINK_FUNCTIONS):
            return Target(SENDFILE_OUT, objects=(sink,))
        is_known = function not in (b"", b"0")
        return replace(target, objects=(source,)) if is_known else target

    # -- locks ---------------------------------------------------------------------------------

    def _lock(self, target: Target, pid: int, call: Call) -> Target:
        file = open_file(pid, _signed(call.args[0]), self._mounts_of(pid))
        lock = FileLock(_lock_kind(target.call, call), file.link, file.inode)
        holder = lock_holder(self._locks, lock, pid, self.everyone)
        return replace(
            target, objects=(Object(file),), path=file.link, mount=file.mount, holder=holder
        )

    @cached_property
    def _locks(self) -> Sequence[LockRow]:
        return read_locks()


def _is_unnamed(peer: Peer | None) -> bool:
    """As both ends of a socket pair are."""
    return peer is not None and peer.is_unix and not (peer.address or peer.is_listening)


def _signed(value: int) -> int:
    """An int argument, which is in the lower half of a register."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 1 << 31 else value


def _lock_kind(known: Syscall, call: Call) -> str:
    if known.name == "flock":
        return FLOCK
    return OFD if call.args[1] == F_OFD_SETLKW else POSIX


def _child(known: Syscall, call: Call) -> int:
    if known.name == VFORK:
        return 0
    if known.name == "waitid":
        return call.args[1] if call.args[0] == _P_PID else 0
    return max(_signed(call.args[0]), 0)
