"""From the indexes of one stream to the engine's handles, a whole column at a time.

An agent numbers its ranks, groups and signatures per stream; the engine numbers its own tables. The
arrays here convert one into the other. Ranks and groups get a row and a column within their
attempt, so that the table of pairs stays small when one stream reports many attempts. Pairs and
signatures are resolved when a batch first needs them, then looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from frd.engine.attempt import Attempt
from frd.errors import WireError
from frd.model import Int32s, RankInfo, Signature

_UNRESOLVED: Final = -2
MAX_PAIRS: Final = 1 << 24
"""Maximum of ranks times groups of one attempt on one stream."""


class IndexColumn:
    """A growing int32 column."""

    __slots__ = ("_fill", "_items", "count")

    def __init__(self, fill: int = 0) -> None:
        self._fill = fill
        self._items: Int32s = np.full(16, fill, np.int32)
        self.count = 0

    def append(self, value: int) -> None:
        if self.count == len(self._items):
            self.reserve(self.count + 1)
        self._items[self.count] = value
        self.count += 1

    def reserve(self, count: int) -> None:
        """Make `take` and `put` valid for indexes below `count`."""
        if count > len(self._items):
            grown = np.full(max(count, 2 * len(self._items)), self._fill, np.int32)
            grown[: len(self._items)] = self._items
            self._items = grown

    def put(self, index: int, value: int) -> None:
        self._items[index] = value

    def take(self, indexes: npt.NDArray[Any]) -> Int32s:
        return self._items.take(indexes)


class StreamHandles:
    """The handles of one attempt on one stream."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.ranks: list[RankInfo] = []
        """By row. The engine's handle of a rank is its global rank."""
        self.groups: list[int] = []
        """By column: the engine's handle."""
        self._pairs: Int32s = np.full((8, 16), _UNRESOLVED, np.int32)
        self._signatures = IndexColumn(_UNRESOLVED)

    def add_rank(self, info: RankInfo) -> int:
        """Returns the row of a rank."""
        self.ranks.append(info)
        self._grow()
        return len(self.ranks) - 1

    def add_group(self, handle: int) -> int:
        """Returns the column of a group."""
        self.groups.append(handle)
        self._grow()
        return len(self.groups) - 1

    def pairs(self, rows: npt.NDArray[Any] | int, columns: Int32s) -> Int32s:
        """Engine pair rows; -1 where the rank is no member of the group."""
        pairs: Int32s = self._pairs[rows, columns]
        if (new := pairs == _UNRESOLVED).any():
            self._resolve(np.broadcast_to(rows, pairs.shape)[new], columns[new])
            pairs = self._pairs[rows, columns]
        return pairs

    def signatures(
        self, indexes: npt.NDArray[Any], known: Sequence[Signature], *, may_lack: bool = False
    ) -> Int32s:
        """Engine signature handles; `known` is the stream's dictionary. With `may_lack` they are -1
        if the attempt has no room."""
        self._signatures.reserve(len(known))
        handles = self._signatures.take(indexes)
        if len(handles) and handles.min() < 0:
            for index in np.unique(indexes[handles < 0]).tolist():
                try:
                    self._signatures.put(index, self.attempt.signature(known[index]))
                except WireError:
                    if not may_lack:
                        raise
            handles = self._signatures.take(indexes).clip(-1)
        return handles

    def _resolve(self, rows: npt.NDArray[Any], columns: Int32s) -> None:
        for row, column in sorted(set(zip(rows.tolist(), columns.tolist(), strict=True))):
            self._pairs[row, column] = self.attempt.pair(self.ranks[row].rank, self.groups[column])

    def _grow(self) -> None:
        need = len(self.ranks), len(self.groups)
        if need[0] * need[1] > MAX_PAIRS:
            raise WireError(
                "declare.groups",
                "limit",
                f"{need[0]} ranks in {need[1]} groups on one stream: use more agents",
            )
        rows, columns = self._pairs.shape
        if need[0] > rows or need[1] > columns:  # one more than before in either: double it
            wanted = (
                2 * rows if need[0] > rows else rows,
                2 * columns if need[1] > columns else columns,
            )
            grown = np.full(wanted, _UNRESOLVED, np.int32)
            grown[:rows, :columns] = self._pairs
            self._pairs = grown
