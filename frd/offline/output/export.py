"""Files of an analysis: JSON, SQLite or Parquet by their ending, and the timeline.

All formats hold the same tables
under the same names; Parquet, which holds one table a file, has the entries, and the rest of the
analysis in its metadata.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from frd.errors import ConfigError, StoreError
from frd.offline.analysis.analyze import Analysis
from frd.offline.output.tables import Table, entries, tables
from frd.offline.output.timeline import Progress, write_timeline
from frd.store.new_path import check_new, new_path

_METADATA = b"frd"
_PACKING = 3
"""A third of the time of the usual level; the padding of a timeline goes either way."""
_SQL = {"int": "INTEGER", "bool": "INTEGER", "float": "REAL"}
"""All else is TEXT: lists and objects are JSON there."""


def check_export(path: Path) -> None:
    """Refuse before any work is done what `export` would refuse after it.

    Raises:
        ConfigError: an ending that says no format, or Parquet without pyarrow.
        StoreError: the file exists.
    """
    if path.suffix not in _WRITERS:
        raise ConfigError(
            f"output: {path}: the ending says the format: use .json, .parquet or .sqlite"
        )
    if path.suffix == ".parquet":
        _pyarrow()
    check_new(path)


def export(analysis: Analysis, path: Path) -> None:
    """Write `analysis` in the format that the ending says.

    Raises:
        ConfigError, StoreError: as `check_export`, and when the file cannot be written.
    """
    check_export(path)
    with new_path(path) as staged:
        try:
            _WRITERS[path.suffix](analysis, staged)
        except sqlite3.Error as error:
            raise StoreError(f"output: {path}: {error}: free space or choose another") from None


def export_timeline(analysis: Analysis, path: Path, progress: Progress) -> None:
    """Write the timeline; packed if the ending is ``.gz``.

    Raises:
        StoreError: the file exists or cannot be written.
    """
    with new_path(path) as staged, staged.open("wb") as out:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", _PACKING, out) as packed:
                write_timeline(analysis, packed, progress)
        else:
            write_timeline(analysis, out, progress)


# -- JSON --------------------------------------------------------------------------------------


def _json(analysis: Analysis, path: Path) -> None:
    """The object of `Analysis.to_json`, and the tables that it has not."""
    document = analysis.to_json()
    with path.open("wb") as out:
        out.write(b"{")
        for name, value in document.items():
            out.write(_key(name) + msgspec.json.encode(value) + b",\n")
        rest = [table for table in tables(analysis) if table.name not in document]
        for table in rest:
            out.write(_key(table.name) + b"[")
            for number, row in enumerate(table.rows()):
                out.write((b",\n" if number else b"\n") + msgspec.json.encode(row))
            out.write(b"]" + (b"}\n" if table is rest[-1] else b",\n"))


def _key(name: str) -> bytes:
    return msgspec.json.encode(name) + b":"


# -- SQLite ------------------------------------------------------------------------------------


def _sqlite(analysis: Analysis, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")  # the file is not there before it is whole
        db.execute("BEGIN")
        for table in tables(analysis):
            _fill(db, table)
        db.execute("CREATE TABLE analysis (key TEXT PRIMARY KEY, value TEXT)")
        facts = {
            "summary": analysis.summary,
            "clock_source": analysis.clock_source,
            "not_proven": json.dumps(list(analysis.not_proven)),
        }
        db.executemany("INSERT INTO analysis VALUES (?, ?)", facts.items())
        db.execute("CREATE TABLE warnings (warning TEXT)")
        db.executemany("INSERT INTO warnings VALUES (?)", [[text] for text in analysis.warnings])
        db.execute("CREATE INDEX entries_by_collective ON entries (collective_id)")
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


def _parquet(analysis: Analysis, path: Path) -> None:
    pa = _pyarrow()
    from pyarrow import parquet

    scalars = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string()}

    def arrow(kind: str) -> Any:
        return pa.list_(arrow(kind[:-2])) if kind.endswith("[]") else scalars[kind]

    table = entries(analysis)
    columns = {**table.columns, "stack": "str[]"}
    about = msgspec.json.encode(analysis.to_json())
    schema = pa.schema(
        [(name, arrow(kind)) for name, kind in columns.items()], metadata={_METADATA: about}
    )
    stacks = [[*map(str, row["frames"])] for row in _named(analysis, "stacks").rows()]
    at = list(columns).index("stack_id")
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in table.batches():
            stack = [stacks[number] if number is not None else None for number in batch[at]]
            arrays = [
                pa.array(column, field.type)
                for column, field in zip([*batch, stack], schema, strict=True)
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def _named(analysis: Analysis, name: str) -> Table:
    return next(table for table in tables(analysis) if table.name == name)


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ConfigError(
            "output: .parquet: needs pyarrow, which is not installed: "
            "`pip install 'frd-daemon[parquet]'`, or use .json or .sqlite"
        ) from None
    return pyarrow


_WRITERS: dict[str, Callable[[Analysis, Path], None]] = {
    ".json": _json,
    ".parquet": _parquet,
    ".sqlite": _sqlite,
}
