"""Files of an analysis: JSON, SQLite, Parquet or CSV by their ending, and the timeline.

JSON and SQLite hold all tables under the same names. Parquet, which holds one table a file, has the
spans of traces, else the entries, and the rest of the analysis in its metadata; CSV has the spans.
"""

from __future__ import annotations

import csv
import gzip
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from frd.errors import ConfigError, StoreError
from frd.forms import csv_cell, encodable, json_bytes
from frd.offline.analysis.analyze import Analysis
from frd.offline.io.analysis import IoAnalysis
from frd.offline.io.rank_report import SUMS, Step, Usage
from frd.offline.io.spans import COLUMNS, spans_of
from frd.offline.memory.analysis import MemoryAnalysis
from frd.offline.output.tables import Batch, Columns, Table, of_objects, tables
from frd.offline.output.timeline import Progress, write_timeline
from frd.store.new_path import check_new, new_path

_PACKING = 3
"""A third of the time of the usual level; the padding of a timeline goes either way."""
_BATCH: Final = 1 << 16
"""Spans at a time."""
_METADATA: Final = b"frd"
_INDEXES: Final = (
    ("entries", "CREATE INDEX entries_by_collective ON entries (collective_id)"),
    ("spans", "CREATE INDEX spans_by_rank ON spans (rank)"),
)
_SQL: Final = {"int": "INTEGER", "bool": "INTEGER", "float": "REAL"}
"""All else is TEXT: lists and objects are JSON there."""


@dataclass(frozen=True, slots=True)
class Content:
    """All that a file may have."""

    document: Mapping[str, Any]
    """The object that `frd analyze --json` prints."""
    tables: Sequence[Table]
    """The largest one last; formats that hold one table have this one."""
    facts: Mapping[str, str]
    warnings: Sequence[str]


Writers: TypeAlias = Mapping[str, Callable[[Content, Path], None]]
"""By the ending of a file."""


def check_new_file(path: Path, writers: Writers, hint: str) -> None:
    """
    Raises:
        ConfigError: an ending that says no format, or Parquet without pyarrow.
        StoreError: the file exists.
    """
    if path.suffix not in writers:
        raise ConfigError(f"output: {path}: the ending says the format: {hint}")
    if path.suffix == ".parquet":
        import_pyarrow()
    check_new(path)


def write_file(path: Path, writers: Writers, content: Content) -> None:
    """
    Raises:
        StoreError: the file cannot be written.
    """
    with new_path(path) as staged:
        try:
            writers[path.suffix](content, staged)
        except sqlite3.Error as error:
            raise StoreError(f"output: {path}: {error}: free space or choose another") from None


# -- JSON --------------------------------------------------------------------------------------


def write_json(content: Content, path: Path) -> None:
    """The object of `frd analyze --json`, and the tables that it has not."""
    with path.open("wb") as out:
        out.write(b"{")
        for name, value in content.document.items():
            out.write(_key(name) + json_bytes(value) + b",\n")
        rest = [table for table in content.tables if table.name not in content.document]
        for table in rest:
            out.write(_key(table.name) + b"[")
            for number, row in enumerate(table.rows()):
                out.write((b",\n" if number else b"\n") + json_bytes(row))
            out.write(b"]" + (b"}\n" if table is rest[-1] else b",\n"))


def _key(name: str) -> bytes:
    return msgspec.json.encode(name) + b":"


# -- SQLite ------------------------------------------------------------------------------------


def write_sqlite(content: Content, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")  # the file is not there before it is whole
        db.execute("BEGIN")
        for table in content.tables:
            _fill(db, table)
        db.execute("CREATE TABLE analysis (key TEXT PRIMARY KEY, value TEXT)")
        db.executemany("INSERT INTO analysis VALUES (?, ?)", content.facts.items())
        db.execute("CREATE TABLE warnings (warning TEXT)")
        db.executemany(
            "INSERT INTO warnings VALUES (?)", [[encodable(text)] for text in content.warnings]
        )
        for name, statement in _INDEXES:
            if any(table.name == name for table in content.tables):
                db.execute(statement)
        db.execute("COMMIT")


def _fill(db: sqlite3.Connection, table: Table) -> None:
    columns = ", ".join(
        f'"{name}" {_SQL.get(kind, "TEXT")}' + (" PRIMARY KEY" if name == "id" else "")
        for name, kind in table.columns.items()
    )
    db.execute(f'CREATE TABLE "{table.name}" ({columns})')
    insert = f'INSERT INTO "{table.name}" VALUES ({", ".join("?" * len(table.columns))})'
    plain = [kind in ("int", "float", "bool", "str") for kind in table.columns.values()]
    for batch in table.batches():
        flat = [
            column if is_plain else [json.dumps(value) for value in column]
            for column, is_plain in zip(batch, plain, strict=True)
        ]
        db.executemany(insert, zip(*flat, strict=True))


# -- Parquet -----------------------------------------------------------------------------------


def write_parquet(content: Content, path: Path) -> None:
    pa = import_pyarrow()
    from pyarrow import parquet

    scalars = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string()}

    def arrow(kind: str) -> Any:
        return pa.list_(arrow(kind[:-2])) if kind.endswith("[]") else scalars[kind]

    table = content.tables[-1]
    with_stacks = "stack_id" in table.columns
    columns = {**table.columns, **({"stack": "str[]"} if with_stacks else {})}
    about = json_bytes(content.document)
    schema = pa.schema(
        [(name, arrow(kind)) for name, kind in columns.items()], metadata={_METADATA: about}
    )
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in _with_stacks(content, table) if with_stacks else table.batches():
            arrays = [
                pa.array(column, field.type) for column, field in zip(batch, schema, strict=True)
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def _with_stacks(content: Content, table: Table) -> Iterator[Sequence[Sequence[Any]]]:
    """Entries with the frames of their stacks in place."""
    of_stacks = next(one for one in content.tables if one.name == "stacks")
    stacks = [[*map(str, row["frames"])] for row in of_stacks.rows()]
    at = list(table.columns).index("stack_id")
    for batch in table.batches():
        yield [*batch, [stacks[n] if n is not None else None for n in batch[at]]]


# -- CSV ---------------------------------------------------------------------------------------


def write_csv(content: Content, path: Path) -> None:
    table = content.tables[-1]
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(table.columns)
        for batch in table.batches():
            writer.writerows(map(csv_cell, row) for row in zip(*batch, strict=True))


def import_pyarrow() -> Any:
    try:
        import pyarrow as module
    except ImportError:
        raise ConfigError(
            "output: .parquet: needs pyarrow, which is not installed: "
            "`pip install pyarrow`, or use another format such as .sqlite"
        ) from None
    return module


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
