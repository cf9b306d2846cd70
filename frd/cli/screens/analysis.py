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
    from frd.offline.output.selection import Selection


@dataclass(frozen=True, slots=True)
class Tables:
    """Which tables are printed instead of the verdict."""

    entries: bool
    collectives: bool
    stacks: bool
    """With the entries."""


def show(
    chosen: Selection | None,
    io: IoAnalysis | None,
    folders: Sequence[Path],
    tables: Tables,
    *,
    as_json: bool,
) -> None:
    """Print the analysis of dumps, of traces or of both."""
    if as_json:
        out: dict[str, object] = {"findings": []}
        if chosen is not None:
            out = _json(chosen, tables)
        if io is not None:
            out["io"] = io.to_json()
        print_json(out)
        return
    screen = console()
    has_verdict = chosen is not None and not (tables.entries or tables.collectives)
    if chosen is not None and not has_verdict:
        _print_tables(chosen, tables)
    elif chosen is not None:
        from frd.cli.screens.verdict import verdict

        screen.print(Group(*verdict(chosen.analysis, folders)))
    if io is not None:
        from frd.cli.screens.io_report import io_report

        screen.print(Group(*io_report(io, with_starved=not has_verdict)))


def _json(chosen: Selection, shown: Tables) -> dict[str, object]:
    from frd.offline.output import tables

    analysis = chosen.analysis
    out: dict[str, object] = analysis.to_json()
    if shown.entries:
        table = tables.entries(analysis, chosen.ranks, chosen.rows)
        out["entries"] = list(table.rows())
    if shown.collectives:
        out["collectives"] = list(tables.collectives(analysis, chosen.collectives()).rows())
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


def write_files(
    analysis: Analysis | None,
    io: IoAnalysis | None,
    folders: Sequence[Path],
    output: Path | None,
    timeline: Path | None,
    html: Path | None,
) -> None:
    from frd.offline.output.export import export, export_timeline
    from frd.offline.output.io_tracks import not_drawn
    from frd.store.new_path import new_path

    if output is not None:
        export(analysis, output, io)
        click.echo(f"written: {output}", err=True)
    if timeline is not None:
        with progress("writing the timeline") as step:
            export_timeline(analysis, timeline, step, io)
        click.echo(f"written: {timeline}: open it in https://ui.perfetto.dev", err=True)
        if io is not None and (left_out := not_drawn(io)):
            click.echo(f"not drawn: {left_out}", err=True)
    if html is not None and analysis is not None:
        from frd.cli.screens.html_page import page

        with new_path(html) as staged:
            text = page(analysis, folders)
            staged.write_text(text, encoding="utf-8", errors="backslashreplace")
        click.echo(f"written: {html}: open it in any browser", err=True)
