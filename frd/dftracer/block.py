"""The records of many lines as numpy columns, over dictionaries of names and files.

A trace names the same thousand files and dozen calls in each of its lines. To find the different
keys of a column by sorting it takes a quarter of the time of an analysis; a table by a hash of the
key (`KeyTable`) takes a tenth of that. A slot has the key that came last: others with the same slot
are only slower. All words of a key are compared, so that the hash never decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from frd.dftracer.line import Event, Metadata
from frd.model import Bools, Int64s, UInt8s

UInt64s: TypeAlias = npt.NDArray[np.uint64]

_SLOT_BITS: Final = 16
_SHIFT: Final = np.uint64(64 - _SLOT_BITS)


class KeyTable:
    """Integers of at least 0 by key."""

    def __init__(self, words: int, values: int = 1) -> None:
        """Keys are of that many words, and each has that many integers."""
        self._keys: UInt64s = np.zeros((words, 1 << _SLOT_BITS), np.uint64)
        self._values: Int64s = np.full((values, 1 << _SLOT_BITS), -1, np.int64)

    def find(
        self,
        mixed: UInt64s,
        words: Sequence[UInt64s],
        wanted: Bools,
        meaning: Callable[[int], Sequence[int]],
    ) -> tuple[Int64s, Bools]:
        """The values of each key, shape (values, n), and which of the wanted ones have some.

        Args:
            mixed: a hash of each key, of which the highest bits are used.
            words: the keys, a column a word.
            wanted: rows that are keys; no value of others means anything.
            meaning: the values of the key in a row, of one that is new or was forgotten.
        """
        slot = (mixed >> _SHIFT).view(np.int64)
        values: Int64s = self._values[:, slot]
        is_known: Bools = values[0] >= 0
        for column, word in zip(self._keys, words, strict=True):
            is_known &= column[slot] == word
        rows = np.flatnonzero(wanted & ~is_known)
        if not len(rows):
            return values, wanted
        _, first, index = np.unique(mixed[rows], return_index=True, return_inverse=True)
        first = rows[first]
        learned = np.array([meaning(row) for row in first.tolist()], np.int64).T
        self._values[:, slot[first]] = learned
        is_same = np.ones(len(rows), np.bool_)
        for column, word in zip(self._keys, words, strict=True):
            column[slot[first]] = word[first]
            is_same &= word[rows] == word[first][index]
        values[:, rows] = learned[:, index]
        found = wanted.copy()
        found[rows] = is_same
        return values, found


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
