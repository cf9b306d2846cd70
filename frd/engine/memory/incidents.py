"""Incidents of memory in one attempt: when one opens, which ranks it names, when it is over.

A rise that is worth a finding opens an incident once there are samples of all ranks for the time in
which it began, or half a second later. A rank that is named then stays named: later data may show
that another rank rose as early, which makes a tie, or later, which makes it a victim. Ranks whose
samples are missing over the onset stay unknown until their samples arrive.

A failed allocation opens an incident of a separate kind, in which the rises before it are the
first causes; it takes over from an open one that had foreseen it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from frd.engine.memory import onset as causes
from frd.engine.memory.baseline import SECOND
from frd.engine.memory.incident import Coverage, Failure, Incident, failed, rise_of
from frd.engine.memory.onset import Rises
from frd.engine.memory.series import Series
from frd.engine.memory.verdict import MemoryRise, MemoryVerdict
from frd.engine.policy import Policy
from frd.model import AlignedNs, Int64s, Kind

WAIT_NS: Final = SECOND // 2
"""How long samples of other ranks for the time of an onset are waited for."""
_TELL_NS: Final = 2 * SECOND
"""A rank with samples for this long after the onset that does not rise did not rise."""
_SURE_NS: Final = 5 * SECOND
"""After this, a rise that is hidden in what its rank usually does is visible."""
_HERD_NS: Final = 5 * SECOND
"""A phase of the program (an evaluation, the first step) begins on all ranks within this."""
_HIDES: Final = 16
"""What a rank usually does can hide a rise if it is more than this part of the rise."""
_STEADY: Final = 3
"""A rise whose rate is within this factor of its mean, and which is slow, is a leak."""


class MemoryIncidents:
    """The open incidents over the series of one attempt, whose `incident` column it keeps."""

    def __init__(
        self, series: Series, devices: Sequence[str], numbers: Iterator[int], policy: Policy
    ) -> None:
        self._series = series
        self._devices = devices
        """By row."""
        self._numbers = numbers
        self.adopt(policy)
        self._open: dict[int, Incident] = {}
        self._waiting: dict[tuple[bool, int], AlignedNs] = {}
        """Since when the rise of a rank has waited for samples of other ranks."""
        self._failures: list[Failure] = []

    def adopt(self, policy: Policy) -> None:
        self._calm_at = -1
        """The revision of the series at the last look, if nothing rises or is awaited: until the
        series change, there is nothing new."""
        self._policy = policy
        self._link_ns = round(policy.memory_link_s * SECOND)

    def fail(self, failure: Failure) -> None:
        self._failures.append(failure)

    def update(self, now: AlignedNs) -> list[MemoryVerdict]:
        """The verdicts that are new; costs nothing while nothing rises or fails."""
        series = self._series
        if not (self._open or self._failures):
            rising = series.rising[: series.count]
            if series.revision == self._calm_at or not rising.any():
                return []
        out: list[MemoryVerdict] = []
        for on_host in (False, True):
            of = causes.rises(series, on_host=on_host, policy=self._policy)
            out += self._fail(of, on_host, now)
            for incident in self._of(on_host):
                self._follow(incident, of)
            self._begin(of, on_host, now)
        for incident in list(self._open.values()):
            reason = self._over(incident, now)
            if reason:
                del self._open[incident.number]
            out += incident.report(now, reason)
        is_calm = not (out or self._open or self._failures or self._waiting)
        self._calm_at = series.revision if is_calm else -1
        return out

    def _of(self, on_host: bool) -> list[Incident]:
        return [one for one in self._open.values() if one.on_host == on_host]

    # -- opening -----------------------------------------------------------------------------

    def _begin(self, of: Rises, on_host: bool, now: AlignedNs) -> None:
        """Rises that are worth a finding and belong to no incident."""
        places = np.flatnonzero(of.hot & (of.incident == 0))
        ranks = {(on_host, rank) for rank in of.rank[places].tolist()}
        self._waiting = {
            key: at for key, at in self._waiting.items() if key[0] != on_host or key in ranks
        }
        while len(places):
            trigger = int(places[of.hi[places].argmin()])
            since = self._waiting.setdefault((on_host, int(of.rank[trigger])), now)
            covered = Coverage(self._series, on_host)
            if now - since < WAIT_NS and not covered.is_complete(
                int(self._series.hot[of.row[trigger]])
            ):
                break
            self._name(of, trigger, covered, on_host, Kind.MEMORY_SPIKE, {})
            places = places[of.incident[places] == 0]

    def _name(
        self,
        of: Rises,
        trigger: int,
        covered: Coverage,
        on_host: bool,
        kind: Kind,
        failures: dict[int, list[Failure]],
    ) -> Incident:
        """A new incident, opened by the rise at `trigger`."""
        limit = int(of.hi[trigger])
        alive = covered.rank[covered.newest >= limit - self._link_ns]
        ranks = len(np.union1d(alive, of.rank[trigger]))
        cause = causes.first_cause(of, trigger, ranks, self._policy)
        limit = int(of.hi[cause.first].min())
        number = next(self._numbers)
        incident = Incident(
            number=number,
            kind=kind,
            on_host=on_host,
            leak=False,
            common=cause.common,
            first={},
            rises={},
            limit=limit,
            last=int(of.lo[trigger]),
        )
        self._add(incident, of, cause.first[np.argsort(of.hi[cause.first])], failures)
        self._add_victims(incident, of, cause.later)
        silent = np.intersect1d(alive, covered.rank[~covered.saw(limit)])
        incident.unknown = {*silent.tolist(), *of.rank[cause.doubtful].tolist()} - incident.victims
        lead = int(of.risen[cause.first].min())
        incident.sure = covered.highest_band * _HIDES <= lead or covered.is_complete(
            limit + _SURE_NS
        )
        incident.leak = kind is Kind.MEMORY_SPIKE and all(
            map(self._is_leak, incident.rises.values())
        )
        self._open[number] = incident
        return incident

    def _is_leak(self, rise: MemoryRise) -> bool:
        mean = rise.risen_bytes / max(rise.took_s, 1e-9)
        slow = rise.took_s >= self._policy.memory_link_s
        return slow and mean / _STEADY <= rise.bytes_per_s <= mean * _STEADY

    def _add(
        self,
        incident: Incident,
        of: Rises,
        places: Int64s,
        failures: dict[int, list[Failure]],
    ) -> None:
        """Ranks that may have been the first."""
        for place in places.tolist():
            rank, row = int(of.rank[place]), int(of.row[place])
            incident.first[rank] = row
            if len(incident.rises) < self._policy.max_suspects:
                onset, why = (int(of.lo[place]), int(of.hi[place])), failures.get(rank, [])
                incident.rises[rank] = (
                    rise_of(self._series, row, onset, self._devices[row], why)
                    if row >= 0
                    else failed(rank, onset, why)
                )
        self._mark(incident, of, places)

    def _add_victims(self, incident: Incident, of: Rises, places: Int64s) -> None:
        if len(places):
            incident.victims.update(of.rank[places].tolist())
            incident.last = max(incident.last, int(of.lo[places].max()))
            self._mark(incident, of, places)

    def _mark(self, incident: Incident, of: Rises, places: Int64s) -> None:
        of.incident[places] = incident.number
        series = self._series
        n = series.count
        mine = series.rising[:n] & (series.on_host[:n] == incident.on_host)
        mine &= np.isin(series.rank[:n], of.rank[places])
        series.incident[:n][mine] = incident.number

    # -- what comes later --------------------------------------------------------------------

    def _follow(self, incident: Incident, of: Rises) -> None:
        """Which other ranks rise, and what new samples show of unknown ranks."""
        free = (of.incident == 0) & of.visible & (of.lo <= incident.last + self._link_ns)
        early = of.lo <= incident.limit
        lead = max((rise.risen_bytes for rise in incident.rises.values()), default=0)
        matters = causes.matters(of, lead) & (of.hi >= incident.limit - self._link_ns)
        self._add(incident, of, np.flatnonzero(free & early & matters), {})
        self._add_victims(incident, of, np.flatnonzero(free & ~early))
        covered = Coverage(self._series, incident.on_host)
        soon = of.rank[(of.incident == incident.number) & (of.lo <= incident.limit + _HERD_NS)]
        alive = np.count_nonzero(covered.newest >= incident.limit - self._link_ns)
        incident.herd |= bool(len(soon) > 2 and len(soon) >= causes.NEARLY_ALL * alive)
        if not incident.sure:
            doubtful = (of.incident == 0) & early & of.fresh & ~of.young
            incident.unknown.update(of.rank[doubtful].tolist())
            incident.sure = covered.is_complete(incident.limit + _SURE_NS)
        if incident.unknown:
            seen = covered.rank[
                covered.saw(incident.limit) & (covered.newest >= incident.limit + _TELL_NS)
            ]
            incident.unknown &= {*of.rank[early].tolist()} | (incident.unknown - set(seen.tolist()))
            incident.unknown -= set(incident.first)

    def _over(self, incident: Incident, now: AlignedNs) -> str:
        """Why it is; empty while it is not."""
        series = self._series
        rows = np.array([row for row in incident.first.values() if row >= 0], np.int64)
        if now < incident.keep_until or bool((series.incident[rows] == incident.number).any()):
            return ""
        if not len(rows):
            return f"no allocation has failed for {self._policy.memory_settle_s:.0f} s"
        if bool((series.value[rows] < 0).all()):
            return "its processes were replaced"
        settled = series.high[rows] + series.visible[rows] >= series.mark[rows]
        if settled.any():
            return f"memory has not changed for {self._policy.memory_settle_s:.0f} s"
        return "memory fell back"

    # -- failures ----------------------------------------------------------------------------

    def _fail(self, of: Rises, on_host: bool, now: AlignedNs) -> list[MemoryVerdict]:
        """Failed allocations, or kills, after a short wait for those of other ranks."""
        ripe: list[Failure] = []
        early: list[Failure] = []
        for one in self._failures:
            is_ripe = one.on_host == on_host and now - one.reported_at >= WAIT_NS
            (ripe if is_ripe else early).append(one)
        if not ripe:
            return []
        self._failures = early
        by_rank: dict[int, list[Failure]] = {}
        for one in ripe:
            by_rank.setdefault(one.event.rank, []).append(one)
        at = max(one.at for one in ripe)
        out: list[MemoryVerdict] = []
        known = [
            one
            for one in self._of(on_host)
            if at <= one.last + self._link_ns or set(one.first) & set(by_rank)
        ]
        incident = next((one for one in known if one.kind is Kind.OOM), None)
        if incident is None and known:
            incident, out = self._take_over(known[0], now)
        if incident is None:
            rank = np.array(sorted(by_rank), np.int32)
            lo = np.array([min(f.at - f.uncertainty_ns for f in by_rank[r]) for r in rank.tolist()])
            hi = np.array([min(f.at + f.uncertainty_ns for f in by_rank[r]) for r in rank.tolist()])
            size = np.array(
                [max(f.event.requested_bytes for f in by_rank[r]) for r in rank.tolist()]
            )
            both, places = causes.with_failures(of, rank, lo, hi, size)
            trigger = int(places[both.hi[places].argmin()])
            covered = Coverage(self._series, on_host)
            incident = self._name(both, trigger, covered, on_host, Kind.OOM, by_rank)
        for rank_, failures in by_rank.items():
            self._ran_out(incident, rank_, failures)
        incident.last = max(incident.last, at)
        incident.keep_until = at + round((self._policy.memory_settle_s) * SECOND)
        return out

    def _take_over(self, spike: Incident, now: AlignedNs) -> tuple[Incident, list[MemoryVerdict]]:
        """Memory that was rising has run out: the spike becomes an OOM."""
        del self._open[spike.number]
        incident = replace(spike, number=next(self._numbers), kind=Kind.OOM, reported=None)
        self._open[incident.number] = incident
        series = self._series
        series.incident[: series.count][series.incident[: series.count] == spike.number] = (
            incident.number
        )
        return incident, spike.report(now, "memory ran out")

    def _ran_out(self, incident: Incident, rank: int, failures: list[Failure]) -> None:
        incident.failed.add(rank)
        earliest = min(failures, key=lambda one: one.at)
        onset = (earliest.at - earliest.uncertainty_ns, earliest.at + earliest.uncertainty_ns)
        if rank not in incident.first and onset[0] > incident.limit:
            incident.victims.add(rank)
        elif rank not in incident.first:
            incident.first[rank] = -1
            if len(incident.rises) < self._policy.max_suspects:
                incident.rises[rank] = failed(rank, onset, failures)
        elif rank in incident.rises:
            row, rise = incident.first[rank], incident.rises[rank]
            if row >= 0 and self._series.incident[row] == incident.number:
                rise = rise_of(self._series, row, rise.onset, rise.device, failures)
            asked = max(one.event.requested_bytes for one in failures)
            incident.rises[rank] = replace(rise, out_of_memory=True, requested_bytes=asked)
