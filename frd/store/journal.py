"""The journal: accepted input in SQLite databases, so that the service's findings can be replayed.

A journal is a folder of numbered segments, each a database with one table. A row is a batch of
consecutive records, compressed, with a checksum. A segment begins with a preamble that repeats what
every live stream declared, so that a replay can begin at any segment. The payload of a record is
opaque here: `frd.service.journal.replay` decodes it.

A segment is a file, and not rows of one database, because the journal then stays within its bounds
by deleting files: that costs nothing (SQLite would visit every page), works on a full disk, returns
the space immediately, and damage is confined to one segment.

Crash safety: each batch is a transaction in WAL mode. A killed process loses only what it had not
passed to `append`. After a power loss the batches since the last checkpoint of the write-ahead log
(4 MiB) may be missing; the rest is intact.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from frd.errors import StoreError
from frd.model import AlignedNs
from frd.store.records import Record, RecordKind, batches, checksum, decode, encode

SUFFIX: Final = ".sqlite3"
OLD_SUFFIX: Final = ".frdj"
"""Of the log files that earlier releases wrote."""
_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE batches (
    id         INTEGER PRIMARY KEY,
    preamble   INTEGER NOT NULL,
    first_ns   INTEGER NOT NULL,
    last_ns    INTEGER NOT NULL,
    compressed INTEGER NOT NULL,
    crc        INTEGER NOT NULL,
    body       BLOB NOT NULL
)
"""
_INSERT: Final = "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)"
_SELECT: Final = "SELECT * FROM batches WHERE id > ? ORDER BY id LIMIT ?"

_PAGE_BYTES: Final = 16384
_WAL_BYTES: Final = 4 * 1024 * 1024
"""Of the write-ahead log, when SQLite copies it into the database."""
_RETRY_NS: Final = 10_000_000_000
_SEGMENTS_PER_BOUND: Final = 8
_READ_ROWS: Final = 16


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """`total_bytes` bounds the folder; a segment is full when it has `segment_bytes`.

    No record is older than `max_age_s` by more than an eighth of it; 0 means no limit.
    """

    segment_bytes: int = 16 * 1024 * 1024
    total_bytes: int = 256 * 1024 * 1024
    max_age_s: float = 0.0


class _Finished(NamedTuple):
    """A segment that is no longer written."""

    path: Path
    size: int
    last_ns: int
    """When its last record was written."""


class Journal:
    """The writing end, for one thread.

    A write error never raises: records are dropped and counted, and ten seconds later the journal
    tries again with a new segment, under a number that leaves a gap, so that readers notice.

    `settings` begins every segment (what a replay needs to know of this process); `preamble`
    returns the records, without START, that declare all live streams.

    Raises:
        StoreError: from the constructor only, if `folder` cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: bytes,
        preamble: Callable[[], Iterable[Record]],
        now: AlignedNs,
        limits: JournalLimits,
    ) -> None:
        self.folder = folder
        self.dropped = 0
        """Records that were not written."""
        self.evicted = 0
        """Segments deleted to stay within the bounds."""
        self.error = ""
        """Why records are being dropped; empty if the last write succeeded."""
        self._settings = settings
        self._preamble = preamble
        self._limits = limits
        self._retry_at = 0
        self._number = 0
        self._finished: list[_Finished] = []
        self._db: sqlite3.Connection | None = None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in segments(folder):
                self._finished.append(_Finished(path, _size(path), path.stat().st_mtime_ns))
            self._number = max((_number(one.path) for one in self._finished), default=0)
            self._begin(now, is_repeated=False)
        except (OSError, sqlite3.Error, StoreError) as error:
            self._give_up(error, now)
            raise StoreError(self.error) from None

    def adopt(self, settings: bytes, limits: JournalLimits, at: AlignedNs) -> None:
        """Continue with other settings, which are recorded, and within other limits."""
        if limits != self._limits:  # which also bound a segment's write-ahead log
            self._finish(at)
        self._settings = settings
        self._limits = limits
        self.append([Record(RecordKind.SETTINGS, at, 0, settings)])

    def append(self, records: Sequence[Record]) -> None:
        """Write all of `records` or, on an error, none; see `error` and `dropped`.

        A new segment's preamble comes before them: it must not reflect them yet.
        """
        if not records:
            return
        at = records[-1].at
        if self._db is None and at < self._retry_at:
            self.dropped += len(records)
            return
        try:
            if self._db is not None and self._is_full(at):
                self._finish(at)
            db = self._db or self._begin(at, is_repeated=True)
            self._insert(db, records, is_preamble=False)
            self._delete_expired(at)
        except (OSError, sqlite3.Error, StoreError) as error:
            self.dropped += len(records)
            self._give_up(error, at)

    def close(self) -> None:
        self._finish(self._begun_at)

    def _begin(self, at: AlignedNs, *, is_repeated: bool) -> sqlite3.Connection:
        """Open the next segment; `is_repeated`: who has read the one before needs no preamble."""
        self._number += 1
        self._begun_at = at
        self._added = 0
        start = Record(RecordKind.START, at, 0, self._settings)
        preamble = [start, *self._preamble()]
        self._preamble_bytes = sum(len(record.payload) for record in preamble)
        if self._preamble_bytes > self._limits.total_bytes // 4:
            raise StoreError(
                f"journal: {self.folder}: the declarations of the live streams take over a quarter "
                f"of its bound of {self._limits.total_bytes} bytes: raise the bound"
            )
        log_bytes = min(_WAL_BYTES, self._limits.total_bytes // _SEGMENTS_PER_BOUND)
        os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.ExitStack() as undo:  # a part of a preamble would be misread
            undo.callback(_delete, self._path)
            db = _connect(self._path, log_bytes)
            undo.callback(db.close)
            self._insert(db, preamble, is_preamble=is_repeated)
            undo.pop_all()
        self._db = db
        self.error = ""
        return db

    def _insert(
        self, db: sqlite3.Connection, records: Sequence[Record], *, is_preamble: bool
    ) -> None:
        bodies = [(batch, *encode(batch)) for batch in batches(records)]
        added = sum(len(body) for *_, body in bodies)
        self._make_room(added)
        with _transaction(db):
            (last,) = db.execute("SELECT max(id) FROM batches").fetchone()
            for number, (batch, compressed, body) in enumerate(bodies, (last or 0) + 1):
                key = (number, int(is_preamble), batch[0].at, batch[-1].at, int(compressed))
                db.execute(_INSERT, (*key, checksum(key, body), body))
        self._added += added

    def _is_full(self, at: AlignedNs) -> bool:
        """A segment is full when it is old, too: records must expire though few new ones come."""
        limits = self._limits
        full = max(
            min(limits.segment_bytes, limits.total_bytes // _SEGMENTS_PER_BOUND),
            2 * self._preamble_bytes,
        )
        age_ns = limits.max_age_s * 1e9 / _SEGMENTS_PER_BOUND
        return self._added >= full or 0 < age_ns < at - self._begun_at

    def _make_room(self, extra: int) -> None:
        """`extra` bytes go to the write-ahead log first, then to the database."""
        bound = self._limits.total_bytes - _size(self._path) - 2 * extra - 4 * _PAGE_BYTES
        while self._finished and sum(one.size for one in self._finished) > bound:
            self._delete_oldest()
        if bound < 0:
            raise StoreError(
                f"journal: {self.folder}: a batch of {extra} bytes exceeds its bound of "
                f"{self._limits.total_bytes}: raise the bound"
            )

    def _delete_expired(self, at: AlignedNs) -> None:
        age_ns = self._limits.max_age_s * 1e9
        while age_ns and self._finished and at - self._finished[0].last_ns > age_ns:
            self._delete_oldest()

    def _delete_oldest(self) -> None:
        _delete(self._finished.pop(0).path)
        self.evicted += 1

    def _finish(self, at: AlignedNs) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
            self._finished.append(_Finished(self._path, _size(self._path), at))

    def _give_up(self, error: Exception, at: AlignedNs) -> None:
        """Drop records for a while; the next segment shows the gap."""
        said = error.strerror if isinstance(error, OSError) else error
        self.error = (
            str(error)
            if isinstance(error, StoreError)
            else f"journal: {self.folder}: {said}: free some space or choose a writable --data-dir"
        )
        self._finish(at)
        self._number += 1
        self._retry_at = at + _RETRY_NS

    @property
    def _path(self) -> Path:
        return self.folder / f"{self._number:08d}{SUFFIX}"


def _connect(path: Path, log_bytes: int) -> sqlite3.Connection:
    # Autocommit: `_transaction` begins and ends every transaction. Another thread may write.
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        db.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA wal_autocheckpoint = {log_bytes // _PAGE_BYTES}")
        db.execute(f"PRAGMA journal_size_limit = {log_bytes}")
        with _transaction(db):
            db.execute(_SCHEMA)
            db.execute(f"PRAGMA user_version = {_VERSION}")
    except BaseException:
        db.close()
        raise
    return db


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    with db:  # commits, or rolls back
        db.execute("BEGIN IMMEDIATE")
        yield


# -- files -------------------------------------------------------------------------------------


def segments(folder: Path) -> list[Path]:
    """The segments of a journal, oldest first."""
    found = (path for path in folder.iterdir() if path.suffix == SUFFIX and path.stem.isdecimal())
    return sorted(found, key=_number)


def old_files(folder: Path) -> list[Path]:
    """Segments that an earlier release wrote, in a format that this one does not read."""
    return sorted(folder.glob(f"*{OLD_SUFFIX}")) if folder.is_dir() else []


def _number(path: Path) -> int:
    return int(path.stem) if path.stem.isdecimal() else 0


def _files(path: Path) -> list[Path]:
    """A segment: the database, and what SQLite keeps next to it while it is open, or after a
    crash."""
    return [path, *(path.with_name(f"{path.name}-{end}") for end in ("wal", "shm"))]


def _size(path: Path) -> int:
    total = 0
    for file in _files(path):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


def _delete(path: Path) -> None:
    for file in _files(path):
        file.unlink(missing_ok=True)


# -- reading -----------------------------------------------------------------------------------


def read(
    path: Path,
    warn: Callable[[str], None],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Record]:
    """The records of a journal, or of one segment of it, in the order of writing.

    Preambles are returned only where the records before them are missing; a START record there says
    that no stream read so far is live. `warn` gets one line of text for each loss; `progress` gets
    how many bytes have been read, and of how many. The service may be writing meanwhile.

    Raises:
        StoreError: `path` is no journal, or a row in it is damaged. The records before that row
            have been returned.
    """
    if path.suffix == OLD_SUFFIX or (old_files(path) and not segments(path)):
        raise StoreError(
            f"journal: {path}: an earlier frd wrote it ({OLD_SUFFIX} files): replay it with that "
            "release"
        )
    try:
        paths = segments(path) if path.is_dir() else [path]
        sizes = [segment.stat().st_size for segment in paths]
    except OSError as error:
        raise StoreError(f"journal: {path}: {error.strerror}: name a journal folder") from None
    if not paths:
        raise StoreError(f"journal: {path}: no segments (*{SUFFIX}) in it: name its folder")
    next_number = -1
    for before, segment in enumerate(paths):
        number = _number(segment)
        if not segment.exists():  # deleted meanwhile, to stay within the bounds
            continue
        if -1 < next_number < number:
            warn(f"journal: {segment}: records before this segment are missing")
        progress(sum(sizes[:before]), sum(sizes))
        yield from _segment(segment, warn, skip_preamble=number == next_number)
        next_number = number + 1
    progress(sum(sizes), sum(sizes))


def _segment(path: Path, warn: Callable[[str], None], *, skip_preamble: bool) -> Iterator[Record]:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    if not _files(path)[1].exists():  # no log, so no writer: SQLite need not create one
        uri += "&immutable=1"
    last = 0
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as db:
            if not _is_journal(db, path):
                warn(f"journal: {path}: the segment is empty")
                return
            # A few rows a query: a long read transaction would let the write-ahead log grow.
            while rows := db.execute(_SELECT, (last, _READ_ROWS)).fetchall():
                for row in rows:
                    records = decode(row, last + 1, f"journal: {path}: row {last + 1}")
                    if not (row[1] and skip_preamble):
                        yield from records
                    last += 1
    except sqlite3.Error as error:
        raise StoreError(
            f"journal: {path}: {error}: only the {last} rows before it can be replayed"
        ) from None


def _is_journal(db: sqlite3.Connection, path: Path) -> bool:
    """False if a crash came before the first row."""
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema")]
    except sqlite3.Error as error:
        raise StoreError(f"journal: {path}: {error}: name a journal folder") from None
    if tables != ["batches"] * bool(version):
        raise StoreError(f"journal: {path}: not a journal segment: name a journal folder")
    if version > _VERSION:
        raise StoreError(f"journal: {path}: a newer frd wrote it: replay it with that one")
    return bool(version)
