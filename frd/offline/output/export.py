"""Files of an analysis: JSON, SQLite, Parquet or CSV by their ending, and the timeline.

JSON and SQLite hold all tables under the same names. Parquet, which holds one table a file, has the
spans of traces, else the entries, and the rest of the analysis in its metadata; CSV has the spans.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from frd.errors import ConfigError
from frd.forms import encodable
from frd.offline.analysis.analyze import Analysis
from frd.offline.io.analysis import IoAnalysis
from frd.offline.io.rank_report import SUMS, Step, Usage
from frd.offline.io.spans import COLUMNS, spans_of
from frd.offline.memory.analysis import MemoryAnalysis
from frd.offline.output.table_files import (
    Content,
    Writers,
    check_new_file,
    write_csv,
    write_file,
    write_json,
    write_parquet,
    write_sqlite,
)
from frd.offline.output.tables import Batch, Columns, Table, of_objects, tables
from frd.offline.output.timeline import Progress, write_timeline
from frd.store.new_path import new_path

_PACKING = 3
"""A third of the time of the usual level; the padding of a timeline goes either way."""
_BATCH: Final = 1 << 16
"""Spans at a time."""
_WRITERS: Final[Writers] = {
    ".csv": write_csv,
    ".json": write_json,
    ".parquet": write_parquet,
    ".sqlite": write_sqlite,
}


def check_export(path: Path, *, traces: bool = False) -> None:
    """Refuse before any work is done what `export` would refuse after it.

    Raises:
        ConfigError: an ending that says no format, CSV without traces, or Parquet without pyarrow.
        StoreError: the file exists.
    """
    if path.suffix == ".csv" and not traces:
        raise ConfigError(
            f"output: {path}: CSV has the spans of traces: add --traces, or use .json, .parquet or "
            ".sqlite"
        )
    hint = "use .json, .parquet, .sqlite, or .csv with --traces"
    check_new_file(path, _WRITERS, hint)


def export(analysis: Analysis | None, path: Path, io: IoAnalysis | None = None) -> None:
    """Write the analysis of dumps, of traces or of both in the format that the ending says.

    Raises:
        ConfigError, StoreError: as `check_export`, and when the file cannot be written.
    """
    check_export(path, traces=io is not None)
    write_file(path, _WRITERS, _content(analysis, io))


def _content(analysis: Analysis | None, io: IoAnalysis | None) -> Content:
    document: dict[str, Any] = {}
    found: list[Table] = []
    facts: dict[str, str] = {}
    warnings: list[str] = []
    if analysis is not None:
        document |= analysis.to_json()
        found += tables(analysis)
        facts |= {
            "summary": analysis.summary,
            "clock_source": analysis.clock_source,
            "not_proven": json.dumps(list(analysis.not_proven)),
        }
        warnings += analysis.warnings
    if io is not None:
        document["io"] = io.to_json()
        found += io_tables(io)
        warnings += io.warnings
    return Content(document, found, facts, warnings)


def export_timeline(
    analysis: Analysis | None,
    path: Path,
    progress: Progress,
    io: IoAnalysis | None = None,
    memory: MemoryAnalysis | None = None,
) -> None:
    """Write the timeline of dumps, traces and memory; packed if the ending is ``.gz``.

    Raises:
        StoreError: the file exists or cannot be written.
    """
    with new_path(path) as staged, staged.open("wb") as out:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", _PACKING, out) as packed:
                write_timeline(analysis, packed, progress, io, memory)
        else:
            write_timeline(analysis, out, progress, io, memory)


# -- tables of traces ----------------------------------------------------------------------------


def io_tables(io: IoAnalysis) -> list[Table]:
    """The small ones first, the spans last."""
    return [
        of_objects("io_ranks", io.ranks, _RANK),
        of_objects("io_files", [(rank, io.path(file), file) for rank, file in io.files()], _FILE),
        of_objects(
            "io_unclosed", [(rank, io.path(file), file) for rank, file in io.unclosed()], _UNCLOSED
        ),
        of_objects("io_steps", [(one.rank, s) for one in io.ranks for s in one.usage.steps], _STEP),
        Table("spans", COLUMNS, lambda: _span_batches(io)),
    ]


def _span_batches(io: IoAnalysis) -> Iterator[Batch]:
    """Blocks of a trace are small; a batch has many of them."""
    batch: list[list[object]] = [[] for _ in COLUMNS]
    for spans in spans_of(io):
        for column, more in zip(batch, spans.columns(), strict=True):
            column.extend(more)
        if len(batch[0]) >= _BATCH:
            yield batch
            batch = [[] for _ in COLUMNS]
    if batch[0]:
        yield batch


def _sums(of: Callable[[Any], Usage | Step]) -> Columns:
    def column(value: Callable[[Usage | Step], float]) -> Callable[[Any], float]:
        return lambda row: value(of(row))

    return {name: (kind, column(value)) for name, (kind, value) in SUMS.items()}


_RANK: Columns = {
    "rank": ("int", lambda one: one.rank),
    "processes": ("str", lambda one: encodable(", ".join(p.label for p in one.processes))),
    "evidence": ("str", lambda one: encodable("; ".join(sorted(set(one.processes.values()))))),
    "events": ("int", lambda one: one.usage.events),
    "first_ns": ("int", lambda one: one.usage.first_ns),
    "last_ns": ("int", lambda one: one.usage.last_ns),
    **_sums(lambda one: one.usage),
}

_FILE: Columns = {
    "rank": ("int", lambda row: row[0]),
    "path": ("str", lambda row: row[1]),
    "io_s": ("float", lambda row: row[2].io_ns / 1e9),
    "bytes": ("int", lambda row: row[2].nbytes),
    "ops": ("int", lambda row: row[2].ops),
}

_UNCLOSED: Columns = {
    "rank": ("int", lambda row: row[0]),
    "path": ("str", lambda row: row[1]),
    "since_ns": ("int", lambda row: row[2].opened_ns or None),
    "used": ("bool", lambda row: row[2].is_used),
}

_STEP: Columns = {
    "rank": ("int", lambda row: row[0]),
    "epoch": ("int", lambda row: None if row[1].epoch < 0 else row[1].epoch),
    "step": ("int", lambda row: row[1].step),
    "begin_ns": ("int", lambda row: row[1].begin_ns),
    "end_ns": ("int", lambda row: row[1].end_ns),
    **_sums(lambda row: row[1]),
}
