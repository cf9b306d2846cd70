"""The tables of one attempt together, and whether its ranks are there.

What an absence means is for the detectors.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from frd.engine.state.p2p import P2PChannels
from frd.engine.state.phases import Phases
from frd.engine.state.tables import EXITED, FINISHED, SILENT, GroupTable, PairTable, RankTable
from frd.engine.state.unrecorded_waits import UnrecordedWaits
from frd.model import UNKNOWN_SEQ, AlignedNs, NodeRawNs


@dataclass(frozen=True, slots=True)
class AttemptTables:
    ranks: RankTable = field(default_factory=RankTable)
    groups: GroupTable = field(default_factory=GroupTable)
    pairs: PairTable = field(default_factory=PairTable)
    channels: P2PChannels = field(default_factory=P2PChannels)
    unrecorded: UnrecordedWaits = field(default_factory=UnrecordedWaits)
    phases: Phases = field(default_factory=Phases)

    def frozen(self) -> AttemptTables:
        """With a copy of what `frd.engine.state.state_at` reads of ranks, groups and pairs."""
        ranks, groups = self.ranks.frozen(), self.groups.frozen()
        return replace(self, ranks=ranks, groups=groups, pairs=self.pairs.inside())

    def all_gone(self) -> bool:
        """All ranks that were ever declared are gone."""
        rank = self.ranks.sorted()
        return len(rank) > 0 and bool((self.ranks.state[rank] >= EXITED).all())

    def lived_at(self, now: AlignedNs) -> int:
        """When a rank was last reported that lives, aligned; 0: none was."""
        rank = self.ranks.sorted()
        alive = rank[self.ranks.state[rank] < EXITED]
        return int(self.ranks.to_aligned(alive, self.ranks.as_of[alive], now).max(initial=0))

    @property
    def has_agents(self) -> bool:
        """An agent that reports a rank that has not ended is connected."""
        ranks, count = self.ranks, self.ranks.count
        return bool((ranks.connected[:count] & (ranks.state[:count] < EXITED)).any())

    @property
    def is_left(self) -> bool:
        """Ranks live, and the agent of each has gone on purpose: nothing more will be reported."""
        rank = self.ranks.sorted()
        alive = rank[self.ranks.state[rank] < EXITED]
        return len(alive) > 0 and bool((self.ranks.left & ~self.ranks.connected)[alive].all())

    def moved_at(self, now: AlignedNs) -> int:
        """When a watermark of any rank, or what it sends and receives, last changed; 0 if never."""
        ranks, pairs, n = self.ranks, self.pairs, self.pairs.count
        times = np.maximum(pairs.enqueued_at[:n], pairs.completed_at[:n])
        movers = np.array([*self.channels.moved_at.items()], np.int64).reshape(-1, 2).T
        moved = ranks.to_aligned(pairs.rank[:n], times, now).max(initial=0)
        return int(ranks.to_aligned(movers[0], movers[1], now).max(initial=moved))

    def move_times(self, rank: int, by_ns: int) -> None:
        """The node time of a rank is by so much later from now on."""
        ranks, pairs = self.ranks, self.pairs
        for column in (ranks.as_of, ranks.gap_at, ranks.state_since):
            column[rank] += by_ns * (column[rank] > 0)
        if (status := ranks.statuses.get(rank)) is not None:
            ranks.set_status(
                replace(
                    status,
                    at_ns=NodeRawNs(status.at_ns + by_ns * (status.at_ns > 0)),
                    as_of_ns=status.as_of_ns + by_ns * (status.as_of_ns > 0),
                )
            )
        rows = np.flatnonzero(pairs.rank[: pairs.count] == rank)
        for column in (
            pairs.head,
            pairs.idle_until,
            pairs.enqueued_at,
            pairs.started_at,
            pairs.completed_at,
        ):
            column[rows] += by_ns * (column[rows] > 0)
        self.channels.move_times(rank, by_ns)
        self.unrecorded.move_times(rank, by_ns)
        self.phases.move_times(rank, by_ns)

    def some_rank_waits(self, least_ns: int) -> bool:
        """By its last report, some rank that lives had been in an op, or in a call that no recorder
        shows, for so long."""
        ranks, pairs, channels = self.ranks, self.pairs, self.channels.since
        lives = ranks.state[: ranks.count] < EXITED
        rows = np.flatnonzero(pairs.head[: pairs.count])
        rows = rows[pairs.rank[rows] < ranks.count]
        rank = pairs.rank[rows]
        slow = ranks.as_of[rank] - pairs.head[rows] >= least_ns
        slow &= (pairs.enqueued[rows] > pairs.completed[rows]) & lives[rank]
        since = channels[: ranks.count]
        waited = (since > 0) & (ranks.as_of[: len(since)] - since >= least_ns)
        waited &= lives[: len(since)]
        return bool(slow.any() or waited.any()) or self.unrecorded.any_waits

    def has_exits(self) -> bool:
        """A rank exited uncleanly, is silent, or finished too early."""
        state = self.ranks.state[self.ranks.sorted()]
        return bool(((state == SILENT) | (state == EXITED)).any()) or self._has_deserters()

    def _has_deserters(self) -> bool:
        """A rank has finished without a collective that other members of its group joined."""
        ranks, pairs = self.ranks, self.pairs
        if not (ranks.state[: ranks.count] == FINISHED).any():
            return False
        n = pairs.count
        finished = ranks.knows(pairs.rank[:n])
        finished[finished] = ranks.state[pairs.rank[:n][finished]] == FINISHED
        layout = pairs.layout()
        highest = np.full(self.groups.count, UNKNOWN_SEQ, np.int64)
        highest[layout.groups] = np.maximum.reduceat(layout.view(pairs.enqueued), layout.starts)
        row = np.flatnonzero(finished)
        return bool((pairs.enqueued[row] < highest[pairs.group[row]]).any())
