"""One excursion of a series beyond its usual level, and when it can have begun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.model import Int64s

_FEW: Final = 5
"""With fewer samples a level is unknown: the series may have been rising before."""
_TRUST: Final = ((40, 0.0), (20, 2.5), (10, 8.0), (_FEW, 16.0))
"""A rise is trusted immediately if its level was known from so many samples and it is so many times
as large as the usual range. With half of these samples the valley of a training step is a level;
with twice as many, a rise in the middle of a record of 30 samples is trusted too late."""
_CERTAIN: Final = ((200, 0.0), (40, 2.5), (20, 8.0))
"""The same for a rise that is certain not to be a usual movement."""
CLEAR: Final = 8
"""A rise so many times as large as the usual range did not hide in it for long."""
NEWEST: Final = 20
"""So many newest samples, but at most half of all, do not show what is usual: a slow rise must not
become usual while it is looked at."""
_GENTLE: Final = 2
"""A slope that steepens takes longer through the band than through the same height beyond it."""
_MOST_GAPS: Final = 2.5
_LOW_PARTS: Final = 8
"""A series is at its lowest within this part of its band."""


@dataclass(slots=True)
class Excursion:
    """Places are those of samples; -1 for not yet."""

    first: int
    """The first sample beyond the band; the one before it was usual."""
    calm: int
    """Samples that showed the usual level."""
    low: int
    high: int
    """The usual range, bytes."""
    slack: int
    established: int = -1
    """From here on it is large enough for a rise,"""
    ready: int = -1
    """and from here on it is trusted."""
    rise: int = 0
    """Bytes above the usual level when it became so."""
    jump: int = -1
    """Where it jumped from less than a rise, if that made it one: it may have begun only there."""
    grown: int = -1
    """Where it last grew."""
    peak: int = 0
    """Bytes."""
    of_ramp: bool = False
    """It began within another one, which was less steep."""
    end: int = -1
    """Where its end was seen; -1 if the record ends before."""
    back: int = -1
    """Where it fell back: at its end, or later, when its level had become a usual one."""

    @property
    def latest(self) -> int:
        """The first sample that shows it without doubt."""
        return max(self.first, self.jump)

    @property
    def level_is_known(self) -> bool:
        return self.calm >= _FEW

    @property
    def is_clear(self) -> bool:
        """It is much larger than the usual range."""
        rise = self.rise if self.ready >= 0 else self.peak - self.high
        return (self.high - self.low) * CLEAR <= rise

    @property
    def is_certain(self) -> bool:
        """It is no usual movement that had not been seen before."""
        return not self.of_ramp and self._exceeds(_CERTAIN, self.rise)

    def exceeds_usual(self) -> bool:
        return self._exceeds(_TRUST, self.peak - self.high)

    def _exceeds(self, limits: Sequence[tuple[int, float]], rise: int) -> bool:
        usual = self.high - self.low
        return any(self.calm >= calm and rise >= times * usual for calm, times in limits)

    @property
    def band(self) -> int:
        return self.high + self.slack


def onset_of(one: Excursion, at_ns: Int64s, values: Int64s) -> int:
    """The earliest time (ns) at which it can have begun, from the samples until it was ready.

    The last usual sample, less the time that a gentle slope needs to cross the band, which is
    measured on the next stretch of the same height. A rise that is not much larger than the usual
    range may have begun while the series was low: then the last time it was at its lowest counts,
    and the time for which a slope would still have been hidden there.
    """
    last, until = one.first - 1, one.ready if one.ready >= 0 else len(values) - 1
    height, seen = one.band - one.low, values[one.first : until + 1]
    low = np.flatnonzero(values[: last + 1] <= one.low + height // _LOW_PARTS)
    bottom = int(at_ns[low[-1]]) if len(low) else int(at_ns[0])
    hidden = _GENTLE * (int(at_ns[one.first]) - bottom) // (_LOW_PARTS - 1)
    fallen = _fallen(one, values)
    if len(fallen):
        bottom = min(bottom, int(at_ns[fallen[-1]]))
        return bottom - _GENTLE * (int(at_ns[one.first]) - bottom) // (_LOW_PARTS - 1)
    if not one.is_clear:
        return bottom - hidden
    twice = np.flatnonzero(seen > one.band + height)
    if len(twice) and twice[0]:
        slow = int(at_ns[one.first + int(twice[0])] - at_ns[one.first])
    else:  # within two samples, or not yet
        began = at_ns[last] if len(twice) else at_ns[one.first]
        share = min(height / max(int(seen.max()) - one.band, 1), _MOST_GAPS)
        slow = int((at_ns[one.first if len(twice) else until] - began) * share)
    return min(max(int(at_ns[last]) - _GENTLE * slow, bottom - hidden), int(at_ns[last]))


def _fallen(one: Excursion, values: Int64s) -> Int64s:
    """Where the series was lowest after it had fallen below its usual range, from which it may have
    climbed through that range since; none if it did not fall."""
    begin = max(0, one.first - NEWEST)
    newest = values[begin : one.first]
    begin += int((newest >= one.low - one.slack).argmax())
    newest = values[begin : one.first]
    lowest = int(newest.min())
    if lowest >= one.low - one.slack:
        return np.empty(0, np.int64)
    return begin + np.flatnonzero(newest <= lowest + (one.band - lowest) // _LOW_PARTS)
