"""The gRPC handler of agent streams: per stream, a task that reads and a task that writes.

`frd.service.ingest.streams` applies the messages; this module finds the streams that a new one
belongs to, waits, limits and refuses. A stream that must begin again elsewhere or later ends as
ABORTED: gRPC itself says UNAVAILABLE when it cannot reach a service. Everything runs in one event
loop. A stream that sends too fast is read more slowly, so that HTTP/2 slows its sender down. A
stream that breaks the contract gets the reason, is counted and ends; other streams are not
affected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import grpc

from frd.errors import FrdError, ServiceUnavailable, WireError
from frd.rpc import Context, job_of
from frd.service.access.admission import Admission, Tenant
from frd.service.access.grants import Grant
from frd.service.access.token_bucket import TokenBucket
from frd.service.evidence.inquiries import Inquiries
from frd.service.ingest.declarations import OTHER_JOBS, Reportable
from frd.service.ingest.shared import FAULT
from frd.service.ingest.streams import Stream, Streams
from frd.wire.bundle import unbundled
from frd.wire.codec import encode_service
from frd.wire.messages import Goodbye, Redirect, Refusal, ResponsePart, ServiceEvent

ACK_EVERY_S: Final = 1.0
"""Agents have room for far more rows than come meanwhile, and an acknowledgement is a message."""
MAX_STREAMS: Final = 32_768
ABORTED: Final = "aborted"
"""A stream that ended without Goodbye: the agent was killed, the connection was lost, or gRPC
refused a message that is too large."""
_HELLO_WITHIN_S: Final = 30.0
_LAST_WRITES_S: Final = 2.0
_HANG_UP_S: Final = 2.0
"""An agent hangs up as soon as it is redirected: normally a round trip later."""
_ARRIVALS_PER_S: Final = 1_000.0
"""New streams a second. All streams of a cluster begin together when the service restarts."""
_ARRIVALS: Final = 500
_LOOP_SHARE: Final = 0.5
_LOOP_BURST_S: Final = 1.0
"""A reconnect of ten thousand ranks takes about as long."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Home:
    """What a stream belongs to: the streams of its cell, and the requests to them."""

    streams: Streams
    inquiries: Inquiries
    one_job: bool = False
    """A stream may only report the job that its metadata names."""


class Homes(Protocol):
    async def find(self, job: str | None) -> Home | Redirect:
        """The home of a stream that reports `job`, or where that is; None: the agent has no rank,
        or puts all its jobs into one stream.

        Raises:
            ServiceUnavailable: no replica has it at present.
        """
        ...


class _Share:
    """What one tenant may use of the event loop while another one has streams, too. Its messages
    may cost far more time than their bytes say, and it may have thousands of streams."""

    def __init__(self) -> None:
        self.streams = 0
        self.loop_s = TokenBucket(_LOOP_SHARE, _LOOP_BURST_S)
        self.turn = asyncio.Lock()


class Ingest:
    """`handle` is the gRPC handler."""

    def __init__(self, homes: Homes, admission: Admission, *, stream_bytes_per_s: int) -> None:
        self._homes = homes
        self._admission = admission
        self._stream_bytes_per_s = stream_bytes_per_s
        self._arrivals = TokenBucket(_ARRIVALS_PER_S, _ARRIVALS)
        self._tenants: dict[Tenant, _Share] = {}
        """Those with open streams."""
        self._open = 0
        self.refused: Counter[str] = Counter()
        """Refused streams by reason: one of `REASONS`, `ABORTED` or `FAULT`."""
        self.throttled = 0
        """Messages after which a stream had to wait."""

    async def handle(self, _: AsyncIterator[bytes], context: Context) -> None:
        """Serve one stream until either side ends it."""
        self._open += 1
        try:
            with self._admission.admitted(context) as grant:
                job = job_of(context.invocation_metadata())
                home = await self._find(job, grant)
                if isinstance(home, Redirect):
                    await _redirect(context, home)
                else:
                    may_report = Reportable(grant.may_report, home.one_job, job)
                    with self._share(self._admission.tenant(context, grant)) as share:
                        await self._serve(home, may_report, context, share)
        except ServiceUnavailable as error:
            context.set_code(grpc.StatusCode.ABORTED)
            context.set_details(str(error))
        except FrdError as error:
            refusal = self._refusal(error, context, context.peer())
            await self._admission.delay(context, error)
            await _write_last(context, refusal)
        finally:
            self._open -= 1

    async def _find(self, job: str | None, grant: Grant) -> Home | Redirect:
        """
        Raises:
            ServiceUnavailable: no replica has the job at present.
            WireError: the agent may not report it, or there are too many streams.
        """
        if self._open > MAX_STREAMS:
            raise WireError("stream", "limit", f"{MAX_STREAMS} are open: try again later")
        try:
            await self._arrive(asyncio.get_running_loop().time())
            if job is not None and not grant.may_report(job):
                raise WireError("job", "job", f"{job!r}: {OTHER_JOBS}")
            return await self._homes.find(job)
        except asyncio.CancelledError:
            self.refused[ABORTED] += 1
            raise

    @contextmanager
    def _share(self, tenant: Tenant) -> Iterator[_Share]:
        share = self._tenants.setdefault(tenant, _Share())
        share.streams += 1
        try:
            yield share
        finally:
            share.streams -= 1
            if not share.streams:
                del self._tenants[tenant]

    async def _serve(
        self, home: Home, may_report: Reportable, context: Context, share: _Share
    ) -> None:
        stream = home.streams.open()
        stream.session.declared.may_report = may_report
        stream.session.declared.allowance = self._admission.allowance(context)
        writer = asyncio.create_task(_write(stream, context))
        loop = asyncio.get_running_loop()
        try:
            try:
                async with asyncio.timeout(None) as reading:
                    stream.interrupt = lambda redirected: reading.reschedule(
                        loop.time() + (_HANG_UP_S if redirected else 0)
                    )
                    await self._read(home, stream, context, share)
            except TimeoutError:
                context.set_code(grpc.StatusCode.ABORTED)
                context.set_details(stream.moved)
            except FrdError as error:
                stream.send(self._refusal(error, context, _name(stream, context)))
            except asyncio.CancelledError:
                self.refused[ABORTED] += not stream.moved
                raise
            except Exception:
                log.exception("stream %d: internal error", stream.id)
                fault = WireError("stream", FAULT, "internal error: see the service's log")
                stream.send(self._refusal(fault, context, _name(stream, context)))
            finally:
                stream.interrupt = _nothing
                home.streams.close(stream)
                home.inquiries.ended(stream.id)
            stream.close()
            async with asyncio.timeout(_LAST_WRITES_S):
                await writer
        except TimeoutError:
            pass
        finally:
            writer.cancel()

    async def _read(self, home: Home, stream: Stream, context: Context, share: _Share) -> None:
        """Apply messages until the stream ends. Messages of a stream that has moved are only read:
        its call should end with the Redirect, see `_redirect`.

        Raises:
            FrdError: the peer broke the contract.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_HELLO_WITHIN_S):
                data = await context.read()
        except TimeoutError:
            raise WireError("hello", "missing", "none came: send it first") from None
        bucket = TokenBucket(self._stream_bytes_per_s, 2 * self._stream_bytes_per_s)
        while isinstance(data, bytes):
            if len(self._tenants) > 1:
                await self._turn(share)
            for message in unbundled(data):
                if stream.moved:
                    break
                began_s = time.perf_counter()
                event = home.streams.take(stream, message)
                share.loop_s.take(time.perf_counter() - began_s, loop.time())
                if isinstance(event, Goodbye):
                    return
                if isinstance(event, ResponsePart):
                    home.inquiries.answered(stream.id, event)
            if wait_s := bucket.take(len(data), loop.time()):
                self.throttled += 1
                await asyncio.sleep(wait_s)
            data = await context.read()
        self.refused[ABORTED] += not stream.moved

    async def _turn(self, share: _Share) -> None:
        """Wait while the tenant has used more than its share and another one has streams."""
        loop = asyncio.get_running_loop()
        async with share.turn:  # one at a time, or all would look again together
            while len(self._tenants) > 1 and (debt_s := share.loop_s.take(0, loop.time())):
                self.throttled += 1
                await asyncio.sleep(debt_s)

    async def _arrive(self, now_s: float) -> None:
        """Limit the rate of new streams. A peer that disconnects while it waits gives back its
        turn; otherwise a host that connects in a loop would exclude all others."""
        try:
            await asyncio.sleep(self._arrivals.take(1, now_s))
        except asyncio.CancelledError:
            self._arrivals.give_back(1)
            raise

    def _refusal(self, error: FrdError, context: Context, name: str) -> Refusal:
        """Count and log that a stream is refused, and set the status of its call."""
        reason = error.reason if isinstance(error, WireError) else "limit"
        self.refused[reason] += 1
        message = str(error)
        self._admission.warn(context, reason, f"agent of {name} refused: {message}")
        stranger = reason == "token"
        code = grpc.StatusCode.UNAUTHENTICATED if stranger else grpc.StatusCode.INVALID_ARGUMENT
        context.set_code(code)
        context.set_details(message)
        return Refusal(reason, message)


def _nothing(redirected: bool) -> None:
    pass


def _name(stream: Stream, context: Context) -> str:
    hello = stream.session.hello
    return hello.node if hello else context.peer()


async def _write_last(context: Context, event: ServiceEvent) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAST_WRITES_S):
            await context.write(encode_service(event))


async def _redirect(context: Context, redirect: Redirect) -> None:
    """Send it, and read until the agent hangs up: if the call ended while the agent is writing, its
    write would fail and the Redirect might be lost."""
    await _write_last(context, redirect)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_HANG_UP_S):
            while isinstance(await context.read(), bytes):
                pass


async def _write(stream: Stream, context: Context) -> None:
    """Write queued events in order. Acknowledgements merge while the peer reads slowly."""
    while not stream.closing or stream.outgoing:
        await stream.wake.wait()
        stream.wake.clear()
        for event in stream.take_outgoing():
            await context.write(encode_service(event))
