"""What is usual of memory series: their last minute in bins of two seconds.

The usual level is the highest of bins that are neither among the newest (a slow rise must not
become usual while it is looked at) nor of the warm-up, nor of a time in which the series rose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.engine.state.tables import GrowingColumns, column
from frd.model import Bools, Int32s, Int64s

SECOND: Final = 1_000_000_000
BIN_NS: Final = 2 * SECOND
"""A series is described by bins of this length: its twenty samples show the level, and a rise that
grew in the last of them goes on. In half of it a training step of two seconds is sometimes up and
sometimes down, so that each bin shows another level; with twice as much, it takes most of the
warm-up to know what is usual."""
BATCH_NS: Final = SECOND // 2
"""What happens within a batch of samples happens at one time: a rate is measured from batch to
batch, a rise that began in the newest one goes on, and samples of other ranks for the same time are
waited for this long. In half of it the noise of few samples is taken for a rate; in twice as much a
jump has a rate, and is taken for a rise that goes on."""
REVEALED_NS: Final = 5 * SECOND
"""How long a rise may look smaller than it is, because a usual movement hides it or it climbs in
steps: after that, a rise that is still small is no cause, and its level is a usual one; a rank that
shows none by then did not rise. All ranks begin a phase of the program (an evaluation) within this.
In half of it the next step of a staircase is another rise; with twice as much, a later rise joins
the level that an earlier one left, and another rank is named."""
_BINS: Final = 36
_NEWEST: Final = 4
"""So many newest bins do not count as usual, nor do those of the warm-up,"""
_ENOUGH: Final = 4
"""if at least this many others remain."""
_FEW_SAMPLES: Final = 5
"""Fewer samples do not show what is usual."""
MOST: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Usual:
    """What the bins of some series show; one row for each series with enough bins."""

    row: Int64s
    low: Int64s
    high: Int64s
    bins: Int64s
    """How many bins were used."""
    away: Int64s
    """The most bins in a row in which it stayed in the lower half."""


class Bins(GrowingColumns):
    """A ring buffer of complete bins for each series."""

    _begin: Int64s = column(np.int64, 0, _BINS)
    _low: Int64s = column(np.int64, 0, _BINS)
    _high: Int64s = column(np.int64, 0, _BINS)
    _samples: Int32s = column(np.int32, 0, _BINS)
    _usual: Bools = column(np.bool_, 0, _BINS)
    _newest: Int32s = column(np.int32)
    """Place of the last one."""

    def add(
        self,
        row: Int64s,
        begin: Int64s,
        low: Int64s,
        high: Int64s,
        samples: Int32s,
        usual: Bools,
    ) -> None:
        """A bin of each of these series is complete."""
        place = (self._newest[row] + 1) % _BINS
        self._newest[row] = place
        self._begin[row, place], self._samples[row, place] = begin, samples
        self._low[row, place], self._high[row, place] = low, high
        self._usual[row, place] = usual

    def accept(self, row: Int64s, since: Int64s) -> None:
        """What these series did since then counts as usual too."""
        self._usual[row] |= self._begin[row] >= since[:, None]

    def only(self, row: Int64s, since: Int64s) -> None:
        """Only what these series did since then counts as usual."""
        newest = np.arange(_BINS) == self._newest[row, None]
        self._usual[row] = newest | (self._begin[row] >= since[:, None])

    def usual(self, row: Int64s, grown_up: Int64s) -> Usual:
        """What is usual of these series, whose warm-up ended at the times `grown_up`."""
        usual = self._usual[row] & (self._samples[row] > 0)
        usual = _prefer_if_enough(usual & (self._begin[row] >= grown_up[:, None]), usual)
        age = (self._newest[row, None] - np.arange(_BINS)) % _BINS
        usual = _prefer_if_enough(usual & (age >= _NEWEST), usual)
        enough = (self._samples[row] * usual).sum(axis=1) >= _FEW_SAMPLES
        row, usual, age = row[enough], usual[enough], age[enough]
        bins, lows, highs = usual.sum(axis=1), self._low[row], self._high[row]
        high = np.where(usual, highs, -1).max(axis=1)
        # Of the lows the median: one that is from another time must not widen the band.
        low = np.sort(np.where(usual, lows, MOST), axis=1)[np.arange(len(row)), (bins - 1) // 2]
        away = usual & (highs < ((high + low) // 2)[:, None])
        ordered = np.take_along_axis(away, np.argsort(age, axis=1), axis=1)
        return Usual(row, low, high, bins, _longest_run(ordered))

    def recent(self, row: Int64s, count: int) -> Int64s:
        """(n, count) the highest value of each of the last ones, the newest last; -1 none."""
        place = (self._newest[row, None] - np.arange(count - 1, -1, -1)) % _BINS
        highs = np.take_along_axis(self._high[row], place, axis=1)
        return np.where(np.take_along_axis(self._samples[row], place, axis=1) > 0, highs, -1)

    def begin(self, row: Int64s, back: Int64s) -> Int64s:
        """(n,) when the bin so many before the last one began."""
        at: Int64s = self._begin[row, (self._newest[row] - back) % _BINS]
        return at


def _prefer_if_enough(better: Bools, usual: Bools) -> Bools:
    """By row: `better` if it has enough bins, else `usual`."""
    return np.where((better.sum(axis=1) >= _ENOUGH)[:, None], better, usual)


def _longest_run(flags: Bools) -> Int64s:
    """By row: how many in a row are true, at most."""
    run = longest = np.zeros(len(flags), np.int64)
    for flag in flags.T if flags.any() else ():
        run = (run + 1) * flag
        longest = np.maximum(longest, run)
    return longest
