"""What a clock stream carries unharmed, and what of it is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frd.errors import WireError
from frd.model import NodeRawNs
from frd.v1 import stream_pb2 as pb
from frd.wire.clock import (
    MAX_READINGS,
    ClockHello,
    Ping,
    Readings,
    decode_clock,
    decode_pong,
    encode_clock,
    encode_pong,
)
from frd.wire.messages import MAX_SLACK_NS, REASONS

S = 1_000_000_000


def readings(count: int) -> Readings:
    raw = np.arange(1, count + 1, dtype=np.int64) * S
    return Readings(raw, raw + 1_790_000_000 * S, np.full(count, 300, np.int64))


PING = Ping(7, NodeRawNs(12 * S), readings(3), (6, NodeRawNs(11 * S)))


def test_what_is_sent_arrives() -> None:
    """A hello, a ping with everything, a ping with nothing else, and an answer."""
    hello = ClockHello("boot", "session")
    assert decode_clock(encode_clock(hello)) == hello
    for ping in (PING, Ping(1, NodeRawNs(S), readings(0))):
        decoded = decode_clock(encode_clock(ping))
        assert isinstance(decoded, Ping)
        assert (decoded.number, decoded.sent_raw_ns, decoded.pong) == (
            ping.number,
            ping.sent_raw_ns,
            ping.pong,
        )
        for name in ("raw_ns", "real_ns", "slack_ns"):
            sent = getattr(ping.readings, name)
            assert getattr(decoded.readings, name).tolist() == sent.tolist()
    assert decode_pong(encode_pong(7, 1.5)) == (7, 1.5)


def message(**changes: object) -> bytes:
    m = pb.ClockPing.FromString(encode_clock(PING))
    for name, value in changes.items():
        setattr(m, name, value)
    return bytes(m.SerializeToString())


@pytest.mark.parametrize(
    ("data", "field", "reason"),
    [
        (b"\xff\xff", "clock", "parse"),
        (bytes(20_000), "clock", "too_large"),
        (encode_clock(ClockHello("", "s")), "clock.boot_id", "missing"),
        (encode_clock(ClockHello("b", "")), "clock.session", "missing"),
        (message(pong_number=7), "clock.pong_number", "order"),
        (message(sent_raw_ns=-1), "clock.sent_raw_ns", "range"),
        (message(pong_received_raw_ns=2**63 - 1), "clock.pong_received_raw_ns", "range"),
        (message(raw_ns=b"1234567"), "clock.raw_ns", "length"),
        (message(real_ns=b""), "clock.real_ns", "length"),
        (message(slack_ns=b"12345678"), "clock.slack_ns", "length"),
        (message(raw_ns=np.full(3, -5).tobytes()), "clock.raw_ns", "range"),
        (message(real_ns=np.full(3, -5).tobytes()), "clock.real_ns", "range"),
        (message(slack_ns=np.full(3, -5).tobytes()), "clock.slack_ns", "range"),
        (message(slack_ns=np.full(3, MAX_SLACK_NS + 1).tobytes()), "clock.slack_ns", "range"),
        (
            encode_clock(replace(PING, readings=readings(MAX_READINGS + 1))),
            "clock.raw_ns",
            "too_large",
        ),
    ],
)
def test_nonsense_is_refused(data: bytes, field: str, reason: str) -> None:
    """Each thing that a ping may not be is refused by the field's name."""
    with pytest.raises(WireError) as refused:
        decode_clock(data)
    assert (refused.value.field, refused.value.reason) == (field, reason)
    assert reason in REASONS


def test_an_answer_that_is_none() -> None:
    """The service says something that is no answer to a ping."""
    with pytest.raises(WireError, match=r"frd\.v1\.ClockPong"):
        decode_pong(b"\xff")
