"""The node's clocks as the service should know them: readings of both, and pings.

The wall clock (what ranks and recorders stamp with) may step and be slewed; the raw monotonic one
may not. Both are read together a few times a second, so that the service can turn wall time into
raw time and see a step where it happened; a step is sent immediately. Watermarks, which are sent
once a second anyway, carry the newest reading; pings carry the readings not sent yet. Pings are
stamped with the raw clock, as late as Python allows, and answers as early: a dedicated task waits
only for answers, because any other work would add delay.

A burst of pings at connect gives a bound immediately. After it the agent sends about one ping a
second, fewer if the service has many agents and asks for a pause, and with jitter, so that a whole
job does not ping in step.

Errors stay here: the stream of rows is not affected, and pings are tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import grpc.aio
import numpy as np

from frd.errors import FrdError, ServiceUnavailable
from frd.model import NodeNs, NodeRawNs
from frd.rpc import StreamCall
from frd.wire.clock import MAX_READINGS, ClockHello, Ping, Readings, decode_pong, encode_clock
from frd.wire.messages import MAX_SLACK_NS, AgentEvent, Watermarks
from frd_agent.counters import Counters
from frd_agent.uplink.endpoint import Connection, ending
from frd_agent.uplink.stream import Backoff

READ_EVERY_S: Final = 0.25
BURST: Final = 8
_BURST_AFTER_STEP: Final = 3
"""After a step, the service ignores exchanges that began before it."""
_TOGETHER: Final = 2
"""The first ping wakes both hosts and is slow; the second is not, and carries the first
answer's arrival."""
_BURST_EVERY_S: Final = 0.01
_PING_EVERY_S: Final = 1.0
_JITTER: Final = (0.8, 1.2)
_LONGEST_PAUSE_S: Final = 60.0
_TRIES: Final = 3
_GOOD_SLACK_NS: Final = 2_000
_SLEW: Final = 500e-6
"""The kernel's maximum rate of correction without a step."""
STEP_NS: Final = 1_000_000
"""A smaller step is not sent immediately; the service sees it a second later."""

log = logging.getLogger(__name__)


class ClockReading(NamedTuple):
    raw_ns: NodeRawNs
    real_ns: NodeNs
    slack_ns: int
    """The two clocks were read at most this far apart."""


def raw_now() -> NodeRawNs:
    return NodeRawNs(time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW))


def read_clocks() -> ClockReading:
    """Both clocks: the closest of a few pairs of readings, as the kernel may preempt in between."""
    best = None
    for _ in range(_TRIES):
        before, real, after = raw_now(), NodeNs(time.time_ns()), raw_now()
        slack = (after - before + 1) // 2
        if best is None or slack < best.slack_ns:
            best = ClockReading(NodeRawNs(before + (after - before) // 2), real, slack)
        if slack <= _GOOD_SLACK_NS:
            break
    assert best is not None
    return best


@dataclass(slots=True)
class Clock:
    hello: ClockHello
    stats: Counters
    on_step: Callable[[int], None]
    """Called with the size of a step of the wall clock, in nanoseconds."""
    read: Callable[[], ClockReading] = read_clocks
    roll: Callable[[float, float], float] = random.uniform
    _readings: deque[ClockReading] = field(default_factory=lambda: deque(maxlen=MAX_READINGS))
    """Not sent yet; the oldest are dropped first."""
    _last: ClockReading | None = None
    _pong: tuple[int, NodeRawNs] | None = None
    _pause_s: float = _PING_EVERY_S
    _stepped: asyncio.Event = field(default_factory=asyncio.Event)
    _last_warning: str = ""

    # -- readings ------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Read the clocks until cancelled, whether there is a service or not."""
        while True:
            self.look()
            await asyncio.sleep(READ_EVERY_S)

    def look(self) -> ClockReading | None:
        """Both clocks; None if the readings were too far apart."""
        reading, last = self.read(), self._last
        if reading.slack_ns > MAX_SLACK_NS:
            return None
        self._last = reading
        self._readings.append(reading)
        if last is not None and (step_ns := _step_ns(last, reading)):
            log.warning("the wall clock of this node stepped by %+.6f s", step_ns / 1e9)
            self.stats.clock_steps += 1
            self._stepped.set()
            self.on_step(step_ns)
        return reading

    def stamp(self, event: AgentEvent) -> AgentEvent:
        """Add the newest reading to watermarks immediately before they are sent."""
        if not isinstance(event, Watermarks) or (reading := self.look()) is None:
            return event
        if not self._stepped.is_set():  # else the next ping carries all of it
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
        backoff = Backoff(self.roll)
        while True:
            began = time.monotonic()
            try:
                await self._live(connection.clock())
            except FrdError as error:
                self._warn(str(error))
            except Exception as error:
                if self._last_warning != repr(error):
                    log.exception("clock: unexpected error")
                self._last_warning = repr(error)
            await asyncio.sleep(backoff.next_s(time.monotonic() - began))

    async def _live(self, call: StreamCall) -> None:
        self._pong = None
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
            self._pause_s = min(pause_s or _PING_EVERY_S, _LONGEST_PAUSE_S)
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
            pause_s = self._pause_s * self.roll(*_JITTER)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stepped.wait(), pause_s)
            burst_left = _TOGETHER
            if self._stepped.is_set():
                self._stepped.clear()
                burst_left = _BURST_AFTER_STEP

    def _warn(self, why: str) -> None:
        if self._last_warning != why:
            log.warning("clock: pings have ended: %s", why)
        self._last_warning = why


async def _ending(call: StreamCall) -> ServiceUnavailable:
    code, details = await ending(call)
    return ServiceUnavailable(f"{code.name.lower()}: {details}" if code else "the stream ended")


def _step_ns(last: ClockReading, reading: ClockReading) -> int:
    """The step of the wall clock against the raw clock since `last`; 0 if slewing explains the
    difference."""
    moved = (reading.real_ns - last.real_ns) - (reading.raw_ns - last.raw_ns)
    slewed = _SLEW * (reading.raw_ns - last.raw_ns) + last.slack_ns + reading.slack_ns
    return moved if abs(moved) > slewed + STEP_NS else 0
