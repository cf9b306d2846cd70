"""Values to bytes, for both sides, and bytes to events; what breaks the contract is refused.

`Decoder` knows the declarations of one stream; it knows no other stream, no engine and no time. A
batch is decoded without a Python loop over its rows: columns are views of the message's bytes, and
each check is one vectorized pass. The first error ends the stream, so nothing here tries to
recover.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from frd.errors import WireError
from frd.model import (
    ChannelColumns,
    EntryColumns,
    GroupInfo,
    MemoryColumns,
    NodeNs,
    NodeRawNs,
    PhaseSpan,
    Stage,
    WatermarkColumns,
)
from frd.v1 import stream_pb2 as pb
from frd.wire.columns import (
    ACK_COLUMNS,
    CHANNEL_COLUMNS,
    ENTRY_COLUMNS,
    SAMPLE_TIMES,
    SAMPLE_VALUES,
    SEEN_COLUMNS,
    SERIES_COLUMNS,
    WATERMARK_COLUMNS,
    WATERMARK_ROWS,
    check_below,
    pack_ranks,
    read_columns,
    write_columns,
)
from frd.wire.declarations import Declarations, Declared, MemoryReader
from frd.wire.fields import (
    ENUM_NUMBERS,
    INLINE,
    OF_STREAM,
    check_most,
    check_time,
    parse,
    read,
    text,
)
from frd.wire.messages import (
    MAX_MESSAGE_BYTES,
    MAX_PHASE_NAME,
    MAX_SLACK_NS,
    PART_BYTES,
    PROTOCOL,
    Ack,
    AgentEvent,
    Declare,
    Goodbye,
    Hello,
    MemoryEvents,
    Pace,
    Redirect,
    Refusal,
    Request,
    ResponsePart,
    Resync,
    ServiceEvent,
    Statuses,
    Watermarks,
    Welcome,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

KINDS: Final[dict[type, str]] = {
    Hello: "hello",
    Declare: "declare",
    Statuses: "statuses",
    MemoryEvents: "memory_events",
    ResponsePart: "response",
    Goodbye: "goodbye",
    Welcome: "welcome",
    Resync: "resync",
    Request: "request",
    Refusal: "refusal",
    Redirect: "redirect",
    Pace: "pace",
}
"""Kinds of messages whose fields are those of the value."""


class Decoder:
    """The service's side of one agent stream."""

    def __init__(self) -> None:
        self._known = Declarations()
        self._greeted = False
        self._memory = MemoryReader(self._known)
        # Message after message has rows of the same ranks and groups: they are checked once.
        self._last_rows_sent: tuple[int, bytes, bytes] | None = None
        self._last_rows: tuple[npt.NDArray[Any], npt.NDArray[Any]]

    def decode(self, data: bytes) -> AgentEvent:
        """The event in one `frd.v1.AgentMessage`, whose limits `check_message` checks before.

        Raises:
            WireError: naming the field; the stream is over.
        """
        message = parse("message", pb.AgentMessage, data, MAX_MESSAGE_BYTES)
        kind = message.WhichOneof("kind")
        if kind is None:
            raise WireError(
                "message", "parse", "no known kind of message: send one of AgentMessage"
            )
        if not self._greeted:
            if kind != "hello":
                raise WireError(kind, "order", "came first: send hello first")
            hello = _hello(message.hello)
            self._greeted = True
            return hello
        if kind == "hello":
            raise WireError("hello", "order", "came again: open a new stream instead")
        if kind not in _KINDS:
            raise WireError(kind, "order", "in another message: send it alone")
        return _KINDS[kind](self, getattr(message, kind))

    def _entries(self, m: pb.EntryBatch) -> EntryColumns:
        attempt = self._known.ranks.attempt_of("entries.rank_index", m.rank_index)
        arrays = read_columns(m, ENTRY_COLUMNS)
        columns = EntryColumns(rank=m.rank_index, first_revision=m.first_revision, **arrays)
        check_most("entries.first_revision", m.first_revision, 2**63 - 1 - len(columns))
        self._known.groups.check("entries.group", columns.group, attempt)
        check_below("entries.signature", columns.signature, self._known.signature_count)
        return columns

    def _watermarks(self, m: pb.WatermarkBatch) -> Watermarks:
        attempt = m.attempt_index
        self._known.check_attempt("watermarks.attempt_index", attempt)
        rank, group = self._watermark_rows(m, attempt)
        columns = WatermarkColumns(
            rank=rank,
            group=group,
            **read_columns(m, WATERMARK_COLUMNS, len(rank)),
            **read_columns(m, SEEN_COLUMNS),
        )
        self._known.ranks.check("watermarks.seen_rank", columns.seen_rank, attempt)
        for name, marks in (("started", columns.started), ("completed", columns.completed)):
            if np.count_nonzero(marks > columns.enqueued):
                raise WireError(f"watermarks.{name}", "disagree", "is beyond watermarks.enqueued")
        check_time("watermarks.sent_at_ns", m.sent_at_ns)
        check_time("watermarks.sent_raw_ns", m.sent_raw_ns)
        if not m.sent_raw_ns:
            raise WireError("watermarks.sent_raw_ns", "missing", "0: send the node's raw clock")
        check_most("watermarks.sent_slack_ns", m.sent_slack_ns, MAX_SLACK_NS)
        sent = NodeNs(m.sent_at_ns), NodeRawNs(m.sent_raw_ns), m.sent_slack_ns
        return Watermarks(attempt, columns, *sent)

    def _watermark_rows(
        self, m: pb.WatermarkBatch, attempt: int
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Ranks and groups of the rows: the last message's arrays if this one repeats them."""
        sent = (attempt, m.rank, m.group)
        if sent == self._last_rows_sent:
            return self._last_rows
        rank, group = read_columns(m, WATERMARK_ROWS).values()
        self._known.ranks.check("watermarks.rank", rank, attempt)
        self._known.groups.check("watermarks.group", group, attempt)
        self._last_rows_sent, self._last_rows = sent, (rank, group)
        return rank, group

    def _channels(self, m: pb.ChannelBatch) -> ChannelColumns:
        attempt = self._known.ranks.attempt_of("channels.rank_index", m.rank_index)
        arrays = read_columns(m, CHANNEL_COLUMNS)
        check_below("channels.signature", arrays["signature"], self._known.signature_count)
        check_time("channels.as_of_ns", m.as_of_ns)
        columns = ChannelColumns(rank=m.rank_index, as_of_ns=m.as_of_ns, **arrays)
        self._known.groups.check("channels.group", columns.group, attempt)
        self._known.check_world("channels.peer", int(columns.peer.max(initial=-1)), attempt)
        return columns

    def _response(self, m: pb.ResponsePart) -> ResponsePart:
        self._known.ranks.attempt_of("response.rank_index", m.rank_index)
        if (size := len(m.data)) > PART_BYTES:
            why = f"{size} bytes: send pieces of {PART_BYTES}"
            raise WireError("response.data", "too_large", why)
        return read(ResponsePart, m, "response")


_KINDS: Final[dict[str, Callable[[Decoder, Any], AgentEvent]]] = {
    "entries": Decoder._entries,
    "watermarks": Decoder._watermarks,
    "channels": Decoder._channels,
    "statuses": lambda decoder, m: _statuses(m, decoder._known.ranks),
    "memory": lambda decoder, m: decoder._memory.batch(m),
    "memory_events": lambda decoder, m: decoder._memory.events(m),
    "response": Decoder._response,
    "declare": lambda decoder, m: decoder._known.declare(m),
    "goodbye": lambda _, m: read(Goodbye, m, "goodbye"),
}


def _hello(m: pb.Hello) -> Hello:
    if m.protocol != PROTOCOL:
        raise WireError(
            "hello.protocol",
            "version",
            f"{m.protocol} where this service speaks {PROTOCOL}: install the same release of frd",
        )
    return read(Hello, m, "hello")


# -- what an agent says of its ranks: whether they live, how they ended, their phases -------------


def _statuses(m: pb.StatusBatch, ranks: Declared) -> Statuses:
    """
    Raises:
        WireError: naming the field, as every function here.
    """
    batch = read(Statuses, m, "")
    for status in batch.statuses:
        ranks.attempt_of("statuses.rank_index", status.rank)
        if status.stage is not None:
            _check_stage(status.stage)
    for phases in batch.phases:
        ranks.attempt_of("phases.rank_index", phases.rank)
        for span in phases.spans:
            _check_span(span)
    return batch


def _check_stage(stage: Stage) -> None:
    if not 0 < stage.since_ns <= stage.as_of_ns:
        why = "since_ns or as_of_ns is 0, or as_of_ns is earlier: send both, in order"
        raise WireError("statuses.stage", "disagree", why)


def _check_span(span: PhaseSpan) -> None:
    if (longest := max(map(len, span.path))) > MAX_PHASE_NAME:
        why = f"{longest} characters: send names of {MAX_PHASE_NAME} or fewer"
        raise WireError("phases.spans.path", "too_large", why)
    if not span.since_ns or 0 < span.until_ns < span.since_ns:
        why = "since_ns is 0, or until_ns is earlier: send both, in order"
        raise WireError("phases.spans", "disagree", why)


_SERVICE_KINDS: Final[dict[str, Callable[..., ServiceEvent]]] = {
    KINDS[of]: of for of in (Welcome, Resync, Request, Refusal, Redirect, Pace)
}


def decode_service(data: bytes) -> ServiceEvent:
    """The event in one `frd.v1.ServiceMessage`, for the agent.

    Raises:
        WireError: naming the field.
    """
    message = parse("message", pb.ServiceMessage, data, MAX_MESSAGE_BYTES)
    kind = message.WhichOneof("kind")
    if kind is None:
        raise WireError("message", "parse", "no known kind of message of a service")
    m = getattr(message, kind)
    if kind == "ack":
        rank, revision = read_columns(m, ACK_COLUMNS).values()
        return Ack(dict(zip(rank.tolist(), revision.tolist(), strict=True)))
    return read(_SERVICE_KINDS[kind], m, kind)


def encode_agent(event: AgentEvent) -> bytes:
    """One `frd.v1.AgentMessage`."""
    m = pb.AgentMessage()
    match event:
        case EntryColumns():
            m.entries.rank_index = event.rank
            m.entries.first_revision = event.first_revision
            write_columns(m.entries, ENTRY_COLUMNS, event)
        case Watermarks():
            m.watermarks.attempt_index = event.attempt_index
            for columns in (WATERMARK_ROWS, WATERMARK_COLUMNS, SEEN_COLUMNS):
                write_columns(m.watermarks, columns, event.columns)
            m.watermarks.sent_at_ns = event.sent_at_ns
            m.watermarks.sent_raw_ns = event.sent_raw_ns
            m.watermarks.sent_slack_ns = event.sent_slack_ns
        case ChannelColumns():
            m.channels.rank_index = event.rank
            m.channels.as_of_ns = event.as_of_ns
            write_columns(m.channels, CHANNEL_COLUMNS, event)
        case MemoryColumns():
            for columns in (SERIES_COLUMNS, SAMPLE_TIMES, SAMPLE_VALUES):
                write_columns(m.memory, columns, event)
        case _:
            m = pb.AgentMessage(**{KINDS[type(event)]: _fields(event)})
    return m.SerializeToString()


def encode_service(event: ServiceEvent) -> bytes:
    """One `frd.v1.ServiceMessage`."""
    if isinstance(event, Ack):
        ranks = np.fromiter(event.revisions.keys(), "<u4")
        revisions = np.fromiter(event.revisions.values(), "<u8")
        ack = pb.Ack(rank=ranks.tobytes(), revision=revisions.tobytes())
        return pb.ServiceMessage(ack=ack).SerializeToString()
    return pb.ServiceMessage(**{KINDS[type(event)]: _fields(event)}).SerializeToString()


def _fields(value: DataclassInstance) -> dict[str, Any]:
    """The fields of the message of `frd.v1` that has fields of the same names."""
    if isinstance(value, GroupInfo):
        ranks = pack_ranks(value.ranks)
        return {"name": text(value.name), "desc": text(value.desc), "ranks": ranks}
    found: dict[str, Any] = {}
    for name in _names(type(value)):
        item = getattr(value, name)
        if name in INLINE:
            found |= _fields(item)
        else:
            found[name] = _plain(item)
    if isinstance(value, OF_STREAM):
        found["rank_index"] = found.pop("rank")
    return found


@cache
def _names(kind: type[DataclassInstance]) -> list[str]:
    return [field.name for field in fields(kind)]


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return ENUM_NUMBERS[type(value)][value]
    if isinstance(value, str):
        return text(value)
    if isinstance(value, tuple):
        return [{"dims": item} if isinstance(item, tuple) else _plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    return value
