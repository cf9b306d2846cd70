"""The records of many lines as numpy columns, over dictionaries of names and files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from frd.dftracer.key_table import KeyTable
from frd.dftracer.line import Event, Metadata
from frd.model import Int64s, UInt8s


class Texts(dict[str, int]):
    """Numbers texts in the order in which they come."""

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self)
        return number


@dataclass(slots=True)
class Calls:
    """The dictionaries of a reader: indexes of columns lead here."""

    names: Texts = field(default_factory=Texts)
    cats: Texts = field(default_factory=Texts)
    files: Texts = field(default_factory=Texts)
    """Keys of files, see `frd.dftracer.line.file_key`."""
    hashes: KeyTable = field(default_factory=lambda: KeyTable(words=2))
    """Index in `files` by the two words of a hash."""
    numbers: KeyTable = field(default_factory=lambda: KeyTable(words=1))
    """Index in `files` by a hash that is a number, as in v1."""
    texts: dict[tuple[int, int], KeyTable] = field(default_factory=dict)
    """What name and category mean (`frd.dftracer.scan`), by how many words each of them has."""
    kinds: dict[int, int] = field(default_factory=dict)
    """Kind by category and name, as `cat << 32 | name`."""


@dataclass(frozen=True, slots=True)
class Block:
    """The records of some lines; columns have one element a span, in the order of the lines."""

    name: Int64s
    """Index into `Calls.names`."""
    cat: Int64s
    kind: UInt8s
    pid: Int64s
    tid: Int64s
    start: Int64s
    """In the unit of the trace, since the epoch."""
    dur: Int64s
    file: Int64s
    """Index into `Calls.files`, -1 for none."""
    nbytes: Int64s
    """Bytes read or written, 0 for other calls."""
    failed: UInt8s
    """1 if the record says that the call failed."""
    epoch: Int64s
    """-1 for none; calls of I/O have none."""
    step: Int64s
    host: str
    """The key of the first host that is named; a file is of one process, so of one host."""
    metadata: Sequence[Metadata] = ()
    tracer: Sequence[Event] = ()
    """`start` and `end` of processes, and forks: as objects, with all arguments."""
    aggregated: int = 0
    """Records that sum up many calls, and have no span."""
    broken: int = 0
    first_broken: str = ""
    stepped: int = 0
    """Spans whose clock stepped back, so that their duration is unknown and 0."""

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: Int64s) -> Block:
        """Some of the spans."""
        columns: dict[str, Any] = {
            name: column[rows]
            for name in self.__slots__
            if isinstance(column := getattr(self, name), np.ndarray)
        }
        return replace(self, **columns)
