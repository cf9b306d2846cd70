"""The tree of processes of this node: which belong to a rank, and of which rank a process is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from frd.model import Holder
from frd_agent.inspection.reading.locks import NodeLocks
from frd_agent.inspection.reading.threads import comm
from frd_agent.proc import Stat, by_parent, descendants, read_all

SCAN_S: Final = 2.0
_SCAN_SHARE: Final = 1 / 400
"""A node with very many processes is scanned more rarely, to take no more than this of a core."""
MAX_FAMILY: Final = 128
"""Processes of one rank, itself included; the nearest ones."""
_MAX_DEPTH: Final = 64

RankOf: TypeAlias = Mapping[int, int | None]
"""The rank of each rank process of the node, by pid; None if it is of another job."""


class Processes:
    """Lives on one thread."""

    def __init__(self) -> None:
        self.locks = NodeLocks()
        """As of the last `look`."""
        self._stats: dict[int, Stat] = {}
        self._children: dict[int, list[int]] = {}
        self._scan_at_s = 0.0

    def look(self, now_s: float) -> None:
        """Read the tree again, when that is due. Call it once for each round of samples."""
        self.locks.forget()
        if now_s < self._scan_at_s:
            return
        began = time.thread_time()
        try:
            self._stats = read_all()
        except OSError:
            return  # short of descriptors: the tree as it was
        self._children = by_parent(self._stats)
        cost_s = time.thread_time() - began
        self._scan_at_s = now_s + max(SCAN_S, cost_s / _SCAN_SHARE)

    def family(self, pid: int, ranks: Iterable[int]) -> list[int]:
        """The process and its descendants that are no other rank's, nearest first."""
        below = descendants(pid, self._children, but=frozenset(ranks), most=MAX_FAMILY - 1)
        return [pid, *below]

    def children(self, pid: int) -> list[int]:
        return self._children.get(pid, [])

    def everyone(self) -> list[int]:
        return list(self._stats)

    def above(self, pid: int) -> list[int]:
        """Its parent, the parent of that, and so on; without the first process of the node."""
        found: list[int] = []
        stat = self._stats.get(pid)
        while stat is not None and stat.parent > 1 and len(found) < _MAX_DEPTH:
            found.append(stat.parent)
            stat = self._stats.get(stat.parent)
        return found

    def holder(self, pid: int, rank_of: RankOf) -> Holder:
        """A process, with the rank that it or a parent of it is."""
        ranks = [rank_of[one] for one in (pid, *self.above(pid)) if one in rank_of]
        return Holder(pid, ranks[0] if ranks else None, comm(pid, pid))
