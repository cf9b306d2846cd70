"""The agent's stream to the service: connects, sends what `Dispatch` gives, handles the answers.

Every error has the same result: the stream ends, and after a delay the agent opens another one,
with full jitter, because the streams of a thousand nodes break together. Back-pressure is
gRPC's own: a write waits while the service does not read, and meanwhile only the bounded outbox
fills. A service that refuses the same rows twice will always refuse them, so they are dropped and
counted; otherwise the agent could send nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Final

import grpc
import grpc.aio

from frd.errors import FrdError, ServiceUnavailable, WireError
from frd.rpc import StreamCall
from frd.wire.decode import decode_service
from frd.wire.encode import encode_agent
from frd.wire.messages import (
    Ack,
    AgentEvent,
    Goodbye,
    Hello,
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
from frd_agent.uplink.endpoint import Connection, Endpoint, advice, ending
from frd_agent.uplink.outbox import Outbox

BACKOFF_S: Final = 0.5
BACKOFF_MAX_S: Final = 15.0
_HANDSHAKE_S: Final = 10.0
_PROVEN_S: Final = 5.0
"""A stream that lasted this long resets the back-off."""
_REFUSALS: Final = 2
_REASONS_WITHOUT_ROWS: Final = ("version", "token", "job")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Backoff:
    """Full jitter: a random delay between 0 and a bound that doubles."""

    roll: Callable[[float, float], float] = random.uniform
    _failures: int = 0

    def next_s(self, lasted_s: float) -> float:
        """The delay after a stream that lasted `lasted_s`."""
        if lasted_s > _PROVEN_S:
            self._failures = 0
        bound = min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return self.roll(0, bound)


@dataclass(slots=True)
class Stream:
    service: Endpoint
    hello: Callable[[], Hello]
    dispatch: Dispatch
    outbox: Outbox
    stats: Counters
    on_request: Callable[[Request], None]
    """Must not block; answers come back through `answer`."""
    stamp: Callable[[AgentEvent], AgentEvent]
    """Adds the current time to an event immediately before it is sent."""
    side_task: Callable[[Connection], Coroutine[None, None, None]]
    """Runs on the connection of every stream after its welcome; cancelled when the stream ends."""
    _backoff: Backoff = field(default_factory=Backoff)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _parts: asyncio.Queue[ResponsePart] = field(default_factory=lambda: asyncio.Queue(4))
    _instance: str = ""
    _refusals: int = 0
    _round_at: float = 0.0
    _closing: bool = False
    _hang_up: bool = False
    _unreachable: bool = False

    async def run(self) -> None:
        """Keep a stream open until `close` or cancellation."""
        while not self._closing:
            began = time.monotonic()
            try:
                await self._live()
            except FrdError as error:
                self._log_lost(error)
            except Exception:
                log.exception("service %s: unexpected error", self.service)
            finally:
                self.stats.connected = False
            delay_s = self._backoff.next_s(time.monotonic() - began)
            if not self._closing:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closed(), delay_s)

    def wake(self) -> None:
        """Something new may have to be sent."""
        self._wake.set()

    def redial(self, service: Endpoint) -> None:
        """Connect again, to another endpoint or with other credentials."""
        self.service = service
        self._hang_up = True
        self._wake.set()

    def close(self) -> None:
        """Send what is left, then Goodbye; `run` returns soon."""
        self._closing = True
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
        async with self.service.connect() as connection:
            call = connection.stream()
            side: asyncio.Task[None] | None = None
            try:
                await self._handshake(call)
                side = asyncio.create_task(self.side_task(connection))
                reader = asyncio.create_task(self._read(call))
                writer = asyncio.create_task(self._write(call))
                done, pending = await asyncio.wait(
                    {reader, writer}, return_when=asyncio.FIRST_COMPLETED
                )
                if writer in done and writer.exception() is None:
                    # Goodbye has been sent; the service ends the stream when it arrives.
                    await asyncio.wait({reader})
                    reader.exception()
                    return
                for task in pending:
                    task.cancel()
                await asyncio.wait(pending or done)
                for task in done:
                    task.result()
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

    async def _handshake(self, call: StreamCall) -> None:
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                await call.write(encode_agent(self.hello()))
                event = await self._next(call)
        except TimeoutError:
            raise ServiceUnavailable(f"no welcome within {_HANDSHAKE_S:g} s") from None
        if isinstance(event, Refusal):
            raise self._refused(event)
        if not isinstance(event, Welcome):
            raise ServiceUnavailable(f"it began with {type(event).__name__} instead of a welcome")
        knows_nothing = event.instance != self._instance
        self._instance = event.instance
        self.dispatch.open(knows_nothing=knows_nothing)
        while not self._parts.empty():
            self._parts.get_nowait()  # answers to requests of a previous stream
        self._round_at = 0.0
        self.stats.connected = True
        self.stats.streams += 1
        self._unreachable = False
        log.info("service %s (%s): connected", self.service, event.service_version)

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
                case Resync():
                    log.info("service %s: asks for a resync: %s", self.service, event.reason)
                    self.dispatch.resync()
                    self._wake.set()
                case Refusal():
                    raise self._refused(event)
                case Welcome():
                    raise ServiceUnavailable("it sent two welcomes")

    async def _write(self, call: StreamCall) -> None:
        while True:
            now = time.monotonic()
            round_s = self.dispatch.round_s(raw_now())
            due = now - self._round_at >= round_s or self._closing
            events = self.dispatch.next(watermarks_due=due)
            if not events and not self._parts.empty():
                events = self.dispatch.translate(self._parts.get_nowait())
            for event in events:
                await call.write(encode_agent(self.stamp(event)))
            if events:
                continue
            if due:
                self._round_at = now
            if self._closing:
                await call.write(encode_agent(Goodbye("the agent stops")))
                await call.done_writing()
                return
            if self._hang_up:
                raise ServiceUnavailable("the configuration was read again: connecting again")
            if self.dispatch.must_reopen:
                raise ServiceUnavailable("the stream has declared all it may: opening another")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), round_s)
            self._wake.clear()

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
        why = f"{code.name.lower()}: {details}" if details else "the service closed it"
        return ServiceUnavailable(why)

    def _refused(self, refusal: Refusal) -> ServiceUnavailable:
        if refusal.reason not in _REASONS_WITHOUT_ROWS:
            self._refusals += 1
        if self._refusals >= _REFUSALS:
            self._refusals = 0
            dropped = self.outbox.clear()
            self.stats.dropped_rows["refused"] += dropped
            log.warning("service %s: refuses a message: %d rows dropped", self.service, dropped)
        return ServiceUnavailable(f"refused: {refusal.message}")

    def _log_lost(self, error: FrdError) -> None:
        """One line when the stream goes, and one when the service cannot be reached at first."""
        if self.stats.connected or not self._unreachable:
            log.warning(
                "service %s: %s: %s: the agent keeps trying, and keeps %d rows until then",
                self.service,
                "connection lost" if self.stats.connected else "not reachable",
                error,
                self.outbox.rows,
            )
        self._unreachable = True
