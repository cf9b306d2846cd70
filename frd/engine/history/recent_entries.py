"""The entry rows of an attempt that were applied last.

The columns of whole batches are kept as they came, so that a row costs nothing when it is applied;
a ring buffer for each rank would cost as much as matching. What a reader wants of them is looked up
when it asks. Times stay node times, because the clocks are known better later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from frd.engine.state.entry_batch import EntryBatch, EntryRows, joined_arrays
from frd.model import Bools, Int32s, Int64s, UInt8s

_ROWS_PER_RANK: Final = 256
"""A rank's last hundred ops, most of which have a row when they begin and one when they end."""
_FEWEST: Final = 4_096
_MOST: Final = 262_144
"""Of all ranks together: some 12 MB."""
_OF_ROWS: Final = [column.name for column in fields(EntryRows) if column.name != "rank"]


@dataclass(frozen=True, slots=True)
class EntryColumnsBatch:
    """The rows of one batch, one element a row, in the order in which they were applied."""

    rank: Int64s
    pair: Int32s
    seq: Int64s
    signature: Int32s
    flags: UInt8s
    created_ns: Int64s
    started_ns: Int64s
    completed_ns: Int64s
    """Node times; 0 unknown."""
    at: Int64s
    """When the message of the row came, aligned."""

    def __len__(self) -> int:
        return len(self.seq)

    @classmethod
    def of(cls, parts: Sequence[EntryColumnsBatch]) -> EntryColumnsBatch:
        """The rows of all parts."""
        names = [column.name for column in fields(cls)]
        return cls(*(joined_arrays([getattr(part, name) for part in parts]) for name in names))

    def at_rows(self, rows: Bools | Int64s) -> EntryColumnsBatch:
        return EntryColumnsBatch(*(getattr(self, column.name)[rows] for column in fields(self)))


class RecentEntries:
    """Bounded by rows; the oldest batches go first."""

    def __init__(self) -> None:
        self._batches: deque[EntryColumnsBatch] = deque()
        self._rows = 0
        self._forgotten: list[int] = []
        """Ranks whose rows are still to be dropped. One pass over all batches takes milliseconds,
        so it is made once for all ranks that are declared together."""

    def add(self, rows: EntryBatch, ranks: int) -> None:
        """Rows of an attempt with so many ranks have been applied."""
        self._drop()
        columns = {name: rows.column(name) for name in _OF_ROWS}
        batch = EntryColumnsBatch(rank=rows.ranks, at=rows.times, **columns)
        self._batches.append(batch)
        self._rows += len(batch)
        most = min(max(_FEWEST, _ROWS_PER_RANK * ranks), _MOST)
        while self._rows - len(self._batches[0]) >= most:
            self._rows -= len(self._batches.popleft())

    def forget(self, rank: int) -> None:
        """Another process has the rank from now on."""
        self._forgotten.append(rank)

    def _drop(self) -> None:
        if not self._forgotten:
            return
        gone = np.zeros(max(self._forgotten) + 2, np.bool_)  # the last one: of all higher ranks
        gone[self._forgotten] = True
        kept = [batch.at_rows(~gone.take(batch.rank, mode="clip")) for batch in self._batches]
        self._batches = deque(batch for batch in kept if len(batch))
        self._rows = sum(map(len, self._batches))
        self._forgotten = []

    def move(self, rank: int, by_ns: int) -> None:
        """Another session reports this rank, whose clock shows other times."""
        for at, batch in enumerate(self._batches):
            mine = batch.rank == rank
            if mine.any():
                times = ("created_ns", "started_ns", "completed_ns")
                columns = {name: getattr(batch, name) for name in times}
                moved = {name: ns + by_ns * (mine & (ns > 0)) for name, ns in columns.items()}
                self._batches[at] = replace(batch, **moved)

    def clear(self) -> None:
        self._batches.clear()
        self._rows = 0
        self._forgotten = []

    def batches(self) -> tuple[EntryColumnsBatch, ...]:
        """Oldest first; nothing in them changes."""
        self._drop()
        return tuple(self._batches)
