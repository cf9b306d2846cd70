"""One agent stream, without I/O: bytes in, calls on the engine out.

A session decodes, turns stream indexes into engine handles and node times into aligned ones, and
applies. It knows its own stream only; who else speaks for a rank is the ledger's business, and
what a batch means the engine's. The live service and the replay of a journal both drive it, so it
is told the time and never reads it.

The first `FrdError` ends the stream: what the sender believes and what is known here no longer
agree, and it must start over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt

from frd.engine.clocks.alignment import Alignment
from frd.engine.engine import Engine
from frd.errors import FrdError, WireError
from frd.model import (
    AlignedNs,
    AttemptKey,
    ChannelColumns,
    EntryColumns,
    GroupInfo,
    Int32s,
    MemoryColumns,
    MemoryEvent,
    NodeNs,
    RankInfo,
    RankState,
    RankStatus,
    SeriesInfo,
    Signature,
    UInt32s,
    WatermarkColumns,
)
from frd.service.clocks.agent_clocks import SessionKey, claim_ns, guess
from frd.service.ingest.job_runs import JobRuns
from frd.service.ingest.memory_feed import MemoryFeed, observe_event
from frd.service.ingest.revisions import ProcessRevision, Revisions
from frd.service.ingest.stream_handles import AttemptHandles, IndexColumn
from frd.service.ingest.watermark_buffer import WatermarkBuffer
from frd.wire import (
    AgentEvent,
    AttemptDecl,
    Declare,
    Decoder,
    Goodbye,
    GroupDecl,
    Hello,
    MemoryEvents,
    RankDecl,
    ResponsePart,
    Statuses,
    Watermarks,
)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class DeclaredRank:
    """A rank of this stream; the position in `Session.ranks` is its stream index."""

    key: AttemptKey
    info: RankInfo
    slot: DeclaredAttempt
    progress: ProcessRevision
    row: int = 0
    is_superseded: bool = False
    """Another process has taken the rank's place: what is reported of this one is dropped."""

    @property
    def handles(self) -> AttemptHandles | None:
        """None while nothing that is reported of the rank counts."""
        return None if self.is_superseded else self.slot.handles


@dataclass(slots=True)
class DeclaredAttempt:
    """An attempt of this stream."""

    declared: AttemptDecl
    handles: AttemptHandles | None = None
    """None while its run is refused, see `frd.service.ingest.job_runs`."""
    ranks: list[int] = field(default_factory=list)
    groups: list[tuple[int, GroupInfo]] = field(default_factory=list)
    """Stream indexes, for when the run is admitted."""
    series: list[tuple[int, int, SeriesInfo]] = field(default_factory=list)
    """Stream index, global rank, and what it is."""
    has_dropped: bool = False
    """Something was reported of it while it was refused."""


class Session:
    """One stream, numbered `stream`."""

    def __init__(
        self,
        engine: Engine,
        marks: WatermarkBuffer,
        revisions: Revisions,
        runs: JobRuns,
        stream: int,
    ) -> None:
        self.stream = stream
        self._runs = runs
        self._engine = engine
        self._marks = marks
        self._revisions = revisions
        self._decoder = Decoder()
        self.hello: Hello | None = None
        self.may_tell_of: Callable[[str], bool] = lambda job: True
        """Whether the peer may speak for a job."""
        self.ranks: list[DeclaredRank] = []
        self.heard_at = AlignedNs(0)
        self._slots: list[DeclaredAttempt] = []
        self._superseded: set[int] = set()
        self._entered: list[int] = []
        """Stream indexes of ranks that have come into the engine since `take_entered`."""
        self.must_resync = False
        """What was dropped counts from now on: the agent has to send it again."""
        self._signatures: list[Signature] = []
        self._rank_row = IndexColumn()
        self._rank_handle = IndexColumn()
        self._group_column = IndexColumn()
        self._group_handle = IndexColumn()
        self.memory = MemoryFeed()
        self._rows: tuple[UInt32s, UInt32s, Int32s] | None = None
        """Ranks and groups of the last watermarks, and their pairs: mostly the next ones' too."""
        self._acks: dict[int, int] = {}
        self.entries = 0
        """Entry rows applied; duplicates and rows known from before are not."""
        self.duplicates = 0
        """Entry rows that said nothing new, as another session had told them."""
        self.lag_ns = 0
        """How long the last watermark message was under way."""
        self.alignment = guess(NodeNs(0), AlignedNs(0))
        """What node times are aligned with."""
        self.hears: Callable[[Watermarks, AlignedNs], None] = lambda event, now: None
        """Told of watermarks before they are applied, which is when they tell of the clock."""
        self._clock_number = -1
        self._uncertainty_ns: int | None = None
        """Of times that it aligns; None while nothing bounds it."""

    @property
    def key(self) -> SessionKey:
        """Which agent process it is the stream of."""
        return (self.hello.boot_id, self.hello.session) if self.hello else ("", "")

    def receive(self, data: bytes, now: AlignedNs) -> AgentEvent:
        """Decode and apply one message.

        Raises:
            FrdError: the stream is over; a `WireError` names the field.
        """
        event = self._decoder.decode(data)
        self.heard_at = now
        match event:
            case EntryColumns():
                self._entries(event, now)
            case Watermarks():
                self._watermarks(event, now)
            case MemoryColumns():
                self._memory(event, now)
            case ChannelColumns():
                self._channels(event, now)
            case MemoryEvents():
                for of_rank in event.events:
                    self._memory_event(of_rank, now)
            case Statuses():
                for status in event.statuses:
                    self._status(status, now)
            case Declare():
                self._declare(event, now)
            case Hello():
                self.hello = event
                self._clock_number = self._revisions.number(self.key)
                self.align(guess(event.sent_at_ns, now))
            case ResponsePart() | Goodbye():
                pass
            case _:
                assert_never(event)
        return event

    def align(self, alignment: Alignment) -> None:
        """Align what comes from now on with another alignment, and what waits since before."""
        is_better = alignment.is_better_than(self.alignment)
        self.alignment = alignment
        self._uncertainty_ns = claim_ns(alignment)
        for handles in filter(None, (slot.handles for slot in self._slots)):
            if ranks := handles.attempt.of_clock(handles.ranks, self._clock_number):
                attempt, number = handles.attempt, self._clock_number
                attempt.clock(ranks, number, self._uncertainty_ns, alignment.now_ns)
                if is_better:
                    self._marks.realign(handles, ranks, alignment)
                else:
                    self._marks.flush(alignment.now_ns)
                    handles.attempt.keep_heads(ranks, handles.resolved())

    def take_acks(self) -> dict[int, int]:
        """Revisions applied since the last call, per stream index."""
        acks, self._acks = self._acks, {}
        return acks

    def take_entered(self) -> list[int]:
        """Stream indexes of the ranks that have become this session's own since the last call."""
        entered, self._entered = self._entered, []
        return entered

    def admit(self, key: AttemptKey, run: str, now: AlignedNs) -> None:
        """The run counts from now on."""
        self._marks.flush(now)
        for slot in self._slots:
            if (slot.declared.key, slot.declared.run) == (key, run) and slot.handles is None:
                try:
                    self._open(slot, now)
                except FrdError as error:  # of this stream, which need not be the one that spoke
                    log.warning("stream %d: %s", self.stream, error)
                    slot.handles = None
                self.must_resync |= slot.has_dropped

    def suspend(self, key: AttemptKey, run: str, now: AlignedNs) -> None:
        """The run counts no more in this attempt."""
        self._marks.flush(now)
        for slot in self._slots:
            if (slot.declared.key, slot.declared.run) == (key, run) and slot.handles is not None:
                handles = [self.ranks[index].info.rank for index in slot.ranks]
                if handles:
                    self._engine.connection(slot.handles.attempt, handles, False, now)
                slot.handles = None
                for index, _, _ in slot.series:
                    self.memory.leave(index)
        self._rows = None

    def disconnect(self, ranks: Iterable[DeclaredRank], now: AlignedNs) -> None:
        """The stream ended: `ranks`, those for which no other stream speaks, lost their agent."""
        self._marks.flush(now)
        by_attempt: dict[AttemptKey, list[DeclaredRank]] = {}
        for rank in ranks:
            by_attempt.setdefault(rank.key, []).append(rank)
        for gone in by_attempt.values():
            if (handles := gone[0].slot.handles) is not None:
                self._engine.connection(
                    handles.attempt, [rank.info.rank for rank in gone], False, now
                )

    # -- what the messages do ------------------------------------------------------------------

    def _declare(self, event: Declare, now: AlignedNs) -> None:
        self._marks.flush(now)
        self._signatures.extend(declared.signature for declared in event.signatures)
        for attempt in event.attempts:
            self._declare_attempt(attempt, now)
        for rank in event.ranks:
            self._declare_rank(rank, now)
        for group in event.groups:
            self._declare_group(group)
        for series in event.series:
            self._declare_series(series.info)

    def _declare_attempt(self, declared: AttemptDecl, now: AlignedNs) -> None:
        if not self.may_tell_of(declared.key.job):
            raise WireError(
                "attempts.job",
                "job",
                f"{declared.key.job!r}: the agent's token or certificate is for other jobs",
            )
        slot = DeclaredAttempt(declared)
        self._slots.append(slot)
        if not declared.run:
            self._open(slot, now)

    def _declare_rank(self, declared: RankDecl, now: AlignedNs) -> None:
        slot, info = self._slots[declared.attempt_index], declared.info
        key, run = slot.declared.key, slot.declared.run
        index = len(self.ranks)
        session = self.hello.session if self.hello else ""
        progress = self._revisions.progress(key, info, session)
        self.ranks.append(DeclaredRank(key, info, slot, progress))
        self._rank_row.append(0)
        self._rank_handle.append(info.rank)
        slot.ranks.append(index)
        before = slot.handles
        counts = not run or self._runs.declare(key, run, info, self, now)
        if slot.handles is not None:
            if slot.handles is before:  # else this has been opened again, with the rank
                self._enter(index, now)
        elif counts:
            self._open(slot, now)

    def _open(self, slot: DeclaredAttempt, now: AlignedNs) -> None:
        """Bring into the engine what the slot holds."""
        key, run = slot.declared.key, slot.declared.run
        attempt = self._engine.attempt(key, slot.declared.world_size, now)
        if run and self._runs.takes_over(key, run):
            self._engine.start_over(attempt, slot.declared.world_size, now)
        slot.handles = AttemptHandles(attempt)
        self._rows = None
        for index in slot.ranks:
            self._enter(index, now)
        for index, group in slot.groups:
            self._enter_group(slot.handles, index, group)
        for index, rank, series in slot.series:
            self.memory.enter(index, attempt, rank, series)

    def _enter(self, index: int, now: AlignedNs) -> None:
        rank = self.ranks[index]
        handles = rank.slot.handles
        assert handles is not None
        handle = self._engine.rank(handles.attempt, rank.info, now)
        rank.row = handles.add_rank(rank.info, handle)
        rank.is_superseded = False
        self._superseded.discard(index)
        self._rank_row.put(index, rank.row)
        handles.attempt.clock([handle], self._clock_number, self._uncertainty_ns, now)
        self._engine.connection(handles.attempt, [handle], True, now)
        self._entered.append(index)

    def _declare_group(self, declared: GroupDecl) -> None:
        slot = self._slots[declared.attempt_index]
        index = self._group_handle.count
        self._group_column.append(0)
        self._group_handle.append(0)
        if slot.handles is not None:
            self._enter_group(slot.handles, index, declared.info)
        slot.groups.append((index, declared.info))

    def _enter_group(self, handles: AttemptHandles, index: int, info: GroupInfo) -> None:
        handle = handles.attempt.group(info)
        self._group_column.put(index, handles.add_group(info, handle))
        self._group_handle.put(index, handle)

    def _declare_series(self, info: SeriesInfo) -> None:
        rank = self.ranks[info.rank]
        index = self.memory.declare()
        if rank.slot.handles is not None:
            self.memory.enter(index, rank.slot.handles.attempt, rank.info.rank, info)
        rank.slot.series.append((index, rank.info.rank, info))

    def _entries(self, batch: EntryColumns, now: AlignedNs) -> None:
        rank = self.ranks[batch.rank]
        progress = rank.progress
        numbered = batch.first_revision > 0
        last = batch.first_revision + len(batch) - 1
        if (handles := rank.handles) is None:
            rank.slot.has_dropped = True
            if numbered:
                self._acks[batch.rank] = last  # refused, but the agent need not keep it
            return
        if numbered:
            batch = _after(batch, progress.applied)
        if len(batch):
            applied = self._engine.observe_entries(
                handles.attempt,
                rank.info.rank,
                handles.pairs("entries.group", rank.row, self._group_column.take(batch.group)),
                batch.seq,
                handles.signatures(batch.signature, self._signatures),
                batch.flags,
                *self._aligned(
                    np.array([batch.created_ns, batch.started_ns, batch.completed_ns]), now
                ),
                replay=progress.replay or not numbered,
                teller=self._clock_number,
                now=now,
            )
            self.entries += applied.rows - applied.duplicates
            self.duplicates += applied.duplicates
        if numbered:
            progress.applied = max(progress.applied, last)
            self._acks[batch.rank] = progress.applied

    def _watermarks(self, batch: Watermarks, now: AlignedNs) -> None:
        self.hears(batch, now)
        self.lag_ns = max(now - self.alignment.one_to_aligned(batch.sent_at_ns), 0)
        slot = self._slots[batch.attempt_index]
        if (handles := slot.handles) is None:
            slot.has_dropped = True
            return
        columns = self._counted(batch.columns)
        self._marks.add(
            handles.attempt,
            self._pairs_of(handles, columns),
            self._rank_handle.take(columns.seen_rank),
            columns,
            self.alignment,
        )

    def _counted(self, columns: WatermarkColumns) -> WatermarkColumns:
        """Without the rows of ranks that other processes have taken."""
        if not self._superseded:
            return columns
        gone = np.fromiter(self._superseded, np.uint32)
        keep, seen = ~np.isin(columns.rank, gone), ~np.isin(columns.seen_rank, gone)
        return WatermarkColumns(
            rank=columns.rank[keep],
            group=columns.group[keep],
            enqueued=columns.enqueued[keep],
            started=columns.started[keep],
            completed=columns.completed[keep],
            head_created_ns=columns.head_created_ns[keep],
            seen_rank=columns.seen_rank[seen],
            as_of_ns=columns.as_of_ns[seen],
        )

    def supersede(self, index: int) -> None:
        """Another process has the rank now; see `DeclaredRank.is_superseded`."""
        self.ranks[index].is_superseded = True
        self._superseded.add(index)

    def _pairs_of(self, handles: AttemptHandles, columns: WatermarkColumns) -> Int32s:
        """The decoder gives the same arrays again when an agent names the same rows again."""
        if self._rows is not None:
            rank, group, pairs = self._rows
            if rank is columns.rank and group is columns.group:
                return pairs
        pairs = handles.pairs(
            "watermarks.group",
            self._rank_row.take(columns.rank),
            self._group_column.take(columns.group),
        )
        self._rows = (columns.rank, columns.group, pairs)
        return pairs

    def _channels(self, batch: ChannelColumns, now: AlignedNs) -> None:
        rank = self.ranks[batch.rank]
        if (handles := rank.handles) is None:
            return
        self._engine.observe_channels(
            handles.attempt,
            rank.info.rank,
            self._group_handle.take(batch.group),
            batch.peer,
            batch.is_send,
            batch.in_flight,
            self._aligned(batch.head_created_ns, now),
            now,
            head_node_ns=batch.head_created_ns,
        )

    def _status(self, status: RankStatus, now: AlignedNs) -> None:
        rank = self.ranks[status.rank]
        at = self.alignment.one_to_aligned(status.at_ns)
        if (handles := rank.handles) is not None:
            told = replace(status, rank=rank.info.rank)
            self._engine.observe_status(
                handles.attempt, rank.info.rank, told, AlignedNs(min(at, now)), now
            )
        run = rank.slot.declared.run
        if run and status.state in (RankState.EXITED, RankState.FINISHED):
            self._runs.gone(rank.key, run, rank.info)

    def _memory(self, batch: MemoryColumns, now: AlignedNs) -> None:
        # Not cut to now, as other times are: moments that fall together would not rise.
        begin = self.alignment.to_aligned(batch.begin_ns)
        self.memory.observe(batch, begin, self._uncertainty_ns, now)

    def _memory_event(self, event: MemoryEvent, now: AlignedNs) -> None:
        rank = self.ranks[event.rank]
        if (handles := rank.handles) is None:
            return
        observe_event(
            handles.attempt,
            replace(event, rank=rank.info.rank),
            AlignedNs(min(self.alignment.one_to_aligned(event.at_ns), now)),
            self._uncertainty_ns,
            now,
        )

    def _aligned(self, node_ns: npt.NDArray[Any], now: AlignedNs) -> npt.NDArray[np.int64]:
        """On the service's clock. What is told has happened, whatever the node's clock says."""
        return np.minimum(self.alignment.to_aligned(node_ns), now)


def _after(batch: EntryColumns, applied: int) -> EntryColumns:
    """The rows of a numbered batch whose revision is above `applied`."""
    cut = min(max(applied + 1 - batch.first_revision, 0), len(batch))
    if not cut:
        return batch
    return EntryColumns(
        rank=batch.rank,
        first_revision=batch.first_revision + cut,
        group=batch.group[cut:],
        seq=batch.seq[cut:],
        signature=batch.signature[cut:],
        flags=batch.flags[cut:],
        created_ns=batch.created_ns[cut:],
        started_ns=batch.started_ns[cut:],
        completed_ns=batch.completed_ns[cut:],
    )
