"""Which ranks of an attempt are there: gone or silent, with a connected agent, in which groups.

Reads the tables of one attempt and changes nothing. What an absence means is for the detectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frd.engine.state.p2p import P2PChannels
from frd.engine.state.tables import (
    EXITED,
    FINISHED,
    SILENT,
    STATES,
    GroupTable,
    PairTable,
    RankTable,
)
from frd.model import UNKNOWN_SEQ, AlignedNs, Int32s, RankState


@dataclass(frozen=True, slots=True)
class Presence:
    _ranks: RankTable
    _groups: GroupTable
    _pairs: PairTable
    _channels: P2PChannels

    def all_gone(self) -> bool:
        """All ranks that were ever declared are gone."""
        rank = self._ranks.sorted()
        return len(rank) > 0 and bool((self._ranks.state[rank] >= EXITED).all())

    @property
    def has_agents(self) -> bool:
        """An agent that reports a rank is connected."""
        return bool(self._ranks.connected[: self._ranks.count].any())

    def lost(self) -> tuple[tuple[int, RankState, AlignedNs], ...]:
        """Ranks that exited uncleanly or are silent, and since when."""
        ranks, rank = self._ranks, self._ranks.sorted()
        state = ranks.state[rank]
        lost = rank[(state == SILENT) | (state == EXITED)]
        return tuple(
            (r, STATES[ranks.state[r]], AlignedNs(int(ranks.state_since[r]))) for r in lost.tolist()
        )

    def has_deserters(self) -> bool:
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

    def node_of(self, rank: int) -> str:
        """The name of the rank's host, empty when the rank was never declared."""
        info = self._ranks.infos.get(rank)
        return info.node if info is not None else ""

    def members(self, group: int) -> Int32s:
        """Global ranks, ascending where the membership is known."""
        return self._pairs.rank[self._groups.rows(group)]

    def groups_of(self, rank: int) -> Int32s:
        pairs = self._pairs
        groups: Int32s = pairs.group[: pairs.count][pairs.rank[: pairs.count] == rank]
        return groups

    def is_dark(self, group: int) -> bool:
        """The agent of some member is not connected, or a member was never declared."""
        rank = self.members(group)
        return not (self._ranks.knows(rank).all() and self._ranks.connected[rank].all())

    def may_send(self, rank: int) -> bool:
        """The rank sends or receives, as far as that can be known.

        Gloo's recorder shows no sends and receives, and a group in which all members do nothing
        else shows no collectives.
        """
        if self._channels.was_seen(rank):
            return True
        info = self._ranks.infos.get(rank)
        if info is None or "gloo" not in info.backends:
            return False
        groups = self.groups_of(rank).tolist()
        watermarks = [self._pairs.enqueued[self._groups.rows(group)] for group in groups]
        return any(len(enqueued) > 1 and enqueued.max() < 0 for enqueued in watermarks)
