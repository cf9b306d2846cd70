"""Batches of samples for the series: checked on arrival, applied together.

Two thousand agents send a small batch each second. A batch is only checked when it arrives; later
the batches of all agents are stacked and applied in a few passes over long columns.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from frd.engine.memory.walk.recent import BIN_NS
from frd.engine.memory.walk.series import Series
from frd.engine.state.tables import GrowingColumns, column
from frd.model import Bools, Int32s, Int64s, MemoryColumns

MAX_BYTES: Final = 1 << 50
"""A larger value is refused."""
_MAX_OF_CAPACITY: Final = 4
"""A value more than this many times its capacity is refused."""
_highest = np.maximum.reduce
_lowest = np.minimum.reduce
"""Ufuncs themselves: most batches are small, and methods of arrays cost more than the work."""
_MOST_WAITING: Final = 4_000_000
"""When more values wait, they are applied immediately."""


class Inbox(GrowingColumns):
    """Takes batches in the order of time, whose `series` are rows."""

    _newest: Int64s = column(np.int64)
    """Begin of the last moment taken, by row."""
    _turn: Int32s = column(np.int32)
    """Batches of a row that wait."""

    def __init__(self, series: Series) -> None:
        super().__init__()
        self._series = series
        self._waiting: dict[tuple[int, int], list[MemoryColumns]] = {}
        """By turn, and number of moments."""
        self._values = 0

    def forget(self, row: Int64s) -> None:
        self.reserve(self._series.count)
        self._newest[row] = 0

    def put(self, columns: MemoryColumns) -> int:
        """Samples of S series at the same T moments; returns how many are refused.

        Moments that came before are passed over: after a reconnect an agent sends some again.
        """
        self.reserve(self._series.count)
        refused = 0
        row, capacity, values = columns.series, columns.capacity, columns.values
        begin, end = columns.begin_ns, columns.end_ns
        previous = int(_highest(self._newest.take(row)))
        if not _is_rising(begin, end, previous):
            good = _rising(begin, end, previous)
            refused += int((values[:, ~good & (begin > previous)] != -1).sum())
            begin, end, values = begin[good], end[good], values[:, good]
            if not len(begin):
                return refused
        # Hardly any value is above the least capacity; those are looked at one by one.
        is_odd = int(_lowest(values, axis=None)) < -1
        if is_odd or int(_highest(values, axis=None)) > int(_lowest(capacity)):
            bad = (values < -1) | (values > limits(capacity)[:, None])
            refused += int(bad.sum())
            values = np.where(bad, -1, values)
            capacity = np.maximum(capacity, 0)
        columns = _with_samples(MemoryColumns(row, capacity, begin, end, values))
        if len(columns.series):
            self._newest[columns.series] = begin[-1]
            self._split(columns)
        return refused

    def put_table(self, columns: MemoryColumns) -> int:
        """Samples of S series, each with its own T times within two seconds: all (S, T).

        For recorded samples of many nodes; they are applied immediately. A place without a sample
        holds -1; times never fall. Returns how many are refused.
        """
        self.reserve(self._series.count)
        self.flush()
        row, values = columns.series, columns.values
        begin, end = columns.begin_ns, columns.end_ns
        before = np.concatenate((self._newest[row][:, None], begin[:, :-1]), axis=1)
        bad = (values < -1) | (values > limits(columns.capacity)[:, None])
        bad |= (values >= 0) & ((begin > end) | (begin <= before))
        values, capacity = np.where(bad, -1, values), np.maximum(columns.capacity, 0)
        columns = _with_samples(MemoryColumns(row, capacity, begin, end, values))
        if len(columns.series):
            self._newest[columns.series] = columns.begin_ns[:, -1]
            self._series.apply(columns)
        return int(bad.sum())

    def _split(self, columns: MemoryColumns) -> None:
        """In pieces of one bin, each of them series with a sample."""
        start, begin = 0, columns.begin_ns
        while start < len(begin):
            stop = int(begin.searchsorted(begin[start] + BIN_NS))
            piece = _with_samples(
                MemoryColumns(
                    columns.series,
                    columns.capacity,
                    begin[start:stop],
                    columns.end_ns[start:stop],
                    columns.values[:, start:stop],
                )
            )
            if len(piece.series):
                turn = int(_highest(self._turn.take(columns.series)))
                self._turn[columns.series] = turn + 1
                self._waiting.setdefault((turn, stop - start), []).append(piece)
            start = stop
        self._values += columns.values.size
        if self._values > _MOST_WAITING:
            self.flush()

    def flush(self) -> None:
        """Apply all that waits."""
        if not self._waiting:
            return
        for _, batches in sorted(self._waiting.items(), key=lambda item: item[0]):
            counts = [len(batch.series) for batch in batches]
            times = np.repeat(np.arange(len(batches)), counts)
            series, capacity, values = (
                np.concatenate([getattr(batch, name) for batch in batches])
                for name in ("series", "capacity", "values")
            )
            begin = np.stack([batch.begin_ns for batch in batches])[times]
            end = np.stack([batch.end_ns for batch in batches])[times]
            self._series.apply(MemoryColumns(series, capacity, begin, end, values))
        self._waiting.clear()
        self._turn[:] = 0
        self._values = 0


def _with_samples(columns: MemoryColumns) -> MemoryColumns:
    """Only the series that have a sample; times may be those of all series, or of each."""
    if int(_lowest(columns.values, axis=None)) >= 0:
        return columns
    has = (columns.values >= 0).any(axis=1)
    begin, end = columns.begin_ns, columns.end_ns
    if begin.ndim > 1:
        begin, end = begin[has], end[has]
    return MemoryColumns(
        columns.series[has], columns.capacity[has], begin, end, columns.values[has]
    )


def limits(capacity: Int64s) -> Int64s:
    """The largest value that each series may have."""
    known = np.minimum(capacity, MAX_BYTES) * _MAX_OF_CAPACITY
    return np.where(capacity > 0, np.minimum(known, MAX_BYTES), MAX_BYTES)


def _is_rising(begin: Int64s, end: Int64s, previous: int) -> bool:
    """All moments do, see `_rising`."""
    if begin.item(0) <= previous or int(_lowest(end - begin)) < 0:
        return False
    return len(begin) == 1 or int(_lowest(begin[1:] - begin[:-1])) > 0


def _rising(begin: Int64s, end: Int64s, previous: int) -> Bools:
    """Moments that end after they begin, and begin after all before them."""
    highest = np.maximum.accumulate(np.concatenate(([previous], begin[:-1])))
    return (begin <= end) & (begin > highest)
