"""Draws panels with matplotlib, without its global figure and with the same bytes every time.

Colours are those of Okabe and Ito, which colour-blind people distinguish; what they mean is also
said by width, dashes and numbers. Texts are never parsed as formulas.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from textwrap import wrap
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from frd.engine.memory.text import size
from frd.forms import clock_text
from frd.offline.output.memory.panels import Band, Floats, Line, Panel
from frd.offline.output.memory.strips import draw_strips, strips_of

_COLOURS: Final = (
    *("#D55E00", "#0072B2", "#009E73", "#CC79A7"),
    *("#E69F00", "#56B4E9", "#000000", "#8C6D31"),
)
_GREY, _SOFT, _INK = "#9AA0A6", "#57606A", "#1F2328"
_STYLE: Final = {
    "svg.hashsalt": "frd",
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "text.parse_math": False,
    "axes.edgecolor": _GREY,
    "axes.labelcolor": _INK,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "path.simplify": True,
}
_DPI: Final = 130
# Inches.
_WIDTH, _LEFT, _RIGHT = 12.0, 0.95, 1.75
_PLOT_HEIGHT, _STRIP, _GAP = 3.6, 0.17, 0.8
_LINE_HEIGHT, _TITLE_HEIGHT = 0.19, 0.26
_TITLE_WIDTH, _NOTE_WIDTH = 112, 165
"""Characters of a line."""
_TITLE_LINES, _NOTE_LINES, _NOTES = 5, 4, 24
_NARROW: Final = 0.002
"""Share of the axis below which a span is drawn wider, so that it can be seen."""


@dataclass(frozen=True, slots=True)
class _Unit:
    name: str
    factor: float

    def ticks(self, low: float, high: float, steps: Sequence[float]) -> tuple[Floats, list[str]]:
        """Round numbers in this unit: where they are, and what they say."""
        locator = MaxNLocator(7, steps=steps)
        values = np.asarray(locator.tick_values(low * self.factor, high * self.factor))
        at = values / self.factor
        inside = (at >= low) & (at <= high)
        return at[inside], [f"{value:.6g}" for value in values[inside]]


def draw(
    panels: Sequence[Panel], out: BytesIO, form: str, *, title: str, notes: Sequence[str]
) -> None:
    """Write a picture; `form` is ``svg`` or ``png``. Without a title and notes, none are drawn."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure = _figure(panels, title, notes)
        metadata = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
        figure.savefig(out, format=form, dpi=_DPI, metadata=metadata)


def _figure(panels: Sequence[Panel], title: str, notes: Sequence[str]) -> Figure:
    """All places are in inches from the top, so nothing depends on the other panels."""
    heading = _wrapped([title], _TITLE_WIDTH, _TITLE_LINES) if title else []
    texts = _wrapped(notes[:_NOTES], _NOTE_WIDTH, _NOTE_LINES)
    if (more := len(notes) - _NOTES) > 0:
        texts.append(f"… {more} more lines")
    strips = [strips_of(panel) for panel in panels]
    heights = [_PLOT_HEIGHT + _STRIP * sum(len(rows) for _, rows in of) for of in strips]
    top = 0.15 + _TITLE_HEIGHT * len(heading)
    height = top + sum(heights) + (_GAP + 0.35) * len(panels) + _LINE_HEIGHT * len(texts) + 0.1
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")
    for number, line in enumerate(heading):
        at = 1 - (0.1 + _TITLE_HEIGHT * number) / height
        figure.text(0.02, at, line, size=12, weight="bold", va="top", color=_INK)
    at_inches = top
    for panel, of, own in zip(panels, strips, heights, strict=True):
        at_inches += 0.35
        place = (
            _LEFT / _WIDTH,
            1 - (at_inches + _PLOT_HEIGHT) / height,
            1 - (_LEFT + _RIGHT) / _WIDTH,
            _PLOT_HEIGHT / height,
        )
        axes = figure.add_axes(place)
        _draw_panel(axes, panel)
        if of:
            below = (own - _PLOT_HEIGHT) / height
            strip = figure.add_axes((place[0], place[1] - below, place[2], below), sharex=axes)
            draw_strips(axes, strip, of, panel)
        at_inches += own + _GAP
    for number, line in enumerate(texts):
        at = 1 - (at_inches - 0.15 + _LINE_HEIGHT * number) / height
        figure.text(0.02, at, line, size=8.5, va="top", color=_SOFT)
    return figure


def _wrapped(texts: Sequence[str], width: int, most: int) -> list[str]:
    """Each text on at most so many lines; the others are indented."""
    out = []
    for text in texts:
        lines = wrap(text, width, subsequent_indent="    ", break_long_words=True) or [""]
        if len(lines) > most:
            lines = [*lines[: most - 1], f"{lines[most - 1][: width - 1]}…"]
        out += lines
    return out


# -- one panel -----------------------------------------------------------------------------------


def _draw_panel(axes: Axes, panel: Panel) -> None:
    time, memory = _time_unit(panel.length_s), _memory_unit(panel)
    named = dict.fromkeys(line.rank for line in panel.suspects)
    colours = {rank: _COLOURS[at % len(_COLOURS)] for at, rank in enumerate(named)}
    axes.set_xlim(-0.01 * panel.length_s, 1.01 * panel.length_s)
    if panel.band is not None:
        _draw_band(axes, panel.band)
    of_suspects = {line.label for line in panel.suspects}
    for number, line in enumerate(panel.others):
        _draw_other(axes, line, number, has_suspects=bool(of_suspects))
    for line in panel.suspects:
        _plot(axes, line, color=colours[line.rank], lw=1.9, label=line.label)
    _set_range(axes, panel)
    _draw_marks(axes, panel, colours)
    axes.set_title(panel.title, loc="left", size=10, color=_INK, pad=16)
    axes.set_ylabel(memory.name)
    low, high = axes.get_ylim()
    axes.set_yticks(*memory.ticks(low, high, (1, 2, 4, 5, 10)))
    axes.set_xticks(*time.ticks(0, panel.length_s, (1, 2, 5, 10)))
    axes.set_xlabel(f"{time.name} since {clock_text(panel.begin_ns)} UTC")
    axes.grid(axis="y", color="#E6E8EB", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda at: labels[at] not in of_suspects)
    if handles:
        axes.legend(
            [handles[at] for at in order],
            [labels[at] for at in order],
            loc="upper left",
            bbox_to_anchor=(1.01, 1.02),
            frameon=False,
            fontsize=8,
            borderaxespad=0,
        )


def _plot(axes: Axes, line: Line, **style: Any) -> None:
    """A line of one sample is a point; without a marker it would not be drawn."""
    marker = "o" if np.count_nonzero(~np.isnan(line.bytes)) == 1 else ""
    axes.plot(line.at_s, line.bytes, marker=marker, **style)


def _draw_other(axes: Axes, line: Line, number: int, *, has_suspects: bool) -> None:
    """If there are suspects, the others are grey; otherwise each has a colour, some with dashes."""
    dashed = number >= len(_COLOURS)
    if has_suspects:
        label = "other ranks" if number == 0 else "_"
        _plot(axes, line, color=_GREY, lw=0.9, label=label, zorder=1.5)
        return
    colour = _COLOURS[(number + 1) % len(_COLOURS)]
    style = "--" if dashed else "-"
    _plot(axes, line, color=colour, lw=1.2, ls=style, label=line.label)


def _draw_band(axes: Axes, band: Band) -> None:
    axes.fill_between(
        band.at_s,
        band.low,
        band.high,
        color="#DDE1E6",
        lw=0,
        label=f"{band.label}:\nlowest to highest",
    )
    axes.fill_between(
        band.at_s, band.quarter, band.three_quarters, color="#B4BAC2", lw=0, label="middle half"
    )
    axes.plot(band.at_s, band.median, color="#6B7280", lw=1, label="median")


def _set_range(axes: Axes, panel: Panel) -> None:
    """From zero only if the memory is near it; with the capacity only if it is near that."""
    values = [line.bytes for line in (*panel.suspects, *panel.others)]
    if panel.band is not None:
        values += [panel.band.low, panel.band.high]
    known = np.concatenate([one[~np.isnan(one)] for one in values] or [np.zeros(0)])
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    if panel.capacity and high >= 0.6 * panel.capacity:
        text = f"capacity {size(panel.capacity)}"
        axes.axhline(panel.capacity, color=_INK, lw=1, ls=(0, (4, 3)))
        axes.annotate(
            text,
            (0.005, panel.capacity),
            xycoords=("axes fraction", "data"),
            xytext=(0, -3),
            textcoords="offset points",
            va="top",
            size=8,
            color=_INK,
        )
        high = max(high, float(panel.capacity))
    elif panel.capacity:
        text = f"capacity {size(panel.capacity)}, above this picture"
        axes.text(0.005, 0.985, text, transform=axes.transAxes, va="top", size=8, color=_SOFT)
    if low < 0.35 * high:
        low = 0.0
    margin = max(0.06 * (high - low), 0.002 * high, 1.0)
    axes.set_ylim(low if low == 0 else low - margin, high + margin)


# -- rises and findings --------------------------------------------------------------------------


def _draw_marks(axes: Axes, panel: Panel, colours: dict[int, str]) -> None:
    """Onsets as spans with a number above; findings as dashed lines with a letter."""
    narrow = _NARROW * panel.length_s
    placed: list[tuple[float, int]] = []
    for mark in sorted((*panel.rises, *panel.findings), key=lambda mark: mark.begin_s):
        is_finding = mark in panel.findings
        colour = colours.get(mark.rank, _SOFT) if mark.rank is not None else _SOFT
        begin, end = mark.begin_s, max(mark.end_s, mark.begin_s + narrow)
        if is_finding:
            axes.axvline(begin, color=_INK, lw=1, ls=(0, (2, 2)), zorder=1.8)
        else:
            axes.axvspan(begin, end, color=colour, alpha=0.28, lw=0, zorder=1.2)
            if mark.label:
                axes.axvline(begin, color=colour, lw=0.8, zorder=1.8)
        if mark.label:
            level = _level(placed, begin / panel.length_s)
            axes.annotate(
                mark.label,
                (begin, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, 7 + 13 * level),
                textcoords="offset points",
                ha="center",
                va="center",
                size=8,
                weight="bold",
                color="white",
                bbox={
                    "boxstyle": "square,pad=0.25" if is_finding else "circle,pad=0.2",
                    "fc": _INK if is_finding else colour,
                    "ec": "none",
                },
                annotation_clip=False,
            )


def _level(placed: list[tuple[float, int]], at: float) -> int:
    """The lowest row in which no other label is near; the last one if all are taken."""
    near = {level for other, level in placed if abs(at - other) < 0.016}
    level = next((one for one in range(2) if one not in near), 1)
    placed.append((at, level))
    return level


# -- units ---------------------------------------------------------------------------------------


def _time_unit(length_s: float) -> _Unit:
    if length_s < 0.5:
        return _Unit("milliseconds", 1_000)
    if length_s < 300:
        return _Unit("seconds", 1)
    return _Unit("minutes", 1 / 60) if length_s < 4 * 3600 else _Unit("hours", 1 / 3600)


def _memory_unit(panel: Panel) -> _Unit:
    values = [line.bytes for line in (*panel.suspects, *panel.others)]
    values += [panel.band.high] if panel.band is not None else []
    peak = max((float(np.nanmax(one)) for one in values if (~np.isnan(one)).any()), default=0.0)
    for name, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if peak >= factor:
            return _Unit(name, 1 / factor)
    return _Unit("bytes", 1)
