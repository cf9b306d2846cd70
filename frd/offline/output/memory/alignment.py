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
class ClockOffset:
    """Of the host of one rank, as known from elsewhere."""

    offset_ns: int
    """To add to its times."""
    uncertainty_ns: int | None
    """How far off that is at most; None unknown."""
    source: str
    """``one node, one clock`` or similar, for people."""


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


def offsets_of(dumps: Analysis) -> dict[int, ClockOffset]:
    """The clocks of a folder of dumps, by rank."""
    uncertainties = dumps.clock_uncertainties_ns
    return {
        rank: ClockOffset(offset, uncertainties.get(rank), f"from the dumps: {dumps.clock_source}")
        for rank, offset in dumps.clock_offsets_ns.items()
    }


def clocks_of(analysis: MemoryAnalysis, offsets: Mapping[int, ClockOffset] | None) -> Clocks:
    """The clock of every rank with samples.

    `offsets` are those of one job by rank, so they are used only if there is only one job.
    """
    known = offsets if offsets and len(analysis.jobs) == 1 else {}
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


def _clocks_of_job(job: MemoryJob, known: Mapping[int, ClockOffset]) -> Iterator[RankClock]:
    """A rank without a known clock has that of another rank of its host."""
    by_host = {
        lane.stream.host: known[lane.stream.rank]
        for lane in reversed(job.lanes)
        if lane.stream.rank in known
    }
    assumed = ONE_HOST if len(job.hosts) < 2 else ASSUMED
    for rank, usage in job.ranks.items():
        given = known.get(rank) or by_host.get(usage.hosts[0])
        if given is None:
            yield RankClock(job.job, rank, 0, job.clock_uncertainty_ns, assumed)
        elif given.uncertainty_ns is None:
            source = f"{given.source}; uncertainty {assumed}"
            yield RankClock(job.job, rank, given.offset_ns, job.clock_uncertainty_ns, source)
        else:
            yield RankClock(job.job, rank, given.offset_ns, given.uncertainty_ns, given.source)
