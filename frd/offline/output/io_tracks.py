"""Spans of traces as tracks of a timeline: one a thread, below its rank.

Of a rank with very many spans the longest are drawn: a browser does not open more, and a timeline
is for what takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from frd.dftracer.kinds import Kind
from frd.model import Int64s
from frd.offline.io.analysis import IoAnalysis, RankIo
from frd.offline.io.spans import Spans, spans_of
from frd.offline.output.op_intervals import lanes
from frd.offline.output.perfetto import BEGIN, INSTANT, TraceWriter

MAX_SPANS: Final = 200_000
"""Of a rank."""
MAX_LANES: Final = 32
_ORDER: Final = 1 << 20
"""After the groups of a rank."""
_UNKNOWN_RANK: Final = 1 << 30


def add_io(
    writer: TraceWriter,
    io: IoAnalysis,
    tracks: Mapping[int, int],
    progress: Callable[[int, int], None],
    *,
    order: int,
) -> None:
    """Add all spans. `tracks` are those of ranks that are there, `order` the place of others."""
    for number, one in enumerate(io.ranks, 1):
        parent = tracks.get(one.rank) if one.rank is not None else None
        if parent is None:
            place = order + (one.rank if one.rank is not None else _UNKNOWN_RANK)
            parent = writer.track(_title(one), order=place, ordered=True)
        _add_rank(writer, list(_longest(io, one)), parent)
        progress(number, len(io.ranks))


def _title(one: RankIo) -> str:
    return f"rank {one.rank}" if one.rank is not None else next(iter(one.processes)).label


def _longest(io: IoAnalysis, one: RankIo) -> Iterator[Spans]:
    """Blocks without the shortest spans, if there are too many."""
    least = 0
    if one.usage.events > MAX_SPANS:
        durations = [(s.end_ns - s.start_ns).astype(np.int64) for s in spans_of(io, [one])]
        at = one.usage.events - MAX_SPANS
        least = int(np.partition(np.concatenate(durations), at)[at]) + 1
    for spans in spans_of(io, [one]):
        rows = np.flatnonzero(spans.end_ns - spans.start_ns >= least)
        if len(rows):
            yield spans.take(rows)


def _add_rank(writer: TraceWriter, blocks: list[Spans], parent: int) -> None:
    """A track for each thread, and as many lanes in it as calls are nested."""
    threads: dict[tuple[int, int], list[tuple[Spans, Int64s]]] = {}
    for spans in blocks:
        for tid in np.unique(spans.tid).tolist():
            rows = np.flatnonzero(spans.tid == tid)
            threads.setdefault((spans.pid, tid), []).append((spans, rows))
    for place, ((pid, tid), parts) in enumerate(sorted(threads.items(), key=lambda t: t[0])):
        name = f"I/O pid {pid}" if pid == tid else f"I/O pid {pid} thread {tid}"
        _add_thread(writer, parts, name, parent, _ORDER + place)


def _add_thread(
    writer: TraceWriter,
    parts: list[tuple[Spans, Int64s]],
    name: str,
    parent: int,
    order: int,
) -> None:
    start = np.concatenate([spans.start_ns[rows] for spans, rows in parts])
    end = np.concatenate([spans.end_ns[rows] for spans, rows in parts])
    block = np.repeat(np.arange(len(parts)), [len(rows) for _, rows in parts])
    row = np.concatenate([rows for _, rows in parts])
    # Of two that begin together, the longer one is the outer one.
    at = np.lexsort((-end, start))
    start, end, block, row = start[at], end[at], block[at], row[at]
    lane = lanes(start, end, MAX_LANES)
    tracks = [
        writer.track(name, parent=parent, order=order) for _ in range(max(int(lane.max()) + 1, 1))
    ]
    columns = (start, end, lane, block, row)
    for begin, last, number, part, index in zip(*(c.tolist() for c in columns), strict=True):
        spans = parts[part][0]
        texts = {"file": file} if (file := spans.file[index]) else {}
        numbers = {
            key: value
            for key, value in (
                ("bytes", int(spans.nbytes[index])),
                ("epoch", int(spans.epoch[index])),
                ("step", int(spans.step[index])),
            )
            if value > 0 or (key != "bytes" and value == 0)
        }
        writer.event(
            BEGIN if number >= 0 else INSTANT,
            begin,
            tracks[max(number, 0)],
            name=spans.name[index],
            category="io" if spans.kind[index] >= Kind.IO else spans.cat[index],
            numbers=numbers,
            texts=texts,
        )
        if number >= 0:
            writer.end(last, tracks[number])
