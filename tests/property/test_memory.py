"""Laws of first causes of memory, over thousands of seeded jobs of up to 64 ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from frd.engine.memory.attempt_memory import Memory
from frd.engine.policy import Policy
from frd.model import Confidence, Float64s, Int32s, Int64s, MemoryColumns, SeriesInfo, SeriesKind
from tests.world.memory import EPOCH, GIB, MIB, History, S, at, last_of_each, refused_of
from tests.world.seeds import seeds

CAPACITY = 80 * GIB
UNTIL = 36
POLICY = Policy(memory_warmup_s=8)
CALM_AFTER_S = 9.0


@dataclass(frozen=True)
class Node:
    """Ranks that one agent samples at the same moments, on one clock."""

    ranks: Int64s
    times: Float64s
    """True times of the samples."""
    clock_error: float
    uncertainty: float
    values: Int64s
    """(ranks, times)"""


@dataclass(frozen=True)
class Rise:
    risen: Float64s
    """Bytes, at the times of the samples."""
    rate: float
    """Bytes a second, at first."""
    pause: float = 0.0
    """For how long a step of it may look like all that there is."""


@dataclass(frozen=True)
class Simulated:
    nodes: Sequence[Node]
    injected: int
    """The rank that rises first; -1 if none rises."""
    certain: bool
    """It leads by more than clocks, samples, noise and pauses leave open."""


class Dice:
    """One seeded job. All ranks have the same habits, as in data-parallel training."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        rng = self._rng
        self.ranks = int(rng.integers(2, 65))
        self._base = rng.uniform(10, 40) * GIB
        self._warm_s = rng.uniform(0.5, 4)
        self._habit = int(rng.integers(4))
        self._size = rng.uniform()
        self._beat = rng.uniform(0.3, 2.5)
        self._sharp = int(rng.integers(1, 4))
        self._unsure = rng.random() < 0.2

    def onsets(self) -> tuple[int, dict[int, float]]:
        """The first rank, and when each rank that rises begins to."""
        rng = self._rng
        first = int(rng.integers(self.ranks))
        others = rng.permutation(np.delete(np.arange(self.ranks), first))
        others = others[: int(rng.integers(0, min(self.ranks - 1, 12) + 1))]
        start = rng.uniform(24, 28)
        lead = rng.uniform(0.01, 0.4) if rng.random() < 0.5 else rng.uniform(0.4, 4)
        later = {int(rank): start + lead + rng.uniform(0, 3) for rank in others}
        return first, {first: start, **later}

    def times(self) -> Float64s:
        """Of a sampler that may begin late or stall."""
        rng = self._rng
        period = 0.1 if rng.random() < 0.8 else 0.25
        times = np.arange(rng.uniform(0, period), UNTIL, period)
        times = times + rng.uniform(0, 0.2 * period, len(times))
        if rng.random() < 0.1:
            times = times[times > 3]
        if rng.random() < 0.1:
            stall = rng.uniform(22, 30)
            times = times[(times < stall) | (times > stall + rng.uniform(0.5, 4))]
        return times

    def clock(self) -> tuple[float, float]:
        """Its error, and how large that may be at most."""
        most = self._rng.uniform(0.2, 2) if self._unsure else self._rng.uniform(0, 0.02)
        return self._rng.uniform(-most, most), most

    def usual(self, ranks: int, times: Float64s) -> Float64s:
        """(ranks, times) warm-up, then constant, noisy, a saw-tooth, or small blocks."""
        rng, shape = self._rng, (ranks, len(times))
        warm = np.clip((times - rng.uniform(0, 2, (ranks, 1))) / self._warm_s, 0, 1) * self._base
        match self._habit:
            case 0:
                return warm
            case 1:
                return warm + rng.normal(0, (1 + 99 * self._size) * MIB, shape)
            case 2:
                phase = (times + rng.uniform(0, self._beat, (ranks, 1))) / self._beat % 1
                peaks = (1 - np.abs(2 * phase - 1)) ** self._sharp
                return warm + (0.1 + 5.9 * self._size) * GIB * peaks
            case _:
                return warm + rng.integers(-2, 3, shape) * 4 * MIB

    @property
    def beat(self) -> float:
        return self._beat if self._habit == 2 else 0.0

    def rise(self, since: Float64s) -> Rise:
        """A jump, stairs, a steepening slope, or straight ones, with dips or without."""
        rng, since = self._rng, np.maximum(since, 0)
        match rng.integers(5):
            case 0:
                return Rise(np.where(since > 0, CAPACITY, 0.0), np.inf)
            case 1:
                every, size = rng.uniform(0.4, 1.6), rng.uniform(2, 8) * GIB
                return Rise(np.ceil(since / every) * size, size / every, every)
            case 2:
                rate = rng.uniform(1.5, 5) * GIB
                return Rise(since * rate + since**2 * rng.uniform(0, GIB), rate)
            case 3:
                rate = rng.uniform(2, 20) * GIB
                dips = np.where(rng.random(len(since)) < 0.2, rng.uniform(0, 0.3), 0.0)
                return Rise(since * rate * (1 - dips), rate * 0.7)
            case _:
                rate = rng.uniform(2, 40) * GIB
                return Rise(since * rate, rate)


def simulate(seed: int, *, healthy: bool = False) -> Simulated:
    dice = Dice(seed)
    injected, onsets = (-1, {}) if healthy else dice.onsets()
    nodes, visible_by, not_before = [], {}, {}
    per_node = 4 << seed % 3
    for start in range(0, dice.ranks, per_node):
        ranks = np.arange(start, min(start + per_node, dice.ranks))
        times, (error, uncertainty) = dice.times(), dice.clock()
        values = dice.usual(len(ranks), times)
        moves = np.ptp(values[:, times > CALM_AFTER_S], axis=1)
        for row, rank in enumerate(ranks.tolist()):
            if rank in onsets:
                onset = onsets[rank]
                rise = dice.rise(times - onset)
                values[row] += rise.risen
                next_ = min(int(times.searchsorted(onset)), len(times) - 1)
                open_s = times[next_] - times[next_ - 1] + 2 * uncertainty
                # Half of what it moves anyhow is the slack of the band.
                hidden_s = (1.5 * moves[row] + 2 * MIB) / rise.rate + dice.beat
                visible_by[rank] = onset + open_s + hidden_s + rise.pause
                not_before[rank] = onset - open_s - 4 * (hidden_s + 0.3)
        sizes = values.clip(0, CAPACITY).astype(np.int64)
        nodes.append(Node(ranks, times, error, uncertainty, sizes))
    others = [not_before[rank] for rank in onsets if rank != injected]
    return Simulated(
        nodes, injected, not healthy and visible_by[injected] < min(others, default=UNTIL)
    )


@dataclass
class _Feed:
    handles: Int32s
    begin: Int64s
    end: Int64s
    node: Node


def judge(job: Simulated, *, until: int = UNTIL, backwards: bool = False) -> History:
    """The engine's reports while the job runs; agents send in one order or in the other."""
    memory, feeds = Memory(POLICY), []
    history = History(memory)
    for node in job.nodes:
        infos = [SeriesInfo(r, SeriesKind.DEVICE_USED, f"GPU-{r}") for r in node.ranks.tolist()]
        handles = np.array([memory.series(info) for info in infos], np.int32)
        read = EPOCH + np.round((node.times + node.clock_error) * S).astype(np.int64)
        slack = round(node.uncertainty * S)
        feeds.append(_Feed(handles, read - slack, read + slack, node))
    before = 0
    for second in (*range(4, 20, 4), *range(20, until + 1)):
        for feed in reversed(feeds) if backwards else feeds:
            first, stop = feed.node.times.searchsorted((before, second))
            if first < stop:
                part = slice(first, stop)
                refused = refused_of(
                    memory,
                    MemoryColumns(
                        feed.handles,
                        np.full(len(feed.handles), CAPACITY),
                        feed.begin[part],
                        feed.end[part],
                        feed.node.values[:, part],
                    ),
                    at(second),
                )
                assert refused == 0
        history.advance(at(second))
        before = second
    return history


SEEDS = range(seeds(2_000, 20))
PART = 25
"""Seeds of one test, at most."""


@pytest.mark.parametrize("first", SEEDS[::PART])
def test_the_first_is_named(first: int) -> None:
    """The injected rank is among the first in 99 of 100 jobs, and the only one when its lead is
    certain; a rank that is named stays named, and no other rank is ever named with certainty."""
    missed = []
    mine = SEEDS[first : first + PART]
    for seed in mine:
        job = simulate(seed)
        versions = judge(job).versions
        assert versions, f"seed {seed}: nothing was found"
        named: dict[int, set[int]] = {}
        for one in versions:
            assert named.get(one.number, set()) <= set(one.ranks), f"seed {seed}: taken back"
            named[one.number] = set(one.ranks)
            if one.confidence is Confidence.HIGH:
                assert one.ranks == (job.injected,), f"seed {seed}: another for certain"
        last = last_of_each(versions)[0]
        if job.certain:
            assert last.ranks == (job.injected,), f"seed {seed}: not alone"
            assert not last.common
        elif job.injected not in last.ranks:
            missed.append(seed)
    assert len(missed) <= len(mine) / 100, missed


def test_nothing_is_found_in_healthy_jobs() -> None:
    """Warm-up, noise, saw-tooth and samplers that stall are no incidents."""
    for seed in range(seeds(200)):
        assert not judge(simulate(seed, healthy=True)).versions, f"seed {seed}"


def test_a_prefix_says_what_the_whole_said_then() -> None:
    """A job that is cut off anywhere shows the same until then."""
    for seed in range(seeds(60)):
        job = simulate(seed)
        until = 26 + seed % 8
        whole, part = judge(job), judge(job, until=until)
        then = sum(now <= at(until) for now in whole.times)
        assert part.versions == whole.versions[:then], f"seed {seed}"


def test_the_order_of_agents_does_not_matter() -> None:
    """Within a tick, the order of batches changes nothing."""
    for seed in range(seeds(60)):
        job = simulate(seed)
        assert judge(job).versions == judge(job, backwards=True).versions, f"seed {seed}"
