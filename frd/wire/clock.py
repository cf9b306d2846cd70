"""The messages of a clock stream: pings that carry readings of both node clocks, and their answers.

The first message identifies the clock; every later message is one ping. A ping also carries when
the last answer came and the readings since the last ping, so that a clock costs one small message
a second. The first invalid message ends the stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from frd.errors import WireError
from frd.model import Int64s, NodeRawNs
from frd.v1 import stream_pb2 as pb
from frd.wire.columns import (
    READING_COLUMNS,
    read_columns,
    write_columns,
)
from frd.wire.fields import check_time, parse, read, text

MAX_READINGS: Final = 64
"""Limit per message."""
MAX_CLOCK_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class ClockHello:
    """First message of a clock stream, and only there: which stream of rows it belongs to."""

    boot_id: str
    session: str


@dataclass(frozen=True, slots=True)
class Readings:
    """Both clocks of a node, read together, oldest first."""

    raw_ns: Int64s
    real_ns: Int64s
    slack_ns: Int64s
    """Each `real_ns` was read at most this far from its `raw_ns`."""


@dataclass(frozen=True, slots=True)
class Ping:
    number: int
    """From 1, rising."""
    sent_raw_ns: NodeRawNs
    readings: Readings
    """Readings not sent yet, here or with watermarks."""
    pong: tuple[int, NodeRawNs] | None = None
    """Number of the last answer that came since the last ping, and when it came."""


ClockEvent: TypeAlias = ClockHello | Ping


def encode_clock(event: ClockEvent) -> bytes:
    """One `frd.v1.ClockPing`."""
    if isinstance(event, ClockHello):
        hello = pb.ClockPing(boot_id=text(event.boot_id), session=text(event.session))
        return hello.SerializeToString()
    pong_number, pong_received_raw_ns = event.pong or (0, 0)
    ping = pb.ClockPing(
        number=event.number,
        sent_raw_ns=event.sent_raw_ns,
        pong_number=pong_number,
        pong_received_raw_ns=pong_received_raw_ns,
    )
    write_columns(ping, READING_COLUMNS, event.readings)
    return ping.SerializeToString()


def decode_clock(data: bytes) -> ClockEvent:
    """The event in one `frd.v1.ClockPing`.

    Raises:
        WireError: naming the field; the stream is over.
    """
    m = parse("clock", pb.ClockPing, data, MAX_CLOCK_BYTES)
    if not m.number:
        return read(ClockHello, m, "clock")
    if m.pong_number >= m.number:
        raise WireError(
            "clock.pong_number", "order", f"{m.pong_number}: send the number of an earlier ping"
        )
    check_time("clock.sent_raw_ns", m.sent_raw_ns)
    check_time("clock.pong_received_raw_ns", m.pong_received_raw_ns)
    pong = (m.pong_number, NodeRawNs(m.pong_received_raw_ns)) if m.pong_number else None
    readings = Readings(**read_columns(m, READING_COLUMNS))
    if (count := len(readings.raw_ns)) > MAX_READINGS:
        raise WireError(
            "clock.raw_ns", "too_large", f"{count} readings: send {MAX_READINGS} or fewer"
        )
    return Ping(m.number, NodeRawNs(m.sent_raw_ns), readings, pong)


def encode_pong(number: int, pause_s: float) -> bytes:
    """One `frd.v1.ClockPong`: the answer to ping `number`."""
    return pb.ClockPong(number=number, pause_ms=round(pause_s * 1e3)).SerializeToString()


def decode_pong(data: bytes) -> tuple[int, float]:
    """One `frd.v1.ClockPong`: the number of the ping that it answers, and the pause before the next
    ping in seconds, 0 if it has none.

    Raises:
        WireError: the bytes are not a ClockPong, or too many.
    """
    m = parse("clock", pb.ClockPong, data, MAX_CLOCK_BYTES)
    return m.number, m.pause_ms / 1e3
