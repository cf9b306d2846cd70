"""Leaks: ranks whose memory rises slowly and steadily, long before it is short.

One rank's leak does not cause another's, so every rank that leaks is named, unless (nearly) all
leak: then the cause is the program and not a rank. A trend counts when it has been seen twice, a
stretch of the window apart, so that ranks that leak together are reported together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from frd.engine.memory.incident import MemoryIncident, attribution
from frd.engine.memory.incident_report import IncidentReport, MemoryRise
from frd.engine.memory.series import KINDS, Series
from frd.engine.policy import Policy
from frd.model import AlignedNs, Int64s, Kind

_NEARLY_ALL: Final = 0.8
_CONFIRMED: Final = 2
"""How often in a row a trend must be seen, or not be seen, to count."""


class LeakTracker:
    """The leaks over the series of one attempt: one incident for devices, one for hosts."""

    def __init__(
        self, series: Series, devices: Sequence[str], numbers: Iterator[int], policy: Policy
    ) -> None:
        self._series = series
        self._devices = devices
        self._numbers = numbers
        self._policy = policy
        self._seen: dict[int, int] = {}
        """How often in a row the trend of a series was a leak; -1 for a leak that the last look did
        not confirm."""
        self._open: dict[bool, MemoryIncident] = {}

    def adopt(self, policy: Policy) -> None:
        self._policy = policy

    def update(self, now: AlignedNs) -> list[IncidentReport]:
        series = self._series
        row = series.trend.take_news()
        row = row[series.watched[row]]
        if not len(row):
            return []
        rate, steady = series.trend.measure(row)
        window_s = self._policy.memory_leak_window_s
        left, capacity = series.headroom(row), series.capacity_of(row)
        leaks = steady & (rate * window_s >= series.visible[row]) & ~series.is_young(row)
        leaks &= (capacity > 0) & (left <= rate * self._policy.memory_leak_horizon_s)
        for leak_row, is_leak in zip(row.tolist(), leaks.tolist(), strict=True):
            self._count(leak_row, is_leak)
        rates = dict(zip(row.tolist(), rate.tolist(), strict=True))
        out: list[IncidentReport] = []
        for on_host in (False, True):
            out += self._report(on_host, rates, now)
        return out

    def _count(self, row: int, is_leak: bool) -> None:
        known = self._seen.get(row, 0)
        if is_leak:
            self._seen[row] = max(known, 0) + 1
        elif known >= _CONFIRMED:
            self._seen[row] = -1
        else:
            self._seen.pop(row, None)

    def _report(
        self, on_host: bool, rates: dict[int, float], now: AlignedNs
    ) -> list[IncidentReport]:
        series = self._series
        candidates = [row for row in sorted(self._seen) if bool(series.on_host[row]) == on_host]
        confirmed = [row for row in candidates if self._seen[row] >= _CONFIRMED]
        incident = self._open.get(on_host)
        if incident is None:
            if not confirmed:
                return []
            incident = self._open[on_host] = self._new(on_host, candidates)
        elif not any(row in self._seen for row in incident.first.values()):
            del self._open[on_host]
            return incident.report(now, "memory no longer rises")
        for row in _own(series, confirmed):
            rank = int(series.rank[row])
            if row in rates and rank not in incident.first:
                incident.first[rank] = row
                if len(incident.rises) < self._policy.max_suspects:
                    incident.rises[rank] = self._rise(row, rates[row])
        return incident.report(now)

    def _new(self, on_host: bool, rows: list[int]) -> MemoryIncident:
        series = self._series
        n = series.count
        has_samples = series.watched[:n] & (series.on_host[:n] == on_host) & (series.first[:n] > 0)
        ranks = len(np.unique(series.rank[:n][has_samples]))
        leaking = {int(series.rank[row]) for row in rows}
        since = int(series.trend.since(np.array(rows)).min())
        return MemoryIncident(
            number=next(self._numbers),
            kind=Kind.MEMORY_SPIKE,
            on_host=on_host,
            leak=True,
            common=ranks > 1 and len(leaking) >= _NEARLY_ALL * ranks,
            first={},
            rises={},
            limit=since,
            last=since,
            is_certain=True,
        )

    def _rise(self, row: int, rate: float) -> MemoryRise:
        series = self._series
        row_array: Int64s = np.array([row])
        window_s = self._policy.memory_leak_window_s
        since = int(series.trend.since(row_array)[0])
        return MemoryRise(
            rank=int(series.rank[row]),
            kind=KINDS[series.kind[row]],
            device=self._devices[row],
            onset=(AlignedNs(int(series.first[row])), AlignedNs(since)),
            risen_bytes=round(rate * window_s),
            took_s=window_s,
            bytes_per_s=rate,
            headroom_bytes=int(series.headroom(row_array)[0]),
            attribution=attribution(series, row),
        )


def _own(series: Series, rows: list[int]) -> list[int]:
    """Without whole devices and cgroups where a process that uses them leaks."""
    pools = {int(series.pool[row]) for row in rows if not series.shared[row]}
    return [r for r in rows if not (series.shared[r] and int(series.pool[r]) in pools)]
