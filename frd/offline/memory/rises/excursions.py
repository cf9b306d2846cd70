"""Where one series of samples leaves its usual level: a causal walk over its samples.

Nothing here looks ahead: what is said of a sample follows from it and the samples before. So the
analysis of a recording that is still being written never names a rank that the whole recording
takes back.

The usual level of a series is the range of its last minute: from a low quantile, which single wrong
readings do not move, to the maximum. Its *band* ends above the maximum, by a share of that range
which is larger while few samples are known. A sample beyond the band begins an excursion. It is a
rise once it is larger than `min_rise` and than the series moves by itself, and once it can be
trusted: a level that was known from a few samples only may be the valley of a saw-tooth, so the
rise must last as long as the level was seen. A short excursion before that is a usual movement.

An excursion ends when the series falls back for longer than it usually stays low, when it stops
growing (then its level is the usual one), or when it becomes several times as steep: a ramp of a
start-up ends where a spike begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from frd.engine.memory.baseline import SECOND
from frd.model import Bools, Int64s
from frd.offline.memory.rises.excursion import CLEAR, NEWEST, Excursion

_WINDOW_NS: Final = 60 * SECOND
_WINDOW: Final = 100
"""Samples that count as usual although they are older."""
_SETTLED: Final = 10
"""Samples without growth that make a level."""
_SETTLED_SMALL: Final = 20
"""The same while it is no rise: the next step of a staircase may make it one."""
_LASTING: Final = 20
_LASTING_UNKNOWN: Final = 40
"""Samples for which a rise must last to be trusted, if its level was known from few samples, and if
it was not known at all. Half of it is the length of a training step that is sampled well."""
_AHEAD: Final = 4
"""Pieces that are looked through together."""
_SLACK: Final = 0.5
_SLACK_OF_FEW: Final = 5.0
"""The band ends this share of the usual range above the maximum, plus this divided by the number of
samples. Of normally distributed samples one in several thousand is beyond it."""
_SLACK_OF_MIN: Final = 16
"""The least slack, as a part of `min_rise`."""
_AGAIN: Final = 3
"""Samples beyond the band that are no outliers."""
_PATIENCE: Final = 3
"""Samples of a dip, beyond those for which the series usually stays low."""
_STEADY: Final = 20
"""Samples after which a lower level is the usual one."""
_DROP_PARTS: Final = 16
"""A level is steady if it moves by no more than this part of the drop before it."""
_GROWTH_PARTS: Final = 32
"""A part of the rise that counts as growth."""
_STEPS: Final = 3
"""Samples over which steepness is measured,"""
_STEEPER: Final = 4
"""and how much steeper than ever before in its rise a series must become to begin another one."""


def excursions(at_ns: Int64s, values: Int64s, min_rise: int) -> Iterator[Excursion]:
    """The excursions of a series, in the order of time.

    Args:
        at_ns: (n,) times that do not fall.
        values: (n,) bytes, none negative.
        min_rise: bytes; what is smaller is no rise.
    """
    moves = int(np.ptp(values)) if len(values) > 1 else 0
    if moves >= min_rise // _SLACK_OF_MIN:
        yield from _Walk(at_ns, values, min_rise, may_drop=moves >= min_rise).run()


class _Walk:
    def __init__(self, at_ns: Int64s, values: Int64s, min_rise: int, *, may_drop: bool) -> None:
        self._at = at_ns
        self._values = values
        self._min_rise = min_rise
        self._least_slack = min_rise // _SLACK_OF_MIN
        self._may_drop = may_drop
        self._usual: Bools = np.ones(len(values), np.bool_)
        self._has_unusual = False
        self._since = 0
        """The first sample of the present level."""

    def run(self) -> Iterator[Excursion]:
        at, count = 1, len(self._values)
        while at < count:
            found = self._next(at)
            if found is None:
                return
            known_at = found.first
            while found is not None:
                at, following = self._follow(found, known_at)
                yield found
                found, known_at = following, at

    # -- calm ------------------------------------------------------------------------------------

    def _next(self, at: int) -> Excursion | None:
        """The first excursion from `at` on."""
        values, count = self._values, len(self._values)
        while at < count:
            level = self._level(at)
            size = 1 if level.calm < _LASTING else level.calm // 4
            # No band ends below this, so most pieces need no band.
            high = values[at : at + _AHEAD * size] > level.high + self._least_slack
            place = int(high.argmax())
            place = place if high[place] else len(high)
            if place >= size or at + place == count:
                at = self._skip(at, size, at + place)
                continue
            beyond = np.flatnonzero(values[at : at + size] > level.band)
            if len(beyond):
                level.first = at + int(beyond[0])
                return level
            at = min(at + size, count)
            self._rebase(at)
        return None

    def _skip(self, at: int, size: int, stop: int) -> int:
        """Pass pieces without an excursion; returns where a level is needed again.

        The record may end within a piece: a longer one has the same answer until there.
        """
        if not self._may_drop:
            at += (stop - at) // size * size
        while at + size <= stop:
            at += size
            if self._rebase(at):
                return at
        return stop if stop == len(self._values) else at

    def _window(self, at: int) -> Int64s:
        """The usual samples before `at`, by time."""
        oldest = int(self._at.searchsorted(self._at[at] - _WINDOW_NS))
        if not self._has_unusual:
            return self._values[max(self._since, min(oldest, at - _WINDOW)) : at]
        usual = self._since + np.flatnonzero(self._usual[self._since : at])
        begin = max(0, min(int(usual.searchsorted(oldest)), len(usual) - _WINDOW))
        return self._values[usual[begin:]]

    def _level(self, at: int) -> Excursion:
        """An excursion that begins at `at`, as far as its level is concerned."""
        usual = self._window(at)
        calm = len(usual)
        older = usual[: max(calm - NEWEST, (calm + 1) // 2)]
        lowest = len(older) // 10
        low, high = int(np.partition(older, lowest)[lowest]), int(older.max())
        share = _SLACK + _SLACK_OF_FEW / len(older)
        slack = max(int((high - low) * share), self._least_slack)
        return Excursion(at, calm, low, high, slack)

    def _rebase(self, at: int) -> bool:
        """If memory was released and stays so, only what came after it is usual."""
        steady = max(_STEADY, (at - self._since) // 4)
        if at - self._since <= steady or not self._may_drop:
            return False
        last = self._values[at - steady : at]
        drop = int(self._values[self._since : at - steady].max()) - int(last.max())
        if drop < self._min_rise or np.ptp(last) > max(drop // _DROP_PARTS, self._least_slack):
            return False
        self._since = at - steady
        return True

    # -- beyond the band -------------------------------------------------------------------------

    def _follow(self, one: Excursion, known_at: int) -> tuple[int, Excursion | None]:
        """Follow an excursion, which is known since `known_at`, to its end.

        Returns the place from which to go on, and the excursion that follows immediately.
        """
        values, end = self._values, len(self._values)
        patience, below, above, top = self._patience(one.first), 0, 0, one.high
        enough = max(self._min_rise, one.slack)
        lasting = max(_LASTING, 2 * one.calm) if one.level_is_known else _LASTING_UNKNOWN
        one.peak, one.grown = top, one.first
        grown_to = top
        for at in range(one.first, end):
            value = int(values[at])
            top = max(top, value)
            rise = top - one.high
            if one.established < 0 and rise >= enough:
                one.established = at
            if top - grown_to > self._growth(one, rise):
                grown_to, one.grown = top, at
            one.peak = top
            floor = max(one.band, one.high + rise // 4)
            below = below + 1 if value <= floor else 0
            above += value > floor
            # What returns before it can be trusted is a usual movement.
            if below >= (patience if one.ready >= 0 or one.calm >= _LASTING else 1):
                return self._fell(one, at, below), None
            if at < known_at:
                continue
            if one.established >= 0 and one.ready < 0:
                if self._is_trusted(one, above):
                    one.ready, one.rise = at, rise
                elif above >= lasting:
                    if self._comes_and_goes(one, at):
                        one.end = at
                        return at + 1, None
                    one.ready, one.rise = at, rise
                if one.ready >= 0:
                    one.jump = self._jump(one, at)
            if self._has_settled(one, at, patience):
                return self._settled(one, at, patience), None
            if one.ready >= 0 and (split := self._steeper(one, at)) is not None:
                one.end = at
                one.peak = split.high
                self._since = one.first
                return at, split
        return end, None

    def _growth(self, one: Excursion, rise: int) -> int:
        """What is more than this is growth: noise and single pages are not."""
        share = rise // _GROWTH_PARTS if one.established >= 0 else (one.high - one.low) // 8
        return max(share, self._least_slack // 4)

    def _is_trusted(self, one: Excursion, above: int) -> bool:
        """Whether it is too large for a usual movement that had not been seen before."""
        is_outlier = one.peak - one.high < CLEAR * (one.high - one.low) and above < _AGAIN
        return not is_outlier and one.exceeds_usual()

    def _comes_and_goes(self, one: Excursion, at: int) -> bool:
        """Whether it moved down within its range lately; a jump only goes up."""
        lately = self._values[max(one.first, at - _SETTLED) : at + 1]
        is_up = lately >= one.high + (one.peak - one.high) // 2
        return not is_up[int(is_up.argmax()) :].all() or not is_up.any()

    def _jump(self, one: Excursion, at: int) -> int:
        """The place of a jump that has just made it a rise; -1 if it grew gradually."""
        split = self._steepened(one, at)
        return split.first if split is not None and not self._is_rise(one, split) else -1

    def _is_rise(self, one: Excursion, split: Excursion) -> bool:
        """Whether what was before the steeper part is a rise without it."""
        return split.high - one.high >= max(self._min_rise, one.slack)

    def _fell(self, one: Excursion, at: int, below: int) -> int:
        one.end, one.back = at, at - below + 1
        back = one.back
        if one.ready >= 0 and back - one.first > _LASTING:
            self._usual[one.first : back] = False
            self._has_unusual = True
        return at + 1

    def _has_settled(self, one: Excursion, at: int, patience: int) -> bool:
        still = at - one.grown
        if one.established < 0:
            return still >= max(_SETTLED_SMALL, patience)
        if still < max(_SETTLED, patience, (at - one.first) // 4):
            return False
        # A tooth does not grow after its peak, but is no level.
        lowest = int(self._values[one.grown : at + 1].min())
        return one.ready >= 0 or lowest >= one.peak - (one.peak - one.high) // 4

    def _settled(self, one: Excursion, at: int, patience: int) -> int:
        one.end = at
        if one.established >= 0:
            if one.ready < 0:
                one.ready, one.rise = at, one.peak - one.high
            self._since = one.grown
            low = self._values[at:] <= one.high + (one.peak - one.high) // 4
            changes = np.flatnonzero(np.diff(low.astype(np.int8), prepend=0, append=0))
            for begin, end in changes.reshape(-1, 2).tolist():
                if end - begin >= patience:
                    one.back = at + begin
                    break
        return at + 1

    def _patience(self, first: int) -> int:
        """Samples below the floor that end an excursion."""
        usual = self._window(first)
        low = usual < (int(usual.max()) + int(usual.min())) // 2
        edges = np.flatnonzero(np.diff(low.astype(np.int8), prepend=0, append=0))
        longest = int(np.diff(edges)[::2].max()) if len(edges) else 0
        # A level that was low for most of the time is no dip.
        return _PATIENCE + (longest * 5 // 4 if 3 * longest < len(usual) else 0)

    def _steeper(self, one: Excursion, at: int) -> Excursion | None:
        """Another excursion, if the series has just become much steeper than in this rise."""
        split = self._steepened(one, at)
        return split if split is not None and self._is_rise(one, split) else None

    def _steepened(self, one: Excursion, at: int) -> Excursion | None:
        if at - one.first < 2 * _STEPS + 2:
            return None
        values = self._values
        growth = int(values[at]) - int(values[at - _STEPS])
        if growth < max(self._min_rise, one.slack, (one.peak - one.high) // 4):
            return None
        before = values[one.first - 1 : at - _STEPS + 1]
        steepest = int((before[_STEPS:] - before[:-_STEPS]).max())
        if growth < _STEEPER * max(steepest, self._least_slack):
            return None
        steps = np.diff(values[at - _STEPS : at + 1])
        first = at - _STEPS + 1 + int(np.flatnonzero(steps >= growth // _STEEPER)[0])
        ramp = values[one.first : first]
        top, slack = int(ramp.max()), max(steepest, self._least_slack)
        return Excursion(first, len(ramp), top, top, slack, of_ramp=True)
