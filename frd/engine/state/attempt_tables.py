"""The tables of one attempt together, and whether its ranks are there.

What an absence means is for the detectors. P2P ops in flight are one small table per rank, because
each message replaces all of a rank. Only the oldest enqueue of each rank is checked at every tick;
the tables are read when a rank is found waiting.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Final

import numpy as np

from frd.engine.state.phases import Phases
from frd.engine.state.snapshot import ChannelSnapshot
from frd.engine.state.tables import (
    EXITED,
    FINISHED,
    SILENT,
    GroupTable,
    PairTable,
    RankTable,
)
from frd.engine.state.unrecorded_waits import UnrecordedWaits
from frd.model import UNKNOWN_SEQ, AlignedNs, ChannelColumns, Int64s, NodeRawNs


class P2PChannels:
    """Channels with something in flight; `since` is the oldest enqueue by global rank."""

    def __init__(self) -> None:
        self._by_rank: dict[int, ChannelSnapshot] = {}
        """`ChannelSnapshot.since` is node time here."""
        self.seen: set[int] = set()
        """Ranks that ever had an op in flight."""
        self._as_of: dict[int, int] = {}
        """Node time of the last report of each rank, if the agent says so."""
        self.moved_at: dict[int, int] = {}
        """Node time by which the ops of each rank had changed last."""
        self.since: Int64s = np.zeros(0, np.int64)
        """Node time, 0 for none; at least as long as the highest rank that ever sent."""

    def replace(self, columns: ChannelColumns, at: int) -> None:
        """Replace all channels of one rank, as they were at node time `at`, unless a later report
        is known. See `Attempt.observe_channels`."""
        rank = columns.rank
        if 0 < columns.as_of_ns < self._as_of.get(rank, 0):
            return
        self._as_of[rank] = columns.as_of_ns
        known = self._by_rank.pop(rank, None)
        if not columns.in_flight.any():
            if known is not None:
                self.since[rank] = 0
                self.moved_at[rank] = at
            return
        self.seen.add(rank)
        if rank >= len(self.since):
            self.since = np.append(self.since, np.zeros(rank + 1, np.int64))
        since = columns.head_created_ns
        self.since[rank] = since[columns.in_flight > 0].min()
        calls = columns.batch, columns.signature, columns.posted
        channels = np.full(len(since), rank), columns.group, columns.peer, columns.is_send
        reported = ChannelSnapshot.of((*channels, columns.in_flight, since, *calls))
        self._by_rank[rank] = reported
        if known is None or not _alike(known, reported):
            self.moved_at[rank] = at

    def move_times(self, rank: int, by_ns: int) -> None:
        """See `AttemptTables.move_times`."""
        for times in (self.moved_at, self._as_of):
            if times.get(rank):
                times[rank] += by_ns
        if (known := self._by_rank.get(rank)) is not None:
            since = known.since + by_ns * (known.since > 0)
            self._by_rank[rank] = replace(known, since=since)
            self.since[rank] = since.min()

    def forget(self, rank: int) -> None:
        self.moved_at.pop(rank, None)
        self._as_of.pop(rank, None)
        if self._by_rank.pop(rank, None) is not None:
            self.since[rank] = 0

    def clear(self) -> None:
        """Forget all ranks."""
        for of_ranks in (self._by_rank, self.seen, self.moved_at, self._as_of):
            of_ranks.clear()
        self.since = np.zeros(0, np.int64)

    def waiting(self, ranks: RankTable, least_ns: int) -> ChannelSnapshot:
        """All channels of the ranks that have had one in flight for so long by their last report;
        their times are node times."""
        since = self.since[: ranks.count]
        waited = (since > 0) & (ranks.as_of[: len(since)] - since >= least_ns)
        return _joined([self._by_rank[rank] for rank in np.flatnonzero(waited).tolist()])

    def snapshot(self, ranks: RankTable, now: AlignedNs) -> ChannelSnapshot:
        table = _joined([self._by_rank[rank] for rank in sorted(self._by_rank)])
        return replace(table, since=ranks.to_aligned(table.rank, table.since, now))


@dataclass(frozen=True, slots=True)
class AttemptTables:
    ranks: RankTable = field(default_factory=RankTable)
    groups: GroupTable = field(default_factory=GroupTable)
    pairs: PairTable = field(default_factory=PairTable)
    channels: P2PChannels = field(default_factory=P2PChannels)
    unrecorded: UnrecordedWaits = field(default_factory=UnrecordedWaits)
    phases: Phases = field(default_factory=Phases)

    def frozen(self) -> AttemptTables:
        """With a copy of what a `StateAt` reads of ranks, groups and pairs."""
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


_NONE: Final = ChannelSnapshot.of(np.empty((9, 0)))
_COLUMNS: Final = [column.name for column in fields(ChannelSnapshot)]
_OPS: Final = ("group", "peer", "is_send", "in_flight", "since")


def _alike(left: ChannelSnapshot, right: ChannelSnapshot) -> bool:
    """The same ops are in flight, whatever else another agent knows of them."""
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in _OPS)


def _joined(tables: list[ChannelSnapshot]) -> ChannelSnapshot:
    columns = ([getattr(table, name) for table in (_NONE, *tables)] for name in _COLUMNS)
    return ChannelSnapshot(*map(np.concatenate, columns))
