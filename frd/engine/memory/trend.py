"""Slow trends of memory series: leaks.

A leak hides in what a series usually does: a saw-tooth of gigabytes with a floor that rises by
megabytes. So only floors count: the lowest value of each of the sixteen stretches of a window. They
leak if a straight line fits them well and the second half of the window has not risen much less
than the first, because caches and fragments fill up and then stop.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from frd.model import Bools, Float64s, Int32s, Int64s

FLOORS: Final = 16
_LEAST_FIT: Final = 4.0
"""How many times the rise over the window must exceed what is left and right of the line."""
_SLOWING: Final = 0.5
"""A second half that rises by less than this part of the first is slowing down."""
_MOST: Final = np.iinfo(np.int64).max


class Trend:
    """A ring buffer of floors for each series."""

    def __init__(self, window_s: float) -> None:
        self._stretch_ns = round(window_s * 1e9 / FLOORS)
        self._floors: Int64s = np.zeros((0, FLOORS), np.int64)
        self._count: Int32s = np.zeros(0, np.int32)
        self._begin: Int64s = np.zeros(0, np.int64)
        self._low: Int64s = np.zeros(0, np.int64)
        self._news: Bools = np.zeros(0, np.bool_)

    def reserve(self, count: int) -> None:
        more = count - len(self._count)
        self._floors = np.concatenate((self._floors, np.zeros((more, FLOORS), np.int64)))
        self._count = np.concatenate((self._count, np.zeros(more, np.int32)))
        self._begin = np.concatenate((self._begin, np.zeros(more, np.int64)))
        self._low = np.concatenate((self._low, np.full(more, _MOST, np.int64)))
        self._news = np.concatenate((self._news, np.zeros(more, np.bool_)))

    def forget(self, row: Int64s) -> None:
        self._count[row], self._begin[row] = 0, 0
        self._low[row], self._news[row] = _MOST, False

    def add(self, row: Int64s, begin: Int64s, low: Int64s) -> None:
        """The lowest value of each series since the last call, which began at `begin`."""
        self._begin[row] = np.where(self._begin[row] == 0, begin, self._begin[row])
        over = begin - self._begin[row] >= self._stretch_ns
        if over.any():
            full = row[over]
            self._floors[full, self._count[full] % FLOORS] = self._low[full]
            self._count[full] += 1
            self._begin[full], self._low[full], self._news[full] = begin[over], _MOST, True
        self._low[row] = np.minimum(self._low[row], low)

    def take_news(self) -> Int64s:
        """The rows with a new floor since the last call and a full window."""
        row = np.flatnonzero(self._news)
        if len(row):
            self._news[row] = False
            row = row[self._count[row] >= FLOORS]
        return row

    def since(self, row: Int64s) -> Int64s:
        """When the windows of these began."""
        return self._begin[row] - FLOORS * self._stretch_ns

    def measure(self, row: Int64s) -> tuple[Float64s, Bools]:
        """Bytes per second of each row, and whether that is the trend of a leak."""
        place = (self._count[row, None] + np.arange(FLOORS)) % FLOORS
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
        steady = (rise > _LEAST_FIT * scatter) & (second > _SLOWING * first) & (first > 0)
        return slope / self._stretch_ns * 1e9, steady & (rise > 0)
