"""Events to bytes, for both sides. Odd text is no error: characters that UTF-8 cannot encode are
escaped.

A name that is too long for the wire is cut and gets a digest of the whole name, so that every
member of a group sends the same name and two long names stay distinct.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar, assert_never

import numpy as np

from frd.model import (
    ChannelColumns,
    EntryColumns,
    ExitKind,
    MemoryColumns,
    MemoryEvent,
    MemoryEventKind,
    RankState,
    RankStatus,
    SeriesKind,
    Signature,
)
from frd.v1 import stream_pb2 as pb
from frd.wire.columns import (
    CHANNEL_COLUMNS,
    ENTRY_COLUMNS,
    MEMORY_COLUMNS,
    SEEN_COLUMNS,
    WATERMARK_COLUMNS,
    WATERMARK_ROWS,
    write_columns,
)
from frd.wire.messages import (
    Ack,
    AgentEvent,
    Declare,
    Goodbye,
    Hello,
    MemoryEvents,
    Part,
    Refusal,
    Request,
    ResponsePart,
    Resync,
    ServiceEvent,
    Statuses,
    Watermarks,
    Welcome,
)
from frd.wire.ranks import pack_ranks

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MAX_TEXT_BYTES: Final = 4096
"""Longest string that the wire carries, in UTF-8."""

_E = TypeVar("_E", bound=Enum)


def _numbers(members: type[_E], numbers: Any, prefix: str) -> dict[_E, int]:
    """The number on the wire by member: those of an enum of `frd.v1` have the same names."""
    return {member: numbers.Value(f"{prefix}_{member.name}") for member in members}


STATES: Final = _numbers(RankState, pb.State, "STATE")
PARTS: Final = _numbers(Part, pb.Part, "PART")
SERIES_KINDS: Final = _numbers(SeriesKind, pb.SeriesKind, "SERIES_KIND")
EVENT_KINDS: Final = _numbers(MemoryEventKind, pb.MemoryEventKind, "MEMORY_EVENT_KIND")
EXIT_KINDS: Final = {
    ExitKind.UNKNOWN: pb.EXIT_KIND_UNSPECIFIED,
    ExitKind.CLEAN: pb.EXIT_KIND_CLEAN,
    ExitKind.EXCEPTION: pb.EXIT_KIND_EXCEPTION,
    ExitKind.INTERRUPT: pb.EXIT_KIND_INTERRUPT,
    ExitKind.STATUS: pb.EXIT_KIND_STATUS,
    ExitKind.SIGNAL: pb.EXIT_KIND_SIGNAL,
}


def text(value: str) -> str:
    """`value` as the wire carries it."""
    raw = value.encode("utf-8", "backslashreplace")
    if len(raw) > MAX_TEXT_BYTES:
        digest = hashlib.blake2b(raw, digest_size=8).hexdigest().encode()
        raw = raw[: MAX_TEXT_BYTES - 32].decode("utf-8", "ignore").encode() + b"#" + digest
    return raw.decode("utf-8")


def encode_agent(event: AgentEvent) -> bytes:
    """One `frd.v1.AgentMessage`."""
    m = pb.AgentMessage()
    match event:
        case EntryColumns():
            m.entries.rank_index = event.rank
            m.entries.first_revision = event.first_revision
            write_columns(m.entries, ENTRY_COLUMNS, event)
        case Watermarks():
            _watermarks(m.watermarks, event)
        case ChannelColumns():
            m.channels.rank_index = event.rank
            write_columns(m.channels, CHANNEL_COLUMNS, event)
        case Hello():
            m = pb.AgentMessage(hello=pb.Hello(**_fields(event)))
        case Declare():
            m = pb.AgentMessage(declare=_declare(event))
        case Statuses():
            statuses = [_status(status) for status in event.statuses]
            m = pb.AgentMessage(statuses=pb.StatusBatch(statuses=statuses))
        case MemoryColumns():
            write_columns(m.memory, MEMORY_COLUMNS, event)
        case MemoryEvents():
            events = [_memory_event(item) for item in event.events]
            m = pb.AgentMessage(memory_events=pb.MemoryEventBatch(events=events))
        case ResponsePart():
            response = pb.ResponsePart(**_fields(event) | {"part": PARTS[event.part]})
            m = pb.AgentMessage(response=response)
        case Goodbye():
            m = pb.AgentMessage(goodbye=pb.Goodbye(**_fields(event)))
        case _:
            assert_never(event)
    return m.SerializeToString()


def _fields(value: DataclassInstance) -> dict[str, Any]:
    """Fields by name, for the message of `frd.v1` whose fields have the same names."""
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return text(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _watermarks(m: pb.WatermarkBatch, event: Watermarks) -> None:
    m.attempt_index = event.attempt_index
    for columns in (WATERMARK_ROWS, WATERMARK_COLUMNS, SEEN_COLUMNS):
        write_columns(m, columns, event.columns)
    m.sent_at_ns = event.sent_at_ns
    if event.sent_raw_ns is not None:
        m.sent_raw_ns = event.sent_raw_ns
        m.sent_slack_ns = event.sent_slack_ns


def _status(status: RankStatus) -> pb.Status:
    m = pb.Status(
        rank_index=status.rank,
        state=STATES[status.state],  # type: ignore[arg-type]  # a number of pb.State
        at_ns=status.at_ns,
        detail=text(status.detail),
        gap_entries=status.gap_entries,
    )
    if status.exit is not None:
        kind = EXIT_KINDS[status.exit.kind]
        m.exit.CopyFrom(pb.Exit(**_fields(status.exit) | {"kind": kind}))
    return m


def _memory_event(event: MemoryEvent) -> pb.MemoryEvent:
    values = _fields(event) | {"kind": EVENT_KINDS[event.kind]}
    return pb.MemoryEvent(rank_index=values.pop("rank"), **values)


def _declare(event: Declare) -> pb.Declare:
    m = pb.Declare()
    for attempt in event.attempts:
        m.attempts.add(
            index=attempt.index,
            world_size=attempt.world_size,
            run=text(attempt.run),
            **_fields(attempt.key),
        )
    for rank in event.ranks:
        m.ranks.add(index=rank.index, attempt_index=rank.attempt_index, **_fields(rank.info))
    for group in event.groups:
        m.groups.add(
            index=group.index,
            attempt_index=group.attempt_index,
            name=text(group.info.name),
            desc=text(group.info.desc),
            ranks=pack_ranks(group.info.ranks),
        )
    for declared in event.signatures:
        m.signatures.add(index=declared.index, **_signature(declared.signature))
    for series in event.series:
        m.series.add(
            index=series.index,
            rank_index=series.info.rank,
            kind=SERIES_KINDS[series.info.kind],
            device=text(series.info.device),
        )
    return m


def _signature(signature: Signature) -> dict[str, Any]:
    return _fields(signature) | {
        "input_sizes": [pb.Shape(dims=dims) for dims in signature.input_sizes],
        "output_sizes": [pb.Shape(dims=dims) for dims in signature.output_sizes],
    }


def encode_service(event: ServiceEvent) -> bytes:
    """One `frd.v1.ServiceMessage`."""
    match event:
        case Ack():
            ranks = np.fromiter(event.revisions.keys(), "<u4")
            revisions = np.fromiter(event.revisions.values(), "<u8")
            ack = pb.Ack(rank=ranks.tobytes(), revision=revisions.tobytes())
            m = pb.ServiceMessage(ack=ack)
        case Welcome():
            m = pb.ServiceMessage(welcome=pb.Welcome(**_fields(event)))
        case Resync():
            m = pb.ServiceMessage(resync=pb.Resync(**_fields(event)))
        case Request():
            m = pb.ServiceMessage(request=pb.Request(**_fields(event)))
        case Refusal():
            m = pb.ServiceMessage(refusal=pb.Refusal(**_fields(event)))
        case _:
            assert_never(event)
    return m.SerializeToString()
