"""`frd analyze`: the verdict on a folder of dumps, on traces of I/O, or on files of memory
telemetry, without a service.

Parses flags, shows progress and prints. `frd.offline` analyzes, makes the tables and writes files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from frd.cli import FINDINGS_PRESENT
from frd.cli.commands.analyze.inputs import (
    analyze_dumps,
    analyze_memory,
    analyze_traces,
    check_seconds,
    parse_size,
    refuse,
)
from frd.cli.options import PATH, SeveralValues, json_option, ranks_option
from frd.cli.signals import ended_by_signals
from frd.usage import examples

_ONLY_DUMPS: Final = (
    "entries", "collectives", "ranks", "groups", "stacks", "html", "transform_ft",
    "group_world_size",
)  # fmt: skip
_DUMPS: Final = (*_ONLY_DUMPS, "prefix", "stall_after")


@click.command(
    "analyze",
    cls=SeveralValues,
    epilog=examples(
        "frd analyze dumps                         # the verdict",
        "frd analyze dumps --entries --ranks 2     # what rank 2 recorded",
        "frd analyze dumps --timeline t.pftrace.gz",
        "frd analyze dumps --traces traces         # and the files its ranks read",
        "frd analyze --memory rank_0.jsonl rank_1.jsonl --plot memory.svg",
        "frd analyze dumps --memory rank_*.jsonl --timeline t.pftrace",
    ),
)
@click.argument("paths", metavar="[DIR..] | [DIR..] --memory FILE..", nargs=-1, type=PATH)
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
    help="With --traces: read them on this Dask cluster.  [default: processes of this machine]",
)
@click.option(
    "--memory",
    is_flag=True,
    help="Read files of memory telemetry; a DIR has dumps of the same job.",
)
@click.option(
    "--clock-uncertainty",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    callback=check_seconds,
    help="With --memory: how far off each host's clock may be.  [default: 1]",
)
@click.option(
    "--min-rise",
    metavar="BYTES",
    callback=parse_size,
    help="With --memory: what is smaller is not a rise.  [default: 64MiB]",
)
@click.option(
    "--warmup",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    callback=check_seconds,
    help="With --memory: rises within this long from the first sample do not count.",
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
    help="Write all tables to a new .json, .sqlite or .parquet file; with --traces also .csv. With "
    "--memory a row a sample to a .jsonl, .csv, .parquet or .sqlite file.",
)
@click.option(
    "--timeline",
    type=PATH,
    metavar="FILE",
    help="Write a trace for ui.perfetto.dev to a new file, compressed if it ends in .gz.",
)
@click.option(
    "--plot",
    type=PATH,
    metavar="FILE",
    help="With --memory: draw the memory of all ranks to a new .svg, .png or .html file.",
)
@click.option(
    "--html", type=PATH, metavar="FILE", help="Write the verdict to a new self-contained HTML page."
)
@click.option(
    "--stall-after",
    type=click.FloatRange(min=0),
    callback=check_seconds,
    metavar="SECONDS",
    help="How long an op must have waited when dumped to be a hang.  [default: the threshold of "
    "the service that took the dumps, else 10]",
)
@click.option("--transform-ft", is_flag=True, help="The dumps are those of torchft replicas.")
@click.option(
    "--group-world-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Ranks in one torchft replica.",
)
@ended_by_signals()
def command(
    paths: tuple[Path, ...],
    traces: tuple[Path, ...],
    scheduler: str | None,
    memory: bool,
    clock_uncertainty: float | None,
    min_rise: int | None,
    warmup: float | None,
    prefix: str | None,
    entries: bool,
    collectives: bool,
    ranks: tuple[int, ...] | None,
    groups: str | None,
    stacks: bool,
    as_json: bool,
    output: Path | None,
    timeline: Path | None,
    plot: Path | None,
    html: Path | None,
    stall_after: float | None,
    transform_ft: bool,
    group_world_size: int | None,
) -> int:
    """Name the first cause in DIR, a folder of Flight Recorder dumps; no service needed.

    The dumps may be of any version and backend, of several hosts in subfolders, gzipped, in an
    archive (.tar, .tar.gz, .zip), or what `frd dump` made. Several folders are dumps of one job at
    different times: a wait that is in the first and still in the last has lasted. With --traces:
    what each rank read, waited for and left open, and the file that starved the first cause. With
    --memory: name the rank whose memory rose first, from files of telemetry events, and list every
    rise. Exit code 3 when there are findings.
    """
    if not paths and (memory or not traces):
        context = click.get_current_context()
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    if not traces:
        refuse({"scheduler"}, "applies to traces: add --traces")
    folders, files = _sorted(paths) if memory else (paths, ())
    if not memory:
        refuse(
            {"clock_uncertainty", "min_rise", "warmup", "plot"},
            "applies to files of telemetry: add --memory",
        )
        if not paths:
            refuse({"entries", "collectives", "html"}, "applies to dumps: name their folder")
    if transform_ft != (group_world_size is not None):
        raise click.UsageError("--transform-ft and --group-world-size: give both or neither")
    if not (entries or collectives):
        refuse({"ranks", "groups"}, "applies to tables: add --entries or --collectives")
    if not entries:
        refuse({"stacks"}, "applies to the table of entries: add --entries")
    from frd.cli.screens.analysis import Found, Tables, check_files, show, write_files
    from frd.offline.output.tables import select

    check_files(output, timeline, plot, html, memory=memory, traces=bool(traces))
    dumps = analyze_dumps(folders, prefix, group_world_size, stall_after) if folders else None
    io = None
    if traces:
        dumps, io = analyze_traces(dumps, traces, scheduler)
    rises = None
    if memory:
        rises = analyze_memory(files, dumps, io, clock_uncertainty, min_rise, warmup)
    found = Found(folders, dumps, io, files, rises)
    wanted_groups = [part.strip() for part in groups.split(",")] if groups else None
    chosen = select(dumps, ranks, wanted_groups) if dumps is not None else None
    show(found, chosen, Tables(entries, collectives, stacks), as_json=as_json)
    write_files(found, output, timeline, plot, html)
    return FINDINGS_PRESENT if found.has_findings else 0


def _sorted(paths: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Folders of dumps, and files of telemetry."""
    from frd.readers.pool import is_archive

    folders = tuple(path for path in paths if path.is_dir() or is_archive(path))
    files = tuple(path for path in paths if path not in folders)
    refuse(_ONLY_DUMPS if folders else _DUMPS, "applies to dumps: leave it out with --memory")
    if not files:
        raise click.UsageError(
            f"--memory: {folders[0]}: is a folder: name the files of telemetry, too; a folder "
            "has dumps of the same job"
        )
    return folders, files
