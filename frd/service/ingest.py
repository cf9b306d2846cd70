"""All agent streams of one service: who is connected, what they said, and asking them back.

Each stream is a reading handler and a small writing task around a `Session`. Everything runs in
one event loop: a message is applied to the engine between two awaits, so that no lock is needed
and a stream that sends too fast is read more slowly, which HTTP/2 makes its sender feel. A stream
that breaks the contract hears why, is counted and ends; the others do not notice.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import partial
from typing import Final

import grpc

from frd.engine.alignment import Alignment
from frd.engine.engine import Engine
from frd.errors import FrdError, ServiceUnavailable, WireError
from frd.model import AlignedNs, AttemptKey, EntryColumns, MemoryColumns
from frd.rpc import Context
from frd.service.clocks import AgentClock, Clocks, encode
from frd.service.door import Door
from frd.service.ledger import Ledger
from frd.service.marks import Marks
from frd.service.nodes import Nodes
from frd.service.owners import Owners
from frd.service.pace import Pace
from frd.service.recent import Recent
from frd.service.recorder import Recorder
from frd.service.requests import Answer, Inquiry, Target
from frd.service.session import Session
from frd.wire import (
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    Ack,
    AgentEvent,
    Declare,
    Goodbye,
    Hello,
    Part,
    Refusal,
    Request,
    ResponsePart,
    ServiceEvent,
    Watermarks,
    Welcome,
    encode_service,
)

ACK_EVERY_S: Final = 0.2
MAX_STREAMS: Final = 16_384
ABORTED: Final = "aborted"
"""A stream that ended without goodbye: agent killed, connection lost, or a message so large that
gRPC itself refused it before anything here could see it."""
FAULT: Final = "fault"
"""A stream on which this program, not the peer, went wrong."""
SAMPLES: Final = "memory"
"""Samples of memory that cannot be true; they end no stream."""
_HELLO_WITHIN_S: Final = 30.0
_LAST_WORDS_S: Final = 2.0
_MAX_INQUIRIES: Final = 16
"""At once; each may hold `requests.MAX_BUFFERED_BYTES` while the disk is slow."""
_TRAVEL_S: Final = 1.0
_ARRIVALS_PER_S: Final = 1_000.0
"""Streams that begin; those of a whole cluster come at once when a service restarts."""
_ARRIVALS: Final = 500

log = logging.getLogger(__name__)


class _Stream:
    """What the loop keeps of one stream beside its session."""

    __slots__ = (
        "adopted",
        "clock",
        "closing",
        "id",
        "outbox",
        "session",
        "told_of_refused",
        "wake",
    )

    def __init__(self, session: Session) -> None:
        self.id = session.stream
        self.session = session
        self.adopted = 0
        """How many of the session's ranks have been made this stream's own."""
        self.clock: AgentClock | None = None
        """Since its hello."""
        self.outbox: list[ServiceEvent] = []
        self.wake = asyncio.Event()
        self.closing = False
        self.told_of_refused = False

    def send(self, event: ServiceEvent) -> None:
        self.outbox.append(event)
        self.wake.set()

    def close(self) -> None:
        """Write what is waiting, then no more."""
        self.closing = True
        self.wake.set()

    async def write(self, context: Context) -> None:
        """Write what is sent, in order; acknowledgements merge while the peer reads slowly."""
        while not self.closing or self.outbox:
            await self.wake.wait()
            self.wake.clear()
            events, self.outbox = self.outbox, []
            if acks := self.session.take_acks():
                events.insert(0, Ack(acks))
            for event in events:
                await context.write(encode_service(event))


class Ingest:
    """`handle` is the gRPC handler; `flush_acks` and `keep` are called by the app's tasks."""

    def __init__(
        self,
        engine: Engine,
        marks: Marks,
        clocks: Clocks,
        recorder: Recorder,
        door: Door,
        *,
        stream_bytes_per_s: int,
        now: Callable[[], AlignedNs],
        version: str,
        instance: str,
    ) -> None:
        self.nodes = Nodes()
        self.refused: Counter[str] = Counter()
        """Streams that ended badly, by reason: one of `REASONS`, `ABORTED` or `FAULT`; and
        `SAMPLES` of memory."""
        self._engine = engine
        self._marks = marks
        self._clocks = clocks
        self._recorder = recorder
        self._door = door
        self._stream_bytes_per_s = stream_bytes_per_s
        self._arrivals = Pace(_ARRIVALS_PER_S, _ARRIVALS)
        self.throttled = 0
        """Messages after which a stream had to wait."""
        self._now = now
        self._version = version
        self._instance = instance
        self._ledger = Ledger()
        self._streams: dict[int, _Stream] = {}
        self._stream_ids = itertools.count(1)
        self._acking: set[_Stream] = set()
        self._owners = Owners()
        self._inquiries: dict[int, Inquiry] = {}
        self._request_ids = itertools.count(1)
        self._kept: frozenset[AttemptKey] = frozenset()
        self._entries_of_closed = 0
        self._lags = Recent()

    # -- the stream ----------------------------------------------------------------------------

    async def handle(self, _: AsyncIterator[bytes], context: Context) -> None:
        """Serve one stream until either side ends it."""
        stream = _Stream(Session(self._engine, self._marks, self._ledger, next(self._stream_ids)))
        writer = asyncio.create_task(stream.write(context))
        try:
            try:
                with self._door.admitted(context) as grant:
                    stream.session.may_tell_of = grant.may_tell_of
                    await self._read(stream, context)
            except FrdError as error:
                reason = error.reason if isinstance(error, WireError) else "limit"
                self._refuse(stream, reason, str(error), context)
            except asyncio.CancelledError:
                self.refused[ABORTED] += 1
                raise
            except Exception:
                log.exception("stream %d: a fault of frd, not of its agent", stream.id)
                self._refuse(stream, FAULT, "stream: a fault of the service: see its log", context)
            finally:
                self._close(stream)
            stream.close()
            async with asyncio.timeout(_LAST_WORDS_S):
                await writer
        except TimeoutError:
            pass
        finally:
            writer.cancel()

    async def _read(self, stream: _Stream, context: Context) -> None:
        """Apply messages until the stream ends.

        Raises:
            FrdError: the fault is the peer's.
        """
        if len(self._streams) >= MAX_STREAMS:
            raise WireError("stream", "limit", f"{MAX_STREAMS} are open: try again later")
        loop = asyncio.get_running_loop()
        await self._arrive(loop.time())
        try:
            async with asyncio.timeout(_HELLO_WITHIN_S):
                data = await context.read()
        except TimeoutError:
            raise WireError("hello", "missing", "none came: send it first") from None
        pace = Pace(self._stream_bytes_per_s, 2 * self._stream_bytes_per_s)
        while isinstance(data, bytes):
            if isinstance(self._take(stream, data), Goodbye):
                return
            if wait_s := pace.take(len(data), loop.time()):
                self.throttled += 1
                await asyncio.sleep(wait_s)
            data = await context.read()
        self.refused[ABORTED] += 1

    async def _arrive(self, now_s: float) -> None:
        """Wait for a turn. Who hangs up meanwhile keeps nobody waiting: or a host that does so
        all the time would keep everybody else out."""
        try:
            await asyncio.sleep(self._arrivals.take(1, now_s))
        except asyncio.CancelledError:
            self._arrivals.give_back(1)
            raise

    def _take(self, stream: _Stream, data: bytes) -> AgentEvent:
        """Apply one message, and only then write it down."""
        now = self._now()
        session = stream.session
        event = session.receive(data, now)
        match event:
            case EntryColumns():
                self._acking.add(stream)
            case Watermarks():
                self._lags.note(session.lag_ns / 1e9, now / 1e9)
            case MemoryColumns():
                if refused := session.memory.take_refused():
                    self._refuse_samples(stream, refused)
            case ResponsePart():
                if (inquiry := self._inquiries.get(event.request_id)) is not None:
                    inquiry.take(stream.id, event)
            case Declare():
                self._adopt(stream)
            case Hello():
                self._greet(stream, event, now)
            case _:
                pass
        self.nodes.heard(session.key, now)
        self._recorder.message(stream.id, now, data, event)
        if stream.clock is not None and isinstance(event, Hello):
            self._resume(stream, stream.clock)
        return event

    def _greet(self, stream: _Stream, hello: Hello, now: AlignedNs) -> None:
        log.info("agent of %s connected: stream %d", hello.node, stream.id)
        self._streams[stream.id] = stream
        key = stream.session.key
        stream.clock = self._clocks.connected(
            key, hello.node, stream.session.alignment, stream.id, partial(self._align, stream)
        )
        stream.session.hears = partial(self._clocks.heard, stream.clock)
        self.nodes.connected(
            key, hello.node, stream.clock, stream.id, now, stream.session.may_tell_of
        )
        self._recorder.opened(stream.id, now)
        stream.send(Welcome(PROTOCOL, self._version, self._instance, MAX_MESSAGE_BYTES))

    def _resume(self, stream: _Stream, clock: AgentClock) -> None:
        """A session that had a stream before has a clock that is known."""
        if clock.used is not stream.session.alignment:
            self._align(stream, clock.used)

    def _align(self, stream: _Stream, alignment: Alignment) -> None:
        stream.session.align(alignment)
        self._recorder.aligned(stream.id, self._now(), encode(alignment))

    def _adopt(self, stream: _Stream) -> None:
        """The ranks that the stream has newly declared are its own from now on."""
        session = stream.session
        new = session.ranks[stream.adopted :]
        self._owners.claim(session, stream.adopted)
        self.nodes.hosts(session.key, ((rank.key, rank.info.rank) for rank in new))
        stream.adopted = len(session.ranks)

    def _refuse(self, stream: _Stream, reason: str, message: str, context: Context) -> None:
        self.refused[reason] += 1
        hello = stream.session.hello
        if self._door.is_news(context, reason, asyncio.get_running_loop().time()):
            log.warning("agent of %s refused: %s", hello.node if hello else context.peer(), message)
        stream.send(Refusal(reason, message))
        stranger = reason == "token"
        code = grpc.StatusCode.UNAUTHENTICATED if stranger else grpc.StatusCode.INVALID_ARGUMENT
        context.set_code(code)
        context.set_details(message)

    def _refuse_samples(self, stream: _Stream, count: int) -> None:
        """Told once a stream, whose other samples count."""
        self.refused[SAMPLES] += count
        if not stream.told_of_refused and (hello := stream.session.hello) is not None:
            stream.told_of_refused = True
            why = "negative, more than there is, or out of order"
            log.warning("agent of %s: samples of memory refused: %s", hello.node, why)

    def _close(self, stream: _Stream) -> None:
        session = stream.session
        self._entries_of_closed += session.entries
        self._acking.discard(stream)
        if self._streams.pop(stream.id, None) is None or session.hello is None:
            return
        now = self._now()
        self._owners.claim(session, stream.adopted)  # a declaration may have failed half way
        session.disconnect(self._owners.release(session), now)
        self.nodes.disconnected(session.key, stream.id)
        if stream.clock is not None:
            stream.clock.disconnected(stream.id, now)
        self._recorder.closed(stream.id, now)
        for inquiry in self._inquiries.values():
            inquiry.fail("the agent's stream ended", stream.id)
        log.info("agent of %s gone: stream %d", session.hello.node, stream.id)

    def clock(self, key: AttemptKey, rank: int) -> AgentClock | None:
        """The clock of a rank; None when no connected agent speaks for it."""
        owner = self._owners.of(key, rank)
        return self._streams[owner[0].stream].clock if owner else None

    def compare_clocks(self) -> None:
        """Hold the clocks of nodes against what the collectives of their ranks tell."""
        for attempt, hint in self._engine.take_clock_hints():
            early = self.clock(attempt.key, hint.early_rank)
            late = self.clock(attempt.key, hint.late_rank)
            if early is not None and late is not None:
                self._clocks.compare(early, late, attempt.nodes, hint)

    # -- for the app ---------------------------------------------------------------------------

    @property
    def entries(self) -> int:
        """Entry rows applied since the start."""
        return self._entries_of_closed + sum(s.session.entries for s in self._streams.values())

    def lag_s(self) -> float:
        """The slowest of the recent messages, from sent to applied."""
        return self._lags.worst(self._now() / 1e9)

    def flush_acks(self) -> None:
        """Have every stream that applied entries since the last call acknowledge them."""
        for stream in self._acking:
            stream.wake.set()
        self._acking.clear()

    def keep(self, attempts: frozenset[AttemptKey]) -> None:
        """Forget what concerns other attempts than these: the engine has forgotten them too."""
        if attempts == self._kept:
            return
        self._kept = attempts
        self._ledger.keep(attempts)
        self.nodes.keep(attempts)

    # -- asking agents -------------------------------------------------------------------------

    async def ask(
        self,
        key: AttemptKey,
        ranks: Sequence[int] | None,
        *,
        dump: bool,
        stacks: bool,
        timeout_s: float,
    ) -> AsyncGenerator[list[Answer], None]:
        """Ask the agents of `ranks` (None: all known of the attempt); see `Inquiry.answers`.

        Raises:
            ServiceUnavailable: no agent of the attempt is connected, or too much is being asked.
        """
        wanted = sorted(self._ledger.ranks(key) if ranks is None else set(ranks))
        owners = {rank: self._owners.of(key, rank) for rank in wanted}
        if not any(owners.values()):
            raise ServiceUnavailable(
                f"job {key.job!r} attempt {key.attempt}: no agent of these ranks is connected: "
                "see frd status"
            )
        if len(self._inquiries) >= _MAX_INQUIRIES:
            raise ServiceUnavailable(
                f"dump: {_MAX_INQUIRIES} are being taken: try again in a while"
            )
        parts = [Part.DUMP, Part.IDENTITY] * dump + [Part.STACK] * stacks
        targets = [Target(r, owner[0].stream, owner[1]) for r, owner in owners.items() if owner]
        inquiry = Inquiry(next(self._request_ids), targets, parts)
        self._inquiries[inquiry.request_id] = inquiry
        try:
            for stream_id, indexes in _by_stream(targets).items():
                self._streams[stream_id].send(
                    Request(inquiry.request_id, tuple(indexes), dump, stacks, timeout_s)
                )
            cut_off = [rank for rank, owner in owners.items() if owner is None]
            error = "its agent is not connected"
            yield [Answer(rank, part, error=error) for rank in cut_off for part in parts]
            # The agent keeps to the timeout; what it says at the last moment still has to travel.
            async for answers in inquiry.answers(timeout_s + _TRAVEL_S):
                yield answers
        finally:
            del self._inquiries[inquiry.request_id]


def _by_stream(targets: Sequence[Target]) -> dict[int, list[int]]:
    streams: dict[int, list[int]] = {}
    for target in targets:
        streams.setdefault(target.stream, []).append(target.index)
    return streams
