"""`frd analyze`: the verdict on a folder of dumps, on traces of I/O, or on files of memory
telemetry, without a service.

Parses flags, shows progress and prints. `frd.offline` analyzes, makes the tables and writes files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from rich.console import Group

from frd.cli import FINDINGS_PRESENT
from frd.cli.options import (
    PATH,
    SeveralValues,
    console,
    json_option,
    print_json,
    progress,
    ranks_option,
)
from frd.usage import examples

if TYPE_CHECKING:  # the analysis is imported late, so that `--help` and completion are fast
    from frd.offline.analysis.analyze import Analysis
    from frd.offline.io.analysis import IoAnalysis


@click.command(
    "analyze",
    cls=SeveralValues,
    epilog=examples(
        "frd analyze dumps                         # the verdict",
        "frd analyze dumps --entries --ranks 2     # what rank 2 recorded",
        "frd analyze dumps --timeline t.pftrace.gz",
        "frd analyze dumps --traces traces         # and the files its ranks read",
        "frd analyze --memory rank_0.jsonl rank_1.jsonl",
    ),
)
@click.argument("paths", metavar="DIR.. | --memory FILE..", nargs=-1, type=PATH)
@click.option(
    "--traces",
    multiple=True,
    type=PATH,
    metavar="PATH..",
    help="Files and folders of I/O traces (DFTracer): what each rank read and waited for.",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="With --traces: read them on this Dask cluster. Default: processes of this machine.",
)
@click.option("--memory", is_flag=True, help="Read files of memory telemetry instead of dumps.")
@click.option(
    "--clock-uncertainty",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="With --memory: how far off each host's clock may be. By default 1.",
)
@click.option("-p", "--prefix", metavar="P", help="Prefix of the file names, before the rank.")
@click.option("--entries", is_flag=True, help="A table of each rank's entries.")
@click.option("--collectives", is_flag=True, help="A table of all collectives.")
@ranks_option("Only these ranks in the tables.")
@click.option(
    "--groups",
    metavar="G,..",
    help="Only these groups in the tables: names or descriptions; * matches anything.",
)
@click.option(
    "--stacks", is_flag=True, help="With --entries: the stacks, each once, below the table."
)
@json_option
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="FILE",
    help="Write all tables to a new .json, .sqlite or .parquet file; with --traces also .csv.",
)
@click.option(
    "--timeline",
    type=PATH,
    metavar="FILE",
    help="Write a trace for ui.perfetto.dev to a new file, compressed if it ends in .gz.",
)
@click.option(
    "--html", type=PATH, metavar="FILE", help="Write the verdict to a new self-contained HTML page."
)
@click.option(
    "--stall-after",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long an op must have waited when dumped to be a hang. Default: the threshold of the "
    "service that took the dumps, else 10.",
)
@click.option("--transform-ft", is_flag=True, help="The dumps are those of torchft replicas.")
@click.option(
    "--group-world-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Ranks in one torchft replica.",
)
def command(
    paths: tuple[Path, ...],
    traces: tuple[Path, ...],
    scheduler: str | None,
    memory: bool,
    clock_uncertainty: float | None,
    prefix: str | None,
    entries: bool,
    collectives: bool,
    ranks: tuple[int, ...] | None,
    groups: str | None,
    stacks: bool,
    as_json: bool,
    output: Path | None,
    timeline: Path | None,
    html: Path | None,
    stall_after: float | None,
    transform_ft: bool,
    group_world_size: int | None,
) -> int:
    """Name the first cause in DIR, a folder of Flight Recorder dumps; no service needed.

    The dumps may be of any version and backend, of several hosts in subfolders, gzipped, or what
    `frd dump` made. Several folders are dumps of one job at different times: a wait that is in the
    first and still in the last has lasted. With --traces: what each rank read, waited for and left
    open, and the file that starved the first cause. With --memory: name the rank whose memory rose
    first, from files of telemetry events. Exit code 3 when there are findings.
    """
    if not paths and (memory or not traces):
        context = click.get_current_context()
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    if memory:
        _check_memory(paths)
        return _analyze_memory(paths, clock_uncertainty, as_json)
    if clock_uncertainty is not None:
        raise click.UsageError("--clock-uncertainty: applies to files of telemetry: add --memory")
    if scheduler is not None and not traces:
        raise click.UsageError("--scheduler: applies to traces: add --traces")
    if transform_ft != (group_world_size is not None):
        raise click.UsageError("--transform-ft and --group-world-size: give both or neither")
    if (ranks or groups) and not (entries or collectives):
        raise click.UsageError(
            "--ranks, --groups: choose what tables show: add --entries or --collectives"
        )
    if stacks and not entries:
        raise click.UsageError("--stacks: the stacks of entries: add --entries")
    if not paths and (entries or collectives or html is not None):
        raise click.UsageError("--entries, --collectives, --html: show dumps: name their folder")
    from frd.cli.screens.analysis import Tables, show, write_files
    from frd.offline.output.export import check_export
    from frd.offline.output.selection import select
    from frd.store.new_path import check_new

    if output is not None:
        check_export(output, traces=bool(traces))
    for file in (timeline, html):
        if file is not None:
            check_new(file)
    _check_apart({"--output": output, "--timeline": timeline, "--html": html})

    analysis = _analyze_dumps(paths, prefix, group_world_size, stall_after) if paths else None
    io = None
    if traces:
        analysis, io = _analyze_traces(analysis, traces, scheduler)
    wanted_groups = [part.strip() for part in groups.split(",")] if groups else None
    chosen = select(analysis, ranks, wanted_groups) if analysis is not None else None
    show(chosen, io, paths, Tables(entries, collectives, stacks), as_json=as_json)
    write_files(analysis, io, paths, output, timeline, html)
    return FINDINGS_PRESENT if analysis is not None and analysis.findings else 0


def _check_apart(files: Mapping[str, Path | None]) -> None:
    """Two outputs in one file: refuse before one of them is written."""
    by_path: dict[str, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        if (other := by_path.setdefault(os.path.realpath(path), option)) != option:
            raise click.UsageError(f"{option}: {path}: is the file of {other}: name another one")


def _analyze_dumps(
    paths: Sequence[Path],
    prefix: str | None,
    group_world_size: int | None,
    stall_after: float | None,
) -> Analysis:
    from frd.offline.analysis.analyze import analyze
    from frd.offline.load.job_choice import load_dumps

    with progress("reading dumps") as step:
        *earlier, last = load_dumps(
            paths, prefix=prefix, progress=step, transform_ft=group_world_size
        )
    return analyze(last, stall_after_s=stall_after, earlier=earlier)


def _analyze_traces(
    analysis: Analysis | None, traces: Sequence[Path], scheduler: str | None
) -> tuple[Analysis | None, IoAnalysis]:
    """Both; what starved a first cause is in both."""
    from frd.offline.io.analysis import load_traces
    from frd.offline.io.starved import with_starved

    known = {}
    if analysis is not None:
        ranks = analysis.trace.ranks.items()
        known = {rank: one.info for rank, one in ranks if one.info is not None}
    with progress("reading traces") as step:
        io = load_traces(
            traces,
            known=known,
            offsets_ns=analysis.clock_offsets_ns if analysis is not None else None,
            scheduler=scheduler,
            progress=step,
        )
    return (None, io) if analysis is None else with_starved(analysis, io)


# -- files of memory telemetry -------------------------------------------------------------------


_WITH_MEMORY = frozenset({"paths", "memory", "clock_uncertainty", "as_json"})


def _check_memory(paths: tuple[Path, ...]) -> None:
    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        source = context.get_parameter_source(name)
        if name not in _WITH_MEMORY and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{option.opts[-1]}: applies to dumps: leave it out with --memory"
            )
    for path in paths:
        if path.is_dir():
            raise click.UsageError(
                f"--memory: {path}: is a folder: name the files of telemetry in it, or leave out "
                "--memory to analyze dumps"
            )


def _analyze_memory(paths: tuple[Path, ...], clock_uncertainty: float | None, as_json: bool) -> int:
    from frd.cli.screens.memory_verdict import memory_verdict
    from frd.offline.memory.analysis import CLOCK_UNCERTAINTY_S, load_memory

    reach_s = CLOCK_UNCERTAINTY_S if clock_uncertainty is None else clock_uncertainty
    with progress("reading telemetry (MiB)") as step:
        analysis = load_memory(
            paths,
            clock_uncertainty_s=reach_s,
            progress=lambda done, total: step(done >> 20, total >> 20),
        )
    if as_json:
        print_json(analysis.to_json())
    else:
        console().print(Group(*memory_verdict(analysis, paths)))
    return FINDINGS_PRESENT if analysis.findings else 0
