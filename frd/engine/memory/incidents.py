"""Incidents of memory that rises or runs out: which ranks they name, and when they are over.

A rise that alarms makes an incident once it is decided which ranks rose first
(`frd.engine.memory.decisions`). Its cause is the first of the rises that are linked with it and not
much smaller. A rank that is named then stays named: later data may show that another rank rose as
early, which makes a tie, or later, which makes it a victim. Ranks whose samples are missing over
the onset stay unknown until their samples arrive. An incident is over when no series of the ranks
that it names rises any more.

A failed allocation makes an incident of a separate kind, in which the rises before it are the
first causes; it replaces an earlier one that had foreseen it. Memory that processes of no rank take
is an incident that accuses no rank, once it will run out soon.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from frd.engine.memory.coverage import Coverage
from frd.engine.memory.decisions import COMPARABLE, NEARLY_ALL, Decision, Decisions, Outcome
from frd.engine.memory.incident import RAN_OUT, MemoryIncident
from frd.engine.memory.leaks import Leaks
from frd.engine.memory.rise import Failure, MemoryRise, failed_rise, rise_of
from frd.engine.memory.walk.levels import BATCH_NS, NOISE, REVEALED_NS, SECOND, WINDOW_NS
from frd.engine.memory.walk.rank_rise import FOREVER, RankRise
from frd.engine.memory.walk.recent import BIN_NS
from frd.engine.memory.walk.series import SETTLED_NS, Series
from frd.model import AlignedNs, Int64s, Kind


class Incidents:
    """The incidents over the series of one attempt, whose `incident` column it keeps."""

    def __init__(
        self, series: Series, decisions: Decisions, leaks: Leaks, numbers: Iterator[int]
    ) -> None:
        self._series = series
        self._decisions = decisions
        self._leaks = leaks
        self._numbers = numbers
        self._known: list[MemoryIncident] = []
        """Those that are not over."""
        self._failures: list[Failure] = []

    def add_failure(self, failure: Failure) -> None:
        self._failures.append(failure)

    def update(self, now: AlignedNs) -> list[MemoryIncident]:
        """The incidents that there are, and those that are over since the last call. Cheap while
        nothing rises or fails."""
        series = self._series
        if not (self._known or self._failures or series.rising[: series.count].any()):
            return []
        for on_host in (False, True):
            covered = Coverage(series, on_host)
            self._take_failures(covered, on_host, now)
            for incident in self._on(on_host):
                self._update_incident(incident, covered)
            self._add_new(covered, on_host)
            self._add_others(on_host)
        found = self._known
        for incident in found:
            if not incident.drop_forecasts(series.is_flat):  # else first the text, then the end
                incident.over = incident.over or self._over(incident, now)
        self._known = [incident for incident in found if not incident.over]
        return found

    def _on(self, on_host: bool) -> list[MemoryIncident]:
        return [one for one in self._known if not one.over and one.on_host == on_host]

    # -- new incidents -----------------------------------------------------------------------

    def _add_new(self, covered: Coverage, on_host: bool) -> None:
        """Decided rises that alarm and belong to no incident."""
        free = self._free(on_host)
        for decision, rises in free:
            alarming = [one for one in rises if one.alarming_at < FOREVER and not one.incident]
            of_leaks = [one for one in alarming if self._leaks.take(one)]
            if len(of_leaks) < len(alarming):
                self._new(*self._cause(decision, rises, free), covered, Kind.MEMORY_SPIKE)

    def _free(self, on_host: bool) -> list[tuple[Decision, list[RankRise]]]:
        """Decisions by onset, each with those of its rises that belong to no incident; of those
        that began during warm-up only what alarms."""
        free = []
        for decision in sorted(self._decisions.decided, key=lambda one: one.lo):
            rises = [
                one
                for one in decision.rises
                if one.on_host == on_host
                and not one.incident
                and (not one.young or one.alarming_at < FOREVER)
            ]
            if rises:
                free.append((decision, rises))
        return free

    def _cause(
        self,
        decision: Decision,
        rises: list[RankRise],
        free: Iterable[tuple[Decision, list[RankRise]]],
    ) -> tuple[Decision, list[RankRise]]:
        """The first of the rises that are linked with these, and not much smaller."""
        lead, begin = max(map(self._gain, rises)), min(one.lo for one in rises)
        for before, of_before in free:
            if _is_linked(of_before, begin) and self._matters(of_before, lead):
                return before, of_before
        return decision, rises

    def _matters(self, rises: Iterable[RankRise], lead: int) -> bool:
        """They may be the cause of a rise of `lead` bytes: they alarm, are not much smaller, or
        go on at a pace that memory does not last for long."""
        series = self._series
        for one in rises:
            gain = self._gain(one)
            if one.alarming_at < FOREVER or gain >= COMPARABLE * lead:
                return True
            row = np.array([one.row])
            pace = gain / max(int(series.end[one.row]) - one.lo, 1)
            lasts_ns = int(series.headroom(row)[0]) / max(pace, 1 / WINDOW_NS)
            if one.end == FOREVER and lasts_ns <= NOISE * WINDOW_NS:
                return True
        return False

    def _gain(self, one: RankRise) -> int:
        """How far the rank has risen since, with what went on from there."""
        goes_on = self._series.rising[one.row]
        return max(one.peak, int(self._series.peak[one.row]) if goes_on else 0) - one.high

    def _new(
        self, decision: Decision, first: Sequence[RankRise], covered: Coverage, kind: Kind
    ) -> MemoryIncident:
        """A new incident, whose first causes are these rises."""
        limit = min(one.hi for one in first)
        incident = MemoryIncident(
            number=next(self._numbers),
            kind=kind,
            on_host=first[0].on_host,
            limit=limit,
            common=decision.outcome is Outcome.TOGETHER and len(first) == len(decision.rises),
            last=max(one.lo for one in first),
            decision=decision,
        )
        self._known.append(incident)
        self._name(incident, first)
        alive = set(covered.rank[covered.is_alive(limit)].tolist())
        silent = alive & set(covered.rank[~covered.saw(limit)].tolist())
        incident.unknown = (silent | decision.doubtful) - incident.rows.keys()
        lead = min(one.gain for one in first)
        incident.is_certain = covered.highest_band * NOISE <= lead or covered.is_complete(
            limit + REVEALED_NS
        )
        incident.leak = kind is Kind.MEMORY_SPIKE and all(map(_is_leak, incident.rises.values()))
        self._update_incident(incident, covered)
        return incident

    def _name(self, incident: MemoryIncident, rises: Iterable[RankRise]) -> None:
        """Name ranks that may have risen first."""
        rises = sorted(rises, key=lambda one: one.hi)
        for one in rises:
            is_new = one.rank not in incident.rows
            if is_new and incident.name(one.rank, one.row, self._series.policy.max_suspects):
                onset = (one.lo, one.hi)
                incident.rises[one.rank] = rise_of(self._series, one.row, onset, ())
        self._mark(incident, rises)

    def _mark(self, incident: MemoryIncident, rises: Collection[RankRise]) -> None:
        """These rises belong to the incident, in whichever series of their ranks."""
        for one in rises:
            one.incident = incident.number
        incident.last = max(incident.last, *(one.lo for one in rises))
        incident.members += rises
        series = self._series
        n = series.count
        rows_of_ranks = series.rising[:n] & (series.on_host[:n] == incident.on_host)
        rows_of_ranks &= np.isin(series.rank[:n], [one.rank for one in rises])
        rows_of_ranks &= ~series.is_others(np.arange(n))
        series.incident[:n][rows_of_ranks] = incident.number

    # -- what comes later --------------------------------------------------------------------

    def _update_incident(self, incident: MemoryIncident, covered: Coverage) -> None:
        """Add ranks that rise now; drop unknown ranks whose new samples show no earlier rise."""
        if incident.of_others or (incident.leak and incident.decision is None):
            return
        lead = max((rise.risen_bytes for rise in incident.rises.values()), default=0)
        for decision, rises in self._free(incident.on_host):
            if min(one.lo for one in rises) > incident.last + WINDOW_NS:
                break
            early = decision is incident.decision or (
                min(one.lo for one in rises) <= incident.limit
                and max(one.hi for one in rises) >= incident.limit - WINDOW_NS
            )
            if early and self._matters(rises, lead):
                self._name(incident, rises)
            elif not early:
                incident.victims.update(one.rank for one in rises)
                incident.victims -= incident.rows.keys()
                self._mark(incident, rises)
        soon = {one.rank for one in incident.members if one.lo <= incident.limit + REVEALED_NS}
        alive = np.count_nonzero(covered.is_alive(incident.limit))
        nearly_all = len(soon) > 2 and len(soon) >= NEARLY_ALL * alive
        incident.nearly_all_rose |= bool(nearly_all)
        early_ones = self._decisions.may_be_earlier(incident.limit)
        if not incident.is_certain:
            incident.unknown |= early_ones
            incident.is_certain = covered.is_complete(incident.limit + REVEALED_NS)
        if incident.unknown:
            seen = covered.saw(incident.limit) & (covered.newest >= incident.limit + BIN_NS)
            incident.unknown -= set(covered.rank[seen].tolist()) - early_ones
            incident.unknown -= incident.rows.keys() | incident.victims

    def _over(self, incident: MemoryIncident, now: AlignedNs) -> str:
        """Why the incident is over; empty while it is not."""
        series = self._series
        rows = np.array([row for row in incident.rows.values() if row >= 0], np.int64)
        if now < incident.keep_until or bool((series.incident[rows] == incident.number).any()):
            return ""
        lasted = f"{SETTLED_NS // SECOND} s"
        if not len(rows):
            return f"no allocation has failed for {lasted}"
        if bool((series.value[rows] < 0).all()):
            return "its processes were replaced"
        if (series.back[rows] == 0).any():
            return f"memory has not changed for {lasted}"
        return "memory fell back"

    # -- what others take --------------------------------------------------------------------

    def _taken(self, on_host: bool) -> Int64s:
        """Rows of devices and cgroups that processes of no rank fill; one for each rank."""
        series = self._series
        n = series.count
        row = np.flatnonzero(series.rising[:n] & (series.on_host[:n] == on_host))
        row = row[series.is_others(row)]
        row = row[2 * series.taken_by_others(row) > series.gain(row)]
        return row[np.unique(series.rank[row], return_index=True)[1]]

    def _add_others(self, on_host: bool) -> None:
        """What others take is said only when it will run out soon."""
        series, row = self._series, self._taken(on_host)
        known = next((one for one in self._on(on_host) if one.of_others), None)
        due = (series.reportable_at[row] > 0) & series.runs_out(row, series.headroom(row))
        if known is None and due.any():
            known = self._new_of_others(row, on_host, Kind.MEMORY_SPIKE)
        if known is not None:
            for one in row.tolist():
                self._name_other(known, one)

    def _new_of_others(self, row: Int64s, on_host: bool, kind: Kind) -> MemoryIncident:
        incident = MemoryIncident(
            number=next(self._numbers),
            kind=kind,
            on_host=on_host,
            limit=int(self._series.hi[row].min()),
            of_others=True,
            is_known=bool((self._series.own[row] >= 0).any()),
            is_certain=True,
        )
        self._known.append(incident)
        for one in row.tolist():
            self._name_other(incident, one)
        return incident

    def _name_other(self, incident: MemoryIncident, row: int) -> None:
        series, rank = self._series, int(self._series.rank[row])
        series.incident[row] = incident.number
        onset = (int(series.lo[row]), int(series.hi[row]))
        incident.last = max(incident.last, onset[0])
        if rank not in incident.rows and incident.name(rank, row, series.policy.max_suspects):
            incident.rises[rank] = rise_of(series, row, onset, ())

    # -- failures ----------------------------------------------------------------------------

    def _take_failures(self, covered: Coverage, on_host: bool, now: AlignedNs) -> None:
        """Turn failed allocations and kills into an OOM, after a short wait for other ranks."""
        ripe: list[Failure] = []
        early: list[Failure] = []
        for failure in self._failures:
            is_ripe = failure.on_host == on_host and now - failure.reported_at >= BATCH_NS
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
            for incident in self._on(on_host)
            if at <= incident.last + WINDOW_NS or incident.rows.keys() & by_rank.keys()
        ]
        related.sort(key=lambda incident: (incident.kind is not Kind.OOM, incident.of_others))
        incident = related[0] if related else self._new_oom(covered, on_host, at, by_rank)
        if incident.kind is not Kind.OOM:
            incident = self._foreseen_oom(incident)
        for rank, failures in by_rank.items():
            self._ran_out(incident, rank, failures)
        incident.last = max(incident.last, at)
        incident.keep_until = at + SETTLED_NS

    def _new_oom(
        self, covered: Coverage, on_host: bool, at: int, by_rank: dict[int, list[Failure]]
    ) -> MemoryIncident:
        """An OOM that no incident has foreseen; ranks may have risen before, or other processes
        where they ran out."""
        lead = max(map(_requested, by_rank.values()))
        for decision, rises in self._free(on_host):
            if _is_linked(rises, at) and self._matters(rises, lead):
                return self._new(decision, rises, covered, Kind.OOM)
        taken = self._taken(on_host)
        if np.isin(list(by_rank), self._series.rank[taken]).all():
            return self._new_of_others(taken, on_host, Kind.OOM)
        limit = min(one.onset[1] for failures in by_rank.values() for one in failures)
        first = [rank for rank, ones in by_rank.items() if _first(ones).onset[0] <= limit]
        alive = set(covered.rank[covered.is_alive(limit)].tolist()) | by_rank.keys()
        incident = MemoryIncident(
            number=next(self._numbers),
            kind=Kind.OOM,
            on_host=on_host,
            limit=limit,
            common=len(alive) > 1 and len(first) >= NEARLY_ALL * len(alive),
        )
        self._known.append(incident)
        return incident

    def _foreseen_oom(self, spike: MemoryIncident) -> MemoryIncident:
        """Memory that was rising has run out: an OOM replaces the spike."""
        oom = replace(spike, number=next(self._numbers), kind=Kind.OOM)
        self._known.append(oom)
        spike.over = RAN_OUT
        self._series.incident[self._series.incident == spike.number] = oom.number
        for one in oom.members:
            one.incident = oom.number
        return oom

    def _ran_out(self, incident: MemoryIncident, rank: int, failures: list[Failure]) -> None:
        incident.failed.add(rank)
        onset = _first(failures).onset
        if rank not in incident.rows and onset[0] > incident.limit:
            incident.victims.add(rank)
        elif rank not in incident.rows:
            if incident.name(rank, -1, self._series.policy.max_suspects):
                incident.rises[rank] = failed_rise(rank, onset, failures)
        elif rank in incident.rises:
            row, rise = incident.rows[rank], incident.rises[rank]
            if row >= 0 and self._series.incident[row] == incident.number:
                rise = rise_of(self._series, row, rise.onset, failures)
            asked = _requested(failures)
            incident.rises[rank] = replace(rise, out_of_memory=True, requested_bytes=asked)


def _is_linked(rises: Iterable[RankRise], at: int) -> bool:
    """What happened then may be a consequence of rises before."""
    return any(one.back > at and at - min(one.end, at) <= WINDOW_NS for one in rises)


def _is_leak(rise: MemoryRise) -> bool:
    """It has risen slowly, for long, at a rate that is the present one."""
    at_this_rate, risen = rise.bytes_per_s * rise.took_s, rise.risen_bytes
    slow = rise.took_s >= WINDOW_NS / SECOND
    return slow and risen / 2 <= at_this_rate <= risen * 2


def _first(failures: Iterable[Failure]) -> Failure:
    return min(failures, key=lambda failure: failure.at)


def _requested(failures: Iterable[Failure]) -> int:
    return max(failure.event.requested_bytes for failure in failures)
