"""What is usual of memory series: the range in which each has moved during its last minute.

A level is described by at most `CELLS` cells, each the lowest and the highest of some samples in a
row. A cell holds one sample at first. When a row is full and shows less than a minute, neighbours
are joined and cells hold twice as many; so thirty samples are known one by one, and a minute at ten
a second takes no more room. Which samples share a cell follows from their number alone.

The newest cells do not count, since a slow rise must not become usual while it is looked at. The
range is from a low quantile, which single wrong readings do not move, to the highest; the *band*
ends above it, by a share of the range that is larger while few samples are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.engine.state.tables import GrowingColumns, column
from frd.model import Bools, Int32s, Int64s

SECOND: Final = 1_000_000_000
MOST: Final = np.iinfo(np.int64).max
CELLS: Final = 32
"""Half of them show a minute, and a saw-tooth of half a minute."""
WINDOW_NS: Final = 60 * SECOND
"""What is usual was seen within this long. A rise that begins within this long after another is
likely to be its consequence; a level that lasts for this long is no rise any more."""
BATCH_NS: Final = SECOND // 2
"""What happens within a batch of samples happens at one time: a rate is measured from batch to
batch, and samples of other ranks for the same time are waited for this long. In half of it the
noise of few samples is taken for a rate; in twice as much a jump has a rate, and is taken for a
rise that goes on."""
REVEALED_NS: Final = 5 * SECOND
"""How long a rise may look smaller than it is, because a usual movement hides it or it climbs in
steps. All ranks begin a phase of the program (an evaluation) within this."""
TRAINING_STEP: Final = 10
"""The length, in samples, of a training step that is sampled well. For so long a level is not
judged, since the rest of a step may be elsewhere; one of so many samples may be a wrong reading."""
LASTING: Final = 2 * TRAINING_STEP
"""So many of the newest samples do not show what is usual, and what has lasted for so many is no
outlier."""
ENOUGH: Final = 5
"""Fewer samples show no level: the series may have been rising before."""
NOISE: Final = 16
"""This part of a size is noise to it: of the least rise what drivers and interpreters take by
themselves, of a rise what is no growth, of a drop what is no level."""
QUARTER: Final = 4
"""A quarter of a size is the least that is a part of it: a rise that falls below a quarter of its
height is over, what becomes four times as steep is another rise, a series is at its lowest within a
quarter of its band, and a line fits if a quarter of its rise is left and right of it."""
_AT: Final = np.arange(CELLS, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Range:
    """What is usual of some series, bytes; one row each."""

    low: Int64s
    high: Int64s
    slack: Int64s
    dip: Int64s
    """How many samples in a row it was low before it came back, at most."""
    former: Int64s
    """The highest of a level that the series has left, lately; -1 none."""


class Levels(GrowingColumns):
    """The cells of each series, by time."""

    _low: Int64s = column(np.int64, MOST, CELLS)
    _high: Int64s = column(np.int64, -1, CELLS)
    _samples: Int32s = column(np.int32, 0, CELLS)
    _cells: Int32s = column(np.int32)
    """Complete ones."""
    _from: Int32s = column(np.int32)
    """The first cell of the present level; before it is one that the series has left."""
    span: Int32s = column(np.int32, 1)
    """Samples of a cell."""
    open_low: Int64s = column(np.int64, MOST)
    open_high: Int64s = column(np.int64, -1)
    open_samples: Int32s = column(np.int32)
    calm: Int64s = column(np.int64)
    """Samples since the level began."""
    _dip: Int64s = column(np.int64)
    """The longest dip of the level before this one, samples."""

    def add(self, row: Int64s, low: Int64s, high: Int64s, samples: Int64s) -> None:
        """Usual samples, no more than fit into the open cell."""
        self.open_low[row] = np.minimum(self.open_low[row], low)
        self.open_high[row] = np.maximum(self.open_high[row], high)
        self.open_samples[row] += samples.astype(np.int32)
        self.calm[row] += samples

    def full(self, row: Int64s) -> Int64s:
        """Those whose open cell is complete."""
        return row[self.open_samples[row] >= self.span[row]]

    def complete(self, row: Int64s, gap: Int64s) -> None:
        """Close the open cells of these series, whose samples are `gap` ns apart."""
        crowded = self._cells[row] == CELLS
        if crowded.any():
            short = self.span[row].astype(np.int64) * gap * CELLS < WINDOW_NS
            self._join(row[crowded & short])
            oldest = row[crowded & ~short]
            self._drop(oldest)
        at = self._cells[row]
        self._low[row, at], self._high[row, at] = self.open_low[row], self.open_high[row]
        self._samples[row, at] = self.open_samples[row]
        self._cells[row] = at + 1
        self._open(row)

    def restart(self, row: Int64s, low: Int64s, high: Int64s, samples: Int64s, dip: Int64s) -> None:
        """Only these samples, of each series, are usual now; a dip may last as long as before."""
        self._dip[row] = dip
        self._low[row], self._high[row], self._samples[row] = MOST, -1, 0
        self._low[row, 0], self._high[row, 0] = low, high
        self._samples[row, 0], self._cells[row], self.span[row] = samples, 1, 1
        self._from[row] = 0
        self.calm[row] = samples
        self._open(row)

    def _open(self, row: Int64s) -> None:
        self.open_low[row], self.open_high[row], self.open_samples[row] = MOST, -1, 0

    def _join(self, row: Int64s) -> None:
        """Neighbouring cells become one."""
        if not len(row):
            return
        half = CELLS // 2
        self._low[row, :half] = self._low[row].reshape(-1, half, 2).min(axis=2)
        self._high[row, :half] = self._high[row].reshape(-1, half, 2).max(axis=2)
        self._samples[row, :half] = self._samples[row].reshape(-1, half, 2).sum(axis=2)
        self._clear_after(row, half)
        self.span[row] *= 2
        self._from[row] = (self._from[row] + 1) // 2

    def _drop(self, row: Int64s) -> None:
        """Forget the oldest cell of each."""
        for cells in (self._low, self._high, self._samples):
            cells[row, :-1] = cells[row, 1:]
        self._clear_after(row, CELLS - 1)
        self._from[row] = np.maximum(self._from[row] - 1, 0)

    def _clear_after(self, row: Int64s, cells: int) -> None:
        self._low[row, cells:], self._high[row, cells:], self._samples[row, cells:] = MOST, -1, 0
        self._cells[row] = cells

    def _older(self, row: Int64s, least: int) -> Int64s:
        """The end of the cells that are not the newest: those are `LASTING` samples and a quarter
        of all. `least`: whether at least half of the samples are older."""
        upto = np.where(self._from[row, None] > _AT, 0, self._samples[row]).cumsum(axis=1)
        total = upto[:, -1]
        older = total - np.maximum(LASTING, total // 2 // 2)
        older = np.maximum(older, least * (total + 1) // 2)
        cells: Int64s = (upto < older[:, None]).sum(axis=1) + (older > 0)
        return cells

    def may_have_left(self, row: Int64s, high: Int64s, least_drop: int) -> Bools:
        """The last cell is below the usual range of these series, and far enough below the highest
        one that `leave` need look at them."""
        newest: Int64s = self._high[row, self._cells[row] - 1]
        highest = self._high[row].max(axis=1)
        is_low: Bools = (newest < high) & (highest - newest >= least_drop // 2)
        return is_low

    def leave(self, row: Int64s, least_drop: int, noise: int) -> None:
        """If memory was released and stays so, longer than it usually does, only what came after
        it is usual."""
        older, cells = self._older(row, 0), self._cells[row]
        is_old = (older[:, None] > _AT) & (self._from[row, None] <= _AT)
        is_new = (older[:, None] <= _AT) & (cells[:, None] > _AT)
        lows, highs = self._low[row], self._high[row]
        last = np.where(is_new, highs, -1).max(axis=1)
        moves = last - np.where(is_new, lows, MOST).min(axis=1)
        drop = np.where(is_old, highs, -1).max(axis=1) - last
        steady = (older > 0) & (drop >= least_drop) & (moves <= np.maximum(drop // NOISE, noise))
        stays, before = self._low_runs(row, last + drop // 2)
        # Where cells begin is chance.
        left = steady & (stays > before + 1) & (stays * self.span[row] > self._dip[row])
        row = row[left]
        self._from[row] = older[left]
        self.calm[row] = np.where(is_new[left], self._samples[row], 0).sum(axis=1)

    def come_back(self, row: Int64s) -> None:
        """What these series had left is usual again."""
        self._from[row] = 0
        self.calm[row] = self._samples[row].sum(axis=1)

    def _low_runs(self, row: Int64s, middle: Int64s) -> tuple[Int64s, Int64s]:
        """For how many cells each has been below the middle, and the most before it came back."""
        is_known = self._cells[row, None] > _AT
        is_high = is_known & (self._high[row] >= middle[:, None])
        last_high = np.maximum.accumulate(np.where(is_high, _AT, -1), axis=1)
        before = np.column_stack((np.full(len(row), -1), last_high[:, :-1]))
        longest = np.where(is_high, _AT - 1 - before, 0).max(axis=1)
        return self._cells[row] - np.int64(1) - last_high[:, -1], longest

    def usual(self, row: Int64s, least_slack: int) -> Range:
        """Of series with at least one complete cell."""
        begin = self._from[row, None]
        is_known = (begin <= _AT) & (self._older(row, 1)[:, None] > _AT)
        lows, highs = np.where(is_known, self._low[row], MOST), self._high[row]
        high = np.where(is_known, highs, -1).max(axis=1)
        former = np.where(begin > _AT, highs, -1).max(axis=1)
        low = np.sort(lows, axis=1)[np.arange(len(row)), is_known.sum(axis=1) // TRAINING_STEP]
        share = 1 / 2 + ENOUGH / (self._samples[row] * is_known).sum(axis=1)
        slack = np.maximum(((high - low) * share).astype(np.int64), least_slack)
        _, dip = self._low_runs(row, (np.maximum(high, former) + low) // 2)
        # Within a cell, no dip is seen.
        dip = (dip + (high - low > least_slack)) * self.span[row]
        dip = np.maximum(dip, self._dip[row])
        return Range(low, high, slack, dip, former)
