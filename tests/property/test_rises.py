"""Laws of rises in recorded memory, over seeded jobs with the habits of training programs.

All ranks run one program: it loads, takes activations step by step, fills a cache in blocks,
evaluates. On top of that one rank rises, and others may follow. Samplers jitter, are out of step,
start late, or stall; clocks of two hosts differ within their uncertainty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
import pytest

from frd.engine.memory.decisions import Decisions
from frd.engine.memory.rank_rise import FOREVER, RankRise
from frd.engine.memory.rises import Rise
from frd.model import Confidence, Float64s, Int64s
from frd.offline.memory.feed import Lane
from frd.offline.memory.rises.rises import LINK_NS, MIN_RISE_BYTES, Watched, find_rises, walk
from frd.offline.memory.rises.series import RecordedCoverage
from frd.offline.memory.samples import Recorded, Stream
from tests.world.memory import EPOCH, GIB, MIB, Curve, S, plus, ramp, saw, stairs, step
from tests.world.memory import level as steady
from tests.world.seeds import seeds

SEEDS = seeds(320)
_PART = 20
"""Seeds of one test."""
_CUTS = 12
"""Prefixes of a recording."""
_CAPACITY = 80 * GIB


@dataclass(frozen=True)
class Event:
    """A rank begins to rise."""

    at: float
    rank: int


@dataclass(frozen=True)
class Simulated:
    recorded: Recorded
    lanes: Sequence[Lane]
    events: Sequence[Event]
    uncertainty: float
    period: float

    def rises(self, end_ns: int = 1 << 62) -> list[Rise]:
        """The rises of the samples before that time."""
        watched = self._watched(end_ns)
        return [rise for rise, _ in find_rises(self.recorded, watched, MIN_RISE_BYTES, 0)]

    def walked(self) -> tuple[list[RankRise], RecordedCoverage]:
        """The rises of single ranks, in the order in which they are seen."""
        found = walk(self.recorded, self._watched(), MIN_RISE_BYTES, 0)
        rises = sorted(found.rises, key=lambda one: one.seen)
        return rises, RecordedCoverage(found.samples, round(self.uncertainty * S))

    def _watched(self, end_ns: int = 1 << 62) -> Watched:
        lanes = [lane for lane in (self._before(lane, end_ns) for lane in self.lanes) if len(lane)]
        return Watched(
            lanes=lanes,
            missing=sorted(
                {one.stream.rank for one in self.lanes} - {x.stream.rank for x in lanes}
            ),
            clock_uncertainty_ns=round(self.uncertainty * S),
            findings=(),
        )

    def _before(self, lane: Lane, end_ns: int) -> Lane:
        at = self.recorded.begin_ns[lane.rows]
        count = int(at.searchsorted(end_ns))
        rows = slice(lane.rows.start, lane.rows.start + count)
        return replace(lane, rows=rows, last_ns=int(at[count - 1]) if count else 0)


class Dice:
    """One seeded job."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = np.random.default_rng(seed)
        self.ranks = int(rng.choice([2, 3, 4, 4, 8, 16]))
        self.period = float(rng.choice([0.02, 0.1, 0.1, 1.0]))
        self.until = self.period * int(rng.integers(20, 60 if rng.random() < 0.4 else 400))
        self._habit = str(rng.choice(["flat", "noise", "steps", "cache", "eval"]))
        self._loads = rng.random() < 0.4
        self._load = rng.uniform(1, 15), rng.uniform(0.02, 0.2) * self.until
        self._gib = rng.uniform(0.1, 5)
        self._beat = rng.uniform(5, 40) * self.period
        self._base = rng.uniform(5, 40)

    def program(self, rank: int) -> Curve:
        """What every rank does; only the jitter is the rank's."""
        rng = self._rng
        curves = [steady(self._base)]
        if self._loads:
            size, took = self._load
            curves.append(ramp(rng.uniform(0, 0.1) * took, size / took, size))
        match self._habit:
            case "noise":
                spread, seed = self._gib * 10 * MIB, int(rng.integers(1 << 30))
                curves.append(lambda t: np.random.default_rng(seed).normal(0, spread, len(t)))
            case "steps":
                curves.append(saw(self._gib, self._beat * rng.uniform(0.98, 1.02)))
            case "cache":
                curves.append(_cache(self._gib * rng.uniform(0.98, 1.02), self.until / 8))
            case "eval":
                late = rng.uniform(0, 0.1)
                starts = np.arange(0.2, 1, 0.25) * self.until + late
                curves += [step(at, self._gib, at + self._beat / 2) for at in starts]
        return plus(*curves)

    def rise(self, at: float) -> Curve:
        """Twice as large as what the program does."""
        rng, period = self._rng, self.period
        gib = rng.uniform(0.3, 8) + 2 * self._gib
        match int(rng.integers(4)):
            case 0:
                return step(at, gib)
            case 1:
                return ramp(at, gib / (period * rng.uniform(3, 60)), gib)
            case 2:
                return stairs(at, gib / 5, period * rng.uniform(2, 12))
            case _:
                return step(at, gib, at + period * rng.uniform(1.2, 15))

    def job(self) -> Simulated:
        rng = self._rng
        wide = max(5 * self.period, 0.1)
        uncertainty = float(rng.choice([0, 0, 0.01, 0.3])) * wide
        error = rng.uniform(-uncertainty, uncertainty, 2)
        curves = [self.program(rank) for rank in range(self.ranks)]
        events = self._events(uncertainty)
        for event in events:
            curves[event.rank] = plus(curves[event.rank], self.rise(event.at))
        times = [self._times() for _ in curves]
        values = [
            curve(at).clip(0, _CAPACITY).astype(np.int64)
            for curve, at in zip(curves, times, strict=True)
        ]
        read = [
            EPOCH + np.round((at + error[rank * 2 // self.ranks]) * S).astype(np.int64)
            for rank, at in enumerate(times)
        ]
        return Simulated(*_recorded(read, values), events, uncertainty, self.period)

    def _events(self, uncertainty: float) -> list[Event]:
        rng = self._rng
        if rng.random() < 0.15:
            return []
        first = Event(self.until * rng.uniform(0.3, 0.85), int(rng.integers(self.ranks)))
        later = first.at + rng.uniform(0.2, 12) * self.period + 2 * uncertainty
        followers = [rank for rank in range(self.ranks) if rank != first.rank]
        return [first] + [
            Event(later + rng.uniform(0, 20) * self.period, rank)
            for rank in followers
            if rng.random() < 0.3
        ]

    def _times(self) -> Float64s:
        rng, period = self._rng, self.period
        at = np.arange(rng.random() * period, self.until, period)
        at = np.sort(at + rng.uniform(0, 0.3 * period, len(at)))
        match int(rng.integers(12)):
            case 0:
                return at[at >= 0.2 * self.until]
            case 1:
                begin = rng.uniform(0.2, 0.9) * self.until
                return at[(at < begin) | (at > begin + rng.uniform(2, 40) * period)]
            case _:
                return at


def _cache(gib: float, tau: float) -> Curve:
    """An allocator fills its cache in blocks of 20 MiB, ever more slowly."""
    block = 20 * MIB
    return lambda t: np.floor(gib * GIB * -np.expm1(-t / tau) / block) * block


def _recorded(read: Sequence[Int64s], values: Sequence[Int64s]) -> tuple[Recorded, list[Lane]]:
    streams = [Stream("job", rank, "node", 1, "", rank, False) for rank in range(len(read))]
    bounds = np.cumsum([0, *map(len, read)]).tolist()
    lanes = [
        Lane(stream, slice(*bounds[rank : rank + 2]), _CAPACITY, int(at[0]), int(at[-1]))
        for rank, (stream, at) in enumerate(zip(streams, read, strict=True))
    ]
    begin, used = np.concatenate(read), np.concatenate(values)
    none = np.full(len(used), -1)
    recorded = Recorded(
        streams=streams,
        capacity=np.full(len(streams), _CAPACITY),
        stream=np.repeat(np.arange(len(read), dtype=np.int32), list(map(len, read))),
        begin_ns=begin,
        end_ns=begin,
        values=np.column_stack((none, none, used)),
        bin_ns=0,
        ooms=[],
        world_size={},
        others=Counter(),
        refused=Counter(),
        later_versions=[],
        marks=[],
        origin=np.full(len(used), -1, np.int32),
        origins=[],
    )
    return recorded, lanes


def _suspects(rises: Sequence[Rise]) -> list[set[int]]:
    """Of the rises that name any, in order."""
    return [{one.rank for one in rise.suspects} for rise in rises if rise.suspects]


@pytest.mark.parametrize("part", range(SEEDS // _PART))
def test_high_confidence_is_a_promise(part: int) -> None:
    """A rank that is named with high confidence has risen, and began to within its interval."""
    for seed in range(part * _PART, (part + 1) * _PART):
        job = Dice(seed).job()
        slack = job.uncertainty + 3 * job.period
        for rise in job.rises():
            assert len(_suspects([rise])) == bool(rise.suspects)
            assert len({one.rank for one in rise.suspects}) == len(rise.suspects)
            if rise.suspects and rise.suspects[0].confidence is Confidence.HIGH:
                earliest, latest = ((at - EPOCH) / S for at in rise.onset)
                assert any(
                    (one.rank,) == rise.ranks and earliest - slack <= one.at <= latest + slack
                    for one in job.events
                ), (seed, rise, job.events)


@pytest.mark.parametrize("part", range(SEEDS // _PART))
def test_a_prefix_names_no_rank_that_the_rest_takes_back(part: int) -> None:
    """Each job is cut off at a dozen times: what is said of any rank stays so."""
    for seed in range(part * _PART, (part + 1) * _PART):
        job = Dice(seed).job()
        whole = _suspects(job.rises())
        times = np.unique(job.recorded.begin_ns)
        for end_ns in times[1 :: max(1, len(times) // _CUTS)].tolist():
            found = _suspects(job.rises(end_ns))
            assert not found or (whole and found[0] <= whole[0]), (seed, end_ns, found, whole)
            assert all(any(one <= other for other in whole) for one in found), (seed, end_ns)


@dataclass
class Known:
    """`Coverage` by samples up to a horizon, and rises as these samples show them."""

    coverage: RecordedCoverage
    horizon: int

    @property
    def ranks(self) -> int:
        return self.coverage.ranks

    def gap(self, rank: int) -> int:
        return self.coverage.gap(rank)

    def shown_at(self, when: int, but: Set[int]) -> int:
        known = self.coverage.shown_at(when, but)
        return known if known <= self.horizon else FOREVER

    def silent_at(self, when: int) -> set[int]:
        return self.coverage.silent_at(when)

    def update(self, one: RankRise, whole: RankRise) -> None:
        """`one` is `whole` as of the horizon."""
        for name in ("established", "ready", "sized", "end", "back"):
            at = getattr(whole, name)
            setattr(one, name, at if at <= self.horizon else FOREVER)
        one.size = whole.size if whole.sized <= self.horizon else whole.size // 2
        if whole.ready > self.horizon:
            one.lo, one.hi = whole.lo_when_seen, whole.seen
        elif one.lo == whole.lo_when_seen:
            one.lo, one.hi = whole.lo, whole.hi


def _decided(job: Simulated, horizons: Iterable[int]) -> list[object]:
    """What is decided if the judge is asked for each of these horizons."""
    rises, coverage = job.walked()
    known = Known(coverage, 0)
    decisions = Decisions(LINK_NS)
    alive: list[tuple[RankRise, RankRise]] = []
    for known.horizon in (*horizons, coverage.newest):
        new = [(replace(one), one) for one in rises[len(alive) :] if one.seen <= known.horizon]
        alive += new
        for one, whole in alive:
            known.update(one, whole)
        decisions.advance(known.horizon, [one for one, _ in new], known)
    return [
        (one.outcome, one.ranks, one.lo, one.limit, one.doubtful, one.silent, one.raised)
        + (one.follows, one.cause)
        for one in decisions.decided
    ]


@pytest.mark.parametrize("part", range(SEEDS // _PART))
def test_decisions_do_not_depend_on_when_they_are_asked_for(part: int) -> None:
    """Each job is judged once at its end, at random times, and at many times."""
    for seed in range(part * _PART, (part + 1) * _PART):
        job = Dice(seed).job()
        times = np.unique(job.recorded.begin_ns)
        rng = np.random.default_rng(seed)
        some = np.sort(rng.choice(times, min(_CUTS, len(times)), replace=False))
        whole = _decided(job, ())
        assert _decided(job, some.tolist()) == whole, seed
        assert _decided(job, times[:: max(1, len(times) // (4 * _CUTS))].tolist()) == whole, seed
