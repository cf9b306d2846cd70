"""The verdict on recorded memory samples: the rank whose memory rose first, from files.

`load_memory` reads files of telemetry events. The live engine decides what rose, which
rank was first and what alarms: each job's samples are fed to it.

Dumps and traces may be from another time than a recording: those of another run fit by rank only,
and a timeline of both is empty between them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

import numpy as np

from frd.engine.attempt import Attempt
from frd.engine.findings.builder import Known
from frd.engine.findings.tracker import Tracker
from frd.engine.memory.detector import MemoryDetector
from frd.engine.memory.walk.levels import QUARTER
from frd.engine.memory.walk.rank_rise import RankRise
from frd.engine.policy import Policy
from frd.engine.views import Rise
from frd.errors import ConfigError, TelemetryError
from frd.forms import utc_text
from frd.model import AlignedNs, AttemptKey, Confidence, Finding, FindingState
from frd.offline.analysis.analyze import Analysis
from frd.offline.io.analysis import IoAnalysis
from frd.offline.memory.analysis import (
    MemoryAnalysis,
    MemoryJob,
    MemoryRank,
    RecordedRise,
    clocks_text,
    job_notes,
    notes_of,
    summary_of,
)
from frd.offline.memory.feed import (
    Feed,
    Lane,
    by_rank,
    device_text,
    lanes_of,
    process_text,
    series_kinds,
)
from frd.offline.memory.reading import Progress, read_recording
from frd.offline.memory.samples import Recorded
from frd.offline.memory.telemetry import ALLOCATED, RESERVED, USED
from frd.offline.phases.rank_phases import PhaseSeries
from frd.offline.phases.table import PhaseTable, build_phases

CLOCK_UNCERTAINTY_S: Final = 1.0
"""Default clock uncertainty of each host, for clocks kept by a time service. Rises on two hosts
within twice that are a tie."""
MAX_SECONDS: Final = 1e9
"""30 years; no recording is longer."""
_FEW: Final = 2
"""A rank with fewer samples is not judged."""
_WARMUP_SHARE: Final = 1 / QUARTER
"""Of a short record so much, at most, is taken for the job's start, in which a rise alarms only
if it goes on."""
_APART_NS: Final = 600 * 10**9
"""A tracker may end so long before the last collective of a job, or begin after the first."""


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """What is known of a recording beyond its samples."""

    clock_uncertainty_s: float = CLOCK_UNCERTAINTY_S
    """How far off each host's clock may be, where there are several hosts."""
    min_rise_bytes: int = Policy().memory_min_rise_bytes
    """What is smaller is not a rise."""
    warmup_s: float | None = None
    """Rises within this long from the first sample of a job do not count. None: all rises are
    found, and those within a quarter of the record, at most a minute, alarm only if they go on."""
    io: IoAnalysis | None = None
    """Traces, whose annotations are phases."""

    def __post_init__(self) -> None:
        seconds = {"clock_uncertainty_s": self.clock_uncertainty_s, "warmup_s": self.warmup_s}
        for name, value in seconds.items():
            if value is not None and not 0 <= value <= MAX_SECONDS:
                raise ConfigError(f"{name}: {value}: not from 0 to {MAX_SECONDS:g} s: name another")
        if self.min_rise_bytes <= 0:
            raise ConfigError(
                f"min_rise_bytes: {self.min_rise_bytes}: not above 0: name a number of bytes"
            )


DEFAULT: Final = MemoryOptions()


def load_memory(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    options: MemoryOptions = DEFAULT,
    progress: Progress | None = None,
) -> MemoryAnalysis:
    """Analyzes files of telemetry events; see `frd.load_memory`.

    Raises:
        TelemetryError: there is no sample in any of them.
    """
    named = [paths] if isinstance(paths, str | os.PathLike) else paths
    files = [Path(path) for path in named]
    warnings: list[str] = []
    recorded = read_recording(files, warnings, progress or (lambda done, total: None))
    if not len(recorded.stream):
        what = files[0] if files else "no files"
        what = f"{what} and {len(files) - 1} more" if len(files) > 1 else what
        known = [*warnings, *notes_of(recorded)]
        if recorded.marks:
            known.append("all events are of phases")
        because = f" ({known[0]})" if known else ""
        raise TelemetryError(f"{what}: no memory sample in it{because}: name telemetry files")
    unnamed = files[0].absolute().parent.name or "job"
    return analyze_memory(recorded, warnings, options, unnamed=unnamed)


def analyze_memory(
    recorded: Recorded,
    warnings: Sequence[str] = (),
    options: MemoryOptions = DEFAULT,
    *,
    unnamed: str = "job",
) -> MemoryAnalysis:
    """What was found in a recording; `unnamed` is what a job without a name is called."""
    reach_ns = round(options.clock_uncertainty_s * 1e9)
    by_job = sorted(lanes_of(recorded).items())
    jobs = [
        _job(name or unnamed, recorded.world_size.get(name, 0), recorded, lanes, reach_ns)
        for name, lanes in by_job
    ]
    phases = _phases(recorded, jobs, options.io, unnamed)
    findings: list[Finding] = []
    rises: list[RecordedRise] = []
    for job in jobs:
        found, risen = _judged(recorded, job, options)
        findings += _less_sure(found, recorded, job)
        rises += [_recorded(recorded, job, rise, first, phases) for rise, first in risen]
    # A file does not show how urgent a finding was then.
    findings = [replace(one, severity=None) for one in findings]
    findings.sort(key=lambda one: (one.state is FindingState.CLOSED, one.opened_at))
    rises.sort(key=lambda rise: rise.onset)
    several = f"{len(jobs)} jobs in these files: each is judged by itself"
    return MemoryAnalysis(
        findings=tuple(findings),
        rises=tuple(rises),
        phase_gains=tuple(phases.gains(_series(recorded, jobs)) if phases.spans else ()),
        jobs=tuple(jobs),
        clock_source=clocks_text(jobs, reach_ns),
        summary=summary_of(findings, rises, jobs, options.min_rise_bytes, options.warmup_s or 0.0),
        warnings=(
            *warnings,
            *notes_of(recorded),
            *phases.warnings,
            *(note for job in jobs for note in job_notes(job, options.warmup_s or 0.0)),
            *([several] if len(jobs) > 1 else []),
        ),
        recorded=recorded,
        phases=phases,
    )


# -- jobs ----------------------------------------------------------------------------------------


def _job(
    name: str, world_size: int, recorded: Recorded, lanes: Sequence[Lane], clock_uncertainty_ns: int
) -> MemoryJob:
    ranks = {rank: _rank(recorded, of_rank) for rank, of_rank in by_rank(lanes)}
    hosts = dict.fromkeys(lane.stream.host for lane in lanes)
    missing = set(range(max(world_size, max(ranks) + 1))) - ranks.keys()
    return MemoryJob(
        job=name,
        world_size=world_size,
        ranks=ranks,
        missing_ranks=tuple(sorted(missing)),
        hosts=tuple(hosts),
        lanes=tuple(lanes),
        clock_uncertainty_ns=clock_uncertainty_ns if len(hosts) > 1 else 0,
    )


def _rank(recorded: Recorded, lanes: Sequence[Lane]) -> MemoryRank:
    """The numbers are those of the device with the most samples, else of the host process.

    Of several devices that have as many, it is the one that used the most.
    """

    def weight(lane: Lane) -> tuple[bool, int, int]:
        return not lane.stream.of_host, len(lane), int(recorded.values[lane.rows].max())

    main = max(lanes, key=weight)
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


# -- what was found ------------------------------------------------------------------------------


def _judged(
    recorded: Recorded, job: MemoryJob, options: MemoryOptions
) -> tuple[list[Finding], list[tuple[Rise, RankRise]]]:
    """As the live engine gives them: findings in their last version, and all rises."""
    begin = min(lane.first_ns for lane in job.lanes)
    policy, warmup_s = Policy(memory_min_rise_bytes=options.min_rise_bytes), options.warmup_s
    if warmup_s is None:
        warmup_s = min(policy.memory_warmup_s, job.length_ns / 1e9 * _WARMUP_SHARE)
    policy = replace(policy, memory_warmup_s=warmup_s)
    world_size = max(job.world_size, max(job.ranks) + 1)
    attempt = Attempt(AttemptKey(job.job, 0), world_size, policy, AlignedNs(begin))
    attempt.memory.kept_ns = job.length_ns
    detector = MemoryDetector()
    life = detector.lifetime(policy)
    tracker = Tracker(attempt.key, [life])
    found: dict[str, Finding] = {}
    for now in Feed(recorded, job.lanes, attempt, job.clock_uncertainty_ns).steps():
        if (look := detector.evaluate(attempt.tick(now), Known())) is None:
            continue
        room = policy.max_findings - len(found)
        for event in tracker.update(life, look, room=room):
            found[event.finding.id] = event.finding
    unsure = {lane.stream.rank for lane in job.lanes if lane.stream in recorded.backward}
    few = {rank for rank, usage in job.ranks.items() if usage.samples < _FEW}
    rises = attempt.memory.rises({*job.missing_ranks, *unsure, *few}, is_over=True)
    since = begin + round((options.warmup_s or 0.0) * 1e9)
    return list(found.values()), [one for one in rises if one[0].onset[1] >= since]


def _less_sure(findings: Sequence[Finding], recorded: Recorded, job: MemoryJob) -> list[Finding]:
    """Findings of a job in which a clock runs back: who was first is not certain."""
    if all(lane.stream not in recorded.backward for lane in job.lanes):
        return list(findings)
    return [
        replace(
            one,
            suspects=tuple(
                replace(suspect, confidence=Confidence.MEDIUM)
                if suspect.confidence is Confidence.HIGH
                else suspect
                for suspect in one.suspects
            ),
        )
        for one in findings
    ]


def _recorded(
    recorded: Recorded, job: MemoryJob, rise: Rise, first: RankRise, phases: PhaseTable
) -> RecordedRise:
    """With what only files show: the phase of the program in which it began."""
    reach = job.clock_uncertainty_ns
    began, seen = (rise.onset[0] + reach, first.hi - reach), first.seen - reach
    scope = thread = None
    for lane in job.lanes:
        device = "" if lane.stream.of_host else device_text(lane.stream)
        if (lane.stream.rank, device) != (first.rank, first.device):
            continue
        row = lane.rows.start + int(recorded.end_ns[lane.rows].searchsorted(seen))
        if row < lane.rows.stop and (origin := recorded.origin_of(row)) is not None:
            scope, thread = origin.scope_id, origin.thread_id
    phase = phases.at(job.job, first.rank, *began, scope_id=scope, thread_id=thread)
    values = {field.name: getattr(rise, field.name) for field in fields(rise)}
    values["text"] = "; ".join(filter(None, (rise.text, phase.text)))
    return RecordedRise(**values, job=job.job, phase=phase)


def _phases(
    recorded: Recorded, jobs: Sequence[MemoryJob], io: IoAnalysis | None, unnamed: str
) -> PhaseTable:
    last: dict[tuple[str, int, int, str], int] = {}
    for lane in (lane for job in jobs for lane in job.lanes):
        stream = lane.stream
        key = stream.job, stream.rank, stream.pid, stream.session
        last[key] = max(lane.last_ns, last.get(key, 0))
    return build_phases(recorded.marks, last, io, unnamed=unnamed)


def _series(recorded: Recorded, jobs: Sequence[MemoryJob]) -> Iterator[PhaseSeries]:
    for job in jobs:
        for lane in job.lanes:
            begin, values = recorded.begin_ns[lane.rows], recorded.values[lane.rows]
            for kind, column in series_kinds(lane.stream, np.any(values >= 0, axis=0)):
                yield PhaseSeries(job.job, lane.stream.rank, kind, begin, values[:, column])


def other_times(
    memory: MemoryAnalysis, dumps: Analysis | None, io: IoAnalysis | None
) -> Iterator[str]:
    """A warning for dumps, and for traces, that are of a quite different time."""
    ranks = [usage for job in memory.jobs for usage in job.ranks.values()]
    begin, end = min(one.first_ns for one in ranks), max(one.last_ns for one in ranks)
    for what, times in (("dumps", _of_dumps(dumps)), ("traces", _of_traces(io))):
        if times and (min(times) > end + _APART_NS or max(times) < begin - _APART_NS):
            yield (
                f"the {what} are from {utc_text(min(times))} to {utc_text(max(times))}, and the "
                f"samples from {utc_text(begin)} to {utc_text(end)}: name files of one run"
            )


def _of_dumps(dumps: Analysis | None) -> list[int]:
    if dumps is None:
        return []
    times: list[int] = []
    for rank, trace in dumps.trace.ranks.items():
        if len(known := trace.created_ns[trace.created_ns > 0]):
            offset = dumps.clock_offsets_ns.get(rank, 0)
            times += [int(known.min()) + offset, int(known.max()) + offset]
    return times


def _of_traces(io: IoAnalysis | None) -> list[int]:
    known = [one.usage for one in io.ranks if one.usage.events] if io is not None else []
    return [at for usage in known for at in (usage.first_ns, usage.last_ns)]
