"""The first screen of `frd analyze`: what an on-call engineer should know, most important first.

The verdict and its findings, then what the folder holds, then what is not known, then where to look
further. Draws an `Analysis` and concludes nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from frd.cli.screens.finding_panel import facts_table, finding_panel, listed, more_text
from frd.engine.findings.text import ranks
from frd.engine.memory.text import size
from frd.forms import counted, finding_json, fold_ranks, ranks_text
from frd.model import Finding, Kind
from frd.offline.analysis.analyze import Analysis
from frd.offline.memory.analysis import MemoryAnalysis, MemoryJob, MemoryRank, before_text
from frd.offline.output.text_tables import ended
from frd.usage import plain

MAX_FINDINGS = 8
MAX_WARNINGS = 3
_LASTING = frozenset({Kind.STALL})
"""Kinds of findings for which a wait must have lasted; others need no wait."""
MAX_RANKS = 8
MAX_RISES = 8
MAX_PHASES = 6
MAX_JOBS = 4
MAX_FILES = 4


def verdict(analysis: Analysis, folders: Sequence[Path]) -> Iterator[RenderableType]:
    style = "red" if analysis.fault else "yellow" if is_partial(analysis) else "green"
    yield from findings_parts(analysis.summary, analysis.findings, style)
    for text in analysis.not_proven[:MAX_FINDINGS]:
        yield Text(f"not proven: {plain(text)}", style="yellow")
    if (more := len(analysis.not_proven) - MAX_FINDINGS) > 0:
        yield more_text(more, "wait")
    yield facts_table(_facts(analysis, folders))


def findings_parts(
    summary: str, findings: Sequence[Finding], style: str
) -> Iterator[RenderableType]:
    """The verdict, unless the only finding says it, and the first findings."""
    if not (len(findings) == 1 and summary.startswith(findings[0].summary)):
        yield Text(plain(summary), style=f"bold {style}")
    for finding in findings[:MAX_FINDINGS]:
        yield finding_panel(finding_json(finding))
    if (more := len(findings) - MAX_FINDINGS) > 0:
        yield more_text(more, "finding")


def warning_facts(warnings: Sequence[str], here: str) -> Iterator[tuple[str, Text]]:
    """The first warnings, without the folder `here`, which they all name."""
    label = f"{len(warnings)} warnings" if len(warnings) > 1 else "warning"
    lines = [Text(plain(text.replace(here, "")), style="yellow") for text in warnings]
    yield from listed(label, lines, MAX_WARNINGS, "warning")


def is_partial(analysis: Analysis) -> bool:
    """True if too little is known for an all-clear."""
    if analysis.missing_ranks or analysis.not_proven:
        return True
    return not any(map(len, analysis.trace.ranks.values()))


def _facts(analysis: Analysis, folders: Sequence[Path]) -> Iterator[tuple[str, Text]]:
    for label, text in dump_facts(analysis, folders):
        yield label, Text(plain(text))
    for what in unknown_facts(analysis):
        yield "not known", Text(plain(what), style="yellow")
    here = f"{folders[0].absolute()}/" if len(folders) == 1 else ""
    yield from warning_facts(analysis.warnings, here)
    for label, line in _next(analysis, folders):
        yield label, Text(line, style="cyan")


def dump_facts(analysis: Analysis, folders: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """What was analyzed: label and text."""
    yield "dumps", _dumps(analysis)
    if analysis.trace.folder and not _is_named(analysis.trace.folder, folders):
        yield "taken from", analysis.trace.folder
    if apart := _apart(analysis):
        yield "earlier", apart
    if span := _span(analysis):
        yield "recorded", span
    if analysis.ranks:
        yield "clocks", analysis.clock_source


def _is_named(folder: str, folders: Sequence[Path]) -> bool:
    """True if the user named this folder or a folder in it."""
    return any(path.absolute().is_relative_to(folder) for path in folders)


def _apart(analysis: Analysis) -> str:
    """Time between earlier dumps and the one that is judged."""
    *earlier, last = analysis.dumps
    if not earlier:
        return ""
    known = [last.taken_by_ns - one.taken_by_ns for one in earlier if one.taken_by_ns]
    before = f", {known[0] / 1e9:.1f} s before the one that is judged" if known else ""
    return f"{counted(len(earlier), 'dump')} of the same job{before}"


def _dumps(analysis: Analysis) -> str:
    trace = analysis.trace
    world = max(trace.world_size, len(analysis.ranks))
    ranks = f"{len(analysis.ranks)} of {world} ranks"
    done = [ended(of, analysis.collectives.facts) for of in trace.ranks.values()]
    total, in_flight = sum(map(len, done)), sum(int((~one).sum()) for one in done)
    used = len(np.unique(np.concatenate([of.group for of in trace.ranks.values()])))
    groups = counted(used, "group")
    return f"{ranks}, {groups} in use, {total:,} entries, {in_flight:,} of them in flight"


def _span(analysis: Analysis) -> str:
    """From the first entry to the last, on the aligned clock."""
    first, last = [], []
    for rank, of in analysis.trace.ranks.items():
        if len(known := of.created_ns[of.created_ns > 0]):
            offset = analysis.clock_offsets_ns.get(rank, 0)
            first.append(int(known.min()) + offset)
            last.append(int(known.max()) + offset)
    if not first:
        return ""
    return period_text(min(first), max(last))


def period_text(first_ns: int, last_ns: int) -> str:
    begin, end = (datetime.fromtimestamp(at // 10**9, UTC) for at in (first_ns, last_ns))
    same_day = begin.date() == end.date()
    return (
        f"{begin:%Y-%m-%d %H:%M:%S} to {end:{'%H:%M:%S' if same_day else '%Y-%m-%d %H:%M:%S'}} UTC"
    )


def unknown_facts(analysis: Analysis) -> Iterator[str]:
    """What the dumps do not show."""
    if analysis.missing_ranks:
        yield f"ranks without a readable dump: {ranks_text(analysis.missing_ranks)}"
    open_ended = [w for w in analysis.waiting if not w.is_proven]
    lasting = [f.kind for f in analysis.findings if f.kind in _LASTING]
    if open_ended and lasting:
        least = min(w.at_least_s for w in open_ended)
        most = max((w.at_most_s or 0.0 for w in open_ended if w.is_before_timeout), default=0.0)
        between = f"{least:.1f} to {most:.1f} s" if most else f"at least {least:.1f} s"
        yield (
            f"time they had waited when dumped: {between}, the files do not say more; if the "
            "job still runs, take another dump and name both folders"
        )
    blind = [s.rank for f in analysis.findings for s in f.suspects if not s.stack]
    if blind:
        verb = "is" if len(set(blind)) == 1 else "are"
        yield f"where {ranks(blind)} {verb} now: for a job that still runs, take frd dump --stacks"
    nowhere = [group.label for group in analysis.groups if not group.size]
    if nowhere:
        yield f"the members of {', '.join(nowhere[:3])}: in no dump"
    resets = [rank for rank, report in analysis.ranks.items() if report.resets]
    if resets:
        yield f"entries before a reset of the recorder: {ranks_text(resets)}"


def _next(analysis: Analysis, folders: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Commands to type next, with labels."""
    command = f"frd analyze {shlex.join(map(str, folders))}"
    suspects = sorted({s.rank for finding in analysis.findings for s in finding.suspects})
    ranks = f" --ranks {fold_ranks(suspects)}" if suspects else ""
    stacks = " --stacks" if analysis.trace.stacks else ""
    yield "look at", f"{command} --entries{ranks}{stacks}"
    yield "", f"{command} --timeline trace.pftrace"


def memory_verdict(analysis: MemoryAnalysis, files: Sequence[Path]) -> Iterator[RenderableType]:
    partial = any(job.missing_ranks for job in analysis.jobs)
    style = "red" if analysis.fault else "yellow" if partial else "green"
    yield from findings_parts(analysis.summary, analysis.findings, style)
    if len(analysis.findings) == 1 and len(analysis.jobs) == 1:  # else the summary is on top
        (finding,) = analysis.findings
        if before := before_text(finding, analysis.rises):
            yield Text(before, style="yellow")
    yield facts_table(_memory_facts(analysis, files))


def _memory_facts(analysis: MemoryAnalysis, files: Sequence[Path]) -> Iterator[tuple[str, Text]]:
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
