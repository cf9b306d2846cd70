"""Records that wait to be written into the log of a cell, in order, as runs; and their budget.

Records are collected in an open run. Once it is closed, it may be taken; closed runs are joined
while nothing takes them, up to the size of a frame. A checkpoint is a separate run: its records are
referred to elsewhere, so they take no memory and do not count as waiting.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from frd.cluster.packing import FRAME_BYTES
from frd.store.records import Record, RecordKind

MAX_WAITING_BYTES: Final = 256 * 1024 * 1024
_RECORD_BYTES: Final = 200
"""A waiting record in addition to its payload."""


@dataclass(slots=True)
class Run:
    """Records that are written together."""

    records: list[Record]
    size: int = 0
    """Bytes that wait because of it."""
    position: int = 0
    """Of the last record."""
    is_checkpoint: bool = False
    is_start: bool = False


class Budget:
    """Bytes that may wait in all logs of a process together.

    Once more wait, each log may still have its share, the same for all: a log that is written in
    time is not held up by others whose servers are away. So less than twice the limit waits.
    """

    def __init__(self, limit: int = MAX_WAITING_BYTES) -> None:
        self.limit = limit
        self.waiting = 0
        self.logs = 0

    @property
    def share(self) -> int:
        return self.limit // max(self.logs, 1)


class Runs:
    """Of one log; call `end` last."""

    def __init__(self, budget: Budget) -> None:
        self.waiting = 0
        """Bytes that are not written, those of the run that was taken included."""
        self._budget = budget
        budget.logs += 1
        self._open = Run([])
        self._ticks = 0
        """Records of the open run that are ticks."""
        self._closed: deque[Run] = deque()
        self._taken: Run | None = None

    @property
    def is_full(self) -> bool:
        budget = self._budget
        return budget.waiting > budget.limit and self.waiting > budget.share

    @property
    def is_half_empty(self) -> bool:
        """After `is_full`: much may be added again."""
        budget = self._budget
        return budget.waiting <= budget.limit // 2 or self.waiting <= budget.share // 2

    @property
    def has_checkpoint(self) -> bool:
        return any(run.is_checkpoint for run in self._closed)

    @property
    def idle_ticks(self) -> int:
        """The number of ticks in the open run if it has nothing else, otherwise 0."""
        return self._ticks if self._ticks == len(self._open.records) else 0

    def add(self, record: Record, position: int) -> bool:
        """True: the open run is large enough to be closed."""
        size = len(record.payload) + _RECORD_BYTES
        self._open.records.append(record)
        self._open.size += size
        self._open.position = position
        self._ticks += record.kind is RecordKind.TICK
        self._count(size)
        return self._open.size > FRAME_BYTES

    def close(self) -> None:
        """The open run may be taken."""
        run = self._open
        if not run.records:
            return
        last = self._closed[-1] if self._closed else None
        if last and not last.is_checkpoint and last.size + run.size <= FRAME_BYTES:
            last.records += run.records
            last.size += run.size
            last.position = run.position
        else:
            self._closed.append(run)
        self._open, self._ticks = Run([]), 0

    def add_checkpoint(self, records: list[Record], position: int, *, is_start: bool) -> None:
        """After everything that was added."""
        self.close()
        self._closed.append(Run(records, 0, position, True, is_start))

    def take(self) -> Run | None:
        """The oldest closed run; `wrote` when it is written, before the next one is taken."""
        self._taken = self._closed.popleft() if self._closed else None
        return self._taken

    def wrote(self) -> None:
        if self._taken is not None:
            self._count(-self._taken.size)
            self._taken = None

    def clear(self) -> int:
        """Forget all runs; returns the number of their records, without those of checkpoints."""
        runs = filter(None, (self._taken, *self._closed, self._open))
        forgotten = sum(len(run.records) for run in runs if not run.is_checkpoint)
        self._closed.clear()
        self._open, self._taken, self._ticks = Run([]), None, 0
        self._count(-self.waiting)
        return forgotten

    def end(self) -> None:
        """Forget all runs, and leave the budget to the other logs."""
        self.clear()
        self._budget.logs -= 1

    def _count(self, size: int) -> None:
        self.waiting += size
        self._budget.waiting += size
