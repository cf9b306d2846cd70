"""Batches of samples for the series: kept on arrival, then checked and applied together.

Every agent sends a small batch every second or two. Looked at one by one they cost more in calls
than in work, so they wait until the engine advances; then those of about equal length are stacked,
and a few passes over long columns align, check and apply them. Only batches of which something is
to be refused are looked at one by one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Final, NamedTuple

import numpy as np

from frd.engine.clocks.alignment import Alignment, all_to_aligned
from frd.engine.memory.walk.recent import BIN_NS
from frd.engine.memory.walk.series import Series
from frd.engine.state.tables import GrowingColumns, column, repeats
from frd.model import AlignedNs, Bools, Int64s, MemoryColumns

MAX_BYTES: Final = 1 << 50
"""A larger value is refused."""
_MAX_OF_CAPACITY: Final = 4
"""A value more than this many times its capacity is refused."""
_MOST_WAITING: Final = 32_768
"""When more values wait, they are applied immediately: of a fleet, those of a second would keep the
event loop for a tenth of a second."""
_COLUMNS: Final = [one.name for one in fields(MemoryColumns)]
ALIGNED: Final = Alignment("", AlignedNs(0), 0, 0, 0.0, 0)
"""Of times that are aligned already."""


class Batch(NamedTuple):
    columns: MemoryColumns
    """S series at the same T moments, in node times; a handle that is negative has no row."""
    clock: Alignment
    slack_ns: int
    """Uncertainty of aligned times."""
    latest: int
    """Moments that begin later are refused."""
    refused: Callable[[int], object]
    """Is called with the number of samples that are refused, if there are any."""


class Inbox(GrowingColumns):
    """Takes batches in the order of time, whose `series` are rows."""

    _newest: Int64s = column(np.int64)
    """Begin of the last moment taken, by row."""

    def __init__(self, series: Series) -> None:
        super().__init__()
        self._series = series
        self._waiting: list[Batch] = []
        self._values = 0

    def forget(self, row: Int64s) -> None:
        self.reserve(self._series.count)
        self._newest[row] = 0

    def put(self, batch: Batch) -> None:
        """Moments that came before are passed over: after a reconnect an agent sends some again."""
        self._waiting.append(batch)
        self._values += batch.columns.values.size
        if self._values > _MOST_WAITING:
            self.flush()

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

    def flush(self) -> None:
        """Apply all that waits."""
        if not self._waiting:
            return
        waiting, self._waiting, self._values = self._waiting, [], 0
        self.reserve(self._series.count)
        for batches in _in_turn(waiting):
            self._take(batches)

    def _take(self, batches: Sequence[Batch]) -> None:
        """Batches of about as many moments, each row at most once."""
        all_columns = [batch.columns for batch in batches]
        of = np.repeat(np.arange(len(batches)), [len(one.series) for one in all_columns])
        row, capacity = (
            np.concatenate([getattr(one, name) for one in all_columns])
            for name in ("series", "capacity")
        )
        moments = np.array([len(one.begin_ns) for one in all_columns])
        most = int(moments.max())
        values = np.concatenate([_filled(one.values, most, -1) for one in all_columns])
        if not (known := row >= 0).all():
            of, row, capacity, values = of[known], row[known], capacity[known], values[known]
        if not values.size:
            return
        row = row.astype(np.int64)
        begin = np.stack([_filled(one.begin_ns, most) for one in all_columns])
        lasts = np.stack([_filled(one.end_ns, most) for one in all_columns]) - begin
        slack_ns = np.array([batch.slack_ns for batch in batches])[:, None]
        begin = all_to_aligned([batch.clock for batch in batches], begin) - slack_ns
        end = begin + lasts + 2 * slack_ns
        previous, latest = np.zeros(len(batches), np.int64), np.array([b.latest for b in batches])
        np.maximum.at(previous, of, self._newest[row])
        is_good = begin[:, 0] > previous
        is_good &= ((begin <= end) & (begin <= latest[:, None])).all(axis=1)
        is_filler = np.arange(1, most) >= moments[:, None]
        is_good &= ((begin[:, 1:] > begin[:, :-1]) | is_filler).all(axis=1)
        is_good[of[(values.min(axis=1) < -1) | (values.max(axis=1) > limits(capacity))]] = False
        for at in np.flatnonzero(~is_good).tolist():
            mine, own = of == at, slice(moments[at])
            times = begin[at, own], end[at, own]
            one = MemoryColumns(row[mine], capacity[mine], *times, values[mine, own])
            refused, one = _cleared(one, int(previous[at]), int(latest[at]))
            if refused:
                batches[at].refused(refused)
            self._apply(one, np.zeros(len(one.series), np.int64))
        if not is_good.all():
            good = is_good[of]
            of, row, capacity, values = of[good], row[good], capacity[good], values[good]
        self._apply(MemoryColumns(row, capacity, begin, end, values), of)

    def _apply(self, columns: MemoryColumns, of: Int64s) -> None:
        """Samples that are good. Times are those of batches, and `of` is the batch of each row."""
        begin, end = np.atleast_2d(columns.begin_ns, columns.end_ns)
        one = MemoryColumns(columns.series, columns.capacity, begin[of], end[of], columns.values)
        if not (one := _with_samples(one)).values.size:
            return
        self._newest[one.series] = one.begin_ns[:, -1]
        # What is applied together, of each series, begins within the time of one bin.
        start = np.zeros(len(one.series), np.int64)
        while len(start):
            first = np.take_along_axis(one.begin_ns, start[:, None], axis=1)
            stop = (one.begin_ns < first + BIN_NS).sum(axis=1)
            self._series.apply(_with_samples(_between(one, start, stop)))
            more = np.flatnonzero(stop < one.values.shape[1])
            one, start = _rows(one, more), stop[more]


def _in_turn(batches: Sequence[Batch]) -> list[list[Batch]]:
    """Batches of about equal length together, none twice as long as another, but of one row in
    order."""
    turns = Counter[int]()
    found = defaultdict[tuple[int, int], list[Batch]](list)
    series = np.concatenate([batch.columns.series for batch in batches])
    is_once = not repeats(series[series >= 0])
    for batch in batches:
        turn = 0
        if not is_once:
            rows = batch.columns.series.tolist()
            turn = max(turns[row] for row in rows)
            turns.update(dict.fromkeys(rows, turn + 1))
        found[turn, len(batch.columns.begin_ns).bit_length()].append(batch)
    return [found[key] for key in sorted(found)]


def _cleared(columns: MemoryColumns, previous: int, latest: int) -> tuple[int, MemoryColumns]:
    """How many samples are refused, and the others. `previous`: when the last moment began."""
    capacity, values = columns.capacity, columns.values
    begin, end = columns.begin_ns, columns.end_ns
    ahead = begin > latest
    refused = int((values[:, ahead] != -1).sum())
    begin, end, values = begin[~ahead], end[~ahead], values[:, ~ahead]
    good = _rising(begin, end, previous)
    refused += int((values[:, ~good & (begin > previous)] != -1).sum())
    begin, end, values = begin[good], end[good], values[:, good]
    bad = (values < -1) | (values > limits(capacity)[:, None])
    refused += int(bad.sum())
    values, capacity = np.where(bad, -1, values), np.maximum(capacity, 0)
    return refused, MemoryColumns(columns.series, capacity, begin, end, values)


def _rising(begin: Int64s, end: Int64s, previous: int) -> Bools:
    """Moments that end after they begin, and begin after all before them."""
    highest = np.maximum.accumulate(np.concatenate(([previous], begin[:-1])))
    return (begin <= end) & (begin > highest)


def _with_samples(columns: MemoryColumns) -> MemoryColumns:
    """Only the series that have a sample."""
    if not columns.values.size or int(columns.values.min()) >= 0:
        return columns
    return _rows(columns, np.flatnonzero((columns.values >= 0).any(axis=1)))


def _rows(columns: MemoryColumns, some: Int64s) -> MemoryColumns:
    """Of columns whose times are those of each series."""
    if len(some) == len(columns.series):
        return columns
    return MemoryColumns(*(getattr(columns, name)[some] for name in _COLUMNS))


def _between(columns: MemoryColumns, start: Int64s, stop: Int64s) -> MemoryColumns:
    """The moments from `start` to `stop` of each series, whose times are its own."""
    if not start.any() and int(stop.min()) == columns.values.shape[1]:
        return columns
    place = start[:, None] + np.arange(int((stop - start).max()))
    is_in = place < stop[:, None]
    place = np.minimum(place, columns.values.shape[1] - 1)
    begin, end, values = (
        np.take_along_axis(one, place, axis=1)
        for one in (columns.begin_ns, columns.end_ns, columns.values)
    )
    values = np.where(is_in, values, -1)
    return MemoryColumns(columns.series, columns.capacity, begin, end, values)


def _filled(items: Int64s, moments: int, filler: int | None = None) -> Int64s:
    """A column of at least one moment, or one for each row, of so many moments: with `filler`, or
    else the last one again."""
    lacking = moments - items.shape[-1]
    if not lacking:
        return items
    more = items[..., -1:] if filler is None else np.array(filler)
    return np.concatenate((items, np.broadcast_to(more, (*items.shape[:-1], lacking))), axis=-1)


def limits(capacity: Int64s) -> Int64s:
    """The largest value that each series may have."""
    known = np.minimum(capacity, MAX_BYTES) * _MAX_OF_CAPACITY
    return np.where(capacity > 0, np.minimum(known, MAX_BYTES), MAX_BYTES)
