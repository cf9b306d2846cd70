"""Simulated jobs whose memory is known: curves of each rank, samplers and clocks as they are.

A `Sampler` reads the curves of one rank at its own times, on a clock with an error within its
uncertainty; `play` feeds the samples to `frd.engine.memory`, second by second, as agents do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np

from frd.engine.memory.attempt_memory import Memory
from frd.engine.memory.incident import MemoryIncident
from frd.engine.policy import Policy
from frd.model import (
    AlignedNs,
    Float64s,
    Int64s,
    Kind,
    MemoryColumns,
    MemoryEvent,
    MemoryEventKind,
    NodeNs,
    SeriesInfo,
    SeriesKind,
)

S = 1_000_000_000
MIB = 1 << 20
GIB = 1 << 30
EPOCH = 1_800_000_000 * S

Curve = Callable[[Float64s], Float64s]
"""Bytes at times in seconds since the start."""


def level(gib: float) -> Curve:
    return lambda t: np.full(len(t), gib * GIB)


def plus(*curves: Curve) -> Curve:
    return lambda t: np.sum([curve(t) for curve in curves], axis=0)


def ramp(start: float, gib_per_s: float, most_gib: float = np.inf) -> Curve:
    return lambda t: np.clip((t - start) * gib_per_s, 0, most_gib) * GIB


def step(start: float, gib: float, end: float = np.inf) -> Curve:
    return lambda t: np.where((t >= start) & (t < end), gib * GIB, 0.0)


def stairs(start: float, gib: float, every: float) -> Curve:
    return lambda t: np.maximum(np.floor((t - start) / every) + 1, 0) * gib * GIB


def saw(gib: float, period: float) -> Curve:
    """Activations: they rise and fall in each step, with a short peak."""
    return lambda t: (1 - np.abs(2 * ((t / period) % 1) - 1)) ** 2 * gib * GIB


def noise(mib: float, seed: int) -> Curve:
    return lambda t: np.random.default_rng(seed).normal(0, mib * MIB, len(t))


def dips(every: int, size: float) -> Curve:
    """Now and then one sample is lower."""
    return lambda t: np.where(np.arange(len(t)) % every == 0, -size, 0.0)


@dataclass(frozen=True)
class Sampler:
    """How one series is read."""

    start: float = 0.0
    period: float = 0.1
    phase: float = 0.0
    stall: tuple[float, float] = (0.0, 0.0)
    """No samples between these."""
    clock_error: float = 0.0
    uncertainty: float = 0.0

    def times(self, until: float) -> Float64s:
        times = np.arange(self.start + self.phase, until, self.period)
        return times[(times < self.stall[0]) | (times >= self.stall[1])]


@dataclass(frozen=True)
class Row:
    """A series and how it is read."""

    rank: int
    curve: Curve
    kind: SeriesKind = SeriesKind.DEVICE_USED
    device: str | None = None
    source: str = ""
    node: str = ""
    sampler: Sampler = Sampler()
    capacity: int = 80 * GIB

    @property
    def info(self) -> SeriesInfo:
        on_host = self.kind in (SeriesKind.HOST_USED, SeriesKind.CGROUP_USED)
        name = f"GPU-{self.rank}" if self.device is None else self.device
        return SeriesInfo(self.rank, self.kind, "" if on_host else name)


@dataclass(frozen=True)
class Failure:
    at: float
    rank: int
    device: str | None = None
    kind: MemoryEventKind = MemoryEventKind.OOM
    requested: int = 0


@dataclass(frozen=True)
class Job:
    rows: Sequence[Row]
    until: float
    failures: Sequence[Failure] = ()
    policy: Policy = field(default_factory=lambda: Policy(memory_warmup_s=10))
    ticks: int = 4
    """Calls of `advance` a second."""


def at(seconds: float) -> AlignedNs:
    return AlignedNs(EPOCH + round(seconds * S))


def seconds(when: int) -> float:
    return (when - EPOCH) / S


def observe(
    memory: Memory,
    handles: Sequence[int],
    times: Sequence[float] | Float64s,
    values: Sequence[int] | Int64s,
    capacity: int = 64 * GIB,
    now_s: float = 60,
) -> int:
    """Samples of series, (S, T), at times in seconds; how many were refused."""
    begin = EPOCH + np.round(np.array(times) * S).astype(np.int64)
    sizes = np.array(values, np.int64).reshape(len(handles), -1)
    series, each = np.array(handles, np.int32), np.full(len(handles), capacity, np.int64)
    columns = MemoryColumns(series, each, begin, begin + S // 1000, sizes)
    return refused_of(memory, columns, at(now_s))


def refused_of(memory: Memory, columns: MemoryColumns, now: AlignedNs) -> int:
    """Observe and apply the samples; how many were refused."""
    refused: list[int] = []
    memory.observe(columns, now, refused=refused.append)
    memory._inbox.flush()
    return sum(refused)


class History:
    """Every version of the incidents that a memory shows, and when each was first seen."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._shown: dict[int, object] = {}
        self.versions: list[MemoryIncident] = []
        self.times: list[AlignedNs] = []

    def advance(self, now: AlignedNs) -> list[MemoryIncident]:
        """The versions that are new."""
        known = len(self.versions)
        for one in self._memory.advance(now):
            found = one.ranks, one.rises, one.victims, one.unknown, one.failed
            shown = deepcopy((*found, one.confidence, one.over))
            if self._shown.get(one.number) != shown:
                self._shown[one.number] = shown
                self.versions.append(deepcopy(one))
                self.times.append(now)
        return self.versions[known:]


def play(job: Job) -> list[MemoryIncident]:
    """Every version of the incidents of a job."""
    return history_of(job).versions


def history_of(job: Job) -> History:
    memory = Memory(job.policy)
    history = History(memory)
    feeds = feeds_of(memory, job.rows, job.until)
    failures = sorted(job.failures, key=lambda failure: failure.at)
    for second in range(1, int(job.until) + 3):
        for feed in feeds:
            feed.upto(second, at(second))
        while failures and failures[0].at <= second:
            _fail(memory, failures.pop(0), second)
        for tick in range(job.ticks):
            history.advance(at(second + tick / job.ticks))
    return history


def feeds_of(memory: Memory, rows: Sequence[Row], until: float) -> list[Feed]:
    """Give each its samples with `upto`."""
    return [Feed(memory, row, until) for row in rows]


class Feed:
    def __init__(self, memory: Memory, row: Row, until: float) -> None:
        self._memory = memory
        sampler = row.sampler
        self._times = sampler.times(until)
        slack = round(sampler.uncertainty * S)
        read: Int64s = EPOCH + np.round((self._times + sampler.clock_error) * S).astype(np.int64)
        self._begin, self._end = read - slack, read + MIB // 1000 + slack
        self._values = row.curve(self._times).clip(0, row.capacity).astype(np.int64)
        handle = memory.series(row.info, node=row.node, source=row.source)
        self._series = np.array([handle], np.int32)
        self._capacity = np.array([row.capacity], np.int64)
        self._done = 0

    def upto(self, second: float, now: AlignedNs) -> None:
        stop = int(self._times.searchsorted(second))
        part = slice(self._done, stop)
        self._done = stop
        if part.start < part.stop:
            refused = refused_of(
                self._memory,
                MemoryColumns(
                    self._series,
                    self._capacity,
                    self._begin[part],
                    self._end[part],
                    self._values[None, part],
                ),
                now,
            )
            assert refused == 0


def _fail(memory: Memory, failure: Failure, second: float) -> None:
    device = f"GPU-{failure.rank}" if failure.device is None else failure.device
    event = MemoryEvent(
        failure.rank, failure.kind, NodeNs(0), device, requested_bytes=failure.requested
    )
    memory.event(event, at(failure.at), S // 1000, at(second))


def last_of_each(versions: Sequence[MemoryIncident]) -> list[MemoryIncident]:
    """The newest version of every incident, in the order in which they began."""
    return list({one.number: one for one in versions}.values())


def only(versions: Sequence[MemoryIncident]) -> MemoryIncident:
    """The newest version of the only incident."""
    (incident,) = last_of_each(versions)
    return incident


def ends(versions: Sequence[MemoryIncident]) -> list[tuple[Kind, str]]:
    """Kind of each incident at its beginning, and once more with the reason when it is over."""
    known: set[int] = set()
    found = []
    for one in versions:
        if one.over or one.number not in known:
            found.append((one.kind, one.over))
        known.add(one.number)
    return found
