"""Dump files. The only module of this package that touches the file system."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from frd.errors import DumpError
from frd.flight.bulk import parse_columns
from frd.flight.columns import Dictionaries, FileColumns
from frd.flight.decode import MAX_BYTES, MAX_ENTRIES, parse, too_large
from frd.flight.entry import Dump


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


def load_columns(
    path: str | os.PathLike[str], into: Dictionaries, *, max_bytes: int = MAX_BYTES
) -> FileColumns:
    """The dump in one file as columns over `into`.

    Raises:
        DumpError: as `load_dump`.
    """
    path = Path(path)
    return parse_columns(_bytes(path, max_bytes), into, source=str(path), max_bytes=max_bytes)


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
