"""Spans of traces for files and timelines: each piece is read once, and ties are kept."""

from __future__ import annotations

import io as streams
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frd.dftracer.block import Block
from frd.model import Int64s
from frd.offline.io import discovery, intervals
from frd.offline.io.analysis import load_traces
from frd.offline.io.intervals import IntervalSet
from frd.offline.io.part import LEAST, MOST, SUM, BytesOverTime, Grouped
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


# -- sets of time against sets of single microseconds ----------------------------------------------


Spans = list[tuple[int, int]]
spans = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), max_size=40)
T0 = 1_700_000_000_000_000


def covered(some: Spans) -> set[int]:
    return {at for start, length in some for at in range(start, start + length)}


def made(parts: list[Spans], stretch: int = 1) -> IntervalSet:
    out = IntervalSet()
    for part in parts:
        start = np.array([T0 + s * stretch for s, _ in part], np.int64)
        out.add(start, start + np.array([n * stretch for _, n in part], np.int64))
    return out


def times(of: IntervalSet) -> set[int]:
    joined: Int64s = of.joined()
    starts, ends = joined.tolist()
    assert starts == sorted(starts)
    assert all(a < b for a, b in zip(starts, ends, strict=True))
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    return {at - T0 for a, b in zip(starts, ends, strict=True) for at in range(a, b)}


@pytest.fixture(params=[1, 4, 1 << 14], scope="module")
def pieces(request: pytest.FixtureRequest) -> Iterator[None]:
    """Pieces are joined while they are small: all sizes give the same set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "_SMALL", request.param)
        patch.setattr(intervals, "_PIECE", request.param)
        yield


@pytest.mark.usefixtures("pieces")
@given(st.lists(spans, max_size=6), st.lists(spans, max_size=3))
def test_sets_are_those_of_single_microseconds(ones: list[Spans], others: list[Spans]) -> None:
    """Union, difference, length and windows, whatever the order in which spans come."""
    mine, theirs = made(ones), made(others)
    one = set().union(*map(covered, ones))
    other = set().union(*map(covered, others))
    assert times(mine) == one
    assert mine.length == len(one)
    alone = mine.minus(theirs)
    assert times(alone) == one - other
    assert times(IntervalSet.merged([mine, theirs])) == one | other
    begin = np.arange(T0 - 10, T0 + 470, 37)
    inside = mine.within(begin, begin + 37)
    assert inside.tolist() == [len({a for a in one if b <= a + T0 < b + 37}) for b in begin]


@pytest.mark.usefixtures("pieces")
@given(st.lists(st.lists(spans, max_size=4), max_size=5))
def test_a_union_of_several_sets_is_that_of_all_their_spans(sets: list[list[Spans]]) -> None:
    """Sets of processes of a rank, which interleave, lie in each other or are empty."""
    merged = IntervalSet.merged(made(parts) for parts in sets)
    assert times(merged) == set().union(*(covered(part) for parts in sets for part in parts))


def test_sets_that_interleave_are_merged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes of a rank work at the same time: each interval is sorted a few times, however
    long they work."""
    sorted_rows: list[int] = []
    usual = intervals.union

    def counted(start: Int64s, end: Int64s) -> Int64s:
        sorted_rows.append(len(start))
        return usual(start, end)

    monkeypatch.setattr(intervals, "_SMALL", 64)
    sets = []
    for first in (0, 3):
        begin = T0 + first + 10 * np.arange(20_000)
        sets.append(IntervalSet(np.stack((p, p + 2)) for p in np.array_split(begin, 200)))
    monkeypatch.setattr(intervals, "union", counted)
    merged = IntervalSet.merged(sets)
    assert (len(merged), merged.length) == (40_000, 80_000)
    assert sum(sorted_rows) < 6 * 40_000


@pytest.mark.usefixtures("pieces")
def test_intervals_hours_apart_keep_their_times() -> None:
    """A piece that covers more than 2**32 µs is stored in full width."""
    wide = made([[(0, 5), (1, 9)], [(400, 3)]], stretch=10**10)
    assert wide.length == 13 * 10**10
    assert wide.mapped(lambda at: at * 1_000 + 7).length == 13 * 10**13
    assert wide.joined()[0, 0] == T0


@pytest.mark.usefixtures("pieces")
def test_intervals_beyond_the_end_of_a_clock_are_none() -> None:
    """Impossible times become the last possible one: nothing is left, and nothing is added."""
    some = made([[(0, 5)], [(400, 3)]])
    beyond = some.mapped(lambda at: np.minimum(at, T0))
    assert (len(beyond), beyond.length) == (0, 0)
    assert times(IntervalSet.merged([some, beyond, beyond])) == covered([(0, 5), (400, 3)])


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(-99, 99))), max_size=6))
def test_groups_are_those_of_a_dict(blocks: list[list[tuple[int, int]]]) -> None:
    """Sum, least and most by key."""
    found = Grouped({"sum": SUM, "least": LEAST, "most": MOST})
    wanted: dict[int, list[int]] = {}
    for block in blocks:
        values = np.array([value for _, value in block], np.int64)
        keys = np.array([key for key, _ in block], np.int64)
        found.add(keys, sum=values, least=values, most=values)
        for key, value in block:
            wanted.setdefault(key, []).append(value)
    keys, columns = found.rows()
    assert keys.tolist() == sorted(wanted)
    assert columns["sum"].tolist() == [sum(wanted[key]) for key in sorted(wanted)]
    assert columns["least"].tolist() == [min(wanted[key]) for key in sorted(wanted)]
    assert columns["most"].tolist() == [max(wanted[key]) for key in sorted(wanted)]


def test_bytes_of_a_dense_trace_are_kept_in_bins() -> None:
    """Half a million calls: no byte is lost, and each stays within 1/65,000 of the whole time."""
    at = np.sort(np.random.default_rng(1).integers(0, 1 << 32, 500_000))
    ones = np.ones(len(at), np.int64)
    kept = BytesOverTime()
    for part in np.array_split(np.arange(len(at)), 50):
        kept.add(at[part], ones[part], 3 * ones[part])
    times, read, written = kept.rows()
    assert len(times) <= 1 << 17
    assert (read.sum(), written.sum()) == (len(at), 3 * len(at))
    behind = at - np.repeat(times, read)
    assert 0 <= behind.min() <= behind.max() < (1 << 32) / 65_000
