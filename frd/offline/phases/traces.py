"""Spans of the program's own annotations in traces of I/O: epoch, train, forward, fetch.

Calls of libraries (POSIX, STDIO, MPI) are no phases: they are too short for a sample to be in one,
and they would end and begin within every interval. Child processes are left out, too: what a
loader's worker does is no phase of its rank. A trace has a span only after the span has ended. So a
phase that was running when a trace ended is not in it; paths then lack their outer part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from frd.dftracer.block import Texts
from frd.dftracer.kinds import Kind
from frd.forms import fold_ranks
from frd.model import Int64s
from frd.offline.io.analysis import IoAnalysis, RankIo
from frd.offline.io.spans import Spans, longest, spans_by_rank
from frd.offline.phases import spans as phase_spans
from frd.offline.phases.spans import TRACES, PhaseSpan, PhaseThread, Process

_NO_PHASES: Final = frozenset(
    {"POSIX", "STDIO", "MPI", "MPIIO", "HDF5", "HIP", "CUDA", "NCCL", "dftracer"}
)
"""Categories of calls of libraries, and of the tracer."""


def trace_spans(io: IoAnalysis, processes: Iterable[Process]) -> tuple[list[PhaseSpan], list[str]]:
    """The phases in traces, those of a thread in the order in which they began; and warnings.

    A trace does not name its job. It belongs to the only job of `processes`; if there are several
    jobs, to the one in which that rank has that pid.
    """
    jobs, warnings = _Jobs(processes), list[str]()
    ranks = [_main(one) for one in io.ranks if one.rank is not None]
    if unknown := len(io.ranks) - len(ranks):
        warnings.append(f"traced processes without a rank, phases left out: {unknown:,}")
    rows, homeless = _Rows(), set[int]()
    for number, spans in spans_by_rank(io, ranks):
        rank = ranks[number].rank or 0
        if (job := jobs.of(rank, spans.pid)) is None:
            homeless.add(rank)
        else:
            rows.add(job, rank, spans, io.offsets_ns.get(rank, 0))
    found = list(rows.nested())
    if homeless:
        warnings.append(
            f"traces that may be of several jobs, phases left out: rank {fold_ranks(homeless)}"
        )
    if rows.left_out:
        warnings.append(f"the shortest spans of traces, too many, left out: {rows.left_out:,}")
    return found, warnings


def _main(one: RankIo) -> RankIo:
    """Without child processes."""
    return replace(one, sources=[source for source in one.sources if not source.is_child])


class _Jobs:
    def __init__(self, processes: Iterable[Process]) -> None:
        self._by_pid: dict[tuple[int, int], set[str]] = {}
        self._all: set[str] = set()
        for job, rank, pid, _ in processes:
            self._by_pid.setdefault((rank, pid), set()).add(job)
            self._all.add(job)

    def of(self, rank: int, pid: int) -> str | None:
        """None if it may be one of several."""
        if len(self._all) <= 1:
            return next(iter(self._all), "")
        found = self._by_pid.get((rank, pid), set())
        return next(iter(found)) if len(found) == 1 else None


@dataclass(slots=True)
class _Rows:
    """Spans as columns, on the clocks of their hosts; the longest ones, if there are too many."""

    left_out: int = 0
    _threads: dict[PhaseThread, int] = field(default_factory=dict)
    _names: Texts = field(default_factory=Texts)
    _parts: list[Int64s] = field(default_factory=list)
    """Shape (4, n): thread, name, begin, end."""
    _count: int = 0

    def add(self, job: str, rank: int, spans: Spans, offset_ns: int) -> None:
        calls = np.flatnonzero(spans.block.kind < Kind.IO).tolist()
        at = np.array([one for one in calls if spans.cat(one) not in _NO_PHASES], np.int64)
        if not len(at):
            return
        tids, which = np.unique(spans.block.tid[at], return_inverse=True)
        threads = [
            self._threads.setdefault(
                PhaseThread(job, rank, spans.host, spans.pid, "", tid, ""), len(self._threads)
            )
            for tid in tids.tolist()
        ]
        names = np.array([self._names[spans.name(one)] for one in at.tolist()], np.int64)
        times = spans.start_ns[at] - offset_ns, spans.end_ns[at] - offset_ns
        self._parts.append(np.stack((np.array(threads, np.int64)[which], names, *times)))
        self._count += len(at)
        if self._count > 2 * phase_spans.MAX_SPANS:
            self._cut()

    def _cut(self) -> Int64s:
        rows = np.concatenate(self._parts, axis=1) if self._parts else np.empty((4, 0), np.int64)
        if (over := rows.shape[1] - phase_spans.MAX_SPANS) > 0:
            self.left_out += over
            rows = rows[:, longest(rows[3] - rows[2], phase_spans.MAX_SPANS)]
        self._parts, self._count = [rows], rows.shape[1]
        return rows

    def nested(self) -> Iterator[PhaseSpan]:
        """Each inside the innermost span of its thread that contains it.

        A phase may be annotated twice, as decorator and as context: that is one step of the path.
        """
        rows = self._cut()
        thread, _, begin, end = rows
        # A span ends, and is written, before the span around it.
        order = np.lexsort((-np.arange(len(thread)), -end, begin, thread))
        threads, names = list(self._threads), list(self._names)
        paths: dict[tuple[tuple[str, ...], int], tuple[str, ...]] = {}
        around: list[tuple[int, int, tuple[str, ...]]] = []
        for of, number, start, stop in rows[:, order].T.tolist():
            while around and (around[-1][0] != of or around[-1][1] < stop):
                around.pop()
            outer = around[-1][2] if around else ()
            path = paths.get((outer, number))
            if path is None:
                same = outer and outer[-1] == names[number]
                path = paths[outer, number] = outer if same else (*outer, names[number])
            around.append((of, stop, path))
            yield PhaseSpan(threads[of], path, start, stop, False, "", TRACES)


def all_processes(
    last_ns: Mapping[Process, int], spans: Iterable[PhaseSpan]
) -> dict[Process, None]:
    """All that samples or phase events are of."""
    threads = dict.fromkeys(span.thread for span in spans)
    return dict.fromkeys(last_ns) | dict.fromkeys(
        (one.job, one.rank, one.pid, one.session) for one in threads
    )
