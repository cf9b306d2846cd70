"""The gRPC handler of agent streams: per stream, a handler that reads and a task that writes.

`frd.service.ingest.streams` applies the messages; this module waits, limits and refuses. Everything
runs in one event loop. A stream that sends too fast is read more slowly, so that HTTP/2 slows its
sender down. A stream that breaks the contract gets the reason, is counted and ends; other streams
are not affected. Requests to agents go out on their streams and are matched with the answers here.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from typing import Final

import grpc

from frd.errors import FrdError, ServiceUnavailable, WireError
from frd.model import AttemptKey
from frd.rpc import Context
from frd.service.access.admission import Admission
from frd.service.access.token_bucket import TokenBucket
from frd.service.ingest.agent_requests import Answer, Inquiry, Target
from frd.service.ingest.streams import Stream, Streams
from frd.wire.encode import encode_service
from frd.wire.messages import Goodbye, Part, Refusal, Request, ResponsePart

ACK_EVERY_S: Final = 0.2
MAX_STREAMS: Final = 16_384
ABORTED: Final = "aborted"
"""A stream that ended without Goodbye: the agent was killed, the connection was lost, or gRPC
refused a message that is too large."""
FAULT: Final = "fault"
"""A stream that ended because of a fault of the service, not of the peer."""
_HELLO_WITHIN_S: Final = 30.0
_LAST_WRITES_S: Final = 2.0
_MAX_INQUIRIES: Final = 16
"""Open inquiries; each may hold `agent_requests.MAX_BUFFERED_BYTES` while the disk is slow."""
_TRAVEL_S: Final = 1.0
_ARRIVALS_PER_S: Final = 1_000.0
"""New streams a second. All streams of a cluster begin together when the service restarts."""
_ARRIVALS: Final = 500

log = logging.getLogger(__name__)


class Ingest:
    """`handle` is the gRPC handler. `streams.refused` counts refused streams by reason: one of
    `REASONS`, `ABORTED` or `FAULT`."""

    def __init__(self, streams: Streams, admission: Admission, *, stream_bytes_per_s: int) -> None:
        self._streams = streams
        self._admission = admission
        self._stream_bytes_per_s = stream_bytes_per_s
        self._arrivals = TokenBucket(_ARRIVALS_PER_S, _ARRIVALS)
        self.throttled = 0
        """Messages after which a stream had to wait."""
        self._inquiries: dict[int, Inquiry] = {}
        self._request_ids = itertools.count(1)

    # -- the stream ----------------------------------------------------------------------------

    async def handle(self, _: AsyncIterator[bytes], context: Context) -> None:
        """Serve one stream until either side ends it."""
        stream = self._streams.open()
        writer = asyncio.create_task(_write(stream, context))
        try:
            try:
                with self._admission.admitted(context) as grant:
                    stream.session.declared.may_report = grant.may_report
                    await self._read(stream, context)
            except FrdError as error:
                reason = error.reason if isinstance(error, WireError) else "limit"
                self._refuse(stream, reason, str(error), context)
            except asyncio.CancelledError:
                self._streams.refused[ABORTED] += 1
                raise
            except Exception:
                log.exception("stream %d: internal error", stream.id)
                self._refuse(
                    stream, FAULT, "stream: internal error: see the service's log", context
                )
            finally:
                self._close(stream)
            stream.close()
            async with asyncio.timeout(_LAST_WRITES_S):
                await writer
        except TimeoutError:
            pass
        finally:
            writer.cancel()

    async def _read(self, stream: Stream, context: Context) -> None:
        """Apply messages until the stream ends.

        Raises:
            FrdError: the peer broke the contract.
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
        bucket = TokenBucket(self._stream_bytes_per_s, 2 * self._stream_bytes_per_s)
        while isinstance(data, bytes):
            event = self._streams.take(stream, data)
            if isinstance(event, Goodbye):
                return
            if isinstance(event, ResponsePart):
                self._answered(stream, event)
            if wait_s := bucket.take(len(data), loop.time()):
                self.throttled += 1
                await asyncio.sleep(wait_s)
            data = await context.read()
        self._streams.refused[ABORTED] += 1

    async def _arrive(self, now_s: float) -> None:
        """Limit the rate of new streams. A peer that disconnects while it waits gives back its
        turn; otherwise a host that connects in a loop would exclude all others."""
        try:
            await asyncio.sleep(self._arrivals.take(1, now_s))
        except asyncio.CancelledError:
            self._arrivals.give_back(1)
            raise

    def _refuse(self, stream: Stream, reason: str, message: str, context: Context) -> None:
        self._streams.refused[reason] += 1
        hello = stream.session.hello
        if self._admission.is_news(context, reason, asyncio.get_running_loop().time()):
            log.warning("agent of %s refused: %s", hello.node if hello else context.peer(), message)
        stream.send(Refusal(reason, message))
        stranger = reason == "token"
        code = grpc.StatusCode.UNAUTHENTICATED if stranger else grpc.StatusCode.INVALID_ARGUMENT
        context.set_code(code)
        context.set_details(message)

    def _close(self, stream: Stream) -> None:
        self._streams.close(stream)
        for inquiry in self._inquiries.values():
            inquiry.fail("the agent's stream ended", stream.id)

    # -- asking agents -------------------------------------------------------------------------

    async def ask(
        self,
        key: AttemptKey,
        ranks: Sequence[int] | None,
        *,
        dump: bool,
        stacks: bool,
        waits: bool = False,
        children_of: Collection[int] | None = (),
        timeout_s: float,
    ) -> AsyncGenerator[list[Answer], None]:
        """Ask the agents of `ranks` (None: all known ranks of the attempt); see `Inquiry.answers`.

        `waits`: what the ranks are blocked in, of which an agent answers what it knows.
        `stacks` includes stacks of child processes for the ranks `children_of` (None: all ranks).

        Raises:
            ServiceUnavailable: no agent of the attempt is connected, or too many are open.
        """
        wanted = sorted(self._streams.revisions.ranks(key) if ranks is None else set(ranks))
        owners = {rank: self._streams.owners.of(key, rank) for rank in wanted}
        if not any(owners.values()):
            raise ServiceUnavailable(
                f"job {key.job!r} attempt {key.attempt}: no agent of these ranks is connected: "
                "see frd status"
            )
        if len(self._inquiries) >= _MAX_INQUIRIES:
            raise ServiceUnavailable(f"dump: {_MAX_INQUIRIES} are being taken: try again later")
        parts = [Part.DUMP, Part.IDENTITY] * dump + [Part.STACK] * stacks + [Part.WAITS] * waits
        targets = [Target(r, owner[0].stream, owner[1]) for r, owner in owners.items() if owner]
        inquiry = Inquiry(next(self._request_ids), targets, parts)
        self._inquiries[inquiry.request_id] = inquiry
        try:
            for stream_id, asked in _by_stream(targets).items():
                of = [t for t in asked if stacks and (children_of is None or t.rank in children_of)]
                request = Request(
                    inquiry.request_id,
                    tuple(target.index for target in asked),
                    dump,
                    stacks,
                    timeout_s,
                    tuple(target.index for target in of),
                    waits,
                )
                self._streams[stream_id].send(request)
            cut_off = [rank for rank, owner in owners.items() if owner is None]
            error = "its agent is not connected"
            yield [Answer(rank, part, error=error) for rank in cut_off for part in parts]
            # The agent keeps to the timeout; its last answer still needs time to arrive.
            async for answers in inquiry.answers(timeout_s + _TRAVEL_S):
                yield answers
        finally:
            del self._inquiries[inquiry.request_id]

    def _answered(self, stream: Stream, part: ResponsePart) -> None:
        if (inquiry := self._inquiries.get(part.request_id)) is not None:
            inquiry.take(stream.id, part)


async def _write(stream: Stream, context: Context) -> None:
    """Write queued events in order. Acknowledgements merge while the peer reads slowly."""
    while not stream.closing or stream.outgoing:
        await stream.wake.wait()
        stream.wake.clear()
        for event in stream.take_outgoing():
            await context.write(encode_service(event))


def _by_stream(targets: Sequence[Target]) -> dict[int, list[Target]]:
    streams: dict[int, list[Target]] = {}
    for target in targets:
        streams.setdefault(target.stream, []).append(target)
    return streams
