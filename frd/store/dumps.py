"""Dump folders that the service keeps: what every rank recorded when an incident opened.

A dump is a folder ``<id>/`` with ``summary.json``, ``<job>/rank_<rank>``, and in a separate folder
``<job>.meta/rank_<rank>.json`` and ``<job>.meta/rank_<rank>.stack.txt``: torchfrtrace reads every
file whose name contains ``rank_`` as a dump, so no other file may be next to them. This is the
layout that `frd dump` writes and ``torchfrtrace DIR/<job>`` reads.

A dump is filled under a hidden name and appears whole by one rename; nothing is ever overwritten.
The store is bounded by count and bytes, and evicts the oldest dumps of the job that has most.
Contents come from agents and are never interpreted; job names come from users and never become
paths unchecked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import tarfile
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from threading import RLock
from typing import Any

from frd.errors import StoreError
from frd.forms import utc_text
from frd.model import AlignedNs, AttemptKey
from frd.wire.messages import Part

SUMMARY = "summary.json"

_ID = re.compile(r"[0-9a-z-]{1,64}")
_UNFINISHED = ".unfinished-"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_SUFFIXES = {Part.DUMP: "", Part.IDENTITY: ".json", Part.STACK: ".stack.txt"}
_CHUNK_BYTES = 1 << 20


class DumpStore:
    """All dumps under `folder`, which the first dump creates. Any thread may use it.

    Raises:
        StoreError: from every method that writes, naming the path.
    """

    def __init__(self, folder: Path, *, max_count: int, max_bytes: int) -> None:
        self.folder = folder
        self.evicted = 0
        """Dumps deleted to stay within the bounds."""
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._lock = RLock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """Finished dumps and their bytes, oldest first."""
        self._jobs: dict[str, str] = {}
        """The name of the job's folder in each of them."""
        self._unfinished: dict[str, int] = {}
        """Bytes of the dumps that are being taken."""
        self._readers: Counter[str] = Counter()
        """A dump with readers is not evicted."""
        with contextlib.suppress(OSError):  # the first dump shows it
            for path in sorted(folder.iterdir()):
                if path.name.startswith(_UNFINISHED):
                    shutil.rmtree(path, ignore_errors=True)
                elif _ID.fullmatch(path.name) and path.is_dir():
                    folders = sorted(inner.name for inner in path.iterdir() if inner.is_dir())
                    self._jobs[path.name] = next(iter(folders), "")
                    self._sizes[path.name] = sum(file.stat().st_size for file in _files(path))
        self._make_room(0)

    def bound(self, *, max_count: int, max_bytes: int) -> None:
        """Change the bounds."""
        with self._lock:
            self._max_count, self._max_bytes = max_count, max_bytes
            self._make_room(0)

    def create(self, key: AttemptKey, now: AlignedNs) -> DumpWriter:
        """Start a dump of one attempt; see `DumpWriter.finish`."""
        # Ids sort by time, so that eviction is in order after a restart, too.
        stamp = datetime.fromtimestamp(now / 1e9, UTC).strftime("%Y%m%d-%H%M%S")
        dump_id = f"{stamp}-{now // 1_000_000 % 1000:03d}-{secrets.token_hex(4)}"
        return DumpWriter(self, dump_id, key, now)

    def ids(self) -> list[str]:
        """Oldest first."""
        with self._lock:
            return list(self._sizes)

    def identity(self, dump_id: str, rank: int) -> bytes | None:
        """``rank_<rank>.json``; None if there is none."""
        with self._lock, contextlib.suppress(OSError, KeyError):
            meta = self.folder / dump_id / f"{self._jobs[dump_id]}.meta"
            return (meta / f"rank_{rank}{_SUFFIXES[Part.IDENTITY]}").read_bytes()
        return None

    def tar(self, dump_id: str) -> Iterator[bytes] | None:
        """The folder as a tar stream, summary first; None when there is no such dump.

        The dump is not evicted while the stream is being read.

        Raises:
            StoreError: from the stream, when the dump was evicted before its first chunk.
        """
        with self._lock:
            return self._tar(dump_id) if dump_id in self._sizes else None

    def _tar(self, dump_id: str) -> Iterator[bytes]:
        with self._lock:
            if dump_id not in self._sizes:
                raise StoreError(f"dump: {dump_id}: was just evicted: use a later one")
            self._readers[dump_id] += 1
        try:
            yield from _tar_stream(self.folder / dump_id)
        finally:
            with self._lock:
                self._readers[dump_id] -= 1

    def _reserve(self, dump_id: str, size: int) -> None:
        """Make room for `size` more bytes of a dump that is being taken; negative: fewer."""
        with self._lock:
            of_dump = self._unfinished.get(dump_id, 0) + size
            if of_dump > self._max_bytes:
                raise StoreError(
                    f"dumps: {self.folder}: a dump exceeds the bound of {self._max_bytes} bytes: "
                    "dump fewer ranks or raise the bound"
                )
            self._unfinished[dump_id] = of_dump
            self._make_room(0)

    def _make_room(self, dumps: int) -> None:
        """Evict dumps without readers until `dumps` more fit the bounds: the oldest one of the job
        that has most."""
        while True:
            total = sum(self._sizes.values()) + sum(self._unfinished.values())
            too_many = len(self._sizes) + dumps > self._max_count
            evictable = [dump_id for dump_id in self._sizes if not self._readers[dump_id]]
            if not evictable or not (too_many or total > self._max_bytes):
                return
            held: Counter[str] = Counter()
            for dump_id, size in self._sizes.items():
                held[self._jobs[dump_id]] += 1 if too_many else size
            surplus = max(evictable, key=lambda dump_id: held[self._jobs[dump_id]])
            shutil.rmtree(self.folder / surplus, ignore_errors=True)
            del self._sizes[surplus], self._readers[surplus], self._jobs[surplus]
            self.evicted += 1


class DumpWriter:
    """A dump being taken: parts arrive in pieces, ranks in any order. One thread at a time."""

    def __init__(self, store: DumpStore, dump_id: str, key: AttemptKey, now: AlignedNs) -> None:
        self.id = dump_id
        self._store = store
        self._key = key
        self._now = now
        self._incomplete: set[Path] = set()
        self._root = store.folder / f"{_UNFINISHED}{dump_id}"
        self._job_folder = self._root / safe_name(key.job)
        self._meta_folder = self._root / f"{self._job_folder.name}.meta"
        try:
            store.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self._root, self._job_folder, self._meta_folder):
                folder.mkdir(mode=0o700)
        except OSError as error:
            raise _failed(store.folder, error) from None

    def add(self, rank: int, part: Part, data: bytes, *, last: bool) -> None:
        """Append a piece of one part of a rank.

        Raises:
            StoreError: the dump would exceed the store's bound, or the disk refuses.
        """
        folder = self._job_folder if part is Part.DUMP else self._meta_folder
        path = folder / f"rank_{int(rank)}{_SUFFIXES[part]}"
        self._incomplete.add(path)
        self._store._reserve(self.id, len(data))
        try:
            with path.open("ab") as file:
                file.write(data)
        except OSError as error:
            self._store._reserve(self.id, -len(data))
            raise _failed(self._store.folder, error) from None
        if last:
            self._incomplete.discard(path)

    def finish(self, summary: Mapping[str, Any]) -> str:
        """Complete the dump, with `summary` and its identity in summary.json; returns the id.

        Parts whose last piece is missing are left out.
        """
        document = {
            "id": self.id,
            "job": self._key.job,
            "attempt": self._key.attempt,
            "folder": self._job_folder.name,
            "taken_at": utc_text(self._now),
            **summary,
        }
        # ASCII JSON: a job name that is not UTF-8 is kept exactly.
        text = json.dumps(document, indent=1).encode("ascii")
        self._store._reserve(self.id, len(text))
        try:
            for path in self._incomplete:
                path.unlink(missing_ok=True)
            (self._root / SUMMARY).write_bytes(text)
            with self._store._lock:  # a late thread cannot finish an abandoned dump
                self._root.rename(self._store.folder / self.id)
                self._store._make_room(1)
                self._store._sizes[self.id] = self._store._unfinished.pop(self.id)
                self._store._jobs[self.id] = self._job_folder.name
        except OSError as error:
            self.abandon()
            raise _failed(self._store.folder, error) from None
        return self.id

    def abandon(self) -> None:
        """Delete everything; changes nothing once the dump is finished."""
        with self._store._lock:
            shutil.rmtree(self._root, ignore_errors=True)
            self._store._unfinished.pop(self.id, None)


def safe_name(job: str) -> str:
    """`job` as one file name: the name itself if it is plain, else a plain form with a digest.

    Different names stay different. summary.json has the true name.
    """
    if _PLAIN_NAME.fullmatch(job):
        return job
    digest = hashlib.blake2b(job.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", job).strip("._-")[:80]
    return f"{plain or 'job'}-{digest}"


def _tar_stream(root: Path) -> Iterator[bytes]:
    """A tar of the files below `root` in chunks, summary first."""
    for path in sorted(_files(root), key=lambda path: (path.name != SUMMARY, str(path))):
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            info = tarfile.TarInfo(str(path.relative_to(root)))
            info.size, info.mtime, info.mode = status.st_size, int(status.st_mtime), 0o600
            yield info.tobuf(tarfile.PAX_FORMAT)
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
        yield bytes(-info.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]


def _failed(folder: Path, error: OSError) -> StoreError:
    return StoreError(
        f"dumps: {folder}: {error.strerror}: free some space or choose a writable --data-dir"
    )
