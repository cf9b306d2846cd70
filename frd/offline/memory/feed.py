"""Feeds recorded samples to the live engine, a second at a time.

The engine gets the messages that agents would have sent, in the order of time over all ranks, and
evaluates after every second. So offline and live analysis give the same findings.

This module handles what only files have: which streams belong to one process, which processes of a
rank followed each other and which ran at the same time, and the clock differences of hosts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np

from frd.engine.attempt import Attempt
from frd.model import (
    AlignedNs,
    Bools,
    Int64s,
    MemoryColumns,
    MemoryEvent,
    MemoryEventKind,
    NodeNs,
    RankInfo,
    SeriesInfo,
    SeriesKind,
)
from frd.offline.memory.samples import Recorded, Stream
from frd.offline.memory.telemetry import ALLOCATED, RESERVED, USED

STEP_NS: Final = 1_000_000_000
_TOGETHER: Final = 128
"""Steps that are cut together."""
_UNDECLARED: Final = -2


@dataclass(frozen=True, slots=True)
class Lane:
    """One stream of a job, as it is fed."""

    stream: Stream
    rows: slice
    """Of `Recorded`."""
    capacity: int
    first_ns: int
    last_ns: int
    source: str = ""
    """Distinguishes processes that ran at the same time under one rank; empty if only one did."""

    def __len__(self) -> int:
        return len(range(self.rows.start, self.rows.stop))


def lanes_of(recorded: Recorded) -> dict[str, list[Lane]]:
    """The streams of each job that have samples, by rank and time."""
    bounds = np.searchsorted(recorded.stream, np.arange(len(recorded.streams) + 1)).tolist()
    jobs: dict[str, dict[int, list[Lane]]] = {}
    for at, stream in enumerate(recorded.streams):
        rows = slice(bounds[at], bounds[at + 1])
        if rows.stop > rows.start:
            begin, end = recorded.begin_ns[rows.start], recorded.end_ns[rows].max()
            lane = Lane(stream, rows, int(recorded.capacity[at]), int(begin), int(end))
            jobs.setdefault(stream.job, {}).setdefault(stream.rank, []).append(lane)
    return {
        job: [lane for rank in sorted(ranks) for lane in _separated(ranks[rank])]
        for job, ranks in jobs.items()
    }


def by_rank(lanes: Sequence[Lane]) -> Iterator[tuple[int, list[Lane]]]:
    """The lanes of each rank; those of a job are sorted by rank."""
    for rank, of_rank in groupby(lanes, lambda lane: lane.stream.rank):
        yield rank, list(of_rank)


def _separated(lanes: list[Lane]) -> list[Lane]:
    """The lanes of one rank in the order of time; where processes overlap, each is a source."""
    lanes = sorted(lanes, key=lambda lane: lane.first_ns)
    spans: dict[RankInfo, int] = {}
    parallel = False
    for lane in lanes:
        process = _process(lane.stream)
        others = [last for other, last in spans.items() if other != process]
        parallel |= max(others, default=-1) >= lane.first_ns
        spans[process] = max(lane.last_ns, spans.get(process, -1))
    if not parallel:
        return lanes
    return [replace(lane, source=process_text(lane.stream)) for lane in lanes]


def process_text(stream: Stream) -> str:
    """``process 4711``, with its session if that distinguishes it."""
    session = f", session {stream.session}" if stream.session else ""
    return f"process {stream.pid}{session}"


def _process(stream: Stream) -> RankInfo:
    """Identity of the process behind a stream; there is one such value a process."""
    boot_id = f"{stream.host}/{stream.session}" if stream.session else stream.host
    return RankInfo(stream.rank, 0, stream.host, boot_id, stream.pid)


class Feed:
    """The samples of one job on their way into an attempt."""

    def __init__(
        self, recorded: Recorded, lanes: Sequence[Lane], attempt: Attempt, uncertainty_ns: int
    ) -> None:
        self._recorded = recorded
        self._lanes = lanes
        self._attempt = attempt
        self._uncertainty_ns = uncertainty_ns
        self._declared: dict[int, RankInfo] = {}
        self._series = np.full((len(lanes), recorded.values.shape[1]), _UNDECLARED, np.int32)
        """By lane and column of `Recorded.values`, -1 for none."""
        self._capacity = np.array([lane.capacity for lane in lanes], np.int64)
        ooms = [oom for oom in recorded.ooms if oom.stream.job == lanes[0].stream.job]
        self._ooms = deque(sorted(ooms, key=lambda oom: oom.at_ns))

    def steps(self) -> Iterator[AlignedNs]:
        """Yields a second's samples, then the time at which all of them were known; and so on."""
        first = min(lane.first_ns for lane in self._lanes)
        now = AlignedNs(first)
        for step, counts, begins in self._pieces(first):
            lane = np.repeat(np.arange(len(counts)), counts)
            before = np.cumsum(counts) - counts
            rows = np.arange(len(lane)) + np.repeat(begins - before, counts)
            now = AlignedNs(first + (step + 1) * STEP_NS)
            self._observe(lane, rows, now)
            self._fail(now)
            yield now
        # No more samples come, and the wait for missing ranks is over.
        now = AlignedNs(max(now, self._ooms[-1].at_ns if self._ooms else 0))
        self._fail(now)
        yield AlignedNs(now + STEP_NS)

    def _pieces(self, first: int) -> Iterator[tuple[int, Int64s, Int64s]]:
        """The steps with samples: number, and by lane how many samples and the first of them."""
        begin = self._recorded.begin_ns
        at = np.array([lane.rows.start for lane in self._lanes])
        stop = np.array([lane.rows.stop for lane in self._lanes])
        while (alive := np.flatnonzero(at < stop)).size:
            number = int(begin[at[alive]].min() - first) // STEP_NS
            edges = first + STEP_NS * np.arange(number + 1, number + 1 + _TOGETHER)
            cuts = np.repeat(at[:, None], _TOGETHER + 1, axis=1)
            for lane in alive.tolist():
                cuts[lane, 1:] += begin[at[lane] : stop[lane]].searchsorted(edges)
            counts = np.ascontiguousarray(np.diff(cuts, axis=1).T)
            for place in np.flatnonzero(counts.any(axis=1)).tolist():
                yield number + place, counts[place], cuts[:, place]
            at = cuts[:, -1].copy()

    def _observe(self, lane: Int64s, rows: Int64s, now: AlignedNs) -> None:
        """Samples as a table: a row a series, and each at its own moments."""
        recorded, reach = self._recorded, self._uncertainty_ns
        starts = np.concatenate(([0], np.flatnonzero(lane[1:] != lane[:-1]) + 1))
        counts = np.diff(starts, append=len(lane))
        lanes = lane[starts]
        undeclared = self._series[lanes, 0] == _UNDECLARED
        if undeclared.any():
            for new in lanes[undeclared].tolist():
                self._declare(new)
        # A lane with fewer samples than others repeats its last one, without values.
        moment = np.arange(counts.max())
        place = rows[starts[:, None] + np.minimum(moment, counts[:, None] - 1)]
        begin = recorded.begin_ns[place] - reach
        end = recorded.end_ns[place] + reach
        of, column = np.nonzero(self._series[lanes] >= 0)
        values = recorded.values[place[of], column[:, None]]
        values[moment >= counts[of, None]] = -1
        table = MemoryColumns(
            series=self._series[lanes[of], column],
            capacity=self._capacity[lanes[of]],
            begin_ns=begin[of],
            end_ns=end[of],
            values=values,
        )
        self._attempt.memory.observe_table(table)

    def _declare(self, at: int) -> None:
        """The series of a lane that begins: by column of `Recorded.values`, -1 for none."""
        lane = self._lanes[at]
        process = self._process(lane.stream, is_next=not lane.source)
        known: Bools = np.any(self._recorded.values[lane.rows] >= 0, axis=0)
        self._series[at] = -1
        device = "" if lane.stream.of_host else device_text(lane.stream)
        for kind, column in series_kinds(lane.stream, known):
            self._series[at, column] = self._attempt.memory.series(
                SeriesInfo(process.rank, kind, device), node=process.boot_id, source=lane.source
            )

    def _process(self, stream: Stream, *, is_next: bool) -> RankInfo:
        """The declared process of a rank: that of `stream` if it is the first one, or `is_next`."""
        process = _process(stream)
        known = self._declared.get(stream.rank)
        if known is None or (is_next and known != process):
            self._attempt.rank(process)
            self._declared[stream.rank] = process
        return self._declared[stream.rank]

    def _fail(self, now: AlignedNs) -> None:
        """Report the allocations that have failed by now."""
        while self._ooms and self._ooms[0].at_ns <= now:
            oom = self._ooms.popleft()
            self._process(oom.stream, is_next=False)
            device = "" if oom.stream.of_host else device_text(oom.stream)
            event = MemoryEvent(
                oom.stream.rank, MemoryEventKind.OOM, NodeNs(oom.at_ns), device, detail=oom.what
            )
            self._attempt.memory.event(event, AlignedNs(oom.at_ns), self._uncertainty_ns, now)


def series_kinds(stream: Stream, known: Bools) -> Iterator[tuple[SeriesKind, int]]:
    """The series of a stream, each with its column in `Recorded.values`."""
    if stream.of_host:
        yield SeriesKind.HOST_USED, USED if known[USED] else ALLOCATED
        return
    if known[USED]:
        yield SeriesKind.DEVICE_USED, USED
    # Tensors come and go within the reserved memory, which says more if it is known.
    if known[RESERVED]:
        yield SeriesKind.TORCH_RESERVED, RESERVED
    elif known[ALLOCATED]:
        yield SeriesKind.TORCH_ALLOCATED, ALLOCATED


def device_text(stream: Stream) -> str:
    """A device's number is that of its process, and may be 0 in all streams."""
    return f"device {max(stream.device, 0)} of rank {stream.rank}"
