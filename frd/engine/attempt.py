"""All that the engine holds about one attempt of one job, and the only way to change it.

Observations come in as columns with engine handles and aligned times; they are checked first and
applied whole or not at all. Each of them merges (maximum, count, replace by rank), so batches of
different ranks may come in any order and a replay changes nothing. Questions go out as plain
arrays (`stalls`), as an immutable `Snapshot` for the analysis of first causes, and as a view for
metrics. What a stall means, whose fault it is and when to tell people is decided elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from frd.engine.clocks.uncertain_time import UNKNOWN_NS
from frd.engine.matching.arrivals import ClockHint
from frd.engine.matching.collectives import Collectives
from frd.engine.matching.usual_waits import GroupKind, LongWait
from frd.engine.memory import Memory
from frd.engine.policy import Policy
from frd.engine.state import snapshot_parts, status_view, watermarks
from frd.engine.state.entry_batch import EntryBatch, PairRuns, is_empty
from frd.engine.state.p2p import P2PChannels
from frd.engine.state.snapshot import MismatchFact, Snapshot, StallTable
from frd.engine.state.tables import (
    EXITED,
    FINISHED,
    SILENT,
    STATES,
    GroupTable,
    PairTable,
    RankTable,
)
from frd.engine.stragglers.detection import Roll
from frd.engine.stragglers.lateness import Lateness
from frd.errors import WireError
from frd.model import (
    UNKNOWN_SEQ,
    AlignedNs,
    AttemptKey,
    GroupInfo,
    Int32s,
    Int64s,
    RankInfo,
    RankState,
    RankStatus,
    SeriesInfo,
    Signature,
    UInt8s,
    UInt32s,
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


@dataclass(frozen=True, slots=True)
class _Standing:
    """What the states of the ranks come to."""

    ended: bool
    has_agents: bool
    lost: tuple[tuple[int, RankState, AlignedNs], ...]


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
        self._standing: tuple[int, _Standing] | None = None
        """At which revision, and what."""
        self.gap_entries = 0
        self.memory = Memory(policy)
        """Fed directly, but for the declaration of series."""
        self._policy = policy
        self._ranks = RankTable()
        self._groups = GroupTable()
        self._pairs = PairTable()
        self._channels = P2PChannels()
        self._collectives = Collectives(policy, self._ranks, self._groups, self._pairs, pauses, now)

    def adopt(self, policy: Policy) -> None:
        """See `Engine.adopt`."""
        self._policy = policy
        self.memory.adopt(policy)
        self._collectives.adopt(policy)

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

        Handles stay good, for streams that told of that run may still be open.
        """
        self.world_size = world_size
        self._ranks.clear()
        self.memory.forget()
        self._channels = P2PChannels()
        self._pairs.reset_all()
        self._collectives.lateness.clear()
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
        self._collectives.add_group(handle)
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
        self,
        rank: int,
        pair: Int32s,
        seq: Int64s,
        signature: Int32s,
        flags: UInt8s,
        created_ns: Int64s,
        started_ns: Int64s,
        completed_ns: Int64s,
        *,
        replay: bool,
        teller: int = -1,
        now: AlignedNs,
    ) -> Applied:
        """Transitions of one rank, in recording order; all of them or, on an error, none.

        `teller` is the number of the agent session (see `clock`). With `replay`, as when it has
        taken the rank over, rows that were applied before are passed over.

        Raises:
            WireError: when the seqs of a group do not rise, or a row is of no member.
        """
        if not len(seq):
            return Applied(0, 0, 0, 0)
        pairs, batch = self._pairs, EntryBatch(pair, seq, flags)
        told = batch.joined() if replay else None
        joined = batch.news(batch.joins, pairs.joined_row, replay=replay)
        completed = batch.news(batch.completes, pairs.completed_row, replay=replay)
        if told is not None:
            self._count_unread(rank, told, teller, now)
        pairs.told_by[pair] = teller
        as_of = self._ranks.as_of.item(rank)
        if completed is not None and watermarks.complete(pairs, completed, as_of, now):
            self._ranks.moved_at[rank] = now
        slots = None
        if joined is not None:
            created = joined.column(created_ns)
            if watermarks.join(pairs, joined, created):
                self._ranks.moved_at[rank] = now
            slots = self._collectives.join(joined, rank, joined.column(signature), created, now)
        if completed is not None:
            same = slots if completed is joined else None
            self._collectives.complete(completed, rank, completed_ns, same)
        if not is_empty(batch.starts):
            np.maximum.at(pairs.started, pair[batch.starts], seq[batch.starts])
            pairs.moved_at[pair[batch.starts]] = now
        self.revision += 1
        return Applied(
            rows=len(seq),
            duplicates=batch.repeated(joined, completed) if replay else 0,
            joined=len(joined) if joined is not None else 0,
            completed=len(completed) if completed is not None else 0,
        )

    def _count_unread(self, rank: int, told: PairRuns, teller: int, now: AlignedNs) -> None:
        """What the ring forgot while no agent read it is between the last that one agent told and
        the first that another tells. Runs of one, or with gaps, may be of a recorder that does not
        count each group by itself."""
        pairs, pair = self._pairs, told.pair
        seen = pairs.joined_row[pair]
        is_whole = (told.count > 1) & (told.last - told.first + 1 == told.count)
        is_first = (pairs.teller[pair] != teller) & (seen >= 0) & is_whole
        pairs.teller[pair] = teller
        if lost := int(np.maximum(told.first - seen - 1, 0)[is_first].sum()):
            self._ranks.gap_at[rank] = now
            self.gap_entries += lost

    def observe_watermarks(
        self,
        pair: Int32s,
        enqueued: Int64s,
        started: Int64s,
        completed: Int64s,
        head_created_ns: Int64s,
        seen_rank: Int32s,
        as_of_ns: Int64s,
        now: AlignedNs,
        *,
        head_node_ns: Int64s | None = None,
    ) -> None:
        """Where ranks stand. Marks only rise; a row that is behind what entries told is stale.
        `head_node_ns` are the heads before they were aligned, for `realign`.

        Raises:
            WireError: when a row is of a rank that is not a member of its group.
        """
        ranks, pairs = self._ranks, self._pairs
        if len(pair):
            _check_members("watermarks.group", pair)
            was_enqueued, was_completed = pairs.enqueued[pair], pairs.completed[pair]
            advanced = completed > was_completed
            head_known = (head_created_ns > 0) | (enqueued <= completed)
            newest = (enqueued >= was_enqueued) & (completed >= was_completed) & head_known
            rank = pairs.rank[pair]
            is_told = enqueued > UNKNOWN_SEQ
            pairs.told_by[pair[is_told]] = ranks.node[rank[is_told]]
            is_inside = enqueued > np.maximum(completed, was_completed)
            enqueued = np.maximum(enqueued, was_enqueued)
            completed = np.maximum(completed, was_completed)
            head = np.where(newest, head_created_ns, pairs.head[pair])
            head[(head == 0) & is_inside] = now  # at the latest: nobody told when
            pairs.head[pair] = head
            told = 0 if head_node_ns is None else head_node_ns
            pairs.head_node[pair] = np.where(newest, told, pairs.head_node[pair])
            pairs.idle_until[pair] = np.where(advanced, ranks.as_of[rank], pairs.idle_until[pair])
            pairs.enqueued[pair], pairs.completed[pair] = enqueued, completed
            moved = advanced | (started > pairs.started[pair])
            pairs.started[pair] = np.maximum(started, pairs.started[pair])
            pairs.moved_at[pair[moved]] = now
            pairs.done_at[pair[advanced]] = now
            ranks.moved_at[rank[advanced | (enqueued > was_enqueued)]] = now
        if len(seen_rank):
            if (other := ranks.told_by[seen_rank] != ranks.node[seen_rank]).any():
                self._taken_over(seen_rank[other])
            as_of = np.maximum(ranks.as_of[seen_rank], as_of_ns)
            ranks.as_of[seen_rank] = np.minimum(as_of, now)
        self.revision += 1

    def _taken_over(self, rank: Int32s) -> None:
        """Another agent session than before, if there was one, has told all that it knows of these
        ranks: what it has not told of them, rings have forgotten since."""
        ranks, pairs, n = self._ranks, self._pairs, self._pairs.count
        known = rank[ranks.told_by[rank] >= 0]
        ranks.told_by[rank] = ranks.node[rank]
        if len(known):
            theirs = np.flatnonzero(np.isin(pairs.rank[:n], known))
            untold = theirs[pairs.told_by[theirs] != ranks.node[pairs.rank[theirs]]]
            pairs.head[untold] = pairs.head_node[untold] = 0

    def observe_channels(
        self,
        rank: int,
        group: Int32s,
        peer: Int32s,
        is_send: UInt8s,
        in_flight: UInt32s,
        head_created_ns: Int64s,
        now: AlignedNs,
        *,
        head_node_ns: Int64s | None = None,
    ) -> None:
        """All P2P ops of a rank that are in flight; replaces what was known of the rank.
        `head_node_ns`: see `observe_watermarks`."""
        if self._channels.replace(
            rank, group, peer, is_send, in_flight, head_created_ns, head_node_ns
        ):
            self._ranks.moved_at[rank] = now
        self.revision += 1

    def of_clock(self, told: Iterable[tuple[RankInfo, int]], node: int) -> list[int]:
        """Those of the ranks that a stream has told of whose clock is that of `node` still: neither
        another process nor another agent has taken their place."""
        ranks = self._ranks
        return [
            rank
            for info, rank in told
            if ranks.infos.get(rank) == info and ranks.node.item(rank) == node
        ]

    def realign(
        self, ranks: Sequence[int], pair: Int32s, align: Callable[[Int64s], Int64s]
    ) -> None:
        """More is known of the clock of these ranks, and of these pairs as far as they are theirs:
        what they wait in since a time of their node's clock was enqueued when `align` says. So all
        ops of one rank are in the order in which they were enqueued, whatever was believed of the
        clock when they were told."""
        pairs = self._pairs
        rows = pair[(pairs.head_node[pair] > 0) & (pairs.head[pair] > 0)]
        rows = rows[np.isin(pairs.rank[rows], ranks)]
        pairs.head[rows] = align(pairs.head_node[rows])
        self._channels.realign(ranks, align)
        self.revision += 1

    def keep_heads(self, ranks: Sequence[int], pair: Int32s) -> None:
        """The clock of these ranks was set: its times of before are not to be aligned again."""
        self._pairs.head_node[pair[np.isin(self._pairs.rank[pair], ranks)]] = 0
        self._channels.keep_heads(ranks)

    def observe_status(self, rank: int, status: RankStatus, at: AlignedNs, now: AlignedNs) -> None:
        """An agent's evidence about a rank, replacing the previous one; `at` is aligned."""
        ranks = self._ranks
        known = ranks.statuses.get(rank)
        state = STATES.index(status.state)
        if known is None or known.state is not status.state:
            ranks.state_since[rank] = at
        ranks.state[rank] = state
        lost = status.gap_entries - (known.gap_entries if known else 0)
        if lost > 0:
            ranks.gap_at[rank] = now
            self.gap_entries += lost
        ranks.statuses[rank] = status
        self.revision += 1

    def connection(self, ranks: Sequence[int], connected: bool, now: AlignedNs) -> None:
        """The stream of these ranks' agent came or went."""
        self._ranks.connected[np.asarray(ranks, np.int64)] = connected
        self.revision += 1

    def clock(
        self, ranks: Sequence[int], node: int, uncertainty_ns: int | None, now: AlignedNs
    ) -> None:
        """How well the clock that these ranks share is known; None while it is unsynchronized.

        `node` is any number that ranks of one clock, and no others, have in common. To be told
        again when a rank is declared again, which makes all clocks forget it.
        """
        bound = UNKNOWN_NS if uncertainty_ns is None else uncertainty_ns
        self._ranks.set_clock(np.asarray(ranks, np.int64), node, bound, now)

    # -- questions ---------------------------------------------------------------------------

    def ended(self, now: AlignedNs) -> bool:
        """All ranks that were ever declared are gone."""
        return self._stand().ended

    @property
    def has_agents(self) -> bool:
        """Some agent that speaks for a rank is connected."""
        return self._stand().has_agents

    @property
    def lost(self) -> tuple[tuple[int, RankState, AlignedNs], ...]:
        """Ranks that exited uncleanly or are silent, and since when."""
        return self._stand().lost

    def _stand(self) -> _Standing:
        """Asked at every tick; it changes with what is observed only."""
        if self._standing is None or self._standing[0] != self.revision:
            table = self._ranks
            rank = table.sorted()
            state = table.state[rank]
            gone = rank[(state == SILENT) | (state == EXITED)]
            standing = _Standing(
                ended=len(rank) > 0 and bool((state >= EXITED).all()),
                has_agents=bool(table.connected[: table.count].any()),
                lost=tuple(
                    (r, STATES[table.state[r]], AlignedNs(int(table.state_since[r])))
                    for r in gone.tolist()
                ),
            )
            self._standing = self.revision, standing
        return self._standing[1]

    @property
    def has_deserters(self) -> bool:
        """A rank has finished without a collective that other members of its group joined."""
        ranks, pairs, n = self._ranks, self._pairs, self._pairs.count
        if not (ranks.state[: ranks.count] == FINISHED).any():
            return False
        finished = ranks.knows(pairs.rank[:n])
        finished[finished] = ranks.state[pairs.rank[:n][finished]] == FINISHED
        layout = self._pairs.layout()
        highest = np.full(self._groups.count, UNKNOWN_SEQ, np.int64)
        highest[layout.groups] = np.maximum.reduceat(pairs.enqueued[layout.order], layout.starts)
        row = np.flatnonzero(finished)
        return bool((pairs.enqueued[row] < highest[pairs.group[row]]).any())

    @property
    def lateness(self) -> Lateness:
        """Who came late to the collectives that have been settled."""
        return self._collectives.lateness

    def take_clock_hints(self) -> list[ClockHint]:
        """Bounds that completed collectives put on clocks, since the last call."""
        return _taken(self._collectives.clock_hints)

    def take_contradictions(self) -> list[ClockHint]:
        """Those that cannot be if clocks are as good as they are said to be, since the last call.

        Apart from `take_clock_hints`: who mends clocks and who tells people look at their own pace.
        """
        return _taken(self._collectives.contradictions)

    def unsynchronized(self) -> dict[int, tuple[int, ...]]:
        """Ranks whose clock is unknown although their agent is connected, by node; empty where
        all share one node, for then nobody is compared with it."""
        table = self._ranks
        count = table.count
        there = table.declared[:count] & table.connected[:count] & (table.node[:count] >= 0)
        unknown = there & (table.uncertainty_ns[:count] == UNKNOWN_NS)
        if not unknown.any() or len(np.unique(table.node[:count][there])) < 2:
            return {}
        nodes: dict[int, list[int]] = {}
        for rank in np.flatnonzero(unknown).tolist():
            nodes.setdefault(int(table.node[rank]), []).append(rank)
        return {node: tuple(ranks) for node, ranks in nodes.items()}

    def node_of(self, rank: int) -> str:
        """The name of the rank's host, empty when it was never declared."""
        info = self._ranks.infos.get(rank)
        return info.node if info is not None else ""

    @property
    def nodes(self) -> int:
        """Clocks that agents have told of."""
        node = self._ranks.node[: self._ranks.count]
        return len(np.unique(node[node >= 0]))

    def ranks_beside(self, rank: int) -> tuple[int, ...]:
        """All ranks that share the rank's clock."""
        node = self._ranks.node[: self._ranks.count]
        return tuple(np.flatnonzero(node == node[rank]).tolist())

    def roll(self) -> Roll:
        """Who is in which group and on which node."""
        pairs, groups = self._pairs, self._groups
        return Roll(
            members=lambda group: pairs.rank[groups.rows(group)],
            groups=self._groups_of,
            is_dark=lambda group: not self._heard(pairs.rank[groups.rows(group)]),
            node=self._ranks.node[: self._ranks.count],
            sends=self._may_send,
        )

    def _groups_of(self, rank: int) -> Int32s:
        count = self._pairs.count
        groups: Int32s = self._pairs.group[:count][self._pairs.rank[:count] == rank]
        return groups

    def _may_send(self, rank: int) -> bool:
        """Gloo's recorder tells nothing of sends and receives, and a group in which all do nothing
        else shows no collectives."""
        if self._channels.has_told(rank):
            return True
        info = self._ranks.infos.get(rank)
        if info is None or "gloo" not in info.backends:
            return False
        groups = self._groups_of(rank).tolist()
        watermarks = [self._pairs.enqueued[self._groups.rows(group)] for group in groups]
        return any(len(enqueued) > 1 and enqueued.max() < 0 for enqueued in watermarks)

    def _heard(self, rank: Int32s) -> bool:
        """The agents of all these ranks are connected."""
        table = self._ranks
        return bool(table.knows(rank).all() and table.connected[rank].all())

    def threshold_s(self, group: int) -> float:
        """How long a wait in this group may take before it is a stall."""
        return float(self._groups.threshold_ns[group]) / 1e9

    def take_waits(self, now: AlignedNs) -> Mapping[GroupKind, Sequence[LongWait]] | None:
        """See `Collectives.take_waits`."""
        return self._collectives.take_waits(now)

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
        """There are mismatch facts; cheap, unlike telling them."""
        return self._collectives.disagrees

    def mismatch_facts(self, now: AlignedNs) -> list[MismatchFact]:
        """Collectives whose members do not agree, and some time beyond their end."""
        self._collectives.settle(now)
        return self._collectives.facts()

    def snapshot(self, now: AlignedNs) -> Snapshot:
        """Where every rank stands; nothing in it changes afterwards."""
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
            ended=self.ended(now),
            ranks=status_view.ranks(self._ranks, self._groups, self._pairs, collectives, now),
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


def _check_members(field: str, pair: Int32s) -> None:
    if pair.min() < 0:
        raise WireError(
            field, "disagree", f"row {int(pair.argmin())}: the rank is not in the group"
        )
