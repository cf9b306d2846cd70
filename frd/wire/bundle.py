"""Bundles: several messages of an agent as one, because gRPC costs more than most messages.

Bytes in, bytes out: each message of a bundle is checked, decoded and recorded as if it had come
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from frd.errors import WireError
from frd.v1 import stream_pb2 as pb
from frd.wire.fields import parse
from frd.wire.messages import MAX_MESSAGE_BYTES

MAX_BUNDLED: Final = 64
_TAG: Final = pb.AgentMessage.BUNDLE_FIELD_NUMBER << 3 | 2


def bundle(messages: Sequence[bytes]) -> bytes:
    """At most `MAX_BUNDLED` messages, of at most `MAX_MESSAGE_BYTES` together, as one."""
    if len(messages) == 1:
        return messages[0]
    return pb.AgentMessage(bundle=pb.Bundle(messages=messages)).SerializeToString()


def unbundled(data: bytes) -> Sequence[bytes]:
    """The messages of a bundle; of any other message, the message.

    Raises:
        WireError: no bundle, or one with another one in it, or with too many messages.
    """
    if data[:1] != bytes([_TAG]):
        return (data,)
    messages = list(parse("bundle", pb.AgentMessage, data, MAX_MESSAGE_BYTES).bundle.messages)
    if len(messages) > MAX_BUNDLED:
        why = f"over {MAX_BUNDLED} in one message: send {MAX_BUNDLED} or fewer"
        raise WireError("bundle.messages", "too_large", why)
    if any(one[:1] == data[:1] for one in messages):
        raise WireError("bundle.messages", "order", "a bundle in a bundle: send its messages")
    return messages
