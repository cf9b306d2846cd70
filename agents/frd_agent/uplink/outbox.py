"""Transitions on their way to the service: kept until acknowledged, in bounded space.

Every rank's rows are numbered from 1 when they are recorded, so a row keeps its revision however
often it is sent. Acknowledged rows are deleted, a new stream starts after the last acknowledgement,
and if space runs out the oldest rows are dropped, counted per rank: the service must know that rows
are missing, and the newest rows are the most useful for a job that hangs now. Pure: no stream, no
time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from frd.model import EntryColumns, Flags
from frd.wire.columns import ENTRY_COLUMNS

ROW_BYTES: Final = sum(column.dtype.itemsize for column in ENTRY_COLUMNS)
BATCH_ROWS: Final = 4_096
"""Rows of one message: 160 KiB."""


@dataclass(slots=True)
class _Queue:
    """The rows of one rank."""

    batches: deque[EntryColumns] = field(default_factory=deque)
    """Oldest first; revisions rise, with a hole where rows were dropped."""
    recorded: int = 0
    """The last revision assigned."""
    acked: int = 0
    sent: int = 0
    """The last revision sent on the current stream."""


class Outbox:
    def __init__(self, max_bytes: int) -> None:
        self._max_rows = 1
        self._queues: dict[int, _Queue] = {}
        self._order: deque[tuple[int, int]] = deque()
        """Rank and last revision of each batch that may still wait, oldest first."""
        self.rows = 0
        """Rows that wait for an acknowledgement."""
        self.dropped: dict[int, int] = {}
        """Rows that the service will never see, by rank."""
        self.dropped_total = 0
        """Rows of all ranks ever that were dropped to stay within bounds, or were never sent before
        their rank was forgotten."""
        self.limit(max_bytes)

    @property
    def bytes(self) -> int:
        return self.rows * ROW_BYTES

    @property
    def has_unsent(self) -> bool:
        """The current stream lacks some rows."""
        return any(queue.sent < queue.recorded for queue in self._queues.values())

    def limit(self, max_bytes: int) -> None:
        """Another bound; the oldest rows beyond it are dropped."""
        self._max_rows = max(max_bytes // ROW_BYTES, 1)
        self._make_room()

    def record(self, rows: EntryColumns) -> None:
        """Number the rows, ignoring their `first_revision`, and keep them."""
        for start in range(0, len(rows), BATCH_ROWS):
            queue = self._queues.setdefault(rows.rank, _Queue())
            piece = part(rows, start, start + BATCH_ROWS)
            queue.batches.append(replace(piece, first_revision=queue.recorded + 1))
            queue.recorded += len(piece)
            self.rows += len(piece)
            self._order.append((rows.rank, queue.recorded))
        self._make_room()

    def next_batch(self) -> EntryColumns | None:
        """The next rows not sent on the current stream; None if all are sent."""
        for queue in self._queues.values():
            if queue.sent < queue.recorded:
                for batch in queue.batches:
                    if (last := _last(batch)) > queue.sent:
                        fresh = _after(batch, queue.sent)
                        queue.sent = last
                        return fresh
                queue.sent = queue.recorded
        return None

    def ack(self, revisions: Mapping[int, int]) -> None:
        """Forget the rows up to these revisions, by rank."""
        for rank, revision in revisions.items():
            if (queue := self._queues.get(rank)) is None:
                continue
            queue.acked = max(queue.acked, min(revision, queue.recorded))
            while queue.batches and queue.batches[0].first_revision <= queue.acked:
                batch = queue.batches.popleft()
                rest = _after(batch, queue.acked)
                self.rows -= len(batch) - len(rest)
                if len(rest):
                    queue.batches.appendleft(rest)
                    break
        self._tidy_order()

    def rewind(self) -> None:
        """A new stream: send all rows again that are not acknowledged."""
        for queue in self._queues.values():
            queue.sent = queue.acked

    def first_joined(self, rank: int) -> dict[int, int]:
        """By group, the lowest seq that the rank joined according to its waiting rows."""
        first: dict[int, int] = {}
        for batch in self._queues.get(rank, _Queue()).batches:
            joined = (batch.flags & Flags.JOINED) != 0
            groups, rows = np.unique(batch.group[joined], return_index=True)
            for group, seq in zip(groups.tolist(), batch.seq[joined][rows].tolist(), strict=True):
                first.setdefault(group, seq)
        return first

    def clear(self) -> int:
        """Drop all waiting rows; returns their number."""
        dropped = 0
        for rank, queue in self._queues.items():
            for batch in queue.batches:
                self._drop(rank, len(batch))
                dropped += len(batch)
            queue.batches.clear()
            queue.acked = queue.sent = queue.recorded
        self._order.clear()
        return dropped

    def forget(self, rank: int) -> None:
        """Forget a rank that is gone, after its last status was sent."""
        if (queue := self._queues.pop(rank, None)) is not None:
            self.rows -= sum(len(batch) for batch in queue.batches)
            self.dropped_total += sum(len(_after(batch, queue.sent)) for batch in queue.batches)
            self._order = deque(mark for mark in self._order if mark[0] != rank)
        self.dropped.pop(rank, None)

    def used_signatures(self) -> set[int]:
        """Signatures of the waiting rows."""
        return {
            int(index)
            for queue in self._queues.values()
            for batch in queue.batches
            for index in np.unique(batch.signature)
        }

    def _make_room(self) -> None:
        while self.rows > self._max_rows:
            rank, last = self._order.popleft()
            queue = self._queues[rank]
            if not queue.batches or _last(queue.batches[0]) != last:
                continue  # acknowledged meanwhile
            batch = queue.batches.popleft()
            excess = self.rows - self._max_rows
            rest = _after(batch, batch.first_revision + excess - 1)
            if len(rest):
                queue.batches.appendleft(rest)
                self._order.appendleft((rank, last))
            self._drop(rank, len(batch) - len(rest))
            self.dropped_total += len(batch) - len(rest)

    def _drop(self, rank: int, rows: int) -> None:
        self.rows -= rows
        self.dropped[rank] = self.dropped.get(rank, 0) + rows

    def _tidy_order(self) -> None:
        """Remove the acknowledged batches from `_order` when they are most of it."""
        if len(self._order) > 2 * sum(len(queue.batches) for queue in self._queues.values()) + 64:
            waiting = {
                (rank, _last(batch))
                for rank, queue in self._queues.items()
                for batch in queue.batches
            }
            self._order = deque(mark for mark in self._order if mark in waiting)


def part(rows: EntryColumns, start: int, stop: int) -> EntryColumns:
    """Rows start to stop, with their revisions."""
    if start <= 0 and stop >= len(rows):
        return rows
    return replace(chosen(rows, slice(start, stop)), first_revision=rows.first_revision + start)


def chosen(rows: EntryColumns, which: slice | list[int]) -> EntryColumns:
    """These rows, with the same first revision."""
    columns: dict[str, Any] = {c.name: getattr(rows, c.name)[which] for c in ENTRY_COLUMNS}
    return replace(rows, **columns)


def _last(batch: EntryColumns) -> int:
    return batch.first_revision + len(batch) - 1


def _after(batch: EntryColumns, revision: int) -> EntryColumns:
    return part(batch, max(revision + 1 - batch.first_revision, 0), len(batch))
