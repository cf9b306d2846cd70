"""One dump file read: what a reader answers, wherever it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frd.errors import DumpError
from frd.flight.columns import Dictionaries, FileColumns
from frd.flight.entry import Frame
from frd.flight.load import load_columns
from frd.flight.names import Name
from frd.model import GroupInfo, Signature


@dataclass(frozen=True, slots=True)
class Gained:
    """Values that a reader's dictionaries have gained since its last answer, in order."""

    groups: list[GroupInfo]
    names: list[Name]
    signatures: list[Signature]
    stacks: list[tuple[Frame, ...]]
    threads: list[str]


NOTHING = Gained([], [], [], [], [])


@dataclass(frozen=True, slots=True)
class Reading:
    """One file's answer."""

    reader: int
    """Whose dictionaries the columns index."""
    rank: int
    columns: FileColumns | None
    """None when the file cannot be read."""
    error: str = ""
    gained: Gained = NOTHING


class Reader:
    """Reads files one after another, with its own dictionaries."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._into = Dictionaries()
        self._sent = [0, 0, 0, 0, 0]

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
        return Reading(self._number, rank, columns, error, self._gained())

    def _gained(self) -> Gained:
        into = self._into
        tables: list[Any] = [into.groups, into.names, into.signatures]
        tables += [into.stacks, into.threads]
        news = [table.items[sent:] for table, sent in zip(tables, self._sent, strict=True)]
        self._sent = [len(table.items) for table in tables]
        return Gained(*news)
