"""The last values of memory series, for people: the highest of every two seconds."""

from __future__ import annotations

from typing import Final

import numpy as np

from frd.engine.memory.walk.levels import MOST, SECOND
from frd.engine.state.tables import GrowingColumns, column
from frd.model import Int32s, Int64s

BIN_NS: Final = 2 * SECOND
"""A value for people is of so long: of a training step, mostly."""
BINS: Final = 16


class Recent(GrowingColumns):
    """A ring buffer of bins for each series."""

    _begin: Int64s = column(np.int64, 0, BINS)
    _high: Int64s = column(np.int64, -1, BINS)
    _bins: Int32s = column(np.int32)
    """How many there have been, with the open one."""
    low: Int64s = column(np.int64, MOST)
    """The lowest value of the open bin."""

    def add(
        self, row: Int64s, begin: Int64s, low: Int64s, high: Int64s
    ) -> tuple[Int64s, Int64s, Int64s]:
        """Samples of a moment or a few. Returns the rows of which a bin is complete, when it began
        and its lowest value."""
        bins = self._bins[row]
        opened = self._begin[row, (bins - 1) % BINS]
        is_new = (begin - opened >= BIN_NS) | (bins == 0)
        is_done = is_new & (bins > 0)
        done = row[is_done]
        complete = done, opened[is_done], self.low[done]
        if is_new.any():
            new, place = row[is_new], bins[is_new] % BINS
            self._begin[new, place], self._high[new, place] = begin[is_new], -1
            self._bins[new] += 1
            self.low[new] = MOST
        place = (bins + is_new - 1) % BINS
        self._high[row, place] = np.maximum(self._high[row, place], high)
        self.low[row] = np.minimum(self.low[row], low)
        return complete

    def values(self, row: Int64s) -> Int64s:
        """(n, `BINS`); -1 none."""
        place = (self._bins[row, None] + np.arange(BINS)) % BINS
        return self._high.take(row[:, None] * BINS + place)

    def span(self, row: Int64s) -> tuple[Int64s, Int64s]:
        """(n,) when the first known bin began, and when the open one did."""
        bins = self._bins[row]
        first = self._begin[row, np.where(bins < BINS, 0, bins % BINS)]
        return np.where(bins > 0, first, MOST), self._begin[row, (bins - 1) % BINS]
