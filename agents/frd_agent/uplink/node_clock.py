"""The node's clocks as the service should know them: pings, and readings of both clocks.

Pings compare the raw clocks of node and service. They are stamped as late as Python allows, and
answers as early: a dedicated task waits only for answers, because any other work would add delay.
Readings of the raw and the wall clock, a few a second, are for people: the service shows how far
off the node's wall clock is, and how often it was set. Watermarks, which are sent once a second
anyway, carry the newest reading; pings carry the readings not sent yet.

A burst of pings at connect gives a bound immediately. After it the agent sends about one ping a
second, fewer if the service has many agents and asks for a pause, and with jitter, so that a whole
job does not ping in step.

Errors stay here: the stream of rows is not affected, and pings are tried again. One failure is no
news: when the service ends both streams, this one may end first.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import grpc.aio
import numpy as np

from frd.errors import FrdError, ServiceUnavailable
from frd.model import NodeRawNs
from frd.rpc import StreamCall
from frd.wire.clock import MAX_READINGS, ClockHello, Ping, Readings, decode_pong, encode_clock
from frd.wire.messages import MAX_SLACK_NS, AgentEvent, Watermarks
from frd_agent.counters import Counters
from frd_agent.node_time import ClockReading, NodeTime, raw_now
from frd_agent.uplink.route import Backoff, Connection, ending

BURST: Final = 8
_TOGETHER: Final = 2
"""The first ping wakes both hosts and is slow; the second is not, and carries the first
answer's arrival."""
_BURST_EVERY_S: Final = 0.01
_PING_EVERY_S: Final = 1.0
_JITTER: Final = (0.8, 1.2)
LONGEST_PAUSE_S: Final = 60.0
"""After 120 s without a ping, the service takes a clock for unsynchronized."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Clock:
    hello: ClockHello
    stats: Counters
    time: NodeTime
    roll: Callable[[float, float], float] = random.uniform
    least_pause_s: float = 0.0
    """Between two pairs of pings."""
    _readings: deque[ClockReading] = field(default_factory=lambda: deque(maxlen=MAX_READINGS))
    """Not sent yet; the oldest are dropped first."""
    _pong: tuple[int, NodeRawNs] | None = None
    _pause_s: float = _PING_EVERY_S
    _answered_at_s: float | None = None
    """When the first answer of the stream came."""
    _last_warning: str = ""

    # -- readings ------------------------------------------------------------------------------

    def look(self) -> ClockReading | None:
        """Both clocks; None if the readings were too far apart. Call it a few times a second,
        whether there is a service or not."""
        reading = self.time.look()
        if reading.slack_ns > MAX_SLACK_NS:
            return None
        self._readings.append(reading)
        return reading

    def stamp(self, event: AgentEvent) -> AgentEvent:
        """Add the newest reading to watermarks immediately before they are sent."""
        if not isinstance(event, Watermarks):
            return event
        if (reading := self.look()) is None:
            return replace(event, sent_raw_ns=self.time.now())
        self._readings.clear()
        raw_ns, real_ns, slack_ns = reading
        return replace(event, sent_at_ns=real_ns, sent_raw_ns=raw_ns, sent_slack_ns=slack_ns)

    def take_readings(self) -> Readings:
        """The readings that have not been taken yet."""
        table = np.array(self._readings, np.int64).reshape(-1, 3)
        self._readings.clear()
        return Readings(*table.T)

    # -- pings ---------------------------------------------------------------------------------

    async def ping(self, connection: Connection) -> None:
        """Ping over `connection` until cancelled."""
        backoff, loop = Backoff(self.roll), asyncio.get_running_loop()
        while True:
            why = ""
            try:
                await self._live(connection.clock())
            except FrdError as error:
                why = str(error)
            except Exception as error:
                if self._last_warning != repr(error):
                    log.exception("clock: unexpected error")
                self._last_warning = repr(error)
            began = self._answered_at_s
            delay_s = backoff.next_s(0.0 if began is None else loop.time() - began)
            if why and backoff.failures > 1:
                self._warn(why)
            await asyncio.sleep(delay_s)

    async def _live(self, call: StreamCall) -> None:
        self._pong = self._answered_at_s = None
        tasks: list[asyncio.Task[None]] = []
        try:
            await call.write(encode_clock(self.hello))
            tasks += (
                asyncio.create_task(self._receive(call)),
                asyncio.create_task(self._send(call)),
            )
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            raise await _ending(call) from None
        finally:
            for task in tasks:
                task.cancel()
            call.cancel()

    async def _receive(self, call: StreamCall) -> None:
        while isinstance(data := await call.read(), bytes):
            at = raw_now()
            number, pause_s = decode_pong(data)
            self._pong = number, at
            self._pause_s = min(pause_s or _PING_EVERY_S, LONGEST_PAUSE_S)
            if self._answered_at_s is None:
                self._answered_at_s = asyncio.get_running_loop().time()
            self.stats.pongs += 1
            self._last_warning = ""
        raise await _ending(call)

    async def _send(self, call: StreamCall) -> None:
        burst_left = BURST
        for number in itertools.count(1):
            self.look()
            readings = self.take_readings()
            pong, self._pong = self._pong, None
            await call.write(encode_clock(Ping(number, raw_now(), readings, pong)))
            burst_left -= 1
            if burst_left > 0:
                await asyncio.sleep(_BURST_EVERY_S)
                continue
            pause_s = max(self._pause_s, self.least_pause_s)
            await asyncio.sleep(pause_s * self.roll(*_JITTER))
            burst_left = _TOGETHER

    def _warn(self, why: str) -> None:
        if self._last_warning != why:
            log.warning("clock: pings have ended: %s", why)
        self._last_warning = why


async def _ending(call: StreamCall) -> ServiceUnavailable:
    code, details = await ending(call)
    return ServiceUnavailable(f"{code.name.lower()}: {details}" if code else "the stream ended")
