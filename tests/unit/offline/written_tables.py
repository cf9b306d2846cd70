"""Tables of an output file, read back."""

from __future__ import annotations

import csv
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest


def rows_in(path: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a table, in order; a file of CSV or Parquet is one table."""
    match path.suffix:
        case ".json":
            found: list[dict[str, Any]] = json.loads(path.read_text())[table]
            return found
        case ".csv":
            with path.open(newline="") as file:
                return [
                    {name: _parsed(text) for name, text in row.items()}
                    for row in csv.DictReader(file)
                ]
        case ".parquet":
            parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
            return parquet.read_table(path).to_pylist()  # type: ignore[no-any-return]
    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute(f"select * from {table} order by rowid")]


def _parsed(text: str) -> object:
    if not text:
        return None
    return int(text) if text.lstrip("-").isdecimal() else text
