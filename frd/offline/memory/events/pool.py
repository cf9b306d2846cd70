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
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Full, Queue
from types import TracebackType
from typing import Final, Self

from frd.offline.memory.events.files import EventFile, Part, Piece, lost, parts_of
from frd.readers.pool import ReaderDied, ReaderProcess

_AHEAD: Final = 4
"""Pieces a reader that may be read, or wait, before their turn."""
_MAX_PARTS: Final = 16
"""Of one piece that may wait."""
_LOOK_S: Final = 0.2
"""How often a waiting reader looks whether the pool was closed."""


@dataclass(slots=True)
class _Job:
    """A piece, and what was read of it so far; None ends it."""

    piece: Piece
    parts: Queue[Part | None] = field(default_factory=lambda: Queue(maxsize=_MAX_PARTS))


class PiecePool:
    """Use it as a context; leaving it ends the processes. One reader is this process, which with
    `apart` reads nothing, since a piece may be hostile."""

    def __init__(self, readers: int, *, apart: bool = False) -> None:
        self._readers = readers if sys.executable and (apart or readers > 1) else 0
        self._closed = threading.Event()
        self._room = threading.Semaphore(_AHEAD * self._readers)
        self._processes: list[ReaderProcess] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._closed.set()
        self._room.release()
        for process in self._processes:
            process.kill()
        for thread in self._threads:
            thread.join()
        for process in self._processes:
            process.stop()

    def read(self, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Iterator[Part]]]:
        """Each piece with its parts, in order; the parts must be taken before the next piece."""
        if not self._readers:
            yield from ((piece, EventFile(piece).parts()) for piece in pieces)
            return
        jobs = [_Job(piece) for piece in pieces]
        self._left = iter(jobs)
        for _ in range(self._readers):
            process = self._started()
            thread = threading.Thread(target=self._work, args=(process,), daemon=True)
            self._threads.append(thread)
            thread.start()
        for job in jobs:
            yield job.piece, iter(job.parts.get, None)
            self._room.release()

    def _work(self, process: ReaderProcess) -> None:
        while (job := self._take()) is not None:
            part = None
            try:
                process.ask(parts_of, job.piece)
                for part in iter(process.answer, None):
                    self._put(job, part)
            except ReaderDied as error:
                self._put(job, lost(job.piece, part, str(error)))
                process = self._started()
            self._put(job, None)

    def _started(self) -> ReaderProcess:
        with self._lock:
            process = ReaderProcess()
            self._processes.append(process)
            if self._closed.is_set():
                process.kill()
        return process

    def _take(self) -> _Job | None:
        """The next piece, once there is room for its parts; None if there is none."""
        self._room.acquire()
        job = None if self._closed.is_set() else next(self._left, None)
        if job is None:
            self._room.release()  # for the next thread, which finds none either
        return job

    def _put(self, job: _Job, part: Part | None) -> None:
        while not self._closed.is_set():
            with suppress(Full):
                job.parts.put(part, timeout=_LOOK_S)
                return
