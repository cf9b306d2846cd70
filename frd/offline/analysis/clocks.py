"""One clock for a folder of dumps: what to add to each rank's times, and how far that may be off.

Folders of `frd dump` have both. A node without them is compared with the others by their
collectives: if no rank can complete an op alone, no member completed it before the last one joined.
With offsets o to add to a clock's times, ``joined_i + o_i <= completed_j + o_j`` for all members i
and j, which bounds a clock's offset from both sides. Bounds propagate from known clocks, or else
from one reference clock, to clocks that share an op with them, for a few rounds; intervals only
shrink. If an interval would be empty, a clock is wrong or has stepped: the clocks that most others
contradict are left out, and the rest start again.

Within its bounds a clock keeps its own time, because the clocks of a cluster are usually
synchronized; outside of them it is wrong, and the middle is taken. The bounds also check the
folder's values: a clock that contradicts them is unsynchronized, and its times are not compared
with those of other clocks.

Ranks of one node (by boot id) share a clock; without identities each rank has its own. The times of
one rank among themselves never change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from frd.engine.findings import builder, headlines, text
from frd.flight.trace import RankTrace
from frd.forms import span_text
from frd.model import AlignedNs, Bools, Finding, FindingState, Float64s, Int64s, Kind
from frd.offline.analysis.rows import Rows

FAR = np.int64(1 << 61)
"""Beyond any time in nanoseconds since the epoch; a difference with one still fits."""
_ROUNDS = 8
"""Rounds of propagation."""
_TRIALS = 16
"""How often the worst clocks are left out, before all contradicting clocks are."""
_ENOUGH = 32
"""The latest completed collectives of each (rank, series) that are used."""
_KEPT_NS = 25_000_000
"""Assumed uncertainty of a clock without bounds that nothing contradicts."""
_DRIFT = 100e-6
"""Drift of a clock since its last comparison, at most."""


@dataclass(frozen=True, slots=True)
class Domain:
    """Ranks that share one clock."""

    name: str
    """The node, or ``rank 7`` if its node is unknown."""
    ranks: tuple[int, ...]
    offset_ns: int = 0
    """To add to its times."""
    uncertainty_ns: int | None = None
    """How far off the offset is at most; None where nothing bounds it."""
    is_given: bool = False
    """The folder has the offset."""
    off_by_ns: int = 0
    """Not 0: collectives prove it wrong, at least by this."""

    @property
    def slack_ns(self) -> int:
        if self.off_by_ns:
            return int(FAR)
        return _KEPT_NS if self.uncertainty_ns is None else self.uncertainty_ns


@dataclass(frozen=True, slots=True)
class Clocks:
    domains: Sequence[Domain]
    offset_ns: Mapping[int, int]
    """By rank."""
    uncertainty_ns: Mapping[int, int | None]
    """By rank."""
    source: str
    """Source of the offsets and how exact they are, for people."""

    slack_ns: Mapping[int, int]
    """By rank: assumed uncertainty, for comparisons that must not be wrong but cannot do without
    clocks that nothing bounds."""

    @classmethod
    def of(cls, domains: Sequence[Domain], source: str) -> Clocks:
        return cls(
            domains,
            {rank: one.offset_ns for one in domains for rank in one.ranks},
            {rank: one.uncertainty_ns for one in domains for rank in one.ranks},
            source,
            {rank: one.slack_ns for one in domains for rank in one.ranks},
        )


def clocks_of(rows: Rows) -> Clocks:
    given = list(_given_clocks(rows))
    if len(given) < 2:
        return Clocks.of([replace(one, uncertainty_ns=0) for one in given], "one node, one clock")
    return _compared(given, _samples(rows, given))


def _given_clocks(rows: Rows) -> Iterator[Domain]:
    """The clocks as stored in the folder; ranks of one boot of a node share one."""
    found: dict[str, list[RankTrace]] = {}
    for rank, one in rows.ranks.items():
        boot_id = one.trace.info.boot_id if one.trace.info is not None else ""
        found.setdefault(boot_id or f"rank {rank}", []).append(one.trace)
    for key, traces in found.items():
        info = traces[0].info
        name = info.node if info is not None and info.node else key
        domain = Domain(name, tuple(trace.rank for trace in traces))
        yield _most_exact(domain, traces, rows.trace.taken_at)


def _most_exact(domain: Domain, traces: Sequence[RankTrace], taken_at: AlignedNs | None) -> Domain:
    """With the most exact value that a rank of the node had when the dumps were taken; before that
    the clock may have drifted."""
    known = [
        replace(domain, offset_ns=offset, uncertainty_ns=trace.clock_uncertainty_ns, is_given=True)
        for trace in traces
        if (offset := trace.clock_offset_ns) is not None
    ]
    best = min(known, key=lambda one: _or_far(one.uncertainty_ns), default=domain)
    if best.uncertainty_ns is None or taken_at is None:
        return best
    latest = max(int(trace.created_ns.max(initial=0)) for trace in traces) + best.offset_ns
    age = max(0, taken_at - latest) if latest > best.offset_ns else 0
    return replace(best, uncertainty_ns=best.uncertainty_ns + int(age * _DRIFT))


def _or_far(uncertainty_ns: int | None) -> int:
    return int(FAR) if uncertainty_ns is None else uncertainty_ns


def _compared(given: Sequence[Domain], samples: Samples) -> Clocks:
    centre = np.array([one.offset_ns for one in given], np.int64)
    known = np.array([one.uncertainty_ns is not None for one in given])
    reach = np.array([_or_far(one.uncertainty_ns) for one in given], np.int64)
    low, high = np.where(known, centre - reach, -FAR), np.where(known, centre + reach, FAR)
    bounds = bound(centre, low, high, samples)
    inside = (bounds.low <= centre) & (centre <= bounds.high)
    is_bounded = (bounds.low > -FAR) & (bounds.high < FAR)
    middle = bounds.low + (bounds.high - bounds.low) // 2
    offset = np.where(inside | ~is_bounded, np.clip(centre, bounds.low, bounds.high), middle)
    reach = np.maximum(offset - bounds.low, bounds.high - offset)
    domains = [
        replace(
            one,
            offset_ns=int(offset[at]),
            uncertainty_ns=int(reach[at]) if is_bounded[at] else None,
            off_by_ns=int(bounds.off_by_ns[at]),
        )
        for at, one in enumerate(given)
    ]
    return Clocks.of(domains, "; ".join(_sources(domains, given, bounds)))


def _sources(domains: Sequence[Domain], given: Sequence[Domain], bounds: Bounds) -> Iterator[str]:
    """For each source of offsets: how exact it is, and how many clocks it has."""
    ways: dict[str, list[int]] = {}
    for one, what in zip(domains, given, strict=True):
        if one.off_by_ns:
            way = "unsynchronized: contradicted by collectives"
        elif what.uncertainty_ns is not None:
            way = "given by the dump"
        elif one.uncertainty_ns is not None:
            noun = "collective" if bounds.collectives == 1 else "collectives"
            way = f"estimated from {bounds.collectives} {noun}"
        elif one.is_given:
            way = "given by the dump, without an uncertainty"
        else:
            way = "unsynchronized: no collective that completed at a known time"
        ways.setdefault(way, []).append(_or_far(one.uncertainty_ns))
    for way, reaches in ways.items():
        exact = f", ±{span_text(max(reaches))}" if max(reaches) < FAR else ""
        count = "" if len(ways) == 1 else f"{len(reaches)} clock{'s' * (len(reaches) > 1)} "
        yield f"{count}{way}{exact}"


def _samples(rows: Rows, domains: Sequence[Domain]) -> Samples:
    """Completed calls that bound clocks, each widened by the drift of its clock since."""
    calls = rows.calls
    ranks = [rank for domain in domains for rank in domain.ranks]  # also some without a group
    clock_of = np.zeros(max([int(rows.pair_rank.max(initial=0)), *ranks]) + 1, np.int64)
    for number, domain in enumerate(domains):
        clock_of[list(domain.ranks)] = number
    series = rows.pair_series[calls.pair]
    newest = np.full(len(rows.pair_rank), np.int64(-1))
    np.maximum.at(newest, calls.pair, calls.seq)
    last = np.full(len(rows.series), FAR)
    np.minimum.at(last, series, newest[calls.pair])  # that all ranks with calls have joined
    age = last[series] - calls.seq
    use = ~calls.weak & (calls.completed_ns > 0) & (calls.created_ns > 0)
    use &= (age >= 0) & (age < _ENOUGH)
    at = np.flatnonzero(use & rows.synchronizing[calls.signature])
    clock: Int64s = clock_of[rows.pair_rank[calls.pair[at]]]
    joined, completed = calls.created_ns[at], calls.completed_ns[at]
    latest = np.zeros(len(domains), np.int64)
    np.maximum.at(latest, clock, completed)
    drift = ((latest[clock] - joined) * _DRIFT).astype(np.int64)
    collective = series[at].astype(np.int64) * _ENOUGH + age[at]
    return Samples(clock, collective, joined - drift, completed + drift)


def clock_findings(rows: Rows, clocks: Clocks, now: AlignedNs) -> Iterator[Finding]:
    """A finding for each clock that contradicts the collectives."""
    key = rows.trace.key
    for domain in clocks.domains:
        if not domain.off_by_ns:
            continue
        node = text.clean(domain.name)
        whose = "" if node == text.ranks(domain.ranks) else f" ({text.ranks(domain.ranks)})"
        found = Finding(
            id=builder.finding_id(key, Kind.CLOCK_UNSYNCHRONIZED, domain.name, now),
            kind=Kind.CLOCK_UNSYNCHRONIZED,
            state=FindingState.OPEN,
            job=key.job,
            attempt=key.attempt,
            opened_at=now,
            headline=f"the clock of {node}{whose} is wrong or has stepped",
            effect=f"by {span_text(domain.off_by_ns)} or more as its collectives show, so times of "
            "its ranks are not compared with those of others: check its time synchronization "
            "(chrony, PTP)",
        )
        yield headlines.worded(found)


# -- bounds on the offsets of clocks, from collectives --------------------------------------------


@dataclass(frozen=True, slots=True)
class Samples:
    """Parallel columns, one row per completed call, in its own clock's time."""

    clock: Int64s
    collective: Int64s
    """Any number that calls of one collective share, from 0 on."""
    joined: Int64s
    completed: Int64s

    def __len__(self) -> int:
        return len(self.clock)

    def only(self, rows: Bools) -> Samples:
        columns = (self.clock, self.collective, self.joined, self.completed)
        return Samples(*(column[rows] for column in columns))

    @property
    def collectives(self) -> int:
        """How many of them involve two clocks."""
        one, other = np.full((2, int(self.collective.max(initial=-1)) + 1), -1)
        one[self.collective] = self.clock
        other[self.collective[::-1]] = self.clock[::-1]
        return int((one != other).sum())


@dataclass(frozen=True, slots=True)
class Bounds:
    """By clock; `low` is -`FAR` and `high` is `FAR` where nothing bounds it."""

    low: Int64s
    high: Int64s
    off_by_ns: Int64s
    """The least error of a clock that fits no offset, whose bounds are then open; else 0."""
    collectives: int
    """How many were used."""


def bound(given: Int64s, low: Int64s, high: Int64s, samples: Samples) -> Bounds:
    """Offsets within ``[low, high]``, narrowed by collectives.

    If no offset is bounded, offsets count from the clock with the most samples, which
    keeps its `given` offset.
    """
    clocks = len(low)
    off_by = np.zeros(clocks, np.int64)
    for trial in range(_TRIALS + 1):
        used = samples.only(off_by[samples.clock] == 0)
        lows, highs = np.where(off_by, -FAR, low), np.where(off_by, FAR, high)
        base = -1
        if len(used) and (lows == -FAR).all():
            base = int(np.bincount(used.clock).argmax())
            lows[base] = highs[base] = given[base]
        found = _settle(lows, highs, used)
        if not found.is_crossed.any():
            break
        faulty = found.is_crossed if trial == _TRIALS else _faulty(found, base)
        off_by[faulty] = int((found.low - found.high)[found.is_crossed].max())
    return Bounds(found.low, found.high, off_by, used.collectives)


@dataclass(frozen=True, slots=True)
class _Settled:
    low: Int64s
    high: Int64s
    contradictions: Float64s
    """By clock: of every impossible collective, the calls on the other side, divided by the number
    of calls on the clock's side."""

    @property
    def is_crossed(self) -> Bools:
        return self.low > self.high


def _settle(low: Int64s, high: Int64s, samples: Samples) -> _Settled:
    """Shrink until nothing changes, or two bounds cross."""
    clock, of, count = samples.clock, samples.collective, len(low)
    contradictions = np.zeros(count)
    for _ in range(_ROUNDS):
        # The last to join and the first to complete, as far as clocks are known.
        joined = np.full(int(of.max(initial=-1)) + 1, -FAR)
        ended = np.full(len(joined), FAR)
        lows, highs = low[clock], high[clock]
        np.maximum.at(joined, of, np.where(lows > -FAR, samples.joined + lows, -FAR))
        np.minimum.at(ended, of, np.where(highs < FAR, samples.completed + highs, FAR))
        before = low, high
        low, high = low.copy(), high.copy()
        least = np.where(joined[of] > -FAR, joined[of] - samples.completed, -FAR)
        most = np.where(ended[of] < FAR, ended[of] - samples.joined, FAR)
        np.maximum.at(low, clock, least)
        np.minimum.at(high, clock, most)
        if (low > high).any():
            late, early = lows > most, highs < least
            for mine, others in ((late, early), (early, late)):
                sides = [np.bincount(of[side], minlength=len(joined)) for side in (mine, others)]
                weight = sides[1][of[mine]] / sides[0][of[mine]]
                contradictions += np.bincount(clock[mine], weight, minlength=count)
            break
        if np.array_equal(before, (low, high)):
            break
    return _Settled(low, high, contradictions)


def _faulty(found: _Settled, base: int) -> Bools:
    """The clocks to leave out when bounds cross."""
    crossed = found.is_crossed
    if found.contradictions.any():
        worst: Bools = found.contradictions == found.contradictions.max()
        return worst
    reached = (found.low > -FAR) | (found.high < FAR)
    faulty = crossed.copy()
    if base >= 0 and 2 * crossed.sum() >= reached.sum():
        # Most disagree with the reference clock. Of two clocks it is unknown which is wrong.
        faulty = reached if reached.sum() == 2 else np.arange(len(crossed)) == base
    return faulty
