"""The hand-written encoding against Perfetto's own message definitions."""

from __future__ import annotations

import numpy as np
import pytest

from frd.offline.output import perfetto
from frd.offline.output.perfetto import ANNOTATION_TEXTS, BEGIN, END, NAMES, Interner

proto = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="the perfetto package is missing"
)
LATE = 4_000_000_000_000_000_000
"""A time in the year 2096."""


def test_one_packet_a_row() -> None:
    """Every hole of a template takes the smallest and the largest number that fits it."""
    template = perfetto.event(BEGIN, flows=True, numbers={"seq": 1}, texts={"stack": 2})
    most = (1 << 28) - 1
    packets = template.fill(
        2,
        at_ns=np.array([0, LATE]),
        track=np.array([1, (1 << 32) - 1]),
        name=np.array([1, most]),
        category=np.array([1, 127]),
        flow=np.array([1, (1 << 63) - 1]),
        seq=np.array([0, (1 << 63) - 1]),
        stack=np.array([1, most]),
    )
    first, last = proto.Trace.FromString(packets).packet
    assert (first.timestamp, last.timestamp) == (0, LATE)
    event = last.track_event
    assert event.type == proto.TrackEvent.TYPE_SLICE_BEGIN
    assert event.track_uuid == (1 << 32) - 1
    assert (event.name_iid, list(event.category_iids)) == (most, [127])
    assert list(event.flow_ids) == [(1 << 63) - 1]
    seq, stack = event.debug_annotations
    assert (seq.name_iid, seq.int_value) == (1, (1 << 63) - 1)
    assert (stack.name_iid, stack.string_value_iid) == (2, most)
    assert last.trusted_packet_sequence_id == first.trusted_packet_sequence_id == 1
    assert last.sequence_flags == proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE


def test_no_rows_no_bytes() -> None:
    """A template filled for nothing is nothing."""
    assert perfetto.event(END).fill(0, at_ns=0, track=1) == b""


def test_tracks_and_clocks() -> None:
    """Tracks know their parent and place; times count from the epoch."""
    data = perfetto.preamble(LATE)
    data += perfetto.track(7, "rank 3", order=4, ordered=True)
    data += perfetto.track(8, "tp \u2603", parent=7, order=1)
    opening, clocks, parent, child = proto.Trace.FromString(data).packet
    assert opening.sequence_flags == proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    assert {clock.clock_id: clock.timestamp for clock in clocks.clock_snapshot.clocks} == {
        proto.BUILTIN_CLOCK_BOOTTIME: LATE,
        proto.BUILTIN_CLOCK_REALTIME: LATE,
    }
    assert parent.track_descriptor.child_ordering == proto.TrackDescriptor.EXPLICIT
    assert parent.track_descriptor.sibling_order_rank == 4
    assert (child.track_descriptor.parent_uuid, child.track_descriptor.name) == (7, "tp \u2603")


def test_strings_are_told_once() -> None:
    """A string has one number; only the new ones are told, and long ones keep their length."""
    names, texts = Interner(NAMES), Interner(ANNOTATION_TEXTS)
    assert (names.text("a"), names.text("b"), names.text("a")) == (1, 2, 1)
    assert texts.text("x" * 1_000) == 1
    (packet,) = proto.Trace.FromString(names.flush()).packet
    assert [(n.iid, n.name) for n in packet.interned_data.event_names] == [(1, "a"), (2, "b")]
    (packet,) = proto.Trace.FromString(texts.flush()).packet
    assert packet.interned_data.debug_annotation_string_values[0].str == b"x" * 1_000
    assert names.flush() == b""
    assert names.add("key", "c") == names.number("key") == 3
