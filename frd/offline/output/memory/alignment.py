"""What is added to the times of each rank, how far that may be off, and how it was found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from frd.offline.analysis.analyze import Analysis
from frd.offline.memory.analysis import MemoryAnalysis, MemoryJob, RecordedRise

ONE_HOST: Final = "one host, one clock"
ASSUMED: Final = "assumed: --clock-uncertainty"


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
