"""Clocks of an attempt: the ranks of one agent session share one clock.

Knows the line that leads from node times of each clock to aligned ones, and how uncertain it is.
Both are estimated elsewhere (`frd.engine.clocks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final

import numpy as np

from frd.engine.clocks.alignment import UNKNOWN_NS, Alignment
from frd.engine.state.attempt_tables import AttemptTables
from frd.model import AlignedNs, RankInfo

_SAME_CLOCK_NS: Final = 12_000_000_000
"""Two sessions whose clocks show the same to within this read the same clock. The first line of a
session is only a guess: it is late by what passed between the stamp of its Hello and the Hello's
arrival, and a connection may take 10 s to stand. Later lines are better, but times that were moved
stay where they are. Clocks of two time namespaces mostly differ by far more."""


class SessionClocks:
    def __init__(self, tables: AttemptTables, moved: Callable[[int, int], None]) -> None:
        """`moved` is called with a rank and the ns by which its node times have moved."""
        self.revision = 0
        """Changes with every line."""
        self._tables = tables
        self._moved = moved
        self._ranks = tables.ranks

    def set(
        self,
        ranks: Sequence[int],
        session: int,
        uncertainty_ns: int | None,
        now: AlignedNs,
        alignment: Alignment | None = None,
    ) -> None:
        """How well the clock of these ranks is known; None while it is unsynchronized.

        `session` is the number of their agent session. Without an `alignment`, node times are
        aligned times. Call it again after a rank was declared again, which forgets the clock.
        """
        rank = np.asarray(ranks, np.int64)
        bound = UNKNOWN_NS if uncertainty_ns is None else uncertainty_ns
        line = (0, 0, 0.0)
        if alignment is not None:
            line = (alignment.at_ns, alignment.aligned_ns, alignment.rate)
        is_other = (self._ranks.session[rank] != session) & (self._ranks.session[rank] >= 0)
        before = self._ranks.to_node(rank, now)
        self._ranks.set_clock(rank, session, bound, now, line)
        if is_other.any():
            # Another session: keep the moments of what is known, if its clock shows other times.
            by_ns = np.where(is_other, self._ranks.to_node(rank, now) - before, 0)
            for one, ns in zip(rank.tolist(), by_ns.tolist(), strict=True):
                if abs(ns) > _SAME_CLOCK_NS:
                    self._tables.move_times(one, ns)
                    self._moved(one, ns)
        self.revision += 1

    def ranks_of_session(self, declared: Iterable[RankInfo], session: int) -> list[int]:
        """The ranks of `declared` that still belong to `session`: no other process and no other
        agent has replaced them."""
        ranks = self._ranks
        return [
            info.rank
            for info in declared
            if ranks.infos.get(info.rank) == info and ranks.session.item(info.rank) == session
        ]

    @property
    def count(self) -> int:
        session = self._ranks.session[: self._ranks.count]
        return len(np.unique(session[session >= 0]))

    def unsynchronized(self) -> list[tuple[int, ...]]:
        """The ranks of each connected agent whose clock is unknown; empty where all ranks share
        one clock, because it is compared with no other."""
        ranks, count = self._ranks, self._ranks.count
        session = ranks.session[:count]
        reported = ranks.declared[:count] & ranks.connected[:count] & (session >= 0)
        unknown = reported & (ranks.uncertainty_ns[:count] == UNKNOWN_NS)
        if not unknown.any() or len(np.unique(session[reported])) < 2:
            return []
        rank = np.flatnonzero(unknown)
        rank = rank[np.argsort(session[rank], kind="stable")]
        return [tuple(some) for _, some in groupby(rank.tolist(), key=session.item)]
