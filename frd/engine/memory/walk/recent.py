"""The last values of memory series, for people: the highest of every two seconds."""

from __future__ import annotations

from typing import Final

import numpy as np

from frd.engine.memory.walk.levels import MOST, SECOND
from frd.engine.state.tables import GrowingColumns, column
from frd.model import Int64s

BIN_NS: Final = 2 * SECOND
"""A value for people is of so long: of a training step, mostly."""
BINS: Final = 16


class Recent(GrowingColumns):
    """Bins of each series, the open one last."""

    _begin: Int64s = column(np.int64, 0, BINS)
    _high: Int64s = column(np.int64, -1, BINS)
    low: Int64s = column(np.int64, MOST)
    """The lowest value of the open bin."""

    def add(
        self, row: Int64s, begin: Int64s, low: Int64s, high: Int64s
    ) -> tuple[Int64s, Int64s, Int64s]:
        """Samples of a moment or a few. Returns the rows of which a bin is complete, when it began
        and its lowest value."""
        full = begin - self._begin[row, -1] >= BIN_NS
        done = row[full & (self._begin[row, -1] > 0)]
        complete = done, self._begin[done, -1], self.low[done]
        if full.any():
            new = row[full]
            for ring, first in ((self._begin, begin[full]), (self._high, np.int64(-1))):
                ring[new, :-1] = ring[new, 1:]
                ring[new, -1] = first
            self.low[new] = MOST
        self._high[row, -1] = np.maximum(self._high[row, -1], high)
        self.low[row] = np.minimum(self.low[row], low)
        return complete

    def values(self, row: Int64s) -> Int64s:
        """(n, `BINS`); -1 none."""
        return self._high[row]

    def span(self, row: Int64s) -> tuple[Int64s, Int64s]:
        """(n,) when the first known bin began, and when the open one did."""
        begins = self._begin[row]
        return np.where(begins > 0, begins, MOST).min(axis=1, initial=MOST), begins[:, -1]
