"""One stream to the service: connects, sends what `Dispatch` gives, handles the answers.

Every error has the same result: the stream ends, and after a delay with full jitter, because the
streams of a thousand nodes break together, the agent opens another one. `route` knows where and
when; only a redirect costs no delay. Back-pressure is gRPC's own: a write waits while the service
does not read, and meanwhile only the bounded outbox fills. A service that refuses the same rows
twice will always refuse them, so they are dropped and counted; otherwise the agent could send
nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Final

import grpc
import grpc.aio

from frd.errors import FrdError, ServiceUnavailable, WireError
from frd.rpc import StreamCall
from frd.wire.bundle import bundles
from frd.wire.codec import decode_service, encode_agent
from frd.wire.messages import (
    Ack,
    AgentEvent,
    Goodbye,
    Hello,
    Pace,
    Redirect,
    Refusal,
    Request,
    ResponsePart,
    Resync,
    ServiceEvent,
    Welcome,
)
from frd_agent.counters import Counters
from frd_agent.node_time import raw_now
from frd_agent.uplink.dispatch import Dispatch
from frd_agent.uplink.route import (
    PROVEN_S,
    Backoff,
    Connection,
    Endpoint,
    Route,
    Target,
    advice,
    ending,
)

_HANDSHAKE_S: Final = 15.0
"""A replica that is about to take over the stream's job welcomes an agent up to 10 s late."""
_CONNECT_S: Final = 5.0
"""The same without an answer of any kind, if there is another address to try."""
_LAST_READ_S: Final = 1.0
_REFUSALS: Final = 2
_REASONS_WITHOUT_ROWS: Final = ("version", "token", "job")

log = logging.getLogger(__name__)


class _Elsewhere(FrdError):
    """The service has redirected the stream, to the address in `str(error)`."""


class _Planned(FrdError):
    """The agent ends the stream to open another one, after the usual delay."""


@dataclass(slots=True)
class Stream:
    service: Endpoint
    job: str | None
    """None: a stream without rows, of an agent that knows no rank."""
    hello: Callable[[], Hello]
    dispatch: Dispatch
    stats: Counters
    on_request: Callable[[Request], None]
    """Must not block; answers come back through `answer`."""
    stamp: Callable[[AgentEvent], AgentEvent]
    """Adds the current time to an event immediately before it is sent."""
    side_task: Callable[[Connection], Coroutine[None, None, None]]
    """Runs on the connection of every stream after its welcome; cancelled when the stream ends."""
    connected: bool = False
    """Welcomed, and not ended."""
    instance: str = ""
    """The process of the service that has welcomed it last."""
    _route: Route = field(init=False)
    _at: Target | None = None
    _backoff: Backoff = field(default_factory=Backoff)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _parts: asyncio.Queue[ResponsePart] = field(default_factory=lambda: asyncio.Queue(4))
    _welcomed_at_s: float = 0.0
    """If connected. Only from then on does a stream last: a dead machine takes long to say no."""
    _refusals: int = 0
    _closing: bool = False
    _hang_up: bool = False
    _goodbye: str = ""
    _said_goodbye: bool = False
    _unreachable: bool = False

    def __post_init__(self) -> None:
        self._route = Route(self.service)

    def __str__(self) -> str:
        return f"service {self._at or self.service}"

    async def run(self) -> None:
        """Keep a stream open until `close` or cancellation."""
        while not self._closing:
            lasted_s = 0.0
            try:
                await self._live()
            except _Elsewhere:
                continue
            except _Planned as error:
                log.info("%s: %s", str(self), error)
            except FrdError as error:
                if not self._said_goodbye:  # else the service has ended the stream for that
                    self._log_lost(error)
            except Exception:
                log.exception("%s: unexpected error", str(self))
            finally:
                if self.connected:
                    lasted_s = time.monotonic() - self._welcomed_at_s
                self.connected = False
                if lasted_s > PROVEN_S:
                    self._route.lasted()
            delay_s = self._backoff.next_s(lasted_s, self._route.candidates)
            if not self._closing:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closed(), delay_s)

    def wake(self) -> None:
        """Something new may have to be sent."""
        self._wake.set()

    def redial(self, service: Endpoint) -> None:
        """Connect again, to another endpoint or with other credentials."""
        self.service, self._route = service, Route(service)
        self._hang_up = True
        self._wake.set()

    def close(self, why: str = "the agent stops") -> None:
        """Send what is left, then Goodbye; `run` returns soon."""
        self._closing, self._goodbye = True, why
        self._wake.set()

    async def answer(self, part: ResponsePart) -> None:
        """Waits while earlier parts have not been written. `part.rank_index` is the agent's own."""
        await self._parts.put(part)
        self._wake.set()

    async def _closed(self) -> None:
        while not self._closing:
            await self._wake.wait()
            self._wake.clear()

    # -- one stream ----------------------------------------------------------------------------

    async def _live(self) -> None:
        self._hang_up = False
        self._at = await self._route.next()
        async with self.service.connect(self._at, self.job) as connection:
            await self._connect(connection)
            call = connection.stream()
            side: asyncio.Task[None] | None = None
            try:
                await self._handshake(call)
                side = asyncio.create_task(self.side_task(connection))
                reader = asyncio.create_task(self._read(call))
                writer = asyncio.create_task(self._write(call))
                tasks = reader, writer
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if writer in done and writer.exception() is None:
                    # Goodbye has been sent; the service ends the stream when it arrives.
                    await asyncio.wait({reader})
                    reader.exception()
                    return
                if reader not in done and not isinstance(writer.exception(), FrdError):
                    # The service has ended the stream: its last message says why.
                    await asyncio.wait({reader}, timeout=_LAST_READ_S)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                errors = [task.exception() for task in tasks if not task.cancelled()]
                raise next(filter(None, errors), ServiceUnavailable("the stream ended"))
            except grpc.aio.AioRpcError as error:
                raise self._ended(error.code(), error.details() or "") from None
            except asyncio.InvalidStateError:
                raise await self._ending(call) from None
            except WireError as error:
                raise ServiceUnavailable(f"its message cannot be read: {error}") from None
            finally:
                call.cancel()
                if side is not None:
                    side.cancel()
                    await asyncio.wait({side})

    async def _connect(self, connection: Connection) -> None:
        limit_s = _CONNECT_S if self._route.has_others else _HANDSHAKE_S
        try:
            async with asyncio.timeout(limit_s):
                await connection.connected()
        except TimeoutError:
            raise ServiceUnavailable(f"no connection within {limit_s:g} s") from None

    async def _handshake(self, call: StreamCall) -> None:
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                await call.write(encode_agent(self.hello()))
                event = await self._next(call)
        except TimeoutError:
            raise ServiceUnavailable(f"no welcome within {_HANDSHAKE_S:g} s") from None
        if isinstance(event, Refusal):
            raise self._refused(event)
        if isinstance(event, Redirect):
            raise self._redirected(event)
        if not isinstance(event, Welcome):
            raise ServiceUnavailable(f"it began with {type(event).__name__} instead of a welcome")
        self._route.welcomed(event.next)
        knows_nothing = event.instance != self.instance
        self.instance = event.instance
        self.dispatch.open(knows_nothing=knows_nothing)
        while not self._parts.empty():
            self._parts.get_nowait()  # answers to requests of a previous stream
        self.connected, self._welcomed_at_s = True, time.monotonic()
        self.stats.streams += 1
        self._unreachable = False
        of_job = "" if self.job is None else f", job {self.job}"
        log.info("%s (%s): connected%s", str(self), event.service_version, of_job)

    def _redirected(self, redirect: Redirect) -> _Elsewhere:
        self._route.redirected(redirect.address)
        log.info("%s: redirects to %s: %s", str(self), redirect.address, redirect.reason)
        return _Elsewhere(redirect.address)

    async def _next(self, call: StreamCall) -> ServiceEvent:
        data = await call.read()
        if not isinstance(data, bytes):
            raise await self._ending(call)
        return decode_service(data)

    async def _read(self, call: StreamCall) -> None:
        while True:
            match event := await self._next(call):
                case Ack():
                    self._refusals = 0
                    self.dispatch.ack(event.revisions)
                case Request():
                    self.on_request(event)
                case Pace():
                    self.dispatch.adopt(event, raw_now())
                    self._wake.set()
                case Resync():
                    log.info("%s: asks for a resync: %s", str(self), event.reason)
                    self.dispatch.resync()
                    self._wake.set()
                case Refusal():
                    raise self._refused(event)
                case Redirect():
                    raise self._redirected(event)
                case Welcome():
                    raise ServiceUnavailable("it sent two welcomes")

    async def _write(self, call: StreamCall) -> None:
        loop = asyncio.get_running_loop()
        while True:
            is_last = self._closing
            messages = self._due(hurry=is_last)
            for message in bundles(messages) if self.dispatch.is_paced else messages:
                await call.write(message)
            if is_last:
                self._said_goodbye = True  # the service may end the stream during the write
                await call.write(encode_agent(Goodbye(self._goodbye)))
                await call.done_writing()
                return
            if self._hang_up:
                raise _Planned("the configuration was read again: connecting again")
            if self.dispatch.must_reopen:
                self._route.again()
                raise _Planned("the stream has declared all it may: opening another")
            next_round = loop.call_later(
                max(self.dispatch.round_in_ns(raw_now()), 0) / 1e9, self._wake.set
            )
            try:
                await self._wake.wait()
            finally:
                next_round.cancel()
            self._wake.clear()

    def _due(self, *, hurry: bool) -> Iterator[bytes]:
        while events := self.dispatch.next(raw_now(), hurry=hurry) or self._answer_part():
            for event in events:
                yield encode_agent(self.stamp(event))

    def _answer_part(self) -> list[AgentEvent]:
        return [] if self._parts.empty() else self.dispatch.translate(self._parts.get_nowait())

    # -- errors --------------------------------------------------------------------------------

    async def _ending(self, call: StreamCall) -> ServiceUnavailable:
        return self._ended(*await ending(call))

    def _ended(self, code: grpc.StatusCode | None, details: str) -> ServiceUnavailable:
        """The reason why a call has ended."""
        if code is None:
            return ServiceUnavailable("the stream ended")
        if code is grpc.StatusCode.INVALID_ARGUMENT:  # overtook the Refusal of the same reason
            return self._refused(Refusal("status", details or "no reason given"))
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED) and details:
            return ServiceUnavailable(advice(details))
        if code is grpc.StatusCode.ABORTED and details:  # the service's own words
            return ServiceUnavailable(details)
        why = f"{code.name.lower()}: {details}" if details else "the service closed it"
        return ServiceUnavailable(why)

    def _refused(self, refusal: Refusal) -> ServiceUnavailable:
        if refusal.reason not in _REASONS_WITHOUT_ROWS:
            self._refusals += 1
        if self._refusals >= _REFUSALS:
            self._refusals = 0
            dropped = self.dispatch.outbox.clear()
            self.stats.dropped_rows["refused"] += dropped
            log.warning("%s: refuses a message: %d rows dropped", str(self), dropped)
        return ServiceUnavailable(f"refused: {refusal.message}")

    def _log_lost(self, error: FrdError) -> None:
        """One line when the stream goes, and one when the service cannot be reached at first."""
        if self.connected or not self._unreachable:
            log.warning(
                "%s: %s: %s: the agent keeps trying, and keeps %d rows until then",
                str(self),
                "connection lost" if self.connected else "not reachable",
                error,
                self.dispatch.outbox.rows,
            )
        self._unreachable = True
