"""Memory as tracks of a timeline: counters of each rank, rises and findings on top.

A recording may have more samples than a browser opens. A counter then has the lowest and the
highest value of each part of it, so every peak is drawn; `not_drawn` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from frd.forms import fold_ranks
from frd.model import Int64s
from frd.offline.analysis.analyze import Analysis
from frd.offline.memory.analysis import MemoryAnalysis, MemoryJob, RecordedRise
from frd.offline.memory.feed import Lane, by_rank
from frd.offline.memory.telemetry import ALLOCATED, RESERVED, USED
from frd.offline.output.memory.samples import changes, clocks_of, extremes, ranks_of, shift_ns
from frd.perfetto.texts import finding_slice, rank_title
from frd.perfetto.writer import BEGIN, Slice, TraceWriter

MAX_POINTS: Final = 2_000_000
"""Of all counters together; about 60 MB."""
_MOST, _LEAST = 50_000, 100
"""Points of one counter, at most, and at least if it has so many."""
_COUNTERS: Final = ((USED, "device used"), (RESERVED, "reserved"), (ALLOCATED, "allocated"))
_OF_HOST: Final = ((USED, "host used"), (ALLOCATED, "host used"))
_ABOVE: Final = -8
"""Order of a rank's counters: before its groups and its I/O."""
_SCALE: Final = "memory"
_JOBS_APART: Final = 100
"""Jobs whose ranks are drawn one job after another; the order of a track has 31 bits."""


def add_memory(
    writer: TraceWriter,
    analysis: MemoryAnalysis,
    tracks: dict[int, int],
    dumps: Analysis | None,
    progress: Callable[[int, int], None],
    *,
    order: int,
) -> None:
    """Add counters, rises and findings.

    `tracks` are those of ranks that are there; `order` is the place of others, which are added to
    it. The tracks of dumps and traces belong to one job, so memory of several jobs has separate
    tracks.
    """
    known = tracks if len(analysis.jobs) == 1 else {}
    memory = _Memory(writer, analysis, dumps)
    memory.add_findings()
    memory.add_rises(analysis.rises, parent=0)
    total = sum(len(job.ranks) for job in analysis.jobs)
    done = 0
    for number, job in enumerate(analysis.jobs):
        for rank, of_rank in by_rank(job.lanes):
            place = order * min(number + 1, _JOBS_APART) + rank
            track = memory.add_rank(job, rank, of_rank, known.get(rank), place)
            if len(analysis.jobs) == 1:
                tracks[rank] = track
            done += 1
            progress(done, total)


def not_drawn(analysis: MemoryAnalysis) -> str:
    """What a timeline leaves out; empty if nothing."""
    most = _points_of_each(analysis)
    if all(len(lane) <= most for job in analysis.jobs for lane in job.lanes):
        return ""
    return (
        f"memory samples between the lowest and the highest value of each part of a counter: a "
        f"counter has at most {most:,} points: --output has all samples"
    )


def begins_at_ns(analysis: MemoryAnalysis, dumps: Analysis | None) -> int | None:
    """The earliest aligned time of anything drawn; None without samples."""
    clocks = clocks_of(analysis, dumps)
    times = [
        lane.first_ns + clocks[job.job, lane.stream.rank].offset_ns
        for job in analysis.jobs
        for lane in job.lanes
    ]
    times += [r.onset[0] + shift_ns(clocks, r.job, ranks_of(r)) for r in analysis.rises]
    return min(times, default=None)


def _points_of_each(analysis: MemoryAnalysis) -> int:
    counters = sum(
        1 if lane.stream.of_host else len(_COUNTERS) for job in analysis.jobs for lane in job.lanes
    )
    return min(max(MAX_POINTS // max(counters, 1), _LEAST), _MOST)


class _Memory:
    def __init__(
        self,
        writer: TraceWriter,
        analysis: MemoryAnalysis,
        dumps: Analysis | None,
    ) -> None:
        self._writer = writer
        self._analysis = analysis
        self._clocks = clocks_of(analysis, dumps)
        self._most = _points_of_each(analysis)
        self._several = len(analysis.jobs) > 1
        self._suspects = {(f.job, s.rank) for f in analysis.findings for s in f.suspects}

    def add_findings(self) -> None:
        """Slices without an end, as those of dumps."""
        if not self._analysis.findings:
            return
        track = self._writer.track("memory findings", order=0)
        for finding in self._analysis.findings:
            shift = shift_ns(self._clocks, finding.job, [s.rank for s in finding.suspects])
            self._writer.event(BEGIN, finding.opened_at + shift, track, finding_slice(finding))

    def add_rank(
        self, job: MemoryJob, rank: int, lanes: list[Lane], parent: int | None, order: int
    ) -> int:
        """Add the counters of a rank, below its track, and its rises; return that track."""
        if parent is None:
            is_suspect = (job.job, rank) in self._suspects
            name = f"{job.job}: " if self._several else ""
            name += rank_title(rank, lanes[0].stream.host, is_cause=is_suspect)
            place = 1 + rank if is_suspect else order
            parent = self._writer.track(name, order=place, ordered=True)
        rises = [one for one in self._analysis.rises if one.job == job.job and rank in one.ranks]
        self.add_rises(rises, parent=parent)
        offset = self._clocks[job.job, rank].offset_ns
        counters: dict[str, int] = {}
        for lane in lanes:
            recorded = self._analysis.recorded
            times, values = recorded.begin_ns[lane.rows] + offset, recorded.values[lane.rows]
            for column, name in _OF_HOST if lane.stream.of_host else _COUNTERS:
                known = values[:, column] >= 0
                if not known.any():
                    continue
                title = _title(name, lane, lanes)
                if title not in counters:
                    counters[title] = self._writer.bytes_counter(
                        title, order=_ABOVE + 1 + column, parent=parent, scale=_SCALE
                    )
                self._add_counter(times[known], values[known, column], counters[title])
                if lane.stream.of_host:
                    break
        return parent

    def _add_counter(self, times: Int64s, values: Int64s, track: int) -> None:
        changed = changes(values)
        times, values = times[changed], values[changed]
        drawn = extremes(values, self._most)
        for at_ns, value in zip(times[drawn].tolist(), values[drawn].tolist(), strict=True):
            self._writer.counter(at_ns, value, track)

    def add_rises(self, rises: Sequence[RecordedRise], *, parent: int) -> None:
        """Slices from the onset to the end; those that overlap are in several lanes."""
        if not rises:
            return
        shift = [shift_ns(self._clocks, one.job, ranks_of(one)) for one in rises]
        begin = np.array([one.onset[0] for one in rises], np.int64) + shift
        end = np.maximum(np.array([one.end_ns for one in rises], np.int64) + shift, begin + 1)
        order = np.argsort(begin, kind="stable")
        self._writer.slices(
            "memory rises",
            begin[order],
            end[order],
            (_slice(rises[at]) for at in order.tolist()),
            order=_ABOVE if parent else 0,
            parent=parent,
        )


def _slice(one: RecordedRise) -> Slice:
    return Slice(
        one.text,
        "alarming rise" if one.alarming else "rise",
        numbers={
            "bytes": one.bytes,
            "peak_bytes": one.peak_bytes,
            "onset_within_ns": one.onset[1] - one.onset[0],
        },
        texts={
            "ranks": fold_ranks(sorted(one.ranks)),
            "whose": one.attribution.value,
            "phase": one.phase.text,
        },
    )


def _title(name: str, lane: Lane, lanes: list[Lane]) -> str:
    """The counter, with its device and process if the rank has several."""
    devices = {one.stream.device for one in lanes if not one.stream.of_host}
    if not lane.stream.of_host and len(devices) > 1:
        name = f"{name}, device {lane.stream.device}"
    return f"{name}, {lane.source}" if lane.source else name
