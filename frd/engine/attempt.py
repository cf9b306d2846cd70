"""All that the engine knows about one attempt of one job, and the only way to change it.

Observations come in as columns with engine handles and node times; they are checked first and
applied whole or not at all. What is known of one rank keeps node times, which are aligned when they
are looked at; what merges several ranks is aligned when it comes in. Observations merge (maximum,
count, replace by rank), so batches of different ranks may come in any order and a replay changes
nothing. Answers go out as plain arrays
(`stalls`), as an immutable `Tick` for the detectors, and as a view for metrics. What a stall means,
which rank causes it and when it becomes a finding is decided elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np

from frd.engine.history import status_view
from frd.engine.history.recent_ops import AttemptHistory, RecentEntries
from frd.engine.matching.collectives import Collectives
from frd.engine.matching.lateness import ClockHint
from frd.engine.matching.usual_waits import GroupKind, LongWait
from frd.engine.memory.attempt_memory import Memory
from frd.engine.policy import Policy
from frd.engine.room import OF_ATTEMPT, OF_GROUP, OF_SERIES, Room, of_rank, of_signature, of_texts
from frd.engine.state import snapshot_parts, watermarks
from frd.engine.state.attempt_tables import AttemptTables
from frd.engine.state.entry_batch import (
    EntryBatch,
    EntryMessage,
    EntryRows,
    contradicting,
    is_empty,
)
from frd.engine.state.lazy import once
from frd.engine.state.phases import PhasesAt
from frd.engine.state.session_clocks import SessionClocks
from frd.engine.state.snapshot import Snapshot, StallTable
from frd.engine.state.snapshot_parts import StateAt
from frd.engine.state.tables import EXITED
from frd.engine.state.watermarks import WatermarkRows
from frd.engine.tick import Tick
from frd.engine.views import STATES, AttemptView
from frd.errors import WireError
from frd.model import (
    UNKNOWN_SEQ,
    AlignedNs,
    AttemptKey,
    Bools,
    ChannelColumns,
    GroupInfo,
    NodeRawNs,
    RankInfo,
    RankPhases,
    RankStatus,
    SeriesInfo,
    Signature,
    UnrecordedWait,
    WaitSource,
)

MAX_PAIRS: Final = 4_194_304
"""Members over all groups of an attempt."""


class Attempt:
    """One attempt of one job. Handles are ints; a rank's handle is its global rank."""

    def __init__(
        self,
        key: AttemptKey,
        world_size: int,
        policy: Policy,
        now: AlignedNs,
        pauses: Mapping[GroupKind, Sequence[LongWait]] = MappingProxyType({}),
        room: Room | None = None,
    ) -> None:
        """`pauses` are long waits of earlier attempts of the job.

        Raises:
            WireError: there is no room for another attempt.
        """
        self.key = key
        self._room = room or Room(0)
        self.objects = 0
        """That it has taken of the room."""
        self._take(OF_ATTEMPT, "attempts")
        self.world_size = world_size
        self.created_at = now
        self.attended_since = AlignedNs(0)
        """Since when `Engine.advance` has been called without a break."""
        self.utc_ahead_ns = 0
        self.can_ask = False
        """See `Snapshot.can_ask`."""
        self._observed = 0
        self.gap_entries = 0
        self.memory = Memory(policy)
        """Observed directly; only its series are declared through the attempt."""
        self._policy = policy
        self.tables = AttemptTables()
        """To be read; the attempt writes."""
        self._ranks, self._groups = self.tables.ranks, self.tables.groups
        self._pairs, self._channels = self.tables.pairs, self.tables.channels
        self._recent = RecentEntries()
        self.clocks = SessionClocks(self.tables, self._recent.move)
        self._collectives = Collectives(policy, self.tables, pauses, now)

    def adopt(self, policy: Policy) -> None:
        """See `Engine.adopt`."""
        self._policy = policy
        self.memory.adopt(policy)
        self._collectives.adopt(policy)

    # -- declarations ------------------------------------------------------------------------

    def rank(self, info: RankInfo) -> int:
        """The handle of a rank. A new process of a known rank starts with nothing known.

        The world grows if a rank declares a larger one: an elastic job may go on with more ranks.

        Raises:
            WireError: when the rank is outside the world, or beyond the limit (reason ``limit``).
        """
        if info.rank >= (most := self._policy.max_ranks):
            why = f"{info.rank}: ranks 0..{most - 1} are watched: raise policy.max_ranks"
            raise WireError("ranks.rank", "limit", why)
        world_size = self.world_size and max(self.world_size, info.world_size)
        limit = world_size or most
        if not 0 <= info.rank < limit:
            raise WireError(
                "ranks.rank", "range", f"{info.rank}: the attempt has ranks 0..{limit - 1}"
            )
        known = self._ranks.infos.get(info.rank)
        if known is not None and self.has_seen(info) and info.address is None:
            info = replace(info, address=known.address)  # of an agent that found it dead
        self._take(of_rank(info) - (of_rank(known) if known else 0), "ranks.rank")
        self.world_size = world_size
        if not self.has_seen(info):
            self._observed += 1
            self._ranks.declare(info)
            if known is not None:
                self.memory.forget(info.rank)
                self._collectives.forget(np.unique(self._pairs.group[self._pairs.reset(info.rank)]))
                self._channels.forget(info.rank)
                self._recent.forget(info.rank)
                self.tables.unrecorded.forget(info.rank)
                self.tables.phases.forget(info.rank)
        self._ranks.infos[info.rank] = info
        return info.rank

    def replaces(self, info: RankInfo) -> bool:
        """It is another process of a known rank."""
        return info.rank in self._ranks.infos and not self.has_seen(info)

    def has_seen(self, info: RankInfo) -> bool:
        """The attempt knows this process of the rank, not another one."""
        known = self._ranks.infos.get(info.rank)
        return known is not None and known.process == info.process

    def start_over(self, world_size: int) -> None:
        """The job runs again under the same name: forget the ranks of its last run.

        Handles stay valid, because streams of the last run may still be open.
        """
        self.world_size = world_size
        given_back = sum(map(of_rank, self._ranks.infos.values()))
        self._room.give_back(self.key.job, given_back)
        self.objects -= given_back
        self._ranks.clear()
        self.memory.forget()
        self._channels.clear()
        self._recent.clear()
        self.tables.unrecorded.clear()
        self.tables.phases.clear()
        self._pairs.reset_all()
        self._collectives.lateness.clear()
        self._collectives.forget(np.arange(self._groups.count, dtype=np.int32))
        self._observed += 1

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
        if self._pairs.count + len(info.ranks) > MAX_PAIRS:
            raise WireError("groups.ranks", "limit", f"{info.label!r}: more than {MAX_PAIRS}")
        if info.ranks and info.ranks[-1] >= (self.world_size or self._policy.max_ranks):
            raise WireError(
                "groups.ranks",
                "range",
                f"{info.label!r}: rank {info.ranks[-1]} is not in the world",
            )
        self._take(OF_GROUP + of_texts(info.name, info.desc) + len(info.ranks), "groups")
        self._ranks.reserve(1)  # times of members that are not declared are looked up, too
        first_pair = self._pairs.add(self._groups.count, info.ranks)
        self._collectives.open_collectives.windows.reserve(self._groups.count + 1)
        handle = self._groups.declare(info, first_pair, self._policy.stall_after_ns)
        self._collectives.thresholds.add_group(handle)
        return handle

    def signature(self, signature: Signature) -> int:
        """The handle of a signature.

        Raises:
            WireError: when the limit is reached.
        """
        signatures = self._collectives.signatures
        known = signatures.count
        handle = signatures.handle(signature)
        self._take(of_signature(signature) * (signatures.count - known), "signatures")
        return handle

    def memory_series(self, info: SeriesInfo) -> int:
        """The handle of a memory series of a declared rank; see `Memory.series`."""
        rank = self._ranks.infos.get(info.rank)  # None when the job has started over meanwhile
        node, known = rank.boot_id if rank is not None else "", self.memory.series_count
        if not (has_room := self._room.fits(self.key.job, OF_SERIES)):
            self._room.short.add(self.key.job)
        handle = self.memory.series(info, node=node, has_room=has_room)
        self._take(OF_SERIES * (self.memory.series_count - known), "series")
        return handle

    def pair(self, rank: int, group: int) -> int:
        """The row of a rank in a group; -1 when the rank is not a member.

        Raises:
            WireError: when a group of unknown membership would grow beyond the limit.
        """
        row = self._groups.pair(rank, group)
        if row < 0 and not self._groups.infos[group].ranks:
            if self._pairs.count >= MAX_PAIRS:
                raise WireError("groups", "limit", f"too many members: more than {MAX_PAIRS}")
            self._take(1, "groups")
            row = self._pairs.add(group, (rank,))
            self._groups.strangers[group][rank] = row
        return row

    def _take(self, objects: int, field: str) -> None:
        self._room.take(self.key.job, objects, field)
        self.objects += objects

    # -- observations ------------------------------------------------------------------------

    def contradicting(self, rows: EntryRows, *, replay: bool) -> Bools:
        """The rows because of which `apply_entries` raises."""
        joined, completed = self._pairs.joined_row, self._pairs.completed_row
        if replay:
            joined = completed = np.full_like(joined, UNKNOWN_SEQ)
        return contradicting(rows, joined, completed)

    def apply_entries(self, messages: Sequence[EntryMessage]) -> list[int]:
        """Apply messages of different ranks together, each with at least one row, in recording
        order. Returns how many rows of each report nothing new.

        Raises:
            WireError: when the seqs of a group do not rise, or a row is of no member; then nothing
                has changed.
        """
        pairs, ranks = self._pairs, self._ranks
        rows = EntryBatch(messages)
        joined = rows.news(rows.joins, pairs.joined_row)
        completed = rows.news(rows.completes, pairs.completed_row)
        for one in messages:
            self._note_unread(one)
        pairs.last_session[rows.column("pair")] = rows.sessions
        lines, times, rank = ranks.clock_lines(rows.ranks), rows.times, rows.ranks
        if completed is not None:
            as_of = ranks.as_of[pairs.rank[completed.pair]]
            ended = rows.column("completed_ns")
            watermarks.complete(pairs, completed, completed.column(ended), as_of)
        slots = None
        if joined is not None:
            created = rows.column("created_ns")
            watermarks.join(pairs, joined, joined.column(created))
            aligned = joined.column(lines.to_aligned(created, times))
            of, signature = joined.column(rank), joined.column(rows.column("signature"))
            slots = self._collectives.join(joined, of, signature, aligned, rows.now)
        if completed is not None:
            aligned = completed.column(lines.to_aligned(ended, times))
            same = slots if completed is joined else None
            bounded = completed.column((ended > 0) & (ended == rows.column("started_ns")))
            self._collectives.complete(completed, completed.column(rank), aligned, bounded, same)
        if not is_empty(at := rows.starts):
            watermarks.start(
                pairs, *(rows.column(name)[at] for name in ("pair", "seq", "started_ns"))
            )
        self._recent.add(rows, ranks.count)
        self._observed += 1
        return rows.repeated(joined, completed)

    def _note_unread(self, one: EntryMessage) -> None:
        """Entries that the ring of the rank dropped between two agent sessions."""
        if not one.is_replay or (reported := EntryBatch([one]).joined()) is None:
            return
        if lost := watermarks.count_unread(self._pairs, reported, one.session):
            ranks, rank = self._ranks, one.rows.rank
            lost_at = one.rows.created_ns.max() or ranks.as_of[rank]
            ranks.gap_at[rank] = max(ranks.gap_at[rank], lost_at)
            self.gap_entries += lost

    def observe_watermarks(self, rows: WatermarkRows) -> None:
        """How far ranks have come; see `watermarks.observe`.

        Raises:
            WireError: when a row is of a rank that is not a member of its group.
        """
        watermarks.observe(self.tables, rows)
        self._observed += 1

    def observe_channels(self, columns: ChannelColumns, now: AlignedNs) -> None:
        """All P2P ops that a rank has in flight at a time; replaces its earlier ones.

        `columns` has global ranks, group handles and node times.
        """
        known_at = columns.as_of_ns or int(self._ranks.to_node(columns.rank, now))
        self._channels.replace(columns, known_at)
        self._observed += 1

    def observe_status(self, status: RankStatus, now: AlignedNs) -> None:
        """An agent's evidence about a rank, replacing earlier evidence."""
        ranks, rank = self._ranks, status.rank
        known = ranks.statuses.get(rank)
        if known is not None and 0 < status.as_of_ns < known.as_of_ns:
            return
        if known is None or known.state is not status.state:
            ranks.state_since[rank] = status.at_ns
        ranks.state[rank] = STATES.index(status.state)
        lost = status.gap_entries - (known.gap_entries if known else 0)
        if lost > 0:
            lost_at = status.as_of_ns or ranks.to_node(rank, now)
            ranks.gap_at[rank] = max(ranks.gap_at[rank], lost_at)
            self.gap_entries += lost
        ranks.set_status(status)
        stage = status.stage
        if stage is not None and not stage.op and not stage.where and self._pairs.has(rank):
            stage = None  # its frames show nothing: it may be in recv
        self.tables.unrecorded.observe_stage(rank, status.state, stage)
        self._observed += 1

    def observe_phases(self, phases: RankPhases) -> None:
        """Phases of a rank's program, in node time. No verdict depends on them."""
        self.tables.phases.observe(phases)

    def observe_unrecorded(self, wait: UnrecordedWait) -> None:
        """A wait that no recorder shows, or its end; replaces the earlier one of its source.

        Nothing changes if the rank is unknown, or the known report is newer.
        """
        if wait.rank in self._ranks.infos and self.tables.unrecorded.observe(wait):
            self._observed += 1

    def observe_unanswered(
        self, rank: int, source: WaitSource, asked_at: AlignedNs, why: str
    ) -> bool:
        """The stack of a rank, or its inspection, was asked for in vain; true if that is news."""
        if not self.tables.unrecorded.observe_unanswered(rank, source, asked_at, why):
            return False
        self._observed += 1
        return True

    def observe_sighting(self, wait: UnrecordedWait) -> None:
        """The same in aligned time."""
        aligned = AlignedNs(wait.since_ns), AlignedNs(wait.as_of_ns)
        since, as_of = (NodeRawNs(int(self._ranks.to_node(wait.rank, at))) for at in aligned)
        self.observe_unrecorded(replace(wait, since_ns=since, as_of_ns=as_of))

    def connection(self, ranks: Sequence[int], connected: bool) -> None:
        """The agent of these ranks has connected or disconnected."""
        rows = np.asarray(ranks, np.int64)
        self._ranks.connected[rows] = connected
        if connected:
            self._ranks.left[rows] = False
        self._observed += 1

    def agent_leaves(self, ranks: Sequence[int]) -> None:
        """The agent of these ranks was asked to stop, or says goodbye: of those that live."""
        rows = np.asarray(ranks, np.int64)
        self._ranks.left[rows[self._ranks.state[rows] < EXITED]] = True
        self._observed += 1

    # -- questions ---------------------------------------------------------------------------

    def to_aligned(self, rank: int, at: NodeRawNs, now: AlignedNs) -> AlignedNs | None:
        """A time of a rank's node; None if either is unknown."""
        if at <= 0 or rank not in self._ranks.infos:
            return None
        return AlignedNs(int(self._ranks.to_aligned(rank, np.array(at, np.int64), now)))

    def is_shown(self, rank: int, now: AlignedNs) -> bool:
        """Its tap has published a moment ago where it is."""
        _, as_of_ns = self.tables.unrecorded.line(rank)
        now_ns = int(self._ranks.to_node(rank, now))
        return now_ns - as_of_ns <= self._policy.telemetry_late_s * 1e9 / 2

    def line_since(self, rank: int, since: AlignedNs) -> str:
        """The line of the program in which the rank's tap has seen it after that time."""
        where, as_of_ns = self.tables.unrecorded.line(rank)
        return where if where and as_of_ns >= int(self._ranks.to_node(rank, since)) else ""

    def processes_of(self, group_id: str) -> tuple[tuple[int, int], ...]:
        """The members of a group with their process ids, 0 unknown; none if the group, or all of
        them, are unknown."""
        group, infos = self._groups.by_id.get(group_id), self._ranks.infos
        ranks = self._groups.infos[group].ranks if group is not None else ()
        found = tuple((rank, infos[rank].pid if rank in infos else 0) for rank in ranks)
        return found if any(rank in infos for rank in ranks) else ()

    def may_use(self, rank: int, backend: str) -> bool:
        """As far as it is known."""
        info = self._ranks.infos.get(rank)
        return info is not None and (
            not info.backends or any(backend in one for one in info.backends)
        )

    def tick(self, now: AlignedNs, placed: Callable[[], Mapping[int, AlignedNs]] = dict) -> Tick:
        """What the detectors may read at this time. `placed`: see `Snapshot.placed`."""
        collectives = self._collectives
        stalls, early = self.long_waits(now)
        return Tick(
            now=now,
            revision=self._observed + self.clocks.revision,
            policy=self._policy,
            world_size=self.world_size,
            stalls=stalls,
            early=early,
            has_mismatches=collectives.disagrees,
            has_exits=self.tables.has_exits(),
            has_calls=self.tables.unrecorded.any_waits,
            unsynchronized=once(self.clocks.unsynchronized),
            snapshot=once(lambda: self.snapshot(now)),
            late_window=once(lambda: collectives.lateness.window(now)),
            contradictions=once(lambda: _taken(collectives.contradictions)),
            memory_incidents=once(lambda: self.memory.advance(now)),
            phases=PhasesAt(self.tables.phases, self._ranks, now),
            rest=collectives.thresholds.look_at_rest(self.tables.moved_at, now),
            placed=placed,
            utc_ahead_ns=self.utc_ahead_ns,
        )

    def take_clock_hints(self) -> list[ClockHint]:
        """Bounds that completed collectives put on clocks, since the last call."""
        return _taken(self._collectives.clock_hints)

    def take_waits(self, now: AlignedNs) -> Mapping[GroupKind, Sequence[LongWait]] | None:
        """See `StallThresholds.take_waits`."""
        thresholds = self._collectives.thresholds
        if ended := self.tables.unrecorded.take_ended(self._ranks, now):
            thresholds.learn_calls(ended, now)
        return thresholds.take_waits(now)

    def call_thresholds_ns(self, now: AlignedNs) -> Mapping[str, int]:
        """How long calls that no recorder shows may take, by name, as far as the job has shown."""
        return self._collectives.thresholds.of_calls(now)

    @property
    def evicted(self) -> dict[str, int]:
        """Things dropped to stay within limits, by what."""
        return {**self._collectives.evicted(), **self.memory.evicted}

    def stalls(self, now: AlignedNs) -> StallTable:
        """Waiting that telemetry has confirmed to be longer than its group's threshold."""
        return self.long_waits(now)[0]

    def long_waits(self, now: AlignedNs) -> tuple[StallTable, StallTable]:
        """The same, and all that is longer than `EARLY` of the threshold."""
        self._collectives.settle(now)
        return snapshot_parts.stalls(
            self.tables, self._policy.stall_after_ns, self._collectives.ops.ends_early, now
        )

    def snapshot(self, now: AlignedNs) -> Snapshot:
        """Progress of every rank; immutable."""
        collectives, least_ns = self._collectives, self._policy.stall_after_ns
        collectives.settle(now)
        of, ops = (self.tables, self.key, self.world_size), collectives.ops.frozen()
        return replace(
            snapshot_parts.snapshot(*of, ops.op, ops.ends_early, least_ns, now),
            signatures=collectives.signatures.known,
            mismatches=collectives.facts(),
            attended_since=self.attended_since,
            utc_ahead_ns=self.utc_ahead_ns,
            created_at=self.created_at,
            can_ask=self.can_ask,
            call_threshold_ns=self.call_thresholds_ns(now),
        )

    def view(self, now: AlignedNs) -> AttemptView:
        """What people see of the attempt; nothing in it changes afterwards."""
        stalls, collectives = self.stalls(now), self._collectives
        opened, names = collectives.ops.frozen(), collectives.signatures.ops
        state = StateAt(self.tables, opened.ends_early, self._policy.stall_after_ns, now)
        groups = status_view.Groups(state, stalls)
        ranks = status_view.rank_columns(self.tables, now)
        late_s, batches = self._policy.telemetry_late_s, self._recent.batches()
        return AttemptView(
            key=self.key,
            world_size=self.world_size,
            ended=self.tables.all_gone(),
            ranks=status_view.ranks(state, ranks, opened.op),
            groups=groups.views(),
            rank_columns=ranks,
            group_columns=groups.columns,
            skew=collectives.skew.by_op(names),
            duration=collectives.duration.by_op(names),
            transfer=collectives.transfer.by_op(names),
            untimed=collectives.untimed,
            gap_entries=self.gap_entries,
            memory=self.memory.view(),
            matched=int(self._groups.matched[: self._groups.count].sum()),
            history=AttemptHistory(state, opened, batches, self.world_size, late_s),
            unread=dict(self._ranks.unread),
            namespace=self._ranks.namespace(),
        )


def _taken(hints: deque[ClockHint]) -> list[ClockHint]:
    taken = list(hints)
    hints.clear()
    return taken
