"""`frd.offline.output.memory.export`: the merged timeline of samples in every format."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import frd
from frd.errors import ConfigError, StoreError
from frd.forms import utc_text
from frd.model import SeriesKind
from frd.offline.analysis.analyze import Analysis, analyze
from frd.offline.memory.analysis import MemoryAnalysis
from frd.offline.output.export import export
from frd.offline.output.memory.export import check_memory_export, export_memory, not_in
from frd.offline.output.memory.panels import MAX_LINES, panels_of
from frd.offline.output.memory.plot import check_plot, write_plot
from frd.offline.output.memory.samples import changes, extremes
from frd.offline.output.memory.strips import strips_of
from frd.offline.phases.marks import PhaseMark
from frd.offline.phases.table import build_phases
from tests.unit.offline.written_tables import rows_in
from tests.world.memory import EPOCH, GIB, S
from tests.world.recorded_memory import a_rise
from tests.world.telemetry_files import event, write
from tests.world.traces import Folder

MS = 1_000_000


def dumps(offsets_ns: dict[int, int], uncertainties_ns: dict[int, int | None]) -> Analysis:
    """A folder of dumps with these clocks."""
    return replace(
        analyze(Folder().group("0", range(2)).trace()),
        clock_offsets_ns=offsets_ns,
        clock_uncertainties_ns=uncertainties_ns,
        clock_source="two nodes",
    )


DUMPS = dumps({0: 0, 1: -150 * MS}, {0: 0, 1: 2 * MS})


def two_hosts(folder: Path, **changes: Any) -> MemoryAnalysis:
    """Rank 0 on n0 and rank 1 on n1, whose clock is 150 ms ahead; rank 2 is missing."""
    world = {"world_size": 3} | changes
    first = [
        event(at_s, device_used_bytes=(20 + number) * GIB, **world)
        for number, at_s in enumerate((0.0, 0.1, 0.2))
    ]
    second = [
        event(0.16, rank=1, host="n1", pid=12, device_used_bytes=None, **world),
        event(0.26, rank=1, host="n1", pid=12, allocator_reserved_bytes=18 * GIB, **world),
    ]
    return frd.load_memory([write(folder / "a.jsonl", first), write(folder / "b.jsonl", second)])


def exported(analysis: MemoryAnalysis, path: Path, of: Analysis | None = None) -> Path:
    export_memory(analysis, path, of, lambda done, total: None)
    return path


def samples_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix != ".jsonl":
        return rows_in(path, "samples")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if row.pop("type") == "sample"]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet", "sqlite"])
def test_samples_of_all_ranks_in_order(tmp_path: Path, ending: str) -> None:
    """Two hosts, one 150 ms ahead, with offsets of a dump: one order, the same in every format."""
    path = exported(two_hosts(tmp_path), tmp_path / f"out.{ending}", DUMPS)
    rows = samples_of(path)
    assert [(row["rank"], row["time_ns"] - EPOCH) for row in rows] == [
        (0, 0),
        (1, 10 * MS),
        (0, 100 * MS),
        (1, 110 * MS),
        (0, 200 * MS),
    ]
    assert [row["uncertainty_ns"] for row in rows] == [0, 2 * MS, 0, 2 * MS, 0]
    assert [row["change_bytes"] for row in rows] == [None, None, GIB, None, GIB]
    assert [row["device_used_bytes"] for row in rows] == [
        20 * GIB,
        None,
        21 * GIB,
        21 * GIB,
        22 * GIB,
    ]
    about = ("job", "host", "pid", "device", "reserved_bytes", "allocated_bytes", "host_used_bytes")
    assert tuple(rows[3][name] for name in about) == (
        *("llama", "n1", 12, 0),
        *(18 * GIB, 19 * GIB, None),
    )
    if ending in ("jsonl", "csv"):
        assert [row["time"] for row in rows] == [utc_text(row["time_ns"]) for row in rows]


def test_host_memory_has_a_column_for_it(tmp_path: Path) -> None:
    """Samples of a process without a device: host memory, and neither device nor allocator."""
    events = [
        event(at, device_id=-1, collector="stormlog.cpu_tracker", allocator_reserved_bytes=None)
        for at in (0.0, 0.1)
    ]
    analysis = frd.load_memory([write(tmp_path / "a.jsonl", events)])
    for row in samples_of(exported(analysis, tmp_path / "out.jsonl")):
        assert row["host_used_bytes"] == 21 * GIB
        assert row["device"] is row["device_used_bytes"] is row["allocated_bytes"] is None


def test_without_dumps_hosts_are_assumed(tmp_path: Path) -> None:
    """No offsets: times stay, and each rank says that its clock is assumed to be right."""
    path = exported(two_hosts(tmp_path), tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    ranks = [line for line in lines if line["type"] == "rank"]
    assert [(r["offset_ns"], r["uncertainty_ns"], r["clock"]) for r in ranks] == [
        (0, S, "assumed: --clock-uncertainty")
    ] * 2
    assert [line for line in lines if line["type"] == "missing_rank"] == [
        {"type": "missing_rank", "job": "llama", "rank": 2}
    ]
    assert lines[0]["type"] == "analysis"


def test_one_host_has_one_clock(tmp_path: Path) -> None:
    """All ranks on one host: nothing to align, and no uncertainty."""
    analysis = frd.load_memory([write(tmp_path / "a.jsonl", [event(0.0), event(0.1)])])
    path = exported(analysis, tmp_path / "out.sqlite")
    (rank,) = rows_in(path, "ranks")
    assert (rank["offset_ns"], rank["uncertainty_ns"]) == (0, 0)
    assert rank["clock"] == "one host, one clock"


def test_a_rank_without_offset_has_that_of_its_host(tmp_path: Path) -> None:
    """The dump of rank 1 is missing, that of rank 0 on the same host is there."""
    analysis = _one_host(tmp_path)
    path = exported(analysis, tmp_path / "out.csv", dumps({0: 5 * MS}, {0: 1}))
    assert {(row["rank"], row["time_ns"] - EPOCH) for row in samples_of(path)} == {
        (0, 5 * MS),
        (1, 5 * MS),
    }


def _one_host(folder: Path) -> MemoryAnalysis:
    return frd.load_memory([write(folder / "a.jsonl", [event(0.0), event(0.0, rank=1, pid=12)])])


def test_rises_and_missing_ranks_are_tables(tmp_path: Path) -> None:
    """SQLite has a table for all that was found; times of rises are aligned like the samples."""
    without = replace(two_hosts(tmp_path), rises=())
    analysis = a_rise(without, ranks=(1,), at_s=0.2)
    path = exported(analysis, tmp_path / "out.sqlite", DUMPS)
    for table in ("samples", "ranks", "findings", "warnings"):
        rows_in(path, table)
    (rise,) = rows_in(path, "rises")
    assert json.loads(rise["ranks"]) == [1]
    assert json.loads(rise["suspects"])[0]["rank"] == 1
    assert rise["onset_earliest_ns"] - EPOCH == 50 * MS
    assert rise["text"] == analysis.rises[0].text
    assert rows_in(path, "missing_ranks") == [{"job": "llama", "rank": 2}]
    assert {row["key"]: row["value"] for row in rows_in(path, "analysis")} == {
        "summary": analysis.summary,
        "clock_source": analysis.clock_source,
    }


def test_findings_of_memory_have_the_columns_of_dumps(tmp_path: Path) -> None:
    """One query reads the findings of both files."""
    export(DUMPS, tmp_path / "dumps.sqlite")
    files = tmp_path / "dumps.sqlite", exported(two_hosts(tmp_path), tmp_path / "memory.sqlite")
    of_dumps, of_memory = (
        [row["name"] for row in rows_in(file, "pragma_table_info('findings')")] for file in files
    )
    assert of_dumps == of_memory
    assert {"job", "suspects", "victims"} <= {*of_dumps}


def test_parquet_has_the_rest_in_its_metadata(tmp_path: Path) -> None:
    """The object of --json, and the clock of each rank, under the key frd."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    path = exported(two_hosts(tmp_path), tmp_path / "out.parquet", DUMPS)
    about = json.loads(parquet.read_schema(path).metadata[b"frd"])
    assert about["missing_ranks"] == [2]
    assert about["clocks"]["ranks"]["1"]["offset_ns"] == -150 * MS
    assert about["clocks"]["ranks"]["1"]["source"] == "from the dumps: two nodes"


def test_samples_of_several_jobs(tmp_path: Path) -> None:
    """Two jobs in one file, both with a rank 0: offsets of a dump fit neither for sure."""
    events = [event(0.2, job_id="b"), event(0.1, job_id="a", rank=0)]
    analysis = frd.load_memory([write(tmp_path / "a.jsonl", events)])
    path = exported(analysis, tmp_path / "out.csv", dumps({0: 5 * MS}, {0: 1}))
    assert [(r["job"], r["time_ns"] - EPOCH) for r in samples_of(path)] == [
        ("a", 100 * MS),
        ("b", 200 * MS),
    ]


@pytest.mark.parametrize("name", ["out.json", "out", "out.xlsx"])
def test_an_ending_without_a_format(tmp_path: Path, name: str) -> None:
    """The error names the file and lists the endings."""
    with pytest.raises(ConfigError, match=rf"{name}: .*\.jsonl, \.csv, \.parquet or \.sqlite"):
        check_memory_export(tmp_path / name)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A file that exists stays."""
    (tmp_path / "out.csv").write_text("mine")
    with pytest.raises(StoreError, match="exists"):
        exported(_one_host(tmp_path), tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "mine"


def test_csv_says_what_it_leaves_out(tmp_path: Path) -> None:
    """Only CSV has no place for ranks and rises."""
    assert "missing ranks" in not_in(Path("a.csv"))
    assert not not_in(Path("a.sqlite"))


# -- plot ------------------------------------------------------------------------------------------
# `frd.offline.output.memory.plot`: what a picture shows, and that it is the same every time.


EVAL = PhaseMark("llama", 1, "n0", 1, "", EPOCH, True, ("epoch 3", "eval"), "7", 1, "MainThread", 0)


def recorded(folder: Path, ranks: int, samples: int = 10, **changes: Any) -> MemoryAnalysis:
    """Rank r uses r GiB; rank 1 gains 2 GiB in the second half. Tests add the rises."""
    events = [
        event(
            number / 10,
            rank=rank,
            pid=rank,
            device_used_bytes=(rank + 2 * (rank == 1 and number >= samples // 2)) * GIB,
            **({"world_size": ranks} | changes),
        )
        for rank in range(ranks)
        for number in range(samples)
    ]
    return replace(frd.load_memory([write(folder / "memory.jsonl", events)]), rises=())


def drawn(analysis: MemoryAnalysis, path: Path, *marks: PhaseMark) -> bytes:
    write_plot(replace(analysis, phases=build_phases(marks, {})), path)
    return path.read_bytes()


def test_a_line_for_each_rank(tmp_path: Path) -> None:
    """Up to 16 ranks and no rise: a line each, with the times and values of the samples."""
    (panel,) = panels_of(recorded(tmp_path, 3))
    assert [line.label for line in panel.others] == ["rank 0", "rank 1", "rank 2"]
    assert (panel.suspects, panel.band, panel.capacity) == ([], None, 80 * GIB)
    line = panel.others[1]
    known = ~np.isnan(line.bytes)
    assert line.at_s[known].tolist() == pytest.approx([number / 10 for number in range(10)])
    assert line.bytes[known].tolist() == [GIB] * 5 + [3 * GIB] * 5


def test_a_suspect_against_the_band_of_the_others(tmp_path: Path) -> None:
    """More ranks than lines: the rank that rose first, and the others from lowest to highest."""
    ranks = MAX_LINES + 1
    analysis = a_rise(recorded(tmp_path, ranks), ranks=(1,), at_s=0.4)
    (panel,) = panels_of(analysis)
    assert [line.label for line in panel.suspects] == ["rank 1"]
    assert panel.others == []
    band = panel.band
    assert band is not None
    assert band.label == f"{ranks - 1} other ranks"
    assert (band.low == 0).all()
    assert (band.high == (ranks - 1) * GIB).all()
    assert (band.at_s[0], band.at_s[-1]) == pytest.approx((0.0, 0.9))
    assert panel.rises[0].begin_s == pytest.approx(0.4)
    assert panel.rises[0].rank == 1


def test_a_panel_for_each_kind_of_memory_that_rose(tmp_path: Path) -> None:
    """A rise of the device and one of what torch reserves: two panels, each with its rise."""
    analysis = a_rise(recorded(tmp_path, 2), ranks=(1,), at_s=0.4)
    analysis = a_rise(analysis, ranks=(0,), at_s=0.5, series=SeriesKind.TORCH_RESERVED)
    device, reserved = panels_of(analysis)
    assert [mark.rank for mark in device.rises] == [1]
    assert [mark.rank for mark in reserved.rises] == [0]
    assert np.nanmax(reserved.suspects[0].bytes) == 20 * GIB


def test_no_single_rank_is_the_cause(tmp_path: Path) -> None:
    """All ranks rose together: a mark without a rank, and no line is drawn apart."""
    analysis = a_rise(recorded(tmp_path, 2), ranks=(0, 1), at_s=0.4, common=True)
    (panel,) = panels_of(analysis)
    assert (panel.suspects, panel.rises[0].rank) == ([], None)


def test_what_a_picture_says(tmp_path: Path) -> None:
    """The verdict, ranks, rises, phases, the capacity and missing ranks are words in the SVG."""
    analysis = a_rise(recorded(tmp_path, 2, world_size=4), ranks=(1,), at_s=0.4)
    text = drawn(analysis, tmp_path / "a.svg", EVAL).decode()
    for words in (
        "no memory trouble; memory of rank 1 rose first: +2.0 GiB",
        "rank 1",
        analysis.rises[0].text,
        "phases, rank 1",
        "eval …",
        "capacity 80.0 GiB",
        "no samples of ranks 2-3 (2 of 4)",
        "seconds since 08:00:00 UTC",
    ):
        assert words in text, words


@pytest.mark.parametrize("ending", ["svg", "png", "html"])
def test_the_same_bytes_every_time(tmp_path: Path, ending: str) -> None:
    """Two pictures of one recording, without times or numbers of their making."""
    analysis = a_rise(recorded(tmp_path, 2), ranks=(1,), at_s=0.4)
    first, second = (drawn(analysis, tmp_path / f"{name}.{ending}", EVAL) for name in "ab")
    assert first == second


@pytest.mark.parametrize(("ranks", "samples"), [(1, 1), (1, 2), (2, 10), (40, 3)])
def test_short_recordings(tmp_path: Path, ranks: int, samples: int) -> None:
    """One sample of one rank, and a few of many, are drawn without a warning."""
    assert drawn(recorded(tmp_path, ranks, samples), tmp_path / "a.png")[1:4] == b"PNG"


def test_each_thread_has_a_strip(tmp_path: Path) -> None:
    """Phases of two threads overlap in time: neither covers the name of the other."""
    loading = EVAL._replace(path=("epoch 3", "load"), thread_id=2, thread_name="loader")
    (panel,) = panels_of(recorded(tmp_path, 2))
    table = build_phases([loading, EVAL], {})
    strips = strips_of(replace(panel, phases=table.of_rank("llama", 1)))
    assert [label for label, _ in strips] == ["phases, rank 1", "loader"]
    assert [[span[2] for span in rows[1]] for _, rows in strips] == [["eval"], ["load"]]


def test_one_sample_is_drawn(tmp_path: Path) -> None:
    """A rank with a single sample is a point, not an empty picture."""
    one, two = (drawn(recorded(tmp_path, 1, many), tmp_path / f"{many}.svg") for many in (1, 2))
    point = rb'<g clip-path="[^"]*">\s*<use '
    assert re.search(point, one)
    assert not re.search(point, two)


def test_names_are_no_formulas_and_no_tags(tmp_path: Path) -> None:
    """A job whose name is TeX, markup, and letters that the font lacks."""
    name = "$\\x$<script>\u4e2d"
    events = [event(0.1 * at, job_id=job) for job in (name, "b") for at in range(3)]
    analysis = frd.load_memory([write(tmp_path / "memory.jsonl", events)])
    page = drawn(analysis, tmp_path / "a.html").decode()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_page_needs_nothing_else(tmp_path: Path) -> None:
    """One file, whose policy forbids it to load anything, with the texts outside of the picture."""
    analysis = a_rise(recorded(tmp_path, 2), ranks=(1,), at_s=0.4)
    page = drawn(analysis, tmp_path / "a.html").decode()
    assert "default-src 'none'" in page
    assert page.count("<svg") == 1
    assert f'<header class="verdict {"bad" if analysis.fault else "good"}">' in page
    assert page.count(escape(analysis.summary)) == 1
    assert f"<li>1  {analysis.rises[0].text}</li>" in page


def test_a_picture_has_a_format_by_its_ending(tmp_path: Path) -> None:
    """The error names the file and lists the endings."""
    with pytest.raises(ConfigError, match=r"a\.pdf: .*\.svg, \.png or \.html"):
        check_plot(tmp_path / "a.pdf")


def test_no_picture_is_overwritten(tmp_path: Path) -> None:
    """A picture that exists stays."""
    (tmp_path / "a.svg").write_text("mine")
    with pytest.raises(StoreError, match="exists"):
        check_plot(tmp_path / "a.svg")


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which package to install."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="pip install matplotlib"):
        check_plot(tmp_path / "a.svg")


# -- fewer points, every peak ---------------------------------------------------------------------


@given(st.lists(st.integers(0, 100), min_size=1, max_size=200), st.integers(4, 50))
def test_no_peak_is_lost(values: list[int], most: int) -> None:
    """Of any values at most so many are kept, in order, with both ends, the lowest and highest."""
    column = np.array(values, np.int64)
    kept = extremes(column, most)
    assert len(kept) <= max(most, 4)
    assert (np.diff(kept) > 0).all()
    assert (kept[0], kept[-1]) == (0, len(values) - 1)
    assert column[kept].min() == min(values)
    assert column[kept].max() == max(values)


@pytest.mark.parametrize(
    ("values", "kept"),
    [([5], [0]), ([5, 5], [0, 1]), ([5, 5, 5], [0, 2]), ([5, 6, 6, 5, 5], [0, 1, 3, 4])],
)
def test_a_counter_keeps_its_value(values: list[int], kept: list[int]) -> None:
    """Values that repeat the one before are left out, except the last."""
    assert changes(np.array(values, np.int64)).tolist() == kept
