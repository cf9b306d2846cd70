"""Timelines of findings, in one SQLite file: they are shown when the engine has forgotten the ops.

Losing one costs a picture and no finding, so nothing is synced to the disk. The oldest findings'
timelines are deleted first.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

from frd.errors import StoreError
from frd.model import AlignedNs

MAX_COUNT = 2_000
MAX_BYTES = 256 * 1024 * 1024
_SCHEMA = """
CREATE TABLE IF NOT EXISTS timelines (
    id        TEXT PRIMARY KEY,
    opened_ns INTEGER NOT NULL,
    is_final  INTEGER NOT NULL,
    body      BLOB NOT NULL
) WITHOUT ROWID
"""
_PRUNE = """
DELETE FROM timelines WHERE id IN (
    SELECT id FROM (
        SELECT id, ROW_NUMBER() OVER newest AS place, SUM(LENGTH(body)) OVER newest AS bytes
        FROM timelines WINDOW newest AS (ORDER BY opened_ns DESC, id)
    ) WHERE place > ? OR bytes > ?
)
"""


class TimelineStore:
    """The database at `path`, created when absent. Any thread may use it.

    Raises:
        StoreError: from every method, naming the path, when the file cannot be used.
    """

    def __init__(
        self, path: Path, *, max_count: int = MAX_COUNT, max_bytes: int = MAX_BYTES
    ) -> None:
        self.path = path
        self._most = max_count, max_bytes
        self._lock = Lock()
        with contextlib.suppress(OSError):  # SQLite's own error is better
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with self._clear_errors():
            self._db = sqlite3.connect(
                path, timeout=5.0, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = OFF")
            self._db.execute(_SCHEMA)

    def save(
        self, finding_id: str, opened_at: AlignedNs, body: bytes, *, is_final: bool = False
    ) -> None:
        """Insert or replace one, and delete the oldest beyond the bounds."""
        with self._clear_errors(), self._lock:
            row = (finding_id, int(opened_at), is_final, body)
            self._db.execute("INSERT OR REPLACE INTO timelines VALUES (?, ?, ?, ?)", row)
            self._db.execute(_PRUNE, self._most)

    def get(self, finding_id: str) -> bytes | None:
        found = self._row(finding_id)
        return None if found is None else bytes(found[1])

    def is_final(self, finding_id: str) -> bool:
        """Whether one is stored that will not be replaced."""
        found = self._row(finding_id)
        return found is not None and bool(found[0])

    def _row(self, finding_id: str) -> tuple[int, bytes] | None:
        with self._clear_errors(), self._lock:
            try:
                found: tuple[int, bytes] | None = self._db.execute(
                    "SELECT is_final, body FROM timelines WHERE id = ?", (finding_id,)
                ).fetchone()
            except UnicodeEncodeError:  # no id is like this
                return None
        return found

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(
                f"timelines: {self.path}: {error}: move the file away, or choose another --data-dir"
            ) from None
