"""The rises of each rank, from the series of its processes and devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from frd.engine.memory.rises import Attribution
from frd.model import Int64s, SeriesKind
from frd.offline.memory.feed import Lane, device_text, series_kinds
from frd.offline.memory.rises.excursion import Excursion, onset_of
from frd.offline.memory.rises.excursions import excursions
from frd.offline.memory.rises.rank_rise import FOREVER, RankRise, RankSamples
from frd.offline.memory.samples import Recorded
from frd.offline.memory.telemetry import ALLOCATED, RESERVED, Origin

_FEW_SAMPLES: Final = 2


@dataclass(frozen=True, slots=True)
class SeriesRise:
    """A rise as one series shows it: figures for people. Times are ns, sizes bytes."""

    kind: SeriesKind
    device: str
    """Empty for host memory."""
    began: tuple[int, int]
    """The interval of its onset on the clock of the host, whatever that clock's error."""
    origin: Origin | None
    """What the first sample beyond the usual level says of the code that took it."""
    high: int
    """The usual level before it."""
    peak: int
    grown_ns: int
    end_ns: int
    fell_back: bool
    attribution: Attribution

    @property
    def series(self) -> tuple[bool, str]:
        """Rises of one device are comparable, whichever of its counters shows them."""
        return self.kind is SeriesKind.HOST_USED, self.device


@dataclass(frozen=True, slots=True)
class _Found:
    rise: RankRise
    shown: SeriesRise


@dataclass(frozen=True, slots=True)
class _Series:
    """The samples of a lane, and the column of one of its series."""

    lane: Lane
    kind: SeriesKind
    recorded: Recorded
    rows: Int64s
    """Of `recorded`."""
    column: int


def rank_rises(
    recorded: Recorded, lanes: Sequence[Lane], min_rise: int, since_ns: int, reach_ns: int
) -> Iterator[tuple[RankRise, SeriesRise]]:
    """The rises and other excursions of one rank, in the order of time.

    Args:
        lanes: of this rank, by time.
        since_ns: what is before is not looked at.
        reach_ns: how far the clock of a host may be off.
    """
    found: list[_Found] = []
    for lane in lanes:
        is_later = not lane.source and lane.first_ns > lanes[0].first_ns
        rows = np.arange(lane.rows.start, lane.rows.stop)
        rows = rows[int(recorded.begin_ns[lane.rows].searchsorted(since_ns)) :]
        if len(rows) < _FEW_SAMPLES:
            continue
        of_lane: list[_Found] = []
        known = np.any(recorded.values[rows] >= 0, axis=0)
        for kind, column in series_kinds(lane.stream, known):
            more = _of_series(_Series(lane, kind, recorded, rows, column), min_rise, reach_ns)
            if is_later:  # memory that another process fills from nothing
                more = [one for one in more if not one.rise.from_start]
            of_lane += [one for one in more if not _overlaps(one, of_lane)]
        found += of_lane
    found.sort(key=lambda one: one.rise.hi)
    for one in found:
        yield one.rise, one.shown


def samples_of(recorded: Recorded, lanes: Sequence[Lane], since_ns: int) -> RankSamples | None:
    """The times of one rank's samples; None if there are too few."""
    at = recorded.begin_ns[lanes[0].rows]
    if len(lanes) > 1:
        at = np.sort(np.concatenate([recorded.begin_ns[lane.rows] for lane in lanes]))
    at = at[int(at.searchsorted(since_ns)) :]
    if len(at) < _FEW_SAMPLES:
        return None
    return RankSamples(at, int(np.median(np.diff(at))))


def _overlaps(one: _Found, found: Sequence[_Found]) -> bool:
    """A series of the same device shows that rise already."""
    return any(
        one.rise.seen <= other.rise.end and other.rise.seen <= one.rise.end
        for other in found
        if other.rise.is_rise or not one.rise.is_rise
    )


def _of_series(series: _Series, min_rise: int, reach_ns: int) -> list[_Found]:
    lane, recorded = series.lane, series.recorded
    rows = series.rows[recorded.values[series.rows, series.column] >= 0]
    begin, end, values = recorded.begin_ns[rows], recorded.end_ns[rows], recorded.values[rows]
    counts = np.ascontiguousarray(values[:, series.column])
    device = "" if lane.stream.of_host else device_text(lane.stream)
    found = []
    for one in excursions(begin, counts, min_rise):
        is_rise = one.ready >= 0 or (one.established >= 0 and one.end < 0)
        earliest = onset_of(one, begin, counts) if one.level_is_known else int(begin[0])
        last = max(one.end, one.back) if one.end >= 0 else len(begin) - 1
        rise = RankRise(
            rank=lane.stream.rank,
            lo=earliest - reach_ns,
            hi=int(end[one.latest]) + reach_ns,
            seen=int(begin[one.first]),
            established=int(begin[one.established]) if one.established >= 0 else FOREVER,
            ready=int(begin[one.ready]) if one.ready >= 0 else FOREVER,
            grown=int(begin[one.grown]),
            end=int(begin[one.end]) if one.end >= 0 else FOREVER,
            back=int(begin[one.back]) if one.back >= 0 else FOREVER,
            from_start=not one.level_is_known,
            began_before=one.calm < _FEW_SAMPLES,
            is_certain=one.is_certain,
            is_rise=is_rise,
        )
        shown = SeriesRise(
            kind=series.kind,
            device=device,
            began=(earliest, int(end[one.latest])),
            origin=recorded.origin_of(int(rows[one.first])),
            high=one.high,
            peak=one.peak,
            grown_ns=int(begin[one.grown]),
            end_ns=int(begin[last]),
            fell_back=one.back >= 0,
            attribution=_attribution(series.kind, one, values) if is_rise else Attribution.UNKNOWN,
        )
        found.append(_Found(rise, shown))
    return found


def _attribution(kind: SeriesKind, one: Excursion, values: Int64s) -> Attribution:
    """Whose memory it is: that of torch's allocator if it grew by half as much meanwhile."""
    if kind is SeriesKind.HOST_USED:
        return Attribution.HOST
    if kind is not SeriesKind.DEVICE_USED:
        return Attribution.ALLOCATOR
    before, after = values[one.first - 1], values[one.grown]
    for column in (RESERVED, ALLOCATED):
        if before[column] >= 0 and after[column] >= 0:
            is_torch = 2 * (after[column] - before[column]) >= one.peak - one.high
            return Attribution.ALLOCATOR if is_torch else Attribution.OUTSIDE
    return Attribution.UNKNOWN


def joined(first: SeriesRise, later: SeriesRise) -> SeriesRise:
    """One rise that went on after a pause."""
    return replace(
        first,
        peak=max(first.peak, later.peak),
        grown_ns=later.grown_ns,
        end_ns=later.end_ns,
        fell_back=later.fell_back,
    )
