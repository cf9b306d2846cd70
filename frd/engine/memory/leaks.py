"""Leaks: ranks whose memory rises slowly and steadily, long before it is short.

One rank's leak does not cause another's, so every rank that leaks is named, unless (nearly) all
leak: then the cause is the program and not a rank. A trend counts when it has been seen twice, a
stretch of the window apart, so that ranks that leak together are named together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from frd.engine.memory.decisions import NEARLY_ALL
from frd.engine.memory.incident import MemoryIncident
from frd.engine.memory.rise import leak_rise, rise_of
from frd.engine.memory.walk.levels import WINDOW_NS
from frd.engine.memory.walk.rank_rise import RankRise
from frd.engine.memory.walk.series import Series
from frd.model import Int64s, Kind

_HORIZON_WINDOWS: Final = 36
"""A leak that would take longer than this many windows of the trend to exhaust the capacity is not
reported: at ten minutes a window, people have six hours."""
_CONFIRMED: Final = 2
"""How often in a row a trend must be seen, or not be seen, to count."""


class Leaks:
    """The leaks over the series of one attempt: one incident for devices, one for hosts."""

    def __init__(self, series: Series, numbers: Iterator[int]) -> None:
        self._series = series
        self._numbers = numbers
        self._known: dict[bool, MemoryIncident] = {}

    def update(self) -> list[MemoryIncident]:
        """The leaks that there are, and those that are over since the last call."""
        news = self._measure()
        found = []
        for on_host in (False, True):
            incident = self._known.pop(on_host, None)
            if incident is not None and not self._goes_on(incident):
                incident.over = "memory no longer rises"
            elif len(news):
                incident = self._name_ranks(incident, on_host, news)
            if incident is not None:
                incident.drop_forecasts(lambda row: bool(self._series.leak_seen[row] < 0))
                found.append(incident)
        self._known = {incident.on_host: incident for incident in found if not incident.over}
        return found

    def _goes_on(self, incident: MemoryIncident) -> bool:
        rows = [*incident.rows.values()]
        series = self._series
        grows = series.rising[rows] & (series.end[rows] - series.grown_at[rows] <= WINDOW_NS)
        return bool((series.leak_seen[rows] != 0).any() or grows.any())

    def take(self, rise: RankRise) -> bool:
        """Whether a rise that alarms is that of a leak, which was named while it went on: then that
        finding says how little is left now."""
        incident = self._known.get(rise.on_host)
        named = incident.rises.get(rise.rank) if incident is not None else None
        if incident is None or named is None or rise.lo > named.at:
            return False
        rise.incident = self._series.incident[rise.row] = incident.number
        incident.rows[rise.rank] = rise.row
        incident.rises[rise.rank] = rise_of(self._series, rise.row, (rise.lo, rise.hi), ())
        return True

    def _measure(self) -> Int64s:
        """Judge the series that have a new floor, and return them."""
        series = self._series
        row = series.trend.take_news()
        row = row[series.watched[row] & ~series.is_others(row)]
        if not len(row):
            return row
        rate, leaks = series.trend.measure(row)
        risen = rate * series.trend.window_s
        leaks &= risen >= series.visible[row]
        leaks &= (series.capacity_of(row) > 0) & ~series.is_young(row)
        leaks &= series.headroom(row) <= _HORIZON_WINDOWS * risen
        seen = series.leak_seen[row]
        missed = np.where(seen >= _CONFIRMED, -1, 0)
        series.leak_seen[row] = np.where(leaks, np.maximum(seen, 0) + 1, missed)
        series.leak_rate[row] = rate
        return row

    def _name_ranks(
        self, incident: MemoryIncident | None, on_host: bool, news: Int64s
    ) -> MemoryIncident | None:
        """Name every rank that certainly leaks, in a new incident if there is none: by a series
        that was just measured, because the figures of others are old."""
        series, policy = self._series, self._series.policy
        n = series.count
        seen = np.where(series.on_host[:n] == on_host, series.leak_seen[:n], 0)
        confirmed = np.flatnonzero(seen >= _CONFIRMED)
        shared, pool = series.shared[confirmed], series.pool[confirmed]
        confirmed = confirmed[~(shared & np.isin(pool, pool[~shared]))]
        reported = (series.incident[:n] > 0) & (series.on_host[:n] == on_host)
        number = incident.number if incident is not None else 0
        reported &= series.incident[:n] != number
        confirmed = confirmed[~np.isin(series.rank[confirmed], series.rank[:n][reported])]
        for row in confirmed[np.isin(confirmed, news)].tolist():
            incident = incident or self._new(on_host, np.flatnonzero(seen))
            rank = int(series.rank[row])
            if rank not in incident.rows and incident.name(rank, row, policy.max_suspects):
                incident.rises[rank] = leak_rise(series, row)
        return incident

    def _new(self, on_host: bool, leaking: Int64s) -> MemoryIncident:
        """`leaking`: rows that leak, or may."""
        series = self._series
        n = series.count
        has_samples = (series.on_host[:n] == on_host) & series.watched[:n] & (series.first[:n] > 0)
        ranks = len(np.unique(series.rank[:n][has_samples]))
        return MemoryIncident(
            number=next(self._numbers),
            kind=Kind.MEMORY_SPIKE,
            on_host=on_host,
            limit=int(series.trend.since(leaking).min()),
            leak=True,
            common=ranks > 1 and len(np.unique(series.rank[leaking])) >= NEARLY_ALL * ranks,
            is_certain=True,
        )
