"""A folder of dumps as a timeline that ui.perfetto.dev opens.

One track a rank, below it one a group. A collective is a slice from its enqueue to its discovered
completion, and arrows lead from each rank to the next one that joined it. What had not completed
has no end; the name of a stuck op says so. The findings have a separate track on top, followed by
the ranks that are the first cause.

Unknown times are not drawn: an op that completed at an unknown time (Gloo's recorder has no times)
is an instant at its enqueue. So is an op without a lane, if thousands wait.

Spans of traces are tracks, too: one a thread, below its rank. Of a rank with very many spans the
longest are drawn, of equally long ones the first: a browser does not open more, and a timeline is
for what takes time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from io import BufferedIOBase
from typing import Final

import numpy as np

from frd.dftracer.line import Kind
from frd.flight.progress import NameFacts
from frd.flight.trace import RankTrace
from frd.forms import fold_ranks
from frd.model import UNKNOWN_SEQ, Bools, Int64s
from frd.offline.analysis.analyze import Analysis
from frd.offline.io.analysis import IoAnalysis, RankIo, names_of
from frd.offline.io.spans import Spans, longest, spans_by_rank
from frd.offline.memory.analysis import MemoryAnalysis
from frd.offline.output.memory.tracks import add_memory, begins_at_ns
from frd.offline.output.text_tables import (
    done_and_closing,
    frame_text,
    op_text,
    sizes_text,
    state_text,
    stuck_in,
)
from frd.perfetto.texts import finding_slice, rank_title
from frd.perfetto.writer import BEGIN, OPEN, Slice, TraceWriter

Progress = Callable[[int, int], None]
"""Called with the number of ranks that are written, and of all."""

_CAUSES: Final = 1
_RANKS: Final = 1 << 24
"""Order of tracks: findings, first causes, then the other ranks."""
MAX_SPANS: Final = 200_000
"""Of a rank."""
_TOGETHER: Final = 5 * MAX_SPANS
"""Spans in memory. Ranks are drawn together, because a trace may have many of them."""
_ORDER: Final = 1 << 20
"""After the groups of a rank."""
_UNKNOWN_RANK: Final = 1 << 30


def write_timeline(
    analysis: Analysis | None,
    out: BufferedIOBase,
    progress: Progress,
    io: IoAnalysis | None = None,
    memory: MemoryAnalysis | None = None,
) -> None:
    """Write the whole timeline of dumps, traces, memory or several of them, rank by rank."""
    begin = _beginning(analysis, io)
    if memory is not None and (first := begins_at_ns(memory, analysis)) is not None:
        begin = min(begin, first) if begin else first
    writer = TraceWriter(out, max(begin, 0))
    tracks: dict[int, int] = {}
    if analysis is not None:
        timeline = _Timeline(analysis, writer)
        timeline.add_findings()
        ranks = sorted(analysis.trace.ranks)
        for number, rank in enumerate(ranks, 1):
            tracks[rank] = timeline.add_rank(rank)
            progress(number, len(ranks))
    if memory is not None:
        add_memory(writer, memory, tracks, analysis, progress, order=_RANKS)
    if io is not None:
        add_io(writer, io, tracks, progress, order=_RANKS)
    writer.flush()


class _Timeline:
    def __init__(self, analysis: Analysis, writer: TraceWriter) -> None:
        self.writer = writer
        self._analysis = analysis
        self._trace = analysis.trace
        self._suspects = {s.rank for finding in analysis.findings for s in finding.suspects}
        self._sizes = cache(lambda signature: sizes_text(analysis.trace.signatures[signature]))
        self._stack = cache(self._stack_text)

    def add_findings(self) -> None:
        track = self.writer.track("findings", order=0)
        for finding in self._analysis.findings:
            self.writer.event(BEGIN, finding.opened_at, track, finding_slice(finding))

    def add_rank(self, rank: int) -> int:
        """Add the tracks of one rank, and return the one above them."""
        trace = self._trace.ranks[rank]
        is_cause = rank in self._suspects
        name = rank_title(rank, trace.info.node if trace.info else "", is_cause=is_cause)
        order = rank + (_CAUSES if is_cause else _RANKS)
        track = self.writer.track(name, order=order, ordered=True)
        for finding in self._analysis.findings:
            for s in finding.suspects:
                if s.rank == rank:
                    texts = {
                        "evidence": s.evidence,
                        "stack": " < ".join(s.stack),
                        "victims": fold_ranks(finding.victims),
                    }
                    of = Slice(f"first cause: {s.reason}", "finding", texts=texts)
                    self.writer.event(BEGIN, finding.opened_at, track, of)
        end = ends(trace, self._analysis.collectives.facts)
        end[end != OPEN] += self._analysis.clock_offsets_ns.get(rank, 0)
        collective = self._analysis.collectives.of_entries(rank)
        is_stuck = stuck_in(self._analysis, rank)
        groups = [int(group) for group in np.unique(trace.group)]
        labels = Counter(self._trace.groups[group].label for group in groups)
        for group in groups:
            info = self._trace.groups[group]
            label = info.label if labels[info.label] == 1 else f"{info.label} ({info.name})"
            rows = np.flatnonzero((trace.group == group) & (trace.created_ns > 0))
            rows = rows[np.argsort(trace.created_ns[rows], kind="stable")]
            if len(rows):
                flow = flows(collective[rows])
                self._add_ops(trace.take(rows), end[rows], flow, is_stuck[rows], label, track)
        return track

    def _add_ops(
        self, ops: RankTrace, end_ns: Int64s, flow_id: Int64s, stuck: Bools, label: str, parent: int
    ) -> None:
        """Add a slice for each op of one group, in order of time, or an instant without a lane.

        `end_ns` is aligned, see `ends`; ops of one collective share a `flow_id`, which
        is 0 for none.
        """
        begin_ns = ops.created_ns + self._analysis.clock_offsets_ns.get(ops.rank, 0)
        columns = (
            end_ns == OPEN,
            flow_id,
            stuck,
            ops.is_p2p != 0,
            ops.name,
            np.maximum(ops.seq, 0),
            np.maximum(ops.record_id, 0),
            ops.signature,
            ops.state,
            ops.retired,
            ops.stack,
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        slices = (
            Slice(
                self._name(name, UNKNOWN_SEQ if is_p2p else seq, is_stuck),
                _category(is_stuck=is_stuck, is_waiting=is_open, is_p2p=is_p2p),
                flow,
                {"seq": seq, "record_id": record_id},
                self._texts(*texts),
            )
            for is_open, flow, is_stuck, is_p2p, name, seq, record_id, *texts in rows
        )
        self.writer.slices(label, begin_ns, end_ns, slices, parent=parent, order=int(ops.group[0]))

    def _texts(self, signature: int, state: int, retired: int, stack: int) -> dict[str, str]:
        return {
            "sizes": self._sizes(signature),
            "state": state_text(state, bool(retired)),
            "stack": self._stack(stack),
        }

    def _name(self, name: int, seq: int, is_stuck: bool) -> str:
        op = op_text(self._trace.names[name])
        text = op if seq == UNKNOWN_SEQ else f"{op} #{seq}"
        return f"stuck: {text}" if is_stuck else text

    def _stack_text(self, stack: int) -> str:
        return " < ".join(map(frame_text, self._trace.stacks[stack])) if stack >= 0 else ""


def _category(*, is_stuck: bool, is_waiting: bool, is_p2p: bool) -> str:
    if is_stuck:
        return "stuck"
    return "waiting" if is_waiting else "p2p" if is_p2p else "collective"


def _beginning(analysis: Analysis | None, io: IoAnalysis | None) -> int:
    """The earliest time of any op or span, aligned; 0 when there is none."""
    known = [one.usage.first_ns for one in io.ranks] if io is not None else []
    if analysis is not None:
        offsets = analysis.clock_offsets_ns
        known += [
            int(created.min()) + offsets.get(rank, 0)
            for rank, trace in analysis.trace.ranks.items()
            if len(created := trace.created_ns[trace.created_ns > 0])
        ]
    return max(min(known, default=0), 0)


# -- ops of one rank as intervals of time -------------------------------------------------------

INSTANT: Final = -1
"""The end of an op that completed at an unknown time."""


def ends(trace: RankTrace, facts: NameFacts) -> Int64s:
    """When each op ended, on the rank's own clock, and never before it was enqueued; `OPEN` for an
    op that had not completed, or was given up."""
    done, closing = done_and_closing(trace, facts)
    completed_ns = trace.completed_ns[closing]
    end = np.maximum(completed_ns, trace.created_ns)
    end[completed_ns <= 0] = INSTANT
    end[~done] = OPEN
    return end


def flows(collective: Int64s) -> Int64s:
    """A number that ops of one collective share on all ranks; `collective` is -1 for other ops.

    0 for those, and for all but the first op of a coalesced collective.
    """
    _, first = np.unique(collective, return_index=True)
    out = np.zeros_like(collective)
    out[first] = collective[first] + 1
    return out


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
