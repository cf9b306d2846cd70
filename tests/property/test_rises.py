"""Laws of rises in recorded memory, over seeded jobs with the habits of training programs.

All ranks run one program: it loads, takes activations step by step, fills a cache in blocks,
evaluates. On top of that one rank rises, and others may follow. Samplers jitter, are out of step,
start late, or stall; clocks of two hosts differ within their uncertainty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from frd.engine.memory.attempt_memory import Memory
from frd.engine.policy import Policy
from frd.engine.views import Rise
from frd.model import (
    AlignedNs,
    Confidence,
    Float64s,
    Int64s,
    MemoryColumns,
    SeriesInfo,
    SeriesKind,
)
from frd.offline.memory.analyze import MemoryOptions, analyze_memory
from frd.offline.memory.feed import device_text
from frd.offline.memory.samples import Recorded, Stream
from tests.world.memory import EPOCH, GIB, MIB, Curve, S, plus, ramp, saw, stairs, step
from tests.world.memory import level as steady
from tests.world.seeds import seeds

SEEDS = seeds(320)
_PART = 20
"""Seeds of one test."""
LIVE = seeds(1_000)
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
    events: Sequence[Event]
    uncertainty: float
    period: float

    def rises(self, end_ns: int = 1 << 62) -> Sequence[Rise]:
        """The rises of the samples before that time."""
        known = self.recorded.begin_ns < end_ns
        columns = ("stream", "begin_ns", "end_ns", "values", "origin")
        part = replace(
            self.recorded, **{name: getattr(self.recorded, name)[known] for name in columns}
        )
        options = MemoryOptions(clock_uncertainty_s=self.uncertainty)
        return analyze_memory(part, options=options).rises


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
        return Simulated(_recorded(read, values), events, uncertainty, self.period)

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


def _recorded(read: Sequence[Int64s], values: Sequence[Int64s]) -> Recorded:
    hosts = [f"host{2 * rank // len(read)}" for rank in range(len(read))]
    streams = [Stream("job", rank, host, 1, "", rank, False) for rank, host in enumerate(hosts)]
    begin, used = np.concatenate(read), np.concatenate(values)
    none = np.full(len(used), -1)
    return Recorded(
        streams=streams,
        capacity=np.full(len(streams), _CAPACITY),
        stream=np.repeat(np.arange(len(read), dtype=np.int32), list(map(len, read))),
        begin_ns=begin,
        end_ns=begin,
        values=np.column_stack((none, none, used)),
        bin_ns=0,
        ooms=[],
        world_size={"job": len(read)},
        others=Counter(),
        refused=Counter(),
        later_versions=[],
        marks=[],
        origin=np.full(len(used), -1, np.int32),
        origins=[],
    )


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


# -- live ----------------------------------------------------------------------------------------


def _live(job: Simulated, dice: np.random.Generator) -> list[Rise]:
    """The rises that a service shows to which agents send the samples, each in batches of up to two
    seconds, and which evaluates at any time."""
    recorded, slack = job.recorded, round(job.uncertainty * S)
    length_s = float(np.ptp(recorded.begin_ns)) / S
    memory = Memory(Policy(memory_warmup_s=min(60, length_s / 4)))
    memory.kept_ns = 1 << 62
    begin = int(recorded.begin_ns.min())
    feeds = []
    for number, stream in enumerate(recorded.streams):
        rows = np.flatnonzero(recorded.stream == number)
        info = SeriesInfo(stream.rank, SeriesKind.DEVICE_USED, device_text(stream))
        feeds.append((np.array([memory.series(info)], np.int32), rows))
    sent, refused = [0] * len(feeds), list[int]()
    for now in np.arange(begin, int(recorded.begin_ns.max()) + 3 * S, S // 2).tolist():
        for at in dice.permutation(len(feeds)).tolist():
            handle, rows = feeds[at]
            stop = int(recorded.begin_ns[rows].searchsorted(now - dice.integers(S)))
            part, sent[at] = rows[sent[at] : stop], max(sent[at], stop)
            if len(part):
                times = recorded.begin_ns[part]
                values, capacity = recorded.values[None, part, 2], np.array([_CAPACITY])
                columns = MemoryColumns(handle, capacity, times - slack, times + slack, values)
                memory.observe(columns, AlignedNs(now), refused=refused.append)
        memory.advance(AlignedNs(now))
    assert not refused
    missing = {number for number, (_, rows) in enumerate(feeds) if len(rows) < 2}
    return [rise for rise, _ in memory.rises(missing, is_over=True)]


def _shown(rises: Sequence[Rise]) -> list[object]:
    return [
        (one.ranks, one.suspects, one.onset, one.bytes, one.fell_back, one.common_cause)
        for one in rises
    ]


@pytest.mark.parametrize("part", range(LIVE // _PART))
def test_live_and_offline_find_the_same_rises(part: int) -> None:
    """The samples of a recording, as agents send them, and as a file."""
    for seed in range(part * _PART, (part + 1) * _PART):
        job = Dice(seed).job()
        assert _shown(_live(job, np.random.default_rng(seed))) == _shown(job.rises()), seed
