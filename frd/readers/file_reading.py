"""Reads one dump file, in this process or in a reader process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from frd.errors import DumpError
from frd.flight.columns import Dictionaries, FileColumns
from frd.flight.decode import MAX_ANSWERED
from frd.flight.entry import Dump, Entry
from frd.flight.load import load_columns, load_dump

_TOGETHER: Final = 1_000
"""Entries. They take 2 ms to load."""


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
            columns = load_columns(path, self._into)
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
