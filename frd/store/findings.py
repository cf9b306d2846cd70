"""Findings, and the pauses of jobs, in one SQLite file that outlives the service.

A finding is stored before it is published, so that a crash loses no finding that a person or an
alert has seen. Opening and closing are synced to the disk; updates between them are not, because
the next one replaces them. A row has the JSON of `finding_json` and the columns that queries need.

The learned pauses of a job are a row of another table. They are not synced to the disk, because
losing them costs little.

Messages to webhooks that are not delivered are rows of a third table, the outbox. They are written
with the finding that caused them, so that a crash loses none. A fourth table has, by open finding,
which messages were made of it. Single values are rows of a fifth table, by key.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from frd.engine.matching.learned_pauses import KEPT_JOBS, KEPT_NS, JobPauses
from frd.forms import encodable, finding_from_json, finding_json
from frd.model import AlignedNs, Change, Finding, FindingEvent, FindingState, Kind
from frd.store.database import Database

_SCHEMA = """
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
CREATE TABLE pauses (
    job        TEXT PRIMARY KEY,
    learned_ns INTEGER NOT NULL,
    body       TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE outbox (target TEXT, key TEXT, since_ns INTEGER, body BLOB, UNIQUE (target, key));
CREATE TABLE kept (key TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE notified (finding TEXT PRIMARY KEY, events TEXT, targets TEXT) WITHOUT ROWID;
"""

_UPSERT = """
INSERT INTO findings (id, job, state, opened_ns, closed_ns, body) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    job = excluded.job, state = excluded.state, opened_ns = excluded.opened_ns,
    closed_ns = excluded.closed_ns, body = excluded.body
"""

_OF_OWED = "target, key, CAST(since_ns AS INTEGER), CAST(body AS BLOB)"
_COLUMNS = "id, opened_ns, closed_ns, body"
_Row = tuple[str, int, int | None, str]
_T = TypeVar("_T")
Place: TypeAlias = tuple[int, str]
"""Position of a finding in the order of opening: the time in nanoseconds, and its id."""
_EVER = AlignedNs(0)

log = logging.getLogger(__name__)


class Owed(NamedTuple):
    """A message that a webhook has not received."""

    target: str
    """The webhook's name."""
    key: str
    """Of the message, different for each that the target gets: the id of the finding, and what
    happened."""
    since_ns: int
    """Since the epoch."""
    body: bytes

    @property
    def finding(self) -> str:
        """Its id."""
        return self.key.rpartition("-")[0]


class Notified(NamedTuple):
    """Which messages were made of a finding."""

    finding: str
    """Its id."""
    events: tuple[str, ...] = ()
    """What has happened to it and is no news any more."""
    targets: tuple[str, ...] = ()
    """Names of the webhooks that got a message."""
    owed: tuple[tuple[str, str], ...] = ()
    """In a cluster, those that are not settled yet: the webhook's name, and what has happened. The
    outbox of this database is not used there."""


class FindingStore:
    """The findings database at `path`, created when absent.

    A row that cannot be read is left out, and logged once.

    Raises:
        StoreError: from every method, naming the path, when the file cannot be used; from the
            constructor only if another frd wrote it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.owed: Callable[[], Iterable[Owed]] = lambda: ()
        """Returns what the outbox has after the next change. Any thread calls it."""
        self.notified: Callable[[], Iterable[Notified]] = lambda: ()
        """The same of the table `notified`."""
        self._kept: tuple[int, list[Owed], list[Notified]] | None = None
        """What is owed and was notified, as it is stored, in which file."""
        self._unreadable: set[str] = set()
        """Rows that were logged."""
        self.db = Database(path, "findings database", _SCHEMA)

    def close(self) -> None:
        self.db.close()

    def save(self, events: Sequence[FindingEvent]) -> None:
        """Insert or replace the findings of `events`, all or none; saving twice changes nothing."""
        if not events:
            return
        durable = any(event.change is not Change.UPDATED for event in events)
        rows = [_to_row(event.finding) for event in events]
        with self.db.transaction("FULL" if durable else "NORMAL") as db:
            db.executemany(_UPSERT, rows)
            kept = self._keep_owed(db)
        self._kept = kept

    def outbox(self) -> list[Owed]:
        """What an earlier process owed, in the order of storing."""
        return [Owed(*row) for row in self.db.rows(f"SELECT {_OF_OWED} FROM outbox ORDER BY rowid")]

    def were_notified(self) -> list[Notified]:
        """What an earlier process has made messages of."""
        rows = self.db.rows("SELECT finding, events, targets FROM notified")
        return self._readable("notified", rows, _notified)

    @property
    def owes_news(self) -> bool:
        """What `keep_owed` stores has changed."""
        return self._kept != self._owing()

    def _owing(self) -> tuple[int, list[Owed], list[Notified]]:
        return self.db.damaged, list(self.owed()), list(self.notified())

    def keep_owed(self) -> None:
        """Have the outbox, and the table `notified`, hold what is so now."""
        with self.db.transaction() as db:
            kept = self._keep_owed(db)
        self._kept = kept

    def _keep_owed(self, db: sqlite3.Connection) -> tuple[int, list[Owed], list[Notified]]:
        kept = _, owed, notified = self._owing()
        stored = {*db.execute("SELECT target, key FROM outbox")}
        settled = stored.difference(message[:2] for message in owed)
        db.executemany("DELETE FROM outbox WHERE target = ? AND key = ?", settled)
        news = [message for message in owed if message[:2] not in stored]
        db.executemany("INSERT INTO outbox VALUES (?, ?, ?, ?)", news)
        rows = {(one.finding, json.dumps(one.events), json.dumps(one.targets)) for one in notified}
        before = {*db.execute("SELECT * FROM notified")}
        db.executemany("DELETE FROM notified WHERE finding = ?", [row[:1] for row in before - rows])
        db.executemany("INSERT INTO notified VALUES (?, ?, ?)", rows - before)
        return kept

    def open_findings(self) -> list[Finding]:
        """All that last, oldest first: a restarted service restores them."""
        lasts = """state = 'open' OR body LIKE '%"goes_on":true%'"""
        return self._select(f"WHERE {lasts} ORDER BY opened_ns", ())

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
            " AND (?4 IS NULL OR"
            " CASE WHEN json_valid(body) THEN json_extract(body, '$.kind') = ?4 END)"
            " ORDER BY opened_ns DESC, id LIMIT ?5",
            (
                state and state.value,
                encodable(job),
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
            (*after, since, until, encodable(job), limit),
        )

    def get(self, finding_id: str) -> Finding | None:
        found = self._select("WHERE id = ?", (encodable(finding_id),))
        return found[0] if found else None

    def save_pauses(self, jobs: Sequence[JobPauses]) -> None:
        """Insert or replace the pauses of these jobs; old pauses and surplus jobs are deleted."""
        if not jobs:
            return
        rows = [(encodable(one.job), int(one.learned_at), one.encode()) for one in jobs]
        newest = max(learned for _, learned, _ in rows)
        with self.db.transaction() as db:
            db.executemany("INSERT OR REPLACE INTO pauses VALUES (?, ?, ?)", rows)
            db.execute(
                "DELETE FROM pauses WHERE learned_ns < ?1 OR job NOT IN"
                " (SELECT job FROM (SELECT job, row_number() OVER (PARTITION BY"
                " instr(body, '\"groups\":[]') > 0 ORDER BY learned_ns DESC) AS newer"
                " FROM pauses) WHERE newer <= ?2)",
                (newest - KEPT_NS, KEPT_JOBS),
            )

    def pauses(self) -> list[JobPauses]:
        """The pauses of all jobs, in the order of learning."""
        rows = self.db.rows("SELECT job, body FROM pauses ORDER BY learned_ns, job")
        return self._readable("pauses", rows, lambda row: JobPauses.decode(row[1]))

    def value(self, key: str) -> bytes | None:
        rows = self.db.rows("SELECT CAST(body AS BLOB) FROM kept WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    def keep_value(self, key: str, value: bytes) -> None:
        with self.db.transaction("FULL") as db:
            db.execute("INSERT OR REPLACE INTO kept VALUES (?, ?)", (key, value))

    def prune(self, *, max_count: int, max_age_s: float, now: AlignedNs) -> int:
        """Delete findings that closed `max_age_s` ago, then the oldest closed ones, beyond
        `max_count`, of the jobs that have most. The engine bounds the number of open findings.
        Returns how many were deleted."""
        with self.db.transaction() as db:
            aged = db.execute(
                "DELETE FROM findings WHERE state = 'closed' AND closed_ns < ?",
                (now - int(max_age_s * 1e9),),
            ).rowcount
            surplus = db.execute(
                "DELETE FROM findings WHERE id IN (SELECT id FROM (SELECT id, closed_ns,"
                " row_number() OVER (PARTITION BY job ORDER BY closed_ns DESC) AS newer"
                " FROM findings WHERE state = 'closed') ORDER BY newer DESC, closed_ns"
                " LIMIT max(0, (SELECT count(*) FROM findings) - ?))",
                (max_count,),
            ).rowcount
        return aged + surplus

    def _select(self, tail: str, values: tuple[object, ...]) -> list[Finding]:
        rows = self.db.rows(f"SELECT {_COLUMNS} FROM findings {tail}", values)
        return self._readable("findings", rows, _from_row)

    def _readable(self, table: str, rows: list[Any], decode: Callable[[Any], _T]) -> list[_T]:
        found: list[_T] = []
        for row in rows:
            try:
                found.append(decode(row))
            except Exception as error:  # any error: the other rows are shown
                name = f"{table} {row[0]!r}"[:200]
                if name not in self._unreadable and len(self._unreadable) < 100:
                    self._unreadable.add(name)
                    why = f"findings database: {self.path}: {name}: {error!r}"
                    log.warning("%s: the row is left out", why[:1000])
        return found


def _notified(row: tuple[str, str, str]) -> Notified:
    finding, *both = row
    events, targets = (tuple(map(str, json.loads(text))) for text in both)
    return Notified(finding, events, targets)


def _to_row(finding: Finding) -> tuple[str, str, str, int, int | None, str]:
    return (
        finding.id,
        encodable(finding.job),
        finding.state.value,
        int(finding.opened_at),
        None if finding.closed_at is None else int(finding.closed_at),
        # ASCII JSON keeps any str, lone surrogates included.
        json.dumps(finding_json(finding), separators=(",", ":")),
    )


def _from_row(row: _Row) -> Finding:
    _, opened_ns, closed_ns, body = row
    return replace(
        finding_from_json(json.loads(body)),
        opened_at=AlignedNs(int(opened_ns)),
        closed_at=None if closed_ns is None else AlignedNs(int(closed_ns)),
    )
