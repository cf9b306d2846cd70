"""All that the engine knows about one attempt of one job, and the only way to change it.

Observations come in as columns with engine handles and aligned times; they are checked first and
applied whole or not at all. Each of them merges (maximum, count, replace by rank), so batches of
different ranks may come in any order and a replay changes nothing. Answers go out as plain arrays
(`stalls`), as an immutable `Snapshot` for the detectors, and as a view for metrics. What a stall
means, which rank causes it and when it becomes a finding is decided elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from frd.engine.clocks.uncertain_time import UNKNOWN_NS
from frd.engine.matching.clock_hints import ClockHint
from frd.engine.matching.collectives import Collectives, Settled
from frd.engine.matching.usual_waits import GroupKind, LongWait
from frd.engine.memory import Memory
from frd.engine.policy import Policy
from frd.engine.state import presence, snapshot_parts, status_view, watermarks
from frd.engine.state.entry_batch import EntryBatch, EntryRows, is_empty
from frd.engine.state.p2p import P2PChannels
from frd.engine.state.snapshot import Snapshot, StallTable
from frd.engine.state.tables import STATES, GroupTable, PairTable, RankTable
from frd.engine.state.watermarks import WatermarkRows
from frd.engine.stragglers.detection import Roll
from frd.engine.stragglers.lateness import Lateness
from frd.errors import WireError
from frd.model import (
    AlignedNs,
    AttemptKey,
    ChannelColumns,
    GroupInfo,
    Int32s,
    Int64s,
    RankInfo,
    RankState,
    RankStatus,
    SeriesInfo,
    Signature,
)
from frd.views import AttemptView


@dataclass(frozen=True, slots=True)
class Applied:
    """What one batch of entries brought."""

    rows: int
    duplicates: int
    """Rows that said nothing new."""
    joined: int
    completed: int


class Attempt:
    """One attempt of one job. Handles are ints; a rank's handle is its global rank."""

    def __init__(
        self,
        key: AttemptKey,
        world_size: int,
        policy: Policy,
        now: AlignedNs,
        pauses: Mapping[GroupKind, Sequence[LongWait]] = MappingProxyType({}),
    ) -> None:
        """`pauses` are long waits of earlier attempts of the job."""
        self.key = key
        self.world_size = world_size
        self.created_at = now
        self.revision = 0
        """Changes with everything observed."""
        self.gap_entries = 0
        self.memory = Memory(policy)
        """Fed directly, but for the declaration of series."""
        self._policy = policy
        self._ranks = RankTable()
        self._groups = GroupTable()
        self._pairs = PairTable()
        self._channels = P2PChannels()
        self.lateness = Lateness(policy.straggler_window_s, policy.telemetry_late_s)
        """Which ranks came late to the collectives that are over."""
        self._collectives = Collectives(
            policy, self._ranks, self._groups, self._pairs, pauses, now, self._judge_arrivals
        )

    def adopt(self, policy: Policy) -> None:
        """See `Engine.adopt`."""
        before, self._policy = self._policy, policy
        windows = (before.straggler_window_s, before.telemetry_late_s)
        if windows != (policy.straggler_window_s, policy.telemetry_late_s):
            self.lateness = Lateness(policy.straggler_window_s, policy.telemetry_late_s)
        self.memory.adopt(policy)
        self._collectives.adopt(policy)

    def _judge_arrivals(self, settled: Settled, now: AlignedNs) -> None:
        self.lateness.observe(settled, self._ranks, self._groups.count, now)

    # -- declarations ------------------------------------------------------------------------

    def rank(self, info: RankInfo, now: AlignedNs) -> int:
        """The handle of a rank; another process of a known rank starts with nothing known.

        The world grows with the ranks that say so: an elastic job may go on with more of them.

        Raises:
            WireError: when the rank is outside the world, or beyond the limit.
        """
        world_size = self.world_size and max(self.world_size, info.world_size)
        limit = min(world_size or self._policy.max_ranks, self._policy.max_ranks)
        if not 0 <= info.rank < limit:
            raise WireError(
                "ranks.rank", "range", f"{info.rank}: the attempt has ranks 0..{limit - 1}"
            )
        self.world_size = world_size
        known = self._ranks.infos.get(info.rank)
        if not self.has_seen(info):
            self.revision += 1
            self._ranks.declare(info)
            if known is not None:
                self.memory.forget(info.rank)
                self._collectives.forget(np.unique(self._pairs.group[self._pairs.reset(info.rank)]))
                self._channels.forget(info.rank)
        self._ranks.infos[info.rank] = info
        return info.rank

    def has_seen(self, info: RankInfo) -> bool:
        """This very process is the one that is known of the rank."""
        known = self._ranks.infos.get(info.rank)
        return known is not None and (known.boot_id, known.pid) == (info.boot_id, info.pid)

    def start_over(self, world_size: int) -> None:
        """The job runs again under the same name: nothing is kept of the ranks of its last run.

        Handles stay valid, because streams of the last run may still be open.
        """
        self.world_size = world_size
        self._ranks.clear()
        self.memory.forget()
        self._channels = P2PChannels()
        self._pairs.reset_all()
        self.lateness.clear()
        self._collectives.forget(np.arange(self._groups.count, dtype=np.int32))
        self.revision += 1

    def group(self, info: GroupInfo) -> int:
        """The handle of a group.

        Raises:
            WireError: when a limit is reached, or a member is outside the world.
        """
        known = self._groups.by_id.get(info.group_id)
        if known is not None:
            return known
        if self._groups.count >= self._policy.max_groups:
            raise WireError("groups", "limit", f"{info.label!r}: more than policy.max_groups")
        if self._pairs.count + len(info.ranks) > self._policy.max_pairs:
            raise WireError("groups.ranks", "limit", f"{info.label!r}: more than policy.max_pairs")
        if info.ranks and info.ranks[-1] >= (self.world_size or self._policy.max_ranks):
            raise WireError(
                "groups.ranks",
                "range",
                f"{info.label!r}: rank {info.ranks[-1]} is not in the world",
            )
        floor_ns = round(self._policy.stall_after_s * 1e9)
        first_pair = self._pairs.add(self._groups.count, info.ranks)
        self._collectives.open_collectives.windows.reserve(self._groups.count + 1)
        handle = self._groups.declare(info, first_pair, floor_ns)
        self._collectives.thresholds.add_group(handle)
        return handle

    def signature(self, signature: Signature) -> int:
        """The handle of a signature.

        Raises:
            WireError: when the limit is reached.
        """
        return self._collectives.signatures.handle(signature)

    def memory_series(self, info: SeriesInfo) -> int:
        """The handle of a memory series of a declared rank; see `Memory.series`."""
        known = self._ranks.infos.get(info.rank)  # None when the job has started over meanwhile
        return self.memory.series(info, node=known.boot_id if known is not None else "")

    def pair(self, rank: int, group: int) -> int:
        """The row of a rank in a group; -1 when the rank is not a member.

        Raises:
            WireError: when a group of unknown membership would grow beyond the limit.
        """
        row = self._groups.pair(rank, group)
        if row < 0 and not self._groups.infos[group].ranks:
            if self._pairs.count >= self._policy.max_pairs:
                raise WireError("groups", "limit", "too many members: more than policy.max_pairs")
            row = self._pairs.add(group, (rank,))
            self._groups.strangers[group][rank] = row
        return row

    # -- observations ------------------------------------------------------------------------

    def observe_entries(
        self, rows: EntryRows, *, replay: bool, session: int = -1, now: AlignedNs
    ) -> Applied:
        """Transitions of one rank, in recording order; all of them or, on an error, none.

        `session` is the number of the agent session (see `clock`). With `replay`, as when it has
        taken the rank over, rows that were applied before are dropped.

        Raises:
            WireError: when the seqs of a group do not rise, or a row is of no member.
        """
        if not len(rows):
            return Applied(0, 0, 0, 0)
        pairs, batch, rank = self._pairs, EntryBatch(rows), rows.rank
        reported = batch.joined() if replay else None
        joined = batch.news(batch.joins, pairs.joined_row, replay=replay)
        completed = batch.news(batch.completes, pairs.completed_row, replay=replay)
        if reported is not None and (lost := watermarks.count_unread(pairs, reported, session)):
            self._ranks.gap_at[rank] = now
            self.gap_entries += lost
        pairs.last_session[rows.pair] = session
        as_of = self._ranks.as_of.item(rank)
        if completed is not None and watermarks.complete(pairs, completed, as_of, now):
            self._ranks.moved_at[rank] = now
        slots = None
        if joined is not None:
            created = joined.column(rows.created_ns)
            if watermarks.join(pairs, joined, created):
                self._ranks.moved_at[rank] = now
            signature = joined.column(rows.signature)
            slots = self._collectives.join(joined, rank, signature, created, now)
        if completed is not None:
            same = slots if completed is joined else None
            self._collectives.complete(completed, rank, rows.completed_ns, same)
        if not is_empty(batch.starts):
            started = rows.pair[batch.starts]
            np.maximum.at(pairs.started, started, rows.seq[batch.starts])
            pairs.moved_at[started] = now
        self.revision += 1
        return Applied(
            rows=len(rows),
            duplicates=batch.repeated(joined, completed) if replay else 0,
            joined=len(joined) if joined is not None else 0,
            completed=len(completed) if completed is not None else 0,
        )

    def observe_watermarks(self, rows: WatermarkRows, now: AlignedNs) -> None:
        """How far ranks have come, see `watermarks.observe`.

        Raises:
            WireError: when a row is of a rank that is not a member of its group.
        """
        watermarks.observe(self._ranks, self._pairs, rows, now)
        self.revision += 1

    def observe_channels(
        self, columns: ChannelColumns, now: AlignedNs, *, head_node_ns: Int64s | None = None
    ) -> None:
        """All P2P ops of a rank that are in flight; replaces what was known of the rank.

        `columns` has global ranks, group handles and aligned times; `head_node_ns` is the column
        `head_created_ns` on the node's clock, for `realign`.
        """
        if self._channels.replace(columns, head_node_ns):
            self._ranks.moved_at[columns.rank] = now
        self.revision += 1

    def of_session(self, declared: Iterable[tuple[RankInfo, int]], session: int) -> list[int]:
        """The ranks among those that a stream declared which still belong to `session`: neither
        another process nor another agent has taken their place."""
        ranks = self._ranks
        return [
            rank
            for info, rank in declared
            if ranks.infos.get(rank) == info and ranks.session.item(rank) == session
        ]

    def realign(
        self, ranks: Sequence[int], pair: Int32s, align: Callable[[Int64s], Int64s]
    ) -> None:
        """More is known of the clock of these ranks: `align` gives aligned times for the times of
        their node's clock since which they wait, in `pair` (see `watermarks.realign`) and in P2P
        ops."""
        watermarks.realign(self._pairs, pair, ranks, align)
        self._channels.realign(ranks, align)
        self.revision += 1

    def keep_heads(self, ranks: Sequence[int], pair: Int32s) -> None:
        """The clock of these ranks was set: its times of before are not aligned again."""
        self._pairs.head_node[pair[np.isin(self._pairs.rank[pair], ranks)]] = 0
        self._channels.keep_heads(ranks)

    def observe_status(self, status: RankStatus, at: AlignedNs, now: AlignedNs) -> None:
        """An agent's evidence about a rank, replacing the previous one; `at`: its time, aligned."""
        ranks, rank = self._ranks, status.rank
        known = ranks.statuses.get(rank)
        if known is None or known.state is not status.state:
            ranks.state_since[rank] = at
        ranks.state[rank] = STATES.index(status.state)
        lost = status.gap_entries - (known.gap_entries if known else 0)
        if lost > 0:
            ranks.gap_at[rank] = now
            self.gap_entries += lost
        ranks.statuses[rank] = status
        self.revision += 1

    def connection(self, ranks: Sequence[int], connected: bool) -> None:
        """The stream of these ranks' agent came or went."""
        self._ranks.connected[np.asarray(ranks, np.int64)] = connected
        self.revision += 1

    def clock(
        self, ranks: Sequence[int], session: int, uncertainty_ns: int | None, now: AlignedNs
    ) -> None:
        """How well the clock of these ranks is known; None while it is unsynchronized.

        `session` is the number of their agent session, whose ranks share one clock. Call it again
        after a rank was declared again, which forgets the clock.
        """
        bound = UNKNOWN_NS if uncertainty_ns is None else uncertainty_ns
        self._ranks.set_clock(np.asarray(ranks, np.int64), session, bound, now)

    # -- questions ---------------------------------------------------------------------------

    def ended(self) -> bool:
        """All ranks that were ever declared are gone."""
        return presence.all_gone(self._ranks)

    @property
    def has_agents(self) -> bool:
        """An agent that reports a rank is connected."""
        return bool(self._ranks.connected[: self._ranks.count].any())

    @property
    def lost(self) -> tuple[tuple[int, RankState, AlignedNs], ...]:
        """Ranks that exited uncleanly or are silent, and since when."""
        return presence.lost(self._ranks)

    @property
    def has_deserters(self) -> bool:
        """A rank has finished without a collective that other members of its group joined."""
        return presence.has_deserters(self._ranks, self._groups, self._pairs)

    def take_clock_hints(self) -> list[ClockHint]:
        """Bounds that completed collectives put on clocks, since the last call."""
        return _taken(self._collectives.clock_hints)

    def take_contradictions(self) -> list[ClockHint]:
        """Those that cannot be if clocks are as good as they are said to be, since the last call.

        Separate from `take_clock_hints`: clocks and findings read them at different times.
        """
        return _taken(self._collectives.contradictions)

    def unsynchronized(self) -> dict[int, tuple[int, ...]]:
        """Ranks of unknown clock by agent session; see `presence.unsynchronized`."""
        return presence.unsynchronized(self._ranks)

    def node_of(self, rank: int) -> str:
        """The name of the rank's host, empty when it was never declared."""
        info = self._ranks.infos.get(rank)
        return info.node if info is not None else ""

    @property
    def clocks(self) -> int:
        """How many clocks the ranks have."""
        session = self._ranks.session[: self._ranks.count]
        return len(np.unique(session[session >= 0]))

    def ranks_of_clock(self, rank: int) -> tuple[int, ...]:
        """All ranks that share the rank's clock."""
        session = self._ranks.session[: self._ranks.count]
        return tuple(np.flatnonzero(session == session[rank]).tolist())

    def roll(self) -> Roll:
        """Which ranks are in which group and on which node."""
        ranks, groups, pairs = self._ranks, self._groups, self._pairs
        return Roll(
            members=lambda group: pairs.rank[groups.rows(group)],
            groups=lambda rank: presence.groups_of(pairs, rank),
            is_dark=lambda group: not presence.are_connected(ranks, pairs.rank[groups.rows(group)]),
            node=ranks.session[: ranks.count],
            sends=lambda rank: presence.may_send(ranks, groups, pairs, self._channels, rank),
        )

    def threshold_s(self, group: int) -> float:
        """How long a wait in this group may take before it is a stall."""
        return float(self._groups.threshold_ns[group]) / 1e9

    def take_waits(self, now: AlignedNs) -> Mapping[GroupKind, Sequence[LongWait]] | None:
        """See `StallThresholds.take_waits`."""
        return self._collectives.thresholds.take_waits(now)

    @property
    def evicted(self) -> dict[str, int]:
        """Things dropped to stay within limits, by what."""
        return {**self._collectives.evicted(), **self.memory.evicted}

    def stalls(self, now: AlignedNs) -> StallTable:
        """Waiting that telemetry has confirmed to be longer than its group's threshold."""
        self._collectives.settle(now)
        floor = AlignedNs(now - round(self._policy.stall_after_s * 1e9))
        ends_early = self._collectives.ends_early
        return snapshot_parts.stalls(
            self._ranks, self._groups, self._pairs, self._channels, floor, ends_early
        )

    @property
    def disagrees(self) -> bool:
        """There are mismatch facts; cheap, unlike computing them."""
        return self._collectives.disagrees

    def snapshot(self, now: AlignedNs) -> Snapshot:
        """Progress of every rank; immutable."""
        self._collectives.settle(now)
        ops, ends_early = self._collectives.ops(), self._collectives.ends_early
        return Snapshot(
            key=self.key,
            now=now,
            world_size=self.world_size,
            groups=snapshot_parts.groups(
                self._groups, self._pairs, ops, self._ranks, ends_early, now
            ),
            channels=self._channels.snapshot(),
            mismatches=self._collectives.facts(),
            **snapshot_parts.ranks(self._ranks),
        )

    def view(self, now: AlignedNs) -> AttemptView:
        """What people see of the attempt; nothing in it changes afterwards."""
        stalls, collectives = self.stalls(now), self._collectives
        ops = collectives.signatures.ops
        return AttemptView(
            key=self.key,
            world_size=self.world_size,
            ended=self.ended(),
            ranks=status_view.ranks(
                self._ranks,
                self._groups,
                self._pairs,
                collectives.signature_of,
                collectives.signatures.known,
                now,
            ),
            groups=status_view.groups(self._groups, self._ranks, self._pairs, stalls, now),
            skew=collectives.skew.by_op(ops),
            duration=collectives.duration.by_op(ops),
            gap_entries=self.gap_entries,
            memory=self.memory.view(),
        )


def _taken(hints: deque[ClockHint]) -> list[ClockHint]:
    taken = list(hints)
    hints.clear()
    return taken
