"""Memory series as columns: samples come in, rises and their figures go out.

There are thousands of series with ten samples a second each, so all work is done in whole columns.
A batch within the band of its series costs a few comparisons; only the others are followed sample
by sample (`frd.engine.memory.walk.excursions`). What is usual of a series is in
`frd.engine.memory.walk.levels`.

A *rise* is an excursion that could be trusted, and those that go on from its level: its steps may
be a minute apart. Its onset is an interval: not before the last usual sample, less the time that a
gentle slope needs to cross the band, which is measured on the next stretch of the same height, or
for which a slope would have been hidden in the usual range; and not after the first sample beyond
the band. It is over when the series falls back, or its level has lasted. Only the past is used, so
what was reported about a rise stays true.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from frd.engine.memory.walk.excursions import CLEAR, STEPS, Excursions, Level, Step
from frd.engine.memory.walk.levels import (
    BATCH_NS,
    ENOUGH,
    LASTING,
    MOST,
    NOISE,
    QUARTER,
    REVEALED_NS,
    SECOND,
    WINDOW_NS,
    Levels,
)
from frd.engine.memory.walk.rank_rise import FOREVER, RankRise
from frd.engine.memory.walk.recent import Recent
from frd.engine.memory.walk.trend import Trend
from frd.engine.policy import Policy
from frd.engine.state.tables import GrowingColumns, column
from frd.engine.views import Attribution
from frd.model import Bools, Float64s, Int32s, Int64s, MemoryColumns, SeriesInfo, SeriesKind

SETTLED_NS: Final = 300 * SECOND
"""A rise that a finding reports is over when its level has lasted for this long."""
LARGE: Final = 0.05
"""A rise that alarms takes this share of the capacity, or what was left,"""
HIGH: Final = 0.9
"""and reaches this share of the capacity, or will exhaust it within `WINDOW_NS`."""
SMALL_BYTES: Final = 1 << 30
_IN_CACHE: Final = 4096
"""Series whose cells are looked at together: the arrays of more would not stay in the cache."""
_VISIBLE: Final = 1 / 200
"""A rise that says something is this share of a capacity, but never need be more than a GiB."""

KINDS: Final = tuple(SeriesKind)
HOST_KINDS: Final = frozenset({SeriesKind.HOST_USED, SeriesKind.CGROUP_USED})
SHARED_KINDS: Final = frozenset({SeriesKind.DEVICE_USED, SeriesKind.CGROUP_USED})
"""Of all processes on the device or in the cgroup; the other kinds are of one process."""

_TORCH: Final = [KINDS.index(SeriesKind.TORCH_RESERVED), KINDS.index(SeriesKind.TORCH_ALLOCATED)]
OWN_KINDS: Final = (
    *(SeriesKind.HOST_USED, SeriesKind.PROCESS_USED),
    *(SeriesKind.TORCH_RESERVED, SeriesKind.TORCH_ALLOCATED),
)
"""What a rank's own processes hold; the first one known says it best."""

_KEPT: Final = frozenset(
    ("rank", "kind", "pool", "container", "own", "crowded", "on_host", "shared", "watched")
    + ("leak_seen", "leak_rate")
)
"""What a series keeps when its rank is another process: its identity; and its leak, which is over
when the windows of the new process do not confirm it."""


class Series(GrowingColumns):
    """One row a series. Times are aligned nanoseconds, 0 for never; sizes are bytes."""

    rank: Int32s = column(np.int32, -1)
    kind: npt.NDArray[np.int8] = column(np.int8)
    """Place in `KINDS`."""
    pool: Int32s = column(np.int32, -1)
    """Series of one device, or of one node's host memory, have the same."""
    container: Int32s = column(np.int32, -1)
    """The row that shows how much of the capacity is used by all processes; else its own row."""
    own: Int32s = column(np.int32, -1)
    """The row that shows how much of it the rank's own processes hold; -1 none."""
    crowded: Bools = column(np.bool_)
    """Several ranks share the device, or the memory of the node."""
    on_host: Bools = column(np.bool_)
    shared: Bools = column(np.bool_)
    watched: Bools = column(np.bool_)
    """Its rises count; other series only show whose memory it is."""
    capacity: Int64s = column(np.int64)
    visible: Int64s = column(np.int64)
    """A rise by less says nothing."""
    first: Int64s = column(np.int64)
    """Begin of the first sample."""
    begin: Int64s = column(np.int64)
    end: Int64s = column(np.int64)
    samples: Int64s = column(np.int64)
    gap: Int64s = column(np.int64)
    """Between samples, on average."""
    quiet_from: Int64s = column(np.int64)
    quiet_to: Int64s = column(np.int64)
    """Begins of the samples before and after the last long time without any."""
    again: Bools = column(np.bool_)
    """Another process of the rank had it before."""
    value: Int64s = column(np.int64, -1)
    top: Int64s = column(np.int64, -1)
    """The highest of the last batch."""
    known: Bools = column(np.bool_)
    """There were samples for what follows."""
    low: Int64s = column(np.int64)
    high: Int64s = column(np.int64)
    band: Int64s = column(np.int64)
    dip: Int64s = column(np.int64)
    """How many samples it usually stays low."""
    former: Int64s = column(np.int64, -1)
    """The highest of a level that it has left lately."""
    below: Int64s = column(np.int64)
    """Begin of the last sample within the band,"""
    low_at: Int64s = column(np.int64)
    """and of the last one near the usual low."""
    rising: Bools = column(np.bool_)
    base: Int64s = column(np.int64)
    """The highest usual level before the rise."""
    rest: Int64s = column(np.int64)
    """It has fallen back when it is no higher than this, or than a quarter of its height."""
    lo: Int64s = column(np.int64)
    hi: Int64s = column(np.int64)
    ready_at: Int64s = column(np.int64)
    """When the rise could be trusted."""
    peak: Int64s = column(np.int64)
    back: Int64s = column(np.int64)
    """Samples for which it has been no higher than `rest`."""
    back_at: Int64s = column(np.int64)
    spent: Int64s = column(np.int64, -1)
    """The peak of the last rise that fell back: what rises to it again may be a habit."""
    grown_to: Int64s = column(np.int64)
    grown_at: Int64s = column(np.int64)
    """When it last grew by enough to say that it grows."""
    rested: Int64s = column(np.int64)
    """How long it had not grown before it last did."""
    paced_at: Int64s = column(np.int64, 0, STEPS)
    paced: Int64s = column(np.int64, 0, STEPS)
    """The peak when its pace was last measured, and the two times before."""
    pace: Float64s = column(np.float64)
    rate: Float64s = column(np.float64)
    """Bytes a second, lately and steadily; a jump has none."""
    reportable_at: Int64s = column(np.int64)
    """Since when the rise is worth a finding."""
    incident: Int32s = column(np.int32)
    """Number of the incident that the rise belongs to; 0 none."""
    leak_rate: Float64s = column(np.float64)
    """Bytes a second over the last window of the trend."""
    leak_seen: Int32s = column(np.int32)
    """How many windows in a row the trend was that of a leak; -1 for a leak that the last window
    did not confirm."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        self.infos: list[SeriesInfo] = []
        """By row."""
        self.levels = Levels()
        self.excursions = Excursions()
        self.recent = Recent()
        self.trend = Trend()
        self.rises: list[RankRise] = []
        """New ones since they were last taken."""
        self._open: dict[int, RankRise] = {}
        """By row, of those that are out."""
        self._is_news = False
        """Samples came since rises were last taken."""
        self._parts: dict[int, list[RankRise]] = {}
        """By row, the parts of its rise."""
        self.near: dict[tuple[int, int], list[int]] = {}
        """Rows of one rank on one host or device."""

    @property
    def _warmup_ns(self) -> int:
        return round(self.policy.memory_warmup_s * SECOND)

    @property
    def _noise(self) -> int:
        return self.policy.memory_min_rise_bytes // NOISE

    def reserve(self, count: int) -> None:
        super().reserve(count)
        for part in (self.levels, self.excursions, self.recent, self.trend):
            part.reserve(count)

    def forget(self, row: Int64s) -> None:
        """Drop all samples of these rows; the series stay declared."""
        self._end(row[self.excursions.out[row]], self.end[row[self.excursions.out[row]]])
        self._close(row)
        self.clear_rows(row, keep=_KEPT)
        self.again[row] = True
        for part in (self.levels, self.excursions, self.recent, self.trend):
            part.clear_rows(row)

    # -- samples -----------------------------------------------------------------------------

    def apply(self, columns: MemoryColumns) -> None:
        """Samples of n different series, each at its own T moments: times and values are (n, T).

        A value of -1 is no sample; every row has one.
        """
        self._is_news = True
        row, values = columns.series.astype(np.int64, copy=False), columns.values
        begin, end = columns.begin_ns, columns.end_ns
        n, moments = values.shape
        at, low, top = np.arange(n), values.min(axis=1), values.max(axis=1)
        first, last, count = np.zeros(n, np.int64), moments - 1, np.full(n, moments)
        number, seen = np.broadcast_to(np.arange(moments), values.shape), begin
        if int(low.min(initial=0)) < 0:
            has = values >= 0
            count, number = has.sum(axis=1), np.where(has, has.cumsum(axis=1) - 1, -1)
            low = np.where(has, values, MOST).min(axis=1)
            first, last = has.argmax(axis=1), moments - 1 - has[:, ::-1].argmax(axis=1)
            seen = np.maximum.accumulate(np.where(has, begin, 0), axis=1)
        first_begin, last_begin, last_end = begin[at, first], begin[at, last], end[at, last]
        is_new = self.first[row] == 0
        self.first[row[is_new]] = first_begin[is_new]
        self._see_gaps(row, seen)
        self.samples[row] += count
        self.gap[row] = (last_begin - self.first[row]) // np.maximum(self.samples[row] - 1, 1)
        self._set_capacity(row, columns.capacity)
        self.begin[row], self.end[row] = last_begin, last_end
        self.value[row], self.top[row] = values[at, last], top
        self.trend.add(*self.recent.add(row, first_begin, low, top))
        done = self._take_calm(row, begin, values, number, count)
        left = np.flatnonzero(done < count)
        moving, done = row[left], done[left]
        by_moment = (one[left].T for one in (begin, end, values, number))
        for b, e, v, which in zip(*by_moment, strict=True):
            if (is_due := which >= done).any():
                self._moment(moving[is_due], b[is_due], e[is_due], v[is_due])
        rising = row[self.rising[row]]
        if len(rising):
            self._judge(rising)

    def _see_gaps(self, row: Int64s, begin: Int64s) -> None:
        """Where there was no sample for long: a series without one repeats what came before."""
        newest = np.where(self.begin[row] > 0, self.begin[row], self.first[row])
        at = np.column_stack((newest, np.maximum(newest[:, None], begin)))
        gaps = np.diff(at, axis=1)
        is_quiet = gaps.max(axis=1) > np.maximum(STEPS * self.gap[row], BATCH_NS)
        if is_quiet.any():
            row, at, longest = row[is_quiet], at[is_quiet], gaps[is_quiet].argmax(axis=1)
            pick = np.arange(len(row))
            self.quiet_from[row], self.quiet_to[row] = at[pick, longest], at[pick, longest + 1]

    def _take_calm(
        self, row: Int64s, begin: Int64s, values: Int64s, number: Int64s, count: Int64s
    ) -> Int64s:
        """Apply samples as long as nothing of their series needs to be followed one by one, each
        time those that fit into the open cell of its level. `number` numbers the samples of each
        series. Returns how many of each are applied."""
        done, left = np.zeros(len(row), np.int64), np.arange(len(row))
        while len(left):
            at, was = row[left], done[left]
            fits = self.levels.span[at] - self.levels.open_samples[at]
            upto = np.minimum(count[left], was + fits)
            which = number[left]
            is_in = (which >= was[:, None]) & (which < upto[:, None])
            sizes = values[left]
            low = np.where(is_in, sizes, MOST).min(axis=1)
            top = np.where(is_in, sizes, -1).max(axis=1)
            calm = np.flatnonzero(self._is_calm(at, low, top, upto - was < fits))
            at, left, times, is_in = at[calm], left[calm], begin[left[calm]], is_in[calm]
            is_low = is_in & (sizes[calm] <= self._near_low(at)[:, None])
            last = np.where(is_low, times, 0).max(axis=1)
            self.low_at[at[last > 0]] = last[last > 0]
            self.below[at] = np.where(is_in, times, 0).max(axis=1)
            self.levels.add(at, low[calm], top[calm], (upto - was)[calm])
            self._learn(self.levels.full(at))
            done[left] = upto[calm]
            left = left[done[left] < count[left]]
        return done

    def _is_calm(self, row: Int64s, low: Int64s, top: Int64s, stays_open: Bools) -> Bools:
        """Nothing of samples that leave the cell open, or complete it, needs to be followed."""
        calm = self.known[row] & (top <= self.band[row]) & ~self.excursions.out[row]
        rising = self.rising[row]
        if rising.any():
            goes_on = stays_open & (low > self._floor(row)) & (self.back[row] == 0)
            calm &= ~rising | goes_on
        return calm

    def _near_low(self, row: Int64s) -> Int64s:
        low: Int64s = self.low[row] + (self.band[row] - self.low[row]) // QUARTER
        return low

    def _floor(self, row: Int64s) -> Int64s:
        """A rise that is no higher has fallen back."""
        base = self.base[row]
        return np.maximum(self.rest[row], base + (self.peak[row] - base) // QUARTER)

    def _set_capacity(self, row: Int64s, capacity: Int64s) -> None:
        changed = self.capacity[row] != capacity
        changed |= self.visible[row] == 0
        if changed.any():
            row, capacity = row[changed], capacity[changed]
            small = np.minimum((capacity * _VISIBLE).astype(np.int64), SMALL_BYTES)
            self.capacity[row] = capacity
            self.visible[row] = np.maximum(small, self.policy.memory_min_rise_bytes)

    def _moment(self, row: Int64s, begin: Int64s, end: Int64s, value: Int64s) -> None:
        """One sample of each of these series."""
        out = self.excursions.out[row]
        beyond = ~out & self.known[row] & (value > self.band[row])
        if beyond.any():
            self._begin_excursions(row[beyond], end[beyond])
        usual = ~out & ~beyond
        if usual.any():
            self._usual(row[usual], begin[usual], value[usual])
        rising = self.rising[row]
        if rising.any():
            self._follow(row[rising], end[rising], value[rising])
        if not usual.all():
            is_out = self.excursions.out[row]
            row, begin, end = row[is_out], begin[is_out], end[is_out]
            self._took(row, end, self.excursions.step(row, begin, end, value[is_out]))

    def _usual(self, row: Int64s, begin: Int64s, value: Int64s) -> None:
        self.below[row] = begin
        is_low = ~self.known[row] | (value <= self._near_low(row))
        self.low_at[row[is_low]] = begin[is_low]
        self.levels.add(row, value, value, np.ones(len(row), np.int64))
        self._learn(self.levels.full(row))

    def _learn(self, row: Int64s) -> None:
        """The open cells of these series are complete: compute what is usual."""
        least_drop = self.policy.memory_min_rise_bytes
        for start in range(0, len(row), _IN_CACHE):
            part = row[start : start + _IN_CACHE]
            self.levels.complete(part, self.gap[part])
            low = self.levels.may_have_left(part, self.high[part], least_drop)
            if (dropped := part[self.known[part] & low]).size:
                self.levels.leave(dropped, least_drop, self._noise)
            self._measure(part)
            self.known[part] = True

    def _measure(self, row: Int64s) -> None:
        usual = self.levels.usual(row, self._noise)
        self.low[row], self.high[row] = usual.low, usual.high
        self.band[row], self.dip[row] = usual.high + usual.slack, usual.dip
        self.former[row] = usual.former

    # -- excursions and rises ----------------------------------------------------------------

    def _begin_excursions(self, row: Int64s, end: Int64s) -> None:
        low, high, band = self.low[row], self.high[row], self.band[row]
        self.excursions.noise = self._noise
        self.excursions.least = self.policy.memory_min_rise_bytes
        calm = self.levels.calm[row]
        level = Level(calm, low, high, band, self.dip[row], self.former[row])
        self.excursions.begin(row, level, self.below[row], end)
        new = ~self.rising[row]
        if new.any():
            self._begin_rises(row[new], end[new])
        for at in row.tolist():
            self._declare(at)

    def _begin_rises(self, row: Int64s, seen: Int64s) -> None:
        """The excursions of these series are not parts of earlier rises."""
        one = self.excursions
        self.rising[row], self.back[row], self.back_at[row] = True, 0, 0
        self.base[row] = self.grown_to[row] = self.peak[row] = one.high[row]
        self.rest[row] = one.band[row]
        self.lo[row], self.hi[row], self.grown_at[row] = one.lo[row], one.hi[row], seen
        self.ready_at[row] = self.reportable_at[row] = 0
        self.incident[row] = self.rate[row] = self.pace[row] = self.rested[row] = 0
        self.paced_at[row] = 0
        self.paced_at[row, 0], self.paced[row, 0] = seen, one.high[row]

    def _follow(self, row: Int64s, end: Int64s, value: Int64s) -> None:
        """How high rises are, how fast, and which are over."""
        rests = self._rests(row, end)
        if rests.any():
            self._close(row[rests])
            row, end, value = row[~rests], end[~rests], value[~rests]
        peak = self.peak[row] = np.maximum(self.peak[row], value)
        much = np.maximum(self.visible[row], (peak - self.base[row]) // QUARTER) // CLEAR
        grows = peak > self.grown_to[row] + much
        rested = end - self.grown_at[row]
        again = grows & (rested > BATCH_NS)
        self.rested[row[again]] = rested[again]
        self.grown_to[row[grows]], self.grown_at[row[grows]] = peak[grows], end[grows]
        self._measure_rates(row, end, peak)
        is_low = value <= self._floor(row)
        first_low = is_low & (self.back[row] == 0)
        self.back_at[row[first_low]] = end[first_low]
        back = self.back[row] = np.where(is_low, self.back[row] + 1, 0)
        over = (back >= self.excursions.patience[row]) & (self.ready_at[row] > 0)
        if over.any():
            self._fell_back(row[over], end[over], value[over])

    def _fell_back(self, row: Int64s, end: Int64s, value: Int64s) -> None:
        """These rises are over. What went on for long does not show what is usual."""
        out = self.excursions.out[row]
        self._end(row[out], end[out])
        self._accept(row[out & (self.excursions.samples[row] <= LASTING)])
        stale = self.high[row] > self._floor(row)
        if stale.any():  # a level that a rise has reached, and left
            one, now = row[stale], value[stale]
            dip = self.excursions.patience[one] - STEPS
            self.levels.restart(one, now, now, self.back[one], dip)
            self._measure(one)
        for at, when in _pairs(row, self.back_at[row]):
            for rise in self._parts.get(at, ()):
                rise.back = min(rise.back, when)
        self.spent[row] = self.peak[row]
        self._close(row)

    def _took(self, row: Int64s, end: Int64s, step: Step) -> None:
        """What excursions have become."""
        one = self.excursions
        for at, when in _pairs(row, end, step.established):
            self._declare(at)
            if (rise := self._open.get(at)) is not None:
                rise.established = min(rise.established, when)
        self._trust(row[step.ready], end[step.ready])
        over = step.usual | step.fell | step.settled | step.split
        self._end(row[over], end[over])
        self._close(row[step.usual & (self.ready_at[row] == 0)])
        self.levels.come_back(row[step.returned])
        self._accept(row[step.usual | (step.fell & (one.samples[row] <= LASTING))])
        settled = row[step.settled]
        if len(settled):
            low, high = one.still_low[settled], one.still_high[settled]
            dip = one.patience[settled] - STEPS
            self.levels.restart(settled, low, high, one.still[settled], dip)
            self._measure(settled)
            self._close(settled[one.calm[settled] < ENOUGH])  # a start ends where it has led
        if step.split.any():
            row, end = row[step.split], end[step.split]
            one.out[row] = True
            self._close(row)
            self._begin_rises(row, one.hi[row])
            self._trust(row, end)

    def _end(self, row: Int64s, end: Int64s) -> None:
        """The excursions of these series are over."""
        self.excursions.out[row] = False
        for at, when in _pairs(row, end):
            if (rise := self._open.pop(at, None)) is not None:
                self._update(rise)
                rise.end = when
                if rise.sized == FOREVER:
                    rise.sized, rise.size = when, rise.peak - rise.high

    def _accept(self, row: Int64s) -> None:
        """What the excursions of these series showed is usual."""
        if len(row):
            one = self.excursions
            self.levels.add(row, one.lowest[row], one.top[row], one.samples[row])
            self._learn(row)

    def _trust(self, row: Int64s, now: Int64s) -> None:
        """Excursions that are rises now, or parts of them."""
        if not len(row):
            return
        one = self.excursions
        lo, hi = one.onset(row, self.low_at[row], now), one.hi[row]
        new = self.ready_at[row] == 0
        first = row[new]
        self.ready_at[first], self.lo[first], self.hi[first] = now[new], lo[new], hi[new]
        again = np.abs(one.top[row] - self.spent[row]) <= (one.top[row] - one.high[row]) // NOISE
        certain = one.is_certain(row) & ~again
        figures = (part.tolist() for part in (row, now, lo, hi, certain))
        for at, when, *onset, is_certain in zip(*figures, strict=True):
            self._declare(at)
            if (rise := self._open.get(at)) is not None:
                rise.lo, rise.hi = onset
                rise.ready, rise.established = when, min(rise.established, when)
                rise.young = rise.lo - int(self.first[at]) < self._warmup_ns
                rise.is_certain = is_certain
                self._parts.setdefault(at, []).append(rise)

    def _declare(self, row: int) -> None:
        """Tell the judge of a rise, unless another series of the rank shows it already."""
        if row in self._open or not self.watched[row]:
            return
        rank, one = int(self.rank[row]), self.excursions
        if self.is_others(np.array([row]))[0]:
            return
        for other in self.near.get(self._place(row), ()):
            known = self._open.get(other)
            if known is not None and (known.established < FOREVER or not one.established[row]):
                return
        calm = int(one.calm[row])
        if calm < ENOUGH and self.again[row]:  # memory that another process fills from nothing
            return
        lo = int(one.lo[row])
        seen = int(one.hi[row])
        at = np.array([row])
        rise = RankRise(
            rank=rank,
            row=row,
            on_host=bool(self.on_host[row]),
            kind=KINDS[self.kind[row]],
            device=self.infos[row].device if self.infos else "",
            lo=lo if calm >= ENOUGH else int(self.first[row]),
            lo_when_seen=int(one.onset(at, self.low_at[at], one.hi[at])[0])
            if calm >= ENOUGH
            else lo,
            hi=seen,
            seen=seen,
            high=int(one.high[row]),
            from_start=calm < ENOUGH,
            began_before=calm < 2,
        )
        self._open[row] = rise
        self.rises.append(rise)

    def _close(self, row: Int64s) -> None:
        """The rises of these series are over."""
        self.rising[row] = False
        self.reportable_at[row] = self.incident[row] = 0
        for at in row.tolist():
            self._parts.pop(at, None)

    def _update(self, rise: RankRise) -> None:
        one, row = self.excursions, rise.row
        rise.peak, rise.grown = int(one.top[row]), int(one.grown_at[row])
        if one.sized_at[row]:
            rise.sized, rise.size = int(one.sized_at[row]), int(one.size[row])
        if one.ready[row]:
            rise.attribution = self.attribution(row)

    def take_rises(self) -> list[RankRise]:
        """The new rises since the last call; all that go on are up to date."""
        for rise in self._open.values() if self._is_news else ():
            self._update(rise)
        self._is_news = False
        found, self.rises = self.rises, []
        return found

    def _measure_rates(self, row: Int64s, now: Int64s, peak: Int64s) -> None:
        """How fast it rises: the slower of the last half second or so and the second before.

        The faster of two such counts, for stairs rise now and then only.
        """
        due = now - self.paced_at[row, 0] >= BATCH_NS
        if not due.any():
            return
        row, now, peak = row[due], now[due], peak[due]
        before, was = self.paced_at[row, :-1], self.paced[row, :-1]
        oldest_at, oldest = self.paced_at[row, -1], self.paced[row, -1]
        self.paced_at[row] = np.column_stack((now, before))
        self.paced[row] = np.column_stack((peak, was))
        rates = (peak[:, None] - was) / (now[:, None] - before)
        # A jump after a rest is no pace, but stairs are, once the job has started.
        is_stair = (self.rested[row] <= REVEALED_NS) & ~self._began_young(row)
        moved = (was[:, 0] > oldest) | (oldest_at == 0) | is_stair
        pace = np.where((before[:, 1] > 0) & moved, rates.min(axis=1), 0.0) * SECOND
        self.rate[row], self.pace[row] = np.maximum(pace, self.pace[row]), pace

    # -- what has become of rises ------------------------------------------------------------

    def _judge(self, row: Int64s) -> None:
        """Which of these rises alarm, and which have found their level."""
        policy = self.policy
        young = self.is_young(row)
        risen, left, capacity = self.risen(row), self.headroom(row), self.capacity_of(row)
        around = self.container[row].astype(np.int64)  # what others take there is not the rank's
        left += self.taken_by_others(around) * (self.is_others(around) & (around != row))
        large = (risen >= LARGE * capacity) | (risen >= left)
        large &= (risen >= policy.memory_min_rise_bytes) & (capacity > 0)
        large &= (capacity - left >= HIGH * capacity) | self.runs_out(row, left)
        large &= self.ready_at[row] > 0
        reportable = row[large & ~young & (self.reportable_at[row] == 0)]
        self.reportable_at[reportable] = self.end[reportable]
        for at in reportable.tolist():
            for rise in self._parts.get(at, ())[-1:]:
                rise.alarming_at = int(self.end[at])
        self._close(row[self._rests(row, self.end[row])])

    def _rests(self, row: Int64s, now: Int64s) -> Bools:
        """The level that these rises have reached has lasted for so long that it is no rise."""
        patience = np.full(len(row), WINDOW_NS)
        small = self.peak[row] - self.base[row] < self.visible[row]
        patience[small | self._began_young(row)] = REVEALED_NS
        patience[self.incident[row] > 0] = SETTLED_NS
        return ~self.excursions.out[row] & (now - self.grown_at[row] > patience)

    def is_flat(self, row: int) -> bool:
        """It no longer rises, as stairs do for seconds."""
        is_still = self.rate[row] <= 0 and self.end[row] - self.grown_at[row] > REVEALED_NS
        return bool(self.value[row] >= 0 and (is_still or not self.rising[row]))

    def is_young(self, row: Int64s) -> Bools:
        """True during warm-up, and for a rise that began then and has not had time to stop."""
        age = self.begin[row] - self.first[row]
        return (age < self._warmup_ns) | (self._began_young(row) & (age < 2 * self._warmup_ns))

    def _began_young(self, row: Int64s) -> Bools:
        return self.rising[row] & (self.lo[row] - self.first[row] < self._warmup_ns)

    def risen(self, row: Int64s) -> Int64s:
        """Beyond the usual level, now."""
        base = np.where(self.rising[row], self.base[row], self.high[row])
        risen: Int64s = np.maximum(self.top[row] - base, 0)
        return risen

    def gain(self, row: Int64s) -> Int64s:
        """The most beyond the usual level of rises, and of the last batch."""
        rising = self.rising[row]
        level = np.where(rising, self.base[row], self.high[row])
        gain: Int64s = np.where(rising, self.peak[row], self.top[row]) - level
        return np.maximum(gain, 0)

    def attribution(self, row: int) -> Attribution:
        """The owner of the memory that this series shows."""
        match KINDS[self.kind[row]]:
            case SeriesKind.HOST_USED:
                return Attribution.HOST
            case SeriesKind.TORCH_RESERVED | SeriesKind.TORCH_ALLOCATED:
                return Attribution.ALLOCATOR
            case kind:
                near = self.near.get(self._place(row), [row])
                kinds = {KINDS[self.kind[at]]: at for at in near if self.value[at] >= 0}
                torch = kinds.get(SeriesKind.TORCH_RESERVED, kinds.get(SeriesKind.TORCH_ALLOCATED))
                if torch is not None:
                    of_torch, of_all = self.gain(np.array([torch, row]))
                    if 2 * of_torch >= of_all:
                        return Attribution.ALLOCATOR
                if kind is SeriesKind.PROCESS_USED:
                    return Attribution.PROCESS if torch is None else Attribution.DRIVER
                return Attribution.UNKNOWN if torch is None else Attribution.OUTSIDE

    def _place(self, row: int) -> tuple[int, int]:
        return int(self.rank[row]), int(self.pool[row])

    def is_others(self, row: Int64s) -> Bools:
        """Whole devices and cgroups that several ranks share, or of which is known what the rank's
        processes hold there: what they show does not accuse a rank."""
        own = self.own[row]
        # Of what torch holds, a process may hold more, for NCCL or the driver.
        is_held = (own >= 0) & (self.first[own] > 0) & ~np.isin(self.kind[own], _TORCH)
        return self.shared[row] & (is_held | self.crowded[row])

    def taken_by_others(self, row: Int64s) -> Int64s:
        """Of the rise of whole devices and cgroups what is not of ranks on that device or node."""
        own = np.unique(self.own[: self.count]).astype(np.int64)
        own = own[(own >= 0) & self.known[own]]
        of_ranks = np.bincount(self.pool[own], self.gain(own), self.count)
        others = self.peak[row] - self.base[row] - of_ranks[self.pool[row]].astype(np.int64)
        return np.where(self.shared[row] & self.rising[row], np.maximum(others, 0), 0)

    def runs_out(self, row: Int64s, left: Int64s) -> Bools:
        """At the present rate `left` is exhausted soon."""
        return (self.rate[row] > 0) & (left <= WINDOW_NS / SECOND * self.rate[row])

    def headroom(self, row: Int64s) -> Int64s:
        """What is left of the capacity, whichever process uses the rest."""
        used = np.maximum(self.top[self.container[row]], self.top[row])
        return np.maximum(self.capacity_of(row) - used, 0)

    def capacity_of(self, row: Int64s) -> Int64s:
        of_all = self.capacity[self.container[row]]
        return np.where(of_all > 0, of_all, self.capacity[row])


def _pairs(row: Int64s, end: Int64s, which: Bools | None = None) -> Iterator[tuple[int, int]]:
    """Rows and times, of some of them."""
    if which is not None:
        row, end = row[which], end[which]
    return zip(row.tolist(), end.tolist(), strict=True)
