"""Reads many dump files in parallel: one process per core, or none if the files are few and small.

The processes are our own (`frd.offline.load.reader_process`), started as plain programs: a fork
copies locks of threads that the caller may have, and multiprocessing's spawn runs the caller's main
module again, which a notebook or a script without a guard does not survive. Each reads one file at
a time, and one that dies takes down its file only. Their memory is limited; see there.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import RawIOBase
from pathlib import Path
from typing import IO, cast

from frd.offline.load.file_reading import Reader, Reading
from frd.offline.load.pipe import receive

MAX_READERS = 16
SMALL_BYTES = 4 * 1024 * 1024
"""So few bytes do no harm to the memory of this process, whatever they hold, and take no time."""
_AHEAD = 2
"""Files queued at a reader in advance, so that it never waits."""
_PIPE_BYTES = 1 << 20
_MAX_DEATHS = 64


def read_all(files: Mapping[int, Path]) -> Iterator[Reading]:
    """A `Reading` of every file, in the order of `files`.

    The order makes the answer the same however many readers there are.
    """
    if sum(_size(path) for path in files.values()) <= SMALL_BYTES or not sys.executable:
        reader = Reader(0)
        yield from (reader.read(rank, path) for rank, path in files.items())
        return
    early: dict[int, Reading] = {}
    turns = iter(files)
    turn = next(turns)
    with _Readers(files) as readers:
        for reading in readers.readings():
            early[reading.rank] = reading
            while (due := early.pop(turn, None)) is not None:
                yield due
                turn = next(turns, -1)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Readers:
    """The processes, and which file is where."""

    def __init__(self, files: Mapping[int, Path]) -> None:
        self._waiting = deque(files.items())
        self._selector = selectors.DefaultSelector()
        self._next_number = 0
        self._deaths = 0
        for _ in range(min(cores(), MAX_READERS, len(files))):
            self._start()

    def __enter__(self) -> _Readers:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._selector.get_map().values()):
            self._stop(key.data)
        self._selector.close()

    def readings(self) -> Iterator[Reading]:
        """As they are done; those of one reader in the order in which they were queued."""
        while self._selector.get_map():
            for key, _ in self._selector.select():
                process: _Process = key.data
                reading = process.receive()
                if reading is not None:
                    self._feed(process)
                    yield reading
                else:
                    yield from self._bury(process)

    def _start(self) -> None:
        process = _Process(self._next_number)
        self._next_number += 1
        self._selector.register(process.output, selectors.EVENT_READ, process)
        self._feed(process)

    def _feed(self, process: _Process) -> None:
        while self._waiting and len(process.files) < _AHEAD:
            process.send(*self._waiting.popleft())
        if not process.files:
            self._stop(process)

    def _bury(self, process: _Process) -> Iterator[Reading]:
        """It died of the file it was reading; the others of its files go to a new one."""
        self._stop(process)
        rank, path = process.files.popleft()
        self._waiting.extendleft(reversed(process.files))
        yield Reading(process.number, rank, None, f"{path}: reading it failed: left out")
        self._deaths += 1
        if self._deaths <= _MAX_DEATHS:
            self._start()
        elif not self._selector.get_map():
            for rank, path in self._waiting:
                yield Reading(process.number, rank, None, f"{path}: not read: readers keep dying")

    def _stop(self, process: _Process) -> None:
        self._selector.unregister(process.output)
        process.stop()


class _Process:
    """One reader process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.files: deque[tuple[int, Path]] = deque()
        """Told and not answered yet, oldest first."""
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "frd.offline.load.reader_process", str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            bufsize=0,
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._input: IO[bytes] = self._popen.stdin
        self.output = cast(RawIOBase, self._popen.stdout)
        _widen(self.output.fileno())

    def send(self, rank: int, path: Path) -> None:
        self.files.append((rank, path))
        with suppress(BrokenPipeError):  # its output ends too, and says so
            self._input.write(b"%d %b\0" % (rank, os.fsencode(path)))

    def receive(self) -> Reading | None:
        """The next answer, None when the process has died."""
        reading = receive(self.output)
        if reading is not None:
            self.files.popleft()
        return reading

    def stop(self) -> None:
        self._input.close()
        self.output.close()
        self._popen.terminate()
        self._popen.wait()


def _environment() -> dict[str, str]:
    """Where the caller finds its modules, a reader finds them too; one thread is enough for it."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _widen(descriptor: int) -> None:
    """A bigger pipe: fewer changes between processes. Where that is refused, none."""
    with suppress(AttributeError, OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
