"""The entry rows of an attempt that were applied last.

The columns of whole batches are kept as they came, so that a row costs nothing when it is applied;
a ring buffer for each rank would cost as much as matching. What a reader wants of them is looked up
when it asks. Times stay node times, because the clocks are known better later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from frd.engine.state.entry_batch import Rows, joined_arrays
from frd.model import Bools, Int32s, Int64s, UInt8s

_ROWS_PER_RANK: Final = 256
"""A rank's last hundred ops, most of which have a row when they begin and one when they end."""
_FEWEST: Final = 4_096
_MOST: Final = 262_144
"""Of all ranks together: some 12 MB."""


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

    def add(self, rows: Rows, ranks: int) -> None:
        """Rows of an attempt with so many ranks have been applied."""
        batch = EntryColumnsBatch(
            rank=rows.ranks,
            pair=rows.column("pair"),
            seq=rows.column("seq"),
            signature=rows.column("signature"),
            flags=rows.column("flags"),
            created_ns=rows.column("created_ns"),
            started_ns=rows.column("started_ns"),
            completed_ns=rows.column("completed_ns"),
            at=rows.times,
        )
        self._batches.append(batch)
        self._rows += len(batch)
        most = min(max(_FEWEST, _ROWS_PER_RANK * ranks), _MOST)
        while self._rows - len(self._batches[0]) >= most:
            self._rows -= len(self._batches.popleft())

    def forget(self, rank: int) -> None:
        """Another process has the rank from now on."""
        for at, batch in enumerate(self._batches):
            kept = batch.rank != rank
            if not kept.all():
                self._batches[at] = batch.at_rows(kept)
                self._rows -= len(batch) - len(self._batches[at])

    def clear(self) -> None:
        self._batches.clear()
        self._rows = 0

    def batches(self) -> tuple[EntryColumnsBatch, ...]:
        """Oldest first; nothing in them changes."""
        return tuple(self._batches)
