"""Is the process of a rank still there, is it still the same one, and how did it end?

A number is not a process: pids are used again, and a rank in a container has one number inside and
another outside, where the number may be that of any other process. So a process is pinned once, by
a pidfd where the kernel has them, and by its start time in /proc, which its tap has published. Who
listens on the rank's socket is asked of the kernel, which answers in *our* pid namespace; without a
socket, /proc shows which process here has that number inside. If neither finds the process, the
namespaces are apart, and the socket itself is all there is to watch.

A zombie has exited: nothing of it will ever run again. Its exit status is in /proc/<pid>/stat
until its parent reaps it, which a waiting launcher does immediately; from Linux 6.15 on the pidfd
has the status after that (and only after that). So both are read.

Nothing here knows ranks, rings or streams.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from enum import Enum

from frd.model import NodeRawNs
from frd_agent.node_time import raw_now
from frd_agent.proc import Stat, Vital, is_of, peer_of, read_same, read_stat
from frd_agent.recorder import room

HIDDEN = (
    "its process is in another pid namespace: set shareProcessNamespace in the pod, or hostPID for "
    "an agent of the whole node"
)
_STATUS_PATIENCE_S = 1.0
"""Time for the parent to reap a zombie whose status only the pidfd will have."""

_PIDFD_INFO = struct.Struct("=QQ11Ii")
"""`struct pidfd_info` of Linux: mask, cgroup id, pids and user ids, exit_code."""
_PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11
_PIDFD_INFO_EXIT = 1 << 3
_START_CODE_HIDDEN = 1
"""The start code that the kernel shows of a live process to a reader without permission to see its
addresses. To that reader every zombie shows exit status 0."""


def collected_status(pidfd: int) -> int | None:
    """The wait status of a process that its parent has collected; None before that, and on kernels
    before 6.15."""
    info = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return None
    mask, *_, status = _PIDFD_INFO.unpack(info)
    return status if mask & _PIDFD_INFO_EXIT else None


@dataclass(frozen=True, slots=True)
class End:
    """The end of a process, as reported by the kernel."""

    at_ns: NodeRawNs
    """When it was seen."""
    wait_status: int | None
    """As `os.waitpid` would return it; None when it is not known."""


class Process:
    """One process, pinned: a later one with the same number is not taken for it."""

    def __init__(self, pid: int, stat: Stat, pidfd: int | None) -> None:
        self.pid = pid
        self.end: End | None = None
        """Set once `look` or `ended` has seen the end."""
        self._ended_at_s = 0.0
        self._start_ticks = stat.start_ticks
        self.pidfd = pidfd
        """Becomes readable when the process exits; None on kernels without."""
        self._exit = select.poll() if pidfd is not None else None
        if self._exit is not None and pidfd is not None:
            self._exit.register(pidfd, select.POLLIN)
        self._has_status = stat.start_code > _START_CODE_HIDDEN
        """/proc has its exit status."""

    @classmethod
    def pin(cls, pid: int, start_ticks: int = 0) -> Process | None:
        """The process with this number; None when it is gone.

        `start_ticks`: when it started; a process that started at another time has merely inherited
        the number. 0 trusts the number.

        Raises:
            OSError: as `read_stat`.
        """
        with contextlib.ExitStack() as opened:
            pidfd = None
            with contextlib.suppress(OSError, AttributeError):
                pidfd = os.pidfd_open(pid)
                opened.callback(os.close, pidfd)
            stat = read_stat(pid)
            if stat is None or stat.vital is Vital.GONE:
                return None
            if start_ticks not in (0, stat.start_ticks):
                return None
            opened.pop_all()
            return cls(pid, stat, pidfd)

    @property
    def key(self) -> tuple[int, int]:
        """By which the kernel knows it: its number, and when it started."""
        return self.pid, self._start_ticks

    def is_of(self, uid: int) -> bool:
        """It is still there, and all its user ids are `uid`."""
        has_uid = is_of(self.pid, uid)  # first: then it is of this process if that is there
        with contextlib.suppress(OSError):
            return has_uid and self._stat() is not None
        return False

    def look(self, *, is_moving: bool = False) -> Vital:
        """`is_moving`: it is not stopped."""
        if is_moving and self._exit is not None and not self._exit.poll(0):
            return Vital.RUNNING
        try:
            stat = self._stat()
        except OSError:
            return Vital.RUNNING  # not known to have ended
        if stat is None or stat.vital is Vital.GONE:
            end = self.ended(raw_now())
            is_early = time.monotonic() - self._ended_at_s < _STATUS_PATIENCE_S
            if stat is not None and end.wait_status is None and is_early:
                return Vital.RUNNING  # its exit status may be known in a moment
            return Vital.GONE
        return stat.vital

    def ended(self, now_ns: NodeRawNs) -> End:
        """The end of the process. The first call sets the time; later calls look again for an exit
        status that was not available."""
        if self.end is None:
            self._ended_at_s = time.monotonic()
            self.end = End(now_ns, self._wait_status())
        elif self.end.wait_status is None:
            self.end = End(self.end.at_ns, self._wait_status())
        return self.end

    def _wait_status(self) -> int | None:
        with contextlib.suppress(OSError):
            stat = self._stat()
            if stat is not None and stat.vital is Vital.GONE and self._has_status:
                return stat.wait_status
        return collected_status(self.pidfd) if self.pidfd is not None else None

    def _stat(self) -> Stat | None:
        """None when the process has been collected."""
        return read_same(self.pid, self._start_ticks)

    def describe(self) -> str:
        """For people: ``process 4711 is stopped (state T)``."""
        try:
            stat = self._stat()
        except OSError as error:
            return f"process {self.pid} cannot be read: {error.strerror}"
        if stat is None:
            return f"process {self.pid} is gone"
        words = {
            "T": "stopped",
            "t": "stopped by a debugger",
            "D": "in an uninterruptible wait",
            "Z": "a zombie",
            "R": "running",
            "S": "sleeping",
        }
        return f"process {self.pid} is {words.get(stat.state, 'alive')} (state {stat.state})"

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = self._exit = None


class Listener(Enum):
    """Why the process that listens on a socket has no pid."""

    NONE = "none"
    """The connection is refused, or the file does not exist."""
    ELSEWHERE = "elsewhere"
    """A process in a pid namespace that the agent cannot see, or of another user."""


def listener(address: str, owner: int | None = None) -> int | Listener:
    """The pid, in our namespace, of the process of the user `owner` that listens on a unix socket.

    The kernel completes the connection without the process's help, so a stopped one is found too.
    Nothing is known while the rank might not survive a connection (`room`).

    Raises:
        OSError: this process is short of descriptors or memory.
    """
    if room.of_node():
        return Listener.ELSEWHERE
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(address)
        except BlockingIOError:
            return Listener.ELSEWHERE  # its backlog is full: a process listens
        except PermissionError:
            return Listener.ELSEWHERE  # of another user: not known to have ended
        except OSError:
            return Listener.NONE
        pid, uid = peer_of(client)
    return pid if pid > 0 and owner in (None, uid) else Listener.ELSEWHERE
