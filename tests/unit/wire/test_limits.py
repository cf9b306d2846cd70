"""The limits of one message: each by its name, at the limit and beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from frd.errors import WireError
from frd.model import NodeRawNs
from frd.v1 import stream_pb2 as pb
from frd.wire.bundle import _MOST_BYTES as MOST_BYTES
from frd.wire.bundle import bundles, unbundled
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
from frd.wire.codec import Decoder, decode_service, encode_agent, encode_service
from frd.wire.declarations import MAX_RANKS
from frd.wire.limits import LIMITS, MAX_MEMBERS, OTHER_FIELDS, check_message
from frd.wire.messages import (
    MAX_BUNDLED,
    MAX_MESSAGE_BYTES,
    MAX_SLACK_NS,
    REASONS,
    Ack,
    Goodbye,
    Part,
    Request,
    ResponsePart,
)
from tests.unit.wire.test_messages import HELLO, refusal

MEMBERS = "declare.groups.ranks"


def error_of(data: bytes) -> WireError:
    with pytest.raises(WireError) as caught:
        check_message(data)
    return caught.value


def bytes_field(number: int, body: bytes) -> bytes:
    """A field of bytes, text or a message, on the wire."""
    size, head = len(body), bytearray([number << 3 | 2])
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes([*head, size]) + body


def filled(path: str, counts: list[int]) -> bytes:
    """A message with so many items in the field, by message that has it."""
    message = pb.AgentMessage()
    *above, last = path.split(".")
    for count in counts:
        parent: Any = message
        for depth, name in enumerate(above, 1):
            below = getattr(parent, name)
            if not hasattr(below, "add"):
                parent = below
                continue
            inner = above[depth] if depth < len(above) else ""
            most = LIMITS[f"{'.'.join(above[:depth])}.{inner}"].each if inner else 0
            is_full = not below or not inner or len(getattr(below[-1], inner)) == most
            parent = below.add() if is_full else below[-1]
        if path == MEMBERS:
            parent.ranks = np.array([0, count, 1], "<i4").tobytes()
            continue
        items = getattr(parent, last)
        if hasattr(items, "add"):
            for _ in range(count):
                items.add()
        else:
            empty = b"" if path == "bundle.messages" else ""
            items.extend([1 if path.endswith("dims") else empty] * count)
    return message.SerializeToString()


def repeated(message: Any, within: str = "") -> Iterator[tuple[str, Any]]:
    for field in message.fields:
        path = f"{within}.{field.name}".removeprefix(".")
        if field.is_repeated:
            yield path, field
        if field.message_type:
            yield from repeated(field.message_type, path)


def test_every_repeated_field_has_a_limit() -> None:
    """No repeated field of an agent's message can be forgotten; numbers are varints."""
    found = dict(repeated(pb.AgentMessage.DESCRIPTOR))
    assert {*found, MEMBERS} == set(LIMITS)
    for field in found.values():
        kinds = field.TYPE_MESSAGE, field.TYPE_STRING, field.TYPE_BYTES, field.TYPE_INT64
        assert field.type in kinds


@pytest.mark.parametrize("path", LIMITS)
def test_too_many_items(path: str) -> None:
    """As many as one message may have pass; one more is refused by the field's name, and so is one
    more than all of them together may have."""
    each, in_all = LIMITS[path]
    name = path.removeprefix("statuses.")
    assert check_message(filled(path, [each])) >= each
    error = error_of(filled(path, [each + 1]))
    assert (error.field, error.reason) == (name, "too_large")
    assert f"send {each} or fewer" in str(error)
    if in_all > each:
        whole = [each] * (in_all // each)
        assert check_message(filled(path, whole)) >= in_all
    if in_all > each and path.startswith("declare"):
        assert error_of(filled(path, [*whole, 1])).field == name


def test_members_cannot_be_hidden() -> None:
    """A run that makes no sense does not offset the ranks of other groups."""
    runs = [(0, MAX_MEMBERS, 1), (0, -(2**31), 1), (0, 1, 1)]
    groups = [pb.Group(ranks=np.array(run, "<i4").tobytes()) for run in runs]
    data = pb.AgentMessage(declare=pb.Declare(groups=groups)).SerializeToString()
    assert error_of(data).field == MEMBERS


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (bytes_field(6, b"\x0a\x00" * 300_000), "statuses"),
        (bytes_field(6, b"\x0a\x00") * 2, "statuses"),
        (bytes_field(6, b"\x1a\x00" * 2), "unreadable"),
        (b"\x12\x00\x1a\x00" * 100, "declare"),
        (bytes_field(6, (b"\x8a" + b"\x80" * 8 + b"\x02\x00") * 300), "statuses"),
        (bytes_field(2, bytes_field(4, bytes_field(4, b"\x08\x01" * 65))), "dims"),
        (bytes_field(2, bytes_field(4, bytes_field(4, b"\x0a\x01\x01" * 65))), "dims"),
        (bytes_field(2, b"\x78\x01" * (OTHER_FIELDS + 1)), "message"),
        (b"\x78\x01" * (OTHER_FIELDS + 1), "message"),
        (bytes(MAX_MESSAGE_BYTES + 1), "message"),
    ],
    ids=[
        "empty",
        "twice",
        "merged",
        "in turn",
        "wrapped",
        "unpacked",
        "pieces",
        "unknown",
        "kinds",
        "bytes",
    ],
)
def test_odd_encodings(data: bytes, field: str) -> None:
    """What protobuf merges or passes over counts as well."""
    error = error_of(data)
    assert error.field.split(".")[-1] == field
    assert error.reason == "too_large"


@pytest.mark.parametrize(
    "data",
    [
        b"\x32",
        b"\x32\x05ab",
        b"\x80" * 11,
        b"\x0b\x0c",
        b"\x09abc",
        b"\x32\x02\x0a\x05hello",
        b"\x0f",
    ],
)
def test_not_protobuf(data: bytes) -> None:
    """Cut short, a number without end, a group, a field that is longer than its message."""
    error = error_of(data)
    assert (error.field, error.reason) == ("message", "parse")


def test_fields_of_later_releases() -> None:
    """Unknown fields of every type are passed over."""
    unknown = (
        b"\xf8\x07\xac\x02" + b"\xf9\x07" + bytes(8) + b"\xfd\x07" + bytes(4) + b"\xfa\x07\x01x"
    )
    check_message(bytes_field(2, unknown) + unknown)


def test_large_columns_are_one_item() -> None:
    """Rows cost nothing here; neither do fields of messages without repeated ones."""
    assert check_message(bytes_field(3, bytes_field(3, bytes(900_000)))) == 1
    assert check_message(bytes_field(3, b"\x08\x01" * 500_000)) == 1


def test_the_service_keeps_to_the_limit() -> None:
    """Its largest answers, about all ranks that a stream may declare, are what an agent takes."""
    ranks = tuple(range(MAX_RANKS))
    request = Request(2**63, ranks, True, True, 1.0, ranks, True, True)
    for event in (Ack(dict.fromkeys(ranks, 2**63)), request):
        data = encode_service(event)
        assert len(data) <= MAX_MESSAGE_BYTES
        assert decode_service(data) == event


# -- several messages as one: what goes in comes out, and what no agent sends is refused -----------


GOODBYE = encode_agent(Goodbye("done"))


def part(size: int) -> bytes:
    return encode_agent(ResponsePart(1, 0, Part.DUMP, bytes(size), last=True))


def as_sent(*messages: bytes) -> bytes:
    return pb.AgentMessage(bundle=pb.Bundle(messages=messages)).SerializeToString()


def test_bundles_keep_order_and_limits() -> None:
    """Many small messages, large ones among them: few bundles, none too large, and all messages
    as they were."""
    sizes = [*[10] * 200, 40_000, 9, 40_000, MAX_MESSAGE_BYTES - 40, 7, 8]
    messages = [part(size) for size in sizes]
    sent = list(bundles(messages))
    assert [one for data in sent for one in unbundled(data)] == messages
    assert [len(unbundled(data)) for data in sent] == [64, 64, 64, 10, 1, 1, 2]
    assert max(len(data) for data in sent if len(unbundled(data)) > 1) <= MOST_BYTES


def test_as_large_as_a_bundle_may_be() -> None:
    """Two messages that just fit are one, with one byte more they are two."""
    half = MOST_BYTES // 2
    rest = MOST_BYTES - len(as_sent(bytes(half), bytes(half - 40))) + half - 40
    (whole,) = bundles([bytes(half), bytes(rest)])
    assert len(whole) == MOST_BYTES
    assert len(list(bundles([bytes(half), bytes(rest + 1)]))) == 2


def test_a_message_alone_is_no_bundle() -> None:
    assert list(bundles([])) == []
    assert list(bundles([GOODBYE])) == [GOODBYE]
    assert unbundled(GOODBYE) == (GOODBYE,)
    assert unbundled(b"") == (b"",)


@pytest.mark.parametrize(
    ("data", "field", "reason"),
    [
        (as_sent(as_sent(part(1)), part(1)), "bundle.messages", "order"),
        (as_sent(encode_agent(HELLO)), "bundle.messages", "order"),
        (as_sent(part(1), GOODBYE), "bundle.messages", "order"),
        (as_sent(), "bundle.messages", "missing"),
        (as_sent(*[b""] * (MAX_BUNDLED + 1)), "bundle.messages", "too_large"),
        (as_sent(part(1)) * 2, "bundle", "too_large"),
        (as_sent(*[part(1 << 18)] * 4), "message", "too_large"),
        (as_sent(part(1))[:-1], "message", "parse"),
    ],
    ids=["nested", "hello", "goodbye", "empty", "many", "twice", "large", "cut"],
)
def test_what_is_refused(data: bytes, field: str, reason: str) -> None:
    """Each with the field that is wrong; nothing of the bundle is applied."""
    with pytest.raises(WireError) as caught:
        unbundled(data)
    assert (caught.value.field, caught.value.reason) == (field, reason)


def test_a_bundle_that_hides_is_refused_by_the_decoder() -> None:
    """Its first field is one of a later release, so that it is taken for another message."""
    hidden = b"\xf8\x07\x01" + as_sent(GOODBYE)
    assert unbundled(hidden) == (hidden,)
    decoder = Decoder()
    decoder.decode(encode_agent(HELLO))
    assert refusal(decoder, hidden) == ("bundle", "order")


# -- what a clock stream carries unharmed, and what of it is refused -------------------------------


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
