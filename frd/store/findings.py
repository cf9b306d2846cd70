"""Findings, and the pauses of jobs, in one SQLite file that outlives the service.

A finding is stored before it is published, so that a crash loses no finding that a person or an
alert has seen. Opening and closing are synced to the disk; updates between them are not, because
the next one replaces them. A row has the JSON of `finding_json` and the columns that queries need.

The learned pauses of a job are a row of another table. They are not synced to the disk, because
losing them costs little.

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

from frd.engine.matching.learned_pauses import KEPT_JOBS, KEPT_NS, JobPauses
from frd.errors import StoreError
from frd.forms import finding_from_json, finding_json
from frd.model import AlignedNs, Change, Finding, FindingEvent, FindingState, Kind

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
"""The steps from each version of the schema to the next one, beginning with an empty file."""
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
"""Position of a finding in the order of opening: the time in nanoseconds, and its id."""
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
        # SQLite would create it with the permissions of the umask; its log has those of the file.
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
        with self._transaction(durable=durable) as db:
            db.executemany(_UPSERT, rows)

    def open_findings(self) -> list[Finding]:
        """All open findings, oldest first: a restarted service restores them."""
        return self._select("WHERE state = ? ORDER BY opened_ns", (FindingState.OPEN.value,))

    def query(
        self,
        *,
        state: FindingState | None = None,
        job: str | None = None,
        kind: Kind | None = None,
        until: AlignedNs | None = None,
        limit: int = 1000,
    ) -> list[Finding]:
        """Newest first; `until` is the time before which they opened."""
        return self._select(
            "WHERE (?1 IS NULL OR state = ?1) AND (?2 IS NULL OR job = ?2)"
            " AND (?3 IS NULL OR opened_ns < ?3)"
            " AND (?4 IS NULL OR json_extract(body, '$.kind') = ?4)"
            " ORDER BY opened_ns DESC, id LIMIT ?5",
            (
                state and state.value,
                None if job is None else _storable(job),
                until,
                kind and kind.value,
                limit,
            ),
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
        """Findings after the position `after`, oldest first. A reader that continues after the last
        one sees each finding once. `since` and `until` limit the time of opening.
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
        """Insert or replace the pauses of these jobs; old pauses and surplus jobs are deleted."""
        if not jobs:
            return
        rows = [(_storable(one.job), int(one.learned_at), one.encode()) for one in jobs]
        newest = max(learned for _, learned, _ in rows)
        with self._transaction(durable=False) as db:
            db.executemany("INSERT OR REPLACE INTO pauses VALUES (?, ?, ?)", rows)
            db.execute(
                "DELETE FROM pauses WHERE learned_ns < ?1 OR job NOT IN"
                " (SELECT job FROM pauses ORDER BY learned_ns DESC LIMIT ?2)",
                (newest - KEPT_NS, KEPT_JOBS),
            )

    def pauses(self) -> list[JobPauses]:
        """The pauses of all jobs, in the order of learning."""
        with self._clear_errors(), self._read_lock:
            rows = self._reader.execute("SELECT body FROM pauses ORDER BY learned_ns, job")
            return [JobPauses.decode(body) for (body,) in rows.fetchall()]

    def prune(self, *, max_count: int, max_age_s: float, now: AlignedNs) -> int:
        """Delete findings that closed `max_age_s` ago, then the oldest closed ones beyond
        `max_count`. The engine bounds the number of open findings. Returns how many were deleted.
        """
        with self._transaction(durable=False) as db:
            aged = db.execute(
                "DELETE FROM findings WHERE state = 'closed' AND closed_ns < ?",
                (now - int(max_age_s * 1e9),),
            ).rowcount
            surplus = db.execute(
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
    def _transaction(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        """`durable`: it is on the disk afterwards."""
        with self._clear_errors(), self._write_lock:
            self._writer.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            with self._writer as db:
                db.execute("BEGIN IMMEDIATE")
                yield db

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
    # Autocommit: `_transaction` begins and ends every transaction.
    return sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    """Bring the file to `SCHEMA_VERSION`; refuse a file of a newer frd."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"findings database: {path}: schema version {version}, this frd knows up to "
            f"{SCHEMA_VERSION}: start the newer frd or choose another data directory"
        )
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    if version < SCHEMA_VERSION:
        # Statement by statement: executescript would commit before it begins.
        with db:
            db.execute("BEGIN IMMEDIATE")
            for statement in filter(str.strip, "".join(_STEPS[version:]).split(";")):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.execute("BEGIN IMMEDIATE")  # fails now if the file is read-only
    db.execute("ROLLBACK")


def _storable(text: str) -> str:
    """`text` for a column of SQLite: lone surrogates, which are not UTF-8, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def _to_row(finding: Finding) -> tuple[str, str, str, int, int | None, str]:
    return (
        finding.id,
        _storable(finding.job),
        finding.state.value,
        int(finding.opened_at),
        None if finding.closed_at is None else int(finding.closed_at),
        # ASCII JSON keeps any str, lone surrogates included.
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
