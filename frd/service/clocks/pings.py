"""gRPC handler of clock streams: answers pings and passes the timestamps to `AgentClocks`.

The timestamps must be exact: one is taken immediately after a ping arrives, one immediately before
its answer is sent, and nothing is computed in between. A clock stream belongs to a stream of rows
of the same agent session: if it comes first, it waits for that stream for a short time, and it ends
with that stream. A peer that pings too fast is delayed, which HTTP/2 passes on to the sender, and
is counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Final

import grpc

from frd.engine.clocks.estimator import Exchange, Refusal
from frd.errors import WireError
from frd.model import NodeRawNs, ServiceRawNs
from frd.rpc import Context
from frd.service.access.admission import Admission
from frd.service.access.token_bucket import TokenBucket
from frd.service.clocks.agent_clocks import AgentClock, AgentClocks, SessionKey
from frd.service.clocks.real_time import raw_now
from frd.wire.clock import ClockHello, Ping, decode_clock, encode_pong

MAX_STREAMS: Final = 32_768
PROTOCOL: Final = "protocol"
"""A stream that was ended because of an invalid message."""
STRANGER: Final = "stranger"
"""A stream of an agent session that has no stream of rows."""
REASONS: Final = (*(refusal.value for refusal in Refusal), PROTOCOL, STRANGER)
"""Every word by which `AgentClocks.refused` counts."""
PINGS_A_SECOND: Final = 64
"""Pings a second of all agents together, without bursts at connect; agents get a pause to match. A
ping costs the service as much as a message of rows; 256 of them were a third of what a fleet of
250 agents cost."""
PAIR: Final = 2
"""Pings that an agent sends in a row."""
BURST: Final = 32
_A_SECOND: Final = 4.0
"""Pings, beyond the burst."""
_HELLO_WITHIN_S: Final = 10.0
_WAIT_S: Final = 5.0
"""How long a stream that comes before its stream of rows waits for that."""
_LOOK_EVERY_S: Final = 0.1
_OUTSTANDING: Final = 8
"""Pings whose end may still come."""

log = logging.getLogger(__name__)


def pause_s(streams: int) -> float:
    """How long an agent should wait between its pings where so many of them ping."""
    return max(1.0, PAIR * streams / PINGS_A_SECOND)


class Pings:
    """`handle` is the gRPC handler of clock streams."""

    def __init__(self, clocks: AgentClocks, admission: Admission) -> None:
        self._clocks = clocks
        self._admission = admission
        self._streams = 0

    async def handle(self, _: AsyncIterator[bytes], context: Context) -> None:
        """Serve one stream until either side ends it."""
        self._streams += 1
        try:
            if self._streams > MAX_STREAMS:
                raise WireError("clock", "limit", f"{MAX_STREAMS} are open: try again later")
            with self._admission.admitted(context):
                await self._serve(context)
        except WireError as error:
            reason = STRANGER if isinstance(error, _Stranger) else PROTOCOL
            self._clocks.refused[reason] += 1
            text = f"clock stream of {context.peer()} refused: {error}"
            self._admission.warn(context, error.reason, text)
            await self._admission.delay(context, error)
            context.set_code(grpc.StatusCode.INVALID_ARGUMENT)
            context.set_details(str(error))
        finally:
            self._streams -= 1

    async def _serve(self, context: Context) -> None:
        """
        Raises:
            WireError: the fault is the peer's.
        """
        key = await self._introduce(context)
        clock = await self._find(key)
        answered = AnsweredPings()
        bucket = TokenBucket(_A_SECOND, BURST)
        while isinstance(data := await context.read(), bytes):
            received = raw_now()
            ping = decode_clock(data)
            if isinstance(ping, ClockHello):
                raise WireError("clock.number", "order", "it is 0 again: open a new stream")
            answered.check(ping)
            if self._clocks.find(key) is not clock:
                # Rows and pings of an agent end in any order, also after a handover.
                context.set_code(grpc.StatusCode.ABORTED)
                context.set_details("clock: its stream of rows is gone: open that one first")
                return
            if wait_s := bucket.take(1, received / 1e9):
                self._clocks.refused[Refusal.FLOOD.value] += 1
                await asyncio.sleep(wait_s)
            pause = pause_s(self._streams)
            self._clocks.ping_every(pause)
            pong = encode_pong(ping.number, pause)
            sent = raw_now()
            await context.write(pong)
            exchange = answered.end(ping)
            answered.begin(ping, received, sent)
            self._clocks.learn(clock, ping.readings, exchange, answered)

    async def _introduce(self, context: Context) -> SessionKey:
        try:
            async with asyncio.timeout(_HELLO_WITHIN_S):
                data: object = await context.read()
        except TimeoutError:
            raise WireError("clock", "missing", "no first message: say whose clock it is") from None
        hello = decode_clock(data) if isinstance(data, bytes) else None
        if not isinstance(hello, ClockHello):
            raise WireError("clock.number", "order", "a ping came first: say whose clock it is")
        return hello.boot_id, hello.session

    async def _find(self, key: SessionKey) -> AgentClock:
        deadline = time.monotonic() + _WAIT_S
        while (clock := self._clocks.find(key)) is None:
            if time.monotonic() > deadline:
                raise _Stranger(
                    f"{key[1]!r}: no stream of rows has this session and boot_id: "
                    "open that one first"
                )
            await asyncio.sleep(_LOOK_EVERY_S)
        return clock


class _Stranger(WireError):
    def __init__(self, detail: str) -> None:
        super().__init__("clock.session", "order", detail)


class AnsweredPings:
    """The answered pings of one stream: the agent has not reported yet when the answers came."""

    def __init__(self) -> None:
        self._number = 0
        self._open: dict[int, tuple[NodeRawNs, ServiceRawNs, ServiceRawNs]] = {}

    def check(self, ping: Ping) -> None:
        if ping.number <= self._number:
            raise WireError("clock.number", "order", f"{ping.number}: send rising numbers")
        self._number = ping.number

    def begin(self, ping: Ping, received: ServiceRawNs, sent: ServiceRawNs) -> None:
        self._open[ping.number] = (ping.sent_raw_ns, received, sent)
        if len(self._open) > _OUTSTANDING:
            del self._open[next(iter(self._open))]

    def end(self, ping: Ping) -> Exchange | None:
        """The exchange whose last stamp came with this ping."""
        if ping.pong is None:
            return None
        number, pong_received = ping.pong
        stamps = self._open.pop(number, None)
        return Exchange(*stamps, pong_received) if stamps is not None else None
