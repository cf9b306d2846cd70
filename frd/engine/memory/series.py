"""Memory series as columns: what is usual of each, and which of them rise above it.

There are thousands of series with ten samples a second each, so all work is done in whole columns.
A series that stays within its *band* costs a few comparisons; only series that leave it are
followed sample by sample.

The band of a series ends at its usual highest level (`frd.engine.memory.baseline`) plus some slack,
a share of how much the series usually moves, so that the saw-tooth of training steps, and samples
that hit its peak by chance, stay inside.

A series *rises* from the moment it leaves its band until it has fallen back for longer than it
usually dips, or has stood still for so long that the new level is its usual one. The onset of the
rise is an interval: not before the last sample within the band, less the time that a gentle slope
needs to cross the band, which is measured on the next stretch of the same height; and not after the
first sample beyond it. Only the past is used, so what was reported about a rise stays true.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from frd.engine.memory.baseline import BATCH_NS, BIN_NS, MOST, REVEALED_NS, SECOND, Bins
from frd.engine.memory.trend import Trend
from frd.engine.policy import Policy
from frd.engine.state.tables import GrowingColumns, column
from frd.model import Bools, Float64s, Int32s, Int64s, MemoryColumns, SeriesInfo, SeriesKind

_SLACK: Final = 0.5
"""Share of what a series usually moves,"""
_SLACK_BINS: Final = 1
"""and this much more while there are few bins to judge by."""
_SLACK_OF_MIN: Final = 64
"""The least slack, as a part of the least rise: what drivers and interpreters do by themselves."""
_DIP_GAPS: Final = 2.5
"""Samples so far apart that a dip shorter than this would be a single one."""
_GENTLE: Final = 2
"""A slope that steepens takes longer through the band than through the same height beyond it."""
_SMALL_SHARE: Final = 1 / 200
_SMALL_BYTES: Final = 1 << 30
_GROWTH_PARTS: Final = 8
"""Part of a visible rise that counts as going on."""

KINDS: Final = tuple(SeriesKind)
HOST_KINDS: Final = frozenset({SeriesKind.HOST_USED, SeriesKind.CGROUP_USED})
SHARED_KINDS: Final = frozenset({SeriesKind.DEVICE_USED, SeriesKind.CGROUP_USED})
"""Of all processes on the device or in the cgroup; the other kinds are of one process."""

_KEPT: Final = frozenset(
    ("rank", "kind", "pool", "container", "own", "on_host", "shared", "watched")
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
    gap: Int64s = column(np.int64)
    """Between samples, lately."""
    value: Int64s = column(np.int64, -1)
    top: Int64s = column(np.int64, -1)
    """The highest of the last batch."""
    known: Bools = column(np.bool_)
    """There were enough samples for what follows."""
    low: Int64s = column(np.int64)
    high: Int64s = column(np.int64)
    slack: Int64s = column(np.int64)
    dip: Int64s = column(np.int64, BIN_NS)
    """How long it usually stays below the middle."""
    bin_begin: Int64s = column(np.int64)
    bin_low: Int64s = column(np.int64, MOST)
    bin_high: Int64s = column(np.int64, -1)
    bin_count: Int32s = column(np.int32)
    bin_odd: Bools = column(np.bool_)
    """It was above the band meanwhile."""
    below: Int64s = column(np.int64)
    """Begin of the last sample within the band."""
    rising: Bools = column(np.bool_)
    lo: Int64s = column(np.int64)
    hi: Int64s = column(np.int64)
    """End of the first sample beyond the band."""
    twice_at: Int64s = column(np.int64)
    """End of the first sample beyond the band and its height again; 0 not yet."""
    up_at: Int64s = column(np.int64)
    """End of the last sample that was not a dip."""
    peak: Int64s = column(np.int64)
    grown_to: Int64s = column(np.int64)
    grown_at: Int64s = column(np.int64)
    """When it last grew by enough to say that it grows."""
    paced_at: Int64s = column(np.int64, 0, 3)
    paced: Int64s = column(np.int64, 0, 3)
    """The peak when its pace was last measured, and the two times before."""
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
        self.bins = Bins()
        self.trend = Trend(policy.memory_leak_window_s)

    def adopt(self, policy: Policy) -> None:
        if policy.memory_leak_window_s != self.policy.memory_leak_window_s:
            self.trend = Trend(policy.memory_leak_window_s)
            self.trend.reserve(self.count)
        self.policy = policy

    @property
    def link_ns(self) -> int:
        """Ranks whose memory begins to rise within this long of each other are one incident."""
        return round(self.policy.memory_link_s * SECOND)

    @property
    def _warmup_ns(self) -> int:
        return round(self.policy.memory_warmup_s * SECOND)

    def reserve(self, count: int) -> None:
        super().reserve(count)
        self.bins.reserve(count)
        self.trend.reserve(count)

    def forget(self, row: Int64s) -> None:
        """Drop all samples of these rows; the series stay declared."""
        self.clear_rows(row, keep=_KEPT)
        self.bins.clear_rows(row)
        self.trend.clear_rows(row)

    # -- samples -----------------------------------------------------------------------------

    def apply(self, columns: MemoryColumns) -> None:
        """Samples of n different series, each at its own T moments: times and values are (n, T).

        A value of -1 is no sample; every row has one.
        """
        row, values = columns.series.astype(np.int64, copy=False), columns.values
        begin, end = columns.begin_ns, columns.end_ns
        n, moments = values.shape
        has = values >= 0
        count = has.sum(axis=1)
        at = np.arange(n)
        first, last = has.argmax(axis=1), moments - 1 - has[:, ::-1].argmax(axis=1)
        first_begin, last_begin, last_end = begin[at, first], begin[at, last], end[at, last]
        is_new = self.first[row] == 0
        if is_new.any():
            self.first[row[is_new]] = self.bin_begin[row[is_new]] = first_begin[is_new]
        self.gap[row] = np.where(is_new, self.gap[row], (last_begin - self.begin[row]) // count)
        full = first_begin - self.bin_begin[row] >= BIN_NS
        if full.any():
            self._complete_bins(row[full], first_begin[full])
        self._set_capacity(row, columns.capacity)
        top = values.max(axis=1)
        self.begin[row], self.end[row] = last_begin, last_end
        self.value[row], self.top[row] = values[at, last], top
        outside = self.rising[row] | (top > self.high[row] + self.slack[row])
        outside &= self.known[row] & self.watched[row]
        self.below[row[~outside]] = last_begin[~outside]
        if outside.any():
            out = row[outside]
            self.bin_odd[out] = True
            self._follow(out, begin[outside], end[outside], values[outside])
            self._judge(out)
        low = np.where(has, values, MOST).min(axis=1)
        self.bin_low[row] = np.minimum(self.bin_low[row], low)
        self.bin_high[row] = np.maximum(self.bin_high[row], top)
        self.bin_count[row] += count.astype(np.int32)

    def _set_capacity(self, row: Int64s, capacity: Int64s) -> None:
        changed = self.capacity[row] != capacity
        changed |= self.visible[row] == 0
        if changed.any():
            row, capacity = row[changed], capacity[changed]
            share = min(_SMALL_SHARE, self.policy.memory_min_rise_share)
            small = np.minimum((capacity * share).astype(np.int64), _SMALL_BYTES)
            self.capacity[row] = capacity
            self.visible[row] = np.maximum(small, self.policy.memory_min_rise_bytes)

    def _follow(self, row: Int64s, begin: Int64s, end: Int64s, values: Int64s) -> None:
        """Sample by sample, all these series together: where rises begin, continue and end."""
        high, visible = self.high[row], self.visible[row]
        band = high + self.slack[row]
        twice_band = 2 * band - self.low[row]
        patience = np.maximum(self.dip[row], (_DIP_GAPS * self.gap[row]).astype(np.int64))
        rising, lo, hi, twice = self.rising[row], self.lo[row], self.hi[row], self.twice_at[row]
        peak, up_at, below = self.peak[row], self.up_at[row], self.below[row]
        paced = np.zeros(len(row), np.bool_)
        for b, e, v in zip(begin.T, end.T, values.T, strict=True):
            above = v > band
            begins = above & ~rising
            if begins.any():
                rising |= begins
                lo[begins], hi[begins], twice[begins] = below[begins], e[begins], 0
                peak[begins] = v[begins]
                self._begin_rise(row[begins], e[begins], v[begins])
            np.maximum(peak, v, out=peak, where=rising)
            np.copyto(twice, e, where=(v > twice_band) & (twice == 0) & rising)
            floor = np.where(
                peak - high < visible, band, np.maximum(band, high + (peak - high) // 4)
            )
            is_up = v > floor
            np.copyto(up_at, e, where=is_up)
            np.copyto(below, b, where=(v >= 0) & ~above)
            over = rising & (v >= 0) & ~is_up & (b - up_at > patience)
            if over.any():
                rising &= ~over
                self._end_rise(row[over], (peak - high < visible)[over], lo[over])
            self._measure_rates(row, e, peak, rising, paced)
        self.rising[row], self.lo[row], self.hi[row], self.twice_at[row] = rising, lo, hi, twice
        self.peak[row], self.up_at[row], self.below[row] = peak, up_at, below

    def _begin_rise(self, row: Int64s, at: Int64s, value: Int64s) -> None:
        self.grown_to[row], self.grown_at[row] = value, at
        self.paced_at[row] = 0
        self.paced_at[row, 0], self.paced[row, 0] = at, value
        self.reportable_at[row] = self.incident[row] = 0
        self.rate[row] = 0.0

    def _end_rise(self, row: Int64s, was_small: Bools, lo: Int64s) -> None:
        """It fell back. What was hardly a rise is usual."""
        self.reportable_at[row] = self.incident[row] = 0
        self.bins.accept(row[was_small], lo[was_small])
        self.bin_odd[row[was_small]] = False

    def _measure_rates(
        self, row: Int64s, now: Int64s, peak: Int64s, rising: Bools, paced: Bools
    ) -> None:
        """How fast it rises: the slower of the last half second or so and the second before.

        The fastest of a batch counts (`paced` has had one), for stairs rise now and then only.
        """
        due = rising & (now - self.paced_at[row, 0] >= BATCH_NS)
        if not due.any():
            return
        row, now, peak, again = row[due], now[due], peak[due], paced[due]
        paced |= due
        before, was = self.paced_at[row, :2], self.paced[row, :2]
        self.paced_at[row] = np.column_stack((now, before))
        self.paced[row] = np.column_stack((peak, was))
        rates = (peak[:, None] - was) / (now[:, None] - before)
        rate = np.where(before[:, 1] > 0, rates.min(axis=1), 0.0) * SECOND
        self.rate[row] = np.where(again, np.maximum(rate, self.rate[row]), rate)

    # -- what has become of rises ------------------------------------------------------------

    def _judge(self, row: Int64s) -> None:
        """Which of these rises are worth a finding, and which have found their level."""
        policy = self.policy
        row = row[self.rising[row]]
        enough = np.maximum(self.visible[row], (self.peak[row] - self.high[row]) // 4)
        grows = self.peak[row] > self.grown_to[row] + enough // _GROWTH_PARTS
        self.grown_to[row[grows]] = self.peak[row[grows]]
        self.grown_at[row[grows]] = self.end[row[grows]]
        young = self.is_young(row)
        risen, left, capacity = self.risen(row), self.headroom(row), self.capacity_of(row)
        around = self.container[row].astype(np.int64)  # what others take there is not the rank's
        left += self.taken_by_others(around) * (self.is_others(around) & (around != row))
        large = risen >= policy.memory_min_rise_share * capacity
        large |= risen >= left
        large &= (risen >= policy.memory_min_rise_bytes) & (capacity > 0)
        high = capacity - left >= policy.memory_high_share * capacity
        large &= high | self.runs_out(row, left)
        reportable = row[large & ~young & (self.reportable_at[row] == 0)]
        self.reportable_at[reportable] = self.end[reportable]
        patience = np.full(len(row), self.link_ns)
        small = self.peak[row] - self.high[row] < self.visible[row]
        patience[small | self._began_young(row)] = REVEALED_NS
        patience[self.incident[row] > 0] = round(policy.memory_settle_s * SECOND)
        settled = row[self.end[row] - self.grown_at[row] > patience]
        if len(settled):
            self.settle(settled)

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
        risen: Int64s = np.maximum(self.top[row] - self.high[row], 0)
        return risen

    def is_others(self, row: Int64s) -> Bools:
        """Whole devices and cgroups, of ranks of which is known what they hold there: only that can
        accuse them."""
        own = self.own[row]
        return self.shared[row] & (own >= 0) & (self.first[own] > 0)

    def taken_by_others(self, row: Int64s) -> Int64s:
        """Of the rise of whole devices and cgroups what is not of ranks on that device or node."""
        own = np.flatnonzero((self.watched & self.known & ~self.shared)[: self.count])
        risen = np.where(self.rising[own], self.peak[own], self.top[own]) - self.high[own]
        of_ranks = np.bincount(self.pool[own], np.maximum(risen, 0), self.count)
        others = self.peak[row] - self.high[row] - of_ranks[self.pool[row]].astype(np.int64)
        return np.where(self.shared[row] & self.rising[row], np.maximum(others, 0), 0)

    def runs_out(self, row: Int64s, left: Int64s) -> Bools:
        """At the present rate `left` is exhausted soon."""
        return (self.rate[row] > 0) & (left <= self.policy.memory_horizon_s * self.rate[row])

    def headroom(self, row: Int64s) -> Int64s:
        """What is left of the capacity, whichever process uses the rest."""
        used = np.maximum(self.top[self.container[row]], self.top[row])
        return np.maximum(self.capacity_of(row) - used, 0)

    def capacity_of(self, row: Int64s) -> Int64s:
        of_all = self.capacity[self.container[row]]
        return np.where(of_all > 0, of_all, self.capacity[row])

    def onset(self, row: Int64s) -> tuple[Int64s, Int64s]:
        """The interval in which each rise began."""
        lo, hi, twice = self.lo[row], self.hi[row], self.twice_at[row]
        band = self.high[row] + self.slack[row]
        beyond = np.maximum(self.grown_to[row] - band, 1)
        share = np.minimum((band - self.low[row]) / beyond, _DIP_GAPS)
        slow = np.where(twice > 0, twice - hi, ((self.grown_at[row] - hi) * share).astype(np.int64))
        return lo - _GENTLE * slow, hi

    def band_height(self, row: Int64s) -> Int64s:
        """How far each may rise before the rise is seen."""
        height: Int64s = self.high[row] + self.slack[row] - self.low[row]
        return height

    def settle(self, row: Int64s) -> None:
        """The level that these have risen to is their usual one from now on."""
        self.rising[row] = False
        self.reportable_at[row] = self.incident[row] = 0
        self.bins.only(row, self.grown_at[row])
        self.bin_odd[row] = False
        self._learn_bands(row)

    # -- what is usual -----------------------------------------------------------------------

    def _complete_bins(self, row: Int64s, begin: Int64s) -> None:
        """The open bins of these series are complete; new ones begin."""
        low, high = self.bin_low[row], self.bin_high[row]
        was = (self.bin_begin[row], low, high, self.bin_count[row])
        self.bins.add(row, *was, usual=~self.bin_odd[row])
        self.trend.add(row, self.bin_begin[row], low)
        self.bin_begin[row], self.bin_low[row], self.bin_high[row] = begin, MOST, -1
        self.bin_count[row], self.bin_odd[row] = 0, False
        calm = row[~self.rising[row]]
        if len(calm):
            self._learn_bands(calm)

    def _learn_bands(self, row: Int64s) -> None:
        """Compute the band from the bins; without bins it stays."""
        usual = self.bins.usual(row, self.first[row] + self._warmup_ns)
        row, moves = usual.row, usual.high - usual.low
        least = self.policy.memory_min_rise_bytes // _SLACK_OF_MIN
        share = _SLACK + _SLACK_BINS / usual.bins
        self.slack[row] = np.maximum((moves * share).astype(np.int64), least)
        self.low[row], self.high[row], self.known[row] = usual.low, usual.high, True
        self.dip[row] = (usual.away + 1 + (moves > least)) * BIN_NS

    # -- answers -----------------------------------------------------------------------------

    def recent(self, row: Int64s, count: int) -> Int64s:
        """(n, count) the highest value of each of the last bins, the open one last; -1 none."""
        complete = self.bins.recent(row, count - 1)
        return np.concatenate((complete, self.bin_high[row, None]), axis=1)

    def span(self, row: Int64s, recent: Int64s) -> tuple[Int64s, Int64s]:
        """(n,) when the first known bin of `recent`, which is that of these rows, began, and when
        the open one did."""
        complete = (recent[:, :-1] >= 0).sum(axis=1)
        last = self.bin_begin[row]
        first = self.bins.begin(row, complete - 1)
        return np.where(complete > 0, first, last), last
