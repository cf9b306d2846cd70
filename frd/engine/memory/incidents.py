"""Incidents of memory that rises or runs out: which ranks they name, and when they are over.

A rise that is worth a finding makes an incident once there are samples of all ranks for the time in
which it began, or half a second later. A rank that is named then stays named: later data may show
that another rank rose as early, which makes a tie, or later, which makes it a victim. Ranks whose
samples are missing over the onset stay unknown until their samples arrive. An incident is over when
no series of the ranks that it names rises any more.

A failed allocation makes an incident of a separate kind, in which the rises before it are the
first causes; it replaces an earlier one that had foreseen it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from frd.engine.memory.coverage import Coverage
from frd.engine.memory.incident import RAN_OUT, MemoryIncident
from frd.engine.memory.levels import BATCH_NS, REVEALED_NS, SECOND, WINDOW_NS
from frd.engine.memory.onset import (
    NEARLY_ALL,
    Rises,
    Side,
    current_rises,
    first_cause,
    matters,
    with_failures,
)
from frd.engine.memory.recent import BIN_NS
from frd.engine.memory.rise import Failure, MemoryRise, failed_rise, rise_of
from frd.engine.memory.series import Series
from frd.model import AlignedNs, Int64s, Kind

_HIDDEN_PART: Final = 16
"""The band of a series can hide a rise if it is higher than the rise divided by this."""
_STEADY_FACTOR: Final = 3
"""A slow rise whose recent rate is within this factor of its mean rate is a leak."""


class Incidents:
    """The incidents over the series of one attempt, whose `incident` column it keeps."""

    def __init__(self, series: Series, numbers: Iterator[int]) -> None:
        self._series = series
        self._numbers = numbers
        self._known: list[MemoryIncident] = []
        """Those that are not over."""
        self._waiting: dict[tuple[Side, int], AlignedNs] = {}
        """Since when the rise of a rank has waited for samples of other ranks."""
        self._failures: list[Failure] = []

    def add_failure(self, failure: Failure) -> None:
        self._failures.append(failure)

    def update(self, now: AlignedNs) -> list[MemoryIncident]:
        """The incidents that there are, and those that are over since the last call. Cheap while
        nothing rises or fails."""
        series = self._series
        if not (self._known or self._failures or series.rising[: series.count].any()):
            return []
        for side in map(Side, (False, False, True, True), (False, True) * 2):
            rises = current_rises(series, side, series.policy)
            if not side.of_others:
                self._take_failures(rises, side, now)
            for incident in self._on_side(side):
                self._update_incident(incident, rises)
            self._add_new(rises, side, now)
        found = self._known
        for incident in found:
            if not incident.drop_forecasts(series.is_flat):  # else first the text, then the end
                incident.over = incident.over or self._over(incident, now)
        self._known = [incident for incident in found if not incident.over]
        return found

    def _on_side(self, side: Side) -> list[MemoryIncident]:
        known = (one for one in self._known if not one.over)
        return [one for one in known if (one.on_host, one.of_others) == side]

    # -- new incidents -----------------------------------------------------------------------

    def _add_new(self, rises: Rises, side: Side, now: AlignedNs) -> None:
        """Rises that are worth a finding and belong to no incident."""
        places = np.flatnonzero(rises.reportable & (rises.incident == 0))
        ranks = {(side, rank) for rank in rises.rank[places].tolist()}
        self._waiting = {
            key: at for key, at in self._waiting.items() if key[0] != side or key in ranks
        }
        while len(places):
            trigger = int(places[rises.hi[places].argmin()])
            since = self._waiting.setdefault((side, int(rises.rank[trigger])), now)
            covered = Coverage(self._series, side.on_host)
            if now - since < BATCH_NS and not covered.is_complete(
                int(self._series.reportable_at[rises.row[trigger]])
            ):
                break
            self._new(rises, trigger, covered, side, Kind.MEMORY_SPIKE, {})
            places = places[rises.incident[places] == 0]

    def _new(
        self,
        rises: Rises,
        trigger: int,
        covered: Coverage,
        side: Side,
        kind: Kind,
        failures: dict[int, list[Failure]],
    ) -> MemoryIncident:
        """A new incident, which the rise at `trigger` shows."""
        limit = int(rises.hi[trigger])
        alive = covered.rank[covered.is_alive(limit)]
        ranks = len(np.union1d(alive, rises.rank[trigger]))
        cause = first_cause(rises, trigger, ranks, self._series.policy)
        limit = int(rises.hi[cause.first].min())
        incident = MemoryIncident(
            number=next(self._numbers),
            kind=kind,
            on_host=side.on_host,
            limit=limit,
            of_others=side.of_others,
            common=cause.common,
            last=int(rises.lo[trigger]),
        )
        self._known.append(incident)
        first = cause.first[np.argsort(rises.hi[cause.first])]
        self._add_first_ranks(incident, rises, first, failures)
        self._add_victims(incident, rises, cause.later)
        silent = np.intersect1d(alive, covered.rank[~covered.saw(limit)])
        incident.unknown = {
            *silent.tolist(),
            *rises.rank[cause.doubtful].tolist(),
        } - incident.victims
        lead = int(rises.risen[cause.first].min())
        incident.is_certain = covered.highest_band * _HIDDEN_PART <= lead or covered.is_complete(
            limit + REVEALED_NS
        )
        incident.leak = kind is Kind.MEMORY_SPIKE and all(
            map(self._is_leak, incident.rises.values())
        )
        return incident

    def _is_leak(self, rise: MemoryRise) -> bool:
        slow = rise.took_s >= WINDOW_NS / SECOND
        at_this_rate, risen = rise.bytes_per_s * rise.took_s, rise.risen_bytes
        return slow and risen / _STEADY_FACTOR <= at_this_rate <= risen * _STEADY_FACTOR

    def _add_first_ranks(
        self,
        incident: MemoryIncident,
        rises: Rises,
        places: Int64s,
        failures: dict[int, list[Failure]],
    ) -> None:
        """Name ranks that may have risen first."""
        for place in places.tolist():
            rank, row = int(rises.rank[place]), int(rises.row[place])
            if incident.name(rank, row, self._series.policy.max_suspects):
                onset, why = (int(rises.lo[place]), int(rises.hi[place])), failures.get(rank, [])
                incident.rises[rank] = (
                    rise_of(self._series, row, onset, why)
                    if row >= 0
                    else failed_rise(rank, onset, why)
                )
        self._mark_rises(incident, rises, places)

    def _add_victims(self, incident: MemoryIncident, rises: Rises, places: Int64s) -> None:
        if len(places):
            incident.victims.update(rises.rank[places].tolist())
            incident.victims -= incident.rows.keys()
            incident.last = max(incident.last, int(rises.lo[places].max()))
            self._mark_rises(incident, rises, places)

    def _mark_rises(self, incident: MemoryIncident, rises: Rises, places: Int64s) -> None:
        rises.incident[places] = incident.number
        series = self._series
        n = series.count
        rows_of_ranks = series.rising[:n] & (series.on_host[:n] == incident.on_host)
        rows_of_ranks &= np.isin(series.rank[:n], rises.rank[places])
        rows_of_ranks &= series.is_others(np.arange(n)) == incident.of_others
        series.incident[:n][rows_of_ranks] = incident.number

    # -- what comes later --------------------------------------------------------------------

    def _update_incident(self, incident: MemoryIncident, rises: Rises) -> None:
        """Add ranks that rise now; drop unknown ranks whose new samples show no earlier rise."""
        free = (rises.incident == 0) & rises.visible & (rises.lo <= incident.last + WINDOW_NS)
        early = rises.lo <= incident.limit
        lead = max((rise.risen_bytes for rise in incident.rises.values()), default=0)
        can_be_cause = matters(rises, lead) & (rises.hi >= incident.limit - WINDOW_NS)
        self._add_first_ranks(incident, rises, np.flatnonzero(free & early & can_be_cause), {})
        self._add_victims(incident, rises, np.flatnonzero(free & ~early))
        covered = Coverage(self._series, incident.on_host)
        soon_after = rises.rank[
            (rises.incident == incident.number) & (rises.lo <= incident.limit + REVEALED_NS)
        ]
        alive = np.count_nonzero(covered.is_alive(incident.limit))
        incident.nearly_all_rose |= bool(
            len(soon_after) > 2 and len(soon_after) >= NEARLY_ALL * alive
        )
        if not incident.is_certain:
            doubtful = (rises.incident == 0) & early & rises.fresh & ~rises.young
            incident.unknown.update(rises.rank[doubtful].tolist())
            incident.is_certain = covered.is_complete(incident.limit + REVEALED_NS)
        if incident.unknown:
            seen = covered.rank[
                covered.saw(incident.limit) & (covered.newest >= incident.limit + BIN_NS)
            ]
            incident.unknown &= {*rises.rank[early].tolist()} | (
                incident.unknown - set(seen.tolist())
            )
            incident.unknown -= incident.rows.keys()

    def _over(self, incident: MemoryIncident, now: AlignedNs) -> str:
        """Why the incident is over; empty while it is not."""
        series = self._series
        rows = np.array([row for row in incident.rows.values() if row >= 0], np.int64)
        if now < incident.keep_until or bool((series.incident[rows] == incident.number).any()):
            return ""
        if not len(rows):
            return f"no allocation has failed for {self._series.policy.memory_settle_s:.0f} s"
        if bool((series.value[rows] < 0).all()):
            return "its processes were replaced"
        if (series.back[rows] == 0).any():
            return f"memory has not changed for {self._series.policy.memory_settle_s:.0f} s"
        return "memory fell back"

    # -- failures ----------------------------------------------------------------------------

    def _take_failures(self, rises: Rises, side: Side, now: AlignedNs) -> None:
        """Turn failed allocations and kills into an OOM, after a short wait for other ranks."""
        ripe: list[Failure] = []
        early: list[Failure] = []
        for failure in self._failures:
            is_ripe = failure.on_host == side.on_host and now - failure.reported_at >= BATCH_NS
            (ripe if is_ripe else early).append(failure)
        if not ripe:
            return
        self._failures = early
        by_rank: dict[int, list[Failure]] = {}
        for failure in ripe:
            by_rank.setdefault(failure.event.rank, []).append(failure)
        at = max(failure.at for failure in ripe)
        related = [
            incident
            for incident in (*self._on_side(side), *self._on_side(side._replace(of_others=True)))
            if at <= incident.last + WINDOW_NS or incident.rows.keys() & by_rank.keys()
        ]
        incident = next((one for one in related if one.kind is Kind.OOM), None)
        if incident is None:
            incident = (
                self._foreseen_oom(related[0]) if related else self._new_oom(rises, side, by_rank)
            )
        for rank, failures in by_rank.items():
            self._ran_out(incident, rank, failures)
        incident.last = max(incident.last, at)
        incident.keep_until = at + round(self._series.policy.memory_settle_s * SECOND)

    def _new_oom(
        self, rises: Rises, side: Side, by_rank: dict[int, list[Failure]]
    ) -> MemoryIncident:
        """An OOM that no incident has foreseen; its first ranks may have risen before, or other
        processes where they ran out."""
        ranks = sorted(by_rank)
        if not (rises.visible & ~rises.young).any():
            others = side._replace(of_others=True)
            taken = current_rises(self._series, others, self._series.policy)
            if np.isin(ranks, taken.rank[taken.visible]).all():
                rises, side = taken, others
        begin = [min(fail.onset[0] for fail in by_rank[rank]) for rank in ranks]
        end = [min(fail.onset[1] for fail in by_rank[rank]) for rank in ranks]
        size = [max(fail.event.requested_bytes for fail in by_rank[rank]) for rank in ranks]
        columns = np.array(begin), np.array(end), np.array(size)
        combined, places = with_failures(rises, np.array(ranks, np.int32), *columns)
        trigger = int(places[combined.hi[places].argmin()])
        covered = Coverage(self._series, side.on_host)
        return self._new(combined, trigger, covered, side, Kind.OOM, by_rank)

    def _foreseen_oom(self, spike: MemoryIncident) -> MemoryIncident:
        """Memory that was rising has run out: an OOM replaces the spike."""
        oom = replace(spike, number=next(self._numbers), kind=Kind.OOM)
        self._known.append(oom)
        spike.over = RAN_OUT
        self._series.incident[self._series.incident == spike.number] = oom.number
        return oom

    def _ran_out(self, incident: MemoryIncident, rank: int, failures: list[Failure]) -> None:
        incident.failed.add(rank)
        onset = min(failures, key=lambda failure: failure.at).onset
        if rank not in incident.rows and onset[0] > incident.limit:
            incident.victims.add(rank)
        elif rank not in incident.rows:
            if incident.name(rank, -1, self._series.policy.max_suspects):
                incident.rises[rank] = failed_rise(rank, onset, failures)
        elif rank in incident.rises:
            row, rise = incident.rows[rank], incident.rises[rank]
            if row >= 0 and self._series.incident[row] == incident.number:
                rise = rise_of(self._series, row, rise.onset, failures)
            asked = max(failure.event.requested_bytes for failure in failures)
            incident.rises[rank] = replace(rise, out_of_memory=True, requested_bytes=asked)
