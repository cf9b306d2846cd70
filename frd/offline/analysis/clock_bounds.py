"""Bounds on the offsets of clocks, from collectives that no rank can complete alone.

Every member joins such an op before any member completes it. With offsets o to add to a clock's own
times, ``joined_i + o_i <= completed_j + o_j`` for all members i and j. Bounds propagate from known
clocks to clocks that share an op with them, for a few rounds; intervals only shrink. If an interval
would be empty, a clock is wrong or has stepped: the clocks that most others contradict are left
out, and the rest start again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frd.model import Bools, Float64s, Int64s

FAR = np.int64(1 << 61)
"""Beyond any time in nanoseconds since the epoch; a difference with one still fits."""
_ROUNDS = 8
"""Rounds of propagation."""
_TRIALS = 16
"""How often the worst clocks are left out, before all contradicting clocks are."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Parallel columns, one row per completed call, in its own clock's time."""

    clock: Int64s
    collective: Int64s
    """Any number that calls of one collective share, from 0 on."""
    joined: Int64s
    completed: Int64s

    def __len__(self) -> int:
        return len(self.clock)

    def only(self, rows: Bools) -> Samples:
        columns = (self.clock, self.collective, self.joined, self.completed)
        return Samples(*(column[rows] for column in columns))

    @property
    def collectives(self) -> int:
        """How many of them involve two clocks."""
        one, other = np.full((2, int(self.collective.max(initial=-1)) + 1), -1)
        one[self.collective] = self.clock
        other[self.collective[::-1]] = self.clock[::-1]
        return int((one != other).sum())


@dataclass(frozen=True, slots=True)
class Bounds:
    """By clock; `low` is -`FAR` and `high` is `FAR` where nothing bounds it."""

    low: Int64s
    high: Int64s
    off_by_ns: Int64s
    """The least error of a clock that fits no offset, whose bounds are then open; else 0."""
    collectives: int
    """How many were used."""


def bound(given: Int64s, low: Int64s, high: Int64s, samples: Samples) -> Bounds:
    """Offsets within ``[low, high]``, narrowed by collectives.

    If no offset is bounded, offsets count from the clock with the most samples, which
    keeps its `given` offset.
    """
    clocks = len(low)
    off_by = np.zeros(clocks, np.int64)
    for trial in range(_TRIALS + 1):
        used = samples.only(off_by[samples.clock] == 0)
        lows, highs = np.where(off_by, -FAR, low), np.where(off_by, FAR, high)
        base = -1
        if len(used) and (lows == -FAR).all():
            base = int(np.bincount(used.clock).argmax())
            lows[base] = highs[base] = given[base]
        found = _settle(lows, highs, used)
        if not found.is_crossed.any():
            break
        faulty = found.is_crossed if trial == _TRIALS else _faulty(found, base)
        off_by[faulty] = int((found.low - found.high)[found.is_crossed].max())
    return Bounds(found.low, found.high, off_by, used.collectives)


@dataclass(frozen=True, slots=True)
class _Settled:
    low: Int64s
    high: Int64s
    contradictions: Float64s
    """By clock: of every impossible collective, the calls on the other side, divided by the number
    of calls on the clock's side."""

    @property
    def is_crossed(self) -> Bools:
        crossed: Bools = self.low > self.high
        return crossed


def _settle(low: Int64s, high: Int64s, samples: Samples) -> _Settled:
    """Shrink until nothing changes, or two bounds cross."""
    clock, of, count = samples.clock, samples.collective, len(low)
    contradictions = np.zeros(count)
    for _ in range(_ROUNDS):
        # The last to join and the first to complete, as far as clocks are known.
        joined = np.full(int(of.max(initial=-1)) + 1, -FAR)
        ended = np.full(len(joined), FAR)
        lows, highs = low[clock], high[clock]
        np.maximum.at(joined, of, np.where(lows > -FAR, samples.joined + lows, -FAR))
        np.minimum.at(ended, of, np.where(highs < FAR, samples.completed + highs, FAR))
        before = low, high
        low, high = low.copy(), high.copy()
        least = np.where(joined[of] > -FAR, joined[of] - samples.completed, -FAR)
        most = np.where(ended[of] < FAR, ended[of] - samples.joined, FAR)
        np.maximum.at(low, clock, least)
        np.minimum.at(high, clock, most)
        if (low > high).any():
            late, early = lows > most, highs < least
            for mine, others in ((late, early), (early, late)):
                sides = [np.bincount(of[side], minlength=len(joined)) for side in (mine, others)]
                weight = sides[1][of[mine]] / sides[0][of[mine]]
                contradictions += np.bincount(clock[mine], weight, minlength=count)
            break
        if np.array_equal(before, (low, high)):
            break
    return _Settled(low, high, contradictions)


def _faulty(found: _Settled, base: int) -> Bools:
    """The clocks to leave out when bounds cross."""
    crossed = found.is_crossed
    if found.contradictions.any():
        worst: Bools = found.contradictions == found.contradictions.max()
        return worst
    reached = (found.low > -FAR) | (found.high < FAR)
    faulty = crossed.copy()
    if base >= 0 and 2 * crossed.sum() >= reached.sum():
        # Most disagree with the reference clock. Of two clocks it is unknown which is wrong.
        faulty = reached if reached.sum() == 2 else np.arange(len(crossed)) == base
    return faulty
