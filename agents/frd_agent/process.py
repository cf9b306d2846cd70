"""Is the process of a rank still there, and is it still the same one?

A number is not a process: pids are used again, and a rank in a container has one number inside and
another outside. So a process is pinned once, by a pidfd where the kernel has them, and by its start
time in /proc. Who listens on the rank's socket is asked of the kernel, which answers in *our* pid
namespace; when it cannot (the namespaces are apart), the socket itself is all there is to watch.

A zombie has exited: nothing of it will ever run again. Nothing here knows ranks, rings or streams.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from frd.model import NodeNs

_PEERCRED = struct.Struct("3i")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_START_SLACK_NS = 5_000_000_000
"""The wall clock may have been stepped a little between the start of a process and now."""


class Vital(Enum):
    RUNNING = "running"
    STOPPED = "stopped"
    """By a signal or a debugger (state T or t): it exists and does nothing."""
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Stat:
    """The part of /proc/<pid>/stat that tells one process from the next."""

    state: str
    start_ticks: int

    @property
    def vital(self) -> Vital:
        if self.state in "ZXx":
            return Vital.GONE
        return Vital.STOPPED if self.state in "Tt" else Vital.RUNNING


def read_stat(pid: int, proc: Path = Path("/proc")) -> Stat | None:
    """None when there is no such process (or none that we may see).

    Raises:
        OSError: this process is short of descriptors or memory, which says nothing of the other.
    """
    try:
        raw = (proc / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The command's name is in parentheses and may hold spaces and parentheses of its own.
    fields = raw[raw.rfind(b")") + 2 :].split()
    return Stat(state=fields[0].decode("ascii"), start_ticks=int(fields[19]))


def started_at(stat: Stat) -> NodeNs:
    """When a process of this host started, on the wall clock as it is now."""
    booted_ns = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(
        time.CLOCK_BOOTTIME
    )
    return NodeNs(booted_ns + stat.start_ticks * 1_000_000_000 // _TICKS_PER_S)


class Process:
    """One process, pinned: a later one with the same number is not taken for it."""

    def __init__(self, pid: int, start_ticks: int, pidfd: int | None) -> None:
        self.pid = pid
        self._start_ticks = start_ticks
        self._pidfd = pidfd

    @classmethod
    def pin(cls, pid: int, not_after_ns: NodeNs | None = None) -> Process | None:
        """The process with this number; None when it is gone.

        `not_after_ns`: a time at which the process is known to have run already; a process that
        started later has merely inherited the number. None trusts the number.

        Raises:
            OSError: as `read_stat`.
        """
        pidfd = None
        with contextlib.suppress(OSError, AttributeError):
            pidfd = os.pidfd_open(pid)
        try:
            stat = read_stat(pid)
        except OSError:
            if pidfd is not None:
                os.close(pidfd)
            raise
        inherited = (
            stat is not None
            and not_after_ns is not None
            and started_at(stat) > not_after_ns + _START_SLACK_NS
        )
        if stat is None or stat.vital is Vital.GONE or inherited:
            if pidfd is not None:
                os.close(pidfd)
            return None
        return cls(pid, stat.start_ticks, pidfd)

    def look(self) -> Vital:
        try:
            stat = read_stat(self.pid)
        except OSError:
            return Vital.RUNNING  # nobody has seen it go
        if stat is None or stat.start_ticks != self._start_ticks:
            return Vital.GONE
        return stat.vital

    def describe(self) -> str:
        """For people: ``process 4711 is stopped (state T)``."""
        try:
            stat = read_stat(self.pid)
        except OSError as error:
            return f"process {self.pid} cannot be looked at: {error.strerror}"
        if stat is None or stat.start_ticks != self._start_ticks:
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

    @property
    def pidfd(self) -> int | None:
        """Becomes readable when the process exits; None on kernels without."""
        return self._pidfd

    def close(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


class Listener(Enum):
    """What became of asking who listens on a socket."""

    NOBODY = "nobody"
    """Refused or no such file."""
    ELSEWHERE = "elsewhere"
    """Somebody, in a pid namespace that we cannot see into."""


def listener(address: str) -> int | Listener:
    """The pid, in our namespace, of the process that listens on a unix socket.

    The kernel completes the connection without the process's help, so a stopped one is found too.

    Raises:
        OSError: this process is short of descriptors or memory.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(address)
        except BlockingIOError:
            return Listener.ELSEWHERE  # its backlog is full: somebody is there
        except OSError:
            return Listener.NOBODY
        raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
    pid: int = _PEERCRED.unpack(raw)[0]
    return pid if pid > 0 else Listener.ELSEWHERE
