"""All samples of a recording in one order of time, as a table; what is added to the times of each
rank, how far that may be off, and how it was found.

Only an index is kept for all rows, eight bytes each and their times; the rest is made a batch at a
time. Samples with the same time are in the order of jobs and ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from frd.forms import encodable
from frd.model import Bools, Int64s
from frd.offline.analysis.analyze import Analysis
from frd.offline.memory.analysis import MemoryAnalysis, MemoryJob, RecordedRise
from frd.offline.memory.feed import Lane
from frd.offline.memory.samples import Recorded
from frd.offline.memory.telemetry import ALLOCATED, RESERVED, USED
from frd.offline.output.tables import Batch, Table

BATCH: Final = 1 << 15
_COLUMNS: Final = {
    "job": "str",
    "rank": "int",
    "host": "str",
    "pid": "int",
    "device": "int",
    "time_ns": "int",
    "uncertainty_ns": "int",
    "device_used_bytes": "int",
    "reserved_bytes": "int",
    "allocated_bytes": "int",
    "host_used_bytes": "int",
    "change_bytes": "int",
}
_TIME: Final = "time"
"""The same as `time_ns`, for people."""
ONE_HOST: Final = "one host, one clock"
ASSUMED: Final = "assumed: --clock-uncertainty"


def main_column(recorded: Recorded, lane: Lane) -> int:
    """The counter of a process that says most; the others are parts of it."""
    known: Bools = np.any(recorded.values[lane.rows] >= 0, axis=0)
    order = (USED, ALLOCATED) if lane.stream.of_host else (USED, RESERVED, ALLOCATED)
    return next((column for column in order if known[column]), USED)


def samples_table(analysis: MemoryAnalysis, clocks: Clocks, *, with_text: bool) -> Table:
    """The columns of `samples`, by time; `with_text` adds the time as ISO 8601."""
    columns = {_TIME: "str"} | _COLUMNS if with_text else _COLUMNS
    merged = _Merged(analysis, clocks)

    def batches() -> Iterator[Batch]:
        for at in range(0, len(merged.order), BATCH):
            yield merged.batch(merged.order[at : at + BATCH], with_text=with_text)

    return Table("samples", columns, batches)


class _Merged:
    def __init__(self, analysis: MemoryAnalysis, clocks: Clocks) -> None:
        self.recorded = recorded = analysis.recorded
        lanes = [(job.job, lane) for job in analysis.jobs for lane in job.lanes]
        of_lane = [clocks[job, lane.stream.rank] for job, lane in lanes]
        times = [
            recorded.begin_ns[lane.rows] + clock.offset_ns
            for (_, lane), clock in zip(lanes, of_lane, strict=True)
        ]
        streams = [lane.stream for _, lane in lanes]
        lengths = np.array([len(lane) for _, lane in lanes], np.int64)
        self.order = np.argsort(np.concatenate(times), kind="stable")
        """Of positions: the samples of the first lane, of the second, and so on."""
        self.starts = np.cumsum(lengths) - lengths
        """Position at which each lane begins."""
        self.rows = np.array([lane.rows.start for _, lane in lanes], np.int64)
        """Row of `recorded` of the first sample of each lane."""
        self.streams = [
            (
                encodable(job),
                stream.rank,
                encodable(stream.host),
                stream.pid if stream.pid >= 0 else None,
                stream.device if stream.device >= 0 else None,
            )
            for (job, _), stream in zip(lanes, streams, strict=True)
        ]
        """Job, rank, host, pid and device of each lane."""
        self.of_host = np.array([stream.of_host for stream in streams], np.bool_)
        self.main = np.array([main_column(recorded, lane) for _, lane in lanes], np.int64)
        self.offset_ns = np.array([clock.offset_ns for clock in of_lane], np.int64)
        self.uncertainty_ns = np.array([clock.uncertainty_ns for clock in of_lane], np.int64)

    def batch(self, positions: Int64s, *, with_text: bool) -> Batch:
        recorded = self.recorded
        lane = np.searchsorted(self.starts, positions, "right") - 1
        row = positions - self.starts[lane] + self.rows[lane]
        begin = recorded.begin_ns[row]
        time = begin + self.offset_ns[lane]
        # A thinned sample is from anywhere between its first and its last time.
        uncertainty = self.uncertainty_ns[lane] + recorded.end_ns[row] - begin
        values, of_host = recorded.values[row], self.of_host[lane]
        main = values[np.arange(len(row)), self.main[lane]]
        before = recorded.values[np.maximum(row - 1, 0), self.main[lane]]
        changed = (row > self.rows[lane]) & (main >= 0) & (before >= 0)
        columns = [
            *zip(*map(self.streams.__getitem__, lane.tolist()), strict=True),
            time.tolist(),
            uncertainty.tolist(),
            *(
                _known(values[:, column], (values[:, column] >= 0) & ~of_host)
                for column in (USED, RESERVED, ALLOCATED)
            ),
            _known(main, (main >= 0) & of_host),
            _known(main - before, changed),
        ]
        return [_texts(time), *columns] if with_text else columns


def _known(values: Int64s, known: Bools) -> list[int | None]:
    if known.all():
        return values.tolist()  # type: ignore[no-any-return]
    out = values.astype(object)
    out[~known] = None
    return out.tolist()  # type: ignore[no-any-return]


def _texts(time_ns: Int64s) -> list[str]:
    """ISO 8601 with microseconds, as elsewhere."""
    texts: list[str] = np.datetime_as_string(time_ns.view("datetime64[ns]"), unit="us").tolist()
    return [f"{text}Z" for text in texts]


# -- fewer points of a line that look the same --------------------------------------------------


def extremes(values: Int64s, most: int) -> Int64s:
    """Indexes of at most `most` values, in order, with the first, the last, and all peaks.

    Values are split into parts of equal length; each keeps its lowest and its highest value.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    parts = max((most - 2) // 2, 1)
    starts = np.arange(parts) * count // parts
    part = np.repeat(np.arange(parts), np.diff(starts, append=count))
    # Sorted by value within each part, the first and the last are what is wanted.
    order = np.lexsort((values, part))
    ends = np.append(starts[1:], count) - 1
    return np.unique(np.concatenate(([0, count - 1], order[starts], order[ends])))


def changes(values: Int64s) -> Int64s:
    """Indexes at which a value differs from the one before, and of the last value."""
    new = np.ones(len(values), np.bool_)
    new[1:-1] = values[1:-1] != values[:-2]
    return np.flatnonzero(new)


@dataclass(frozen=True, slots=True)
class RankClock:
    job: str
    rank: int
    offset_ns: int
    uncertainty_ns: int
    source: str
    """How these were found."""


Clocks = Mapping[tuple[str, int], RankClock]
"""By job and rank."""


def clocks_of(analysis: MemoryAnalysis, dumps: Analysis | None) -> Clocks:
    """The clock of every rank with samples.

    `dumps` are of one job, so their clocks are used only if there is only one job.
    """
    known = dumps if len(analysis.jobs) == 1 else None
    return {
        (clock.job, clock.rank): clock
        for job in analysis.jobs
        for clock in _clocks_of_job(job, known)
    }


def ranks_of(rise: RecordedRise) -> list[int]:
    """Ranks whose memory rose, those that may have been first before the others."""
    return list(dict.fromkeys((*(one.rank for one in rise.suspects), *rise.ranks)))


def shift_ns(clocks: Clocks, job: str, ranks: Sequence[int]) -> int:
    """What is added to times of an event of these ranks, which are on the clock of the first."""
    clock = next((clocks[job, rank] for rank in ranks if (job, rank) in clocks), None)
    return clock.offset_ns if clock is not None else 0


def _clocks_of_job(job: MemoryJob, dumps: Analysis | None) -> Iterator[RankClock]:
    """A rank without a known clock has that of another rank of its host."""
    offsets = dumps.clock_offsets_ns if dumps is not None else {}
    by_host = {
        lane.stream.host: lane.stream.rank
        for lane in reversed(job.lanes)
        if lane.stream.rank in offsets
    }
    assumed = ONE_HOST if len(job.hosts) < 2 else ASSUMED
    for rank, usage in job.ranks.items():
        of = rank if rank in offsets else by_host.get(usage.hosts[0])
        offset, uncertainty, source = 0, None, assumed
        if dumps is not None and of is not None:
            offset, uncertainty = offsets[of], dumps.clock_uncertainties_ns.get(of)
            source = f"from the dumps: {dumps.clock_source}"
            source += f"; uncertainty {assumed}" if uncertainty is None else ""
        if uncertainty is None:
            uncertainty = job.clock_uncertainty_ns
        yield RankClock(job.job, rank, offset, uncertainty, source)
