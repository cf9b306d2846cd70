"""Bytes to events, refusing everything that the contract does not allow.

`Decoder` knows one stream: what it has declared, and nothing of other streams, of the engine, or
of time. A batch is decoded without touching its rows in Python: columns are views of the message's
bytes, and each law costs one vectorized pass. The first error ends the stream, so nothing here
tries to recover.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from frd.errors import WireError
from frd.model import ChannelColumns, EntryColumns, NodeNs, RankStatus, WatermarkColumns
from frd.v1 import stream_pb2 as pb
from frd.wire.dictionary import Dictionary, check_text
from frd.wire.encode import PARTS, STATES
from frd.wire.messages import (
    MAX_MESSAGE_BYTES,
    PART_BYTES,
    PROTOCOL,
    Ack,
    AgentEvent,
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

YEAR_2200_NS: Final = 7_258_118_400_000_000_000
_ALL_FLAGS: Final = 15
_STATE_OF: Final = {number: state for state, number in STATES.items()}
_PART_OF: Final = {number: part for part, number in PARTS.items()}
_U1: Final = np.dtype("u1")
_U4: Final = np.dtype("<u4")
_I4: Final = np.dtype("<i4")
_U8: Final = np.dtype("<u8")
_I8: Final = np.dtype("<i8")


def _column(field: str, data: bytes, dtype: np.dtype[Any], rows: int = -1) -> npt.NDArray[Any]:
    """A read-only view of `data`; `rows` is the length that it must have, -1 for any."""
    count, rest = divmod(len(data), dtype.itemsize)
    if rest:
        raise WireError(
            field, "length", f"{len(data)} bytes: send whole items of {dtype.itemsize} bytes"
        )
    if rows not in (-1, count):
        raise WireError(
            field,
            "length",
            f"{count} rows where the batch has {rows}: send columns of equal length",
        )
    return np.frombuffer(data, dtype, count) if count else np.empty(0, dtype)


def _check_below(field: str, column: npt.NDArray[Any], limit: int) -> None:
    """All items of an unsigned column are known dictionary indexes."""
    if len(column) and (highest := int(column.max())) >= limit:
        raise WireError(
            field, "unknown_index", f"index {highest} where {limit} are declared: declare it first"
        )


def _check_not_negative(field: str, column: npt.NDArray[Any], floor: int = 0) -> None:
    if len(column) and (lowest := int(column.min())) < floor:
        raise WireError(field, "range", f"{lowest}: send {floor} or more")


def _check_time(field: str, at_ns: int) -> None:
    if not 0 <= at_ns < YEAR_2200_NS:
        raise WireError(field, "range", f"{at_ns}: send nanoseconds from 1970 to 2200")


def _check_times(field: str, column: npt.NDArray[Any]) -> None:
    """As unsigned numbers negative times lie above the limit, so one pass checks both ends."""
    if len(column) and int(column.view(_U8).max()) >= YEAR_2200_NS:
        worst = column[column.view(_U8) >= YEAR_2200_NS][0]
        raise WireError(field, "range", f"{worst}: send nanoseconds from 1970 to 2200")


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
        self._kinds: dict[str, Callable[[Any], AgentEvent]] = {
            "entries": self._entries,
            "watermarks": self._watermarks,
            "channels": self._channels,
            "statuses": self._statuses,
            "response": self._response,
            "declare": self._dictionary.declare,
            "goodbye": self._goodbye,
        }

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
        return self._kinds[kind](getattr(message, kind))

    def _entries(self, m: pb.EntryBatch) -> EntryColumns:
        attempt = self._dictionary.attempt_of_rank("entries.rank_index", m.rank_index)
        seq = _column("entries.seq", m.seq, _I8)
        rows = len(seq)
        if m.first_revision + rows >= 2**63:
            raise WireError("entries.first_revision", "range", f"{m.first_revision}: overflows")
        columns = EntryColumns(
            rank=m.rank_index,
            first_revision=m.first_revision,
            group=_column("entries.group", m.group, _U4, rows),
            seq=seq,
            signature=_column("entries.signature", m.signature, _U4, rows),
            flags=_column("entries.flags", m.flags, _U1, rows),
            created_ns=_column("entries.created_ns", m.created_ns, _I8, rows),
            started_ns=_column("entries.started_ns", m.started_ns, _I8, rows),
            completed_ns=_column("entries.completed_ns", m.completed_ns, _I8, rows),
        )
        if not rows:
            return columns
        _check_below("entries.group", columns.group, self._dictionary.group_count)
        self._dictionary.check_groups_of("entries.group", columns.group, attempt)
        _check_below("entries.signature", columns.signature, self._dictionary.signature_count)
        _check_not_negative("entries.seq", seq)
        if columns.flags.max() > _ALL_FLAGS or not columns.flags.min():
            raise WireError(
                "entries.flags", "range", f"{set(columns.flags.tolist())}: send 1 to {_ALL_FLAGS}"
            )
        _check_times("entries.created_ns", columns.created_ns)
        _check_times("entries.started_ns", columns.started_ns)
        _check_times("entries.completed_ns", columns.completed_ns)
        return columns

    def _watermarks(self, m: pb.WatermarkBatch) -> Watermarks:
        attempt = m.attempt_index
        known = self._dictionary
        known.check_attempt("watermarks.attempt_index", attempt)
        rank = _column("watermarks.rank", m.rank, _U4)
        rows = len(rank)
        seen = _column("watermarks.seen_rank", m.seen_rank, _U4)
        columns = WatermarkColumns(
            rank=rank,
            group=_column("watermarks.group", m.group, _U4, rows),
            enqueued=_column("watermarks.enqueued", m.enqueued, _I8, rows),
            started=_column("watermarks.started", m.started, _I8, rows),
            completed=_column("watermarks.completed", m.completed, _I8, rows),
            head_created_ns=_column("watermarks.head_created_ns", m.head_created_ns, _I8, rows),
            seen_rank=seen,
            as_of_ns=_column("watermarks.as_of_ns", m.as_of_ns, _I8, len(seen)),
        )
        _check_below("watermarks.rank", rank, known.rank_count)
        _check_below("watermarks.group", columns.group, known.group_count)
        _check_below("watermarks.seen_rank", seen, known.rank_count)
        known.check_ranks_of("watermarks.rank", rank, attempt)
        known.check_groups_of("watermarks.group", columns.group, attempt)
        known.check_ranks_of("watermarks.seen_rank", seen, attempt)
        for name, column in (("started", columns.started), ("completed", columns.completed)):
            _check_not_negative(f"watermarks.{name}", column, -1)
            if (column > columns.enqueued).any():
                raise WireError(f"watermarks.{name}", "disagree", "is beyond watermarks.enqueued")
        _check_times("watermarks.head_created_ns", columns.head_created_ns)
        _check_times("watermarks.as_of_ns", columns.as_of_ns)
        _check_time("watermarks.sent_at_ns", m.sent_at_ns)
        return Watermarks(attempt, columns, NodeNs(m.sent_at_ns))

    def _channels(self, m: pb.ChannelBatch) -> ChannelColumns:
        attempt = self._dictionary.attempt_of_rank("channels.rank_index", m.rank_index)
        group = _column("channels.group", m.group, _U4)
        rows = len(group)
        columns = ChannelColumns(
            rank=m.rank_index,
            group=group,
            peer=_column("channels.peer", m.peer, _I4, rows),
            is_send=_column("channels.is_send", m.is_send, _U1, rows),
            in_flight=_column("channels.in_flight", m.in_flight, _U4, rows),
            head_created_ns=_column("channels.head_created_ns", m.head_created_ns, _I8, rows),
        )
        if not rows:
            return columns
        _check_below("channels.group", group, self._dictionary.group_count)
        self._dictionary.check_groups_of("channels.group", group, attempt)
        _check_not_negative("channels.peer", columns.peer, -1)
        self._dictionary.check_world("channels.peer", int(columns.peer.max()), attempt)
        if columns.is_send.max() > 1:
            raise WireError("channels.is_send", "range", "send 0 or 1")
        _check_times("channels.head_created_ns", columns.head_created_ns)
        return columns

    def _statuses(self, m: pb.StatusBatch) -> Statuses:
        statuses = []
        for status in m.statuses:
            self._dictionary.attempt_of_rank("statuses.rank_index", status.rank_index)
            if (state := _STATE_OF.get(status.state)) is None:
                raise WireError(
                    "statuses.state", "range", f"{status.state}: send a state of frd.v1.State"
                )
            _check_time("statuses.at_ns", status.at_ns)
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
    _check_time("hello.sent_at_ns", m.sent_at_ns)
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
            rank = _column("ack.rank", message.ack.rank, _U4)
            revision = _column("ack.revision", message.ack.revision, _U8, len(rank))
            return Ack(dict(zip(rank.tolist(), revision.tolist(), strict=True)))
        case "welcome":
            m = message.welcome
            return Welcome(m.protocol, m.service_version, m.instance, m.max_message_bytes)
        case "resync":
            return Resync(message.resync.reason)
        case "request":
            q = message.request
            return Request(q.request_id, tuple(q.rank_indexes), q.dump, q.stacks, q.timeout_s)
        case "refusal":
            return Refusal(message.refusal.reason, message.refusal.message)
        case _:
            raise WireError("message", "parse", "no known kind of message of a service")
