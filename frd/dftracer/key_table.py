"""What keys of several 64-bit words mean, remembered for whole columns of keys.

A trace names the same thousand files and dozen calls in each of its lines. To find the different
keys of a column by sorting it takes a quarter of the time of an analysis; a table by a hash of the
key takes a tenth of that. A slot has the key that came last: others with the same slot are only
slower. All words of a key are compared, so that the hash never decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from frd.model import Bools, Int64s

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
