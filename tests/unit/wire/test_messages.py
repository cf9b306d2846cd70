"""What the wire refuses, field by field, and what it carries unharmed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from frd.errors import WireError
from frd.model import (
    MAX_WORLD_SIZE,
    YEAR_2200_NS,
    Address,
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
from frd.wire.codec import Decoder, decode_service, encode_agent, encode_service
from frd.wire.limits import check_message
from frd.wire.messages import (
    MAX_MESSAGE_BYTES,
    PART_BYTES,
    REASONS,
    Ack,
    AgentEvent,
    AttemptDecl,
    Declare,
    GroupDecl,
    Hello,
    MemoryEvents,
    Pace,
    Part,
    RankDecl,
    Redirect,
    Refusal,
    Request,
    ResponsePart,
    Resync,
    SeriesDecl,
    SignatureDecl,
    Statuses,
    Unreadable,
    Watermarks,
    Welcome,
)
from tests.world import messages

NOW = 1_790_000_000_000_000_000
RAW = 7_000_000_000
HELLO = Hello(2, "0.2.0", "node-a", "boot-a", "session-a", NodeNs(NOW), NodeRawNs(RAW))
SIGNATURE = Signature("gloo", "all_reduce", ((4, 4),), ((4, 4),), ("Float",), ("Float",))
ADDRESS = Address(12, "python t.py", "alice", "0af1", "4711", "0", "research", "t-0", "/logs/1")
DECLARE = Declare(
    attempts=(AttemptDecl(0, AttemptKey("job", 0), 4), AttemptDecl(1, AttemptKey("job", 1), 0)),
    ranks=(
        RankDecl(0, 0, RankInfo(0, 4, "node-a", "boot-a", 11, 0, "2.13", ("gloo",), ("GPU-1",))),
        RankDecl(1, 0, RankInfo(1, 4, "node-a", "boot-a", 12, address=ADDRESS)),
        RankDecl(2, 1, RankInfo(0, 0, "node-a", "boot-a", 13)),
    ),
    groups=(
        GroupDecl(0, 0, GroupInfo("0", "default_pg", (0, 1, 2, 3))),
        GroupDecl(1, 1, GroupInfo("0", "default_pg")),
    ),
    signatures=(SignatureDecl(0, SIGNATURE),),
    series=(
        SeriesDecl(0, SeriesInfo(0, SeriesKind.HOST_USED)),
        SeriesDecl(1, SeriesInfo(0, SeriesKind.DEVICE_USED, "GPU-1")),
        SeriesDecl(2, SeriesInfo(2, SeriesKind.HOST_USED)),
    ),
)
SAMPLES = MemoryColumns(
    series=np.array([0, 1], np.uint32),
    capacity=np.array([1 << 40, 1 << 36], np.int64),
    begin_ns=np.array([NOW, NOW + 100, NOW + 200], np.int64),
    end_ns=np.array([NOW + 1, NOW + 101, NOW + 201], np.int64),
    values=np.array([[5, 6, 7], [8, -1, 9]], np.int64),
)


def entries(rows: int = 2, **changes: object) -> EntryColumns:
    columns = messages.entry_columns(range(rows), revision=1, created=NOW)
    return replace(columns, **changes)  # type: ignore[arg-type]


def watermarks(attempt: int = 0, **changes: object) -> Watermarks:
    batch = messages.watermarks(
        [0, 1], enqueued=[7, 6], completed=6, head=[NOW, 0], seen=[0, 1], as_of=NOW, sent=NOW,
        attempt=attempt, raw=RAW,
    )  # fmt: skip
    return replace(batch, columns=replace(batch.columns, **changes))  # type: ignore[arg-type]


def channels(**changes: object) -> ChannelColumns:
    columns = messages.p2p_ops(0, (0, 3, True, 2, NOW))
    return replace(columns, as_of_ns=NOW, **changes)  # type: ignore[arg-type]


def called(
    signature: Sequence[int] = (0,), batch: Sequence[int] = (0,), posted: Sequence[int] = (-1,)
) -> ChannelColumns:
    numbers = [np.array(column, np.uint32) for column in (signature, batch)]
    return channels(signature=numbers[0], batch=numbers[1], posted=np.array(posted, np.int64))


def state_of(rank: int, how: ExitInfo | None = None) -> Statuses:
    state = RankState.EXITED if how else RankState.LIVE
    return Statuses((RankStatus(rank, state, NodeNs(NOW), exit=how, as_of_ns=NOW),))


def exited(signal: int = 0, status: int | None = None) -> Statuses:
    return state_of(0, ExitInfo(ExitKind.UNKNOWN, signal, status))


def in_stage(since_ns: int, as_of_ns: int) -> Statuses:
    stage = Stage("new_group", NodeRawNs(since_ns), NodeRawNs(as_of_ns))
    return Statuses((RankStatus(0, RankState.LIVE, NodeNs(NOW), stage=stage),))


def in_phases(rank: int, *spans: PhaseSpan) -> Statuses:
    return Statuses((), (RankPhases(rank, spans),))


def span(since_ns: int = NOW, until_ns: int = 0, path: tuple[str, ...] = ("eval",)) -> PhaseSpan:
    return PhaseSpan(path, NodeRawNs(since_ns), NodeRawNs(until_ns))


def attempt(index: int, job: str = "job") -> Declare:
    return Declare(attempts=(AttemptDecl(index, AttemptKey(job, 1), 4),))


def rank(index: int, attempt: int, info: RankInfo) -> Declare:
    return Declare(ranks=(RankDecl(index, attempt, info),))


def group(attempt: int, *ranks: int) -> Declare:
    return Declare(groups=(GroupDecl(2, attempt, GroupInfo("g", "", ranks)),))


def signature(**changes: object) -> Declare:
    changed = replace(SIGNATURE, **changes)  # type: ignore[arg-type]
    return Declare(signatures=(SignatureDecl(1, changed),))


def series(index: int, rank: int) -> Declare:
    return Declare(series=(SeriesDecl(index, SeriesInfo(rank, SeriesKind.HOST_USED)),))


def samples_of(*series: int) -> MemoryColumns:
    return replace(SAMPLES, series=np.array(series, np.uint32))


def out_of_memory(rank: int) -> MemoryEvents:
    return MemoryEvents((MemoryEvent(rank, MemoryEventKind.OOM, NodeNs(NOW), "GPU-1", 1 << 30),))


def raw(event: AgentEvent, **fields: object) -> bytes:
    """The message of an event with some fields of its body replaced."""
    message = pb.AgentMessage.FromString(encode_agent(event))
    body = getattr(message, message.WhichOneof("kind") or "")
    for name, value in fields.items():
        setattr(body, name, value)
    return message.SerializeToString()


def members(*runs: int) -> bytes:
    """A group whose members are declared in these runs: begin, length, step."""
    message = pb.AgentMessage()
    ranks = np.array(runs, "<i4").tobytes()
    message.declare.groups.add(index=2, attempt_index=0, name="g", ranks=ranks)
    return message.SerializeToString()


def without_kind(kind: str) -> bytes:
    """A series, or an event of memory, of a kind that this release does not know."""
    if kind == "series":
        body = pb.Declare(series=[pb.Series(index=3, rank_index=0)])
        return pb.AgentMessage(declare=body).SerializeToString()
    events = pb.MemoryEventBatch(events=[pb.MemoryEvent(rank_index=0, at_ns=NOW)])
    return pb.AgentMessage(memory_events=events).SerializeToString()


def declared() -> Decoder:
    decoder = Decoder()
    decoder.decode(encode_agent(HELLO))
    decoder.decode(encode_agent(DECLARE))
    return decoder


def taken(decoder: Decoder, data: bytes) -> AgentEvent:
    """As the service takes a message."""
    check_message(data)
    return decoder.decode(data)


def refusal(decoder: Decoder, data: bytes) -> tuple[str, str]:
    with pytest.raises(WireError) as caught:
        taken(decoder, data)
    assert caught.value.reason in REASONS
    assert str(caught.value).startswith(f"{caught.value.field}: ")
    return caught.value.field, caught.value.reason


def test_another_protocol_is_refused_with_both_versions() -> None:
    """An agent of another major version hears which version the service speaks."""
    with pytest.raises(
        WireError, match=r"hello\.protocol: 3 where this service speaks 2:"
    ) as caught:
        Decoder().decode(encode_agent(replace(HELLO, protocol=3)))
    assert caught.value.reason == "version"


def test_hello_comes_first_and_once() -> None:
    """A stream that skips hello, or says it twice, is refused."""
    assert refusal(Decoder(), encode_agent(DECLARE)) == ("declare", "order")
    assert refusal(declared(), encode_agent(HELLO)) == ("hello", "order")


@pytest.mark.parametrize("name", ["node", "boot_id", "session", "sent_raw_ns"])
def test_hello_without_identity(name: str) -> None:
    """A hello that lacks who it is from, or its raw clock, is refused naming the missing field."""
    message = pb.AgentMessage.FromString(encode_agent(HELLO))
    message.hello.ClearField(name)
    assert refusal(Decoder(), message.SerializeToString()) == (f"hello.{name}", "missing")


@pytest.mark.parametrize(
    ("said", "field", "reason"),
    [
        (entries(rank=9), "entries.rank_index", "unknown_index"),
        (entries(group=np.array([0, 2])), "entries.group", "unknown_index"),
        (entries(group=np.array([0, 1])), "entries.group", "disagree"),
        (entries(signature=np.array([1, 0])), "entries.signature", "unknown_index"),
        (raw(entries(), signature=bytes(4)), "entries.signature", "length"),
        (raw(entries(), seq=bytes(15)), "entries.seq", "length"),
        (entries(seq=np.array([0, -1])), "entries.seq", "range"),
        (entries(seq=np.array([0, 2**63 - 1])), "entries.seq", "range"),
        (watermarks(enqueued=np.array([0, 2**63 - 1])), "watermarks.enqueued", "range"),
        (entries(flags=np.array([1, 0])), "entries.flags", "range"),
        (entries(flags=np.array([1, 16])), "entries.flags", "range"),
        (entries(created_ns=np.array([NOW, -1])), "entries.created_ns", "range"),
        (entries(started_ns=np.array([0, 2**62 * 2 - 1])), "entries.started_ns", "range"),
        (entries(completed_ns=np.array([0, -(2**63)])), "entries.completed_ns", "range"),
        (entries(first_revision=2**63 - 1), "entries.first_revision", "range"),
        (watermarks(attempt=2), "watermarks.attempt_index", "unknown_index"),
        (watermarks(rank=np.array([0, 3])), "watermarks.rank", "unknown_index"),
        (watermarks(rank=np.array([0, 2])), "watermarks.rank", "disagree"),
        (watermarks(group=np.array([0, 1])), "watermarks.group", "disagree"),
        (watermarks(seen_rank=np.array([0, 2])), "watermarks.seen_rank", "disagree"),
        (watermarks(seen_rank=np.array([0, 5])), "watermarks.seen_rank", "unknown_index"),
        (watermarks(started=np.array([8, 0])), "watermarks.started", "disagree"),
        (watermarks(completed=np.array([8, 0])), "watermarks.completed", "disagree"),
        (watermarks(completed=np.array([-2, 0])), "watermarks.completed", "range"),
        (watermarks(as_of_ns=np.array([-1, 0])), "watermarks.as_of_ns", "range"),
        (watermarks(as_of_ns=np.array([NOW])), "watermarks.as_of_ns", "length"),
        (replace(watermarks(), sent_raw_ns=NodeRawNs(0)), "watermarks.sent_raw_ns", "missing"),
        (channels(peer=np.array([4])), "channels.peer", "range"),
        (channels(peer=np.array([-2])), "channels.peer", "range"),
        (channels(is_send=np.array([2])), "channels.is_send", "range"),
        (channels(group=np.array([7])), "channels.group", "unknown_index"),
        (called(signature=[2]), "channels.signature", "unknown_index"),
        (called(signature=[0, 0]), "channels.signature", "length"),
        (called(batch=[]), "channels.batch", "length"),
        (state_of(7), "statuses.rank_index", "unknown_index"),
        (exited(signal=65), "statuses.exit.signal", "range"),
        (exited(status=256), "statuses.exit.status", "range"),
        (in_stage(0, NOW), "statuses.stage", "disagree"),
        (in_stage(NOW, NOW - 1), "statuses.stage", "disagree"),
        (in_stage(-1, NOW), "statuses.stage.since_ns", "range"),
        (in_stage(1, YEAR_2200_NS), "statuses.stage.as_of_ns", "range"),
        (in_phases(7), "phases.rank_index", "unknown_index"),
        (in_phases(0, *[span()] * 33), "phases.spans", "too_large"),
        (in_phases(0, span(path=())), "phases.spans.path", "missing"),
        (in_phases(0, span(path=("x",) * 17)), "phases.spans.path", "too_large"),
        (in_phases(0, span(path=("x" * 257,))), "phases.spans.path", "too_large"),
        (in_phases(0, span(since_ns=0)), "phases.spans", "disagree"),
        (in_phases(0, span(until_ns=NOW - 1)), "phases.spans", "disagree"),
        (in_phases(0, span(since_ns=-1)), "phases.spans.since_ns", "range"),
        (in_phases(0, span(until_ns=YEAR_2200_NS)), "phases.spans.until_ns", "range"),
        (ResponsePart(1, 9, Part.DUMP, b"", True), "response.rank_index", "unknown_index"),
        (
            ResponsePart(1, 0, Part.DUMP, bytes(PART_BYTES + 1), True),
            "response.data",
            "too_large",
        ),
        (attempt(1), "declare.attempts.index", "redefined"),
        (attempt(2, job=""), "declare.attempts.job", "missing"),
        (rank(9, 0, RankInfo(1, 4, "n", "b", 1)), "declare.ranks.index", "unknown_index"),
        (rank(3, 0, RankInfo(4, 0, "n", "b", 1)), "declare.ranks.rank", "range"),
        (rank(3, 1, RankInfo(8, 8, "n", "b", 1)), "declare.ranks.rank", "range"),
        (rank(3, 1, RankInfo(1, 0, "n", "", 1)), "declare.ranks.boot_id", "missing"),
        (rank(3, 1, RankInfo(MAX_WORLD_SIZE, 0, "n", "b", 1)), "declare.ranks.rank", "range"),
        (rank(3, 1, RankInfo(2**31, 0, "n", "b", 1)), "declare.ranks.rank", "range"),
        (group(0, 0, 4), "declare.groups.ranks", "range"),
        (group(0, 1, 1), "declare.groups.ranks", "range"),
        (group(5), "declare.groups.attempt_index", "unknown_index"),
        (members(7), "declare.groups.ranks", "length"),
        (members(0, 0, 1), "declare.groups.ranks", "range"),
        (members(0, 2, 0), "declare.groups.ranks", "range"),
        (members(-1, 2, 1), "declare.groups.ranks", "range"),
        (members(0, 2, 1, 1, 1, 1), "declare.groups.ranks", "range"),
        (members(0, 2**31 - 1, 1), "declare.groups.ranks", "too_large"),
        (signature(input_sizes=((1,) * 65,)), "declare.signatures.input_sizes.dims", "too_large"),
        (signature(output_sizes=((-1,),)), "declare.signatures.output_sizes", "range"),
        (series(5, 0), "declare.series.index", "unknown_index"),
        (series(3, 9), "declare.series.rank_index", "unknown_index"),
        (without_kind("series"), "declare.series.kind", "range"),
        (raw(SAMPLES, series=b""), "memory.series", "missing"),
        (samples_of(0, 7), "memory.series", "unknown_index"),
        (samples_of(0, 2), "memory.series", "disagree"),
        (samples_of(1, 1), "memory.series", "disagree"),
        (raw(SAMPLES, capacity=bytes(8)), "memory.capacity", "length"),
        (raw(SAMPLES, end_ns=bytes(8)), "memory.end_ns", "length"),
        (raw(SAMPLES, values=bytes(8 * 5)), "memory.values", "length"),
        (replace(SAMPLES, begin_ns=np.array([-1, 0, 1])), "memory.begin_ns", "range"),
        (out_of_memory(9), "memory_events.rank_index", "unknown_index"),
        (without_kind("event"), "memory_events.kind", "range"),
    ],
)
def test_what_is_refused(said: AgentEvent | bytes, field: str, reason: str) -> None:
    """Each law of the contract, broken once, is refused with the field that broke it."""
    data = said if isinstance(said, bytes) else encode_agent(said)
    assert refusal(declared(), data) == (field, reason)


def test_rows_that_were_right_for_one_attempt_are_wrong_for_another() -> None:
    """A message names the very rows of the one before it, and another attempt."""
    decoder, none = declared(), np.zeros(0, np.int64)
    decoder.decode(encode_agent(watermarks()))
    again = watermarks(1, seen_rank=none.astype(np.uint32), as_of_ns=none)
    assert refusal(decoder, encode_agent(again)) == ("watermarks.rank", "disagree")


def test_phases_round_trip() -> None:
    """One that has ended, one that goes on inside another; with statuses in the same message, and
    alone. Names need not be text."""
    spans = span(until_ns=NOW), span(path=("epoch 3", "e\udc80val"))
    (status,) = state_of(0).statuses
    for statuses in ((status,), ()):
        sent = Statuses(statuses, (RankPhases(0, spans), RankPhases(1, ())))
        found = declared().decode(encode_agent(sent))
        assert isinstance(found, Statuses)
        assert found.statuses == statuses
        first, second = found.phases
        assert (first.rank, first.spans[0]) == (0, spans[0])
        assert first.spans[1] == span(path=("epoch 3", "e\\udc80val"))
        assert second == RankPhases(1, ())


def test_why_collectives_cannot_be_read() -> None:
    """As text; a status of an earlier agent has none."""
    (status,) = state_of(0).statuses
    for unread in ("", "torch 2.7.0 keeps no record of Gloo"):
        sent = replace(status, unread=unread)
        found = declared().decode(encode_agent(Statuses((sent,))))
        assert isinstance(found, Statuses)
        assert found.statuses == (sent,)


def test_what_may_not_be_read() -> None:
    """Absent says that nothing has changed, empty that all can be read; an earlier service does
    not know the field. Too many texts, or too long ones, are refused."""
    for unreadable in (None, Unreadable(), Unreadable(("/run/frd: of uid 7\udc80", "b"))):
        found = declared().decode(encode_agent(Statuses((), unreadable=unreadable)))
        assert isinstance(found, Statuses)
        assert (found.unreadable is None) == (unreadable is None)
        if unreadable is not None and found.unreadable is not None:
            assert len(found.unreadable.texts) == len(unreadable.texts)
    many = Statuses((), unreadable=Unreadable(("a",) * 17))
    assert refusal(declared(), encode_agent(many)) == ("unreadable.texts", "too_large")


def test_a_large_group_is_small_on_the_wire() -> None:
    """Every agent declares the group of the whole world: 16,384 ranks in a hundred bytes."""
    ranks = tuple(range(16_384))
    declare = Declare(
        attempts=(AttemptDecl(2, AttemptKey("job", 2), 16_384),),
        groups=(GroupDecl(2, 2, GroupInfo("0", "default_pg", ranks)),),
    )
    data = encode_agent(declare)
    assert len(data) < 100
    event = declared().decode(data)
    assert isinstance(event, Declare)
    assert event.groups[0].info.ranks == ranks


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"\xff" * 40, "parse"), (b"", "parse"), (bytes(MAX_MESSAGE_BYTES + 1), "too_large")],
    ids=["no message", "no kind", "too large"],
)
def test_not_a_message(data: bytes, reason: str) -> None:
    """Bytes that are no message, or one of no known kind, are refused whole; a message beyond the
    limit before anything parses it."""
    assert refusal(Decoder(), data) == ("message", reason)


def test_batches_that_name_the_same_series_share_the_array() -> None:
    """Agents name the same series second after second: these are checked once."""
    decoder = declared()
    first, again, other = (
        decoder.decode(encode_agent(samples_of(*names))) for names in ((0, 1), (0, 1), (1, 0))
    )
    assert isinstance(first, MemoryColumns)
    assert isinstance(again, MemoryColumns)
    assert isinstance(other, MemoryColumns)
    assert again.series is first.series
    assert other.series.tolist() == [1, 0]


def test_odd_names_survive() -> None:
    """Group names that are no UTF-8 arrive escaped; names too long arrive cut but distinct."""
    decoder = declared()
    long_a, long_b = "x" * 9000 + "a", "x" * 9000 + "b"
    names = ["\udcff\udc80", 'a"b\\c\nd{}', "日本", long_a, long_b]
    groups = tuple(GroupDecl(2 + i, 0, GroupInfo(n, n)) for i, n in enumerate(names))
    event = decoder.decode(encode_agent(Declare(groups=groups)))
    assert isinstance(event, Declare)
    got = [group.info.name for group in event.groups]
    assert got[:3] == ["\\udcff\\udc80", 'a"b\\c\nd{}', "日本"]
    assert got[3] != got[4]
    assert got[3][:4000] == "x" * 4000


@pytest.mark.parametrize(
    "event",
    [
        Welcome(1, "0.1.0", "instance", MAX_MESSAGE_BYTES),
        Welcome(2, "0.1.0", "instance", MAX_MESSAGE_BYTES, "frd-1:9373"),
        Redirect("frd-1:9373", "the owner of job train"),
        Ack({0: 7, 3: 2**40}),
        Ack(),
        Resync("first sight"),
        Request(5, (0, 2), True, False, 2.5),
        Request(6, (0, 2), False, True, 8.0, children_of=(2,)),
        Request(7, (1,), False, False, 1.0, waits=True),
        Request(8, (1,), False, False, 7.5, ras=True),
        Refusal("length", "entries.seq: 15 bytes"),
        Pace(2_000),
    ],
)
def test_the_service_speaks_and_the_agent_understands(event: object) -> None:
    """Every message of the service arrives as it was sent."""
    assert decode_service(encode_service(event)) == event  # type: ignore[arg-type]
