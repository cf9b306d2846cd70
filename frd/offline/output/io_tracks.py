"""Spans of traces as tracks of a timeline: one a thread, below its rank.

Of a rank with very many spans the longest are drawn, of equally long ones the first: a browser does
not open more, and a timeline is for what takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from frd.dftracer.kinds import Kind
from frd.model import Int64s
from frd.offline.io.analysis import IoAnalysis, RankIo, names_of
from frd.offline.io.spans import Spans, longest, spans_by_rank
from frd.perfetto.texts import rank_title
from frd.perfetto.writer import Slice, TraceWriter

MAX_SPANS: Final = 200_000
"""Of a rank."""
_TOGETHER: Final = 5 * MAX_SPANS
"""Spans in memory. Ranks are drawn together, because a trace may have many of them."""
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
    done = 0
    for ranks in _batches(io.ranks):
        for one, blocks in zip(ranks, _longest(io, ranks), strict=True):
            parent = tracks.get(one.rank) if one.rank is not None else None
            if parent is None:
                place, title = _UNKNOWN_RANK, next(iter(one.processes)).label
                if one.rank is not None:
                    place, title = one.rank, rank_title(one.rank, "", is_cause=False)
                parent = writer.track(title, order=order + place, ordered=True)
            _add_rank(writer, blocks, parent)
            done += 1
            progress(done, len(io.ranks))


def not_drawn(io: IoAnalysis) -> str:
    """What a timeline leaves out; empty if nothing."""
    crowded = [one for one in io.ranks if one.usage.events > MAX_SPANS]
    if not crowded:
        return ""
    left_out = sum(one.usage.events - MAX_SPANS for one in crowded)
    return (
        f"the {left_out:,} shortest spans of {names_of(crowded)}: a timeline has at most the "
        f"{MAX_SPANS:,} longest of each: --output has all of them"
    )


def _batches(ranks: Sequence[RankIo]) -> Iterator[list[RankIo]]:
    """Ranks whose spans fit in memory together; at least one."""
    batch: list[RankIo] = []
    size = 0
    for one in ranks:
        drawn = min(one.usage.events, MAX_SPANS)
        if batch and size + drawn > _TOGETHER:
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += drawn
    if batch:
        yield batch


def _longest(io: IoAnalysis, ranks: Sequence[RankIo]) -> list[list[Spans]]:
    """Blocks of each rank without the shortest spans, if it has too many."""
    chosen = [_Longest() for _ in ranks]
    for number, spans in spans_by_rank(io, ranks):
        chosen[number].add(spans)
    return [one.blocks() for one in chosen]


class _Longest:
    """The `MAX_SPANS` longest spans of a rank; of equally long ones the first."""

    def __init__(self) -> None:
        self._blocks: list[Spans] = []
        self._count = 0

    def add(self, spans: Spans) -> None:
        self._blocks.append(spans)
        self._count += len(spans)
        if self._count > 2 * MAX_SPANS:
            self.blocks()

    def blocks(self) -> list[Spans]:
        if self._count > MAX_SPANS:
            ends = np.cumsum([len(one) for one in self._blocks])
            kept = longest(np.concatenate([one.durations for one in self._blocks]), MAX_SPANS)
            rows = np.split(kept, np.searchsorted(kept, ends[:-1]))
            pairs = zip(self._blocks, rows, ends.tolist(), strict=True)
            self._blocks = [
                one.take(mine - (end - len(one))) for one, mine, end in pairs if len(mine)
            ]
            self._count = MAX_SPANS
        return self._blocks


def _add_rank(writer: TraceWriter, blocks: list[Spans], parent: int) -> None:
    """A track for each thread, and as many lanes in it as calls are nested."""
    threads: dict[tuple[int, int], list[tuple[Spans, Int64s]]] = {}
    for spans in blocks:
        for tid in np.unique(spans.block.tid).tolist():
            rows = np.flatnonzero(spans.block.tid == tid)
            threads.setdefault((spans.pid, tid), []).append((spans, rows))
    for place, ((pid, tid), parts) in enumerate(sorted(threads.items(), key=lambda t: t[0])):
        name = f"I/O pid {pid}" if pid == tid else f"I/O pid {pid} thread {tid}"
        _add_thread(writer, parts, name, parent, _ORDER + place)


def _add_thread(
    writer: TraceWriter, parts: list[tuple[Spans, Int64s]], name: str, parent: int, order: int
) -> None:
    start = np.concatenate([spans.start_ns[rows] for spans, rows in parts])
    end = np.concatenate([spans.end_ns[rows] for spans, rows in parts])
    block = np.repeat(np.arange(len(parts)), [len(rows) for _, rows in parts])
    row = np.concatenate([rows for _, rows in parts])
    # Of two that begin together, the longer one is the outer one.
    at = np.lexsort((-end, start))
    places = zip(block[at].tolist(), row[at].tolist(), strict=True)
    slices = (_slice(parts[part][0], index) for part, index in places)
    writer.slices(name, start[at], end[at], slices, order=order, parent=parent)


def _slice(spans: Spans, row: int) -> Slice:
    block, file = spans.block, spans.file(row)
    nbytes = int(block.nbytes[row])
    steps = {"epoch": int(block.epoch[row]), "step": int(block.step[row])}
    numbers = {"bytes": nbytes} if nbytes > 0 else {}
    return Slice(
        spans.name(row),
        "io" if block.kind[row] >= Kind.IO else spans.cat(row),
        numbers=numbers | {key: number for key, number in steps.items() if number >= 0},
        texts={"file": file} if file else {},
    )
