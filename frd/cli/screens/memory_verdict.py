"""The first screen of `frd analyze --memory`: the verdict, the memory of each rank, what is not
known. Draws a `MemoryAnalysis` and concludes nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from frd.cli.screens.finding_panel import facts_table, listed, more_text
from frd.cli.screens.verdict import findings_parts, period_text, warning_facts
from frd.engine.memory.text import size
from frd.forms import counted, ranks_text
from frd.offline.memory.analysis import MemoryAnalysis, MemoryJob, MemoryRank
from frd.offline.memory.notes import before_text
from frd.usage import plain

MAX_RANKS = 8
MAX_RISES = 8
MAX_PHASES = 6
MAX_JOBS = 4
MAX_FILES = 4


def memory_verdict(analysis: MemoryAnalysis, files: Sequence[Path]) -> Iterator[RenderableType]:
    partial = any(job.missing_ranks for job in analysis.jobs)
    style = "red" if analysis.fault else "yellow" if partial else "green"
    yield from findings_parts(analysis.summary, analysis.findings, style)
    if len(analysis.findings) == 1 and len(analysis.jobs) == 1:  # else the summary is on top
        (finding,) = analysis.findings
        if before := before_text(finding, analysis.rises):
            yield Text(before, style="yellow")
    yield facts_table(_facts(analysis, files))


def _facts(analysis: MemoryAnalysis, files: Sequence[Path]) -> Iterator[tuple[str, Text]]:
    several = len(analysis.jobs) > 1
    for job in analysis.jobs[:MAX_JOBS]:
        name = f"{job.job}: " if several else ""
        yield "samples", Text(plain(f"{name}{_samples(job)}"))
        first = min(usage.first_ns for usage in job.ranks.values())
        last = max(usage.last_ns for usage in job.ranks.values())
        yield "recorded", Text(period_text(first, last))
        for number, line in enumerate(_memory(analysis, job)):
            yield "memory" if number == 0 else "", Text(plain(line))
        if job.missing_ranks:
            what = f"{name}ranks without samples: {ranks_text(job.missing_ranks)}"
            yield "not known", Text(plain(what), style="yellow")
    if (more := len(analysis.jobs) - MAX_JOBS) > 0:
        yield "", more_text(more, "job")
    yield from listed("rises", [*_rises(analysis)], MAX_RISES, "rise")
    yield from listed("phases", [*_phases(analysis)], MAX_PHASES, "phase")
    yield "clocks", Text(plain(analysis.clock_source))
    yield from warning_facts(analysis.warnings, f"{files[0].absolute().parent}/")
    names = shlex.join(map(str, files)) if len(files) <= MAX_FILES else "FILE.."
    yield "look at", Text(plain(f"frd analyze --memory {names} --json"), style="cyan")


def _rises(analysis: MemoryAnalysis) -> Iterator[Text]:
    """In the order of onset; the alarming ones are findings as well."""
    several = len(analysis.jobs) > 1
    for rise in analysis.rises:
        name = f"{rise.job}: " if several else ""
        sure = f" ({rise.suspects[0].confidence.value} confidence)" if rise.suspects else ""
        style = "red" if rise.alarming else ""
        yield Text(plain(f"{name}{rise.text}{sure}"), style=style)


def _phases(analysis: MemoryAnalysis) -> Iterator[Text]:
    """What most memory was gained in, of the kind of series that has the most."""
    several = len(analysis.jobs) > 1
    for gain in analysis.phase_gains:
        if gain.kind == analysis.phase_gains[0].kind:
            name = f"{gain.job}: " if several else ""
            path = " / ".join(gain.path) or "outside of phases"
            sign = "+" if gain.bytes_gained >= 0 else ""
            most = f", most on rank {gain.most_rank}" if gain.ranks > 1 and gain.most_bytes else ""
            gained = f"{sign}{size(gain.bytes_gained)} on {counted(gain.ranks, 'rank')}"
            yield Text(plain(f"{name}{path}: {gained}{most}"))


def _samples(job: MemoryJob) -> str:
    world = len(job.ranks) + len(job.missing_ranks)
    count = sum(usage.samples for usage in job.ranks.values())
    of_world = f"{len(job.ranks)} of {counted(world, 'rank')}"
    return f"{of_world} on {counted(len(job.hosts), 'host')}, {counted(count, 'sample')}"


def _memory(analysis: MemoryAnalysis, job: MemoryJob) -> Iterator[str]:
    """Suspects first, then the ranks that use the largest share of their capacity."""
    named = [s.rank for f in analysis.findings if f.job == job.job for s in f.suspects]
    order = dict.fromkeys(rank for rank in named if rank in job.ranks)
    order |= dict.fromkeys(sorted(job.ranks, key=lambda rank: -_share(job.ranks[rank])))
    for rank in list(order)[:MAX_RANKS]:
        usage = job.ranks[rank]
        capacity = f" of {size(usage.capacity_bytes)}" if usage.capacity_bytes else ""
        moved = f"{size(usage.first_bytes)} to {size(usage.last_bytes)}"
        what = _WHAT.get(usage.what, "")
        yield f"rank {rank}: {what}{moved}, at most {size(usage.peak_bytes)}{capacity}"
    if (more := len(order) - MAX_RANKS) > 0:
        yield f"… {counted(more, 'rank')} used no more: --json has all of them"


_WHAT = {"allocator": "torch's allocator ", "host": "host memory "}


def _share(usage: MemoryRank) -> float:
    return usage.peak_bytes / (usage.capacity_bytes or 1)
