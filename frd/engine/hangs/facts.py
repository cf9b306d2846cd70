"""What is proven of single ranks: that one is gone, at rest, or has not joined an op.

A report describes the past. What it says of a rank was true from the moment at which the rank last
moved to the moment up to which its agent knew everything (`as_of`): the *interval* of that state,
on the clock of its node. How far a rank came only grows, so that an absence was true at all earlier
times as well; a process that is gone does nothing more, so its last state is true forever. Two
states were true together only if their intervals meet; otherwise the claim that compares them is
not proven, and a later report decides.

The two ends of sends and receives in flight may not agree on sizes or dtypes. The n-th send that
was ever posted on a channel pairs with the n-th receive. A send may complete before its receive, so
that the first ones in flight need not be a pair: nothing is said of ops of which it is unknown how
many came before them. A receive from any source has a known sender only if both are the first on
their channels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from frd.engine.clocks.alignment import FOREVER, Interval, UncertainTime
from frd.engine.findings import disagreements
from frd.engine.hangs.ops_in_flight import Instance, Waits
from frd.engine.matching.signature_rules import differing, moved
from frd.engine.state.snapshot import AT_REST
from frd.model import AlignedNs, Bools, Int32s, Int64s, RankState, UnrecordedWait

GONE: Final = (RankState.EXITED, RankState.FINISHED, RankState.SILENT)
"""States in which an agent has positive evidence that the rank no longer takes part."""
NOTICED_NS: Final = 1_000_000_000
"""How late recorders may notice that an op started or completed: torch's watchdog looks at its ops
ten times a second, on a loaded host less often. Half of it blamed ranks that had completed."""
Run: TypeAlias = tuple[int, int, int]
"""The number of the first op, how many there are, their signature."""


class Fact(IntEnum):
    """Whether a rank has joined an op: refuted, or unknown and why."""

    REFUTED = 1
    NEVER_SEEN = 2
    """No agent has reported it."""
    DISCONNECTED = 3
    """Its agent is not connected."""
    LATE = 4
    """Its telemetry is late,"""
    GAP = 5
    """or has gaps,"""
    UNPROVEN = 6
    """or is too old to prove it."""


class RankFacts:
    """Questions about the ranks of one snapshot; telemetry older than `late_s` proves nothing.

    All that is claimed must have been true together at one moment: `stalled_at`, when the first
    wait had lasted for its threshold. What was last known of a rank before that proves nothing.
    A rank that exited after it had waited for longer than a stall threshold keeps its last state:
    it still *waits* there, because what it waited for was there before it left. With
    `name_exits` it does not, and is a cause itself.
    """

    def __init__(
        self,
        waits: Waits,
        late_s: float,
        stalled_at: UncertainTime,
        unrecorded: Mapping[int, UnrecordedWait] = MappingProxyType({}),
        *,
        name_exits: bool = False,
    ) -> None:
        snapshot = self.snapshot = waits.snapshot
        self._waits = waits
        self.unrecorded = unrecorded
        """Waits that no recorder shows, by rank, of ranks that are in no op."""
        gone = snapshot.in_state(*GONE)
        self.left = frozenset(snapshot.rank[gone].tolist())
        """Ranks that have ended, or do not answer."""
        finished = snapshot.in_state(RankState.FINISHED)
        ranks, times = snapshot.rank[finished], snapshot.state_since[finished]
        self.finished_at: dict[int, int] = dict(zip(ranks.tolist(), times.tolist(), strict=True))
        """When ranks finished cleanly."""
        late = snapshot.is_late(snapshot.as_of, late_s)
        silent = np.where(self._reaches(slice(None), stalled_at), Fact.REFUTED, Fact.UNPROVEN)
        silent = np.where(late, Fact.LATE, silent)
        silent = np.where(snapshot.connected, silent, Fact.DISCONNECTED)
        silent = np.where(snapshot.as_of > 0, silent, Fact.NEVER_SEEN)
        self._silent = np.append(np.where(gone, Fact.REFUTED, silent), Fact.NEVER_SEEN)
        """By row: what an absence is at most, whatever the op. The last row is of unknown ranks."""
        self.exited_waiting = frozenset(
            rank for rank in self.left if not name_exits and self._waited(rank)
        )
        """Ranks that are gone, and count as waiting where they were."""

    def _waited(self, rank: int) -> bool:
        """Its own telemetry shows that it had waited in one op for longer than the threshold when
        it left, and had done nothing else meanwhile."""
        head = self._waits.head(rank)
        if head is None or head.since <= 0:
            return False
        since = max(head.since, self.moved_at(rank))
        until = min(self.gone_at(rank), self.as_of(rank))
        return until > since + self.threshold_ns(head.instance.group)

    # -- one rank ----------------------------------------------------------------------------

    def is_gone(self, rank: int) -> bool:
        """The rank left, and does not count as waiting."""
        return rank in self.left and rank not in self.exited_waiting

    def as_of(self, rank: int) -> AlignedNs:
        """Everything that the rank did until then is known; the rank must be declared."""
        return AlignedNs(int(self.snapshot.as_of[self.snapshot.row(rank)]))

    def gone_at(self, rank: int) -> int:
        """When the state of the rank last changed; 0 if unknown."""
        return int(self.snapshot.state_since[self.snapshot.row(rank)])

    def moved_at(self, rank: int) -> int:
        """When a watermark of the rank last advanced; 0 if never, or unknown."""
        return int(self.snapshot.moved_at[self.snapshot.row(rank)])

    def interval(self, rank: int, since: int) -> Interval:
        """What the last report says of the rank has been true since `since`."""
        known = self.snapshot.moment(rank, self.as_of(rank))
        until = FOREVER if rank in self.left else known.at
        return Interval(since, until, known.node, known.uncertainty_ns)

    def is_at_rest(self, rank: int, since: int, group: int = -1) -> bool:
        """What the rank does it has done for a while, by the group's threshold (without a group,
        the least of all)."""
        limit = self.threshold_ns(group) if group >= 0 else self.least_ns
        return rank in self.left or self.as_of(rank) - since >= limit * AT_REST

    def threshold_ns(self, group: int) -> int:
        """How long a wait in the group may take before it is a stall."""
        return int(self.snapshot.threshold_ns[group])

    @property
    def least_ns(self) -> int:
        """The threshold of the group that has the least."""
        return int(self.snapshot.threshold_ns.min(initial=FOREVER))

    def agents_of(self, ranks: Int32s | list[int]) -> set[int]:
        """Numbers of the agents that report these ranks."""
        row = self._rows(np.asarray(ranks, np.int32))
        return set(self.snapshot.clocks.node[row[row < len(self.snapshot.rank)]].tolist())

    # -- facts about several ranks -------------------------------------------------------------

    def presence(self, ranks: Int32s) -> Int64s:
        """For each rank `REFUTED` if its last report counts, otherwise why it does not."""
        return self._silent[self._rows(ranks)]

    def has_gap(self, ranks: Int32s) -> Bools:
        """Rows of the ranks are known to be missing."""
        return np.append(self.snapshot.gap, False)[self._rows(ranks)]

    def absence(self, ranks: Int32s, since: UncertainTime, doubtful: Bools | None = None) -> Int64s:
        """For each rank that is not known to have come to an op whether that is so (`REFUTED`), at
        the time `since` when others had. `doubtful`: the rank may have come."""
        rows = self._rows(ranks)
        fact = self._silent[rows]
        known = np.flatnonzero((fact == Fact.REFUTED) & ~np.isin(ranks, list(self.left)))
        if doubtful is not None:
            fact[known[doubtful[known]]] = Fact.GAP
            known = known[~doubtful[known]]
        fact[known[~self._reaches(rows[known], since)]] = Fact.UNPROVEN
        return fact

    def _reaches(self, rows: Int64s | slice, moment: UncertainTime) -> Bools:
        """The last reports of these rows say what was true at that moment."""
        as_of, margins = self.snapshot.as_of[rows], self.snapshot.clocks.margins_ns(rows, moment)
        return as_of >= moment.at + margins

    def _rows(self, ranks: Int32s) -> Int64s:
        """Rows of the rank arrays; one beyond them for ranks that were never declared."""
        rank = self.snapshot.rank
        row = np.searchsorted(rank, ranks)
        is_known = row < len(rank)
        is_known[is_known] = rank[row[is_known]] == ranks[is_known]
        return np.where(is_known, row, len(rank))


class UnequalPair(NamedTuple):
    """A send and its receive that do not agree."""

    ends: tuple[tuple[int, Instance], ...]
    """The sender and the receiver, each with its channel: the same, or that of any source."""
    words: str


def unequal_pairs(waits: Waits) -> dict[Instance, UnequalPair]:
    """The first of each channel, by the channels of both of its ends."""
    channels, known = waits.snapshot.channels, waits.snapshot.signatures
    columns = (channels.posted, channels.in_flight, channels.signature)
    runs: list[Run] = list(zip(*(column.tolist() for column in columns), strict=True))
    found: dict[Instance, UnequalPair] = {}
    for channel, receiving in _in_use(waits):
        receives, sends = waits.ends[receiving][0], waits.ends[channel][1]
        aligned = [
            moved(known[sent], known[received])
            for sent, received in dict.fromkeys(_aligned(runs, sends, receives))
            if sent >= 0 and received >= 0
        ]
        if (one := next((pair for pair in aligned if differing(pair)), None)) is not None:
            words = disagreements.of_pair(channel.src, channel.dst, *one)
            pair = UnequalPair(((channel.src, channel), (channel.dst, receiving)), words)
            found[channel] = found[receiving] = pair
    return found


def _in_use(waits: Waits) -> Iterator[tuple[Instance, Instance]]:
    """The channels that are in use at both ends, each with that of its receives. A receive from any
    source has a known sender if only one rank sends to it what no other receive takes."""
    channels = waits.snapshot.channels
    in_flight = channels.in_flight
    others: defaultdict[Instance, list[Instance]] = defaultdict(list)
    for channel, (receives, sends) in waits.ends.items():
        if receives and sends:
            yield channel, channel
        if sends and in_flight[receives].sum() != in_flight[sends].sum():
            others[channel._replace(src=-1)].append(channel)
    for receiving, (channel, *more) in others.items():
        if receiving in waits.ends and not more and not waits.ends[channel][0]:
            rows = [*waits.ends[receiving][0], *waits.ends[channel][1]]
            if not channels.posted[rows].any() and (in_flight[rows] == 1).all():
                yield channel, receiving


def _aligned(runs: list[Run], sends: list[int], receives: list[int]) -> Iterator[tuple[int, int]]:
    """The signatures of each send and receive that have the same number on their channel, once for
    each pair of runs, in order of posting."""
    i = j = 0
    while i < len(sends) and j < len(receives):
        (first, n, sent), (begin, m, received) = runs[sends[i]], runs[receives[j]]
        if min(first, begin) >= 0 and max(first, begin) < min(first + n, begin + m):
            yield sent, received
        is_last = first + n <= begin + m
        i, j = i + is_last, j + (not is_last)
