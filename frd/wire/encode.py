"""Values to bytes, for both sides."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from frd.model import (
    ChannelColumns,
    EntryColumns,
    GroupInfo,
    MemoryColumns,
)
from frd.v1 import stream_pb2 as pb
from frd.wire.columns import (
    CHANNEL_COLUMNS,
    ENTRY_COLUMNS,
    SAMPLE_TIMES,
    SAMPLE_VALUES,
    SEEN_COLUMNS,
    SERIES_COLUMNS,
    WATERMARK_COLUMNS,
    WATERMARK_ROWS,
    pack_ranks,
    write_columns,
)
from frd.wire.fields import ENUM_NUMBERS, INLINE, OF_STREAM, text
from frd.wire.messages import (
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
