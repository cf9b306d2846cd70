"""Accepted input, written down so that what the service concluded can be replayed and argued with.

A journal is a folder of numbered segments. Each begins with a preamble that repeats what every live
stream has declared, so that it can be replayed when its elders are gone: a journal that is bounded
by size and age loses its oldest segment, never its meaning. Records carry opaque payloads; what
they mean is `frd.service.journal.replay`'s business.

Layout: 8 bytes of magic, then records: crc32, payload length, kind, time, stream, payload
(little-endian). The checksum covers all that follows it. The top bit of the kind marks preamble
records, the next one bundles: records, without checksums of their own, packed together (zlib),
because what agents say each second differs little from the second before (`frd.store.records`).
Nothing is synced to the disk: the journal is evidence, not the truth, and what a killed process
loses is the few records since its last `tick`.

Writing never stops ingest. When the disk refuses, records are dropped and counted, and a new
segment is tried after a while under a number that leaves a hole, so that a reader knows.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from frd.errors import StoreError
from frd.model import AlignedNs
from frd.store.records import (
    HEAD,
    MAX_PAYLOAD_BYTES,
    Record,
    RecordKind,
    bundled,
    known,
    unbundled,
)

MAGIC = b"FRDJRN01"
_CRC = struct.Struct("<I")
_OVERHEAD = _CRC.size + HEAD.size
_PREAMBLE_BIT = 0x80
_BUNDLE_BIT = 0x40
_WRITE_BYTES = 256 * 1024
_WRITE_PIECES = 1000  # of one writev; the system takes 1024
_PROGRESS_BYTES = 64 * 1024
_RETRY_NS = 10_000_000_000
_SEGMENTS_OF_AN_AGE = 8
_SUFFIX = ".frdj"


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """`total_bytes` bounds the folder; a segment is full when it has `segment_bytes`.

    Nothing is older than `max_age_s`, by an eighth of it at most; 0 for whatever age.
    """

    segment_bytes: int = 16 * 1024 * 1024
    total_bytes: int = 256 * 1024 * 1024
    max_age_s: float = 0.0


class _Elder(NamedTuple):
    """A segment that is finished."""

    path: Path
    size: int
    until: int
    """When its last record was written."""


class Journal:
    """The writing end. One thread only.

    `settings` opens every segment (what a replay needs to know of this process); `preamble` gives
    the records, without START, after which all live streams are known.

    Raises:
        StoreError: from the constructor only, when `folder` cannot be written.
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
        """Why records are being dropped; empty while all is well."""
        self._settings = settings
        self._preamble = preamble
        self._limits = limits
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._unwritten = 0
        self._elders: list[_Elder] = []
        self._elder_bytes = 0
        self._number = 0
        self._fd = -1
        self._size = 0
        self._begun_at = now
        self._rotate_at = 0
        """Size at which the segment is full; 0 while its preamble is being written."""
        self._retry_at = 0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in segments(folder):
                told = path.stat()
                self._add_elder(_Elder(path, told.st_size, told.st_mtime_ns))
            self._number = max((_number(elder.path) for elder in self._elders), default=0)
            self._begin(now, continues=False)
        except (OSError, StoreError) as error:
            self._give_up(error, now)
            raise StoreError(self.error) from None

    def adopt(self, settings: bytes, limits: JournalLimits, at: AlignedNs) -> None:
        """Go on with other settings, which is recorded, and within other limits."""
        self._settings = settings
        self._limits = limits
        self.append(RecordKind.SETTINGS, at, 0, settings)

    def append(
        self, kind: RecordKind, at: AlignedNs, stream: int = 0, payload: bytes = b""
    ) -> None:
        """Write down one record, after it has been accepted: the preamble may already reflect it.

        Never raises for the disk's sake; see `error` and `dropped`.
        """
        self._append(kind, at, stream, payload, count=1)

    def append_bundle(self, records: Sequence[Record]) -> None:
        """The same of several small records, which take a fraction of the room together."""
        if records:
            kind = RecordKind.MESSAGE | _BUNDLE_BIT
            self._append(kind, records[-1].at, 0, bundled(records), count=len(records))

    def _append(self, kind: int, at: AlignedNs, stream: int, payload: bytes, *, count: int) -> None:
        if self._fd < 0 and at < self._retry_at:
            self.dropped += count
            return
        self._unwritten += count
        try:
            if self._fd < 0:
                self._begin(at, continues=False)
                self._unwritten = count
            self._put(kind, at, stream, payload)
            if self._size >= self._rotate_at or self._is_aged(at):
                self._finish(at)
                self._begin(at, continues=True)
        except (OSError, StoreError) as error:
            self._give_up(error, at)

    def _is_aged(self, at: AlignedNs) -> bool:
        """A segment must not keep what is old because little is new."""
        age_ns = self._limits.max_age_s * 1e9
        return bool(age_ns) and at - self._begun_at > age_ns / _SEGMENTS_OF_AN_AGE

    def tick(self, at: AlignedNs) -> None:
        """Record that the engine advanced, and hand all that is pending to the system."""
        self.append(RecordKind.TICK, at)
        try:
            self._forget_aged(at)
            self._flush()
        except OSError as error:
            self._give_up(error, at)

    def close(self) -> None:
        try:
            self._finish(self._begun_at)
        except OSError as error:
            self._give_up(error, self._begun_at)

    def _begin(self, at: AlignedNs, *, continues: bool) -> None:
        """Open the next segment; `continues` says that no record was lost before it."""
        self._number += 1
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._rotate_at = 0
        self._begun_at = at
        self._size = len(MAGIC)
        self._pending = [MAGIC]
        mark = _PREAMBLE_BIT if continues else 0
        self._put(RecordKind.START | mark, at, 0, self._settings)
        for record in self._preamble():
            self._put(record.kind | _PREAMBLE_BIT, record.at, record.stream, record.payload)
            if self._size > self._limits.total_bytes // 4:
                raise StoreError(
                    f"journal: {self.folder}: what the live streams declared takes over a quarter "
                    f"of its bound of {self._limits.total_bytes} bytes: raise the bound"
                )
        self._flush()
        self._rotate_at = max(self._limits.segment_bytes, 2 * self._size)
        self.error = ""

    def _put(self, kind: int, at: AlignedNs, stream: int, payload: bytes) -> None:
        self._make_room(_OVERHEAD + len(payload))
        head = HEAD.pack(len(payload), kind, at, stream)
        crc = zlib.crc32(payload, zlib.crc32(head))
        self._pending += (_CRC.pack(crc) + head, payload)
        self._pending_bytes += len(payload)
        self._size += _OVERHEAD + len(payload)
        if self._pending_bytes >= _WRITE_BYTES or len(self._pending) > _WRITE_PIECES:
            self._flush()

    def _make_room(self, extra: int) -> None:
        bound = self._limits.total_bytes
        while self._elders and self._size + extra + self._elder_bytes > bound:
            self._forget_eldest()
        if self._size + extra > bound:
            raise StoreError(
                f"journal: {self.folder}: a record of {extra} bytes exceeds its bound of {bound}: "
                "raise the bound"
            )

    def _forget_aged(self, at: AlignedNs) -> None:
        age_ns = self._limits.max_age_s * 1e9
        while age_ns and self._elders and at - self._elders[0].until > age_ns:
            self._forget_eldest()

    def _forget_eldest(self) -> None:
        elder = self._elders.pop(0)
        self._elder_bytes -= elder.size
        elder.path.unlink(missing_ok=True)
        self.evicted += 1

    def _add_elder(self, elder: _Elder) -> None:
        self._elders.append(elder)
        self._elder_bytes += elder.size

    def _flush(self) -> None:
        if not self._pending:
            return
        written = os.writev(self._fd, self._pending)
        if written < sum(map(len, self._pending)):
            rest = memoryview(b"".join(self._pending))[written:]
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        self._forget_pending()

    def _forget_pending(self) -> None:
        self._pending.clear()
        self._pending_bytes = 0
        self._unwritten = 0

    def _finish(self, at: AlignedNs) -> None:
        if self._fd < 0:
            return
        self._flush()
        os.close(self._fd)
        self._fd = -1
        self._add_elder(_Elder(self._path, self._size, at))

    def _give_up(self, error: OSError | StoreError, at: AlignedNs) -> None:
        """Drop what is pending and be silent for a while; the next segment shows the hole."""
        self.error = str(error) if isinstance(error, StoreError) else _refused(self.folder, error)
        self.dropped += self._unwritten
        self._forget_pending()
        if self._fd >= 0:
            if self._rotate_at:
                self._add_elder(_Elder(self._path, os.fstat(self._fd).st_size, at))
            else:  # half a preamble is worth nothing
                self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1
        self._number += 1
        self._retry_at = at + _RETRY_NS

    @property
    def _path(self) -> Path:
        return self.folder / f"{self._number:08d}{_SUFFIX}"


def segments(folder: Path) -> list[Path]:
    """The segments of a journal, oldest first."""
    found = (path for path in folder.iterdir() if path.suffix == _SUFFIX and path.stem.isdecimal())
    return sorted(found, key=_number)


def read(
    path: Path,
    warn: Callable[[str], None],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Record]:
    """The records of a journal, or of one segment of it, in the order of writing.

    Preambles are given only where the records before them are missing; there a START record says
    that nothing read so far is live. `warn` is told, in words for people, of everything missing;
    `progress` of how many bytes have been read, and of how many.

    Raises:
        StoreError: `path` is no journal, or a record in the middle of it is damaged. Records
            before that have been given.
    """
    try:
        paths = segments(path) if path.is_dir() else [path]
        if not paths:
            raise StoreError(f"journal: {path}: no segments (*{_SUFFIX}) in it: name its folder")
        sizes = [segment.stat().st_size for segment in paths]
        continues_with = -1
        for before, segment in enumerate(paths):
            number = _number(segment) if segment.stem.isdecimal() else 0
            if -1 < continues_with < number:
                warn(f"journal: {segment}: records before this segment are missing")
            whole = yield from _segment(
                segment,
                skip_preamble=number == continues_with,
                warn=warn,
                progress=partial(_told_of, progress, sum(sizes[:before]), sum(sizes)),
            )
            continues_with = number + 1 if whole else -1
    except OSError as error:
        raise StoreError(f"journal: {path}: {error.strerror}: name a journal folder") from None


def _told_of(progress: Callable[[int, int], None], before: int, total: int, offset: int) -> None:
    progress(before + offset, total)


def _segment(
    path: Path,
    *,
    skip_preamble: bool,
    warn: Callable[[str], None],
    progress: Callable[[int], None],
) -> Generator[Record, None, bool]:
    """The records of one segment; returns whether it ends on a whole one."""
    with path.open("rb") as file:
        if (magic := file.read(len(MAGIC))) != MAGIC:
            if MAGIC.startswith(magic):
                warn(f"journal: {path}: the segment is empty")
                return False
            raise StoreError(f"journal: {path}: not a journal segment: name a journal folder")
        offset = told = len(MAGIC)
        while (taken := _records(file, path, offset)) is not None:
            records, preamble, size = taken
            offset += size
            if not (preamble and skip_preamble):
                yield from records
            if offset - told >= _PROGRESS_BYTES:
                progress(offset)
                told = offset
        progress(offset)
        torn = os.fstat(file.fileno()).st_size - offset
    if torn:
        warn(f"journal: {path}: the last {torn} bytes are a record that was never finished")
    return not torn


def _records(file: BinaryIO, path: Path, offset: int) -> tuple[list[Record], bool, int] | None:
    """The record or bundle at `offset`, whether it is preamble, and its size; None at a torn or
    clean end."""
    head = file.read(_OVERHEAD)
    if len(head) < _OVERHEAD:
        return None
    (crc,) = _CRC.unpack_from(head)
    length, kind, at, stream = HEAD.unpack_from(head, _CRC.size)
    payload = file.read(length) if length <= MAX_PAYLOAD_BYTES else b""
    if len(payload) < length <= MAX_PAYLOAD_BYTES:
        return None
    if zlib.crc32(payload, zlib.crc32(head[_CRC.size :])) != crc:
        raise StoreError(
            f"journal: {path}: the record at byte {offset} is damaged: "
            "only the records before it can be replayed"
        )
    where = f"journal: {path}: the record at byte {offset}"
    if kind & _BUNDLE_BIT:
        records = unbundled(payload, where)
    else:
        records = [Record(known(kind & ~_PREAMBLE_BIT, where), AlignedNs(at), stream, payload)]
    return records, bool(kind & _PREAMBLE_BIT), _OVERHEAD + length


def _number(path: Path) -> int:
    return int(path.stem)


def _refused(folder: Path, error: OSError) -> str:
    return f"journal: {folder}: {error.strerror}: free some space or choose a writable --data-dir"
