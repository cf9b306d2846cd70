"""Which ranks of an attempt are there: gone or silent, with a connected agent.

Reads the tables of one attempt and changes nothing. What an absence means is for the detectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frd.engine.state.tables import EXITED, FINISHED, SILENT, GroupTable, PairTable, RankTable
from frd.model import UNKNOWN_SEQ


@dataclass(frozen=True, slots=True)
class Presence:
    _ranks: RankTable
    _groups: GroupTable
    _pairs: PairTable

    def all_gone(self) -> bool:
        """All ranks that were ever declared are gone."""
        rank = self._ranks.sorted()
        return len(rank) > 0 and bool((self._ranks.state[rank] >= EXITED).all())

    @property
    def has_agents(self) -> bool:
        """An agent that reports a rank is connected."""
        return bool(self._ranks.connected[: self._ranks.count].any())

    def has_exits(self) -> bool:
        """A rank exited uncleanly, is silent, or finished too early."""
        state = self._ranks.state[self._ranks.sorted()]
        return bool(((state == SILENT) | (state == EXITED)).any()) or self._has_deserters()

    def _has_deserters(self) -> bool:
        """A rank has finished without a collective that other members of its group joined."""
        ranks, pairs = self._ranks, self._pairs
        if not (ranks.state[: ranks.count] == FINISHED).any():
            return False
        n = pairs.count
        finished = ranks.knows(pairs.rank[:n])
        finished[finished] = ranks.state[pairs.rank[:n][finished]] == FINISHED
        layout = pairs.layout()
        highest = np.full(self._groups.count, UNKNOWN_SEQ, np.int64)
        highest[layout.groups] = np.maximum.reduceat(pairs.enqueued[layout.order], layout.starts)
        row = np.flatnonzero(finished)
        return bool((pairs.enqueued[row] < highest[pairs.group[row]]).any())
