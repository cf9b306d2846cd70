"""Sums, smallest and largest values by key, over columns that come in blocks; bytes by time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from frd.model import Int64s

SUM: Final[Any] = np.add
LEAST: Final[Any] = np.minimum
MOST: Final[Any] = np.maximum

_MIN_PENDING: Final = 1 << 14
"""Rows that are kept before they are grouped."""
_MOST_BINS: Final = 1 << 17
_NARROW: Final = 1 << 16


class Grouped:
    """Columns with one row a key, each joined by its own function."""

    def __init__(self, how: Mapping[str, Any]) -> None:
        self._how = how
        self._keys: list[Int64s] = []
        self._columns: list[Sequence[Int64s]] = []
        self._pending = 0
        self._grouped = 0

    def add(self, keys: Int64s, **columns: Int64s) -> None:
        """`columns` are those of `how`, parallel to `keys`; keys may repeat."""
        if not len(keys):
            return
        self._keys.append(keys)
        self._columns.append([columns[name] for name in self._how])
        self._pending += len(keys)
        if self._pending > max(_MIN_PENDING, self._grouped):
            self._group()

    def rows(self) -> tuple[Int64s, dict[str, Int64s]]:
        """Sorted keys, and the columns by name."""
        self._group()
        if not self._keys:
            return np.empty(0, np.int64), {name: np.empty(0, np.int64) for name in self._how}
        return self._keys[0], dict(zip(self._how, self._columns[0], strict=True))

    def _group(self) -> None:
        if not self._pending:
            return
        keys = np.concatenate(self._keys)
        order = np.argsort(_narrow(keys), kind="stable")
        keys = keys[order]
        first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        columns = [
            join.reduceat(np.concatenate(parts)[order], first)
            for join, *parts in zip(self._how.values(), *self._columns, strict=True)
        ]
        self._keys, self._columns = [keys[first]], [columns]
        self._pending, self._grouped = 0, len(first)

    def __len__(self) -> int:
        """The number of keys, as of the last time that rows were grouped."""
        return self._grouped


def _narrow(keys: Int64s) -> npt.NDArray[Any]:
    """In the same order; of 16 bits if they fit, which numpy sorts by radix, ten times as fast."""
    least = keys.min()
    return (keys - least).astype(np.uint16) if keys.max() - least < _NARROW else keys


class BytesOverTime:
    """Bytes that were read and written, in bins of time. While there are too many bins, they become
    twice as wide. A bin counts as a whole, at the first time of its data."""

    def __init__(self) -> None:
        self._shift = 0
        self._bins = Grouped(_BYTES)

    def add(self, at: Int64s, read: Int64s, written: Int64s) -> None:
        self._bins.add(at >> self._shift, at=at, read=read, written=written)
        if len(self._bins) <= _MOST_BINS:
            return
        while len(self._bins) > _MOST_BINS // 2:
            keys, columns = self._bins.rows()
            self._shift += 1
            self._bins = Grouped(_BYTES)
            self._bins.add(keys >> 1, **columns)
            self._bins.rows()

    def rows(self) -> tuple[Int64s, Int64s, Int64s]:
        """Times, bytes read and bytes written."""
        _, columns = self._bins.rows()
        return columns["at"], columns["read"], columns["written"]


_BYTES: Final = {"at": LEAST, "read": SUM, "written": SUM}
