"""What outlives the service: findings, and the pauses of jobs, in one SQLite file.

A finding is stored before anything shows it, so that what a person or an alert has seen is still
there after a crash. Opening and closing are synced to the disk; updates between them are not,
because the next one replaces them. The row keeps the finding as the JSON of `finding_json`, the
same form that people see, plus the columns that queries need. The store knows neither why a
finding exists nor whether it is still true.

What the engine has learned of the pauses of a job is a row of another table. It is not synced to
the disk, because a crash loses little with it.

One thread writes; any thread may read (WAL readers do not wait for the writer's disk sync).
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TypeAlias

from frd.engine.matching.usual_waits import KEPT_JOBS, KEPT_NS, JobPauses
from frd.errors import StoreError
from frd.forms import finding_from_json, finding_json
from frd.model import AlignedNs, Change, Finding, FindingEvent, FindingState

_STEPS = (
    """
CREATE TABLE findings (
    id        TEXT PRIMARY KEY,
    job       TEXT NOT NULL,
    state     TEXT NOT NULL,
    opened_ns INTEGER NOT NULL,
    closed_ns INTEGER,
    body      TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX findings_by_time ON findings (opened_ns);
CREATE INDEX findings_by_state ON findings (state, opened_ns);
""",
    """
CREATE TABLE pauses (
    job        TEXT PRIMARY KEY,
    learned_ns INTEGER NOT NULL,
    body       TEXT NOT NULL
) WITHOUT ROWID;
""",
)
"""What leads from each version of the schema to the next, beginning with none."""
SCHEMA_VERSION = len(_STEPS)

_UPSERT = """
INSERT INTO findings (id, job, state, opened_ns, closed_ns, body) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    job = excluded.job, state = excluded.state, opened_ns = excluded.opened_ns,
    closed_ns = excluded.closed_ns, body = excluded.body
"""

_COLUMNS = "opened_ns, closed_ns, body"
_Row = tuple[int, int | None, str]
Place: TypeAlias = tuple[int, str]
"""Of a finding among all, oldest first: when it opened, in nanoseconds, and its id."""
_EVER = AlignedNs(0)


class FindingStore:
    """The findings database at `path`, created when absent.

    Raises:
        StoreError: from every method, naming the path, when the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._write_lock = Lock()
        self._read_lock = Lock()
        # SQLite would have the umask decide who may read it, and its journal follows the file.
        with contextlib.suppress(OSError):  # SQLite's own error is better
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with self._clear_errors():
            self._writer = _connect(path)
            try:
                _prepare(self._writer, path)
                self._reader = _connect(path)
            except BaseException:
                self._writer.close()
                raise

    def close(self) -> None:
        with self._write_lock, self._read_lock:
            self._writer.close()
            self._reader.close()

    def save(self, events: Sequence[FindingEvent]) -> None:
        """Insert or replace the findings of `events`, all or none; saving twice changes nothing."""
        if not events:
            return
        durable = any(event.change is not Change.UPDATED for event in events)
        rows = [_to_row(event.finding) for event in events]
        with self._clear_errors(), self._write_lock:
            self._writer.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            with self._writer:
                self._writer.execute("BEGIN IMMEDIATE")
                self._writer.executemany(_UPSERT, rows)

    def open_findings(self) -> list[Finding]:
        """All open ones, oldest first: what a restarted service takes up again."""
        return self._select("WHERE state = ? ORDER BY opened_ns", (FindingState.OPEN.value,))

    def query(
        self, *, state: FindingState | None = None, job: str | None = None, limit: int = 1000
    ) -> list[Finding]:
        """Newest first."""
        return self._select(
            "WHERE (?1 IS NULL OR state = ?1) AND (?2 IS NULL OR job = ?2)"
            " ORDER BY opened_ns DESC, id LIMIT ?3",
            (state and state.value, None if job is None else _storable(job), limit),
        )

    def page(
        self,
        *,
        after: Place = (0, ""),
        since: AlignedNs = _EVER,
        until: AlignedNs | None = None,
        job: str | None = None,
        limit: int = 1000,
    ) -> list[Finding]:
        """Oldest first, those behind `after` in that order: a reader that continues after the last
        one sees each finding once, however many there are. `since` and `until` are about opening.
        """
        return self._select(
            "WHERE (opened_ns, id) > (?1, ?2) AND opened_ns >= ?3"
            " AND (?4 IS NULL OR opened_ns < ?4) AND (?5 IS NULL OR job = ?5)"
            " ORDER BY opened_ns, id LIMIT ?6",
            (*after, since, until, None if job is None else _storable(job), limit),
        )

    def get(self, finding_id: str) -> Finding | None:
        found = self._select("WHERE id = ?", (_storable(finding_id),))
        return found[0] if found else None

    def save_pauses(self, jobs: Sequence[JobPauses]) -> None:
        """Insert or replace what is known of these jobs; what is old, or too much, goes."""
        if not jobs:
            return
        rows = [(_storable(one.job), int(one.learned_at), one.encode()) for one in jobs]
        newest = max(learned for _, learned, _ in rows)
        with self._clear_errors(), self._write_lock:
            self._writer.execute("PRAGMA synchronous = NORMAL")
            with self._writer:
                self._writer.execute("BEGIN IMMEDIATE")
                self._writer.executemany("INSERT OR REPLACE INTO pauses VALUES (?, ?, ?)", rows)
                self._writer.execute(
                    "DELETE FROM pauses WHERE learned_ns < ?1 OR job NOT IN"
                    " (SELECT job FROM pauses ORDER BY learned_ns DESC LIMIT ?2)",
                    (newest - KEPT_NS, KEPT_JOBS),
                )

    def pauses(self) -> list[JobPauses]:
        """What is known of all jobs, those that learned last at the end."""
        with self._clear_errors(), self._read_lock:
            rows = self._reader.execute("SELECT body FROM pauses ORDER BY learned_ns, job")
            return [JobPauses.decode(body) for (body,) in rows.fetchall()]

    def prune(self, *, max_count: int, max_age_s: float, now: AlignedNs) -> int:
        """Forget closed findings that closed `max_age_s` ago, then the oldest beyond `max_count`.

        Open ones stay, whatever their number: the engine bounds them. Returns how many went.
        """
        with self._clear_errors(), self._write_lock, self._writer:
            self._writer.execute("BEGIN IMMEDIATE")
            aged = self._writer.execute(
                "DELETE FROM findings WHERE state = 'closed' AND closed_ns < ?",
                (now - int(max_age_s * 1e9),),
            ).rowcount
            surplus = self._writer.execute(
                "DELETE FROM findings WHERE id IN (SELECT id FROM findings WHERE state = 'closed'"
                " ORDER BY closed_ns LIMIT max(0, (SELECT count(*) FROM findings) - ?))",
                (max_count,),
            ).rowcount
        return aged + surplus

    def _select(self, tail: str, values: tuple[object, ...]) -> list[Finding]:
        with self._clear_errors(), self._read_lock:
            rows = self._reader.execute(f"SELECT {_COLUMNS} FROM findings {tail}", values)
            return [_from_row(row) for row in rows.fetchall()]

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"findings database: {self.path}: {error}: {_advice(error)}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"findings database: {self.path}: a stored row cannot be read ({error!r}): "
                "move the file away and start again"
            ) from None


def _connect(path: Path) -> sqlite3.Connection:
    # Autocommit: transactions are opened where they are written, never behind our back.
    return sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    """Bring the file to `SCHEMA_VERSION`, refusing one that a newer frd has written."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"findings database: {path}: schema version {version}, this frd knows up to "
            f"{SCHEMA_VERSION}: start the newer frd or choose another data directory"
        )
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    if version < SCHEMA_VERSION:
        # One statement by one: executescript would commit before it begins.
        with db:
            db.execute("BEGIN IMMEDIATE")
            for statement in filter(str.strip, "".join(_STEPS[version:]).split(";")):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.execute("BEGIN IMMEDIATE")  # a read-only file is found out now, not at the first finding
    db.execute("ROLLBACK")


def _storable(text: str) -> str:
    """`text` as SQLite can hold it: what is no UTF-8 (lone surrogates) is spelt out."""
    return text.encode("utf-8", "backslashreplace").decode()


def _to_row(finding: Finding) -> tuple[str, str, str, int, int | None, str]:
    return (
        finding.id,
        _storable(finding.job),
        finding.state.value,
        int(finding.opened_at),
        None if finding.closed_at is None else int(finding.closed_at),
        # ASCII JSON carries any str, lone surrogates included, and gives it back unchanged.
        json.dumps(finding_json(finding), separators=(",", ":")),
    )


def _from_row(row: _Row) -> Finding:
    opened_ns, closed_ns, body = row
    return replace(
        finding_from_json(json.loads(body)),
        opened_at=AlignedNs(opened_ns),
        closed_at=None if closed_ns is None else AlignedNs(closed_ns),
    )


def _advice(error: sqlite3.Error) -> str:
    text = str(error)
    if "full" in text:
        return "free some space"
    if "locked" in text:
        return "another frd serve uses this data directory: stop it or choose another --data-dir"
    if "not a database" in text or "malformed" in text:
        return "the file is damaged: move it away and start again"
    return "check that the directory exists and is writable, or choose another --data-dir"
