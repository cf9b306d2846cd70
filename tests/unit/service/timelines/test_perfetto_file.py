"""A timeline as a Perfetto trace: its tracks, slices and counters."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from frd.model import Finding, Kind
from frd.service.timelines.form import perfetto_bytes
from frd.service.timelines.timeline import Timeline
from frd.v1 import perfetto_pb2 as pb
from tests.world.timelines import T0, bar, closed, curve, finding, gap, lane, timeline


@dataclass
class Track:
    name: str
    parent: str
    slices: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    """By name: begin and end in seconds; None without an end."""
    texts: dict[str, str] = field(default_factory=dict)
    values: list[tuple[float, int]] = field(default_factory=list)


def tracks(of: Finding, drawn: Timeline) -> list[Track]:
    """As a viewer reads them: an end closes the slice of its track that began last."""
    trace = pb.Trace.FromString(perfetto_bytes(of, drawn))
    names: dict[str, dict[int, str]] = defaultdict(dict)
    found: dict[int, Track] = {}
    events = []
    for packet in trace.packet:
        for kind in ("event_names", "debug_annotation_names", "debug_annotation_string_values"):
            for one in getattr(packet.interned_data, kind):
                text = one.name if isinstance(one.name, str) else one.name.decode()
                names[kind][one.iid] = text
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            parent = found[track.parent_uuid].name if track.parent_uuid else ""
            found[track.uuid] = Track(track.name, parent)
        elif packet.HasField("track_event"):
            events.append(((packet.timestamp - T0 * 10**9) / 1e9, packet.track_event))
    _play(found, names, events)
    return list(found.values())


def _play(found: dict[int, Track], names: dict[str, dict[int, str]], events: list[Any]) -> None:
    stack: dict[int, list[str]] = defaultdict(list)
    for at, event in sorted(events, key=lambda one: one[0]):
        track = found[event.track_uuid]
        if event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            name = names["event_names"][event.name_iid]
            stack[event.track_uuid].append(name)
            track.slices[name] = at, None
            for one in event.debug_annotations:
                if one.string_value_iid:
                    text = names["debug_annotation_string_values"][one.string_value_iid]
                    track.texts[names["debug_annotation_names"][one.name_iid]] = text
        elif event.type == pb.TrackEvent.TYPE_SLICE_END:
            name = stack[event.track_uuid].pop()
            track.slices[name] = track.slices[name][0], at
        else:
            track.values.append((at, event.counter_value))


def test_a_hang() -> None:
    """The finding on top; a track for each rank, below it one for each group, and one for what the
    rank has not joined."""
    of = finding(2, missing=(2,), waiting=(0,), victims=(0, 1), opened=15)
    drawn = timeline(
        20,
        *(lane(2, "suspect"), lane(0, "waiting")),
        *(bar(0, 6, 8, 9, ended_from=8.5), bar(0, 7, 10), gap(2, 7, 10)),
    )
    top, suspected, missing, waiting, group = tracks(of, drawn)
    assert (top.name, top.parent, top.slices) == ("finding", "", {"it hangs": (15, None)})
    assert top.texts == {"evidence": "rank 2: evidence", "victims": "0-1"}
    assert (suspected.name, waiting.name) == ("rank 2 on node2 (first cause)", "rank 0 on node0")
    assert (missing.name, missing.parent) == ("not joined", suspected.name)
    assert missing.slices == {"not joined: all_reduce #7 on dp": (10, None)}
    assert (group.name, group.parent) == ("dp", waiting.name)
    assert group.slices == {"all_reduce #6": (8, 9), "stuck: all_reduce #7": (10, None)}
    assert group.texts["ended"] == (
        "between 2023-11-14T22:13:28.500000Z and 2023-11-14T22:13:29.000000Z"
    )


def test_ops_that_overlap_have_tracks_of_one_name() -> None:
    """Two ops of one group are in flight at the same time: each slice has its own begin and end."""
    drawn = timeline(20, bar(0, 6, 8, 12), bar(0, 7, 9, 14), bar(0, 8, 13, 15))
    _, _, first, second = tracks(finding(), drawn)
    assert first.name == second.name == "dp"
    assert {**first.slices, **second.slices} == {
        "all_reduce #6": (8, 12),
        "all_reduce #7": (9, 14),
        "all_reduce #8": (13, 15),
    }


def test_gaps_that_overlap_keep_their_ends() -> None:
    """A rank misses ops of two groups; the one that it missed first, it joins first."""
    of = closed(finding(2), 30)
    drawn = timeline(
        30, gap(2, 7, 10, 20), gap(2, 3, 12, 25, group="h"), groups={"g": "dp", "h": "tp"}
    )
    found: dict[str, tuple[float, float | None]] = {}
    for track in tracks(of, drawn):
        found |= track.slices
    assert found == {
        "it hangs": (10, 30),
        "not joined: all_reduce #7 on dp": (10, 20),
        "not joined: all_reduce #3 on tp": (12, 25),
    }


def test_memory_is_a_counter() -> None:
    """A value each two seconds, below the track of the rank."""
    first = T0 * 10
    of = finding(1, kind=Kind.OOM)
    drawn = timeline(20, lane(1), curve(1, {first: 5, first + 20: 7}))
    *_, counter = tracks(of, drawn)
    assert (counter.name, counter.parent) == ("host_used", "rank 1 on node1")
    assert counter.values == [(0, 5), (2, 7)]


def test_nothing_to_draw() -> None:
    """The trace of a finding of which nothing is known has the finding; names that are no UTF-8 do
    no harm."""
    of = finding(summary="a\udcff")
    (top,) = tracks(of, Timeline(at=1))
    assert top.slices == {"a?": (10, None)}
