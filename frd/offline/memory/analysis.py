"""The verdict on recorded memory samples: the rank whose memory rose first, from files.

`load_memory` reads files of telemetry events, feeds each job's samples to the live engine and
collects its findings. All answers are frozen values.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from frd.engine.attempt import Attempt
from frd.engine.findings import text
from frd.engine.findings.claim import Known
from frd.engine.findings.tracker import Tracker
from frd.engine.memory.detector import MemoryDetector
from frd.engine.policy import Policy
from frd.errors import TelemetryError
from frd.forms import finding_json, span_text, utc_text
from frd.model import AlignedNs, AttemptKey, Finding, FindingState
from frd.offline.memory.feed import Feed, Lane, lanes_of, process_text
from frd.offline.memory.reading import Progress, read_recording
from frd.offline.memory.rises.rise import Rise
from frd.offline.memory.rises.rises import MIN_RISE_BYTES, Watched, find_rises
from frd.offline.memory.samples import Recorded
from frd.offline.memory.telemetry import ALLOCATED, KNOWN_VERSIONS, RESERVED, USED
from frd.offline.phases.answer import Certainty, PhaseAnswer

CLOCK_UNCERTAINTY_S: Final = 1.0
"""Default clock uncertainty of each host, for clocks kept by a time service. Rises on two hosts
within twice that are a tie."""
_WARMUP_SHARE: Final = 0.25
"""Of a short record so much, at most, is taken for the job's start, in which memory may rise."""
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


@dataclass(frozen=True, slots=True)
class MemoryAnalysis:
    """Result of the analysis. `findings` are the same objects as the service's."""

    findings: Sequence[Finding]
    """Those that were open at the end first, then the oldest."""
    rises: Sequence[Rise]
    """Of all jobs, by the onset; alarming or not."""
    jobs: Sequence[MemoryJob]
    """By name; jobs with samples."""
    clock_source: str
    """How exactly the clocks of hosts are known, for people."""
    summary: str
    warnings: Sequence[str]
    recorded: Recorded = field(repr=False)

    @property
    def fault(self) -> bool:
        return bool(self.findings)

    def to_json(self) -> dict[str, Any]:
        """The object that `frd analyze --memory --json` prints; of dumps it has the same keys."""
        several = len(self.jobs) > 1
        return {
            "findings": [finding_json(finding) for finding in self.findings],
            "rises": [rise.to_json() for rise in self.rises],
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


def load_memory(
    paths: Sequence[str | os.PathLike[str]],
    *,
    clock_uncertainty_s: float = CLOCK_UNCERTAINTY_S,
    progress: Progress | None = None,
) -> MemoryAnalysis:
    """Analyzes files of telemetry events; see `frd.load_memory`.

    Raises:
        TelemetryError: there is no sample in any of them.
    """
    files = [Path(path) for path in paths]
    warnings: list[str] = []
    recorded = read_recording(files, warnings, progress or (lambda done, total: None))
    if not len(recorded.stream):
        what = files[0] if files else "no files"
        because = f" ({warnings[0]})" if warnings else ""
        raise TelemetryError(f"{what}: no memory sample in it{because}: name telemetry files")
    unnamed = files[0].absolute().parent.name or "job"
    return analyze_memory(recorded, warnings, clock_uncertainty_s, unnamed=unnamed)


# -- analysis ----------------------------------------------------------------------------------


def analyze_memory(
    recorded: Recorded,
    warnings: Sequence[str] = (),
    clock_uncertainty_s: float = CLOCK_UNCERTAINTY_S,
    *,
    unnamed: str = "job",
) -> MemoryAnalysis:
    """The findings of what was recorded; `unnamed` is what a job without a name is called."""
    findings: list[Finding] = []
    rises: list[Rise] = []
    jobs: list[MemoryJob] = []
    notes = [*warnings, *_notes(recorded)]
    for name, lanes in sorted(lanes_of(recorded).items()):
        job = _job(
            name or unnamed,
            recorded.world_size.get(name, 0),
            recorded,
            lanes,
            round(clock_uncertainty_s * 1e9),
        )
        found = _findings(recorded, lanes, job)
        watched = Watched(
            job=job.job,
            lanes=lanes,
            missing=job.missing_ranks,
            clock_uncertainty_ns=job.clock_uncertainty_ns,
            findings=found,
            phase_at=lambda rank, begin, end: PhaseAnswer(Certainty.NONE),
        )
        findings += found
        rises += find_rises(recorded, watched, MIN_RISE_BYTES, 0)
        notes += _notes_of(job, lanes)
        jobs.append(job)
    if len(jobs) > 1:
        notes.append(f"{len(jobs)} jobs in these files: each is judged by itself")
    # A file does not show how urgent a finding was then.
    findings = [replace(one, severity=None) for one in findings]
    findings.sort(key=lambda one: (one.state is FindingState.CLOSED, one.opened_at))
    return MemoryAnalysis(
        findings=tuple(findings),
        rises=tuple(sorted(rises, key=lambda rise: rise.onset)),
        jobs=tuple(jobs),
        clock_source=_clocks(jobs, clock_uncertainty_s),
        summary=_summary(findings, jobs),
        warnings=tuple(notes),
        recorded=recorded,
    )


def _findings(recorded: Recorded, lanes: Sequence[Lane], job: MemoryJob) -> list[Finding]:
    """As the live engine gives them, in their last version."""
    begin = min(lane.first_ns for lane in lanes)
    length_s = (max(lane.last_ns for lane in lanes) - begin) / 1e9
    live = Policy()
    policy = replace(live, memory_warmup_s=min(live.memory_warmup_s, length_s * _WARMUP_SHARE))
    world_size = max(job.world_size, max(job.ranks) + 1)
    attempt = Attempt(AttemptKey(job.job, 0), world_size, policy, AlignedNs(begin))
    detector = MemoryDetector()
    life = detector.lifetime(policy)
    tracker = Tracker(attempt.key, [life])
    found: dict[str, Finding] = {}
    for now in Feed(recorded, lanes, attempt, job.clock_uncertainty_ns).steps():
        if (look := detector.evaluate(attempt.tick(now), Known())) is None:
            continue
        room = policy.max_findings - len(found)
        for event in tracker.update(life, look, room=room):
            found[event.finding.id] = event.finding
    return list(found.values())


def _job(
    name: str, world_size: int, recorded: Recorded, lanes: Sequence[Lane], clock_uncertainty_ns: int
) -> MemoryJob:
    ranks = {rank: _rank(recorded, list(of)) for rank, of in groupby(lanes, _rank_of)}
    hosts = dict.fromkeys(lane.stream.host for lane in lanes)
    missing = set(range(world_size)) - ranks.keys()
    return MemoryJob(
        job=name,
        world_size=world_size,
        ranks=ranks,
        missing_ranks=tuple(sorted(missing)),
        hosts=tuple(hosts),
        lanes=tuple(lanes),
        clock_uncertainty_ns=clock_uncertainty_ns if len(hosts) > 1 else 0,
    )


def _rank_of(lane: Lane) -> int:
    return lane.stream.rank


def _rank(recorded: Recorded, lanes: Sequence[Lane]) -> MemoryRank:
    """The numbers are those of the lane with the most samples."""
    main = max(lanes, key=len)
    values = recorded.values[main.rows]
    if main.stream.of_host:
        what, preferred = "host", [USED, ALLOCATED]
    else:
        what, preferred = "device", [USED, RESERVED, ALLOCATED]
    column = next(c for c in preferred if (values[:, c] >= 0).any())
    known = values[values[:, column] >= 0, column]
    if what == "device" and column != USED:
        what = "allocator"
    return MemoryRank(
        rank=main.stream.rank,
        hosts=tuple(dict.fromkeys(lane.stream.host for lane in lanes)),
        processes=tuple(dict.fromkeys(process_text(lane.stream) for lane in lanes)),
        samples=sum(map(len, lanes)),
        first_ns=min(lane.first_ns for lane in lanes),
        last_ns=max(lane.last_ns for lane in lanes),
        what=what,
        first_bytes=int(known[0]),
        peak_bytes=int(known.max()),
        last_bytes=int(known[-1]),
        capacity_bytes=main.capacity,
    )


# -- what people should know ---------------------------------------------------------------------


def _notes(recorded: Recorded) -> Iterator[str]:
    """What was left out of the files, or changed."""
    if recorded.others:
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in recorded.others.most_common(_MOST_LISTED))
        yield f"{recorded.others.total():,} events are no samples ({kinds}): left out"
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


def _notes_of(job: MemoryJob, lanes: Sequence[Lane]) -> Iterator[str]:
    """What is odd about the ranks of a job."""
    few = [rank for rank, usage in job.ranks.items() if usage.samples < 2]
    if few:
        yield f"{job.job}: {text.ranks(few)}: fewer than two samples: not judged"
    parallel = sorted({lane.stream.rank for lane in lanes if lane.source})
    if parallel:
        yield f"{job.job}: {text.ranks(parallel)}: several processes together: judged separately"
    after = [rank for rank, usage in job.ranks.items() if len(usage.processes) > 1]
    if again := sorted(set(after) - set(parallel)):
        yield f"{job.job}: {text.ranks(again)}: another process took over: judged from there on"
    if job.world_size and max(job.ranks) >= job.world_size:
        yield f"{job.job}: rank {max(job.ranks)} in a world of {job.world_size}: there are more"


def _clocks(jobs: Sequence[MemoryJob], uncertainty_s: float) -> str:
    hosts = max(len(job.hosts) for job in jobs)
    if hosts < 2:
        return "one host, one clock"
    return (
        f"those of {hosts} hosts, never compared: each is assumed to be right within "
        f"±{span_text(round(uncertainty_s * 1e9))} (--clock-uncertainty)"
    )


def _summary(findings: Sequence[Finding], jobs: Sequence[MemoryJob]) -> str:
    """The first finding is the summary: the others are younger, or closed."""
    absent = [rank for job in jobs for rank in job.missing_ranks]
    without = f"; no samples of {text.ranks(absent)}" if absent and len(jobs) == 1 else ""
    if not findings:
        return f"the samples show no memory fault{without}"
    more = f" ({len(findings) - 1} more below)" if len(findings) > 1 else ""
    return f"{findings[0].summary}{more}{without}"
