"""The journal: accepted input in SQLite databases, so that the service's findings can be replayed.

A journal is a folder of numbered segments, each a database (see `frd.store.segment`). A segment
begins with a preamble that repeats what every live stream declared, so that a replay can begin at
any segment. The payload of a record is opaque here: `frd.service.journal.replay` decodes it.

A segment is a file, and not rows of one database, because the journal then stays within its bounds
by deleting files: that costs nothing (SQLite would visit every page), works on a full disk, returns
the space immediately, and damage is confined to one segment.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from frd.errors import StoreError
from frd.model import AlignedNs
from frd.store import segment
from frd.store.records import Record, RecordKind, batches, encode
from frd.store.segment import PAGE_BYTES, SUFFIX

_WAL_BYTES: Final = 4 * 1024 * 1024
"""Size of the write-ahead log when SQLite copies it into the database."""
_RETRY_NS: Final = 10_000_000_000
_SEGMENTS_PER_BOUND: Final = 8


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
                self._number = segment.number_of(path)
                last_ns = path.stat().st_mtime_ns
                self._finished.append(_Finished(path, segment.size(path), last_ns))
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
            db = segment.create(self._path, log_bytes)
            undo.callback(segment.delete, self._path)
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
        segment.insert(db, encoded, is_preamble=is_preamble)
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
        bound = self.limits.total_bytes - segment.size(self._path) - 2 * extra - 4 * PAGE_BYTES
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
        segment.delete(self._finished.pop(0).path)
        self.evicted += 1

    def _finish(self, at: AlignedNs) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
            self._finished.append(_Finished(self._path, segment.size(self._path), at))

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
    return sorted(found, key=segment.number_of)


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
        number = segment.number_of(one)
        if not one.exists():  # deleted meanwhile, to stay within the bounds
            continue
        if -1 < next_number < number:
            warn(f"journal: {one}: records before this segment are missing")
        progress(sum(sizes[:before]), sum(sizes))
        yield from segment.read(one, warn, skip_preamble=number == next_number)
        next_number = number + 1
    progress(sum(sizes), sum(sizes))
