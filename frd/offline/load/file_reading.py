"""Reads one dump file into a `Reading`, in this process or in a reader process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frd.errors import DumpError
from frd.flight.columns import Dictionaries, FileColumns
from frd.flight.load import load_columns


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
        except DumpError as problem:
            error = str(problem)
        except MemoryError:
            error = f"{path}: needs more memory than any valid dump: left out"
        except Exception as problem:
            error = f"{path}: cannot be read ({type(problem).__name__}: {problem}): left out"
        tables = [table.items for table in self._into.tables]
        gained = [items[sent:] for items, sent in zip(tables, self._sent, strict=True)]
        self._sent = [len(items) for items in tables]
        return Reading(self._number, rank, columns, error, gained)
