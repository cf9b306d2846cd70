"""The phases of some ranks, as strips below a panel: one a thread, with a row for each depth,
outermost first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from matplotlib.axes import Axes

from frd.offline.output.memory.panels import Panel
from frd.offline.phases.rank_phases import PhaseSpan, PhaseThread

_INK: Final = "#1F2328"
_PASTELS: Final = ("#CFE3F5", "#FCE2C8", "#D3EDE2", "#F1DCE8", "#E6E6E6", "#F6EFC0")
_CHARACTER: Final = 0.0065
"""Share of the axis that a character of a phase's name takes."""
_LABEL: Final = 22
"""Characters that fit on the left of a strip."""
_MAX_STRIPS, _MAX_DEPTH, _MAX_SPANS = 4, 3, 400

Row: TypeAlias = list[tuple[float, float, str, bool]]
"""Beginning and end in seconds, name, and whether it was open."""


def strips_of(panel: Panel) -> list[tuple[str, list[Row]]]:
    """Strips of the suspects, or of the first rank with phases, each with its label."""
    ranks = sorted({span.thread.rank for span in panel.phases})
    named = dict.fromkeys(line.rank for line in panel.suspects if line.rank in set(ranks))
    chosen = list(named)[:_MAX_STRIPS] or ranks[:1]
    most = max(_MAX_STRIPS // max(len(chosen), 1), 1)
    return [strip for rank in chosen for strip in _of_rank(panel, rank, most)]


def _of_rank(panel: Panel, rank: int, most: int) -> Iterator[tuple[str, list[Row]]]:
    """Phases of one thread are nested, those of two would cover each other."""
    threads: dict[tuple[PhaseThread, str], list[PhaseSpan]] = {}
    for span in panel.phases:
        if span.thread.rank == rank:
            threads.setdefault((span.thread, span.source), []).append(span)
    ordered = sorted(threads.items(), key=lambda item: (not item[0][0].is_main, -len(item[1])))
    for place, ((thread, _), spans) in enumerate(ordered[:most]):
        name = thread.name or f"thread {thread.thread_id}"
        yield name[:_LABEL] if place else f"phases, rank {rank}", _rows(panel, spans)


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
    main: Axes, axes: Axes, strips: Sequence[tuple[str, list[Row]]], panel: Panel
) -> None:
    """Below the panel, which then has no labels at its own axis."""
    names = sorted({span[2] for _, rows in strips for row in rows for span in row})
    colours = {name: _PASTELS[at % len(_PASTELS)] for at, name in enumerate(names)}
    count = sum(len(rows) for _, rows in strips)
    at, ticks = 0, []
    for label, rows in strips:
        ticks.append((at + len(rows) / 2, label))
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
