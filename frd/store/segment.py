"""One segment of a journal: an SQLite database with one table, whose rows are batches of records.

Crash safety: each batch is a transaction in WAL mode. A killed process loses only what it had not
passed to `insert`. After a power loss the batches since the last checkpoint of the write-ahead log
may be missing; the rest is intact.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from frd.errors import StoreError
from frd.store.records import MAX_ROW_BYTES, Record, checksum, decode

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


def create(path: Path, log_bytes: int) -> sqlite3.Connection:
    """A new segment, whose write-ahead log has `log_bytes` at a checkpoint.

    Raises:
        OSError: also when the file exists, which is left as it is.
        sqlite3.Error: the database cannot be written.
    """
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with contextlib.ExitStack() as undo:
        undo.callback(delete, path)
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


def size(path: Path) -> int:
    """Bytes on the disk, with those of the write-ahead log; 0 if the segment was deleted."""
    total = 0
    for file in _files(path):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


def delete(path: Path) -> None:
    for file in _files(path):
        file.unlink(missing_ok=True)


def _files(path: Path) -> list[Path]:
    """The database, and the files of SQLite next to it while it is open, or after a crash."""
    return [path, *(path.with_name(f"{path.name}-{end}") for end in ("wal", "shm"))]


# -- reading -----------------------------------------------------------------------------------


def read(path: Path, warn: Callable[[str], None], *, skip_preamble: bool) -> Iterator[Record]:
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
