"""Bundles: several messages of an agent as one, because gRPC costs more than most messages.

Bytes in, bytes out: each message of a bundle is checked, decoded and recorded as if it had come
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from frd.errors import WireError
from frd.v1 import stream_pb2 as pb
from frd.wire.fields import parse
from frd.wire.limits import check_message
from frd.wire.messages import MAX_BUNDLED, MAX_MESSAGE_BYTES

_MOST_BYTES: Final = 65_536
"""Of a bundle that is sent: a larger message costs much more than gRPC, and what the service does
between two of its other tasks stays short."""
_OVERHEAD: Final = 4
"""Bytes before a message, or a bundle: its tag, and a length below 2 MiB."""


def _first_byte(field_number: int) -> bytes:
    """Of a message that is set in this field of `AgentMessage`."""
    return bytes([field_number << 3 | 2])


_BUNDLE: Final = _first_byte(pb.AgentMessage.BUNDLE_FIELD_NUMBER)
_ALONE: Final = (
    _BUNDLE,
    _first_byte(pb.AgentMessage.HELLO_FIELD_NUMBER),
    _first_byte(pb.AgentMessage.GOODBYE_FIELD_NUMBER),
)


def bundles(messages: Iterable[bytes]) -> Iterator[bytes]:
    """The messages in their order, the small ones together. One that comes alone stays as it is."""
    together: list[bytes] = []
    size = _OVERHEAD
    for message in messages:
        more = len(message) + _OVERHEAD
        if len(together) == MAX_BUNDLED or size + more > _MOST_BYTES:
            yield from _as_one(together)
            together, size = [], _OVERHEAD
        together.append(message)
        size += more
    yield from _as_one(together)


def _as_one(messages: list[bytes]) -> Iterator[bytes]:
    if len(messages) > 1:
        yield pb.AgentMessage(bundle=pb.Bundle(messages=messages)).SerializeToString()
    else:
        yield from messages


def unbundled(data: bytes) -> Sequence[bytes]:
    """The messages of a bundle; of any other message, the message.

    Raises:
        WireError: the bundle has too many messages, none, or one that must come alone.
    """
    if not data.startswith(_BUNDLE):
        return (data,)
    check_message(data)
    message = parse("bundle", pb.AgentMessage, data, MAX_MESSAGE_BYTES)
    messages: list[bytes] = list(message.bundle.messages)
    if not messages:
        raise WireError("bundle.messages", "missing", "empty: send a bundle that has messages")
    if any(one.startswith(_ALONE) for one in messages):
        why = "hello, goodbye or a bundle in a bundle: send it alone"
        raise WireError("bundle.messages", "order", why)
    return messages
