"""One incident of memory: who is in it, how sure that is, and what is new of it.

The lists only grow, but for `unknown`, whose ranks tell sooner or later. So nobody who was named is
taken back, and every version of a verdict says at least what the one before it said.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from frd.engine.memory.baseline import BIN_NS, SECOND
from frd.engine.memory.series import Series
from frd.engine.memory.verdict import MemoryRise, MemoryVerdict
from frd.engine.state.snapshot import Bools
from frd.model import AlignedNs, Change, Confidence, Int64s, Kind

_SOON_NS: Final = SECOND * 3 // 10
"""Samples of different ranks are taken at different times."""
_SILENT_NS: Final = 60 * SECOND
"""Who has not told for so long is not waited for."""


@dataclass(slots=True)
class Incident:
    number: int
    kind: Kind
    on_host: bool
    leak: bool
    common: bool
    first: dict[int, int]
    """Ranks that may have been the first, and the series that speaks for each; -1 for none."""
    rises: dict[int, MemoryRise]
    """Of some of them, as they were when they were named."""
    limit: int
    """By when the first of them had begun to rise."""
    last: int
    """When the latest of its ranks began to."""
    unknown: set[int] = field(default_factory=set)
    victims: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    sure: bool = False
    """Nobody can have risen before without being seen by now."""
    herd: bool = False
    """(Nearly) all ranks rose soon after: what made the first one rise may have made them, too."""
    keep_until: int = 0
    told: MemoryVerdict | None = None

    @property
    def confidence(self) -> Confidence:
        if len(self.first) > 1:
            return Confidence.MEDIUM if len(self.first) == 2 else Confidence.LOW
        seen = all(row >= 0 for row in self.first.values())
        sure = seen and self.sure and not self.herd and not self.unknown
        return Confidence.HIGH if sure else Confidence.MEDIUM

    def tell(self, now: AlignedNs, reason: str = "") -> list[MemoryVerdict]:
        """What is new of it since this was called last; it is over for `reason`."""
        verdict = MemoryVerdict(
            number=self.number,
            change=Change.UPDATED if self.told is not None else Change.OPENED,
            kind=self.kind,
            on_host=self.on_host,
            leak=self.leak,
            common=self.common,
            ranks=tuple(sorted(self.first)),
            first=tuple(self.rises.values()),
            unknown=tuple(sorted(self.unknown - set(self.first))),
            victims=tuple(sorted(self.victims - set(self.first))),
            failed=tuple(sorted(self.failed)),
            confidence=self.confidence,
            since=AlignedNs(self.limit),
            at=now,
        )
        if reason:
            verdict = replace(verdict, change=Change.CLOSED, close_reason=reason)
        elif self.told is not None and replace(self.told, change=Change.UPDATED, at=now) == verdict:
            return []
        self.told = verdict
        return [verdict]


class Heard:
    """Up to when each rank has told, and since when; one row a rank."""

    def __init__(self, series: Series, on_host: bool) -> None:
        n = series.count
        row = np.flatnonzero(
            series.watched[:n] & (series.on_host[:n] == on_host) & (series.first[:n] > 0)
        )
        row = row[np.argsort(series.rank[row], kind="stable")]
        rank = series.rank[row]
        start = np.flatnonzero(np.diff(rank, prepend=-1))
        self.rank = rank[start]
        self.first: Int64s = series.first[row]
        self.newest: Int64s = series.end[row]
        self.highest_band = 0
        if len(row):
            self.highest_band = int(series.band_height(row).max())
            self.first = np.minimum.reduceat(self.first, start)
            self.newest = np.maximum.reduceat(self.newest, start)

    def all_have_told(self, upto: int) -> bool:
        """Those that still tell."""
        still = self.newest >= upto - _SILENT_NS
        return bool((self.newest[still] >= upto - _SOON_NS).all())

    def saw(self, limit: int) -> Bools:
        """It had told for long enough before, and has told since."""
        return (self.newest >= limit) & (self.first + BIN_NS <= limit)
