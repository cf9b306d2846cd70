"""Timelines of findings, in one SQLite file: they are shown when the engine has forgotten the ops.

Losing one costs a picture and no finding, so nothing is synced to the disk. The oldest findings'
timelines are deleted first.
"""

from __future__ import annotations

from pathlib import Path

from frd.model import AlignedNs
from frd.store.database import Database

MAX_COUNT = 2_000
MAX_BYTES = 256 * 1024 * 1024
_SCHEMA = """
CREATE TABLE timelines (
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
        StoreError: from every method but the constructor, naming the path, when the file cannot be
            used.
    """

    def __init__(
        self, path: Path, *, max_count: int = MAX_COUNT, max_bytes: int = MAX_BYTES
    ) -> None:
        self.path = path
        self._most = max_count, max_bytes
        self.db = Database(path, "timelines", _SCHEMA, is_cache=True)

    def save(
        self, finding_id: str, opened_at: AlignedNs, body: bytes, *, is_final: bool = False
    ) -> None:
        """Insert or replace one, and delete the oldest beyond the bounds."""
        with self.db.transaction("OFF") as db:
            row = (finding_id, int(opened_at), is_final, body)
            db.execute("INSERT OR REPLACE INTO timelines VALUES (?, ?, ?, ?)", row)
            db.execute(_PRUNE, self._most)

    def get(self, finding_id: str) -> bytes | None:
        found = self._row(finding_id)
        return None if found is None else found[1]

    def is_final(self, finding_id: str) -> bool:
        """Whether one is stored that will not be replaced."""
        found = self._row(finding_id)
        return found is not None and bool(found[0])

    def _row(self, finding_id: str) -> tuple[int, bytes] | None:
        try:
            found: list[tuple[int, bytes]] = self.db.rows(
                "SELECT is_final, CAST(body AS BLOB) FROM timelines WHERE id = ?", (finding_id,)
            )
        except UnicodeEncodeError:  # no id is like this
            return None
        return found[0] if found else None

    def close(self) -> None:
        self.db.close()
