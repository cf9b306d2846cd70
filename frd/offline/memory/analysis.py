"""What was found in recorded memory samples, and what people should know of a recording: its
summary, its clocks, what is odd about it. All values are frozen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from frd.engine.findings import text
from frd.engine.memory.text import duration, size
from frd.engine.views import Rise
from frd.forms import finding_json, span_text, utc_text
from frd.model import Finding
from frd.offline.memory.feed import Lane
from frd.offline.memory.samples import Recorded
from frd.offline.memory.telemetry import KNOWN_VERSIONS, is_oom
from frd.offline.phases.answer import PhaseAnswer
from frd.offline.phases.rank_phases import PhaseGain
from frd.offline.phases.table import PhaseTable

_FIRST_NS: Final = 946_684_800 * 10**9
"""The year 2000: seconds, ms and µs since 1970 are below it."""
_MOST_LISTED: Final = 8
"""Entries that a warning lists."""


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


def notes_of(recorded: Recorded) -> Iterator[str]:
    """What was left out of the files, or changed."""
    others = Counter({kind: n for kind, n in recorded.others.items() if not is_oom(kind)})
    if others:
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in others.most_common(_MOST_LISTED))
        yield f"{others.total():,} events are no samples ({kinds}): left out"
    if recorded.refused:
        reasons = ", ".join(f"{n:,} {why}" for why, n in recorded.refused.most_common(_MOST_LISTED))
        yield f"{recorded.refused.total():,} values refused: {reasons}"
    for version in recorded.later_versions[:_MOST_LISTED]:
        yield f"schema_version {version}: read as {KNOWN_VERSIONS[-1]}, the latest known here"
    if recorded.bin_ns:
        yield (
            f"more samples than fit: thinned to one in {recorded.bin_ns / 1e9:g} s, "
            "the highest: onsets are that much less exact"
        )


def job_notes(job: MemoryJob, warmup_s: float = 0.0) -> Iterator[str]:
    """What is odd about the ranks of a job."""
    length_s = job.length_ns / 1e9
    if warmup_s and warmup_s >= length_s:
        yield (
            f"{job.job}: the recording lasts {duration(length_s)}, all of it within --warmup "
            f"{warmup_s:g}: no rise is looked for"
        )
    if (first := min(usage.first_ns for usage in job.ranks.values())) < _FIRST_NS:
        yield (
            f"{job.job}: samples of {utc_text(first)}: timestamp_ns is not in nanoseconds since "
            "1970: durations and rates are wrong"
        )
    few = [rank for rank, usage in job.ranks.items() if usage.samples < 2]
    if few:
        yield f"{job.job}: {text.ranks(few)}: fewer than two samples: not judged"
    parallel = sorted({lane.stream.rank for lane in job.lanes if lane.source})
    if parallel:
        yield f"{job.job}: {text.ranks(parallel)}: several processes together: judged separately"
    after = [rank for rank, usage in job.ranks.items() if len(usage.processes) > 1]
    if again := sorted(set(after) - set(parallel)):
        yield f"{job.job}: {text.ranks(again)}: another process took over: judged from there on"
    if job.world_size and max(job.ranks) >= job.world_size:
        yield (
            f"{job.job}: rank {max(job.ranks)}, but world_size is {job.world_size}: a world of "
            f"{max(job.ranks) + 1} is assumed"
        )


def clocks_text(jobs: Sequence[MemoryJob], uncertainty_ns: int) -> str:
    hosts = max(len(job.hosts) for job in jobs)
    if hosts < 2:
        return "one host, one clock"
    return (
        f"those of {hosts} hosts, never compared: each is assumed to be right within "
        f"±{span_text(uncertainty_ns)} (--clock-uncertainty)"
    )


def summary_of(
    findings: Sequence[Finding],
    rises: Sequence[RecordedRise],
    jobs: Sequence[MemoryJob],
    min_rise: int,
    warmup_s: float = 0.0,
) -> str:
    """The first finding, since the others are younger, or closed; else the first rise."""
    absent = [rank for job in jobs for rank in job.missing_ranks]
    without = f"; no samples of {text.ranks(absent)}" if absent and len(jobs) == 1 else ""
    if not findings:
        verdict = _verdict(rises, min_rise, warmup_s, several=len(jobs) > 1)
        return f"no memory trouble; {verdict}{without}"
    name = f"{findings[0].job}: " if len(jobs) > 1 else ""
    more = f" ({len(findings) - 1} more below)" if len(findings) > 1 else ""
    before = f"; {earlier}" if (earlier := before_text(findings[0], rises)) else ""
    return f"{name}{findings[0].summary}{more}{before}{without}"


def _verdict(
    rises: Sequence[RecordedRise], min_rise: int, warmup_s: float = 0.0, *, several: bool = False
) -> str:
    """The answer for a recording without trouble; of `several` jobs it names the job."""
    named = [rise for rise in rises if rise.suspects]
    open_ones = [rise for rise in rises if not rise.suspects and not rise.common_cause]
    if found := (named or open_ones or rises):
        name = f"{found[0].job}: " if several else ""
        alone = "" if named or open_ones else "; no rank's memory rose alone"
        return f"{name}{found[0].text}{alone}"
    after = f" after the first {warmup_s:g} s" if warmup_s else ""
    return f"no rank's memory rose by more than {size(min_rise)}{after}"


def before_text(finding: Finding, rises: Sequence[RecordedRise]) -> str:
    """A rise of another rank that is too small to alarm, but was earlier; empty if none."""
    named = {suspect.rank for suspect in finding.suspects}
    of_job = [rise for rise in rises if rise.job == finding.job and rise.suspects]
    about = next((rise for rise in of_job if rise.alarming and named & set(rise.ranks)), None)
    first = of_job[0] if of_job else None
    if about is None or first is None or first is about or named & set(first.ranks):
        return ""
    return f"before it, memory of {text.ranks(first.ranks)} rose by {size(first.bytes)}"
