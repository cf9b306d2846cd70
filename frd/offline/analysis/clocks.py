"""One clock for a folder of dumps: what to add to each rank's times, and how far that may be off.

Folders of `frd dump` have both. A node without them is compared with the others by their
collectives: of an op that no rank can complete alone, no member completed before the last
one joined. That bounds a clock's offset from both sides; in `frd.offline.analysis.clock_bounds` the
bounds travel from clocks that are known, or else from one that all others are measured by. Inside
of its bounds a clock keeps its own time, for the clocks of a cluster are usually kept right;
outside of them it is wrong, and the middle is taken. They also check the folder's values: a clock
that contradicts them is unsynchronized, and nothing follows from its times being before or after
another's.

Ranks of one node (by boot id) share a clock; without identities each rank has its own. The times of
one rank among themselves never change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from frd.engine.matching.signature_rules import is_synchronizing
from frd.flight.trace import RankTrace
from frd.forms import span_text
from frd.model import AlignedNs, Int64s
from frd.offline.analysis.clock_bounds import FAR, Bounds, Samples, bound
from frd.offline.analysis.rows import Rows

_ENOUGH = 32
"""Completed collectives of each (rank, series) that are looked at: the latest."""
_KEPT_NS = 25_000_000
"""A clock of which nothing is known and that nothing contradicts is taken to be kept this well."""
_DRIFT = 100e-6
"""How fast a clock may go astray while nothing compares it."""


@dataclass(frozen=True, slots=True)
class Domain:
    """Ranks that share one clock."""

    name: str
    """The node, or ``rank 7`` if its node is unknown."""
    ranks: tuple[int, ...]
    offset_ns: int
    """To add to its times."""
    uncertainty_ns: int | None
    """How far off the offset is at most; None where nothing bounds it."""
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
    """Where they come from and how exact they are, for people."""

    slack_ns: Mapping[int, int]
    """By rank: how far off its clock is taken to be where orders must not be wrong, but too little
    is known of most clocks to refuse all of them."""

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
    members = _members({rank: one.trace for rank, one in rows.ranks.items()})
    taken_at = rows.trace.taken_at
    given = [
        _given_clock([rows.ranks[rank].trace for rank in ranks], taken_at) for _, ranks in members
    ]
    if len(members) < 2:
        one = [Domain(name, ranks, given[0].offset_ns, 0) for name, ranks in members]
        return Clocks.of(one, "one node, one clock")
    return _compared(members, given, _samples(rows, members))


@dataclass(frozen=True, slots=True)
class _GivenClock:
    """The clock of a rank as stored in the folder."""

    offset_ns: int = 0
    uncertainty_ns: int | None = None
    is_given: bool = False


def _members(traces: Mapping[int, RankTrace]) -> list[tuple[str, tuple[int, ...]]]:
    """Names of clocks and the ranks that share them."""
    found: dict[str, list[RankTrace]] = {}
    for rank, trace in traces.items():
        boot_id = trace.info.boot_id if trace.info is not None else ""
        found.setdefault(boot_id or f"rank {rank}", []).append(trace)
    return [
        (
            same[0].info.node if same[0].info is not None and same[0].info.node else key,
            tuple(trace.rank for trace in same),
        )
        for key, same in found.items()
    ]


def _given_clock(traces: Sequence[RankTrace], taken_at: AlignedNs | None) -> _GivenClock:
    """The most exact value that the ranks of a node had when the dumps were taken; before that the
    clock may have drifted."""
    known = [
        _GivenClock(trace.clock_offset_ns, trace.clock_uncertainty_ns, True)
        for trace in traces
        if trace.clock_offset_ns is not None
    ]
    best = min(known, key=lambda one: _or_far(one.uncertainty_ns), default=_GivenClock())
    if best.uncertainty_ns is None or taken_at is None:
        return best
    latest = max(int(trace.created_ns.max(initial=0)) for trace in traces) + best.offset_ns
    age = max(0, taken_at - latest) if latest > best.offset_ns else 0
    return replace(best, uncertainty_ns=best.uncertainty_ns + int(age * _DRIFT))


def _or_far(uncertainty_ns: int | None) -> int:
    return int(FAR) if uncertainty_ns is None else uncertainty_ns


def _compared(
    members: Sequence[tuple[str, tuple[int, ...]]], given: Sequence[_GivenClock], samples: Samples
) -> Clocks:
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
        Domain(
            name,
            ranks,
            int(offset[at]),
            int(reach[at]) if is_bounded[at] else None,
            int(bounds.off_by_ns[at]),
        )
        for at, (name, ranks) in enumerate(members)
    ]
    return Clocks.of(domains, "; ".join(_sources(domains, given, bounds)))


def _sources(
    domains: Sequence[Domain], given: Sequence[_GivenClock], bounds: Bounds
) -> Iterator[str]:
    """For each way in which clocks are known how exact it is, and of how many."""
    ways: dict[str, list[int]] = {}
    for one, what in zip(domains, given, strict=True):
        if one.off_by_ns:
            way = "unsynchronized: contradicted by collectives"
        elif what.uncertainty_ns is not None:
            way = "given by the dump"
        elif one.uncertainty_ns is not None:
            noun = "collective" if bounds.collectives == 1 else "collectives"
            way = f"estimated from {bounds.collectives} {noun}"
        elif what.is_given:
            way = "given by the dump, without an uncertainty"
        else:
            way = "unsynchronized: no collective that completed at a known time"
        ways.setdefault(way, []).append(_or_far(one.uncertainty_ns))
    for way, reaches in ways.items():
        exact = f", ±{span_text(max(reaches))}" if max(reaches) < FAR else ""
        count = "" if len(ways) == 1 else f"{len(reaches)} clock{'s' * (len(reaches) > 1)} "
        yield f"{count}{way}{exact}"


def _samples(rows: Rows, members: Sequence[tuple[str, tuple[int, ...]]]) -> Samples:
    """Completed calls that bound clocks, each widened by what its clock may have drifted since."""
    calls = rows.calls
    clock_of = np.zeros(int(rows.pair_rank.max(initial=0)) + 1, np.int64)
    for number, (_, ranks) in enumerate(members):
        clock_of[list(ranks)] = number
    synchronizing = np.array([is_synchronizing(s.op) for s in rows.signatures], np.bool_)
    none = np.empty(0, np.int64)
    if not len(calls):
        return Samples(none, none, none, none)
    series = rows.pair_series[calls.pair]
    newest = np.full(len(rows.pair_rank), np.int64(-1))
    np.maximum.at(newest, calls.pair, calls.seq)
    last = np.full(len(rows.series), FAR)
    np.minimum.at(last, series, newest[calls.pair])  # that all who recorded any have come to
    age = last[series] - calls.seq
    use = (calls.completed_ns > 0) & (calls.created_ns > 0) & (age >= 0) & (age < _ENOUGH)
    at = np.flatnonzero(use & synchronizing[calls.signature])
    clock: Int64s = clock_of[rows.pair_rank[calls.pair[at]]]
    joined, completed = calls.created_ns[at], calls.completed_ns[at]
    latest = np.zeros(len(members), np.int64)
    np.maximum.at(latest, clock, completed)
    drift = ((latest[clock] - joined) * _DRIFT).astype(np.int64)
    collective = series[at].astype(np.int64) * _ENOUGH + age[at]
    return Samples(clock, collective, joined - drift, completed + drift)
