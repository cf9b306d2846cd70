"""What was found in recorded memory samples. All values are frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from frd.engine.views import Rise
from frd.forms import finding_json, utc_text
from frd.model import Finding
from frd.offline.memory.feed import Lane
from frd.offline.memory.samples import Recorded
from frd.offline.phases.answer import PhaseAnswer
from frd.offline.phases.rank_phases import PhaseGain
from frd.offline.phases.table import PhaseTable


@dataclass(frozen=True, slots=True)
class MemoryRank:
    """Contents of the files for one rank."""

    rank: int
    hosts: tuple[str, ...]
    processes: tuple[str, ...]
    samples: int
    first_ns: int
    last_ns: int
    what: str
    """What the following numbers count: ``device``, ``allocator`` or ``host``."""
    first_bytes: int
    peak_bytes: int
    last_bytes: int
    capacity_bytes: int
    """0 unknown."""


@dataclass(frozen=True, slots=True)
class MemoryJob:
    job: str
    world_size: int
    """0 if no event has it."""
    ranks: Mapping[int, MemoryRank]
    missing_ranks: tuple[int, ...]
    """Ranks of the world that are in no file."""
    hosts: tuple[str, ...]
    lanes: tuple[Lane, ...] = field(repr=False)
    """Where the samples of each process are in `MemoryAnalysis.recorded`; by rank, then time."""
    clock_uncertainty_ns: int
    """Of every host; 0 if there is only one."""

    @property
    def length_ns(self) -> int:
        """From the first sample of any rank to the last."""
        ranks = self.ranks.values()
        return max(one.last_ns for one in ranks) - min(one.first_ns for one in ranks)


@dataclass(frozen=True, slots=True)
class RecordedRise(Rise):
    """A rise as views of live jobs have it, and what only a recording says of it."""

    job: str
    phase: PhaseAnswer
    """In which its first rank was."""

    def to_json(self, utc_ahead_ns: int = 0) -> dict[str, Any]:
        common = Rise.to_json(self, utc_ahead_ns)
        return {"job": self.job, **common, "phase": self.phase.to_json()}


@dataclass(frozen=True, slots=True)
class MemoryAnalysis:
    """Result of the analysis. `findings` are the same objects as the service's."""

    findings: Sequence[Finding]
    """Those that were open at the end first, then the oldest."""
    rises: Sequence[RecordedRise]
    """Of all jobs, by the onset; alarming or not."""
    phase_gains: Sequence[PhaseGain]
    """Bytes gained in each phase, the most first; empty if no phase is known."""
    jobs: Sequence[MemoryJob]
    """By name; jobs with samples."""
    clock_source: str
    """How exactly the clocks of hosts are known, for people."""
    summary: str
    warnings: Sequence[str]
    recorded: Recorded = field(repr=False)
    phases: PhaseTable = field(repr=False)

    @property
    def fault(self) -> bool:
        return bool(self.findings)

    def to_json(self) -> dict[str, Any]:
        """The object that `frd analyze --memory --json` prints; of dumps it has the same keys."""
        several = len(self.jobs) > 1
        return {
            "findings": [finding_json(finding) for finding in self.findings],
            "rises": [rise.to_json() for rise in self.rises],
            "phases": [gain.to_json() for gain in self.phase_gains],
            "ranks": {
                f"{job.job}/{rank}" if several else str(rank): _rank_json(usage)
                for job in self.jobs
                for rank, usage in job.ranks.items()
            },
            "groups": [],
            "jobs": [
                {
                    "job": job.job,
                    "world_size": job.world_size,
                    "ranks": list(job.ranks),
                    "missing_ranks": list(job.missing_ranks),
                    "hosts": list(job.hosts),
                }
                for job in self.jobs
            ],
            "missing_ranks": sorted({rank for job in self.jobs for rank in job.missing_ranks}),
            "clocks": {"source": self.clock_source},
            "warnings": list(self.warnings),
            "fault": self.fault,
            "summary": self.summary,
        }


def _rank_json(usage: MemoryRank) -> dict[str, Any]:
    return {
        "samples": usage.samples,
        "hosts": list(usage.hosts),
        "processes": list(usage.processes),
        "first_at": utc_text(usage.first_ns),
        "last_at": utc_text(usage.last_ns),
        "memory": usage.what,
        "first_bytes": usage.first_bytes,
        "peak_bytes": usage.peak_bytes,
        "last_bytes": usage.last_bytes,
        "capacity_bytes": usage.capacity_bytes or None,
    }
