"""The timeline of a finding as a file for ui.perfetto.dev.

One track a rank, below it one a group; on top the finding. An op whose end is not known exactly is
a slice up to its latest possible end, which an annotation says.
"""

from __future__ import annotations

import io
from itertools import groupby
from typing import Final

import numpy as np

from frd.forms import utc_text
from frd.model import Finding
from frd.perfetto.texts import finding_slice, rank_title
from frd.perfetto.writer import BEGIN, OPEN, Slice, TraceWriter
from frd.service.timelines.timeline import MOMENT_NS, Bar, Timeline

MEDIA_TYPE: Final = "application/octet-stream"


def perfetto_bytes(finding: Finding, timeline: Timeline) -> bytes:
    """A whole Perfetto trace."""
    times = [bar.enqueued for bar in timeline.bars] + [gap.since for gap in timeline.gaps]
    times += [moment * MOMENT_NS for curve in timeline.curves for moment in curve.values]
    out = io.BytesIO()
    writer = TraceWriter(out, max(0, min([*times, int(finding.opened_at)])))
    top = writer.track("finding", order=0)
    writer.event(BEGIN, finding.opened_at, top, finding_slice(finding))
    if finding.closed_at is not None:
        writer.end(finding.closed_at, top)
    for order, lane in enumerate(timeline.lanes, 1):
        name = rank_title(lane.rank, lane.node, is_cause=lane.role == "suspect")
        track = writer.track(name, order=order, ordered=True)
        _add_ops(writer, timeline, lane.rank, track)
        _add_curves(writer, timeline, lane.rank, track)
    writer.flush()
    return out.getvalue()


def _add_ops(writer: TraceWriter, timeline: Timeline, rank: int, parent: int) -> None:
    bars = sorted(
        (bar for bar in timeline.bars if bar.rank == rank), key=lambda b: (b.group, b.enqueued)
    )
    for group, of_group in groupby(bars, key=lambda bar: bar.group):
        _add_bars(writer, list(of_group), timeline.groups.get(group, group), parent)
    gaps = sorted((gap for gap in timeline.gaps if gap.rank == rank), key=lambda gap: gap.since)
    if not gaps:
        return
    slices = (
        Slice(
            f"not joined: {gap.op} #{gap.seq} on {timeline.groups.get(gap.group, gap.group)}",
            "missing",
        )
        for gap in gaps
    )
    begin = np.array([gap.since for gap in gaps], np.int64)
    end = np.array([gap.until or OPEN for gap in gaps], np.int64)
    writer.slices("not joined", begin, end, slices, order=0, parent=parent)


def _add_bars(writer: TraceWriter, bars: list[Bar], label: str, parent: int) -> None:
    begin = np.array([bar.enqueued for bar in bars], np.int64)
    end = np.array([bar.ended or OPEN for bar in bars], np.int64)
    writer.slices(label, begin, end, map(_slice, bars), order=1, parent=parent)


def _slice(bar: Bar) -> Slice:
    texts = {"enqueued": utc_text(bar.enqueued)}
    if bar.ended and bar.ended_from < bar.ended:
        texts["ended"] = f"between {utc_text(bar.ended_from)} and {utc_text(bar.ended)}"
    op = f"{bar.op} #{bar.seq}"
    name, category = (op, "collective") if bar.ended else (f"stuck: {op}", "waiting")
    return Slice(name, category, numbers={"seq": bar.seq}, texts=texts)


def _add_curves(writer: TraceWriter, timeline: Timeline, rank: int, parent: int) -> None:
    for curve in timeline.curves:
        if curve.rank == rank:
            name = f"{curve.kind} {curve.device}".strip()
            track = writer.bytes_counter(name, order=2, parent=parent, scale=curve.kind)
            for moment, value in sorted(curve.values.items()):
                writer.counter(moment * MOMENT_NS, value, track)
