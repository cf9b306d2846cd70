"""`frd analyze --html`: the verdict as one page.

Names, evidence and stack lines come from other people's programs: every text passes through
`_text`, and no text becomes part of a tag. Draws an `Analysis` and concludes nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final

from frd import __version__
from frd.cli.screens.finding_panel import collective_facts
from frd.cli.screens.verdict import dump_facts, is_partial, unknown_facts
from frd.forms import REASONS, finding_json, folded, ranks_text
from frd.model import Activity
from frd.offline.analysis.analyze import Analysis
from frd.offline.output.html_document import document
from frd.usage import plain

MAX_ROWS: Final = 2_000
"""Rows of a table; the rest is counted."""


def page(analysis: Analysis, folders: Sequence[Path]) -> str:
    """The whole document."""
    title = f"frd: {plain(analysis.trace.key.job)}"
    return document(title, "\n".join(_parts(analysis, folders)))


def _parts(analysis: Analysis, folders: Sequence[Path]) -> Iterator[str]:
    job = _text(analysis.trace.key.job)
    style = "bad" if analysis.fault else "warn" if is_partial(analysis) else "good"
    yield f'<header class="verdict {style}"><p class="soft">{job}</p>'
    yield f"<h1>{_text(analysis.summary)}</h1></header>"
    for text in analysis.not_proven:
        yield f'<p class="warn"><strong>Not proven:</strong> {_text(text)}</p>'
    for finding in analysis.findings:
        yield from _finding(finding_json(finding), analysis.summary)
    yield "<h2>Input</h2>"
    yield _facts(dump_facts(analysis, folders))
    if unknown := list(unknown_facts(analysis)):
        yield "<h2>What is not known</h2>"
        yield _list(unknown)
    if analysis.warnings:
        yield "<h2>Warnings</h2>"
        yield _list(analysis.warnings)
    yield from _ranks(analysis)
    yield from _groups(analysis)
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    command = _text(f"frd analyze {shlex.join(map(str, folders))}")
    yield f"<footer>frd {_text(__version__)}, {made}: <code>{command}</code></footer>"


def _text(value: object) -> str:
    """`value` as text of the page, without markup, control characters and bidirectional marks."""
    return escape(plain(str(value)), quote=True)


# -- findings ----------------------------------------------------------------------------------


def _finding(finding: Mapping[str, Any], headline: str) -> Iterator[str]:
    """A finding that is already the headline is not repeated."""
    is_headline = headline.startswith(finding["summary"])
    words = finding["kind"] if is_headline else f"{finding['kind']}: {finding['summary']}"
    yield f"<article><h3>{_text(words)}</h3>"
    yield _facts(_finding_facts(finding))
    if finding.get("ended_by"):
        yield f"<p>{_text(finding['ended_by'])}</p>"
    suspects = finding["suspects"]
    if not suspects:
        reason = REASONS.get(finding.get("reason", ""), "too little is known")
        yield f"<p><strong>No suspect:</strong> {_text(reason)}</p>"
    for who, alike in folded(suspects):
        yield from _suspects(who, alike)
    if finding["victims"]:
        count = len(finding["victims"])
        who = _text(ranks_text(finding["victims"]))
        only = "1 rank only waits" if count == 1 else f"{count} ranks only wait"
        yield f"<details><summary>{only}</summary><p>{who}</p></details>"
        yield f'<p class="paper">{only}: {who}</p>'
    yield "</article>"


def _finding_facts(finding: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from collective_facts(finding)
    if (witness := finding.get("witness")) is not None:
        yield "witness", f"rank {witness['rank']} waits at {witness['stack'][0]}"
    if len(groups := finding.get("groups_held_up", ())) > 1:
        yield "holds up", ", ".join(groups)
    if finding.get("unknown_ranks"):
        yield "unknown", f"{ranks_text(finding['unknown_ranks'])}: no dump"


def _suspects(who: str, alike: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    first = next(iter(alike.values()))
    reason = REASONS.get(first["reason"], first["reason"])
    yield f'<div class="suspect"><strong>{_text(who.capitalize())}</strong>: '
    yield f"{_text(reason)} <span class='soft'>({_text(first['confidence'])} confidence)</span>"
    for of, suspect in alike.items():
        if suspect.get("doing"):
            yield f"<p>{_text(suspect['doing'])}</p>"
        if of or suspect["evidence"]:
            yield f"<p>{_text(of + suspect['evidence'])}</p>"
        if suspect["stack"]:
            yield _stack(suspect["stack"])
        for worker in suspect.get("workers", ()):
            name = f"{worker.get('name', 'process')} {worker.get('pid', '')}"
            yield f"<p class='soft'>{_text(name)}</p>{_stack(worker.get('stack', ()))}"
    yield "</div>"


def _stack(lines: Iterable[str]) -> str:
    return "<pre>" + "\n".join(map(_text, lines)) + "</pre>"


# -- tables ------------------------------------------------------------------------------------


def _groups(analysis: Analysis) -> Iterator[str]:
    rows = [
        (g.label, g.size or "?", ranks_text(g.info.ranks), g.matched, g.open, g.mismatched)
        for g in analysis.groups
    ]
    yield f"<h2>Groups ({len(rows)})</h2>"
    yield from _table(("group", "size#", "ranks", "matched#", "open#", "mismatched#"), rows)


def _ranks(analysis: Analysis) -> Iterator[str]:
    suspects = {suspect.rank for finding in analysis.findings for suspect in finding.suspects}
    rows = [
        (
            rank,
            "first cause" if rank in suspects else "",
            report.info.node if report.info is not None else "",
            report.entries,
            report.waiting_in or "nothing",
            next(iter(analysis.trace.standing.get(rank, Activity()).stack), ""),
            report.source,
        )
        for rank, report in sorted(analysis.ranks.items())
    ]
    yield f"<h2>Ranks ({len(rows)})</h2>"
    if analysis.missing_ranks:
        yield f'<p class="warn">No readable dump: {_text(ranks_text(analysis.missing_ranks))}</p>'
    head = ("rank#", "", "node", "entries#", "waits in", "main thread", "file")
    yield from _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """A column whose name ends in # holds numbers; an empty column is left out."""
    used = [at for at in range(len(head)) if any(str(row[at]) for row in rows)]
    styles = [' class="n"' if head[at].endswith("#") else "" for at in used]
    yield '<div class="scroll"><table><thead><tr>'
    for at, style in zip(used, styles, strict=True):
        yield f"<th{style}>{_text(head[at].removesuffix('#'))}</th>"
    yield "</tr></thead><tbody>"
    for row in rows[:MAX_ROWS]:
        cells = (
            f"<td{style}>{_mark(row[at]) if not head[at] else _text(row[at])}</td>"
            for at, style in zip(used, styles, strict=True)
        )
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"
    if (more := len(rows) - MAX_ROWS) > 0:
        yield f'<p class="soft">… {more} more: frd analyze --json has all of them</p>'


def _mark(value: object) -> str:
    return f'<span class="first">{_text(value)}</span>' if value else ""


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    rows = (f"<dt>{_text(label)}</dt><dd>{_text(text)}</dd>" for label, text in facts)
    return f"<dl>{''.join(rows)}</dl>"


def _list(texts: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{_text(text)}</li>" for text in texts) + "</ul>"
