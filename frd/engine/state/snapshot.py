"""One attempt at one time: how far every rank has come. The input of all detectors.

The live engine takes a snapshot of its tables, offline analysis builds one from dump files; for the
detectors both are the same. Plain arrays, so that a snapshot of 16,384 ranks costs milliseconds;
nothing in it changes afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from frd.engine.clocks.alignment import RankClocks, UncertainTime
from frd.forms import clock_text
from frd.model import (
    UNKNOWN_SEQ,
    AlignedNs,
    AttemptKey,
    Bools,
    ExitInfo,
    GroupInfo,
    Int32s,
    Int64s,
    RankInfo,
    RankState,
    Signature,
    UInt8s,
    UnrecordedWait,
    WaitSource,
)

ANY_SEQ: Final = np.iinfo(np.int64).max
"""The upper end of a range of seqs that nothing bounds."""
AT_REST: Final = 0.25
"""What has not changed for this part of its group's stall threshold is at rest: a rank that is on
its way does not rest so long."""
EARLY: Final = 0.5
"""When a wait has lasted for this part of its threshold, the ranks that it would be blamed on are
asked, so that a finding opens with their answers. What is seen of them from then on counts."""


@dataclass(frozen=True, slots=True)
class PairColumns:
    """All members of all groups: one row per (group, rank), sorted by group, then by rank.

    Seqs are `UNKNOWN_SEQ` for none. How far a member has come is a range: what is known as of the
    last report of the rank bounds it from below, and from above unless telemetry is missing. A
    member with ``joined > completed`` is inside the collective ``completed + 1`` since
    `head_since`, unless that one may be over (``completed_most > completed``).
    """

    first: Int64s
    """(G + 1) rows ``first[g]`` to ``first[g + 1]`` are the members of group g."""
    rank: Int32s
    """Global ranks. When the membership of a group is unknown, those that ever showed up in it."""
    joined: Int64s
    """The highest seq that the member is known to have enqueued."""
    joined_most: Int64s
    """The highest seq that it may have enqueued: more than `joined` where entries are lost, so that
    its absence proves nothing."""
    started: Int64s
    completed: Int64s
    completed_most: Int64s
    """More than `completed` where the open op may be over: the agent session that reported it is
    gone, and so are the entries; or the watermarks were impossible and are cut. Such a member waits
    in nothing that is known, and it is not certain that it is in no other op."""
    head_since: Int64s
    """Aligned ns at which the member enqueued its oldest outstanding collective; 0 for none."""
    moved_at: Int64s
    """Aligned ns by which the member had reached `started` and `completed`; 0 when unknown."""
    since: Int64s
    """Aligned ns by which the member had come as far as it is known to be (`joined` included): what
    is known of it is true from then until `Snapshot.as_of`. 0 when unknown."""

    @property
    def inside(self) -> Bools:
        """The members that are inside a collective, for all that is known."""
        inside: Bools = (self.joined > self.completed) & (self.completed_most == self.completed)
        return inside

    def rows(self, group: int) -> slice:
        """The members of a group."""
        return slice(int(self.first[group]), int(self.first[group + 1]))

    def of(self, group: int) -> PairColumns:
        """The same of one group."""
        rows = self.rows(group)
        columns = [getattr(self, column.name)[rows] for column in fields(self)[1:]]
        return PairColumns(self.first[group : group + 2] - rows.start, *columns)

    def row(self, group: int, rank: int) -> int:
        """The row of a member, -1 when the rank is not in the group."""
        rows = self.rows(group)
        row = row_of(self.rank[rows], rank)
        return rows.start + row if row >= 0 else -1

    def groups(self) -> Int64s:
        """The group of each row."""
        return np.repeat(np.arange(len(self.first) - 1, dtype=np.int64), np.diff(self.first))

    def group_of(self, rows: Int64s) -> Int64s:
        """The groups of some rows."""
        return np.searchsorted(self.first, rows, side="right") - 1


@dataclass(frozen=True, slots=True)
class ChannelSnapshot:
    """In-flight P2P ops of all ranks: parallel arrays. A row is a run of ops of one rank, group,
    peer and way that were posted in one call with one signature; the rows of a rank are in order of
    posting.
    """

    rank: Int32s
    group: Int32s
    """Index into `Snapshot.groups`."""
    peer: Int32s
    """Global rank, -1 for any source."""
    is_send: UInt8s
    in_flight: Int64s
    since: Int64s
    """Aligned ns of the oldest one in flight in the same call."""
    batch: Int64s
    """Ops of one rank and group with the same number were posted as one call; 0 for a single op."""
    signature: Int32s
    """Index into `Snapshot.signatures`, -1 when unknown."""
    posted: Int64s
    """Ops that were posted on the channel before the first one, -1 when unknown."""

    @classmethod
    def of(cls, columns: Iterable[npt.NDArray[Any]]) -> ChannelSnapshot:
        """From the columns in other types."""
        types = ["i4", "i4", "i4", "u1", "i8", "i8", "i8", "i4", "i8"]
        return cls(*(column.astype(of) for column, of in zip(columns, types, strict=True)))


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Members of one (group, seq) that do not agree; `classes` is largest first."""

    group: int
    """Index into `Snapshot.groups`."""
    seq: int
    classes: Sequence[tuple[Signature, tuple[int, ...]]]
    """Each distinct signature with the ranks that passed it."""
    detail: str
    """What differs: ``input sizes [[4]] and [[8]]``."""
    complete: bool
    """Every expected member has joined, so that a majority means something."""
    group_size: int = 0
    """0 when unknown."""
    known_at: int = 0
    """Aligned ns at which the service learned of it; 0 offline."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One attempt at one moment. Rank arrays are parallel and sorted by rank."""

    key: AttemptKey
    now: AlignedNs
    world_size: int
    """0 when unknown."""
    rank: Int32s
    """Ranks that were ever declared; others of the world are unknown."""
    as_of: Int64s
    """Aligned ns up to which all is known of the rank; 0 before its first report."""
    state: Sequence[RankState]
    state_since: Int64s
    """Aligned ns of the last change of `state`; 0 when unknown."""
    detail: Sequence[str]
    """The agent's description of `state`."""
    connected: Bools
    """The stream of the rank's agent is up (always true offline)."""
    left: Bools
    """While the rank lived, its agent was asked to stop, or said goodbye."""
    gap: Bools
    """Rows of the rank are known to be missing, so that its absence proves less."""
    moved_at: Int64s
    """Aligned ns at which a watermark of the rank last advanced, 0 when it never did or that is
    unknown (a dump file has no history)."""
    clocks: RankClocks
    info: Mapping[int, RankInfo]
    groups: Sequence[GroupInfo]
    threshold_ns: Int64s
    """(G,) how long a wait in each group may take before it is a stall."""
    pairs: PairColumns
    op: Callable[[int, int], str]
    """The op of a (group, seq), empty when unknown."""
    channels: ChannelSnapshot
    signatures: Sequence[Signature] = ()
    """Of the ops of `channels`."""
    mismatches: Sequence[Mismatch] = ()
    exits: Mapping[int, ExitInfo] = field(default_factory=dict)
    """How processes that are gone ended, by rank, as far as their agents know."""
    attended_since: int = 0
    """Aligned ns since when the engine has looked without a break; see `is_late`. 0 offline."""
    utc_ahead_ns: int = 0
    """UTC minus aligned time, for sentences with times."""
    created_at: int = 0
    """Aligned ns when the service first heard of the attempt; 0 offline."""
    p2p_ranks: Set[int] = frozenset()
    """Ranks that ever had a P2P op in flight."""
    unrecorded: Mapping[int, Sequence[UnrecordedWait]] = field(default_factory=dict)
    """Waits that no recorder shows, by rank; one without an op says that a rank was seen in none.
    Both of their times are aligned."""
    unshown: Set[int] = frozenset()
    """Groups in which some members have no entry that shows when an op ends."""
    unread: Set[int] = frozenset()
    """Ranks whose collectives cannot be read: they may be in any op."""
    hidden: Set[int] = frozenset()
    """Ranks that may wait in a batch of sends, which has no entry."""
    placed: Mapping[int, int] = field(default_factory=dict)
    """Ranks whose stack shows their place in the program, and aligned ns at which they were there
    at the earliest; see `shows_place` of `frd.engine.findings.attachments`."""
    unanswered: Mapping[tuple[int, WaitSource], tuple[AlignedNs, AlignedNs, str]] = field(
        default_factory=dict
    )
    """Ranks whose stack, or inspection, was asked for in vain: first, last, and why there was
    none."""
    can_ask: bool = False
    """Ranks can be asked: not offline, nor in a replay of a journal without answers."""
    call_threshold_ns: Mapping[str, int] = field(default_factory=dict)
    """How long calls that no recorder shows may take, by name, as far as the job has shown."""

    def clock_text(self, at: int) -> str:
        """For sentences: the UTC of an aligned time."""
        return clock_text(at + self.utc_ahead_ns)

    def row(self, rank: int) -> int:
        """The row of a rank in the rank arrays, -1 when it was never declared."""
        return row_of(self.rank, rank)

    def lives(self, rank: int) -> bool:
        """Its agent reports that it is alive."""
        row = self.row(rank)
        return row >= 0 and self.state[row] is RankState.LIVE

    def in_state(self, *states: RankState) -> Bools:
        """The ranks in one of these states, as a mask of the rank arrays."""
        if not any(map(self.state.count, states)):  # the usual case, and quicker
            return np.zeros(len(self.state), np.bool_)
        return np.fromiter(map(states.__contains__, self.state), np.bool_, len(self.state))

    def is_late(self, as_of: Int64s | int, late_s: float) -> Bools:
        """What was reported up to these times is older than `late_s`, and not because the engine
        itself was away: reports of that time may still wait for it."""
        return self.now - np.maximum(as_of, self.attended_since) > late_s * 1e9

    def moment(self, rank: int, at: AlignedNs) -> UncertainTime:
        """A time of the clock of `rank`; without bounds when the rank is unknown."""
        row = self.row(rank)
        return self.clocks.moment(row, at) if row >= 0 else UncertainTime(at, -1, None)

    def margin_ns(self, rank: int, moment: UncertainTime) -> int | None:
        """How far a time of a rank and a moment of another one must be apart to have an order; None
        if they have none. 0 for a moment that is not known."""
        return self.moment(rank, self.now).margin_ns(moment) if moment.at > 0 else 0

    def stalled_at(self, stalled: StallTable, part: float = 1.0) -> UncertainTime:
        """When the first of these waits had lasted for its threshold, or for a part of it; now, if
        there is none."""
        if not len(stalled):
            return self.moment(-1, self.now)
        overdue = stalled.since + (self.threshold_ns[stalled.group] * part).astype(np.int64)
        first = int(overdue.argmin())
        return self.moment(int(stalled.rank[first]), AlignedNs(int(overdue[first])))


def run_starts(*columns: npt.NDArray[Any]) -> Int64s:
    """Of sorted columns, the rows at which a value changes; the first column is never negative."""
    return np.flatnonzero(np.any(np.diff(columns, prepend=-1), axis=0))


def row_of(ranks: Int32s, rank: int) -> int:
    """The place of a rank in an ascending column, -1 when it is not there."""
    row = int(ranks.searchsorted(rank))
    return row if row < len(ranks) and ranks[row] == rank else -1


class StalledOp(NamedTuple):
    """One collective, or one rank in a P2P op, that is stuck."""

    group: int
    """Index into `Snapshot.groups`."""
    seq: int
    """`UNKNOWN_SEQ` for a P2P op."""
    rank: int = -1
    """The rank that waits in a P2P op, which has no number; -1 for a collective."""


@dataclass(frozen=True, slots=True)
class StallTable:
    """Waiting that is confirmed: a rank's own telemetry says that it has sat in one op for longer
    than the threshold of the op's group. Parallel arrays, one row per (group, rank) or, for P2P,
    per channel; in no particular order.
    """

    group: Int32s
    """Index into `Snapshot.groups`."""
    rank: Int32s
    """Global rank that waits."""
    seq: Int64s
    """The collective it waits in, `UNKNOWN_SEQ` for a P2P op."""
    since: Int64s
    """Aligned ns from which its wait counts: the enqueue of that op, or, if that is later, the last
    moment at which the op before it was known to be incomplete."""

    def __len__(self) -> int:
        return len(self.rank)

    def of(self, selected: Bools) -> StallTable:
        """The selected rows."""
        group, rank, seq, since = self.group, self.rank, self.seq, self.since
        return StallTable(group[selected], rank[selected], seq[selected], since[selected])

    def ops(self, selected: Bools | slice = slice(None)) -> dict[StalledOp, int]:
        """The stalled ops of the selected rows, oldest first, each with the start of its longest
        wait; ranks that wait in one collective share one."""
        group, seq, since = self.group[selected], self.seq[selected], self.since[selected]
        rank = np.where(seq == UNKNOWN_SEQ, self.rank[selected], -1)
        order = np.lexsort((since, rank, seq, group))
        keys = np.stack((group, seq, rank))[:, order]
        new = run_starts(*keys)
        first = {
            StalledOp(*op): at
            for op, at in zip(keys[:, new].T.tolist(), since[order][new].tolist(), strict=True)
        }
        return dict(sorted(first.items(), key=lambda item: (item[1], item[0])))
