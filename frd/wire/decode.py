"""Bytes to events; a message that breaks the contract is refused.

`Decoder` knows the declarations of one stream; it knows no other stream, no engine and no time. A
batch is decoded without a Python loop over its rows: columns are views of the message's bytes, and
each check is one vectorized pass. The first error ends the stream, so nothing here tries to
recover.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from frd.errors import WireError
from frd.model import (
    UNKNOWN_SEQ,
    ChannelColumns,
    EntryColumns,
    ExitInfo,
    ExitKind,
    NodeNs,
    NodeRawNs,
    RankStatus,
    WatermarkColumns,
)
from frd.v1 import stream_pb2 as pb
from frd.wire.columns import (
    CHANNEL_COLUMNS,
    ENTRY_COLUMNS,
    SEEN_COLUMNS,
    U4,
    U8,
    WATERMARK_COLUMNS,
    WATERMARK_ROWS,
    check_below,
    check_flags,
    check_floor,
    check_marks,
    check_seqs,
    check_time,
    check_times,
    column,
    read_columns,
)
from frd.wire.dictionary import Dictionary, check_text
from frd.wire.encode import EXIT_KINDS, PARTS, STATES
from frd.wire.memory import MemoryReader
from frd.wire.messages import (
    MAX_MESSAGE_BYTES,
    MAX_SLACK_NS,
    PART_BYTES,
    PROTOCOL,
    Ack,
    AgentEvent,
    Declare,
    Goodbye,
    Hello,
    Refusal,
    Request,
    ResponsePart,
    Resync,
    ServiceEvent,
    Statuses,
    Watermarks,
    Welcome,
)

MAX_DECLARED_BYTES: Final = 64 * 1024 * 1024
"""Limit per stream: the service and the journal keep declarations as long as the stream lasts."""
_BYTES_PER_DECLARE: Final = 256
"""Memory cost of a kept message in addition to its bytes."""
_STATE_OF: Final = {number: state for state, number in STATES.items()}
_EXIT_KIND_OF: Final = {number: kind for kind, number in EXIT_KINDS.items()}
_MAX_SIGNAL: Final = 64
_MAX_EXIT_STATUS: Final = 255
_PART_OF: Final = {number: part for part, number in PARTS.items()}


def _exit(m: pb.Exit) -> ExitInfo:
    if m.signal > _MAX_SIGNAL:
        raise WireError("statuses.exit.signal", "range", f"{m.signal}: send 0 to {_MAX_SIGNAL}")
    if m.status > _MAX_EXIT_STATUS:
        allowed = f"{m.status}: send 0 to {_MAX_EXIT_STATUS}"
        raise WireError("statuses.exit.status", "range", allowed)
    return ExitInfo(
        kind=_EXIT_KIND_OF.get(m.kind, ExitKind.UNKNOWN),
        signal=m.signal,
        status=m.status if m.HasField("status") else None,
        exception=check_text("statuses.exit.exception", m.exception),
        where=check_text("statuses.exit.where", m.where),
        note=check_text("statuses.exit.note", m.note),
    )


def _parse(message: type[Any], data: bytes) -> Any:
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(
            "message", "too_large", f"{len(data)} bytes: send {MAX_MESSAGE_BYTES} or fewer"
        )
    try:
        return message.FromString(data)
    except DecodeError:
        raise WireError(
            "message", "parse", f"{len(data)} bytes are no {message.DESCRIPTOR.full_name}"
        ) from None


class Decoder:
    """The service's side of one agent stream."""

    def __init__(self) -> None:
        self._dictionary = Dictionary()
        self._greeted = False
        self._memory = MemoryReader(self._dictionary)
        self._declared_bytes = 0
        # Message after message has rows of the same ranks and groups: they are checked once.
        self._last_rows_sent: tuple[int, bytes, bytes] | None = None
        self._last_rows: tuple[npt.NDArray[Any], npt.NDArray[Any]]

    def decode(self, data: bytes) -> AgentEvent:
        """The event in one `frd.v1.AgentMessage`.

        Raises:
            WireError: naming the field; the stream is over.
        """
        message = _parse(pb.AgentMessage, data)
        kind = message.WhichOneof("kind")
        if kind is None:
            raise WireError(
                "message", "parse", "no known kind of message: send one of AgentMessage"
            )
        if not self._greeted:
            if kind != "hello":
                raise WireError(kind, "order", "came first: send hello first")
            self._greeted = True
            return _hello(message.hello)
        if kind == "hello":
            raise WireError("hello", "order", "came again: open a new stream instead")
        return _KINDS[kind](self, getattr(message, kind))

    def _declare(self, m: pb.Declare) -> Declare:
        self._declared_bytes += m.ByteSize() + _BYTES_PER_DECLARE
        if self._declared_bytes > MAX_DECLARED_BYTES:
            raise WireError(
                "declare", "limit", f"over {MAX_DECLARED_BYTES} bytes on one stream: open another"
            )
        return self._dictionary.declare(m)

    def _entries(self, m: pb.EntryBatch) -> EntryColumns:
        attempt = self._dictionary.attempt_of_rank("entries.rank_index", m.rank_index)
        arrays = read_columns("entries", m, ENTRY_COLUMNS)
        columns = EntryColumns(rank=m.rank_index, first_revision=m.first_revision, **arrays)
        if m.first_revision + len(columns) >= 2**63:
            raise WireError("entries.first_revision", "range", f"{m.first_revision}: overflows")
        if not len(columns):
            return columns
        check_below("entries.group", columns.group, self._dictionary.group_count)
        self._dictionary.check_groups_of("entries.group", columns.group, attempt)
        check_below("entries.signature", columns.signature, self._dictionary.signature_count)
        check_seqs("entries.seq", columns.seq)
        check_flags("entries.flags", columns.flags)
        check_times("entries.created_ns", columns.created_ns)
        check_times("entries.started_ns", columns.started_ns)
        check_times("entries.completed_ns", columns.completed_ns)
        return columns

    def _watermarks(self, m: pb.WatermarkBatch) -> Watermarks:
        attempt = m.attempt_index
        known = self._dictionary
        known.check_attempt("watermarks.attempt_index", attempt)
        rank, group = self._watermark_rows(m, attempt)
        columns = WatermarkColumns(
            rank=rank,
            group=group,
            **read_columns("watermarks", m, WATERMARK_COLUMNS, len(rank)),
            **read_columns("watermarks", m, SEEN_COLUMNS),
        )
        check_below("watermarks.seen_rank", columns.seen_rank, known.rank_count)
        known.check_ranks_of("watermarks.seen_rank", columns.seen_rank, attempt)
        check_marks("watermarks.enqueued", columns.enqueued)
        for name, marks in (("started", columns.started), ("completed", columns.completed)):
            check_floor(f"watermarks.{name}", marks, UNKNOWN_SEQ)
            if np.count_nonzero(marks > columns.enqueued):
                raise WireError(f"watermarks.{name}", "disagree", "is beyond watermarks.enqueued")
        check_times("watermarks.head_created_ns", columns.head_created_ns)
        check_times("watermarks.as_of_ns", columns.as_of_ns)
        check_time("watermarks.sent_at_ns", m.sent_at_ns)
        if not m.sent_raw_ns:
            return Watermarks(attempt, columns, NodeNs(m.sent_at_ns))
        check_time("watermarks.sent_raw_ns", m.sent_raw_ns)
        if m.sent_slack_ns > MAX_SLACK_NS:
            raise WireError(
                "watermarks.sent_slack_ns", "range", f"{m.sent_slack_ns}: send 0 to {MAX_SLACK_NS}"
            )
        raw_ns = NodeRawNs(m.sent_raw_ns)
        return Watermarks(attempt, columns, NodeNs(m.sent_at_ns), raw_ns, m.sent_slack_ns)

    def _watermark_rows(
        self, m: pb.WatermarkBatch, attempt: int
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Ranks and groups of the rows: the last message's arrays if this one repeats them."""
        sent = (attempt, m.rank, m.group)
        if sent == self._last_rows_sent:
            return self._last_rows
        rank, group = read_columns("watermarks", m, WATERMARK_ROWS).values()
        check_below("watermarks.rank", rank, self._dictionary.rank_count)
        check_below("watermarks.group", group, self._dictionary.group_count)
        self._dictionary.check_ranks_of("watermarks.rank", rank, attempt)
        self._dictionary.check_groups_of("watermarks.group", group, attempt)
        self._last_rows_sent, self._last_rows = sent, (rank, group)
        return rank, group

    def _channels(self, m: pb.ChannelBatch) -> ChannelColumns:
        attempt = self._dictionary.attempt_of_rank("channels.rank_index", m.rank_index)
        arrays = read_columns("channels", m, CHANNEL_COLUMNS)
        columns = ChannelColumns(rank=m.rank_index, **arrays)
        if not len(columns.group):
            return columns
        check_below("channels.group", columns.group, self._dictionary.group_count)
        self._dictionary.check_groups_of("channels.group", columns.group, attempt)
        check_floor("channels.peer", columns.peer, -1)
        self._dictionary.check_world("channels.peer", int(columns.peer.max()), attempt)
        if columns.is_send.max() > 1:
            raise WireError("channels.is_send", "range", "send 0 or 1")
        check_times("channels.head_created_ns", columns.head_created_ns)
        return columns

    def _statuses(self, m: pb.StatusBatch) -> Statuses:
        statuses = []
        for status in m.statuses:
            self._dictionary.attempt_of_rank("statuses.rank_index", status.rank_index)
            if (state := _STATE_OF.get(status.state)) is None:
                raise WireError(
                    "statuses.state", "range", f"{status.state}: send a state of frd.v1.State"
                )
            check_time("statuses.at_ns", status.at_ns)
            if status.gap_entries >= 2**63:
                raise WireError("statuses.gap_entries", "range", f"{status.gap_entries}: overflows")
            detail = check_text("statuses.detail", status.detail)
            statuses.append(
                RankStatus(
                    rank=status.rank_index,
                    state=state,
                    at_ns=NodeNs(status.at_ns),
                    detail=detail,
                    gap_entries=status.gap_entries,
                    exit=_exit(status.exit) if status.HasField("exit") else None,
                )
            )
        return Statuses(tuple(statuses))

    def _response(self, m: pb.ResponsePart) -> ResponsePart:
        self._dictionary.attempt_of_rank("response.rank_index", m.rank_index)
        if (part := _PART_OF.get(m.part)) is None:
            raise WireError("response.part", "range", f"{m.part}: send a part of frd.v1.Part")
        if len(m.data) > PART_BYTES:
            raise WireError(
                "response.data", "too_large", f"{len(m.data)} bytes: send pieces of {PART_BYTES}"
            )
        return ResponsePart(
            request_id=m.request_id,
            rank_index=m.rank_index,
            part=part,
            data=m.data,
            last=m.last,
            source=check_text("response.source", m.source),
            error=check_text("response.error", m.error),
        )

    def _goodbye(self, m: pb.Goodbye) -> Goodbye:
        return Goodbye(check_text("goodbye.reason", m.reason))


_KINDS: Final[dict[str, Callable[[Decoder, Any], AgentEvent]]] = {
    "entries": Decoder._entries,
    "watermarks": Decoder._watermarks,
    "channels": Decoder._channels,
    "statuses": Decoder._statuses,
    "memory": lambda decoder, m: decoder._memory.batch(m),
    "memory_events": lambda decoder, m: decoder._memory.events(m),
    "response": Decoder._response,
    "declare": Decoder._declare,
    "goodbye": Decoder._goodbye,
}


def _hello(m: pb.Hello) -> Hello:
    if m.protocol != PROTOCOL:
        raise WireError(
            "hello.protocol",
            "version",
            f"{m.protocol} where this service speaks {PROTOCOL}: install the same release of frd",
        )
    for name in ("node", "boot_id", "session"):
        if not getattr(m, name):
            raise WireError(f"hello.{name}", "missing", "empty: send it")
        check_text(f"hello.{name}", getattr(m, name))
    check_time("hello.sent_at_ns", m.sent_at_ns)
    return Hello(
        protocol=m.protocol,
        agent_version=check_text("hello.agent_version", m.agent_version),
        node=m.node,
        boot_id=m.boot_id,
        session=m.session,
        sent_at_ns=NodeNs(m.sent_at_ns),
    )


def decode_service(data: bytes) -> ServiceEvent:
    """The event in one `frd.v1.ServiceMessage`, for the agent.

    Raises:
        WireError: naming the field.
    """
    message = _parse(pb.ServiceMessage, data)
    match message.WhichOneof("kind"):
        case "ack":
            rank = column("ack.rank", message.ack.rank, U4)
            revision = column("ack.revision", message.ack.revision, U8, len(rank))
            return Ack(dict(zip(rank.tolist(), revision.tolist(), strict=True)))
        case "welcome":
            m = message.welcome
            return Welcome(m.protocol, m.service_version, m.instance, m.max_message_bytes)
        case "resync":
            return Resync(message.resync.reason)
        case "request":
            q = message.request
            return Request(
                q.request_id,
                tuple(q.rank_indexes),
                q.dump,
                q.stacks,
                q.timeout_s,
                tuple(q.children_of),
            )
        case "refusal":
            return Refusal(message.refusal.reason, message.refusal.message)
        case _:
            raise WireError("message", "parse", "no known kind of message of a service")
