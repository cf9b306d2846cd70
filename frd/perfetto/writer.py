"""A writer of Perfetto traces: tracks, slices, counters, arrows and annotations.

A Perfetto trace is a protobuf message of packets. The concatenation of such messages is a trace
again, so the writer encodes and writes some packets at a time. `proto/frd/v1/perfetto.proto` has
the few messages that are used here. The writer knows nothing of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BufferedIOBase
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from frd.model import Int64s
from frd.v1 import perfetto_pb2 as pb

BEGIN: Final = pb.TrackEvent.TYPE_SLICE_BEGIN
INSTANT: Final = pb.TrackEvent.TYPE_INSTANT
_END: Final = pb.TrackEvent.TYPE_SLICE_END
_COUNTER: Final = pb.TrackEvent.TYPE_COUNTER

_SEQUENCE_ID: Final = 1
"""All packets belong to one sequence, so a string that is interned once stays known."""
_PACKETS: Final = 4_096
"""Packets that are encoded together."""
_CATEGORIES: Final = "event_categories"
_NAMES: Final = "event_names"
_KEYS: Final = "debug_annotation_names"
_TEXTS: Final = "debug_annotation_string_values"

MAX_LANES: Final = 32
"""Simultaneous slices of one name and parent; Perfetto does not draw stacks of some hundreds."""
NO_LANE: Final = -1
OPEN: Final = int(np.iinfo(np.int64).max)
"""The end of a slice that has none."""


class Slice(NamedTuple):
    """What a slice or an instant says."""

    name: str
    category: str
    flow: int = 0
    """Events with the same flow other than 0 are connected by arrows in order of time."""
    numbers: Mapping[str, int] = MappingProxyType({})
    """Annotations by key, as are `texts`."""
    texts: Mapping[str, str] = MappingProxyType({})


class TraceWriter:
    """Writes packets to `out`; `flush` writes the last ones.

    All times are ns since the epoch; `begins_at_ns` is the first of them.
    """

    def __init__(self, out: BufferedIOBase, begins_at_ns: int) -> None:
        self._out = out
        self._trace = pb.Trace()
        self._tracks = 0
        self._ids: dict[str, dict[str, int]] = {
            kind: {} for kind in (_CATEGORIES, _NAMES, _KEYS, _TEXTS)
        }
        """The id of each interned string, by kind. Ids count from 1."""
        self._packet().sequence_flags = pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        packet = self._packet()
        packet.timestamp = begins_at_ns
        clocks = packet.clock_snapshot.clocks
        for clock in (pb.BUILTIN_CLOCK_BOOTTIME, pb.BUILTIN_CLOCK_REALTIME):
            clocks.add(clock_id=clock, timestamp=begins_at_ns)

    def track(self, name: str, *, order: int, parent: int = 0, ordered: bool = False) -> int:
        """Add a track and return its id.

        Perfetto shows tracks of one name under one parent as one, whose slices may overlap. `order`
        is the place among the children of `parent`, if that track was `ordered`.
        """
        track = self._track(name, order, parent)
        if ordered:
            track.child_ordering = pb.TrackDescriptor.EXPLICIT
        return track.uuid

    def slices(
        self,
        name: str,
        begin: Int64s,
        end: Int64s,
        slices: Iterable[Slice],
        *,
        order: int,
        parent: int,
    ) -> None:
        """Add slices, of which `begin` is sorted, and tracks of one name for those that overlap.

        A slice without a lane (see `lanes`) is an instant at its begin.
        """
        lane = lanes(begin, end, MAX_LANES)
        count = max(int(lane.max(initial=NO_LANE)) + 1, 1)
        tracks = [self.track(name, order=order, parent=parent) for _ in range(count)]
        columns = (column.tolist() for column in (begin, end, lane))
        for first, last, at, one in zip(*columns, slices, strict=True):
            track = tracks[max(at, 0)]
            self.event(INSTANT if at == NO_LANE else BEGIN, first, track, one)
            if at != NO_LANE and last != OPEN:
                self.end(last, track)

    def bytes_counter(self, name: str, *, order: int, parent: int, scale: str) -> int:
        """Add a track for `counter` values in bytes and return its id.

        Counters of one parent with the same `scale` are drawn on one vertical scale.
        """
        track = self._track(name, order, parent)
        track.counter.unit = pb.CounterDescriptor.UNIT_SIZE_BYTES
        track.counter.y_axis_share_key = scale
        return track.uuid

    def event(self, kind: pb.TrackEvent.Type, at_ns: int, track: int, what: Slice) -> None:
        """The begin of a slice, or an instant."""
        packet = self._event(kind, at_ns, track)
        event = packet.track_event
        event.name_iid = self._interned(packet, _NAMES, what.name)
        event.category_iids.append(self._interned(packet, _CATEGORIES, what.category))
        if what.flow:
            event.flow_ids.append(what.flow)
        for key, number in what.numbers.items():
            annotation = event.debug_annotations.add()
            annotation.name_iid = self._interned(packet, _KEYS, key)
            annotation.int_value = number
        for key, text in what.texts.items():
            annotation = event.debug_annotations.add()
            annotation.name_iid = self._interned(packet, _KEYS, key)
            annotation.string_value_iid = self._interned(packet, _TEXTS, text)

    def end(self, at_ns: int, track: int) -> None:
        """The end of the slice that began last on a track."""
        self._event(_END, at_ns, track)

    def counter(self, at_ns: int, value: int, track: int) -> None:
        """A counter's value from this time to the next one."""
        self._event(_COUNTER, at_ns, track).track_event.counter_value = value

    def flush(self) -> None:
        self._out.write(self._trace.SerializeToString())
        self._trace = pb.Trace()  # `clear` would keep the memory of its packets

    def _track(self, name: str, order: int, parent: int) -> pb.TrackDescriptor:
        self._tracks += 1
        track = self._packet().track_descriptor
        track.uuid = self._tracks
        track.name = name.encode("utf-8", "replace").decode()
        track.sibling_order_rank = order
        if parent:
            track.parent_uuid = parent
        return track

    def _event(self, kind: pb.TrackEvent.Type, at_ns: int, track: int) -> pb.TracePacket:
        packet = self._packet()
        packet.timestamp = at_ns
        packet.sequence_flags = pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        event = packet.track_event
        event.type = kind
        event.track_uuid = track
        return packet

    def _packet(self) -> pb.TracePacket:
        if len(self._trace.packet) >= _PACKETS:
            self.flush()
        packet = self._trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE_ID
        return packet

    def _interned(self, packet: pb.TracePacket, kind: str, text: str) -> int:
        """The id of a string; `packet` defines it when it is new."""
        ids = self._ids[kind]
        if text not in ids:
            ids[text] = len(ids) + 1
            new = getattr(packet.interned_data, kind).add()
            new.iid, new.name = ids[text], text.encode("utf-8", "replace")
        return ids[text]


def lanes(begin: Int64s, end: Int64s, most: int) -> Int64s:
    """A lane for each interval, sorted by `begin`, such that intervals in one lane do not touch:
    Perfetto draws the slices of one track without overlaps.

    `NO_LANE` for those that end before they begin, and for intervals that would need more than
    `most` lanes.
    """
    free_at: list[int] = []
    out = []
    for first, last in zip(begin.tolist(), end.tolist(), strict=True):
        lane = NO_LANE
        if last >= first:
            lane = next((at for at, free in enumerate(free_at) if free < first), len(free_at))
            if lane == most:
                lane = NO_LANE
            elif lane == len(free_at):
                free_at.append(last)
            else:
                free_at[lane] = last
        out.append(lane)
    return np.array(out, np.int64)
