"""The picture of a recording as a file: SVG, PNG, or a page of HTML that needs nothing else.

The same recording gives the same bytes. Names come from other people's programs: every text is
escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Final

from frd.errors import ConfigError
from frd.offline.memory.analysis import MemoryAnalysis
from frd.offline.output.html_document import document
from frd.offline.output.memory.panels import MAX_JOBS, Panel, panels_of
from frd.store.new_path import check_new, new_path

_ENDINGS: Final = (".svg", ".png", ".html")


def check_plot(path: Path) -> None:
    """Refuse before any work is done what `write_plot` would refuse after it.

    Raises:
        ConfigError: an ending that says no format, or matplotlib is missing.
        StoreError: the file exists.
    """
    if path.suffix not in _ENDINGS:
        raise ConfigError(f"plot: {path}: the ending says the format: use .svg, .png or .html")
    if find_spec("matplotlib") is None:
        raise ConfigError(
            "plot: needs matplotlib, which is not installed: `pip install matplotlib`"
        )
    check_new(path)


def write_plot(analysis: MemoryAnalysis, path: Path) -> None:
    """Draw the memory of all ranks, and what was found, in the format that the ending says.

    Raises:
        ConfigError, StoreError: as `check_plot`, and when the file cannot be written.
    """
    check_plot(path)
    panels = list(panels_of(analysis))
    notes = _notes(analysis, panels)
    with new_path(path) as staged:
        if path.suffix == ".html":
            staged.write_text(_page(analysis, panels, notes), "utf-8", "backslashreplace")
        else:
            staged.write_bytes(_picture(panels, path.suffix[1:], analysis.summary, notes))


def _picture(panels: Sequence[Panel], form: str, title: str, notes: Sequence[str]) -> bytes:
    from frd.offline.output.memory.picture import draw

    out = BytesIO()
    draw(panels, out, form, title=title, notes=notes)
    return out.getvalue()


def _notes(analysis: MemoryAnalysis, panels: Sequence[Panel]) -> list[str]:
    """What the numbers and letters of the picture mean, and what is not in it."""
    several = len(panels) > 1
    out = []
    for panel in panels:
        before = f"{panel.title}: " if several else ""
        marks = [mark for mark in (*panel.rises, *panel.findings) if mark.label]
        out += [f"{before}{mark.label}  {mark.text}" for mark in marks]
        if more := len(panel.rises) + len(panel.findings) - len(marks):
            out.append(f"{before}{more} more without a number")
    out += dict.fromkeys(
        f"{panel.title.partition(':')[0]}: {panel.note}" if several else panel.note
        for panel in panels
        if panel.note
    )
    if (more := len(analysis.jobs) - MAX_JOBS) > 0:
        out.append(f"{more} more jobs are not drawn")
    out.append(f"clocks: {analysis.clock_source}")
    return list(map(_plain, out))


def _page(analysis: MemoryAnalysis, panels: Sequence[Panel], notes: Sequence[str]) -> str:
    """The picture without its texts, which are text of the page."""
    svg = _picture(panels, "svg", "", ()).decode("utf-8")
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    style = "bad" if analysis.fault else "good"
    title = escape(_plain(analysis.summary))
    head = f'<header class="verdict {style}"><h1>{title}</h1></header>'
    return document("frd: memory", f"{head}\n{svg[svg.index('<svg') :]}\n<ul>{listed}</ul>")


def _plain(text: str) -> str:
    """On one line, without control characters."""
    return "".join(char if char.isprintable() else " " for char in text)
