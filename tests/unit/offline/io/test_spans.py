"""Spans of traces for files and timelines: each piece is read once, and ties are kept."""

from __future__ import annotations

import io as streams
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from frd.dftracer.block import Block
from frd.offline.io import discovery
from frd.offline.io.analysis import load_traces
from frd.offline.io.spans import spans_of
from frd.offline.output import timeline
from frd.offline.output.timeline import write_timeline
from frd.v1 import perfetto_pb2 as pb
from tests.world.io_traces import Call, Writer, write_trace

PIDS = range(100, 130)


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    """One file with the lines of many processes, of which the first ten know their rank."""
    writers = [Writer("v2.2", pid) for pid in PIDS]
    lines = [one.metadata("CM", "rank", str(one.pid - 100)) for one in writers[:10]]
    for number in range(20):
        lines += [one.call(number, Call("read", 10 * number, 5, ret=one.pid)) for one in writers]
    return write_trace(tmp_path / "all.pfw", lines)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The pieces that are read, in order."""
    paths: list[Path] = []
    usual = discovery.PieceReader.blocks

    def blocks(self: discovery.PieceReader) -> Iterator[Block]:
        paths.append(self.piece.file.path)
        return usual(self)

    monkeypatch.setattr(discovery.PieceReader, "blocks", blocks)
    return paths


def drawn(path: Path) -> Counter[str]:
    """The slices of a timeline, by track."""
    out = streams.BytesIO()
    write_timeline(None, out, lambda done, total: None, load_traces([path]))
    trace = pb.Trace.FromString(out.getvalue())
    tracks = [p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")]
    names = {track.uuid: track.name for track in tracks}
    begun = [p for p in trace.packet if p.track_event.type == pb.TrackEvent.TYPE_SLICE_BEGIN]
    return Counter(names[p.track_event.track_uuid] for p in begun)


def test_a_trace_of_many_processes_is_read_once(merged: Path, read: list[Path]) -> None:
    """One file with many ranks, and processes without one: all spans by one reading."""
    io = load_traces([merged])
    read.clear()
    found = Counter(
        (one.rank, one.pid, value) for one in spans_of(io) for value in one.block.nbytes
    )
    assert read == [merged]
    assert found == {(pid - 100 if pid < 110 else None, pid, pid): 20 for pid in PIDS}


def test_a_timeline_reads_a_trace_of_many_processes_once(merged: Path, read: list[Path]) -> None:
    """After the reading for the report; a track for each process."""
    assert drawn(merged) == {f"I/O pid {pid}": 20 for pid in PIDS}
    assert len(read) == 2


@pytest.mark.parametrize("together", [1, 1_000])
def test_a_timeline_has_as_many_spans_as_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """Of equally long calls the first are drawn, and longer ones wherever they are."""
    monkeypatch.setattr(timeline, "MAX_SPANS", 50)
    monkeypatch.setattr(timeline, "_TOGETHER", together)
    durations = {7: [5] * 80, 8: [1] * 199 + [9], 9: [3] * 50, 10: list(range(1, 100))}
    for pid, some in durations.items():
        calls = [Call("read", 200 * n, dur, ret=1) for n, dur in enumerate(some)]
        write_trace(tmp_path / f"rank{pid}.pfw", list(Writer("v2.2", pid).lines(calls)))
    assert drawn(tmp_path) == {f"I/O pid {pid}": 50 for pid in durations}
    assert timeline.not_drawn(load_traces([tmp_path])) == (
        "the 229 shortest spans of ranks 7-8,10: a timeline has at most the 50 longest of each: "
        "--output has all of them"
    )
