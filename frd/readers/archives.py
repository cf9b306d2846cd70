"""Unpacks an archive of dumps into a folder, in a reader process.

Only regular files are written, with their times. Names that lead out of the folder are refused, and
the disk space that all files need is bounded, which bounds their number, too.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

from frd.errors import DumpError
from frd.flight.decode import MAX_BYTES
from frd.readers.pool import ReaderDied, ReaderProcess

_ENDINGS: Final = (".tar", ".tar.gz", ".tgz", ".zip")
_MAX_UNPACKED_BYTES: Final = 16 * MAX_BYTES
_MAX_PARTS: Final = 32
"""Of a name: deeper folders cannot be removed again."""
_BLOCK_BYTES: Final = 4096
"""Disk space that a file takes at least."""
_Member: TypeAlias = tuple[str, int, float, Callable[[], Any]]
"""A regular file: name, bytes, Unix time, content."""


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
