"""The forms of a timeline: JSON, and a file for ui.perfetto.dev.

JSON has columns, with times in seconds after its begin. The picture begins where each lane shows
its last few ops, and ends some time after the incident began: of a wait of ten minutes, the minute
before it says more than the nine after it.

A file has one track a rank, below it one a group; on top the finding. An op whose end is not known
exactly is a slice up to its latest possible end, which an annotation says.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

import numpy as np

from frd.forms import clock_text, fold_ranks, utc_text
from frd.model import UNKNOWN_SEQ, Finding, FindingState, Kind
from frd.perfetto.texts import finding_slice, rank_title
from frd.perfetto.writer import BEGIN, OPEN, Slice, TraceWriter
from frd.service.timelines.timeline import MOMENT_NS, Bar, Gap, Timeline
from frd.service.timelines.timelines import OF_MEMORY

Json: TypeAlias = dict[str, Any]

DEFAULT_LANES: Final = 16
_SHOWN_OPS: Final = 8
"""Every lane shows at least so many ops, if it has them."""
_AFTER: Final = 1.0
"""How much of the picture is after the begin of the incident, per unit before it."""
_SHORTEST_NS: Final = 100_000_000
UNKNOWN_ENDS: Final = (
    "When some ops completed is not known (Gloo's recorder keeps no such times): their bars are "
    "solid up to the earliest possible end, and faded up to when an agent saw that they had ended."
)
_NO_OPS: Final = (
    "No ops of these ranks are known. The service keeps the last ops of jobs that run, and a "
    "finding's own from when it opens."
)
MEDIA_TYPE: Final = "application/octet-stream"


def timeline_json(finding: Finding, timeline: Timeline) -> Json:
    """The form of docs/api.md; `timeline` has just the lanes that are asked for."""
    began, at = began_at(finding, timeline), finding.closed_at or timeline.at
    begin, end = _window(timeline.bars, began, at)
    lane = {one.rank: place for place, one in enumerate(timeline.lanes)}
    shown = [b for b in timeline.bars if b.rank in lane and (not b.ended or b.ended_from >= begin)]
    shown = [bar for bar in shown if bar.enqueued <= end]
    gaps = [gap for gap in timeline.gaps if gap.rank in lane]
    labels = timeline.groups
    drawn: list[Bar | Gap] = [*shown, *gaps]
    names = sorted({(labels.get(one.group, ""), one.group) for one in drawn})
    groups = {group_id: place for place, (_, group_id) in enumerate(names)}
    ops = {op: place for place, op in enumerate(sorted({one.op for one in drawn}))}

    def s(ns: int) -> float | None:
        return round((ns - begin) / 1e9, 6) if ns else None

    return {
        "id": finding.id,
        "at": utc_text(timeline.at),
        "from": utc_text(begin),
        "until": utc_text(end),
        "lanes": [
            {
                "rank": one.rank,
                "node": one.node,
                "role": one.role,
                "uncertainty_s": None if one.uncertainty_ns is None else one.uncertainty_ns / 1e9,
            }
            for one in timeline.lanes
        ],
        "groups": [label for label, _ in names],
        "ops": list(ops),
        "bars": {
            "lane": [lane[bar.rank] for bar in shown],
            "group": [groups[bar.group] for bar in shown],
            "seq": [bar.seq for bar in shown],
            "op": [ops[bar.op] for bar in shown],
            "enqueued_s": [s(bar.enqueued) for bar in shown],
            "started_s": [s(bar.started) for bar in shown],
            "end_from_s": [s(bar.ended_from) for bar in shown],
            "end_s": [s(bar.ended) for bar in shown],
            "failed": [bar.failed for bar in shown],
        },
        "missing": {
            "lane": [lane[gap.rank] for gap in gaps],
            "group": [groups[gap.group] for gap in gaps],
            "seq": [gap.seq for gap in gaps],
            "op": [ops[gap.op] for gap in gaps],
            "since_s": [s(gap.since) for gap in gaps],
            "until_s": [s(gap.until or 0) for gap in gaps],
        },
        "ranks": fold_ranks(lane),
        "all_ranks": timeline.all_ranks,
        "notes": _notes(finding, timeline, end, at),
        "memory": _memory(finding, timeline, begin) if timeline.curves else None,
        "onsets": [
            {
                "rank": suspect.rank,
                "at_s": s(suspect.onset_at),
                "uncertainty_s": suspect.onset_uncertainty_s,
            }
            for suspect in finding.suspects
            if suspect.onset_at is not None
        ],
        "lateness": _lateness(finding, timeline, begin) if timeline.lateness else None,
        "empty": "" if shown or gaps or timeline.curves or timeline.lateness else _NO_OPS,
    }


def began_at(finding: Finding, timeline: Timeline) -> int:
    """When the incident began, as far as known: with the first gap, onset or open op. A straggler
    is late all the time, so the last ops are as good as any."""
    onsets = [int(s.onset_at) for s in finding.suspects if s.onset_at is not None]
    gaps = [gap.since for gap in timeline.gaps]
    known = onsets or gaps if finding.kind in OF_MEMORY else gaps or onsets
    if not known and finding.kind is Kind.STRAGGLER:
        return max((bar.enqueued for bar in timeline.bars), default=int(finding.opened_at))
    known = known or [bar.enqueued for bar in timeline.bars if not bar.ended]
    return min(known, default=int(finding.opened_at))


def _window(bars: Sequence[Bar], began: int, at: int) -> tuple[int, int]:
    by_rank: dict[int, list[int]] = {}
    for bar in bars:
        if bar.enqueued <= began:
            by_rank.setdefault(bar.rank, []).append(bar.enqueued)
    first = [sorted(times)[-_SHOWN_OPS:][0] for times in by_rank.values()]
    begin = min([began, *first])
    span = max(began - begin, _SHORTEST_NS)
    begin -= span // 20
    return begin, max(min(at, began + round(span * _AFTER)), begin + _SHORTEST_NS)


def _notes(finding: Finding, timeline: Timeline, end: int, at: int) -> list[str]:
    notes = []
    if timeline.has_unknown_ends:
        notes.append(UNKNOWN_ENDS)
    if unknown := [lane.rank for lane in timeline.lanes if lane.uncertainty_ns is None]:
        notes.append(
            f"The clock of rank{'s' * (len(unknown) > 1)} {fold_ranks(unknown)} is not aligned: "
            "these bars may be displaced."
        )
    collective = finding.collective
    if finding.kind is Kind.STALL and collective is not None and collective.seq == UNKNOWN_SEQ:
        notes.append(f"{collective.op} leaves no entry in the Flight Recorder: it is not drawn.")
    if end < at and any(not bar.ended for bar in timeline.bars):
        how = "ended at" if finding.state is FindingState.CLOSED else "still went on at"
        notes.append(f"The picture ends at {clock_text(end)} UTC; the wait {how} {clock_text(at)}.")
    return notes


def _memory(finding: Finding, timeline: Timeline, begin: int) -> Json:
    moments = sorted({moment for curve in timeline.curves for moment in curve.values})
    suspects = {suspect.rank for suspect in finding.suspects}
    return {
        "series": [
            {
                "rank": curve.rank,
                "role": "suspect" if curve.rank in suspects else "other",
                "kind": curve.kind,
                "device": curve.device,
                "capacity_bytes": curve.capacity or None,
            }
            for curve in timeline.curves
        ],
        "at_s": [round((moment * MOMENT_NS - begin) / 1e9, 3) for moment in moments],
        "bytes": [[*map(curve.values.get, moments)] for curve in timeline.curves],
    }


def _lateness(finding: Finding, timeline: Timeline, begin: int) -> Json:
    suspects = [suspect.rank for suspect in finding.suspects]
    known = {(late.rank, late.op): late.late_ns / 1e9 for late in timeline.lateness}
    at = {late.op: late.at for late in timeline.lateness}
    ops = sorted(at, key=lambda op: (at[op], op))
    ranks = sorted({late.rank for late in timeline.lateness}, key=lambda r: (r not in suspects, r))
    return {
        "ranks": ranks,
        "at_s": [round((at[op] - begin) / 1e9, 6) for op in ops],
        "late_s": [[known.get((rank, op)) for op in ops] for rank in ranks],
    }


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
