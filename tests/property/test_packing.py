"""Laws of packed records: nothing is lost, and damage never turns into other records."""

from __future__ import annotations

import contextlib
import random
import struct
from typing import cast

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from frd.cluster.columns import FIELDS, shuffle, spans, unshuffle
from frd.cluster.log import Bundle
from frd.cluster.packing import Joiner, Mark, frames, pack, read_head
from frd.errors import StoreError
from frd.model import AlignedNs, EntryColumns
from frd.store.records import Record, RecordKind
from frd.v1 import stream_pb2 as pb
from frd.wire.encode import encode_agent
from tests.world.seeds import examples


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """Bytes that look like a message with columns, with wrong lengths and unknown fields."""
    kind = draw(st.sampled_from([*FIELDS, 1, 15]))
    fields = draw(
        st.lists(
            st.one_of(
                st.tuples(st.integers(0, 15), st.binary(max_size=64)).map(
                    lambda item: bytes([item[0] << 3 | 2, len(item[1])]) + item[1]
                ),
                st.binary(max_size=12),
            ),
            max_size=90,
        )
    )
    body = b"".join(fields)
    size = max(len(body) + draw(st.sampled_from([0, 0, 0, 0, -1, 1])), 0)
    return bytes([kind << 3 | 2]) + _varint(size) + body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    """An agent's message of entries."""
    rows = draw(st.integers(0, 30))
    dice = np.random.default_rng(draw(st.integers(0, 2**32)))
    return encode_agent(
        EntryColumns(
            rank=draw(st.integers(0, 2**32 - 1)),
            first_revision=draw(st.integers(0, 2**63)),
            group=dice.integers(0, 2**32, rows, np.uint32),
            seq=dice.integers(-(2**63), 2**63 - 1, rows, np.int64),
            signature=dice.integers(0, 9, rows).astype(np.uint32),
            flags=dice.integers(0, 255, rows).astype(np.uint8),
            created_ns=dice.integers(0, 2**63 - 1, rows, np.int64),
            started_ns=np.zeros(rows, np.int64),
            completed_ns=dice.integers(0, 10**6, rows, np.int64),
        )
    )


RECORDS = st.lists(
    st.builds(
        Record,
        kind=st.sampled_from(RecordKind),
        at=st.integers(-(2**63), 2**63 - 1).map(AlignedNs),
        stream=st.integers(0, 2**64 - 1),
        payload=st.one_of(st.binary(max_size=200), entries(), hostile()),
    ),
    max_size=12,
)


def bundles(packed: list[bytes], first: int = 1, epoch: int = 1) -> list[Bundle]:
    return [Bundle(number, epoch, data) for number, data in enumerate(packed, first)]


def unpacked(packed: list[Bundle]) -> list[Record]:
    joiner = Joiner()
    read = [joiner.add(bundle) for bundle in packed]
    return [record for frame in read if frame is not None for record in frame.records()]


@given(records=RECORDS, mark=st.sampled_from([0, 1, 2, 15]), checkpoint=st.integers(0, 2**64 - 1))
@examples(300)
def test_reading_gives_what_was_packed(records: list[Record], mark: int, checkpoint: int) -> None:
    """Any records, with messages of agents and with bytes that look like such, come back."""
    packed = bundles(pack(records, Mark(mark), checkpoint=checkpoint))
    assert unpacked(packed) == records
    assert read_head(packed[0]) == (Mark(mark), 0, 1, checkpoint)


def test_records_of_any_size_come_back() -> None:
    """A record of random bytes fills several bundles; the frames around it are small."""
    dice = random.Random(1)
    records = [
        Record(RecordKind.MESSAGE, AlignedNs(i), 1, dice.randbytes(size))
        for i, size in enumerate((10, 7_000_000, 20, 2_000_000, 2_000_000, 2_000_000, 900_000))
    ]
    packed: list[bytes] = []
    for some in frames(records):
        packed += pack(some)
    assert len(packed) > 15
    assert max(map(len, packed)) == 900_000
    assert unpacked(bundles(packed)) == records


@given(records=RECORDS, data=st.data())
@examples(300)
def test_damage_is_an_error(records: list[Record], data: st.DataObject) -> None:
    """A bundle that is cut anywhere, or has a flipped bit, is refused or gives what was packed."""
    (packed,) = pack(records)
    content = bytearray(packed)
    if data.draw(st.booleans(), label="truncate"):
        del content[data.draw(st.integers(0, len(content) - 1), label="length") :]
    else:
        bit = data.draw(st.integers(0, len(content) * 8 - 1), label="bit")
        content[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(StoreError):
        assert unpacked([Bundle(1, 1, bytes(content))]) in (records, [])


@given(body=st.binary(max_size=300), counts=st.tuples(*[st.integers(0, 70)] * 3))
@examples(300)
def test_a_forged_frame_is_an_error(body: bytes, counts: tuple[int, int, int]) -> None:
    """Bytes that are compressed correctly but are no frame are refused, whatever they say."""
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(
        struct.pack("<III", *counts) + body
    )
    data = pack([])[0][:16] + frame
    with contextlib.suppress(StoreError):
        unpacked([Bundle(1, 1, data)])


@given(
    width=st.sampled_from([1, 4, 8]),
    items=st.lists(st.integers(0, 2**64 - 1)),
)
def test_shuffled_columns_come_back(width: int, items: list[int]) -> None:
    """Any numbers, of which differences overflow."""
    data = b"".join((item & (1 << 8 * width) - 1).to_bytes(width, "little") for item in items)
    assert bytes(unshuffle(memoryview(shuffle(data, width)), width)) == data


@given(message=st.one_of(entries(), hostile(), st.binary(max_size=99)))
def test_spans_are_in_order_and_inside(message: bytes) -> None:
    """Whatever the message is, its columns do not overlap, and have whole numbers."""
    at = 0
    for span in spans(message):
        assert at <= span.start < span.stop <= len(message)
        assert (span.stop - span.start) % span.width == 0
        at = span.stop


def test_columns_are_those_of_the_contract() -> None:
    """Every column of the wire contract is known by its number, with its width."""
    width = {
        "rank": 4, "group": 4, "signature": 4, "flags": 1, "is_send": 1, "peer": 4, "series": 4,
        "in_flight": 4, "seen_rank": 4, "batch": 4,
    }  # fmt: skip
    for kind, name in ((3, "entries"), (4, "watermarks"), (5, "channels"), (9, "memory")):
        field = pb.AgentMessage.DESCRIPTOR.fields_by_name[name]
        assert field.number == kind
        assert field.message_type is not None
        columns = {
            column.number: width.get(column.name, 8)
            for column in field.message_type.fields
            if column.type == column.TYPE_BYTES
        }
        assert columns == dict(FIELDS[kind])


def test_a_frame_that_is_not_complete_is_left_out() -> None:
    """The owner was fenced in the middle of a frame, or the log has deleted its first bundles: the
    frames before and after it are read."""
    dice = random.Random(2)
    large = [Record(RecordKind.MESSAGE, AlignedNs(1), 1, dice.randbytes(2_500_000))]
    small = [Record(RecordKind.TICK, AlignedNs(2), 0, b"")]
    parts = pack(large)
    assert len(parts) == 3
    fenced = [*bundles(parts[:2], 1), *bundles(pack(small), 4, epoch=3)]
    joiner = Joiner()
    frames_read = [frame for bundle in fenced if (frame := joiner.add(bundle))]
    assert [frame.records() for frame in frames_read] == [small]
    joiner = Joiner()
    purged = [*bundles(parts, 1)[1:], *bundles(pack(small), 4)]
    frames_read = [frame for bundle in purged if (frame := joiner.add(bundle))]
    assert [(frame.first, frame.records()) for frame in frames_read] == [(4, small)]
    torn = [*bundles(parts, 1)[:1], *bundles(parts, 1)[2:], *bundles(pack(small), 4)]
    assert unpacked(torn) == small


def test_a_newer_release_is_named() -> None:
    """A bundle of a format, or with a kind of record, that this release does not know."""
    (packed,) = pack([Record(RecordKind.TICK, AlignedNs(2), 0, b"")])
    with pytest.raises(StoreError, match=r"log: bundle 7: format 2: a newer frd wrote it"):
        read_head(Bundle(7, 1, b"\x02" + packed[1:]))
    newer = Record(cast(RecordKind, 200), AlignedNs(2), 0, b"")
    with pytest.raises(StoreError, match="bundle 1: 200 is not a valid RecordKind: a newer frd"):
        unpacked(bundles(pack([newer])))


def test_a_frame_that_says_it_is_huge_is_refused() -> None:
    """70 MiB of zeros in 3 kB: refused before they are unpacked."""
    data = pack([])[0][:16] + zstandard.ZstdCompressor().compress(bytes(70 << 20))
    assert len(data) < 10_000
    with pytest.raises(StoreError, match=r"over 67108864 bytes"):
        unpacked([Bundle(1, 1, data)])


def test_a_record_that_is_too_large_is_refused() -> None:
    """The writer does not write what a reader would refuse."""
    with pytest.raises(StoreError, match="33554433 bytes: at most 33554432"):
        pack([Record(RecordKind.LEARNED, AlignedNs(1), 0, bytes((32 << 20) + 1))])
