"""The journal: accepted input in SQLite databases, so that the service's findings can be replayed.

A journal is a folder of numbered segments, each a database with one table, whose rows are batches
of records. A segment begins with a preamble that repeats what every live stream declared, so that a
replay can begin at any segment. The payload of a record is opaque here:
`frd.service.journal.replay` decodes it.

A segment is a file, and not rows of one database, because the journal then stays within its bounds
by deleting files: that costs nothing (SQLite would visit every page), works on a full disk, returns
the space immediately, and damage is confined to one segment.

Crash safety: each batch is a transaction in WAL mode. A killed process loses only what it had not
passed to `insert`. After a power loss the batches since the last checkpoint of the write-ahead log
may be missing; the rest is intact.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from frd.errors import StoreError
from frd.model import AlignedNs
from frd.store.records import (
    MAX_ROW_BYTES,
    Record,
    RecordKind,
    batches,
    checksum,
    decode,
    encode,
)

_WAL_BYTES: Final = 4 * 1024 * 1024
"""Size of the write-ahead log when SQLite copies it into the database."""
_RETRY_NS: Final = 10_000_000_000
_SEGMENTS_PER_BOUND: Final = 8
SUFFIX: Final = ".sqlite3"
PAGE_BYTES: Final = 16384
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
_SELECT: Final = "SELECT * FROM batches WHERE id > ? ORDER BY id LIMIT 1"
_DAMAGED: Final = (sqlite3.Error, UnicodeDecodeError)
"""The second where SQLite quotes bytes of a damaged schema in its message."""

Encoded: TypeAlias = tuple[Sequence[Record], bool, bytes]
"""A batch, and the body of its row; the flag is true if the body is compressed."""


# -- writing -----------------------------------------------------------------------------------


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


@dataclass(slots=True, eq=False)
class Journal:
    """The writing end, for one thread.

    A write error never raises: records are dropped and counted, and ten seconds later the journal
    tries again with a new segment, under a number that leaves a gap, so that readers notice.

    `settings` begins every segment (what a replay needs to know of this process); `preamble`
    returns the records, without START, that declare all live streams.
    """

    folder: Path
    settings: bytes
    preamble: Callable[[], Iterable[Record]]
    begun_at: AlignedNs
    limits: JournalLimits
    dropped: int = 0
    """Records that were not written."""
    evicted: int = 0
    """Segments deleted to stay within the bounds."""
    error: str = ""
    """Why records are being dropped; empty if the last write succeeded."""
    _retry_at: int = 0
    _number: int = 0
    _added: int = 0
    _preamble_bytes: int = 0
    _finished: list[_Finished] = field(default_factory=list)
    _db: sqlite3.Connection | None = None

    def __post_init__(self) -> None:
        try:
            for path in segments(self.folder) if self.folder.exists() else ():
                self._number = number_of(path)
                last_ns = path.stat().st_mtime_ns
                self._finished.append(_Finished(path, segment_size(path), last_ns))
            self._begin(self.begun_at, is_repeated=False)
        except (OSError, sqlite3.Error, StoreError) as error:
            self._give_up(error, self.begun_at)

    def adopt(self, settings: bytes, limits: JournalLimits, at: AlignedNs) -> None:
        """Continue with other settings, which are recorded, and within other limits."""
        if limits != self.limits:  # which also bound a segment's write-ahead log
            self._finish(at)
        self.settings = settings
        self.limits = limits
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
        self._finish(self.begun_at)

    def _begin(self, at: AlignedNs, *, is_repeated: bool) -> sqlite3.Connection:
        """Open the next segment. With `is_repeated`, its preamble repeats the segment before."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._number += 1
        self.begun_at = at
        self._added = 0
        start = Record(RecordKind.START, at, 0, self.settings)
        preamble = [start, *self.preamble()]
        self._preamble_bytes = sum(len(record.payload) for record in preamble)
        if self._preamble_bytes > self.limits.total_bytes // 4:
            raise StoreError(
                f"journal: {self.folder}: the declarations of the live streams take over a quarter "
                f"of its bound of {self.limits.total_bytes} bytes: raise the bound"
            )
        log_bytes = min(_WAL_BYTES, self.limits.total_bytes // _SEGMENTS_PER_BOUND)
        with contextlib.ExitStack() as undo:  # a part of a preamble would be misread
            db = create_segment(self._path, log_bytes)
            undo.callback(delete_segment, self._path)
            undo.callback(db.close)
            self._insert(db, preamble, is_preamble=is_repeated)
            undo.pop_all()
        self._db = db
        self.error = ""
        return db

    def _insert(
        self, db: sqlite3.Connection, records: Sequence[Record], *, is_preamble: bool
    ) -> None:
        encoded = [(batch, *encode(batch)) for batch in batches(records)]
        added = sum(len(body) for *_, body in encoded)
        self._make_room(added)
        insert(db, encoded, is_preamble=is_preamble)
        self._added += added

    def _is_full(self, at: AlignedNs) -> bool:
        """A segment is full when it is old, too: records must expire though few new ones come."""
        limits = self.limits
        full = max(
            min(limits.segment_bytes, limits.total_bytes // _SEGMENTS_PER_BOUND),
            2 * self._preamble_bytes,
        )
        age_ns = limits.max_age_s * 1e9 / _SEGMENTS_PER_BOUND
        return self._added >= full or 0 < age_ns < at - self.begun_at

    def _make_room(self, extra: int) -> None:
        """`extra` bytes go to the write-ahead log first, then to the database."""
        bound = self.limits.total_bytes - segment_size(self._path) - 2 * extra - 4 * PAGE_BYTES
        while self._finished and sum(one.size for one in self._finished) > bound:
            self._delete_oldest()
        if bound < 0:
            raise StoreError(
                f"journal: {self.folder}: a batch of {extra} bytes exceeds its bound of "
                f"{self.limits.total_bytes}: raise the bound"
            )

    def _delete_expired(self, at: AlignedNs) -> None:
        age_ns = self.limits.max_age_s * 1e9
        while age_ns and self._finished and at - self._finished[0].last_ns > age_ns:
            self._delete_oldest()

    def _delete_oldest(self) -> None:
        delete_segment(self._finished.pop(0).path)
        self.evicted += 1

    def _finish(self, at: AlignedNs) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
            self._finished.append(_Finished(self._path, segment_size(self._path), at))

    def _give_up(self, error: Exception, at: AlignedNs) -> None:
        """Drop records for a while; the next segment shows the gap."""
        why = error.strerror if isinstance(error, OSError) else error
        self.error = (
            str(error)
            if isinstance(error, StoreError)
            else f"journal: {self.folder}: {why}: free some space or choose a writable --data-dir"
        )
        self._finish(at)
        self._number += 1
        self._retry_at = at + _RETRY_NS

    @property
    def _path(self) -> Path:
        return self.folder / f"{self._number:08d}{SUFFIX}"


# -- reading -----------------------------------------------------------------------------------


def segments(folder: Path) -> list[Path]:
    """The segments of a journal, oldest first."""
    found = (path for path in folder.iterdir() if path.suffix == SUFFIX and path.stem.isdecimal())
    return sorted(found, key=number_of)


def read(
    path: Path,
    warn: Callable[[str], None],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Record]:
    """The records of a journal, or of one segment of it, in the order of writing.

    Preambles are returned only where the records before them are missing; a START record there says
    that no stream read so far is live. `warn` gets one line of text for each loss; `progress` gets
    the number of bytes read, and their total. The service may be writing meanwhile.

    Raises:
        StoreError: `path` is no journal, or a row in it is damaged. The records before that row
            have been returned.
    """
    try:
        paths = segments(path) if path.is_dir() else [path]
        sizes = [one.stat().st_size for one in paths]
    except OSError as error:
        raise StoreError(f"journal: {path}: {error.strerror}: name a journal folder") from None
    if not paths:
        raise StoreError(f"journal: {path}: no segments (*{SUFFIX}) in it: name its folder")
    next_number = -1
    for before, one in enumerate(paths):
        number = number_of(one)
        if not one.exists():  # deleted meanwhile, to stay within the bounds
            continue
        if -1 < next_number < number:
            warn(f"journal: {one}: records before this segment are missing")
        progress(sum(sizes[:before]), sum(sizes))
        yield from read_segment(one, warn, skip_preamble=number == next_number)
        next_number = number + 1
    progress(sum(sizes), sum(sizes))


def create_segment(path: Path, log_bytes: int) -> sqlite3.Connection:
    """A new segment, whose write-ahead log has `log_bytes` at a checkpoint.

    Raises:
        OSError: also when the file exists, which is left as it is.
        sqlite3.Error: the database cannot be written.
    """
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with contextlib.ExitStack() as undo:
        undo.callback(delete_segment, path)
        # Autocommit: `_transaction` begins and ends every transaction. Another thread may write.
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        undo.callback(db.close)
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA wal_autocheckpoint = {log_bytes // PAGE_BYTES}")
        db.execute(f"PRAGMA journal_size_limit = {log_bytes}")
        with _transaction(db):
            db.execute(_SCHEMA)
            db.execute(f"PRAGMA user_version = {_VERSION}")
        undo.pop_all()
    return db


def insert(db: sqlite3.Connection, batches: Sequence[Encoded], *, is_preamble: bool) -> None:
    """A row for each batch, all or none."""
    with _transaction(db):
        (last,) = db.execute("SELECT max(id) FROM batches").fetchone()
        for number, (batch, compressed, body) in enumerate(batches, (last or 0) + 1):
            key = (number, int(is_preamble), batch[0].at, batch[-1].at, int(compressed))
            db.execute(_INSERT, (*key, checksum(key, body), body))


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    with db:  # commits, or rolls back
        db.execute("BEGIN IMMEDIATE")
        yield


# -- files -------------------------------------------------------------------------------------


def number_of(path: Path) -> int:
    return int(path.stem) if path.stem.isdecimal() else 0


def segment_size(path: Path) -> int:
    """Bytes on the disk, with those of the write-ahead log; 0 if the segment was deleted."""
    total = 0
    for file in _files(path):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


def delete_segment(path: Path) -> None:
    for file in _files(path):
        file.unlink(missing_ok=True)


def _files(path: Path) -> list[Path]:
    """The database, and the files of SQLite next to it while it is open, or after a crash."""
    return [path, *(path.with_name(f"{path.name}-{end}") for end in ("wal", "shm"))]


# -- reading -----------------------------------------------------------------------------------


def read_segment(
    path: Path, warn: Callable[[str], None], *, skip_preamble: bool
) -> Iterator[Record]:
    """The records, in the order of writing. The service may be writing meanwhile.

    Raises:
        StoreError: `path` is no segment, or a row in it is damaged.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro"
    if not _files(path)[1].exists():  # no log, so no writer: SQLite need not create one
        uri += "&immutable=1"
    last = 0
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as db:
            if not _is_segment(db, path):
                warn(f"journal: {path}: the segment is empty")
                return
            # A row a query: a long read transaction would let the write-ahead log grow.
            while (row := db.execute(_SELECT, (last,)).fetchone()) is not None:
                records = decode(row, last + 1, f"journal: {path}: row {last + 1}")
                if not (row[1] and skip_preamble):
                    yield from records
                last += 1
    except _DAMAGED as error:
        raise StoreError(
            f"journal: {path}: {error}: only the {last} rows before it can be replayed"
        ) from None


def _is_segment(db: sqlite3.Connection, path: Path) -> bool:
    """False if a crash came before the first row. Any other schema is refused: a view, a
    trigger, a column that is computed."""
    try:
        db.execute("PRAGMA trusted_schema = OFF")
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2 * MAX_ROW_BYTES)
        (version,) = db.execute("PRAGMA user_version").fetchone()
        schema = db.execute("SELECT type, sql FROM sqlite_schema LIMIT 2").fetchall()
        found = [(kind, str(sql).split()) for kind, sql in schema]
    except _DAMAGED as error:
        raise StoreError(f"journal: {path}: {error}: name a journal folder") from None
    if version > _VERSION:
        raise StoreError(f"journal: {path}: a newer frd wrote it: replay it with that one")
    if found != [("table", _SCHEMA.split())] * bool(version):
        raise StoreError(f"journal: {path}: not a journal segment: name a journal folder")
    return bool(version)
