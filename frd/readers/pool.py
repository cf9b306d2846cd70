"""Dump files: one, or many in parallel: one process per core, or none if they are few and small.

The processes are our own (`frd.readers.process`), started as plain programs: a fork copies locks of
threads that the caller may have, and multiprocessing's spawn runs the caller's main module again,
which a notebook or a script without a guard does not survive. Each has a thread here that requests
one file at a time, and one that dies costs one file. Their memory and time are limited; see there.

An archive of dumps is unpacked into a folder, in a reader process. Only regular files are written,
with their times. Names that lead out of the folder are refused, and the disk space that all files
need is bounded, which bounds their number, too.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import select
import shutil
import stat
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

from frd.errors import DumpError, FrdError
from frd.flight.bulk import parse_columns
from frd.flight.decode import MAX_ANSWERED, MAX_BYTES, MAX_ENTRIES, parse, too_large
from frd.flight.entry import Dump, Entry
from frd.flight.trace import Dictionaries, FileColumns
from frd.readers.process import MAX_CPU_S, MAX_MEMORY_BYTES

MAX_READERS = 16
SMALL_BYTES = 4 * 1024 * 1024
"""Files of fewer bytes in all are read in this process, unless one is compressed: they fit its
memory whatever they hold, and take a second."""
_GZIP: Final = b"\x1f\x8b"
_PIPE_BYTES = 1 << 20
_MAX_DEATHS = 64
_MAX_S: Final = 600
"""For one file: a file system may not answer, or other programs use all cores."""
_TOGETHER: Final = 1_000
"""Entries. They take 2 ms to load."""
_ENDINGS: Final = (".tar", ".tar.gz", ".tgz", ".zip")
_MAX_UNPACKED_BYTES: Final = 16 * MAX_BYTES
_MAX_PARTS: Final = 32
"""Of a name: deeper folders cannot be removed again."""
_BLOCK_BYTES: Final = 4096
"""Disk space that a file takes at least."""
_Member: TypeAlias = tuple[str, int, float, Callable[[], Any]]
"""A regular file: name, bytes, Unix time, content."""


class ReaderDied(FrdError):
    """The process that read a file was ended."""


def read_all(files: Mapping[int, Path]) -> Iterator[Reading]:
    """A `Reading` of every file, in the order of `files`.

    The order makes the answer the same however many readers there are.
    """
    is_small = sum(_size(path) for path in files.values()) <= SMALL_BYTES
    if not sys.executable or (is_small and not any(map(is_packed, files.values()))):
        reader = Reader()
        yield from (reader.read(rank, path) for rank, path in files.items())
        return
    readers = _Readers(min(cores(), MAX_READERS, len(files)))
    try:
        yield from readers.pool.map(readers.read, files.items())
    finally:
        readers.stop()


def is_packed(path: Path) -> bool:
    """Whatever its name. A pipe is not opened: it could be read only once."""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(len(_GZIP)) == _GZIP
    return False


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
        self._lock = threading.Lock()
        self._processes: list[ReaderProcess] = []
        self._most = threads + _MAX_DEATHS

    def read(self, item: tuple[int, Path]) -> Reading:
        rank, path = item
        number: int | None = getattr(self._own, "number", None)
        if number is None:
            with self._lock:
                if len(self._processes) >= self._most:
                    return Reading(rank, None, f"{path}: not read: readers keep dying")
                number = self._own.number = len(self._processes)
                self._processes.append(ReaderProcess())
        process = self._processes[number]
        try:
            process.ask(read_columns, rank, path)
            reading: Reading = process.answer()
            return replace(reading, reader=number)
        except ReaderDied as error:
            self._own.number = None
            return Reading(rank, None, f"{path}: {error}")

    def stop(self) -> None:
        """Without waiting for a file that is being read."""
        with self._lock:
            self._most = 0
        for process in self._processes:
            process.kill()
        self.pool.shutdown(cancel_futures=True)
        for process in self._processes:
            process.stop()


class ReaderProcess:
    """One reader process. It can be used by one thread at a time.

    It finds modules where the caller does, and numpy in it uses one thread.
    """

    def __init__(self, memory_bytes: int = MAX_MEMORY_BYTES, cpu_s: int = MAX_CPU_S) -> None:
        self._limits = f"limits: {cpu_s} s of one core, {memory_bytes >> 20} MiB"
        path = os.pathsep.join(entry for entry in sys.path if entry)
        one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "frd.readers.process", str(memory_bytes), str(cpu_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, **one_thread},
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._input, self._output = self._popen.stdin, self._popen.stdout
        self._answers = select.poll()
        self._answers.register(self._output, select.POLLIN)
        # A larger pipe means fewer switches between processes; optional.
        with suppress(AttributeError, OSError):
            fcntl.fcntl(self._output, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def ask(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a module's function, which reads a file. Its answer has begun then, or is late."""
        with suppress(OSError):  # it has died: `answer` says so
            pickle.dump((function, arguments), self._input)
            self._input.flush()
        self._is_late = not self._answers.poll(1000 * _MAX_S)

    def answer(self) -> Any:
        """The result; or the next item of a generator, and None at its end.

        Raises:
            ReaderDied: the process has died, and must be stopped.
        """
        how = f"because it gave no answer within {_MAX_S} s"
        if not self._is_late:
            try:
                return pickle.load(self._output)  # noqa: S301  of our own process
            except (OSError, EOFError, pickle.UnpicklingError):
                status = self._popen.wait()
                how = f"by signal {-status}" if status < 0 else f"with status {status}"
        why = f"the process that read it ended {how} ({self._limits})"
        raise ReaderDied(f"{why}: the rest is left out, the file may be hostile: move it away")

    def kill(self) -> None:
        self._popen.kill()

    def stop(self) -> None:
        self.kill()
        with suppress(BrokenPipeError):
            self._input.close()
        self._output.close()
        with suppress(subprocess.TimeoutExpired):  # its disk does not answer
            self._popen.wait(timeout=1)


def load_dump(
    path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES, most: int = MAX_ENTRIES
) -> Dump:
    """The dump in one file, its path as the source.

    Raises:
        DumpError: as `parse`, and when the file cannot be read or is no regular file (opening a
            pipe that torch listens on would wait for ever, or order a dump).
    """
    path = Path(path)
    data = _bytes(path, max_bytes)
    return parse(data, source=str(path), max_bytes=max_bytes, most=most)


def _bytes(path: Path, max_bytes: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise DumpError(f"{path}: no regular file: name a dump file")
            if status.st_size > max_bytes:
                raise too_large(str(path), max_bytes)
            return file.read(status.st_size)
    except (OSError, ValueError) as error:
        raise DumpError(f"{path}: cannot be read ({error})") from error


@dataclass(frozen=True, slots=True)
class Reading:
    """The columns of one file, or the error."""

    rank: int
    columns: FileColumns | None
    """None when the file cannot be read."""
    error: str = ""
    gained: Sequence[list[Any]] = ()
    """New values of the reader's dictionaries since its last file, by table."""
    reader: int = 0
    """Whose dictionaries the columns index."""


class Reader:
    """Reads files one after another, with its own dictionaries."""

    def __init__(self) -> None:
        self._into = Dictionaries()
        self._sent = [0] * len(self._into.tables)

    def read(self, rank: int, path: Path) -> Reading:
        """Never raises: an error in one file must not stop the reading of the others."""
        columns, error = None, ""
        try:
            columns = parse_columns(_bytes(path, MAX_BYTES), self._into, source=str(path))
        except Exception as problem:
            error = _why(path, problem)
        tables = [table.items for table in self._into.tables]
        gained = [items[sent:] for items, sent in zip(tables, self._sent, strict=True)]
        self._sent = [len(items) for items in tables]
        return Reading(rank, columns, error, gained)


_reader: Final = Reader()


def read_columns(rank: int, path: Path) -> Reading:
    """By the one reader of a reader process."""
    return _reader.read(rank, path)


def read_dump(path: Path, max_bytes: int) -> Iterator[Dump | tuple[Entry, ...] | str]:
    """The dump without its entries, then these, some at a time: a pickle of all would need as much
    memory again, and nothing else would run while it is loaded. Or the error as text."""
    try:
        dump = load_dump(path, max_bytes=max_bytes, most=MAX_ANSWERED)
    except Exception as problem:
        yield _why(path, problem)
        return
    yield replace(dump, entries=())
    for at in range(0, len(dump.entries), _TOGETHER):
        yield dump.entries[at : at + _TOGETHER]


def _why(path: Path, problem: Exception) -> str:
    match problem:
        case DumpError():
            return str(problem)
        case MemoryError():
            return f"{path}: needs more memory than any valid dump: left out"
    return f"{path}: cannot be read ({type(problem).__name__}: {problem}): left out"


def is_archive(path: Path) -> bool:
    """By its name; a folder is not one."""
    return path.name.lower().endswith(_ENDINGS) and path.is_file()


@contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """A temporary folder with its files, written by a process whose memory and time are limited.

    Raises:
        DumpError: it is damaged, hostile or too large, or there is no room.
    """
    try:
        scratch = TemporaryDirectory(prefix="frd-")
    except OSError as why:
        raise DumpError(f"{archive}: {why}: set TMPDIR, or unpack it and name the folder") from why
    with scratch:
        into = Path(scratch.name, archive.name)
        into.mkdir()
        process = ReaderProcess()
        try:
            process.ask(write_members, archive, into)
            error = process.answer()
        except ReaderDied as died:
            error = str(died)
        finally:
            process.stop()
        if error:
            raise DumpError(f"{archive}: {error}")
        try:
            yield into
        except DumpError as why:
            raise DumpError(str(why).replace(str(into), str(archive))) from why


def write_members(archive: Path, into: Path) -> str:
    """The error, empty if there is none. Never raises."""
    members = _of_zip if archive.name.lower().endswith(".zip") else _of_tar
    left, parent = _MAX_UNPACKED_BYTES, os.getppid()
    try:
        for name, size, at, content in members(archive):
            if os.getppid() != parent:
                raise ChildProcessError("the process that needs the files has ended")
            left -= max(size, _BLOCK_BYTES)
            if left < 0:
                raise ValueError(f"{name[:128]!r}: over {_MAX_UNPACKED_BYTES} bytes so far")
            inside = PurePosixPath(name)
            if inside.is_absolute() or ".." in inside.parts:
                raise ValueError(f"{name[:128]!r}: leads out of the archive")
            if len(inside.parts) > _MAX_PARTS:
                raise ValueError(f"{name[:128]!r}: more than {_MAX_PARTS} folders deep")
            path = into / inside
            path.parent.mkdir(parents=True, exist_ok=True)
            with content() as source, path.open("wb") as file:
                shutil.copyfileobj(source, file)
            os.utime(path, (at, at))
    except Exception as error:
        return f"cannot be unpacked ({error}): name a folder of dumps"
    return ""


def _of_tar(path: Path) -> Iterator[_Member]:
    with tarfile.open(path) as archive:
        for one in archive:
            if one.isreg():
                yield one.name, one.size, one.mtime, partial(archive.extractfile, one)
        file: Any = archive.fileobj
        file.seek(archive.offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("damaged header")  # `tarfile` takes it for the end


def _of_zip(path: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(path) as archive:
        for one in archive.infolist():
            kind = stat.S_IFMT(one.external_attr >> 16)
            if not one.is_dir() and kind in (0, stat.S_IFREG):
                at = time.mktime((*one.date_time, 0, 0, -1))
                yield one.filename, one.file_size, at, partial(archive.open, one)
