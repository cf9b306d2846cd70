"""Batches of samples for the series: checked on arrival, applied together.

Two thousand agents send a small batch each second. Checking one is all that is done when it comes;
then those of all agents are stacked and applied in a few passes over long columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.engine.memory.baseline import BIN_NS
from frd.engine.memory.series import Series
from frd.model import Bools, Int32s, Int64s

MAX_BYTES: Final = 1 << 50
"""More is no memory."""
_MAX_OF_CAPACITY: Final = 4
"""A value so many times beyond its capacity is no value."""
_MOST_MOMENTS: Final = 16
_highest = np.maximum.reduce
_lowest = np.minimum.reduce
"""Ufuncs themselves: most batches are small, and methods of arrays cost more than the work."""
_MOST_WAITING: Final = 4_000_000
"""When more values wait, they are applied immediately."""


@dataclass(frozen=True, slots=True)
class _Batch:
    row: Int64s
    capacity: Int64s
    begin: Int64s
    end: Int64s
    values: Int64s


class Inbox:
    """Takes batches in the order of time."""

    def __init__(self, series: Series) -> None:
        self._series = series
        self._newest: Int64s = np.zeros(0, np.int64)
        """Begin of the last moment taken, by row."""
        self._turn: Int32s = np.zeros(0, np.int32)
        """Batches of a row that wait."""
        self._waiting: dict[tuple[int, int], list[_Batch]] = {}
        """By turn, and number of moments."""
        self._values = 0

    def forget(self, row: Int64s) -> None:
        self._reserve()
        self._newest[row] = 0

    def put(self, row: Int64s, capacity: Int64s, begin: Int64s, end: Int64s, values: Int64s) -> int:
        """Samples of S series at T moments; returns how many are refused.

        Moments that came before are passed over: after a reconnect an agent sends some again.
        """
        self._reserve()
        refused = 0
        previous = int(_highest(self._newest.take(row)))
        if not _is_rising(begin, end, previous):
            good = _rising(begin, end, previous)
            refused += int((values[:, ~good & (begin > previous)] != -1).sum())
            begin, end, values = begin[good], end[good], values[:, good]
            if not len(begin):
                return refused
        least = int(_lowest(values, axis=None))
        # Hardly any value is above the least capacity; those are looked at one by one.
        if least < -1 or int(_highest(values, axis=None)) > int(_lowest(capacity)):
            limit = _limits(capacity)
            bad = (values < -1) | (values > limit[:, None])
            refused += int(bad.sum())
            values = np.where(bad, -1, values)
            capacity = np.maximum(capacity, 0)
            least = -1
        if least < 0:
            has = (values >= 0).any(axis=1)
            row, capacity, values = row[has], capacity[has], values[has]
            if not len(row):
                return refused
        self._newest[row] = begin[-1]
        self._split(row, capacity, begin, end, values)
        return refused

    def put_table(
        self, row: Int64s, capacity: Int64s, begin: Int64s, end: Int64s, values: Int64s
    ) -> int:
        """Samples of S series, each with its own T times within two seconds: all (S, T).

        For recorded samples of many nodes; they are applied immediately. A place without a sample
        holds -1; times never fall. Returns how many are refused.
        """
        self._reserve()
        self.flush()
        limit = _limits(capacity)
        before = np.concatenate((self._newest[row][:, None], begin[:, :-1]), axis=1)
        bad = (values < -1) | (values > limit[:, None])
        bad |= (values >= 0) & ((begin > end) | (begin <= before))
        refused = int(bad.sum())
        if refused:
            values = np.where(bad, -1, values)
        if values.min() < 0 and not (has := (values >= 0).any(axis=1)).all():
            row, capacity = row[has], capacity[has]
            begin, end, values = begin[has], end[has], values[has]
        if len(row):
            self._newest[row] = begin[:, -1]
            self._series.apply(row, np.maximum(capacity, 0), begin, end, values)
        return refused

    def _split(
        self, row: Int64s, capacity: Int64s, begin: Int64s, end: Int64s, values: Int64s
    ) -> None:
        """In pieces that are short in number and time, each of them series with a sample."""
        start, moments = 0, len(begin)
        while start < moments:
            stop = min(start + _MOST_MOMENTS, moments)
            if begin[stop - 1] - begin[start] >= BIN_NS:
                stop = int(begin.searchsorted(begin[start] + BIN_NS))
            piece, piece_row, piece_capacity = values[:, start:stop], row, capacity
            if int(_lowest(piece, axis=None)) < 0:
                has = (piece >= 0).any(axis=1)
                piece, piece_row, piece_capacity = piece[has], row[has], capacity[has]
            if len(piece_row):
                turn = int(_highest(self._turn.take(row)))
                self._turn[row] = turn + 1
                batch = _Batch(piece_row, piece_capacity, begin[start:stop], end[start:stop], piece)
                self._waiting.setdefault((turn, stop - start), []).append(batch)
            start = stop
        self._values += values.size
        if self._values > _MOST_WAITING:
            self.flush()

    def flush(self) -> None:
        """Apply all that waits."""
        if not self._waiting:
            return
        for (_, moments), batches in sorted(self._waiting.items(), key=lambda item: item[0]):
            counts = [len(batch.row) for batch in batches]
            times = np.repeat(np.arange(len(batches)), counts)
            self._series.apply(
                np.concatenate([batch.row for batch in batches]),
                np.concatenate([batch.capacity for batch in batches]),
                np.concatenate([batch.begin for batch in batches]).reshape(-1, moments)[times],
                np.concatenate([batch.end for batch in batches]).reshape(-1, moments)[times],
                np.concatenate([batch.values for batch in batches]),
            )
        self._waiting.clear()
        self._turn[:] = 0
        self._values = 0

    def _reserve(self) -> None:
        known, capacity = len(self._newest), len(self._series.rank)
        if capacity > known:
            more = capacity - known
            self._newest = np.concatenate((self._newest, np.zeros(more, np.int64)))
            self._turn = np.concatenate((self._turn, np.zeros(more, np.int32)))


def _limits(capacity: Int64s) -> Int64s:
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
