"""The tree of processes of this node: which belong to a rank, and of which rank a process is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from frd.model import Holder
from frd_agent.inspection.reading.threads import comm
from frd_agent.proc import PROC, Stat, by_parent, descendants, read_all

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

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._stats: dict[int, Stat] = {}
        self._children: dict[int, list[int]] = {}
        self._scan_at_s = 0.0

    def look(self, now_s: float) -> None:
        """Read the tree again, when that is due."""
        if now_s < self._scan_at_s:
            return
        began = time.thread_time()
        try:
            self._stats = read_all(self._proc)
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

    def holder(self, pid: int, rank_of: RankOf) -> Holder:
        """A process, with the rank that it or a parent of it is."""
        above: int | None = pid
        for _ in range(_MAX_DEPTH):
            if above is None or above in rank_of:
                break
            stat = self._stats.get(above)
            above = stat.parent if stat is not None and stat.parent > 1 else None
        rank = rank_of.get(above) if above is not None else None
        return Holder(pid, rank, comm(pid, pid, self._proc))
