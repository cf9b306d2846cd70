"""What `frd analyze` prints and writes: chooses between screens, tables, JSON and files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Group

from frd.cli.options import console, print_json, progress
from frd.usage import plain

if TYPE_CHECKING:
    from frd.offline.analysis.analyze import Analysis
    from frd.offline.io.analysis import IoAnalysis
    from frd.offline.memory.analysis import MemoryAnalysis
    from frd.offline.output.tables import Selection


@dataclass(frozen=True, slots=True)
class Found:
    """What was analyzed, and what came of it; None: not given."""

    folders: Sequence[Path]
    dumps: Analysis | None
    io: IoAnalysis | None
    files: Sequence[Path] = ()
    """Of telemetry."""
    memory: MemoryAnalysis | None = None

    @property
    def has_findings(self) -> bool:
        return any(one is not None and one.findings for one in (self.dumps, self.memory))


@dataclass(frozen=True, slots=True)
class Tables:
    """Which tables are printed instead of the verdict."""

    entries: bool
    collectives: bool
    stacks: bool
    """With the entries."""


def show(found: Found, chosen: Selection | None, tables: Tables, *, as_json: bool) -> None:
    """Print all of it; `chosen` is the part of the dumps that tables have."""
    if as_json:
        print_json(_json(found, chosen, tables))
        return
    screen = console()
    has_verdict = chosen is not None and not (tables.entries or tables.collectives)
    if chosen is not None and not has_verdict:
        _print_tables(chosen, tables)
    elif chosen is not None:
        from frd.cli.screens.verdict import verdict

        screen.print(Group(*verdict(chosen.analysis, found.folders)))
    if found.memory is not None:
        from frd.cli.screens.verdict import memory_verdict

        screen.print(Group(*memory_verdict(found.memory, found.files)))
    if found.io is not None:
        from frd.cli.screens.io_report import io_report

        screen.print(Group(*io_report(found.io, with_starved=not has_verdict)))


def _json(found: Found, chosen: Selection | None, shown: Tables) -> dict[str, object]:
    from frd.offline.output import tables

    out: dict[str, object] = {"findings": []}
    if found.dumps is not None:
        out = found.dumps.to_json()
    if (memory := found.memory) is not None:
        of_memory = memory.to_json()
        fault = memory.fault or (found.dumps is not None and found.dumps.fault)
        both = {"rises": of_memory["rises"], "fault": fault, "memory": of_memory}
        out = of_memory if found.dumps is None else out | both
    if chosen is not None and shown.entries:
        table = tables.entries(chosen.analysis, chosen.ranks, chosen.rows)
        out["entries"] = list(table.rows())
    if chosen is not None and shown.collectives:
        table = tables.collectives(chosen.analysis, chosen.collectives())
        out["collectives"] = list(table.rows())
    if found.io is not None:
        out["io"] = found.io.to_json()
    return out


def _print_tables(chosen: Selection, shown: Tables) -> None:
    from frd.offline.output.text_tables import LEGEND, collective_lines, entry_lines

    if shown.entries:
        _print_lines([LEGEND])
        for rank in chosen.without_dump:
            _print_lines([f"rank {rank}: no dump"])
        for rank in chosen.ranks:
            rows = chosen.rows(chosen.analysis.trace.ranks[rank])
            _print_lines(entry_lines(chosen.analysis, rank, rows, stacks=shown.stacks))
    if shown.collectives:
        _print_lines(collective_lines(chosen.analysis, chosen.collectives()))


def _print_lines(lines: Iterable[str]) -> None:
    """On a terminal, long lines are cut, not wrapped."""
    screen = console()
    width = screen.width if screen.is_terminal else None
    texts: Iterable[str] = map(plain, lines)
    if width is not None:
        texts = (text if len(text) <= width else f"{text[: width - 1]}…" for text in texts)
    click.echo("\n".join(texts))


def check_files(
    output: Path | None,
    timeline: Path | None,
    plot: Path | None,
    html: Path | None,
    *,
    memory: bool,
    traces: bool,
) -> None:
    """Refuse before any work is done what `write_files` would refuse after it."""
    from frd.offline.output.export import check_export
    from frd.offline.output.memory.export import check_memory_export
    from frd.offline.output.memory.plot import check_plot
    from frd.store.new_path import check_new

    if output is not None and memory:
        check_memory_export(output)
    elif output is not None:
        check_export(output, traces=traces)
    for file in (timeline, html):
        if file is not None:
            check_new(file)
    if plot is not None:
        check_plot(plot)


def write_files(
    found: Found, output: Path | None, timeline: Path | None, plot: Path | None, html: Path | None
) -> None:
    from frd.offline.output.export import export, export_timeline
    from frd.offline.output.memory import tracks
    from frd.offline.output.memory.export import export_memory, not_in
    from frd.offline.output.memory.plot import write_plot
    from frd.offline.output.timeline import not_drawn
    from frd.store.new_path import new_path

    dumps, io, memory = found.dumps, found.io, found.memory
    if output is not None and memory is not None:
        with progress("writing samples") as step:
            export_memory(memory, output, dumps, step)
        _say("written", str(output))
        _say("not in it", not_in(output))
    elif output is not None:
        export(dumps, output, io)
        _say("written", str(output))
    if timeline is not None:
        with progress("writing the timeline") as step:
            export_timeline(dumps, timeline, step, io, memory)
        _say("written", f"{timeline}: open it in https://ui.perfetto.dev")
        _say("not drawn", tracks.not_drawn(memory) if memory is not None else "")
        _say("not drawn", not_drawn(io) if io is not None else "")
    if plot is not None and memory is not None:
        write_plot(memory, plot)
        _say("written", str(plot))
    if html is not None and dumps is not None:
        from frd.cli.screens.html_page import page

        with new_path(html) as staged:
            text = page(dumps, found.folders)
            staged.write_text(text, encoding="utf-8", errors="backslashreplace")
        _say("written", f"{html}: open it in any browser")


def _say(what: str, text: str) -> None:
    if text:
        click.echo(f"{what}: {text}", err=True)
