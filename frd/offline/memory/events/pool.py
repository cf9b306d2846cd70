"""Reads pieces of files in several processes.

The processes are those of `frd.readers`. Each has a thread here.
This process reads, too, until the first of them is ready, and then only collects: if it decoded, it
would hold the interpreter's lock, for which the threads would wait. Parts are returned in the order
of the pieces, and a reader that is far ahead waits, so memory is bounded. A process that dies costs
its piece, and is replaced.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Full, Queue
from types import TracebackType
from typing import Final, Self

from frd.errors import TelemetryError
from frd.offline.memory.events.files import EventFile, Part, Piece, lost, parts_of
from frd.readers.pool import start_reader
from frd.readers.process import MAX_CPU_S, MAX_MEMORY_BYTES

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
    """Use it as a context; leaving it ends the processes. With `apart`, this process reads nothing,
    since a piece may be hostile."""

    def __init__(self, readers: int, *, apart: bool = False) -> None:
        self._readers = readers if sys.executable else 1
        self._apart = apart and bool(sys.executable)
        self._closed = threading.Event()
        self._processes: list[_Process] = []
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
        for process in self._processes:
            process.end()
        for thread in self._threads:
            thread.join()
        for process in self._processes:
            process.close()

    def read(self, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Iterator[Part]]]:
        """Each piece with its parts, in order; the parts must be taken before the next piece."""
        if self._readers <= 1 and not self._apart:
            yield from ((piece, EventFile(piece).parts()) for piece in pieces)
            return
        jobs = [_Job(piece) for piece in pieces]
        self._start(jobs)
        for job in jobs:
            if not (self._apart or self._ready.is_set()) and self._claim(job):
                yield job.piece, EventFile(job.piece).parts()
            else:
                yield job.piece, _taken(job)
                self._room.release()

    def _start(self, jobs: Sequence[_Job]) -> None:
        self._left = deque(jobs)
        self._ready = threading.Event()
        self._room = threading.Semaphore(_AHEAD * self._readers)
        self._processes = [_Process() for _ in range(self._readers)]
        self._threads = [
            threading.Thread(target=self._work, args=(process,), name="frd-read", daemon=True)
            for process in self._processes
        ]
        for thread in self._threads:
            thread.start()

    def _claim(self, job: _Job) -> bool:
        """True if no process has the job: this process may do it."""
        with self._lock:
            if is_left := bool(self._left) and self._left[0] is job:
                self._left.popleft()
        return is_left

    def _work(self, process: _Process) -> None:
        process.wait()
        self._ready.set()
        job = self._take(wait=True)
        if job is not None:
            process.ask(job.piece)
        while job is not None:
            # The process has its next piece before this one is taken from it, so it never waits.
            following = self._take(wait=False)
            if following is not None:
                process.ask(following.piece)
            part = None
            try:
                for part in process.parts():
                    self._put(job, part)
            except Exception as error:
                self._put(job, lost(job.piece, part, str(error)))
                process = self._replaced(process)
                if following is not None:
                    process.ask(following.piece)
            self._put(job, None)
            if following is None and (following := self._take(wait=True)) is not None:
                process.ask(following.piece)
            job = following

    def _take(self, *, wait: bool) -> _Job | None:
        """The next piece; None if there is none, or no room for its parts."""
        while not self._room.acquire(timeout=_LOOK_S if wait else 0):
            if not wait or self._closed.is_set():
                return None
        with self._lock:
            job = self._left.popleft() if self._left and not self._closed.is_set() else None
        if job is None:
            self._room.release()  # for the next thread, which finds none either
        return job

    def _replaced(self, process: _Process) -> _Process:
        with self._lock:
            if self._closed.is_set():
                return process
            process = _Process()
            self._processes.append(process)
        process.wait()
        return process

    def _put(self, job: _Job, part: Part | None) -> None:
        while not self._closed.is_set():
            with suppress(Full):
                job.parts.put(part, timeout=_LOOK_S)
                return


def _taken(job: _Job) -> Iterator[Part]:
    while (part := job.parts.get()) is not None:
        yield part


class _Process:
    """One reader process."""

    def __init__(self) -> None:
        limits = str(MAX_MEMORY_BYTES), str(MAX_CPU_S)
        self._popen, self._input, self._output = start_reader("frd.readers.process", *limits)
        self.ask(None)

    def wait(self) -> None:
        """Until it is ready, or has died."""
        with suppress(TelemetryError):
            for _ in self.parts():
                pass

    def ask(self, piece: Piece | None) -> None:
        with suppress(OSError):  # it has died: `parts` says so
            pickle.dump((parts_of, (piece,)), self._input)
            self._input.flush()

    def parts(self) -> Iterator[Part]:
        """Of the pieces in the order in which they were asked for, a piece a call.

        Raises:
            TelemetryError: the process has died.
        """
        try:
            while (part := pickle.load(self._output)) is not None:  # noqa: S301  of our own process
                yield part
        except (OSError, EOFError, pickle.UnpicklingError):
            status = self._popen.wait()
            how = f"by signal {-status}" if status < 0 else f"with status {status}"
            raise TelemetryError(
                f"the process that read it was ended {how}: it took too long, or memory ran out: "
                "what is before that is used; the file may be hostile, leave it out"
            ) from None

    def end(self) -> None:
        self._popen.terminate()
        self._popen.wait()

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self._input.close()
        self._output.close()
