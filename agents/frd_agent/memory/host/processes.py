"""Host memory of a rank: unreclaimable memory of its process and its children.

Counted are anonymous pages, shared memory and what was swapped out. Pages of files are not: the
kernel drops them when it needs room, and a dataset that is mapped would look like a leak. Of
children (data loaders) only anonymous pages count, because the shared memory in which they hand
over batches is mapped by the parent as well; and of a forked one, which begins with all of its
parent's pages, those that it has beyond its parent's when it is first seen.

The proportional set size (PSS) would be more exact, but is not read: the kernel walks the page
tables for it, 13 ms for each GiB (measured, 4 KiB pages), under a lock that the rank needs for
its own mmap. These counters cost 10 µs for the rank, in its status, and 2 µs for a child, in its
statm, and no lock; a rank's status is read only if its statm has changed. What copy-on-write slowly
duplicates in forked loaders only the cgroup knows (`frd_agent.memory.host.cgroup`).

Files of /proc stay open: that halves the cost, and an open file never refers to a later process
with the same pid.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from frd_agent.memory.target import NO_SAMPLE
from frd_agent.proc import Stat, by_parent, content, descendants, path_of, read_all

SCAN_S: Final = 2.0
"""How often children are looked for."""
_SCAN_SHARE: Final = 1 / 500
"""A node with very many processes is scanned more rarely, to take no more than this of a core."""
_MAX_CHILDREN: Final = 64
"""Of one rank that are counted; the first ones found."""
_MAX_OPEN: Final = 384
"""Files; beyond that, children are not counted."""
_MAX_STATUS: Final = 8192
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_COUNTED: Final = (b"\nRssAnon:", b"\nRssShmem:", b"\nVmSwap:")


@dataclass(slots=True)
class _Rank:
    statm: int
    """Descriptor."""
    seen: bytes = b""
    """What it gave just before its status was read."""
    own: int = NO_SAMPLE


@dataclass(slots=True)
class _Child:
    statm: int
    inherited: int
    """Bytes that it has in common with its parent."""


class ProcessMemory:
    """Of all ranks of one node. Lives on one thread."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        """By pid."""
        self._below: dict[int, list[int]] = {}
        """Pids of the children of each rank, and of theirs."""
        self._children: dict[int, _Child] = {}
        self._scan_at = 0.0
        self._processes: Mapping[int, Stat] = {}
        """As of the last scan."""

    def look_around(self, ranks: Iterable[int], now_s: float) -> None:
        """Look up the children of these processes again, when that is due."""
        pids = frozenset(ranks)
        if now_s < self._scan_at and pids == self._below.keys():
            return
        began = time.thread_time()
        ours = self._ranks.keys() | self._children.keys()  # one that has ended since is a zombie
        self._processes = read_all(
            {pid: stat for pid, stat in self._processes.items() if pid not in ours}
        )
        children = by_parent(self._processes)
        self._below = {
            pid: descendants(pid, children, but=pids, most=_MAX_CHILDREN) for pid in pids
        }
        self._follow(pids)
        cost_s = time.thread_time() - began
        self._scan_at = now_s + max(SCAN_S, cost_s / _SCAN_SHARE)

    def _follow(self, pids: frozenset[int]) -> None:
        """Open what is new and close what is gone."""
        for pid in self._ranks.keys() - pids:
            os.close(self._ranks.pop(pid).statm)
        for pid in pids - self._ranks.keys():
            if (fd := _open(f"{pid}/statm")) is not None:
                self._ranks[pid] = _Rank(fd)
        known = {child for children in self._below.values() for child in children}
        for pid in self._children.keys() - known:
            os.close(self._children.pop(pid).statm)
        for pid in known - self._children.keys():
            if len(self._ranks) + len(self._children) >= _MAX_OPEN:
                break
            if (fd := _open(f"{pid}/statm")) is not None:
                self._children[pid] = _Child(fd, self._inherited(pid, fd))

    def _inherited(self, pid: int, statm: int) -> int:
        """0 after an exec, which is recognized by another address of the stack."""
        processes = self._processes
        parent = processes[pid].parent
        if parent in processes and processes[parent].start_stack != processes[pid].start_stack:
            return 0
        fields = content(f"{parent}/statm")
        return min(_private(_pread(statm)), _private(fields))

    def used(self, pid: int) -> int:
        """Bytes; `NO_SAMPLE` when the process cannot be read."""
        if (rank := self._ranks.get(pid)) is None:
            return NO_SAMPLE
        if (statm := _pread(rank.statm)) != rank.seen:
            raw = content(f"{pid}/status", _MAX_STATUS)
            # If not: gone, perhaps with another process of that pid, or a zombie, or an old kernel.
            is_known = b"\nRssAnon:" in raw and _pread(rank.statm)
            rank.seen, rank.own = statm, NO_SAMPLE
            if is_known:
                rank.own = sum([_kib(raw, name) for name in _COUNTED]) * 1024
        if rank.own == NO_SAMPLE:
            return NO_SAMPLE
        return rank.own + sum([self._growth(child) for child in self._below.get(pid, ())])

    def has_lost(self, pid: int | None) -> bool:
        """It has no memory any more, or a child of the last scan has none; or it is unknown."""
        below = filter(None, map(self._children.get, self._below.get(pid or 0, ())))
        return self.used(pid or 0) == NO_SAMPLE or not all(_private(_pread(c.statm)) for c in below)

    def _growth(self, pid: int) -> int:
        if (child := self._children.get(pid)) is None:
            return 0
        return max(_private(_pread(child.statm)) - child.inherited, 0)

    def close(self) -> None:
        self._below.clear()
        self._follow(frozenset())


def _kib(raw: bytes, name: bytes) -> int:
    at = raw.find(name)
    return 0 if at < 0 else int(raw[at + len(name) : raw.index(b"kB", at)])


def _private(statm: bytes) -> int:
    """Bytes that are neither a file's nor shared memory."""
    fields = statm.split(maxsplit=3)
    return max(int(fields[1]) - int(fields[2]), 0) * _PAGE if len(fields) > 3 else 0


def _open(name: str) -> int | None:
    try:
        return os.open(path_of(name), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _pread(fd: int) -> bytes:
    """Empty when the process is gone."""
    try:
        return os.pread(fd, 4096, 0)
    except OSError:
        return b""


def total_bytes() -> int:
    """Memory of the machine; 0 when unknown."""
    return _kib(b"\n" + content("meminfo"), b"\nMemTotal:") * 1024
