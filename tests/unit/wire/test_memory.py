"""What the wire refuses of memory series, samples and events, and what it leaves to the engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frd.errors import WireError
from frd.model import (
    AttemptKey,
    MemoryColumns,
    MemoryEvent,
    MemoryEventKind,
    NodeNs,
    NodeRawNs,
    RankInfo,
    SeriesInfo,
    SeriesKind,
)
from frd.v1 import stream_pb2 as pb
from frd.wire.decode import Decoder
from frd.wire.encode import encode_agent
from frd.wire.messages import (
    PROTOCOL,
    REASONS,
    AttemptDecl,
    Declare,
    Hello,
    MemoryEvents,
    RankDecl,
    SeriesDecl,
)

NOW = 1_790_000_000_000_000_000
DECLARE = Declare(
    attempts=(AttemptDecl(0, AttemptKey("a", 0), 2), AttemptDecl(1, AttemptKey("b", 0), 2)),
    ranks=(
        RankDecl(0, 0, RankInfo(0, 2, "node", "boot", 11)),
        RankDecl(1, 1, RankInfo(0, 2, "node", "boot", 12)),
    ),
    series=(
        SeriesDecl(0, SeriesInfo(0, SeriesKind.HOST_USED)),
        SeriesDecl(1, SeriesInfo(0, SeriesKind.DEVICE_USED, "GPU-1")),
        SeriesDecl(2, SeriesInfo(1, SeriesKind.HOST_USED)),
    ),
)
SAMPLES = MemoryColumns(
    series=np.array([0, 1], np.uint32),
    capacity=np.array([1 << 40, 1 << 36], np.int64),
    begin_ns=np.array([NOW, NOW + 100, NOW + 200], np.int64),
    end_ns=np.array([NOW + 1, NOW + 101, NOW + 201], np.int64),
    values=np.array([[5, 6, 7], [8, -1, 9]], np.int64),
)
HOST = pb.SERIES_KIND_HOST_USED
OOM = MemoryEvent(0, MemoryEventKind.OOM, NodeNs(NOW), "GPU-1", 1 << 30, "of a tensor")

HELLO = Hello(PROTOCOL, "0", "node", "boot", "session", NodeNs(NOW), NodeRawNs(1))


def declared() -> Decoder:
    decoder = Decoder()
    decoder.decode(encode_agent(HELLO))
    decoder.decode(encode_agent(DECLARE))
    return decoder


def refusal(data: bytes) -> tuple[str, str]:
    with pytest.raises(WireError) as caught:
        declared().decode(data)
    assert caught.value.reason in REASONS
    return caught.value.field, caught.value.reason


def raw(**fields: bytes) -> bytes:
    """The good batch with some fields replaced."""
    message = pb.AgentMessage.FromString(encode_agent(SAMPLES))
    for name, value in fields.items():
        setattr(message.memory, name, value)
    return message.SerializeToString()


def test_batches_that_name_the_same_series_share_the_array() -> None:
    """Agents say the same series second after second: they are checked once, and looked up once."""
    decoder = declared()
    first, again, other = (
        decoder.decode(encode_agent(replace(SAMPLES, series=np.array(series, np.uint32))))
        for series in ([0, 1], [0, 1], [1, 0])
    )
    assert isinstance(first, MemoryColumns)
    assert isinstance(again, MemoryColumns)
    assert isinstance(other, MemoryColumns)
    assert again.series is first.series
    assert other.series.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"series": b""}, ("memory.series", "missing")),
        ({"series": np.array([0, 7], "<u4").tobytes()}, ("memory.series", "unknown_index")),
        ({"series": np.array([0, 2], "<u4").tobytes()}, ("memory.series", "disagree")),
        ({"series": np.array([1, 1], "<u4").tobytes()}, ("memory.series", "disagree")),
        ({"capacity": bytes(8)}, ("memory.capacity", "length")),
        ({"end_ns": bytes(8)}, ("memory.end_ns", "length")),
        ({"values": bytes(8 * 5)}, ("memory.values", "length")),
        ({"begin_ns": np.array([-1, 0, 1], "<i8").tobytes()}, ("memory.begin_ns", "range")),
    ],
)
def test_a_batch_that_contradicts_itself_ends_the_stream(
    fields: dict[str, bytes], expected: tuple[str, str]
) -> None:
    """Unknown series, series of two jobs, one series twice, columns of unequal length."""
    assert refusal(raw(**fields)) == expected


def test_values_that_cannot_be_true_come_through() -> None:
    """A driver that reports nonsense for one GPU must not end the stream of its node."""
    mad = replace(SAMPLES, values=np.array([[-5, 1 << 62, 0], [8, -1, 9]], np.int64))
    heard = declared().decode(encode_agent(mad))
    assert isinstance(heard, MemoryColumns)
    assert heard.values.tolist() == mad.values.tolist()


def test_series_are_declared_in_order_for_known_ranks() -> None:
    """An index that leaves a hole, a rank that was not declared, a kind of another release."""
    for series, expected in (
        (pb.Series(index=5, rank_index=0, kind=HOST), ("declare.series.index", "unknown_index")),
        (
            pb.Series(index=3, rank_index=9, kind=HOST),
            ("declare.series.rank_index", "unknown_index"),
        ),
        (pb.Series(index=3, rank_index=0), ("declare.series.kind", "range")),
    ):
        message = pb.AgentMessage(declare=pb.Declare(series=[series]))
        assert refusal(message.SerializeToString()) == expected


def test_events_name_a_known_rank_and_kind() -> None:
    """An event comes back as it was said; one of an unknown rank or kind is refused."""
    assert declared().decode(encode_agent(MemoryEvents((OOM,)))) == MemoryEvents((OOM,))
    unknown = replace(OOM, rank=9)
    assert refusal(encode_agent(MemoryEvents((unknown,))))[0] == "memory_events.rank_index"
    message = pb.AgentMessage(
        memory_events=pb.MemoryEventBatch(events=[pb.MemoryEvent(rank_index=0, at_ns=NOW)])
    )
    assert refusal(message.SerializeToString()) == ("memory_events.kind", "range")
