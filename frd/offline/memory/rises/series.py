"""The rises of each rank, from the series of its processes and devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from frd.engine.memory.baseline import BATCH_NS, REVEALED_NS
from frd.engine.memory.rank_rise import FOREVER, RankRise
from frd.engine.memory.rises import Attribution
from frd.model import Int64s, SeriesKind
from frd.offline.memory.feed import Lane, device_text, series_kinds
from frd.offline.memory.rises.excursion import Excursion, onset_of
from frd.offline.memory.rises.excursions import excursions
from frd.offline.memory.samples import Recorded
from frd.offline.memory.telemetry import ALLOCATED, RESERVED

_FEW_SAMPLES: Final = 2
_SILENT_GAPS: Final = 3
"""A rank without samples for so many of its gaps has stopped."""


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
) -> Iterator[RankRise]:
    """The rises and other excursions of one rank.

    Args:
        lanes: of this rank, by time.
        since_ns: what is before is not looked at.
        reach_ns: how far the clock of a host may be off.
    """
    for lane in lanes:
        is_later = not lane.source and lane.first_ns > lanes[0].first_ns
        rows = np.arange(lane.rows.start, lane.rows.stop)
        rows = rows[int(recorded.begin_ns[lane.rows].searchsorted(since_ns)) :]
        if len(rows) < _FEW_SAMPLES:
            continue
        of_lane: list[RankRise] = []
        known = np.any(recorded.values[rows] >= 0, axis=0)
        for kind, column in series_kinds(lane.stream, known):
            more = _of_series(_Series(lane, kind, recorded, rows, column), min_rise, reach_ns)
            if is_later:  # memory that another process fills from nothing
                more = [one for one in more if not one.from_start]
            of_lane += [one for one in more if not _overlaps(one, of_lane)]
        yield from of_lane


def samples_of(recorded: Recorded, lanes: Sequence[Lane], since_ns: int) -> Int64s | None:
    """The times of one rank's samples; None if there are too few."""
    at = np.sort(np.concatenate([recorded.begin_ns[lane.rows] for lane in lanes]))
    at = at[int(at.searchsorted(since_ns)) :]
    return at if len(at) >= _FEW_SAMPLES else None


class RecordedCoverage:
    """`Coverage` of a recording."""

    def __init__(self, at_ns: Mapping[int, Int64s], reach_ns: int) -> None:
        """`at_ns` has the times of each rank's samples on the clock of its host."""
        self._at = at_ns
        self._reach = reach_ns
        self._gaps = {rank: int(np.median(np.diff(at))) for rank, at in at_ns.items()}
        self.newest = max(int(at[-1]) for at in at_ns.values()) + reach_ns

    @property
    def ranks(self) -> int:
        return len(self._at)

    def gap(self, rank: int) -> int:
        return self._gaps[rank]

    def shown_at(self, when: int, but: Set[int]) -> int:
        ranks = self._at.keys() - but
        return max((self._shown_at(when + self._reach, rank) for rank in ranks), default=when)

    def silent_at(self, when: int) -> set[int]:
        return {rank for rank in self._at if self._is_silent(when, rank)}

    def _shown_at(self, when: int, rank: int) -> int:
        at = self._at[rank]
        before, following = self._around(when, rank)
        known = min(following, (before or int(at[0])) + self._silence(rank))
        return min(max(when, known), FOREVER - self._reach) + self._reach

    def _is_silent(self, when: int, rank: int) -> bool:
        before, following = self._around(when, rank)
        return not before or following - before > self._silence(rank)

    def _around(self, when: int, rank: int) -> tuple[int, int]:
        """The last sample before that time, 0 for none, and the next one."""
        at = self._at[rank]
        place = int(at.searchsorted(when))
        before = int(at[place - 1]) if place else 0
        return before, int(at[place]) if place < len(at) else FOREVER

    def _silence(self, rank: int) -> int:
        return max(_SILENT_GAPS * self._gaps[rank], BATCH_NS)


def _overlaps(one: RankRise, found: Sequence[RankRise]) -> bool:
    """A series of the same device shows that rise already."""
    return any(
        one.seen <= other.end and other.seen <= one.end
        for other in found
        if other.is_rise or not one.is_rise
    )


def _of_series(series: _Series, min_rise: int, reach_ns: int) -> list[RankRise]:
    lane, recorded = series.lane, series.recorded
    rows = series.rows[recorded.values[series.rows, series.column] >= 0]
    begin, end, values = recorded.begin_ns[rows], recorded.end_ns[rows], recorded.values[rows]
    counts = np.ascontiguousarray(values[:, series.column])

    def known_at(place: int) -> int:
        return int(end[place]) + reach_ns if place >= 0 else FOREVER

    found = []
    for one in excursions(begin, counts, min_rise):
        is_rise = one.ready >= 0 or (one.established >= 0 and one.end < 0)
        earliest = onset_of(one, begin, counts) if one.level_is_known else int(begin[0])
        when_seen = (
            onset_of(replace(one, ready=one.first), begin, counts)
            if one.level_is_known
            else int(begin[one.first - 1])
        )
        sized = int(begin.searchsorted(begin[one.first] + REVEALED_NS))
        sized = min(sized, one.end) if one.end >= 0 else sized
        upto = counts[one.first : sized + 1]
        rise = RankRise(
            rank=lane.stream.rank,
            kind=series.kind,
            on_host=lane.stream.of_host,
            device="" if lane.stream.of_host else device_text(lane.stream),
            lo=earliest - reach_ns,
            lo_when_seen=when_seen - reach_ns,
            hi=known_at(one.latest),
            seen=known_at(one.first),
            high=one.high,
            from_start=not one.level_is_known,
            began_before=one.calm < _FEW_SAMPLES,
            is_certain=one.is_certain,
            established=known_at(one.established),
            ready=known_at(one.ready),
            sized=known_at(sized) if sized < len(begin) else FOREVER,
            size=int(upto.max()) - one.high,
            end=known_at(one.end),
            back=known_at(max(one.back, one.end)) if one.back >= 0 else FOREVER,
            grown=int(begin[one.grown]),
            peak=one.peak,
            began=(earliest, int(end[one.latest])),
            origin=recorded.origin_of(int(rows[one.first])),
        )
        if is_rise:
            rise.attribution = _attribution(series.kind, one, values)
        found.append(rise)
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
