"""What people should know of a recording: its summary, its clocks, what is odd about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from frd.engine.findings import text
from frd.engine.memory.text import duration, size
from frd.forms import span_text, utc_text
from frd.model import Finding
from frd.offline.memory.analysis import MemoryJob, RecordedRise
from frd.offline.memory.samples import Recorded
from frd.offline.memory.telemetry import KNOWN_VERSIONS, is_oom

_FIRST_NS: Final = 946_684_800 * 10**9
"""The year 2000: seconds, ms and µs since 1970 are below it."""
_MOST_LISTED: Final = 8
"""Entries that a warning lists."""


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
