"""The trace writer against Perfetto's own message definitions."""

from __future__ import annotations

from collections import Counter
from io import BytesIO
from typing import Any

import numpy as np
import pytest

from frd.perfetto.writer import BEGIN, INSTANT, MAX_LANES, OPEN, Slice, TraceWriter

proto = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="the perfetto package is missing"
)
LATE = 4_000_000_000_000_000_000
"""A time in the year 2096."""


class Written:
    """A writer, and the packets that it wrote after those that open every trace."""

    def __init__(self) -> None:
        self._out = BytesIO()
        self.writer = TraceWriter(self._out, LATE)

    def all(self) -> list[Any]:
        self.writer.flush()
        return list(proto.Trace.FromString(self._out.getvalue()).packet)

    def packets(self) -> list[Any]:
        return self.all()[2:]


def test_an_event_keeps_its_largest_values() -> None:
    """An event with flow and annotations, of the smallest and of the largest numbers."""
    written = Written()
    track = written.writer.track("rank 0", order=0)
    for number in (0, (1 << 63) - 1):
        written.writer.event(
            BEGIN,
            number,
            track,
            Slice("all_reduce #1", "stuck", number, {"seq": number}, {"stack": "a < b"}),
        )
    _, first, last = written.packets()
    assert (first.timestamp, last.timestamp) == (0, (1 << 63) - 1)
    event = last.track_event
    assert event.type == proto.TrackEvent.TYPE_SLICE_BEGIN
    assert event.track_uuid == track
    assert (list(first.track_event.flow_ids), list(event.flow_ids)) == ([], [(1 << 63) - 1])
    assert [a.int_value for a in event.debug_annotations if a.HasField("int_value")] == [
        (1 << 63) - 1
    ]
    assert last.trusted_packet_sequence_id == first.trusted_packet_sequence_id == 1
    assert last.sequence_flags == proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE


def test_instants_and_ends() -> None:
    """An instant has its own type; an end names its track."""
    written = Written()
    track = written.writer.track("rank 0", order=0)
    written.writer.event(INSTANT, 1, track, Slice("a", "p2p"))
    written.writer.end(2, track)
    _, instant, end = written.packets()
    assert instant.track_event.type == proto.TrackEvent.TYPE_INSTANT
    assert (end.track_event.type, end.track_event.track_uuid, end.timestamp) == (
        proto.TrackEvent.TYPE_SLICE_END,
        track,
        2,
    )


def test_tracks_and_clocks() -> None:
    """Tracks know their parent and place; times count from the epoch."""
    written = Written()
    parent = written.writer.track("rank 3", order=4, ordered=True)
    written.writer.track("tp \u2603 \udc80", parent=parent, order=1)
    opening, clocks, rank, group = written.all()
    assert opening.sequence_flags == proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    assert {clock.clock_id: clock.timestamp for clock in clocks.clock_snapshot.clocks} == {
        proto.BUILTIN_CLOCK_BOOTTIME: LATE,
        proto.BUILTIN_CLOCK_REALTIME: LATE,
    }
    assert rank.track_descriptor.child_ordering == proto.TrackDescriptor.EXPLICIT
    assert rank.track_descriptor.sibling_order_rank == 4
    assert group.track_descriptor.parent_uuid == parent
    assert group.track_descriptor.name == "tp \u2603 ?"


def test_counters() -> None:
    """A counter in bytes knows its unit and scale; its events carry values of any size."""
    written = Written()
    parent = written.writer.track("rank 3", order=4, ordered=True)
    track = written.writer.bytes_counter("device used", order=-1, parent=parent, scale="memory")
    for value in (0, (1 << 63) - 1):
        written.writer.counter(value, value, track)
    _, counter, first, last = written.packets()
    assert counter.track_descriptor.counter.unit == proto.CounterDescriptor.UNIT_SIZE_BYTES
    assert counter.track_descriptor.counter.y_axis_share_key == "memory"
    assert counter.track_descriptor.sibling_order_rank == -1
    assert first.track_event.type == proto.TrackEvent.TYPE_COUNTER
    assert (first.track_event.track_uuid, first.track_event.counter_value) == (track, 0)
    assert (last.timestamp, last.track_event.counter_value) == ((1 << 63) - 1,) * 2


def test_a_string_is_written_once() -> None:
    """The packet that first uses a string defines it; later packets refer to it."""
    written = Written()
    for name in ("a", "b", "a"):
        written.writer.event(BEGIN, 1, 1, Slice(name, "c", texts={"k": "x" * 1_000}))
    first, second, third = written.packets()
    assert [(n.iid, n.name) for n in first.interned_data.event_names] == [(1, "a")]
    assert [(n.iid, n.name) for n in second.interned_data.event_names] == [(2, "b")]
    assert first.interned_data.debug_annotation_string_values[0].str == b"x" * 1_000
    assert not second.interned_data.debug_annotation_string_values
    assert not third.HasField("interned_data")
    assert [p.track_event.name_iid for p in (first, second, third)] == [1, 2, 1]


def test_many_packets_are_one_trace() -> None:
    """Packets that are encoded in several parts are one trace, in order."""
    written = Written()
    for at_ns in range(10_000):
        written.writer.end(at_ns, 1)
    assert [packet.timestamp for packet in written.packets()] == list(range(10_000))


def test_slices_without_a_lane_are_instants() -> None:
    """More slices overlap than there are lanes: one of them is an instant, and only slices with an
    end have one."""
    written = Written()
    count = MAX_LANES + 1
    end = np.full(count, OPEN)
    end[0] = count
    slices = [Slice(f"op {number}", "collective") for number in range(count)]
    written.writer.slices("dp", np.arange(count), end, slices, order=1, parent=0)
    packets = written.packets()
    names = [p.track_descriptor.name for p in packets if p.HasField("track_descriptor")]
    assert names == ["dp"] * MAX_LANES
    kinds = Counter(p.track_event.type for p in packets if p.HasField("track_event"))
    assert kinds == {
        proto.TrackEvent.TYPE_SLICE_BEGIN: MAX_LANES,
        proto.TrackEvent.TYPE_SLICE_END: 1,
        proto.TrackEvent.TYPE_INSTANT: 1,
    }
