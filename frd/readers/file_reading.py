"""Reads one dump file, in this process or in a reader process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from frd.errors import DumpError
from frd.flight.columns import Dictionaries, FileColumns
from frd.flight.decode import check_count
from frd.flight.entry import Dump
from frd.flight.load import load_columns, load_dump


@dataclass(frozen=True, slots=True)
class Reading:
    """The columns of one file, or the error."""

    reader: int
    """Whose dictionaries the columns index."""
    rank: int
    columns: FileColumns | None
    """None when the file cannot be read."""
    error: str = ""
    gained: Sequence[list[Any]] = ()
    """New values of the reader's dictionaries since its last file, by table."""


class Reader:
    """Reads files one after another, with its own dictionaries."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._into = Dictionaries()
        self._sent = [0] * len(self._into.tables)

    def read(self, rank: int, path: Path) -> Reading:
        """Never raises: an error in one file must not stop the reading of the others."""
        columns, error = None, ""
        try:
            columns = load_columns(path, self._into)
        except Exception as problem:
            error = _why(path, problem)
        tables = [table.items for table in self._into.tables]
        gained = [items[sent:] for items, sent in zip(tables, self._sent, strict=True)]
        self._sent = [len(items) for items in tables]
        return Reading(self._number, rank, columns, error, gained)


_readers: Final[dict[int, Reader]] = {}


def read_columns(number: int, rank: int, path: Path) -> Reading:
    """By the reader with that number, of which a process has one."""
    return _readers.setdefault(number, Reader(number)).read(rank, path)


def read_dump(path: Path, max_bytes: int) -> Dump | str:
    """The error as text."""
    try:
        dump = load_dump(path, max_bytes=max_bytes)
        check_count(len(dump.entries), str(path))
    except Exception as problem:
        return _why(path, problem)
    return dump


def _why(path: Path, problem: Exception) -> str:
    match problem:
        case DumpError():
            return str(problem)
        case MemoryError():
            return f"{path}: needs more memory than any valid dump: left out"
    return f"{path}: cannot be read ({type(problem).__name__}: {problem}): left out"
