"""Laws of the wire: encoded events are decoded again; all other bytes give a `WireError`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frd.engine.evidence.nccl import MAX_LINES, opinion
from frd.errors import WireError
from frd.model import (
    MAX_SEQ,
    AttemptKey,
    Certainty,
    ChannelColumns,
    EntryColumns,
    ExitInfo,
    ExitKind,
    GroupInfo,
    Holder,
    MemoryColumns,
    MemoryEvent,
    MemoryEventKind,
    NodeNs,
    NodeRawNs,
    RankInfo,
    RankState,
    RankStatus,
    SeriesInfo,
    SeriesKind,
    Signature,
    Stage,
    WaitKind,
    WaitsFor,
    WatermarkColumns,
)
from frd.wire.codec import Decoder, decode_service, encode_agent
from frd.wire.messages import (
    MAX_SLACK_NS,
    PROTOCOL,
    REASONS,
    AttemptDecl,
    Declare,
    Goodbye,
    GroupDecl,
    Hello,
    MemoryEvents,
    Part,
    RankDecl,
    ResponsePart,
    SeriesDecl,
    SignatureDecl,
    Statuses,
    Watermarks,
)
from frd.wire.waits import (
    Communicator,
    Member,
    RasReport,
    WaitReport,
    decode_ras,
    decode_report,
    encode_ras,
    encode_report,
)
from tests.world.seeds import examples

TIMES = st.integers(0, 4_000_000_000_000_000_000)
SEQS = st.integers(0, MAX_SEQ - 1)
PRINTABLE = st.characters(exclude_categories=["C", "Z"], include_characters=" ")
TEXTS = st.text(PRINTABLE, max_size=40) | st.text(st.characters(codec="ascii"), max_size=40)
WORLD = 8
HELLO = Hello(PROTOCOL, "0", "n", "b", "s", NodeNs(1), NodeRawNs(1))
DECLARE = Declare(
    attempts=(AttemptDecl(0, AttemptKey("j", 0), WORLD),),
    ranks=tuple(RankDecl(i, 0, RankInfo(i, WORLD, "n", "b", i)) for i in range(3)),
    groups=tuple(GroupDecl(i, 0, GroupInfo(str(i), "", (0, 1, 2))) for i in range(4)),
    signatures=(SignatureDecl(0, Signature("nccl", "all_reduce")),),
    series=tuple(SeriesDecl(i, SeriesInfo(0, SeriesKind.HOST_USED)) for i in range(3)),
)


def column(draw: st.DrawFn, items: st.SearchStrategy[int], rows: int, dtype: str) -> np.ndarray:
    return np.array(draw(st.lists(items, min_size=rows, max_size=rows)), dtype)


@st.composite
def entry_batches(draw: st.DrawFn) -> EntryColumns:
    n = draw(st.integers(0, 5))
    return EntryColumns(
        rank=draw(st.integers(0, 2)),
        first_revision=draw(st.integers(0, 2**40)),
        group=column(draw, st.integers(0, 3), n, "u4"),
        seq=column(draw, SEQS, n, "i8"),
        signature=column(draw, st.just(0), n, "u4"),
        flags=column(draw, st.integers(1, 15), n, "u1"),
        created_ns=column(draw, TIMES, n, "i8"),
        started_ns=column(draw, TIMES, n, "i8"),
        completed_ns=column(draw, TIMES, n, "i8"),
    )


@st.composite
def watermark_batches(draw: st.DrawFn) -> Watermarks:
    n, seen = draw(st.integers(0, 5)), draw(st.integers(0, 3))
    enqueued = column(draw, st.integers(-1, 2**40), n, "i8")
    columns = WatermarkColumns(
        rank=column(draw, st.integers(0, 2), n, "u4"),
        group=column(draw, st.integers(0, 3), n, "u4"),
        enqueued=enqueued,
        started=np.minimum(enqueued, column(draw, st.integers(-1, 2**40), n, "i8")),
        completed=np.minimum(enqueued, column(draw, st.integers(-1, 2**40), n, "i8")),
        head_created_ns=column(draw, TIMES, n, "i8"),
        seen_rank=column(draw, st.integers(0, 2), seen, "u4"),
        as_of_ns=column(draw, TIMES, seen, "i8"),
    )
    raw_ns, slack_ns = draw(TIMES.filter(bool)), draw(st.integers(0, MAX_SLACK_NS))
    return Watermarks(0, columns, NodeNs(draw(TIMES)), NodeRawNs(raw_ns), slack_ns)


@st.composite
def channel_batches(draw: st.DrawFn) -> ChannelColumns:
    n = draw(st.integers(0, 4))
    return ChannelColumns(
        rank=draw(st.integers(0, 2)),
        group=column(draw, st.integers(0, 3), n, "u4"),
        peer=column(draw, st.integers(-1, WORLD - 1), n, "i4"),
        is_send=column(draw, st.integers(0, 1), n, "u1"),
        in_flight=column(draw, st.integers(0, 2**32 - 1), n, "u4"),
        head_created_ns=column(draw, TIMES, n, "i8"),
        signature=column(draw, st.just(0), n, "u4"),
        batch=column(draw, st.integers(0, 2**32 - 1), n, "u4"),
        posted=column(draw, st.integers(-1, 2**63 - 1), n, "i8"),
    )


ANY = st.integers(-(2**63), 2**63 - 1)


@st.composite
def memory_batches(draw: st.DrawFn) -> MemoryColumns:
    """The wire does not check values: a series with odd values must not end the stream."""
    series = draw(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True))
    moments = draw(st.integers(0, 4))
    return MemoryColumns(
        series=np.array(series, "u4"),
        capacity=column(draw, ANY, len(series), "i8"),
        begin_ns=column(draw, TIMES, moments, "i8"),
        end_ns=column(draw, TIMES, moments, "i8"),
        values=column(draw, ANY, len(series) * moments, "i8").reshape(len(series), moments),
    )


memory_events = st.lists(
    st.builds(
        MemoryEvent,
        st.integers(0, 2),
        st.sampled_from(MemoryEventKind),
        TIMES.map(NodeNs),
        TEXTS,
        st.integers(0, 2**63 - 1),
        TEXTS,
    ),
    max_size=3,
).map(lambda items: MemoryEvents(tuple(items)))
shapes = st.lists(st.lists(st.integers(0, 2**40), max_size=4).map(tuple), max_size=3).map(tuple)
dtypes = st.lists(TEXTS, max_size=3).map(tuple)
declares = st.builds(
    lambda key, signature, group, series: Declare(
        attempts=(AttemptDecl(1, key, 0, "vm:29500"),),
        ranks=(RankDecl(3, 1, RankInfo(77, 0, "n", "b", 5, -1, "2.13", ("gloo",), ("GPU",))),),
        groups=(GroupDecl(4, 1, group),),
        signatures=(SignatureDecl(1, signature),),
        series=(SeriesDecl(3, series),),
    ),
    st.builds(AttemptKey, TEXTS.filter(bool), st.integers(0, 2**31)),
    st.builds(Signature, TEXTS, TEXTS, shapes, shapes, dtypes, dtypes),
    st.builds(
        GroupInfo, TEXTS, TEXTS, st.sets(st.integers(0, 100)).map(lambda s: tuple(sorted(s)))
    ),
    st.builds(SeriesInfo, st.integers(0, 3), st.sampled_from(SeriesKind), TEXTS),
)
statuses = st.lists(
    st.builds(
        RankStatus,
        st.integers(0, 2),
        st.sampled_from(RankState),
        TIMES.map(NodeNs),
        TEXTS,
        st.integers(0, 2**62),
        st.none()
        | st.builds(
            ExitInfo,
            st.sampled_from(ExitKind),
            st.integers(0, 64),
            st.none() | st.integers(0, 255),
            TEXTS,
            TEXTS,
            TEXTS,
        ),
        TIMES,
        st.none()
        | st.tuples(TEXTS, TIMES, TIMES, TEXTS, st.booleans()).map(
            lambda s: Stage(s[0], NodeRawNs(min(s[1:3]) + 1), NodeRawNs(max(s[1:3]) + 1), *s[3:])
        ),
    ),
    max_size=3,
).map(lambda items: Statuses(tuple(items)))
responses = st.builds(
    ResponsePart,
    st.integers(0, 2**40),
    st.integers(0, 2),
    st.sampled_from(Part),
    st.binary(max_size=50),
    st.booleans(),
    TEXTS,
    TEXTS,
)
PIDS = st.integers(0, 2**31 - 1)
wait_reports = st.builds(
    WaitReport,
    st.builds(
        WaitsFor,
        st.sampled_from(WaitKind),
        st.sampled_from(Certainty),
        what=TEXTS,
        mount=TEXTS,
        fs=TEXTS,
        pid=PIDS,
        process=TEXTS,
        thread=TEXTS,
        holder=st.none() | st.builds(Holder, PIDS, st.none() | st.integers(0, WORLD), TEXTS),
        topic=TEXTS,
        says=TEXTS,
        rest=TEXTS,
    ),
    TIMES.map(NodeRawNs),
    may_be_for_peer=st.booleans(),
    is_poll=st.booleans(),
    is_idle=st.booleans(),
)
COUNTS = st.integers(0, 2**63 - 1)


@st.composite
def communicators(draw: st.DrawFn) -> Communicator:
    ops = draw(st.lists(st.sampled_from(["AllReduce", "Broadcast"]), unique=True))
    size = draw(st.integers(1, 4))
    members = [
        Member(
            *(rank, draw(PIDS), draw(st.integers(0, 2)), draw(st.integers(0, 63))),
            *(draw(st.integers(0, 9)), draw(st.integers(0, 255))),
            tuple(draw(COUNTS) for _ in ops) if draw(st.booleans()) else (),
        )
        for rank in draw(st.lists(st.integers(0, size - 1), unique=True))
    ]
    return Communicator(draw(st.sampled_from(["ab", "0" * 16])), size, tuple(ops), tuple(members))


ras_reports = st.builds(RasReport, st.lists(communicators(), max_size=3).map(tuple))
events = st.one_of(
    entry_batches(),
    watermark_batches(),
    channel_batches(),
    memory_batches(),
    memory_events,
    declares,
    statuses,
    responses,
    st.builds(Goodbye, TEXTS),
)


def plain(value: object) -> object:
    """A comparable form: dataclasses as dicts, arrays as lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return type(value), {f.name: plain(getattr(value, f.name)) for f in fields}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    return value


def ready() -> Decoder:
    decoder = Decoder()
    decoder.decode(encode_agent(HELLO))
    decoder.decode(encode_agent(DECLARE))
    return decoder


def only_a_wire_error(decode: Callable[[bytes], object], data: bytes) -> bool:
    try:
        decode(data)
    except WireError as error:
        return bool(error.field) and error.reason in REASONS
    return True


@dataclasses.dataclass(frozen=True)
class Codec:
    """A kind of message."""

    values: st.SearchStrategy[Any]
    encode: Callable[[Any], bytes]
    decoder: Callable[[], Callable[[bytes], object]]


CODECS = {
    "events": Codec(events, encode_agent, lambda: ready().decode),
    "waits": Codec(wait_reports, encode_report, lambda: decode_report),
    "communicators": Codec(ras_reports, encode_ras, lambda: decode_ras),
}
of_each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


@of_each_codec
@examples(100)
@given(st.data())
def test_round_trip(codec: Codec, data: st.DataObject) -> None:
    """What an agent sends is the same after encoding and decoding."""
    value = data.draw(codec.values)
    assert plain(codec.decoder()(codec.encode(value))) == plain(value)


@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    """Random bytes are a message or a WireError that names a field, never anything else."""
    for decode in (ready().decode, Decoder().decode, decode_service, decode_report, decode_ras):
        assert only_a_wire_error(decode, data)


@of_each_codec
@examples(300)
@given(st.data())
def test_mutated_messages(codec: Codec, data: st.DataObject) -> None:
    """A valid message with some bytes changed, cut or turned round gives a message or a
    WireError."""
    message = bytearray(codec.encode(data.draw(codec.values)))
    changes = st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4)
    for position, value in data.draw(changes):
        if message:
            message[position % len(message)] = value
    if message and data.draw(st.booleans()):
        cut = data.draw(st.integers(0, len(message)))
        message = message[cut:] + message[:cut] if data.draw(st.booleans()) else message[:cut]
    assert only_a_wire_error(codec.decoder(), bytes(message))


@given(wait_reports, st.text(st.characters(categories=["Cs"]), min_size=1))
@examples(100)
def test_reports_on_waits_with_odd_names(report: WaitReport, name: str) -> None:
    """A path that is no UTF-8 arrives escaped."""
    odd = dataclasses.replace(report.waits_for, what=name)
    arrived = decode_report(encode_report(dataclasses.replace(report, waits_for=odd)))
    assert arrived.waits_for.what.isascii()


@given(ras_reports, st.lists(PIDS, min_size=1, max_size=4))
@examples(100)
def test_opinions(report: RasReport, pids: list[int]) -> None:
    """Any report gives sentences of bounded number, or none."""
    said = opinion(report, range(len(pids)), dict(enumerate(pids)))
    assert len(said) <= MAX_LINES
    assert all(line.isprintable() for line in said)


@given(st.sampled_from([b"", b"[" * 60_000, b'{"a":' + b"[" * 60_000, b"{}", bytes(70_000)]))
def test_hostile_reports_on_waits(data: bytes) -> None:
    """Depth, size and nothing at all are a WireError."""
    assert only_a_wire_error(decode_report, data)
