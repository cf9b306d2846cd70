"""One memory incident: its ranks, how far the memory of each has risen, and the confidence.

The lists of ranks only grow, except `unknown`: a rank leaves it when its samples arrive. A rank
that was named stays named: no report takes back what an earlier report of the incident said.

The figures of a rise are read from the columns when the incident names the rank. The owner of the
memory follows from the other series of the rank that rose too: torch's allocator, the rest of the
process, or another user of the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from frd.engine.memory.baseline import BIN_NS, SECOND
from frd.engine.memory.incident_report import Attribution, IncidentReport, MemoryRise
from frd.engine.memory.series import KINDS, Series
from frd.model import (
    AlignedNs,
    Bools,
    Change,
    Confidence,
    Int64s,
    Kind,
    MemoryEvent,
    SeriesKind,
)

_SOON_NS: Final = SECOND * 3 // 10
"""Samples of different ranks are taken at different times."""
_SILENT_NS: Final = 60 * SECOND
"""A rank without samples for this long is not waited for."""


@dataclass(slots=True)
class MemoryIncident:
    number: int
    kind: Kind
    on_host: bool
    leak: bool
    common: bool
    first: dict[int, int]
    """Ranks that may have risen first, each with the row of its series; -1 for none."""
    rises: dict[int, MemoryRise]
    """Rises of at most `policy.max_suspects` of these ranks, as of when each was named."""
    limit: int
    """Latest time (aligned ns) at which the first of these ranks began to rise."""
    last: int
    """Latest onset (aligned ns) of any rank of the incident."""
    unknown: set[int] = field(default_factory=set)
    victims: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    is_certain: bool = False
    """No rank can have risen earlier without being seen by now."""
    nearly_all_rose: bool = False
    """(Nearly) all ranks rose soon after, perhaps for the same reason as the first one."""
    keep_until: int = 0
    """The incident stays open at least until then (aligned ns), because an allocation failed."""
    reported: IncidentReport | None = None

    @property
    def confidence(self) -> Confidence:
        if len(self.first) > 1:
            return Confidence.MEDIUM if len(self.first) == 2 else Confidence.LOW
        has_samples = all(row >= 0 for row in self.first.values())
        is_high = has_samples and self.is_certain and not self.nearly_all_rose and not self.unknown
        return Confidence.HIGH if is_high else Confidence.MEDIUM

    def report(self, now: AlignedNs, reason: str = "") -> list[IncidentReport]:
        """A report if something changed since the last one; a `reason` closes the incident."""
        report = IncidentReport(
            number=self.number,
            change=Change.UPDATED if self.reported is not None else Change.OPENED,
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
            report = replace(report, change=Change.CLOSED, close_reason=reason)
        elif (
            self.reported is not None
            and replace(self.reported, change=Change.UPDATED, at=now) == report
        ):
            return []
        self.reported = report
        return [report]


class Coverage:
    """From when and up to when there are samples of each rank; one row a rank."""

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

    def is_complete(self, upto: int) -> bool:
        """There are samples up to then of all ranks that still send any."""
        still = self.newest >= upto - _SILENT_NS
        return bool((self.newest[still] >= upto - _SOON_NS).all())

    def saw(self, limit: int) -> Bools:
        """There are samples of the rank for long enough before, and since."""
        return (self.newest >= limit) & (self.first + BIN_NS <= limit)


@dataclass(frozen=True, slots=True)
class Failure:
    """An allocation that failed, or an out-of-memory kill, at an aligned time."""

    event: MemoryEvent
    at: AlignedNs
    uncertainty_ns: int
    reported_at: AlignedNs

    @property
    def on_host(self) -> bool:
        return not self.event.device


def rise_of(
    series: Series,
    row: int,
    onset: tuple[int, int],
    device: str,
    failures: Iterable[Failure],
) -> MemoryRise:
    """What a series shows of its rank's rise."""
    row_array = np.array([row])
    has_capacity = bool(series.capacity_of(row_array)[0] > 0)
    began_at = int(series.lo[row] + series.hi[row]) // 2
    failure_list = list(failures)
    return MemoryRise(
        rank=int(series.rank[row]),
        kind=KINDS[series.kind[row]],
        device=device,
        onset=(AlignedNs(onset[0]), AlignedNs(onset[1])),
        risen_bytes=int(series.peak[row] - series.high[row]),
        took_s=float(series.end[row] - began_at) / SECOND,
        bytes_per_s=float(series.rate[row]),
        headroom_bytes=int(series.headroom(row_array)[0]) if has_capacity else -1,
        attribution=attribution(series, row),
        requested_bytes=max((failure.event.requested_bytes for failure in failure_list), default=0),
        out_of_memory=bool(failure_list),
    )


def failed_rise(rank: int, onset: tuple[int, int], failures: Iterable[Failure]) -> MemoryRise:
    """The rank ran out of memory, and no series shows a rise."""
    failure_list = list(failures)
    event = failure_list[0].event
    on_host = not event.device
    return MemoryRise(
        rank=rank,
        kind=SeriesKind.HOST_USED if on_host else SeriesKind.DEVICE_USED,
        device=event.device,
        onset=(AlignedNs(onset[0]), AlignedNs(onset[1])),
        risen_bytes=0,
        took_s=0.0,
        bytes_per_s=0.0,
        headroom_bytes=-1,
        attribution=Attribution.HOST if on_host else Attribution.ALLOCATOR,
        requested_bytes=max(failure.event.requested_bytes for failure in failure_list),
        out_of_memory=True,
    )


def attribution(series: Series, row: int) -> Attribution:
    """The owner of the memory that this series shows."""
    n = series.count
    is_near = (series.rank[:n] == series.rank[row]) & (series.pool[:n] == series.pool[row])
    rows_of_rank = np.flatnonzero(is_near & (series.value[:n] >= 0))
    kinds = [KINDS[kind] for kind in series.kind[rows_of_rank]]
    risen = dict(zip(kinds, series.risen(rows_of_rank).tolist(), strict=True))
    half_of_rise = int(series.risen(np.array([row]))[0]) / 2
    match KINDS[series.kind[row]]:
        case SeriesKind.HOST_USED:
            return Attribution.HOST
        case SeriesKind.CGROUP_USED:
            return Attribution.CGROUP
        case SeriesKind.TORCH_RESERVED | SeriesKind.TORCH_ALLOCATED:
            return Attribution.ALLOCATOR
        case kind:
            torch = risen.get(SeriesKind.TORCH_RESERVED, risen.get(SeriesKind.TORCH_ALLOCATED))
            process = risen.get(SeriesKind.PROCESS_USED)
            if torch is not None and torch >= half_of_rise:
                return Attribution.ALLOCATOR
            if kind is SeriesKind.PROCESS_USED or (process is not None and process >= half_of_rise):
                return Attribution.PROCESS if torch is None else Attribution.DRIVER
            if process is not None:
                return Attribution.OTHER
            return Attribution.UNKNOWN if torch is None else Attribution.OUTSIDE
