"""Laws of one message: what the service accepts has few items, whatever was sent; and it accepts
everything that an agent sends, whatever its ranks are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from frd.errors import WireError
from frd.model import (
    AttemptKey,
    ChannelColumns,
    EntryColumns,
    ExitInfo,
    ExitKind,
    GroupInfo,
    MemoryColumns,
    MemoryEvent,
    MemoryEventKind,
    NodeNs,
    NodeRawNs,
    PhaseSpan,
    RankInfo,
    RankPhases,
    RankState,
    RankStatus,
    SeriesInfo,
    SeriesKind,
    Signature,
    Stage,
)
from frd.v1 import stream_pb2 as pb
from frd.wire.codec import Decoder, encode_agent
from frd.wire.columns import count_ranks
from frd.wire.limits import LIMITS, OTHER_FIELDS, check_message
from frd.wire.messages import (
    MAX_MESSAGE_BYTES,
    PART_BYTES,
    PROTOCOL,
    AgentEvent,
    Hello,
    Part,
    ResponsePart,
    Unreadable,
    Watermarks,
)
from frd_agent.memory.samples import Samples
from frd_agent.recorder.group_progress import GroupWatermarks
from frd_agent.uplink.current_state import CurrentState
from frd_agent.uplink.dictionary import Dictionary, pieces
from frd_agent.uplink.dispatch import Dispatch
from frd_agent.uplink.outbox import Outbox
from tests.world.seeds import examples

NOW = NodeRawNs(1_790_000_000_000_000_000)

# -- whatever was sent ---------------------------------------------------------------------------


def number(value: int) -> bytes:
    """A varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@st.composite
def hostile(draw: st.DrawFn, message: Any = pb.AgentMessage.DESCRIPTOR, depth: int = 0) -> bytes:
    """Fields of the message in any number and order, known and unknown ones, as they are on the
    wire; some of them a thousand times."""
    out = b""
    for _ in range(draw(st.integers(1, 3))):
        field = draw(st.sampled_from([*message.fields, None]))
        if field is None:
            one = draw(st.sampled_from([b"\xf8\x07\x01", b"\xfa\x07\x00", b"\xfd\x07" + bytes(4)]))
        elif field.message_type is not None:
            inner = draw(hostile(field.message_type, depth + 1))
            inner = draw(st.sampled_from([b"", inner]))
            one = number(field.number << 3 | 2) + number(len(inner)) + inner
        elif field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            text = draw(st.sampled_from([b"", b"a", np.array([0, 99_000, 1], "<i4").tobytes()]))
            one = number(field.number << 3 | 2) + number(len(text)) + text
        elif draw(st.booleans()):
            packed = b"\x01" * draw(st.sampled_from([1, 60, 200]))
            one = number(field.number << 3 | 2) + number(len(packed)) + packed
        else:
            one = number(field.number << 3) + b"\x01"
        times = draw(st.sampled_from([1, 1, 2, 40, 1_100, 20_000]))
        out += one * min(times, max((MAX_MESSAGE_BYTES >> 2 * depth) // len(one), 1))
    return out


def decoded(message: Any, path: str, total: Counter[str]) -> None:
    """Count the items of a message that protobuf has parsed, and check what each field may have."""
    for field, value in message.ListFields():
        name = f"{path}.{field.name}".removeprefix(".")
        if name == "declare.groups.ranks":
            total[name] += count_ranks(value)
        elif field.is_repeated:
            assert len(value) <= LIMITS[name].each
            total[name] += len(value)
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                decoded(inner, name, total)


class Read(bytes):
    """Counts what is read of it."""

    reads = 0

    def __getitem__(self, at: Any) -> Any:
        self.reads += 1
        return super().__getitem__(at)


MOST_READS = 8 * (OTHER_FIELDS + sum(limit.in_all for limit in LIMITS.values()) + 100)


@examples(300)
@given(hostile())
def test_what_is_accepted_has_few_items(data: bytes) -> None:
    """Protobuf makes no more objects of it than the table says, however they were encoded; what is
    refused has been read up to a limit only, and names a field."""
    read = Read(data)
    try:
        items = check_message(read)
    except WireError:
        assert read.reads <= MOST_READS
        return
    try:
        message = pb.AgentMessage.FromString(data)
    except DecodeError:
        return
    total: Counter[str] = Counter()
    decoded(message, "", total)
    for name, count in total.items():
        assert count <= LIMITS[name].in_all
    assert total.total() <= items


def test_the_smallest_items_of_each_kind() -> None:
    """A MiB of the smallest items of each repeated field is refused after as many reads as it may
    have items, not as it has bytes."""
    for path, limit in LIMITS.items():
        *above, last = path.split(".")
        tags: list[int] = []
        message: Any = pb.AgentMessage.DESCRIPTOR
        for name in (*above, last):
            field = message.fields_by_name[name]
            tags.append(field.number << 3 | 2)
            message = field.message_type
        tag = tags.pop()
        data = bytes([tag, 0]) * (MAX_MESSAGE_BYTES // 2 - 20)
        if path == "declare.groups.ranks":
            data = bytes([0x2A, 12, *np.array([0, 9_999, 1], "<i4").tobytes()]) * 60_000
        elif path.endswith("dims"):
            data = b"\x08\x00" * (MAX_MESSAGE_BYTES // 2 - 20)
        while tags:
            data = bytes([tags.pop()]) + number(len(data)) + data
        read = Read(data)
        with pytest.raises(WireError) as caught:
            check_message(read)
        assert caught.value.field == path.removeprefix("statuses.")
        assert read.reads < 20 + 8 * max(limit.each, limit.in_all)


# -- whatever an agent has -----------------------------------------------------------------------

TEXTS = st.sampled_from(["", "x", "x" * 5_000, "\udc80" * 3_000, "日" * 2_000])
COUNTS = st.sampled_from([0, 1, 3, 40, 300])
HELLO = Hello(PROTOCOL, "0", "n", "b", "s", NodeNs(NOW), NOW)
WORLD = 300_000


class Agent:
    """The part of an agent that makes its messages, with a service that decodes them."""

    def __init__(self) -> None:
        self.known = Dictionary()
        self.attempt = self.known.attempt(AttemptKey("job", 0), WORLD)
        self.outbox = Outbox(1 << 26)
        self.current = CurrentState(self.known.attempt_of)
        self.samples = Samples(1 << 30, self.known.series_number)
        self.in_flight: list[EntryColumns] = []
        self.dispatch = Dispatch(
            self.known, self.outbox, self.current, self.samples, lambda: self.in_flight
        )

    def ranks(self, count: int, text: str = "", names: int = 0) -> list[int]:
        some = (text or "gpu",) * names
        info = RankInfo(0, WORLD, text, "boot", 1, 0, text, some, some)
        return [self.known.rank(self.attempt, replace(info, rank=i)) for i in range(count)]

    def sent(self) -> Iterator[AgentEvent]:
        self.dispatch.open(knows_nothing=True)
        while events := self.dispatch.next(NOW):
            for event in events:
                yield replace(event, sent_raw_ns=NOW) if isinstance(event, Watermarks) else event

    def taken(self) -> list[AgentEvent]:
        """What the service decodes of all messages, none of which it may refuse."""
        decoder = Decoder()
        decoder.decode(encode_agent(HELLO))
        return [accepted(decoder, event) for event in self.sent()]


def accepted(decoder: Decoder, event: AgentEvent) -> AgentEvent:
    data = encode_agent(event)
    assert len(data) <= MAX_MESSAGE_BYTES
    check_message(data)
    return decoder.decode(data)


def all_of(events: list[AgentEvent], name: str) -> list[Any]:
    """The items of all messages that have a field of this name."""
    return [item for event in events for item in getattr(event, name, ())]


@examples(20)
@given(TEXTS, st.sampled_from([0, 1, 600]), st.sampled_from([0, 1_000]), st.sampled_from([0, 16]))
def test_ranks_statuses_and_events(text: str, count: int, events: int, unreadable: int) -> None:
    """Ranks with the longest names and statuses, and as many events as an agent keeps."""
    agent = Agent()
    gone = ExitInfo(ExitKind.EXCEPTION, 0, 1, text, text, text)
    stage = Stage(text, NOW, NOW, text)
    count = min(count, 60) if text else count
    for rank in agent.ranks(count, text, 100 if count == 1 else 4):
        agent.current.set_status(RankStatus(rank, RankState.EXITED, NOW, text, 0, gone, NOW, stage))
    agent.current.set_unreadable(Unreadable((text,) * unreadable))
    for at in range(events if count else 0):
        agent.samples.event(
            MemoryEvent(at % count, MemoryEventKind.OOM, NodeRawNs(NOW + at), text, 1, text)
        )
    taken = agent.taken()
    assert [status.rank for status in all_of(taken, "statuses")] == list(range(count))
    times = [event.at_ns - NOW for event in all_of(taken, "events")]
    assert times == list(range(events if count else 0))


@examples(12)
@given(TEXTS, COUNTS, st.sampled_from([0, 1, 70, 1_500]), st.sampled_from([0, 3, 100]))
def test_signatures(dtype: str, count: int, tensors: int, dims: int) -> None:
    """Ops with thousands of tensors, dimensions and long names of types."""
    agent = Agent()
    (rank,) = agent.ranks(1)
    count = min(count, 1) if tensors * dims > 1_000 else min(count, 40)
    group = agent.known.group(agent.attempt, GroupInfo("g", "", (0,)))
    sizes, names = ((2**62,) * dims,) * tensors, (dtype,) * tensors
    made = [Signature("nccl", f"op {i}", sizes, sizes, names, names) for i in range(count)]
    signatures = [agent.known.signature(one) for one in made]
    assert [agent.known.signature(one) for one in made] == signatures, "the same every time"
    agent.outbox.record(entries(rank, count, group, signatures))
    assert len(all_of(agent.taken(), "signatures")) == count


def entries(rank: int, count: int, group: int = 0, signatures: Any = 0) -> EntryColumns:
    at: Any = np.arange(count)
    times = np.full(count, NOW)
    return EntryColumns(
        *(rank, 0, at * 0 + group, at),
        at * 0 + signatures if count else at,
        *(np.ones(count, np.uint8), times, times * 0, times * 0),
    )


MEMBERS = {
    "few": (0, 1),
    "world": tuple(range(131_072)),
    "stride": tuple(range(0, WORLD, 8)),
    "scattered": tuple(i for i in range(30_000) if i % 3),
    "too scattered": tuple(i for i in range(200_000) if i % 3),
    "too many": tuple(range(WORLD)),
}


@examples(20)
@given(TEXTS, st.lists(st.sampled_from([*MEMBERS]), max_size=5), COUNTS)
def test_groups(text: str, kinds: list[str], small: int) -> None:
    """Groups of any shape; members that no message can hold are unknown."""
    agent = Agent()
    (rank,) = agent.ranks(1)
    infos = [GroupInfo(f"{i}{text}", text, MEMBERS[kind]) for i, kind in enumerate(kinds)]
    infos += [GroupInfo(f"small {i}", text, (0, i + 1)) for i in range(small)]
    for info in infos:
        agent.current.expect(rank, agent.known.group(agent.attempt, info))
    found = [declared.info.ranks for declared in all_of(agent.taken(), "groups")]
    unknown = [MEMBERS["too scattered"], MEMBERS["too many"]]
    assert found == [() if info.ranks in unknown else info.ranks for info in infos]


@examples(20)
@given(st.sampled_from([1, 3, 40]), st.sampled_from([0, 1, 600, 17_000]), st.booleans())
def test_rows(ranks: int, groups: int, waiting: bool) -> None:
    """Thousands of groups, entries and channels. A rank is complete up to a time with its last row
    or after it, not before."""
    groups = min(groups, 40_000 // ranks)
    agent = Agent()
    numbers = agent.ranks(ranks)
    of = [agent.known.group(agent.attempt, GroupInfo(f"g{i}", "", ())) for i in range(groups)]
    for rank in numbers:
        for group in of:
            agent.current.set_watermarks(rank, group, GroupWatermarks(enqueued=1))
        agent.current.set_as_of(rank, NOW)
    if of:
        op = agent.known.signature(Signature("nccl", "send"))
        at: Any = np.arange(60_000)
        one: Any = np.ones(len(at), np.int64)
        agent.current.set_channels(
            ChannelColumns(
                numbers[0], at * 0, at, one, one, NOW + at[::-1], at * 0 + op, at, at, NOW
            )
        )
        agent.in_flight = [entries(numbers[0], 10_000, of[0], op)] if waiting else []
        agent.outbox.record(entries(numbers[-1], 10_000, of[0], op))
    left = Counter(dict.fromkeys(range(ranks), groups))
    seen = []
    for event in agent.taken():
        if isinstance(event, Watermarks):
            left.subtract(event.columns.rank.tolist())
            assert not any(left[rank] for rank in event.columns.seen_rank.tolist())
            seen += event.columns.seen_rank.tolist()
        if isinstance(event, ChannelColumns):
            assert event.head_created_ns.min() == NOW, "the oldest are kept"
    assert sorted(seen) == list(range(ranks))
    assert not any(left.values())


@examples(50)
@given(st.sampled_from([1, 6, 40]), st.sampled_from(["x" * 256, "\udc80" * 256, "日" * 256]))
def test_phases(ranks: int, name: str) -> None:
    """The longest phases that a tap may publish, of every rank."""
    agent = Agent()
    spans = tuple(
        PhaseSpan((name,) * 16, NodeRawNs(NOW + i), NodeRawNs(NOW + i + 1)) for i in range(32)
    )
    for rank in agent.ranks(ranks):
        agent.current.set_phases(RankPhases(rank, spans))
    events = list(agent.sent())
    for event in events:
        check_message(encode_agent(event))
    assert [phases.rank for phases in all_of(events, "phases")] == list(range(ranks))


@examples(50)
@given(st.sampled_from([1, 50, 60_000]), st.sampled_from([1, 2, 700]))
def test_samples(count: int, moments: int) -> None:
    """More series than a message can hold, each of its values once."""
    moments = min(moments, 200_000 // count)
    agent = Agent()
    (rank,) = agent.ranks(1)
    for i in range(count):
        agent.known.series_number(SeriesInfo(rank, SeriesKind.DEVICE_USED, f"GPU-{i}"))
    times = np.arange(NOW, NOW + moments)
    values = np.arange(count * moments).reshape(count, moments)
    whole = MemoryColumns(np.arange(count), np.ones(count, np.int64), times, times, values)
    found = Counter[int]()
    for piece in pieces(whole):
        data = encode_agent(piece)
        check_message(data)
        assert piece.values.shape == (len(piece.series), len(piece.begin_ns))
        found.update(piece.values.ravel().tolist())
    assert found == dict.fromkeys(range(count * moments), 1)


def test_parts_of_answers() -> None:
    """The largest piece of an answer fits, with the longest texts."""
    part = ResponsePart(2**60, 2**16, Part.DUMP, bytes(PART_BYTES), True, "x" * 9_000, "y" * 9_000)
    data = encode_agent(part)
    assert len(data) <= MAX_MESSAGE_BYTES
    check_message(data)
