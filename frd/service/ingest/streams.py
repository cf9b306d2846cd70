"""All agent streams of one service, without I/O: the effects of messages, and the answers.

The registry around the sessions: which agents are connected, which stream reports which rank, which
clock belongs to which stream, what to acknowledge, and what the log records.
`frd.service.ingest.collector` moves the bytes, waits, and admits streams. Here one call applies one
message completely, so no lock is needed, and time comes in through one function.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from frd.engine.clocks.alignment import Alignment
from frd.errors import FrdError
from frd.model import AlignedNs, AttemptKey, EntryColumns, MemoryColumns
from frd.service.clocks.agent_clocks import AgentClock, AgentClocks, encode
from frd.service.ingest.job_runs import JobWarning, Refusal
from frd.service.ingest.nodes import Nodes
from frd.service.ingest.session import ROWS, SAMPLES, SLOW_NS, Session
from frd.service.ingest.shared import Shared
from frd.service.journal.writer import Log
from frd.service.metrics.recent_peak import RecentPeak
from frd.store.records import RecordKind
from frd.wire.limits import check_message
from frd.wire.messages import (
    MAX_MESSAGE_BYTES,
    Ack,
    AgentEvent,
    Declare,
    Goodbye,
    Hello,
    Pace,
    Redirect,
    Resync,
    ServiceEvent,
    Statuses,
    Watermarks,
    Welcome,
)

ROUND_MS: Final = 2_000
"""Between two rounds of reports of an agent whose job is well."""
HURRIED_ROUND_MS: Final = 900
"""While some rank of the job waits: where the hang is, nothing waits, so only the service knows."""
_CALM_NS: Final = 30_000_000_000
"""How long no rank must have waited before rounds are rare again, so that a job whose ranks wait
now and again does not change its pace with each of its steps."""
MAX_REFUSED: Final = 32
"""Jobs whose refused ranks are shown."""
_REFUSED: Final = {SAMPLES: "samples of memory", ROWS: "rows"}

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Stream:
    """A stream: its session, its clock, and the events to write."""

    id: int
    session: Session
    is_sure: Callable[[], bool] = lambda: True
    """That of `Streams`."""
    clock: AgentClock | None = None
    """Known after its Hello."""
    outgoing: list[ServiceEvent] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is something to write."""
    closing: bool = False
    moved: str = ""
    """Why the service ends the stream, without an error of the agent."""
    interrupt: Callable[[bool], None] = lambda redirected: None
    """Ends the reading of messages; if the agent is redirected, after it had time to hang up."""
    logged_refused: set[str] = field(default_factory=set)
    round_ms: int = 0
    """The pace that was set last; 0: none."""
    acks: dict[int, int] = field(default_factory=dict)
    """Revisions by stream index that are to be acknowledged."""

    def send(self, event: ServiceEvent) -> None:
        self.outgoing.append(event)
        self.wake.set()

    def close(self) -> None:
        """Write the outgoing events, then end."""
        self.closing = True
        self.wake.set()

    def leave(self, why: str, address: str = "") -> None:
        """Apply nothing more: the agent keeps what is not acknowledged, and reports to the service
        at `address`, if there is one, or connects again. Only the first call counts."""
        if self.moved:
            return
        self.moved = why
        if address:
            self.send(Redirect(address, why))
        self.interrupt(bool(address))

    def take_outgoing(self) -> list[ServiceEvent]:
        """The events to write, in order. Acknowledgements merge until they are taken."""
        events, self.outgoing = self.outgoing, []
        if self.acks and self.is_sure():  # this process may have paused since they were drawn
            events.insert(0, Ack(self.acks))
            self.acks = {}
        return events

    def draw_acks(self) -> None:
        """Acknowledge what has been applied."""
        self.acks |= self.session.take_acks()


@dataclass(eq=False)
class Streams:
    """`instance` identifies this owner of the cell: if an agent meets another instance, its earlier
    reports are lost. `ids` numbers all streams of the process; `successor` is where agents should
    go when their stream breaks, empty: here. Nothing is acknowledged unless `is_sure`: otherwise
    another replica may have the cell."""

    shared: Shared
    clocks: AgentClocks
    journal: Log
    now: Callable[[], AlignedNs]
    version: str
    instance: str
    ids: Iterator[int]
    successor: Callable[[], str] = str
    is_sure: Callable[[], bool] = lambda: True
    nodes: Nodes = field(default_factory=Nodes)
    refused: Counter[str] = field(default_factory=Counter)
    """Refused and aborted streams by reason, and what is refused of others."""
    on_rows: Callable[[], None] = lambda: None
    """Called when something has come that is acknowledged once it is applied."""
    on_news: Callable[[], None] = lambda: None
    """Called when something has come that may change a finding now: not what ranks report of which
    none waits, nor samples of memory, of which a rise shows only in the course of time."""
    _streams: dict[int, Stream] = field(default_factory=dict)
    """Streams that have sent Hello, by id."""
    _left: tuple[str, str] | None = None
    """Why all streams have ended, and where they should go."""
    _acking: set[Stream] = field(default_factory=set)
    _unpaced: set[Stream] = field(default_factory=set)
    """Those that have declared something since paces were set."""
    _waited_at: dict[str, AlignedNs] = field(default_factory=dict)
    """When a rank was last known to wait, by job; jobs that are calm again are left out."""
    _warned: set[JobWarning] = field(default_factory=set)
    _kept: frozenset[AttemptKey] = frozenset()
    _lags: RecentPeak = field(default_factory=RecentPeak)

    def __len__(self) -> int:
        return len(self._streams)

    def __getitem__(self, stream_id: int) -> Stream:
        return self._streams[stream_id]

    # -- one stream ----------------------------------------------------------------------------

    def open(self) -> Stream:
        """A new stream, before its first message."""
        number = next(self.ids)
        return Stream(number, Session(self.shared, number), self.is_sure)

    def take(self, stream: Stream, data: bytes) -> AgentEvent:
        """Check the limits of one message, apply it, then record it in the log.

        Raises:
            FrdError: the peer broke the contract; the stream is over.
        """
        check_message(data)
        now = self.now()
        session = stream.session
        event = session.receive(data, now)
        if self._left is not None and stream.id not in self._streams:
            stream.leave(*self._left)  # the agent had called before, and says Hello only now
            return event
        match event:
            case EntryColumns():
                self._acking.add(stream)
                self.on_rows()
            case Watermarks():
                self._lags.add(session.lag_ns / 1e9, now / 1e9)
            case Declare():
                session.declared.charge(event, len(data))
                self._adopt(stream)
                self._unpaced.add(stream)
            case Hello():
                self._greet(stream, event, now)
            case Statuses():
                self._note(stream, event)
            case Goodbye():
                self.nodes.said_goodbye(session.key, stream.id)
            case _:
                pass
        self._refuse(stream)
        self.nodes.heard(session.key, now)
        self.journal.message(stream.id, now, data, event)
        is_progress = isinstance(event, EntryColumns | Watermarks) and not session.waits
        if not (is_progress or isinstance(event, MemoryColumns)):
            self.on_news()
        clock = stream.clock if isinstance(event, Hello) else None
        if clock is not None and clock.used is not session.alignment:
            self._align(stream, clock.used)  # known from an earlier stream of the session
        return event

    def _note(self, stream: Stream, event: Statuses) -> None:
        """What concerns the agent, not its ranks."""
        key, hello = stream.session.key, stream.session.hello
        if event.unreadable is not None:
            self.nodes.unreadable(key, event.unreadable.texts)
        if event.leaving is not None and hello is not None:
            self.nodes.asked_to_stop(key)
            log.info(
                "agent of %s was asked to stop: stream %d, %d ranks live",
                *(hello.node, stream.id, event.leaving.live_ranks),
            )

    def close(self, stream: Stream) -> None:
        """Called when a stream has ended: ranks without another stream lose their agent."""
        session = stream.session
        self._acking.discard(stream)
        self._unpaced.discard(stream)
        if not stream.moved:
            stream.draw_acks()
        if self._streams.pop(stream.id, None) is None or session.hello is None:
            return
        now = self.now()
        session.disconnect(self.shared.owners.release(session))
        session.declared.close()
        self.shared.runs.closed(session)
        self.nodes.disconnected(session.key, stream.id)
        if stream.clock is not None:
            stream.clock.disconnected(stream.id, now)
        self.journal.record(RecordKind.CLOSED, now, stream.id)
        self.on_news()
        log.info("agent of %s gone: stream %d", session.hello.node, stream.id)

    def _greet(self, stream: Stream, hello: Hello, now: AlignedNs) -> None:
        log.info("agent of %s connected: stream %d", hello.node, stream.id)
        self._streams[stream.id] = stream
        key = stream.session.key
        stream.clock = self.clocks.connected(
            key, hello.node, stream.session.alignment, stream.id, partial(self._align, stream)
        )
        self.clocks.greeted(stream.clock, hello)
        stream.session.on_watermarks = partial(self.clocks.heard, stream.clock)
        self.nodes.connected(key, hello, stream.clock, stream.id, now)
        self.journal.record(RecordKind.OPENED, now, stream.id)
        welcome = hello.protocol, self.version, self.instance, MAX_MESSAGE_BYTES
        stream.send(Welcome(*welcome, self.successor()))

    def _align(self, stream: Stream, alignment: Alignment) -> None:
        stream.session.align(alignment)
        self.journal.record(RecordKind.ALIGNED, self.now(), stream.id, encode(alignment))

    def settle(self, now: AlignedNs) -> None:
        """What time brings: runs whose name has become free are admitted (`JobRuns.settle`), and
        agents get the pace of their jobs."""
        if self.shared.runs.settle(now):
            self._adopt()
        for stream in list(self._streams.values()):
            try:
                if stream.session.settle(now):
                    self._adopt(stream)
            except FrdError as error:  # room for the attempt, and not for all of its groups
                stream.leave(str(error))
            except Exception:
                log.exception("stream %d: internal error", stream.id)
                stream.leave("internal error: see the service's log")
        warnings = self.shared.runs.warnings(now)
        for warning in set(warnings) - self._warned:
            log.warning("%s", warning.text)
        self._warned = set(warnings)
        self.shared.flush()
        for stream in self._acking:
            self._refuse(stream)
        self._set_paces(now)

    def _set_paces(self, now: AlignedNs) -> None:
        """Have agents report rarely while their jobs are well. One rank that waits makes all agents
        of its job report more often."""
        before = self._waited_at.keys()
        waited = self._waited_at | dict.fromkeys(self.shared.engine.waiting(SLOW_NS), now)
        self._waited_at = {job: at for job, at in waited.items() if now - at < _CALM_NS}
        changed = before ^ self._waited_at.keys()
        streams, self._unpaced = self._unpaced, set()
        for stream in self._streams.values() if changed else streams:
            hello, jobs = stream.session.hello, stream.session.declared.jobs
            if hello is None or not hello.paced or not jobs:
                continue
            hurries = not jobs.isdisjoint(self._waited_at)
            if (round_ms := HURRIED_ROUND_MS if hurries else ROUND_MS) != stream.round_ms:
                stream.round_ms = round_ms
                stream.send(Pace(round_ms))

    def _adopt(self, *declaring: Stream) -> None:
        """Assign ranks that have entered the engine to their streams.

        A declaration on one stream may have admitted ranks of other streams.
        """
        changed = [self._streams.get(number) for number in self.shared.runs.take_changed()]
        for stream in filter(None, (*declaring, *changed)):
            declared, key = stream.session.declared, stream.session.key
            new = self.shared.owners.claim(stream.session)
            self.nodes.hosts(key, ((rank.key, rank.info.rank) for rank in new))
            if declared.must_resync:
                declared.must_resync = False
                stream.send(Resync("another run of the job has ended: this run is watched now"))

    def _refuse(self, stream: Stream) -> None:
        """Count what is refused, and log each kind once per stream. The rest is used."""
        for label, count, why in stream.session.take_refused():
            self.refused[label] += count
            if label not in stream.logged_refused and (hello := stream.session.hello) is not None:
                stream.logged_refused.add(label)
                log.error("agent of %s: %s refused: %s", hello.node, _REFUSED[label], why)

    # -- all of them ---------------------------------------------------------------------------

    def lag_s(self) -> float:
        """Time from sending to applying, of the slowest recent message."""
        return self._lags.value(self.now() / 1e9)

    @property
    def is_calm(self) -> bool:
        """No rank waits, or has waited lately."""
        return not self._waited_at

    def flush_acks(self) -> bool:
        """Wake every stream with rows that were applied since the last call; False if some rows
        must be acknowledged later."""
        if not self.is_sure():
            return not self._acking
        for stream in self._acking:
            stream.draw_acks()
            if stream.acks:
                stream.wake.set()
        self._acking = {
            stream for stream in self._acking if stream.acks or stream.session.has_unapplied
        }
        return not self._acking

    def refused_ranks(self, now: AlignedNs) -> Sequence[Refusal]:
        """Ranks that run and are not watched, by job and reason."""
        found = Counter[tuple[str, str]]()
        for stream in self._streams.values():
            for one in stream.session.declared.refused():
                found[one.job, one.why] += one.ranks
        refused = [Refusal(job, ranks, why) for (job, why), ranks in sorted(found.items())]
        refused += self.shared.runs.refusals(now)
        if more := sum(one.ranks for one in refused[MAX_REFUSED:]):
            refused[MAX_REFUSED:] = [Refusal("(others)", more, "as of the jobs above")]
        return refused

    def leave(self, why: str, address: str = "") -> None:
        """End all streams, and those that say Hello later; see `Stream.leave`."""
        self._left = why, address
        for stream in list(self._streams.values()):
            stream.leave(why, address)

    def clock(self, key: AttemptKey, rank: int) -> AgentClock | None:
        """The clock of a rank; None when no connected agent reports it."""
        owner = self.shared.owners.of(key, rank)
        return self._streams[owner[0].stream].clock if owner else None

    def compare_clocks(self) -> None:
        """Check the clocks of nodes against the collectives of their ranks."""
        for attempt, hint in self.shared.engine.take_clock_hints():
            early = self.clock(attempt.key, hint.early_rank)
            late = self.clock(attempt.key, hint.late_rank)
            if early is not None and late is not None:
                self.clocks.compare(early, late, attempt.clocks.count, hint)

    def keep(self, attempts: frozenset[AttemptKey]) -> None:
        """Forget all other attempts. The engine has forgotten them too."""
        self.shared.revisions.keep(attempts)  # also of what there was no room for
        if attempts == self._kept:
            return
        self._kept = attempts
        self.shared.runs.keep(attempts)
        self.nodes.keep(attempts)
