"""The limits of one message: each by its name, at the limit and beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from frd.errors import WireError
from frd.v1 import stream_pb2 as pb
from frd.wire.codec import decode_service, encode_service
from frd.wire.declarations import MAX_RANKS
from frd.wire.limits import LIMITS, MAX_MEMBERS, OTHER_FIELDS, check_message
from frd.wire.messages import (
    MAX_MESSAGE_BYTES,
    Ack,
    Request,
)

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
