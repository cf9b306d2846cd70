"""Dump files: reads one, in this process or in a reader process."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from frd.errors import DumpError
from frd.flight.bulk import parse_columns
from frd.flight.columns import Dictionaries, FileColumns
from frd.flight.decode import MAX_ANSWERED, MAX_BYTES, MAX_ENTRIES, parse, too_large
from frd.flight.entry import Dump, Entry

_TOGETHER: Final = 1_000
"""Entries. They take 2 ms to load."""


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
