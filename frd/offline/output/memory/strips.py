"""The phases of some ranks, as strips below a panel: a row for each depth, outermost first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from matplotlib.axes import Axes

from frd.offline.output.memory.panels import Panel
from frd.offline.phases.spans import PhaseSpan

_INK: Final = "#1F2328"
_PASTELS: Final = ("#CFE3F5", "#FCE2C8", "#D3EDE2", "#F1DCE8", "#E6E6E6", "#F6EFC0")
_CHARACTER: Final = 0.0065
"""Share of the axis that a character of a phase's name takes."""
_MAX_STRIPS, _MAX_DEPTH, _MAX_SPANS = 4, 3, 400

Row: TypeAlias = list[tuple[float, float, str, bool]]
"""Beginning and end in seconds, name, and whether it was open."""


def strips_of(panel: Panel) -> list[tuple[int, list[Row]]]:
    """By rank, a row for each depth: the suspects', or those of the first ranks with phases."""
    ranks = sorted({span.thread.rank for span in panel.phases})
    named = dict.fromkeys(line.rank for line in panel.suspects if line.rank in set(ranks))
    chosen = list(named)[:_MAX_STRIPS] or ranks[:1]
    by_rank = {rank: [one for one in panel.phases if one.thread.rank == rank] for rank in chosen}
    return [(rank, _rows(panel, spans)) for rank, spans in by_rank.items()]


def _rows(panel: Panel, spans: Sequence[PhaseSpan]) -> list[Row]:
    depth = min(max(len(span.path) for span in spans), _MAX_DEPTH)
    rows: list[Row] = [[] for _ in range(depth)]
    for span in sorted(spans, key=lambda one: one.begin_ns):
        if not 0 < len(span.path) <= depth:
            continue
        begin = (span.begin_ns - panel.begin_ns) / 1e9
        end = panel.length_s if span.is_open else (span.end_ns - panel.begin_ns) / 1e9
        row = rows[len(span.path) - 1]
        if row and row[-1][2] == span.path[-1] and begin - row[-1][1] < panel.length_s / 1_000:
            row[-1] = (row[-1][0], max(end, row[-1][1]), span.path[-1], span.is_open)
        else:
            row.append((begin, end, span.path[-1], span.is_open))
    return [_longest(row) for row in rows]


def _longest(row: Row) -> Row:
    kept = sorted(row, key=lambda span: span[0] - span[1])[:_MAX_SPANS]
    return sorted(kept)


def draw_strips(
    main: Axes, axes: Axes, strips: Sequence[tuple[int, list[Row]]], panel: Panel
) -> None:
    """Below the panel, which then has no labels at its own axis."""
    names = sorted({span[2] for _, rows in strips for row in rows for span in row})
    colours = {name: _PASTELS[at % len(_PASTELS)] for at, name in enumerate(names)}
    count = sum(len(rows) for _, rows in strips)
    at, ticks = 0, []
    for rank, rows in strips:
        ticks.append((at + len(rows) / 2, f"phases, rank {rank}"))
        for row in rows:
            _draw_row(axes, row, at, colours, panel.length_s)
            at += 1
    axes.set_ylim(count, 0)
    axes.set_yticks([place for place, _ in ticks], [text for _, text in ticks], size=7)
    axes.tick_params(length=0, axis="y")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel(main.get_xlabel())
    main.set_xlabel("")
    main.tick_params(labelbottom=False)


def _draw_row(axes: Axes, row: Row, at: int, colours: dict[str, str], length_s: float) -> None:
    for begin, end, name, is_open in row:
        axes.broken_barh(
            [(begin, max(end - begin, 0))], (at + 0.06, 0.88), facecolors=colours[name], lw=0
        )
        shown = min(end, length_s) - max(begin, 0)
        text = f"{name} …" if is_open else name
        if (len(text) + 1) * _CHARACTER * length_s < shown:
            axes.text(
                max(begin, 0) + shown / 2,
                at + 0.52,
                text,
                ha="center",
                va="center",
                size=7,
                color=_INK,
                clip_on=True,
            )
