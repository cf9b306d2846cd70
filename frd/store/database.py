"""An SQLite file that is used when it can be, and moved aside when it is damaged.

A service must watch and alert whatever its disk does. So opening fails only for the file of another
frd; everything else is an error of a single call, and the next call opens the file again. A damaged
file is renamed to ``NAME.damaged``, and a new one is begun. An earlier ``NAME.damaged`` is replaced
if the file is a cache; otherwise nothing is deleted, and nothing is stored until it is moved away.

One thread writes; any thread may read (WAL readers do not wait for the writer's disk sync).
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final

from frd.errors import StoreError

_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}
"""The last one means that a table or column is missing: the statements are always the same."""
VERSION: Final = 4
"""Of the schemas; a file with another one is refused."""
_PASSING: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL}
"""After these the connection is as good as before."""
_ADVICE: Final = {
    sqlite3.SQLITE_FULL: "free some space",
    sqlite3.SQLITE_IOERR: "free some space, or replace the disk",
    sqlite3.SQLITE_BUSY: "another frd serve uses this data directory: stop it or choose another",
}
_OTHERWISE: Final = "check that its folder is writable, or choose another --data-dir"

log = logging.getLogger(__name__)


class _Foreign(StoreError):
    """Another frd wrote the file."""


class Database:
    """The file at `path`, created when absent; `what` is for messages. `schema` has
    the statements for an empty file.

    Raises:
        StoreError: from the constructor, when another frd wrote the file; from every other method,
            naming the path, when the file cannot be used.
    """

    def __init__(self, path: Path, what: str, schema: str, *, is_cache: bool = False) -> None:
        self.damaged = 0
        """Files that were moved aside."""
        self._path = path
        self._what = what
        self._schema = schema
        self._is_cache = is_cache
        self._is_closed = False
        self._write_lock = Lock()
        self._read_lock = Lock()
        """A caller that needs both takes this one last."""
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        try:
            with self.transaction() as db:
                db.execute(f"PRAGMA user_version = {VERSION}")  # is there room?
        except _Foreign:
            self.close()
            raise
        except StoreError as error:
            if not self.damaged:  # otherwise the next use begins a new file
                log.error("%s: nothing is stored until then", error)

    def close(self) -> None:
        self._is_closed = True
        with self._write_lock, self._read_lock:
            self._disconnect()

    @contextlib.contextmanager
    def transaction(self, synchronous: str = "NORMAL") -> Iterator[sqlite3.Connection]:
        """All or nothing. With `synchronous` FULL, it is on the disk afterwards."""
        with self._clear_errors(), self._write_lock:
            if self._writer is None:
                with self._read_lock:  # a reader of a file that does not change
                    self._disconnect()
                # SQLite would create it with the permissions of the umask.
                with contextlib.suppress(OSError):  # SQLite's own error is better
                    os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                self._writer = self._connect()
            version = _version(self._writer)
            if version not in (0, VERSION) and not self._is_cache:
                raise _Foreign(
                    f"{self._what}: {self._path}: schema version {version} where this frd has "
                    f"{VERSION}: start the frd that wrote it, or choose another data directory"
                )
            self._writer.execute("PRAGMA journal_mode = WAL")
            self._writer.execute(f"PRAGMA synchronous = {synchronous}")
            with self._writer as db:
                db.execute("BEGIN IMMEDIATE")
                if not version:
                    # Statement by statement: executescript would commit before it begins.
                    for statement in filter(str.strip, self._schema.split(";")):
                        db.execute(statement)
                    db.execute(f"PRAGMA user_version = {VERSION}")
                yield db

    def rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        """Text that is not UTF-8 is replaced. A file without a schema has no rows."""
        with self._clear_errors(), self._read_lock:
            if self._reader is None and not self._path.is_file():
                return []
            self._reader = self._reader or self._connect()
            try:
                version = _version(self._reader)
            except sqlite3.OperationalError:
                wal = f"{self._path}-wal"  # it has the last changes
                if self._writer or (os.path.exists(wal) and os.path.getsize(wal)):
                    raise
                self._reader.close()  # the disk has no room for shared memory, or is read-only
                self._reader = self._connect("?immutable=1")
                version = _version(self._reader)
            return self._reader.execute(query, values).fetchall() if version else []

    def _connect(self, options: str = "") -> sqlite3.Connection:
        if self._is_closed:
            raise sqlite3.ProgrammingError("closed")
        # Autocommit: `transaction` begins and ends every transaction.
        uri = self._path.absolute().as_uri() + options
        db = sqlite3.connect(uri, 5.0, uri=True, isolation_level=None, check_same_thread=False)
        db.text_factory = lambda data: data.decode(errors="replace")
        return db

    def _disconnect(self) -> None:
        for db in filter(None, (self._writer, self._reader)):
            with contextlib.suppress(sqlite3.Error):
                db.close()
        self._writer = self._reader = None

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """Use it outside the locks."""
        try:
            yield
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # quoted damaged bytes
            code = int(getattr(error, "sqlite_errorcode", 0)) & 0xFF  # without its details
            advice = _ADVICE.get(code, _OTHERWISE)
            if code not in _PASSING:
                with self._write_lock, self._read_lock:
                    self._disconnect()
                    # Without more details: not its folder, and not a file that was replaced.
                    is_refused = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY
                    if (
                        code in _DAMAGED
                        or isinstance(error, UnicodeDecodeError)
                        or (is_refused and os.access(self._path, os.W_OK))
                        or self._path.is_dir()
                    ):
                        advice = self._move_aside()
            raise StoreError(f"{self._what}: {self._path}: {error}: {advice}") from None

    def _move_aside(self) -> str:
        """What became of the damaged file, for the error that showed the damage."""
        aside = self._path.with_name(f"{self._path.name}.damaged")
        try:
            if self._is_cache:
                shutil.rmtree(aside) if aside.is_dir() else aside.unlink(missing_ok=True)
            elif aside.exists():
                raise FileExistsError(0, "it exists")
            for end in ("-wal", "-shm", ""):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(f"{self._path}{end}", f"{aside}{end}")
        except OSError as error:
            return f"the file is damaged: move it away (not to {aside}: {error.strerror})"
        self.damaged += 1
        log.error("%s: %s: damaged: moved to %s", self._what, self._path, aside)
        return f"moved to {aside}"


def _version(db: sqlite3.Connection) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)
