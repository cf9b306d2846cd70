"""Reads all files of a recording into one `Recorded`, with the warnings about them.

Large recordings are read by several processes (those of `frd.readers`), a piece each; the
result does not depend on how many there are, because parts are taken in the order of the files.

Each reader has a thread here. This process only collects: if it decoded, it would hold the
interpreter's lock, for which the threads would wait. A reader that is far ahead waits, so memory is
bounded. A process that dies costs its piece, and is replaced.

Clocks that run back are found by samples of one source whose times fall within a file. Trackers
append samples as they take them. If a clock is set back, samples of two times are between each
other once they are sorted, and look like a jump. Files that are joined in the wrong order look the
same. So nothing that depends on the times of such a source is certain.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from queue import Full, Queue
from typing import Final

import numpy as np

from frd.forms import span_text
from frd.model import Int32s, Int64s
from frd.offline.memory.events.files import (
    EventFile,
    Part,
    Piece,
    lost,
    parts_of,
    pieces_of,
)
from frd.offline.memory.events.lines import MAX_BAD
from frd.offline.memory.samples import Recorded, Samples
from frd.readers.pool import ReaderDied, ReaderProcess, cores, is_packed

SMALL_BYTES: Final = 64 << 20
"""Fewer bytes of text in all are read here: other processes take 0.2 s to start."""
_PACKED: Final = 8
"""Bytes of text in one byte of a gzipped file, about."""
_PIECE_BYTES: Final = 48 << 20
"""Of a large file for one reader; in each piece the form of its lines is learned again."""
MAX_READERS: Final = 8

Progress = Callable[[int, int], None]
"""Called with the bytes that are read, and the bytes of all files."""
_AHEAD: Final = 4
"""Pieces a reader that may be read, or wait, before their turn."""
_MAX_PARTS: Final = 16
"""Of one piece that may wait."""
_LOOK_S: Final = 0.2
"""How often a waiting reader looks whether the pool was closed."""


_Job = tuple[Piece, "Queue[Part | None]"]
"""A piece, and what was read of it so far; None ends it."""


def read_recording(
    files: Sequence[Path],
    warnings: list[str],
    progress: Progress = lambda done, total: None,
    readers: int | None = None,
) -> Recorded:
    """All events of some files; `warnings` gets what is wrong with them.

    Args:
        readers: how many processes read, 1 for only this one, unless a file is compressed; by
            default one a core, and one if the recording is small.
    """
    sizes = [path.stat().st_size if path.is_file() else 0 for path in files]
    total = sum(sizes)
    if readers is None:
        text = sum(
            size * (_PACKED if path.suffix == ".gz" else 1)
            for path, size in zip(files, sizes, strict=True)
        )
        readers = 1 if text < SMALL_BYTES else min(cores(), MAX_READERS)
    pieces: list[Piece] = []
    for number, (path, size) in enumerate(zip(files, sizes, strict=True)):
        pieces += pieces_of(number, path, _PIECE_BYTES if readers > 1 else size)
    collected = _Collected(warnings)
    before = [0, *accumulate(sizes)]
    apart = any(map(is_packed, files))
    for piece, parts in read_pieces(pieces, min(readers, len(pieces)), apart=apart):
        collected.begin(piece)
        for part in parts:
            collected.add(part)
            progress(before[piece.file] + part.at, total)
    return collected.recorded()


class _Collected:
    """Parts of pieces, in the order of the files."""

    def __init__(self, warnings: list[str]) -> None:
        self._samples = Samples()
        self._warnings = warnings
        self._piece: Piece | None = None
        self._identities = self._origins = np.empty(0, np.int32)
        """By number in the piece: the number here."""
        self._listed = self._more = 0
        """Refusals of the file."""
        self._before = self._count = 0
        """Lines of the pieces before, and of this one."""
        self._order = TimeOrder()

    def begin(self, piece: Piece) -> None:
        if self._piece is None or self._piece.file != piece.file:
            self._end_file()
            self._before = self._count = self._listed = self._more = 0
        self._before, self._count = self._before + self._count, 0
        self._piece = piece
        self._identities = self._origins = np.full(1, -1, np.int32)

    def _end_file(self) -> None:
        if self._piece is None:
            return
        if self._more:
            more = f"{self._more} more that cannot be read: left out, too"
            self._warnings.append(f"{self._piece.path}: {more}")
        if backward := self._order.end_file():
            self._warnings.append(f"{self._piece.path}: {backward}: no onset there is certain")

    def add(self, part: Part) -> None:
        assert self._piece is not None
        sources = self._samples.sources
        self._identities = _extended(self._identities, map(sources.identity, part.identities))
        self._origins = _extended(self._origins, map(sources.origin, part.origins))
        block = part.block
        # The last place is for -1.
        identity, origin = self._identities[block.identity], self._origins[block.origin]
        if len(block):
            lines = part.count - self._count
            unit = part.unit if lines == len(block) else f"near {part.unit}"
            self._order.add(identity, block.at_ns, unit, self._before + self._count)
        self._samples.add(replace(block, identity=identity, origin=origin))
        self._samples.mark(part.marks)
        self._warn(self._piece.path, part)
        self._count = part.count

    def _warn(self, path: Path, part: Part) -> None:
        for number, why in part.refusals.first:
            if self._listed < MAX_BAD:
                at = f"{part.unit} {self._before + number}"
                self._warnings.append(f"{path}: {at}: {why}: left out")
                self._listed += 1
            else:
                self._more += 1
        self._more += part.refusals.more
        self._warnings += [f"{path}: {why}" for why in part.damage]

    def recorded(self) -> Recorded:
        self._end_file()
        return self._samples.recorded(self._order.backward)


def _extended(numbers: Int32s, more: Iterator[int]) -> Int32s:
    return np.concatenate((numbers[:-1], np.fromiter(more, np.int32), numbers[-1:]))


def read_pieces(
    pieces: Sequence[Piece], readers: int, *, apart: bool = False
) -> Iterator[tuple[Piece, Iterator[Part]]]:
    """Each piece with its parts, in order; the parts must be taken before the next piece. One
    reader is this process, which with `apart` reads nothing, since a piece may be hostile."""
    if not sys.executable or (readers <= 1 and not apart):
        yield from ((piece, EventFile(piece).parts()) for piece in pieces)
        return
    pool = _Pool(pieces, readers)
    try:
        pool.start()
        for piece, parts in pool.jobs:
            yield piece, iter(parts.get, None)
            pool.room.release()
    finally:
        pool.stop()


class _Pool:
    def __init__(self, pieces: Sequence[Piece], readers: int) -> None:
        self.jobs: list[_Job] = [(piece, Queue(maxsize=_MAX_PARTS)) for piece in pieces]
        self.room = threading.Semaphore(_AHEAD * readers)
        self._left = iter(self.jobs)
        self._readers = readers
        self._threads = ThreadPoolExecutor(readers)
        self._closed = threading.Event()
        self._processes: list[ReaderProcess] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        for _ in range(self._readers):
            self._threads.submit(self._work, self._started())

    def stop(self) -> None:
        with self._lock:
            self._closed.set()
        self.room.release()
        for process in self._processes:
            process.kill()
        self._threads.shutdown()
        for process in self._processes:
            process.stop()

    def _started(self) -> ReaderProcess:
        with self._lock:
            process = ReaderProcess()
            self._processes.append(process)
            if self._closed.is_set():
                process.kill()
        return process

    def _work(self, process: ReaderProcess) -> None:
        while (job := self._take()) is not None:
            part, (piece, parts) = None, job
            try:
                process.ask(parts_of, piece)
                for part in iter(process.answer, None):
                    self._put(parts, part)
            except ReaderDied as error:
                self._put(parts, lost(piece, part, str(error)))
                process = self._started()
            self._put(parts, None)

    def _take(self) -> _Job | None:
        """The next piece, once there is room for its parts; None if there is none."""
        self.room.acquire()
        job = None if self._closed.is_set() else next(self._left, None)
        if job is None:
            self.room.release()  # for the next thread, which finds none either
        return job

    def _put(self, parts: Queue[Part | None], part: Part | None) -> None:
        while not self._closed.is_set():
            with suppress(Full):
                parts.put(part, timeout=_LOOK_S)
                return


class TimeOrder:
    """The sources of one file after another; their numbers are those of all files."""

    def __init__(self) -> None:
        self.backward: set[int] = set()
        """Sources whose times fell."""
        self._latest: dict[int, int] = {}
        self._first = ""
        self._count = 0

    def end_file(self) -> str:
        """A text about the file that ends; empty if all is well."""
        text = self._first
        if self._count > 1:
            text += f", and {self._count - 1:,} times more in this file"
        self._latest, self._first, self._count = {}, "", 0
        return text

    def add(self, source: Int32s, at_ns: Int64s, unit: str, before_rows: int) -> None:
        """Rows in the order of the file.

        Args:
            source: (n,) numbers, -1 for none.
            at_ns: (n,) their times.
            unit: what a row is for people, such as ``line``.
            before_rows: how many of these were before.
        """
        order = np.arange(len(source))
        if (source != source[0]).any():
            order = np.argsort(source, kind="stable")
            source, at_ns = source[order], at_ns[order]
        starts = np.flatnonzero(np.diff(source, prepend=-2))
        before = np.concatenate((at_ns[:1], at_ns[:-1]))
        names = source[starts].tolist()
        before[starts] = [self._latest.get(name, 0) for name in names]
        back = np.flatnonzero((at_ns < before) & (source >= 0))
        ends = [*(starts[1:] - 1).tolist(), len(source) - 1]
        self._latest |= dict(zip(names, at_ns[ends].tolist(), strict=True))
        if not len(back):
            return
        self.backward |= set(source[back].tolist())
        if not self._count:
            place = back[order[back].argmin()]
            by = span_text(int(before[place] - at_ns[place]))
            number = before_rows + int(order[place]) + 1
            self._first = f"{unit} {number}: the clock runs back by {by}"
        self._count += len(back)
