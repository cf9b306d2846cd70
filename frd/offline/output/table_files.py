"""Tables as one file: JSON, SQLite, Parquet or CSV. Knows nothing of what the tables say.

JSON and SQLite hold all tables under the same names. Parquet and CSV hold one table a file, the
last one; the metadata of a Parquet file has the rest.
"""

from __future__ import annotations

import csv
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
from frd.offline.output.tables import Table
from frd.store.new_path import check_new, new_path

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
