"""Which rank of a snapshot is in which group and on which node, and which ranks may send."""

from __future__ import annotations

import numpy as np

from frd.engine.matching.arrivals import as_culprit
from frd.engine.state.snapshot import Snapshot
from frd.model import Int32s, Int64s


class Topology:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._member = snapshot.pairs.rank
        self._group = snapshot.pairs.groups()
        ranks = 1 + max(snapshot.rank.max(initial=-1), self._member.max(initial=-1))
        self.node = np.full(ranks, -1, np.int32)
        """By rank; -1 where no agent has reported it yet."""
        self.node[snapshot.rank] = snapshot.clocks.node

    def members(self, group: int) -> Int32s:
        return self._member[self._snapshot.pairs.rows(group)]

    def groups(self, rank: int) -> Int64s:
        """The groups of a rank."""
        groups: Int64s = self._group[self._member == rank]
        return groups

    def late_ones(self, group: int, culprit: int) -> Int32s:
        """The ranks of a culprit: the rank itself, or the group's ranks on that node."""
        if culprit >= 0:
            return np.array([culprit], np.int32)
        members = self.members(group)
        here: Int32s = members[self.node[members] == as_culprit(culprit)]
        return here

    def is_dark(self, group: int) -> bool:
        """The agent of some member is not connected, or a member was never declared."""
        reported = self._snapshot.rank[self._snapshot.connected]
        return not np.isin(self.members(group), reported).all()

    def may_send(self, rank: int) -> bool:
        """The rank sends or receives, or may do so: its waits there are not recorded.

        Gloo's recorder shows no sends and receives, and a group in which all members do nothing
        else shows no collectives.
        """
        snapshot = self._snapshot
        if rank in snapshot.p2p_ranks:
            return True
        info = snapshot.info.get(rank)
        if info is None or "gloo" not in info.backends:
            return False
        pairs = snapshot.pairs
        joined = [pairs.joined[pairs.rows(group)] for group in self.groups(rank).tolist()]
        return any(len(members) > 1 and members.max() < 0 for members in joined)
