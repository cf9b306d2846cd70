"""One agent stream, without I/O: bytes in, calls on the engine out.

A session decodes a message, turns stream indexes into engine handles, and applies it. It knows only
its own stream: `frd.service.ingest.streams` knows which stream reports a rank, and the engine knows
what a batch means. The live service and the replay of a journal both drive it, so time is an
argument.

The first `FrdError` ends the stream: sender and service no longer agree on what was reported, so
the sender must start over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import partial
from typing import Final, assert_never

import numpy as np

from frd.engine.clocks.alignment import Alignment
from frd.engine.state.entry_batch import EntryMessage, EntryRows
from frd.engine.state.watermarks import WatermarkRows
from frd.errors import WireError
from frd.model import (
    AlignedNs,
    AttemptKey,
    Bools,
    ChannelColumns,
    EntryColumns,
    Int32s,
    MemoryColumns,
    MemoryEvent,
    RankState,
    RankStatus,
    UInt32s,
    WatermarkColumns,
)
from frd.service.clocks.agent_clocks import SessionKey, claim_ns, guess
from frd.service.ingest.buffers import Outcome
from frd.service.ingest.declarations import Declarations, DeclaredRank
from frd.service.ingest.shared import FAULT, Shared
from frd.service.ingest.stream_handles import StreamHandles
from frd.wire.codec import Decoder
from frd.wire.messages import (
    AgentEvent,
    Declare,
    Goodbye,
    Hello,
    MemoryEvents,
    ResponsePart,
    Statuses,
    Watermarks,
)

UNKNOWN_UNCERTAINTY_NS: Final = 50_000_000
"""Uncertainty of a clock without pings: more than the delay of a slow network, and little
compared with the 100 ms between two memory samples."""
SLOW_NS: Final = 1_000_000_000
"""A rank that has been in an op for so long waits."""
SAMPLES: Final = "memory"
ROWS: Final = "entries"
"""Labels of what is refused without an end of the stream: impossible memory samples, and rows that
contradict what their rank has reported."""
_UNALIGNED: Final = Alignment("no exchange yet", AlignedNs(0), 0, 0, 0.0, 0)


class Session:
    """One stream, numbered `stream`."""

    def __init__(self, shared: Shared, stream: int) -> None:
        self.stream = stream
        self._shared = shared
        self._watermarks = shared.watermarks
        self._decoder = Decoder()
        self.hello: Hello | None = None
        self.heard_at = AlignedNs(0)
        self.declared = Declarations(shared, self)
        self.ranks = self.declared.ranks
        """By stream index."""
        self._last_rows: tuple[StreamHandles, UInt32s, UInt32s, Int32s] | None = None
        """Ranks, groups and pairs of the last watermarks; the next message mostly has the same."""
        self._acks: dict[int, int] = {}
        self._unapplied = 0
        """Messages with entries that wait to be applied."""
        self._has_failed = False
        """The engine has failed on a message of the stream."""
        self.lag_ns = 0
        """Time from sending to applying of the last watermark message."""
        self.waits = False
        """Some rank waited when the last watermark message was sent."""
        self._refused: list[tuple[str, int, str]] = []
        self.alignment = _UNALIGNED
        """Converts node times to aligned times."""
        self.on_watermarks: Callable[[Watermarks], None] = lambda event: None
        """Called before watermarks are applied, which contain readings of the node's clocks."""

    @property
    def key(self) -> SessionKey:
        """Boot id and session of the agent process."""
        return (self.hello.boot_id, self.hello.session) if self.hello else ("", "")

    def receive(self, data: bytes, now: AlignedNs) -> AgentEvent:
        """Decode and apply one message.

        Raises:
            FrdError: the stream is over; a `WireError` names the field.
        """
        self._go_on()
        event = self._decoder.decode(data)
        self.heard_at = now
        match event:
            case EntryColumns():
                self._entries(event, now)
            case Watermarks():
                self._watermark_message(event, now)
            case MemoryColumns():
                self._memory_samples(event, now)
            case ChannelColumns():
                self._channels(event, now)
            case MemoryEvents():
                for one in event.events:
                    self._memory_event(one, now)
            case Statuses():
                self._statuses(event, now)
            case Declare():
                self._shared.flush()
                self.declared.declare(event, now)
            case Hello():
                self._hello(event, now)
            case Goodbye():
                self._leave()
            case ResponsePart():
                pass
            case _:
                assert_never(event)
        return event

    def align(self, alignment: Alignment) -> None:
        """Use another alignment from now on, also for what was reported before."""
        if self._unapplied:
            self._shared.waiting.flush()  # what came before is aligned as it was then
        self.alignment = self.declared.alignment = alignment
        number, uncertainty_ns = self.declared.session_number, claim_ns(alignment)
        self.declared.uncertainty_ns = uncertainty_ns
        for handles in filter(None, (attempt.handles for attempt in self.declared.attempts)):
            clocks = handles.attempt.clocks
            if ranks := clocks.ranks_of_session(handles.ranks, number):
                clocks.set(ranks, number, uncertainty_ns, alignment.now_ns, alignment)

    @property
    def has_unapplied(self) -> bool:
        """Entries of the stream wait to be applied."""
        return self._unapplied > 0

    def take_acks(self) -> dict[int, int]:
        """The last revisions of the rows that came since the last call, per stream index."""
        acks, self._acks = self._acks, {}
        return acks

    def take_refused(self) -> list[tuple[str, int, str]]:
        """What was refused since the last call, without an end of the stream: its label, how many
        rows or samples, and why."""
        refused, self._refused = self._refused, []
        return refused

    def _refuse(self, label: str, bad: Bools, why: str) -> None:
        self._refused.append((label, int(bad.sum()), why))

    def admit(self, key: AttemptKey, run: str, now: AlignedNs) -> None:
        """The run is watched from now on."""
        self._shared.flush()
        self.declared.admit(key, run, now)

    def suspend(self, key: AttemptKey, run: str) -> None:
        """The run is no longer watched in this attempt."""
        self._shared.flush()
        self.declared.suspend(key, run)

    def settle(self, now: AlignedNs) -> bool:
        """See `Declarations.settle`."""
        if self.declared.is_settled:
            return False
        forgotten = self.declared.forgotten
        has_entered = self.declared.settle(now)
        if self.declared.forgotten != forgotten:
            self._last_rows = None
        return has_entered

    def disconnect(self, ranks: Iterable[DeclaredRank]) -> None:
        """Called when the stream has ended: `ranks` are reported by no other stream."""
        self._shared.flush()
        for rank in ranks:
            if (handles := rank.attempt.handles) is not None:
                handles.attempt.connection([rank.info.rank], False)

    # -- effects of messages ------------------------------------------------------------------

    def _hello(self, hello: Hello, now: AlignedNs) -> None:
        self.hello = hello
        number = self._shared.revisions.session_number(self.key)
        self.declared.session, self.declared.session_number = hello.session, number
        self.align(guess(hello.sent_raw_ns, now))

    def _entries(self, batch: EntryColumns, now: AlignedNs) -> None:
        rank = self.ranks[batch.rank]
        revision = rank.revision
        numbered = batch.first_revision > 0
        last = batch.first_revision + len(batch) - 1
        if (handles := rank.handles) is None:
            rank.attempt.has_dropped = True
            if numbered:
                self._acknowledge(batch.rank, last)  # refused, but the agent may drop it
            return
        waiting, attempt = self._shared.waiting, handles.attempt
        if waiting.has(attempt, rank.info.rank):
            waiting.flush()
            self._go_on()
        if numbered:
            batch = revision.news(batch)
        if not len(batch):
            if numbered:
                self._acknowledge(batch.rank, last)
            return
        rows = self._entry_rows(batch, rank, handles)
        replay = revision.replay or not numbered
        message = EntryMessage(rows, self.declared.session_number, now, is_replay=replay)
        if numbered:
            revision.applied = max(revision.applied, last)
        self._unapplied += 1
        revisions = (batch.first_revision, last) if numbered else (0, 0)
        settled = partial(self._settled, batch.rank, *revisions, len(rows))
        waiting.add(attempt, message, settled)

    def _go_on(self) -> None:
        if self._has_failed:
            raise WireError("stream", FAULT, "internal error: see the service's log")

    def _settled(self, index: int, first: int, last: int, rows: int, outcome: Outcome) -> None:
        """`first` and `last` are the revisions of the message's rows, 0 if they have none. Never
        more is acknowledged than this stream has sent: another stream of the agent may have brought
        later rows in messages that the log does not have."""
        self._unapplied -= 1
        if outcome.has_failed:
            self._has_failed = True
            self.ranks[index].revision.retract(first)
            return
        if outcome.refused:
            rank = self.ranks[index]
            why = f"rank {rank.info.rank} of {rank.key.job}: {outcome.why}"
            self._refused.append((ROWS, outcome.refused, why))
        self._shared.entries += rows - outcome.refused - outcome.duplicates
        self._shared.duplicates += outcome.duplicates
        if last:
            self._acknowledge(index, last)

    def _acknowledge(self, index: int, revision: int) -> None:
        self._acks[index] = max(self._acks.get(index, 0), revision)

    def _entry_rows(
        self, batch: EntryColumns, rank: DeclaredRank, handles: StreamHandles
    ) -> EntryRows:
        known = self.declared
        return EntryRows(
            rank=rank.info.rank,
            pair=handles.pairs(rank.row, known.group_column.take(batch.group)),
            seq=batch.seq,
            signature=handles.signatures(batch.signature, known.signatures),
            flags=batch.flags,
            created_ns=batch.created_ns,
            started_ns=batch.started_ns,
            completed_ns=batch.completed_ns,
        )

    def _watermark_message(self, batch: Watermarks, now: AlignedNs) -> None:
        self.on_watermarks(batch)
        self.lag_ns = max(now - self.alignment.one_to_aligned(batch.sent_raw_ns), 0)
        attempt, columns = self.declared.attempts[batch.attempt_index], batch.columns
        since_ns = columns.head_created_ns
        self.waits = bool(((since_ns > 0) & (since_ns < batch.sent_raw_ns - SLOW_NS)).any())
        if (handles := attempt.handles) is None:
            attempt.has_dropped = True
            return
        if self.declared.superseded:
            gone = np.fromiter(self.declared.superseded, np.uint32)
            stay = [~np.isin(of, gone) for of in (columns.rank, columns.seen_rank)]
            columns = _only(columns, *stay)
        pair = self._pairs_of(handles, columns)
        if (bad := pair < 0).any():
            self._refuse(ROWS, bad, "watermarks.group: some ranks are not in the group")
            columns, pair = _only(columns, ~bad, np.ones(len(columns.seen_rank), bool)), pair[~bad]
        rows = WatermarkRows(
            pair=pair,
            enqueued=columns.enqueued,
            started=columns.started,
            completed=columns.completed,
            head_created_ns=columns.head_created_ns,
            seen_rank=self.declared.rank_handle.take(columns.seen_rank),
            # Nothing is known of the time after the message; what is too high would stay.
            as_of_ns=np.minimum(columns.as_of_ns, batch.sent_raw_ns),
        )
        self._watermarks.add(handles.attempt, rows)
        if self._watermarks.is_full:
            self._shared.flush()

    def _pairs_of(self, handles: StreamHandles, columns: WatermarkColumns) -> Int32s:
        """The pairs of the rows, cached: the decoder returns the same arrays for the same rows."""
        if self._last_rows is not None:
            of, rank, group, pairs = self._last_rows
            if of is handles and rank is columns.rank and group is columns.group:
                return pairs
        pairs = handles.pairs(
            self.declared.rank_row.take(columns.rank),
            self.declared.group_column.take(columns.group),
        )
        self._last_rows = (handles, columns.rank, columns.group, pairs)
        return pairs

    def _channels(self, batch: ChannelColumns, now: AlignedNs) -> None:
        rank = self.ranks[batch.rank]
        if (handles := rank.handles) is None:
            return
        columns = replace(
            batch,
            rank=rank.info.rank,
            group=self.declared.group_handle.take(batch.group).astype(np.uint32),
            signature=handles.signatures(batch.signature, self.declared.signatures, may_lack=True),
        )
        handles.attempt.observe_channels(columns, now)

    def _statuses(self, batch: Statuses, now: AlignedNs) -> None:
        for status in batch.statuses:
            self._status(status, now)
        for phases in batch.phases:
            rank = self.ranks[phases.rank]
            if (handles := rank.handles) is not None:
                handles.attempt.observe_phases(replace(phases, rank=rank.info.rank))
        if batch.leaving is not None:
            self._leave()

    def _leave(self) -> None:
        """The agent may be gone from now on: of the ranks that it reports nothing more is known."""
        self.declared.is_leaving = True
        for index, rank in enumerate(self.ranks):
            owner = self._shared.owners.of(rank.key, rank.info.rank)
            if (handles := rank.handles) is not None and owner in (None, (self, index)):
                handles.attempt.agent_leaves([rank.info.rank])

    def _status(self, status: RankStatus, now: AlignedNs) -> None:
        rank = self.ranks[status.rank]
        has_ended = status.state in (RankState.EXITED, RankState.FINISHED)
        rank.is_over |= has_ended
        if (handles := rank.handles) is not None:
            handles.attempt.observe_status(replace(status, rank=rank.info.rank), now)
        run = rank.attempt.declared.run
        if run and has_ended:
            self._shared.runs.gone(rank.key, run, rank.info)

    def _memory_samples(self, batch: MemoryColumns, now: AlignedNs) -> None:
        """The onset of a rise is between two samples, extended by the uncertainty of the clock.

        Times are not limited to now, unlike others: samples at equal times would show no rise. All
        series of a batch are of one attempt, as the decoder has checked.
        """
        attempt = self.declared.series[int(batch.series[0])]
        if (handles := attempt.handles) is None:
            return
        columns = MemoryColumns(
            self.declared.series_handle.take(batch.series),
            *(batch.capacity, batch.begin_ns, batch.end_ns, batch.values),
        )
        clock, slack_ns, refused = self.alignment, self._slack_ns, self._refuse_samples
        memory = handles.attempt.memory
        memory.observe(columns, now, clock=clock, slack_ns=slack_ns, refused=refused)

    def _refuse_samples(self, count: int) -> None:
        self._refused.append((SAMPLES, count, "negative, more than there is, or out of order"))

    def _memory_event(self, event: MemoryEvent, now: AlignedNs) -> None:
        rank = self.ranks[event.rank]
        if (handles := rank.handles) is not None:
            at = AlignedNs(min(self.alignment.one_to_aligned(event.at_ns), now))
            event = replace(event, rank=rank.info.rank)
            handles.attempt.memory.event(event, at, self._slack_ns, now)

    @property
    def _slack_ns(self) -> int:
        """Uncertainty of an aligned time."""
        known = self.declared.uncertainty_ns
        return UNKNOWN_UNCERTAINTY_NS if known is None else known


def _only(columns: WatermarkColumns, rows: Bools, seen: Bools) -> WatermarkColumns:
    keep = dict.fromkeys((c.name for c in fields(columns)), rows)
    keep |= {"seen_rank": seen, "as_of_ns": seen}
    return WatermarkColumns(**{name: getattr(columns, name)[some] for name, some in keep.items()})
