"""Reads pieces of files in several processes.

The processes are those of `frd.readers`. Each has a thread here. This process only collects: if it
decoded, it would hold the interpreter's lock, for which the threads would wait. Parts are returned
in the order of the pieces, and a reader that is far ahead waits, so memory is bounded. A process
that dies costs its piece, and is replaced.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Full, Queue
from typing import Final

from frd.offline.memory.events.files import EventFile, Part, Piece, lost, parts_of
from frd.readers.pool import ReaderDied, ReaderProcess

_AHEAD: Final = 4
"""Pieces a reader that may be read, or wait, before their turn."""
_MAX_PARTS: Final = 16
"""Of one piece that may wait."""
_LOOK_S: Final = 0.2
"""How often a waiting reader looks whether the pool was closed."""


_Job = tuple[Piece, "Queue[Part | None]"]
"""A piece, and what was read of it so far; None ends it."""


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
