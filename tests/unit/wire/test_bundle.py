"""Several messages as one: what goes in comes out, and what no agent sends is refused."""

from __future__ import annotations

import pytest

from frd.errors import WireError
from frd.v1 import stream_pb2 as pb
from frd.wire.bundle import _MOST_BYTES as MOST_BYTES
from frd.wire.bundle import bundles, unbundled
from frd.wire.codec import Decoder, encode_agent
from frd.wire.messages import MAX_BUNDLED, MAX_MESSAGE_BYTES, Goodbye, Part, ResponsePart
from tests.unit.wire.test_messages import HELLO, refusal

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
