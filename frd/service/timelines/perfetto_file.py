"""The timeline of a finding as a file for ui.perfetto.dev.

One track a rank, below it one a group; on top the finding. An op whose end is not known exactly is
a slice up to its latest possible end, which an annotation says.
"""

from __future__ import annotations

import io
from itertools import groupby
from typing import Final

import numpy as np

from frd.forms import fold_ranks, utc_text
from frd.model import Finding
from frd.perfetto.lanes import NO_LANE, lanes
from frd.perfetto.writer import BEGIN, TraceWriter
from frd.service.timelines.timeline import MOMENT_NS, Bar, Timeline

MEDIA_TYPE: Final = "application/octet-stream"
_MAX_LANES: Final = 32
_OPEN: Final = int(np.iinfo(np.int64).max)


def perfetto_bytes(finding: Finding, timeline: Timeline) -> bytes:
    """A whole Perfetto trace."""
    times = [bar.enqueued for bar in timeline.bars] + [gap.since for gap in timeline.gaps]
    times += [moment * MOMENT_NS for curve in timeline.curves for moment in curve.values]
    out = io.BytesIO()
    writer = TraceWriter(out, max(0, min([*times, int(finding.opened_at)])))
    top = writer.track("finding", order=0)
    texts = {
        "summary": finding.summary,
        "suspects": fold_ranks(suspect.rank for suspect in finding.suspects),
        "victims": fold_ranks(finding.victims),
    }
    writer.event(
        BEGIN, finding.opened_at, top, name=finding.summary, category="finding", texts=texts
    )
    if finding.closed_at is not None:
        writer.end(finding.closed_at, top)
    for order, lane in enumerate(timeline.lanes, 1):
        name = f"rank {lane.rank} on {lane.node}" if lane.node else f"rank {lane.rank}"
        name += " (first cause)" if lane.role == "suspect" else ""
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
    begin = np.array([gap.since for gap in gaps], np.int64)
    end = np.array([gap.until or _OPEN for gap in gaps], np.int64)
    lane = lanes(begin, end, _MAX_LANES)
    count = int(lane.max(initial=NO_LANE)) + 1
    tracks = [writer.track("not joined", order=0, parent=parent) for _ in range(count)]
    for gap, at in zip(gaps, lane.tolist(), strict=True):
        if at == NO_LANE:
            continue
        name = f"not joined: {gap.op} #{gap.seq} on {timeline.groups.get(gap.group, gap.group)}"
        writer.event(BEGIN, gap.since, tracks[at], name=name, category="missing")
        if gap.until is not None:
            writer.end(gap.until, tracks[at])


def _add_bars(writer: TraceWriter, bars: list[Bar], label: str, parent: int) -> None:
    begin = np.array([bar.enqueued for bar in bars], np.int64)
    end = np.array([bar.ended or _OPEN for bar in bars], np.int64)
    lane = lanes(begin, end, _MAX_LANES)
    tracks = [writer.track(label, order=1, parent=parent) for _ in range(int(lane.max()) + 1)]
    for bar, at in zip(bars, lane.tolist(), strict=True):
        if at < 0:
            continue
        name = f"{bar.op} #{bar.seq}" if bar.ended else f"stuck: {bar.op} #{bar.seq}"
        texts = {"enqueued": utc_text(bar.enqueued)}
        if bar.ended and bar.ended_from < bar.ended:
            texts["ended"] = f"between {utc_text(bar.ended_from)} and {utc_text(bar.ended)}"
        category = "collective" if bar.ended else "waiting"
        writer.event(
            BEGIN,
            bar.enqueued,
            tracks[at],
            name=name,
            category=category,
            numbers={"seq": bar.seq},
            texts=texts,
        )
        if bar.ended:
            writer.end(bar.ended, tracks[at])


def _add_curves(writer: TraceWriter, timeline: Timeline, rank: int, parent: int) -> None:
    for curve in timeline.curves:
        if curve.rank == rank:
            name = f"{curve.kind} {curve.device}".strip()
            track = writer.bytes_counter(name, order=2, parent=parent, scale=curve.kind)
            for moment, value in sorted(curve.values.items()):
                writer.counter(moment * MOMENT_NS, value, track)
