"""From when and up to when there are samples of each rank, and where there are none."""

from __future__ import annotations

from collections.abc import Set
from functools import cached_property
from typing import Final

import numpy as np

from frd.engine.memory.walk.excursions import STEPS
from frd.engine.memory.walk.levels import BATCH_NS, MOST, REVEALED_NS, WINDOW_NS
from frd.engine.memory.walk.recent import BIN_NS
from frd.engine.memory.walk.series import Series
from frd.model import Bools, Int64s

_NONE: Final = np.zeros(0, np.int64)


class Coverage:
    """One row a rank that has samples, on hosts or devices (None: both), as of now."""

    def __init__(
        self, series: Series, on_host: bool | None = None, *, is_over: bool = False
    ) -> None:
        """`is_over`: no more samples will come."""
        n = series.count
        watched = series.watched[:n] & (series.first[:n] > 0)
        if on_host is not None:
            watched &= series.on_host[:n] == on_host
        row = np.flatnonzero(watched)
        row = row[np.argsort(series.rank[row], kind="stable")]
        rank = series.rank[row]
        start = np.flatnonzero(np.diff(rank, prepend=-1)) if len(row) else _NONE
        self.rank = rank[start]
        self.first: Int64s = _of_rank(np.minimum, series.first[row], start)
        self.newest: Int64s = _of_rank(np.maximum, series.end[row], start)
        self.highest_band = int((series.band[row] - series.low[row]).max(initial=0))
        """How far a series may rise before that is seen."""
        self._begin: Int64s = _of_rank(np.maximum, series.begin[row], start)
        self._gap: Int64s = _of_rank(np.minimum, series.gap[row], start)
        main = row[start]
        self._quiet = series.quiet_from[main], series.quiet_to[main]
        self._silence = np.maximum(STEPS * self._gap, BATCH_NS)
        self._last = self.newest if is_over else np.full(len(self.rank), MOST)

    @property
    def ranks(self) -> int:
        return len(self.rank)

    @cached_property
    def _gaps(self) -> dict[int, int]:
        return dict(zip(self.rank.tolist(), self._gap.tolist(), strict=True))

    def gap(self, rank: int) -> int:
        return self._gaps.get(rank, 0)

    def horizon(self, now: int) -> int:
        """Up to then all samples have come, but for those of ranks that are silent."""
        speaks = self.newest[self.newest > now - REVEALED_NS]
        return int(speaks.min(initial=now)) if len(speaks) else now - REVEALED_NS

    def shown_at(self, when: int, but: Set[int]) -> int:
        """When it was known what each rank, but these, did until `when`: it had a sample since, or
        was silent for long."""
        others = ~np.isin(self.rank, list(but))
        begin, silence = self._begin[others], self._silence[others]
        since, until = (quiet[others] for quiet in self._quiet)
        following = np.minimum(when + 2 * self._gap[others], self._last[others])
        is_quiet = (since < when) & (when <= until)
        following = np.where(is_quiet, np.minimum(until, since + silence), following)
        following = np.where(begin < when, begin + silence, following)
        return int(np.maximum(following, when).max(initial=when))

    def silent_at(self, when: int) -> set[int]:
        """The ranks without a sample around that time."""
        since, until = self._quiet
        newest = int(self._begin.max(initial=0))
        quiet = (since < when) & (when <= until) | (self.first > when)
        quiet |= (self._begin < when) & (newest - self._begin > self._silence)
        return set(self.rank[quiet].tolist())

    def is_complete(self, upto: int) -> bool:
        """There are samples up to then, or of the batch before, of all ranks that send any."""
        return bool((self.newest[self.is_alive(upto)] >= upto - BATCH_NS).all())

    def is_alive(self, at: int) -> Bools:
        """There are samples of the rank that an incident at that time could use."""
        return self.newest >= at - WINDOW_NS

    def saw(self, limit: int) -> Bools:
        """There are samples of the rank for long enough before, and since."""
        return (self.newest >= limit) & (self.first + BIN_NS <= limit)


def _of_rank(reduce: np.ufunc, values: Int64s, start: Int64s) -> Int64s:
    return reduce.reduceat(values, start) if len(values) else values
