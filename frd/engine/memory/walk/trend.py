"""Slow trends of memory series: leaks.

A leak hides in what a series usually does: a saw-tooth of gigabytes with a floor that rises by
megabytes. So only floors count: the lowest value of each of the sixteen stretches of a window. They
leak if a straight line fits them well and the second half of the window has not risen much less
than the first, because caches and fragments fill up and then stop.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from frd.engine.memory.walk.levels import CELLS, MOST, QUARTER, SECOND, WINDOW_NS
from frd.engine.state.tables import GrowingColumns, column
from frd.model import Bools, Float64s, Int32s, Int64s

FLOORS: Final = CELLS // 2
"""As many as show what is usual of a series."""
LEAK_WINDOW_NS: Final = 10 * WINDOW_NS
"""A leak is a steady rise for this long; caches take less to fill up."""


class Trend(GrowingColumns):
    """A ring buffer of floors for each series."""

    _floors: Int64s = column(np.int64, 0, FLOORS)
    _complete: Int32s = column(np.int32)
    """How many floors there have been."""
    _begin: Int64s = column(np.int64)
    _low: Int64s = column(np.int64, MOST)
    _news: Bools = column(np.bool_)

    def __init__(self) -> None:
        super().__init__()
        self.window_s = LEAK_WINDOW_NS / SECOND
        self._stretch_ns = LEAK_WINDOW_NS // FLOORS

    def add(self, row: Int64s, begin: Int64s, low: Int64s) -> None:
        """The lowest value of each series since the last call, which began at `begin`."""
        self._begin[row] = np.where(self._begin[row] == 0, begin, self._begin[row])
        over = begin - self._begin[row] >= self._stretch_ns
        if over.any():
            full = row[over]
            self._floors[full, self._complete[full] % FLOORS] = self._low[full]
            self._complete[full] += 1
            self._begin[full], self._low[full], self._news[full] = begin[over], MOST, True
        self._low[row] = np.minimum(self._low[row], low)

    def take_news(self) -> Int64s:
        """The rows with a new floor since the last call and a full window."""
        row = np.flatnonzero(self._news)
        if len(row):
            self._news[row] = False
            row = row[self._complete[row] >= FLOORS]
        return row

    def since(self, row: Int64s) -> Int64s:
        """When the windows of these began."""
        return self._begin[row] - FLOORS * self._stretch_ns

    def measure(self, row: Int64s) -> tuple[Float64s, Bools]:
        """Bytes per second of each row, and whether that is the trend of a leak."""
        place = (self._complete[row, None] + np.arange(FLOORS)) % FLOORS
        floors = np.take_along_axis(self._floors[row], place, axis=1).astype(np.float64)
        x = np.arange(FLOORS) - (FLOORS - 1) / 2
        mean = floors.mean(axis=1, keepdims=True)
        slope = ((floors - mean) @ x) / (x @ x)
        off = floors - mean - slope[:, None] * x
        scatter = np.sqrt((off * off).mean(axis=1))
        rise = slope * (FLOORS - 1)
        half = FLOORS // 2
        first = floors[:, half - 1] - floors[:, 0]
        second = floors[:, -1] - floors[:, half]
        steady = (rise > QUARTER * scatter) & (2 * second > first) & (first > 0)
        return slope / self._stretch_ns * SECOND, steady & (rise > 0)
