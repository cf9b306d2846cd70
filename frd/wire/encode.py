"""Events to bytes, for both sides. Odd text is no error: characters that UTF-8 cannot encode are
escaped.

A name that is too long for the wire is cut and gets a digest of the whole name, so that every
member of a group sends the same name and two long names stay distinct.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, assert_never

import numpy as np
import numpy.typing as npt

from frd.model import (
    ChannelColumns,
    EntryColumns,
    ExitInfo,
    ExitKind,
    MemoryColumns,
    MemoryEventKind,
    RankState,
    SeriesKind,
)
from frd.v1 import stream_pb2 as pb
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

MAX_TEXT_BYTES: Final = 4096
"""Longest string that the wire carries, in UTF-8."""

STATES: Final = {
    RankState.LIVE: pb.STATE_LIVE,
    RankState.SILENT: pb.STATE_SILENT,
    RankState.EXITED: pb.STATE_EXITED,
    RankState.FINISHED: pb.STATE_FINISHED,
}
EXIT_KINDS: Final = {
    ExitKind.UNKNOWN: pb.EXIT_KIND_UNSPECIFIED,
    ExitKind.CLEAN: pb.EXIT_KIND_CLEAN,
    ExitKind.EXCEPTION: pb.EXIT_KIND_EXCEPTION,
    ExitKind.INTERRUPT: pb.EXIT_KIND_INTERRUPT,
    ExitKind.STATUS: pb.EXIT_KIND_STATUS,
    ExitKind.SIGNAL: pb.EXIT_KIND_SIGNAL,
}
PARTS: Final = {
    Part.DUMP: pb.PART_DUMP,
    Part.IDENTITY: pb.PART_IDENTITY,
    Part.STACK: pb.PART_STACK,
}

SERIES_KINDS: Final = {
    SeriesKind.DEVICE_USED: pb.SERIES_KIND_DEVICE_USED,
    SeriesKind.PROCESS_USED: pb.SERIES_KIND_PROCESS_USED,
    SeriesKind.TORCH_RESERVED: pb.SERIES_KIND_TORCH_RESERVED,
    SeriesKind.TORCH_ALLOCATED: pb.SERIES_KIND_TORCH_ALLOCATED,
    SeriesKind.HOST_USED: pb.SERIES_KIND_HOST_USED,
    SeriesKind.CGROUP_USED: pb.SERIES_KIND_CGROUP_USED,
}
EVENT_KINDS: Final = {
    MemoryEventKind.OOM: pb.MEMORY_EVENT_KIND_OOM,
    MemoryEventKind.OOM_KILL: pb.MEMORY_EVENT_KIND_OOM_KILL,
    MemoryEventKind.DEVICE_LOST: pb.MEMORY_EVENT_KIND_DEVICE_LOST,
}


def text(value: str) -> str:
    """`value` as the wire carries it."""
    raw = value.encode("utf-8", "backslashreplace")
    if len(raw) > MAX_TEXT_BYTES:
        digest = hashlib.blake2b(raw, digest_size=8).hexdigest().encode()
        raw = raw[: MAX_TEXT_BYTES - 32].decode("utf-8", "ignore").encode() + b"#" + digest
    return raw.decode("utf-8")


def _texts(values: tuple[str, ...]) -> list[str]:
    return [text(value) for value in values]


def _bytes(column: npt.NDArray[Any], dtype: str) -> bytes:
    return np.ascontiguousarray(column, dtype=dtype).tobytes()


def encode_agent(event: AgentEvent) -> bytes:
    """One `frd.v1.AgentMessage`."""
    m = pb.AgentMessage()
    match event:
        case EntryColumns():
            _entries(m.entries, event)
        case Watermarks():
            _watermarks(m.watermarks, event)
        case ChannelColumns():
            _channels(m.channels, event)
        case Hello():
            m.hello.protocol = event.protocol
            m.hello.agent_version = text(event.agent_version)
            m.hello.node = text(event.node)
            m.hello.boot_id = text(event.boot_id)
            m.hello.session = text(event.session)
            m.hello.sent_at_ns = event.sent_at_ns
        case Declare():
            m.declare.SetInParent()
            _declare(m.declare, event)
        case Statuses():
            m.statuses.SetInParent()
            for status in event.statuses:
                m.statuses.statuses.add(
                    rank_index=status.rank,
                    state=STATES[status.state],
                    at_ns=status.at_ns,
                    detail=text(status.detail),
                    gap_entries=status.gap_entries,
                    exit=_exit(status.exit),
                )
        case MemoryColumns():
            _memory(m.memory, event)
        case MemoryEvents():
            m.memory_events.SetInParent()
            _memory_events(m.memory_events, event)
        case ResponsePart():
            m.response.request_id = event.request_id
            m.response.rank_index = event.rank_index
            m.response.part = PARTS[event.part]
            m.response.data = event.data
            m.response.last = event.last
            m.response.source = text(event.source)
            m.response.error = text(event.error)
        case Goodbye():
            m.goodbye.SetInParent()
            m.goodbye.reason = text(event.reason)
        case _:
            assert_never(event)
    return m.SerializeToString()


def _exit(how: ExitInfo | None) -> pb.Exit | None:
    if how is None:
        return None
    return pb.Exit(
        kind=EXIT_KINDS[how.kind],
        signal=how.signal,
        status=how.status,
        exception=text(how.exception),
        where=text(how.where),
        note=text(how.note),
    )


def _entries(m: pb.EntryBatch, event: EntryColumns) -> None:
    m.SetInParent()
    m.rank_index = event.rank
    m.first_revision = event.first_revision
    m.group = _bytes(event.group, "<u4")
    m.seq = _bytes(event.seq, "<i8")
    m.signature = _bytes(event.signature, "<u4")
    m.flags = _bytes(event.flags, "u1")
    m.created_ns = _bytes(event.created_ns, "<i8")
    m.started_ns = _bytes(event.started_ns, "<i8")
    m.completed_ns = _bytes(event.completed_ns, "<i8")


def _watermarks(m: pb.WatermarkBatch, event: Watermarks) -> None:
    m.SetInParent()
    columns = event.columns
    m.attempt_index = event.attempt_index
    m.rank = _bytes(columns.rank, "<u4")
    m.group = _bytes(columns.group, "<u4")
    m.enqueued = _bytes(columns.enqueued, "<i8")
    m.started = _bytes(columns.started, "<i8")
    m.completed = _bytes(columns.completed, "<i8")
    m.head_created_ns = _bytes(columns.head_created_ns, "<i8")
    m.seen_rank = _bytes(columns.seen_rank, "<u4")
    m.as_of_ns = _bytes(columns.as_of_ns, "<i8")
    m.sent_at_ns = event.sent_at_ns
    if event.sent_raw_ns is not None:
        m.sent_raw_ns = event.sent_raw_ns
        m.sent_slack_ns = event.sent_slack_ns


def _channels(m: pb.ChannelBatch, event: ChannelColumns) -> None:
    m.SetInParent()
    m.rank_index = event.rank
    m.group = _bytes(event.group, "<u4")
    m.peer = _bytes(event.peer, "<i4")
    m.is_send = _bytes(event.is_send, "u1")
    m.in_flight = _bytes(event.in_flight, "<u4")
    m.head_created_ns = _bytes(event.head_created_ns, "<i8")


def _memory(m: pb.MemoryBatch, event: MemoryColumns) -> None:
    m.SetInParent()
    m.series = _bytes(event.series, "<u4")
    m.capacity = _bytes(event.capacity, "<i8")
    m.begin_ns = _bytes(event.begin_ns, "<i8")
    m.end_ns = _bytes(event.end_ns, "<i8")
    m.values = _bytes(event.values, "<i8")


def _memory_events(m: pb.MemoryEventBatch, event: MemoryEvents) -> None:
    for one in event.events:
        m.events.add(
            rank_index=one.rank,
            kind=EVENT_KINDS[one.kind],
            at_ns=one.at_ns,
            device=text(one.device),
            requested_bytes=one.requested_bytes,
            detail=text(one.detail),
        )


def _declare(m: pb.Declare, event: Declare) -> None:
    for attempt in event.attempts:
        m.attempts.add(
            index=attempt.index,
            job=text(attempt.key.job),
            attempt=attempt.key.attempt,
            world_size=attempt.world_size,
            run=text(attempt.run),
        )
    for rank in event.ranks:
        info = rank.info
        m.ranks.add(
            index=rank.index,
            attempt_index=rank.attempt_index,
            rank=info.rank,
            local_rank=info.local_rank,
            pid=info.pid,
            node=text(info.node),
            boot_id=text(info.boot_id),
            torch_version=text(info.torch_version),
            backends=_texts(info.backends),
            devices=_texts(info.devices),
            world_size=info.world_size,
        )
    for group in event.groups:
        m.groups.add(
            index=group.index,
            attempt_index=group.attempt_index,
            name=text(group.info.name),
            desc=text(group.info.desc),
            ranks=pack_ranks(group.info.ranks),
        )
    for declared in event.signatures:
        signature = declared.signature
        m.signatures.add(
            index=declared.index,
            backend=text(signature.backend),
            op=text(signature.op),
            input_sizes=[pb.Shape(dims=dims) for dims in signature.input_sizes],
            output_sizes=[pb.Shape(dims=dims) for dims in signature.output_sizes],
            input_dtypes=_texts(signature.input_dtypes),
            output_dtypes=_texts(signature.output_dtypes),
        )
    for series in event.series:
        m.series.add(
            index=series.index,
            rank_index=series.info.rank,
            kind=SERIES_KINDS[series.info.kind],
            device=text(series.info.device),
        )


def encode_service(event: ServiceEvent) -> bytes:
    """One `frd.v1.ServiceMessage`."""
    m = pb.ServiceMessage()
    match event:
        case Ack():
            m.ack.SetInParent()
            m.ack.rank = _bytes(np.fromiter(event.revisions.keys(), "<u4"), "<u4")
            m.ack.revision = _bytes(np.fromiter(event.revisions.values(), "<u8"), "<u8")
        case Welcome():
            m.welcome.protocol = event.protocol
            m.welcome.service_version = text(event.service_version)
            m.welcome.instance = text(event.instance)
            m.welcome.max_message_bytes = event.max_message_bytes
        case Resync():
            m.resync.SetInParent()
            m.resync.reason = text(event.reason)
        case Request():
            m.request.request_id = event.request_id
            m.request.rank_indexes.extend(event.rank_indexes)
            m.request.dump = event.dump
            m.request.stacks = event.stacks
            m.request.timeout_s = event.timeout_s
            m.request.children_of.extend(event.children_of)
        case Refusal():
            m.refusal.reason = text(event.reason)
            m.refusal.message = text(event.message)
        case _:
            assert_never(event)
    return m.SerializeToString()
