"""A journal's segments, opened from outside."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def execute(segment: Path, sql: str, *values: object) -> list[tuple[int, ...]]:
    with closing(sqlite3.connect(segment)) as db, db:
        return db.execute(sql, values).fetchall()


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
