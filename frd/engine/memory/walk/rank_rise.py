"""The rise of one rank's memory as one series shows it, and the samples that there are of ranks.

A walk over a series makes a `RankRise` when the series leaves its usual level, and updates it in
place while more samples come. `frd.engine.memory.decisions` compares those of different ranks.

Every time of a `RankRise` but `lo` and `began` is the aligned time at which something was *known*:
the latest end of the sample that showed it, `FOREVER` before that. It is set once. So whatever is
decided as of a time follows from the samples up to it, however often the judge is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from frd.engine.memory.walk.levels import MOST
from frd.engine.views import Attribution
from frd.model import SeriesKind

FOREVER: Final = MOST


@dataclass(slots=True, eq=False, kw_only=True)
class RankRise:
    """A rise, or what may become one. Times are aligned ns, sizes bytes."""

    rank: int
    row: int
    """Of its series."""
    kind: SeriesKind
    on_host: bool
    device: str
    """Empty for host memory."""
    lo: int
    """It did not begin before this, as far as is known; it does not move once the rise is ready."""
    lo_when_seen: int
    """The same as of `seen`: how long other ranks wait for it must not depend on later samples. If
    the level is unknown, it is the begin of the last sample before the rise."""
    hi: int
    """It began by then: `seen`, or when it jumped, if only the jump made it a rise."""
    seen: int
    high: int
    """The usual level before it."""
    from_start: bool
    """That level is unknown, because there were too few samples."""
    began_before: bool
    """It rose already in the first samples."""
    young: bool = False
    """It began while the rank was warming up: it counts for findings only if it does not stop."""
    is_certain: bool = False
    """The level before it is well known."""
    established: int = FOREVER
    """When it was large enough for a rise."""
    ready: int = FOREVER
    """When it could be trusted."""
    sized: int = FOREVER
    """When `size` was final: `REVEALED_NS` after `seen`, or at its end if that was earlier."""
    size: int = 0
    """How far it rose until then."""
    end: int = FOREVER
    """When it was over: it fell back, did not grow any more, or became much steeper."""
    back: int = FOREVER
    """When it fell back, at its end or later."""
    grown: int = 0
    """When it last grew, and"""
    peak: int = 0
    """the highest value so far: figures for people, which move until it is over."""
    alarming_at: int = FOREVER
    """When it was worth a finding."""
    incident: int = 0
    """Number of the incident that it belongs to; 0 none."""
    attribution: Attribution = Attribution.UNKNOWN

    @property
    def is_rise(self) -> bool:
        """It has been a rise, or may become one."""
        return self.ready < FOREVER or (self.established < self.end == FOREVER)

    @property
    def gain(self) -> int:
        return self.peak - self.high

    def may_be_rise(self, now: int) -> bool:
        """At that time it was not known whether it is a rise."""
        return self.seen <= now < self.ready and now < self.end
