"""Reads /proc: the state of a process, and the tree of processes.

Names are relative to /proc, such as ``4711/stat``.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Collection, Mapping
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from frd.model import NodeNs
from frd_agent import tap

PROC = Path("/proc")
_MAX_STATUS: Final = 64 * 1024
_LATELY_S: Final = 0.5
_PEERCRED: Final = struct.Struct("3i")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Vital(Enum):
    RUNNING = "running"
    STOPPED = "stopped"
    """By a signal or a debugger (state T or t): it exists and does nothing."""
    GONE = "gone"


class Stat(NamedTuple):
    """The fields of /proc/<pid>/stat that the agent uses; 0 where the kernel does not show one."""

    state: str
    parent: int
    cpu_ticks: int
    """User and system time of all its threads."""
    start_ticks: int
    """Since boot; with the pid it identifies a process."""
    start_code: int
    """Address of the program; 0 of a zombie."""
    start_stack: int
    """Forked children have their parent's; another address means an exec."""
    wait_status: int
    """Of a zombie, as `os.waitpid` would return it; 0 as well for a reader without permission."""

    @property
    def vital(self) -> Vital:
        if self.state in "ZXx":
            return Vital.GONE
        return Vital.STOPPED if self.state in "Tt" else Vital.RUNNING


def path_of(name: str) -> str:
    return os.path.join(PROC, name)


def read_file(name: str, most: int = 4096) -> bytes:
    """The whole file, which is small; at most about `most` bytes.

    Raises:
        OSError: as `open`.
    """
    fd = os.open(path_of(name), os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = [os.read(fd, most)]
        while parts[-1] and (size := sum(map(len, parts))) < most:
            parts.append(os.read(fd, most - size))
    finally:
        os.close(fd)
    return b"".join(parts)


def content(name: str, most: int = 4096) -> bytes:
    """As `read_file`; empty if this process may not read it, or it is not there."""
    with contextlib.suppress(OSError):
        return read_file(name, most)
    return b""


def names_in(folder: str) -> list[str]:
    """Empty if this process may not read it, or it is not there."""
    with contextlib.suppress(OSError):
        return os.listdir(path_of(folder))
    return []


def link(pid: int | str, name: str) -> str:
    """Target of a link of the process, such as ``fd/7`` or ``cwd``; empty if it cannot be read."""
    with contextlib.suppress(OSError):
        return os.readlink(path_of(f"{pid}/{name}"))
    return ""


def inode_of(link: str) -> int:
    """Of ``socket:[77]`` or ``pid:[77]``; 0 if it is something else."""
    inode = link.rpartition("[")[2].rstrip("]")
    return int(inode) if inode.isdecimal() else 0


def namespace_of(pid: int | str, kind: str) -> int:
    """The inode of its namespace of that kind, such as ``net``; 0 if we may not see it."""
    return inode_of(link(pid, f"ns/{kind}"))


def read_stat(pid: int | str) -> Stat | None:
    """None when there is no such process (or none that we may see).

    Raises:
        OSError: this process is short of descriptors or memory; nothing follows for the other.
    """
    try:
        raw = read_file(f"{pid}/stat")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The command's name is in parentheses and may itself contain spaces and parentheses.
    fields = raw[raw.rfind(b")") + 2 :].split()
    fields += [b"0"] * (50 - len(fields))
    numbers = [int(fields[index]) for index in (1, 11, 12, 19, 23, 25, 49)]
    parent, user, system, start, code, stack, status = numbers
    return Stat(fields[0].decode("ascii"), parent, user + system, start, code, stack, status)


def read_same(pid: int, start_ticks: int) -> Stat | None:
    """The process `pid` that started then; None if it was collected, even if its number is used
    again.

    Raises:
        OSError: as `read_stat`.
    """
    stat = read_stat(pid)
    return stat if stat is not None and stat.start_ticks == start_ticks else None


def own_start_ticks() -> int:
    """0 if /proc does not show this process."""
    stat = read_stat(os.getpid())
    return stat.start_ticks if stat is not None else 0


def read_all(known: Mapping[int, Stat] = MappingProxyType({})) -> dict[int, Stat]:
    """Every process that can be read. Those that are `known`, of a moment ago, are not read again
    while their parent lives: nothing else gives them another one.

    Raises:
        OSError: /proc cannot be listed.
    """
    found, pids = {}, {int(name) for name in os.listdir(PROC) if name.isdecimal()}
    for pid in pids:
        stat = known.get(pid)
        if stat is None or stat.parent not in pids:
            try:
                stat = read_stat(pid)
            except (OSError, ValueError):
                continue
        if stat is not None:
            found[pid] = stat
    return found


def by_parent(stats: Mapping[int, Stat]) -> dict[int, list[int]]:
    """The living children of each process."""
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        if stat.vital is not Vital.GONE:
            children.setdefault(stat.parent, []).append(pid)
    return children


def descendants(
    pid: int, children: Mapping[int, list[int]], *, but: Collection[int] = (), most: int = 1 << 20
) -> list[int]:
    """Processes below `pid`, nearest first, without the processes `but` and their descendants."""
    found = [pid]
    for parent in found:
        found += [child for child in children.get(parent, ()) if child not in but and child != pid]
        if len(found) > most:
            break
    return found[1 : most + 1]


def started_at(stat: Stat) -> NodeNs:
    """When a process of this host started, on the wall clock as it is now."""
    booted_ns = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(
        time.CLOCK_BOOTTIME
    )
    return NodeNs(booted_ns + stat.start_ticks * 1_000_000_000 // TICKS_PER_S)


def number_here(pid: int, start_ticks: int, namespace: int) -> int:
    """The number in our pid namespace of the process that started then and calls itself `pid` in
    its own `namespace` (0: unknown); 0 if there is none.

    Raises:
        OSError: as `read_stat`.
    """
    own = tap.pid_namespace()
    if namespace in (0, own) and read_same(pid, start_ticks) is not None:
        return pid
    if namespace == own:
        return 0
    found = []
    for other, stat in _all_lately().items():
        if stat.start_ticks == start_ticks and inner_pid(other) == pid:
            its = namespace_of(other, "pid")
            if its != own and namespace in (0, its or namespace):
                found.append(other)
    return found[0] if len(found) == 1 else 0


_lately: tuple[float, Mapping[int, Stat]] = -1.0, {}


def _all_lately() -> Mapping[int, Stat]:
    """`read_all`, once for all ranks that an agent finds together. A rank is older than that."""
    global _lately
    now_s = time.monotonic()
    if not 0 <= now_s - _lately[0] < _LATELY_S:
        _lately = now_s, read_all()
    return _lately[1]


def inner_pid(pid: int) -> int:
    """The number of a process in its own namespace; 0 if it is not shown."""
    return int((status_line(pid, "NSpid") or ["0"])[-1])


def status_line(pid: int | str, name: str) -> list[str]:
    """The words of a line of /proc/<pid>/status, such as ``Uid``; empty if it is not shown."""
    raw = content(f"{pid}/status", _MAX_STATUS)
    rest = (b"\n" + raw).partition(f"\n{name}:".encode())[2]
    return rest.partition(b"\n")[0].decode("ascii", "replace").split()


def is_of(pid: int, uid: int) -> bool:
    """All user ids of the process are `uid`: the real one, and those that an exec or the process
    itself may have changed."""
    return status_line(pid, "Uid") == [str(uid)] * 4


def peer_of(client: socket.socket) -> tuple[int, int]:
    """Pid (0: in a pid namespace that we do not see) and uid of the process that listens, as the
    kernel noted them when it began to."""
    raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
    pid, uid, _ = _PEERCRED.unpack(raw)
    return pid, uid


def capabilities(pid: int | str, which: str) -> int:
    """A set of capabilities, such as ``CapEff``; 0 if the process cannot be read."""
    return int("".join(status_line(pid, which)) or "0", 16)


def ptrace_scope() -> int:
    """Yama's restriction of which processes may read others; 0 on a kernel without it."""
    return int(content("sys/kernel/yama/ptrace_scope") or 0)


def has_tap(pid: int) -> bool:
    """The process has a thread of a tap; true as well of one that has ended."""
    with contextlib.suppress(OSError):
        return any(
            read_file(f"{pid}/task/{tid}/comm").strip() == tap.THREAD_NAME
            for tid in os.listdir(path_of(f"{pid}/task"))
        )
    return True
