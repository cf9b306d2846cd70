"""Where series leave what is usual of them: a causal walk over their samples, in columns.

Nothing here looks ahead: what is said of a sample follows from it and the samples before, whatever
batches they come in. So an analysis of samples that still come never takes back what it said.

A sample beyond the band begins an excursion. It is a rise once it is as large as the least rise and
as the slack of the band, and once it can be trusted: a level that was known from few samples may be
the valley of a saw-tooth, so the rise must be clearly larger than the range was, or last as long as
the level was seen. An excursion ends when the series falls back for longer than it usually stays
low, when it stops growing (then its level is the usual one), or when it becomes several times as
steep: a ramp of a start-up ends where a spike begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.engine.memory.walk.levels import (
    ENOUGH,
    LASTING,
    MOST,
    NOISE,
    QUARTER,
    REVEALED_NS,
    TRAINING_STEP,
)
from frd.engine.state.tables import GrowingColumns, column
from frd.model import Bools, Int64s

CONTRAST: Final = 120
"""A rise is trusted if it is this many times as large as the usual range, divided by the samples
that showed the range: 24 times if five did, thrice if forty did; certainly, with twice as many."""
CLEAR: Final = NOISE // 2
"""A rise so many times as large as the usual range did not hide in it for long, and is no outlier:
the range is little more than noise to it."""
STEPS: Final = 3
"""Samples over which steepness is measured; as many beyond the band are no outliers, and as many
are no dip."""


@dataclass(frozen=True, slots=True)
class Level:
    """What was usual of series, one row each: bytes, and numbers of samples."""

    calm: Int64s
    low: Int64s
    high: Int64s
    band: Int64s
    dip: Int64s
    former: Int64s
    """The highest of a level that was left lately; -1 none."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a sample has changed; one element each of the series."""

    established: Bools
    """Large enough for a rise now,"""
    ready: Bools
    """and trusted now."""
    usual: Bools
    """It was a usual movement, and is over."""
    fell: Bools
    """It fell back."""
    settled: Bools
    """Its level is the usual one now."""
    returned: Bools
    """It came back to a level that it had left: that is usual, too."""
    split: Bools
    """It has become steeper: this is another excursion, from a sample a moment ago on."""


class Excursions(GrowingColumns):
    """One row a series: its present excursion. Sizes are bytes, times aligned ns."""

    out: Bools = column(np.bool_)
    """There is one."""
    calm: Int64s = column(np.int64)
    """Samples that showed the level before it."""
    low: Int64s = column(np.int64)
    high: Int64s = column(np.int64)
    band: Int64s = column(np.int64)
    former: Int64s = column(np.int64, -1)
    seen: Int64s = column(np.int64)
    """End of its first sample."""
    lowest: Int64s = column(np.int64)
    top: Int64s = column(np.int64)
    samples: Int64s = column(np.int64)
    above: Int64s = column(np.int64)
    """Samples that were up,"""
    below: Int64s = column(np.int64)
    """and down, lately."""
    patience: Int64s = column(np.int64)
    """So many samples below end it."""
    established: Bools = column(np.bool_)
    ready: Bools = column(np.bool_)
    sized_at: Int64s = column(np.int64)
    size: Int64s = column(np.int64)
    """How far it rose within `REVEALED_NS`, or until its end; and when that was known."""
    twice_at: Int64s = column(np.int64)
    """End of the first sample beyond the band and its height again; 0 not yet."""
    grown_to: Int64s = column(np.int64)
    grown_at: Int64s = column(np.int64)
    """End of the sample in which it last grew."""
    still: Int64s = column(np.int64)
    """Samples since it last grew,"""
    still_low: Int64s = column(np.int64)
    still_high: Int64s = column(np.int64)
    """and the lowest and highest of them."""
    was_up: Bools = column(np.bool_)
    steady: Int64s = column(np.int64)
    """Samples since it last fell below its middle."""
    of_ramp: Bools = column(np.bool_)
    """It began within another one, which was less steep."""
    lo: Int64s = column(np.int64)
    """Begin of the last sample before it,"""
    hi: Int64s = column(np.int64)
    """and end of the first one, or of a jump that made it a rise: it may have begun only there."""
    steepest: Int64s = column(np.int64)
    """The most that it rose in `STEPS` samples, but for the last of them."""
    _rose: Int64s = column(np.int64, 0, STEPS)
    _values: Int64s = column(np.int64, 0, STEPS)
    _begins: Int64s = column(np.int64, 0, STEPS)
    _ends: Int64s = column(np.int64, 0, STEPS)
    """Of the last samples."""
    noise: int = 0
    least: int = 0
    """The least rise."""

    def begin(self, row: Int64s, level: Level, lo: Int64s, hi: Int64s) -> None:
        """A sample that ends at `hi` is beyond the band; the last usual one began at `lo`."""
        self.clear_rows(row)
        self.out[row], self.calm[row] = True, level.calm
        self.low[row], self.high[row], self.band[row] = level.low, level.high, level.band
        self.former[row] = level.former
        self.lowest[row] = MOST
        self.lo[row], self.hi[row], self.seen[row] = lo, hi, hi
        self.grown_to[row] = self.top[row] = level.high
        self.patience[row] = STEPS + level.dip
        self.steady[row] = LASTING
        self._values[row] = level.high[:, None]
        self._begins[row], self._ends[row] = lo[:, None], lo[:, None]

    def step(self, row: Int64s, begin: Int64s, end: Int64s, value: Int64s) -> Step:
        """The next sample of each series that is out."""
        high = self.high[row]
        self.samples[row] += 1
        samples = self.samples[row]
        top = self.top[row] = np.maximum(self.top[row], value)
        self.lowest[row] = np.minimum(self.lowest[row], value)
        rise = top - high
        was_established, was_ready = self.established[row], self.ready[row]
        established = was_established | (rise >= self._enough(row))
        # A jump that has just made it a rise: it may have begun only there.
        jumped = established & ~was_established & (2 * (value - self._values[row, -1]) >= rise)
        self.hi[row[jumped]] = end[jumped]
        still, still_low = self._grow(row, end, value, rise, established)
        floor = np.maximum(self.band[row], high + rise // QUARTER)
        is_below = value <= floor
        below = self.below[row] = np.where(is_below, self.below[row] + 1, 0)
        self.above[row] += ~is_below
        is_up = value >= high + rise // 2
        self.steady[row] = np.where(self.was_up[row] & ~is_up, 0, self.steady[row] + 1)
        rose = value - self._values[row, 0]
        self.steepest[row] = np.maximum(self.steepest[row], self._rose[row, 0])
        self.was_up[row] = is_up
        patience = self.patience[row]

        fell = below >= np.where(was_ready | (self.calm[row] >= LASTING), patience, 1)
        judged = established & ~was_ready & ~fell
        former = self.former[row]
        # Memory that returns to a level that it had left, or is on its way there, is usual.
        near = np.abs(top - former) <= np.maximum((former - high) // NOISE, self.band[row] - high)
        returned = judged & near & (still > 0)
        judged &= ~returned & ((top > former) | (still >= STEPS))
        trusted = judged & self._is_trusted(row, rise)
        long = np.where(self.calm[row] < ENOUGH, LASTING, np.maximum(TRAINING_STEP, self.calm[row]))
        lasts = judged & ~trusted & (self.above[row] >= 2 * long)
        stays = is_up & (self.steady[row] >= TRAINING_STEP)
        usual = (lasts & ~stays) | returned
        ready = was_ready | trusted | (lasts & stays)
        wait = np.where(established, np.maximum(TRAINING_STEP, samples // QUARTER), LASTING)
        # A tooth does not grow after its peak, but is no level.
        is_level = ready | ~established | (still_low >= top - rise // QUARTER)
        settled = is_level & (still >= np.maximum(wait, patience)) & ~fell & ~usual
        ready |= settled & established
        self.established[row], self.ready[row] = established, ready
        split = self._divide(row, end, value, rose, settled | fell)
        self._remember(row, begin, end, value, rose)
        is_over = usual | fell | settled
        self.out[row[is_over]] = False
        return Step(
            established=established & ~was_established,
            ready=ready & ~was_ready,
            usual=usual | (fell & ~ready) | (settled & ~established),
            fell=fell & ready,
            settled=settled & established,
            split=split,
            returned=returned,
        )

    def _grow(
        self, row: Int64s, end: Int64s, value: Int64s, rise: Int64s, established: Bools
    ) -> tuple[Int64s, Int64s]:
        """How far they have grown; returns `still` and `still_low`."""
        top = self.top[row]
        sized = (self.sized_at[row] == 0) & (end >= self.seen[row] + REVEALED_NS)
        self.sized_at[row[sized]], self.size[row[sized]] = end[sized], rise[sized]
        twice = (value > 2 * self.band[row] - self.low[row]) & (self.twice_at[row] == 0)
        self.twice_at[row[twice]] = end[twice]
        growth = np.where(
            established, rise // NOISE // 2, (self.high[row] - self.low[row]) // CLEAR
        )
        grown = top - self.grown_to[row] > np.maximum(growth, self.noise // QUARTER)
        self.grown_to[row[grown]], self.grown_at[row[grown]] = top[grown], end[grown]
        still = self.still[row] = np.where(grown, 0, self.still[row] + 1)
        still_low = np.where(grown, value, np.minimum(self.still_low[row], value))
        still_high = np.where(grown, 0, np.maximum(self.still_high[row], value))
        self.still_low[row], self.still_high[row] = still_low, still_high
        return still, still_low

    def is_certain(self, row: Int64s) -> Bools:
        """It is no usual movement that had not been seen before."""
        usual = self.high[row] - self.low[row]
        contrast = (self.top[row] - self.high[row]) * self.calm[row] >= 2 * CONTRAST * usual
        return contrast & (self.calm[row] >= LASTING) & ~self.of_ramp[row]

    def onset(self, row: Int64s, low_at: Int64s, now: Int64s) -> Int64s:
        """The earliest time at which each of these can have begun.

        The last usual sample, less the time that a gentle slope needs to cross the band, which is
        measured on the next stretch of the same height. What is not much larger than the usual
        range may have begun while the series was low, last at `low_at`: then, or for as long
        before as a slope would have been hidden there.
        """
        lo, hi, twice = self.lo[row], self.seen[row], self.twice_at[row]
        height, beyond = self.band[row] - self.low[row], self.top[row] - self.band[row]
        share = np.minimum(height / np.maximum(beyond, 1), 2)
        jumped = twice == hi
        crossing = (np.where(jumped, hi - lo, now - hi) * share).astype(np.int64)
        slow = np.where(jumped | (twice == 0), crossing, twice - hi)
        bottom = np.minimum(low_at, lo)
        hidden = bottom - 2 * (hi - bottom) // (QUARTER - 1)
        gentle = np.minimum(np.maximum(lo - 2 * slow, hidden), lo)
        gentle = np.where(self.hi[row] > hi, lo, gentle)  # it jumped
        moves, rise = self.high[row] - self.low[row], self.top[row] - self.high[row]
        return np.where(self.of_ramp[row] | (moves * CLEAR <= rise), gentle, hidden)

    def _is_trusted(self, row: Int64s, rise: Int64s) -> Bools:
        """Whether it is too large for a usual movement that had not been seen before."""
        usual, calm = self.high[row] - self.low[row], self.calm[row]
        outlier = (rise < CLEAR * usual) & (self.above[row] < STEPS)
        return (calm >= ENOUGH) & (rise * calm >= CONTRAST * usual) & ~outlier

    def _enough(self, row: Int64s) -> Int64s:
        """What is smaller is no rise."""
        enough: Int64s = np.maximum(self.band[row] - self.high[row], self.least)
        return enough

    # -- steepness -----------------------------------------------------------------------------

    def _divide(
        self, row: Int64s, end: Int64s, value: Int64s, rose: Int64s, is_over: Bools
    ) -> Bools:
        """Which of these have just become much steeper than ever before. What was a rise without
        the steeper part ends there, and another one begins."""
        rise, enough = self.top[row] - self.high[row], self._enough(row)
        steep = QUARTER * np.maximum(self.steepest[row], self.noise)
        large = np.maximum(enough, np.maximum(rise // QUARTER, steep))
        steeper = (self.samples[row] > 2 * STEPS + 2) & (rose >= large) & ~is_over & self.ready[row]
        divided = np.zeros(len(row), np.bool_)
        if not steeper.any():
            return divided
        at = np.flatnonzero(steeper)
        one = row[at]
        values = np.column_stack((self._values[one], value[at]))
        steps = np.diff(values, axis=1)
        first = (steps >= (rose[at] // QUARTER)[:, None]).argmax(axis=1)
        pick = np.arange(len(one))
        top, lo = values[pick, first], self._begins[one, first]
        hi = np.column_stack((self._ends[one], end[at]))[pick, first + 1]
        is_rise = top - self.high[one] >= enough[at]
        one, top, lo, hi, at = (column[is_rise] for column in (one, top, lo, hi, at))
        divided[at] = True
        calm, steepest = self.samples[one], self.steepest[one]
        band = top + np.maximum(steepest, self.noise)
        rings = [ring[one] for ring in (self._values, self._begins, self._ends, self._rose)]
        self.begin(
            one, Level(calm, top, top, band, zero := np.zeros(len(one), np.int64), zero - 1), lo, hi
        )
        for ring, was in zip(
            (self._values, self._begins, self._ends, self._rose), rings, strict=True
        ):
            ring[one] = was
        self.top[one] = self.grown_to[one] = value[at]
        self.lowest[one] = top
        self.grown_at[one] = end[at]
        self.samples[one] = self.above[one] = 1
        self.was_up[one] = self.established[one] = self.ready[one] = self.of_ramp[one] = True
        self.steepest[one] = rose[at]
        return divided

    def _remember(
        self, row: Int64s, begin: Int64s, end: Int64s, value: Int64s, rose: Int64s
    ) -> None:
        rings = (self._rose, rose), (self._values, value), (self._begins, begin), (self._ends, end)
        for ring, newest in rings:
            ring[row, :-1] = ring[row, 1:]
            ring[row, -1] = newest
