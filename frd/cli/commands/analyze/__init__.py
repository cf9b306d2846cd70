"""`frd analyze`: the verdict on a folder of dumps, on traces of I/O, or on files of memory
telemetry, without a service.

Parses flags, shows progress and prints. `frd.offline` analyzes, makes the tables and writes files.
"""

from __future__ import annotations

from pathlib import Path

import click

from frd.cli import FINDINGS_PRESENT
from frd.cli.commands.analyze.inputs import (
    analyze_dumps,
    analyze_traces,
    check_seconds,
    refuse,
)
from frd.cli.commands.analyze.memory import MemoryCommand, parse_size
from frd.cli.options import PATH, SeveralValues, json_option, ranks_option
from frd.cli.signals import ended_by_signals
from frd.usage import examples


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
    if memory:
        return MemoryCommand(
            paths=paths,
            traces=traces,
            scheduler=scheduler,
            clock_uncertainty_s=clock_uncertainty,
            min_rise_bytes=min_rise,
            warmup_s=warmup,
            prefix=prefix,
            stall_after_s=stall_after,
            output=output,
            timeline=timeline,
            plot=plot,
        ).run(as_json=as_json)
    refuse(
        {"clock_uncertainty", "min_rise", "warmup", "plot"},
        "applies to files of telemetry: add --memory",
    )
    if transform_ft != (group_world_size is not None):
        raise click.UsageError("--transform-ft and --group-world-size: give both or neither")
    if not (entries or collectives):
        refuse({"ranks", "groups"}, "applies to tables: add --entries or --collectives")
    if not entries:
        refuse({"stacks"}, "applies to the table of entries: add --entries")
    if not paths:
        refuse({"entries", "collectives", "html"}, "applies to dumps: name their folder")
    from frd.cli.screens.analysis import Tables, show, write_files
    from frd.offline.output.export import check_export
    from frd.offline.output.selection import select
    from frd.store.new_path import check_new

    if output is not None:
        check_export(output, traces=bool(traces))
    for file in (timeline, html):
        if file is not None:
            check_new(file)

    analysis = analyze_dumps(paths, prefix, group_world_size, stall_after) if paths else None
    io = None
    if traces:
        analysis, io = analyze_traces(analysis, traces, scheduler)
    wanted_groups = [part.strip() for part in groups.split(",")] if groups else None
    chosen = select(analysis, ranks, wanted_groups) if analysis is not None else None
    show(chosen, io, paths, Tables(entries, collectives, stacks), as_json=as_json)
    write_files(analysis, io, paths, output, timeline, html)
    return FINDINGS_PRESENT if analysis is not None and analysis.findings else 0
