"""Reads many dump files in parallel: one process per core, or none if the files are few and small.

The processes are our own (`frd.offline.load.reader_process`), started as plain programs: a fork
copies locks of threads that the caller may have, and multiprocessing's spawn runs the caller's main
module again, which a notebook or a script without a guard does not survive. Each has a thread here
that requests one file at a time, and one that dies costs one file. Their memory is limited; see
there.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

from frd.offline.load.file_reading import Reader, Reading

MAX_READERS = 16
SMALL_BYTES = 4 * 1024 * 1024
"""Files of fewer bytes in all are read in this process: they fit its memory whatever they hold."""
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
    readers = _Readers(min(cores(), MAX_READERS, len(files)))
    try:
        yield from readers.pool.map(readers.read, files.items())
    finally:
        readers.stop()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Readers:
    """One process per thread, so that each process reads its files in their order."""

    def __init__(self, threads: int) -> None:
        self.pool = ThreadPoolExecutor(threads)
        self._own = threading.local()
        self._processes: list[_Process] = []
        self._numbers = iter(range(threads + _MAX_DEATHS))

    def read(self, item: tuple[int, Path]) -> Reading:
        rank, path = item
        process: _Process | None = getattr(self._own, "process", None)
        if process is None:
            if (number := next(self._numbers, None)) is None:
                return Reading(-1, rank, None, f"{path}: not read: readers keep dying")
            process = self._own.process = _Process(number)
            self._processes.append(process)
        reading = process.read(rank, path)
        if reading is None:
            self._own.process = None
            return Reading(process.number, rank, None, f"{path}: reading it failed: left out")
        return reading

    def stop(self) -> None:
        self.pool.shutdown(cancel_futures=True)
        for process in self._processes:
            process.stop()


class _Process:
    """One reader process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._popen, self._input, self._output = start_reader(
            "frd.offline.load.reader_process", str(number)
        )

    def read(self, rank: int, path: Path) -> Reading | None:
        """None when the process has died."""
        try:
            self._input.write(b"%d %b\0" % (rank, os.fsencode(path)))
            self._input.flush()
            reading: Reading = pickle.load(self._output)  # noqa: S301  of our own process
        except (OSError, EOFError, pickle.UnpicklingError):
            return None
        return reading

    def stop(self) -> None:
        with suppress(BrokenPipeError):
            self._input.close()
        self._output.close()
        self._popen.terminate()
        self._popen.wait()


def start_reader(
    module: str, *arguments: str
) -> tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]:
    """A process of this Python that runs a module, its standard input and its output.

    It finds modules where the caller does, and numpy in it uses one thread.
    """
    path = os.pathsep.join(entry for entry in sys.path if entry)
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    popen = subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path, **one_thread},
    )
    assert popen.stdin is not None
    assert popen.stdout is not None
    _widen(popen.stdout.fileno())
    return popen, popen.stdin, popen.stdout


def _widen(descriptor: int) -> None:
    """A larger pipe means fewer switches between processes; optional."""
    with suppress(AttributeError, OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
