"""`frd analyze`: the verdict on a folder of dumps, or on files of memory telemetry, without a
service.

Parses flags, shows progress and prints. `frd.offline` analyzes, makes the tables and writes files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from rich.console import Group

from frd.cli import FINDINGS_PRESENT
from frd.cli.options import PATH, console, json_option, print_json, progress, ranks_option
from frd.usage import examples, plain

if TYPE_CHECKING:  # the analysis is imported late, so that `--help` and completion are fast
    from frd.offline.analysis.analyze import Analysis
    from frd.offline.output.selection import Selection


@click.command(
    "analyze",
    epilog=examples(
        "frd analyze dumps                         # the verdict",
        "frd analyze dumps --entries --ranks 2     # what rank 2 recorded",
        "frd analyze dumps --timeline t.pftrace.gz",
        "frd analyze --memory rank_0.jsonl rank_1.jsonl",
    ),
)
@click.argument("paths", metavar="DIR.. | --memory FILE..", nargs=-1, required=True, type=PATH)
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
    help="Write all tables to a new .json, .sqlite or .parquet file.",
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
    first and still in the last has lasted. With --memory: name the rank whose memory rose first,
    from files of telemetry events. Exit code 3 when there are findings.
    """
    if memory:
        _check_memory(paths)
        return _analyze_memory(paths, clock_uncertainty, as_json)
    if clock_uncertainty is not None:
        raise click.UsageError("--clock-uncertainty: applies to files of telemetry: add --memory")
    from frd.offline.analysis.analyze import analyze
    from frd.offline.load.job_choice import load_dumps
    from frd.offline.output.export import check_export
    from frd.offline.output.selection import select
    from frd.store.new_path import check_new

    if transform_ft != (group_world_size is not None):
        raise click.UsageError("--transform-ft and --group-world-size: give both or neither")
    if (ranks or groups) and not (entries or collectives):
        raise click.UsageError(
            "--ranks, --groups: choose what tables show: add --entries or --collectives"
        )
    if stacks and not entries:
        raise click.UsageError("--stacks: the stacks of entries: add --entries")
    wanted_groups = [part.strip() for part in groups.split(",")] if groups else None
    if output is not None:
        check_export(output)
    for file in (timeline, html):
        if file is not None:
            check_new(file)

    with progress("reading dumps") as step:
        *earlier, last = load_dumps(
            paths, prefix=prefix, progress=step, transform_ft=group_world_size
        )
    analysis = analyze(last, stall_after_s=stall_after, earlier=earlier)
    chosen = select(analysis, ranks, wanted_groups)
    if as_json:
        print_json(_json(chosen, entries, collectives))
    elif entries or collectives:
        _print_tables(chosen, entries, collectives, stacks)
    else:
        from frd.cli.screens.verdict import verdict

        console().print(Group(*verdict(analysis, paths)))
    _write_files(analysis, paths, output, timeline, html)
    return FINDINGS_PRESENT if analysis.findings else 0


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


# -- what is printed ---------------------------------------------------------------------------


def _json(chosen: Selection, entries: bool, collectives: bool) -> dict[str, object]:
    from frd.offline.output import tables

    analysis = chosen.analysis
    out: dict[str, object] = analysis.to_json()
    if entries:
        table = tables.entries(analysis, chosen.ranks, chosen.rows)
        out["entries"] = list(table.rows())
    if collectives:
        out["collectives"] = list(tables.collectives(analysis, chosen.collectives()).rows())
    return out


def _print_tables(chosen: Selection, entries: bool, collectives: bool, stacks: bool) -> None:
    from frd.offline.output.text_tables import LEGEND, collective_lines, entry_lines

    if entries:
        _print_lines([LEGEND])
        for rank in chosen.without_dump:
            _print_lines([f"rank {rank}: no dump"])
        for rank in chosen.ranks:
            rows = chosen.rows(chosen.analysis.trace.ranks[rank])
            _print_lines(entry_lines(chosen.analysis, rank, rows, stacks=stacks))
    if collectives:
        _print_lines(collective_lines(chosen.analysis, chosen.collectives()))


def _print_lines(lines: Iterable[str]) -> None:
    """On a terminal, long lines are cut, not wrapped."""
    screen = console()
    width = screen.width if screen.is_terminal else None
    texts: Iterable[str] = map(plain, lines)
    if width is not None:
        texts = (text if len(text) <= width else f"{text[: width - 1]}…" for text in texts)
    click.echo("\n".join(texts))


def _write_files(
    analysis: Analysis,
    folders: Sequence[Path],
    output: Path | None,
    timeline: Path | None,
    html: Path | None,
) -> None:
    from frd.offline.output.export import export, export_timeline
    from frd.store.new_path import new_path

    if output is not None:
        export(analysis, output)
        click.echo(f"written: {output}", err=True)
    if timeline is not None:
        with progress("writing the timeline") as step:
            export_timeline(analysis, timeline, step)
        click.echo(f"written: {timeline}: open it in https://ui.perfetto.dev", err=True)
    if html is not None:
        from frd.cli.screens.html_page import page

        with new_path(html) as staged:
            text = page(analysis, folders)
            staged.write_text(text, encoding="utf-8", errors="backslashreplace")
        click.echo(f"written: {html}: open it in any browser", err=True)
