"""All phases of all ranks in one table, from phase events and from traces; the entry point.

Times are those of the host's clock, on which samples are as well: the uncertainty of clocks does
not matter between a sample and a phase of the same rank.

Traces have spans of the program's own annotations: epoch, train, forward, fetch. Calls of libraries
(POSIX, STDIO, MPI) are no phases: they are too short for a sample to be in one, and they would end
and begin within every interval. Child processes are left out, too: what a loader's worker does is
no phase of its rank. A trace has a span only after the span has ended. So a phase that was running
when a trace ended is not in it; paths then lack their outer part.

Phase events are beginnings and ends: a stack for each thread, in the order of time (`replayed`). An
end belongs to the innermost running scope with its id; if one of them has no id, with its path.
That is the top of the stack, unless marks are missing (a file was cut or rotated) or tasks of one
thread take turns. So an end below the top ends that scope, and with it the scopes whose path is
inside it; other scopes go on. An end that matches no running scope is left out, as in the public
replay. A scope without an end lasts until the recording of its process ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Final, TypeAlias

import numpy as np

from frd.dftracer.block import Texts
from frd.dftracer.line import Kind
from frd.forms import fold_ranks
from frd.model import Int64s
from frd.offline.io.analysis import IoAnalysis, RankIo
from frd.offline.io.spans import Spans, longest, spans_by_rank
from frd.offline.phases import rank_phases
from frd.offline.phases.answer import Certainty, PhaseAnswer
from frd.offline.phases.marks import PhaseMark
from frd.offline.phases.rank_phases import (
    EVENTS,
    LAST_NS,
    TRACES,
    PhaseGain,
    PhaseSeries,
    PhaseSpan,
    PhaseThread,
    Process,
    RankPhases,
    gains_of,
    longest_of,
)

_NO_PHASES: Final = frozenset(
    {"POSIX", "STDIO", "MPI", "MPIIO", "HDF5", "HIP", "CUDA", "NCCL", "dftracer"}
)
"""Categories of calls of libraries, and of the tracer."""
_SEARCHED: Final = 256
"""Running scopes that are compared with an end: a damaged recording must not take forever."""

_UNUSABLE: Final = "phase events without a name or a possible time, left out"
_NO_BEGIN: Final = "ends of phases that match no beginning, left out"
_NO_END: Final = "phases without an end, ended with the phase around them"

_order = attrgetter("at_ns", "sequence")


_Faults: TypeAlias = Counter[tuple[str, str, int]]
"""How often marks were wrong: by what it was, job and rank."""


@dataclass(frozen=True, slots=True)
class PhaseTable:
    """Made by `build_phases`."""

    warnings: Sequence[str] = ()
    _ranks: Mapping[tuple[str, int], RankPhases] = field(default_factory=dict, repr=False)

    @property
    def spans(self) -> Sequence[PhaseSpan]:
        """By job and rank, phase events before traces, then by begin."""
        ranks = (self._ranks[key] for key in sorted(self._ranks))
        return [*chain.from_iterable((*one.events.spans, *one.traces.spans) for one in ranks)]

    def of_rank(self, job: str, rank: int) -> Sequence[PhaseSpan]:
        """Spans of one rank, those of the source that counts in `gains`, by begin."""
        phases = self._ranks.get((job, rank))
        return phases.main.spans if phases else ()

    def at(
        self,
        job: str,
        rank: int,
        begin_ns: int,
        end_ns: int,
        *,
        scope_id: str | None = None,
        thread_id: int | None = None,
    ) -> PhaseAnswer:
        """The innermost phase at some time from `begin_ns` to `end_ns`, both included.

        Phase events come before traces. If both answer for sure, and the innermost phase is not the
        same, the path of the trace is a detail of the answer.

        Args:
            scope_id: the scope that a sample of the interval names.
            thread_id: the thread that a sample of the interval names.
        """
        phases = self._ranks.get((job, rank))
        if phases is None:
            return PhaseAnswer(Certainty.NONE)
        when = begin_ns, max(begin_ns, end_ns)
        events = phases.events.at(*when, scope_id or "", thread_id)
        traces = phases.traces.at(*when, "", thread_id)
        if events.certainty is Certainty.NONE:
            return traces
        if events.path and traces.path and events.path[-1] != traces.path[-1]:
            return replace(events, detail=traces.path)
        return events

    def gains(self, series: Iterable[PhaseSeries]) -> list[PhaseGain]:
        """Bytes gained in each phase by each kind of series, the largest gain first.

        A rank's phases are those of its phase events, or those of traces if it has no such event.
        A device's used memory contains its reserved memory: rows of different kinds must not be
        added.
        """
        return gains_of(series, self._ranks)


def build_phases(
    marks: Iterable[PhaseMark],
    last_ns: Mapping[Process, int],
    io: IoAnalysis | None = None,
    *,
    unnamed: str = "",
) -> PhaseTable:
    """The table of phases; it reads the traces of `io` once more.

    Args:
        last_ns: the last event of each process, by job, rank, pid and session; open phases end
            then, or with the last mark of the process.
        io: traces. What was added to their times is taken off again (`IoAnalysis.offsets_ns`).
        unnamed: what a job without a name is called, in the table and for `at`.
    """
    spans, warnings = replayed(marks, last_ns)
    kept = [*longest_of(spans)]
    if len(kept) < len(spans):
        warnings.append(f"the shortest phases, too many, left out: {len(spans) - len(kept):,}")
    if io is not None:
        more, notes = trace_spans(io, all_processes(last_ns, kept))
        kept += more
        warnings += notes
    ranks: dict[tuple[str, int], list[PhaseSpan]] = {}
    for span in kept:
        ranks.setdefault((span.thread.job or unnamed, span.thread.rank), []).append(span)
    return PhaseTable(tuple(warnings), {key: RankPhases.of(some) for key, some in ranks.items()})


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
        if self._count > 2 * rank_phases.MAX_SPANS:
            self._cut()

    def _cut(self) -> Int64s:
        rows = np.concatenate(self._parts, axis=1) if self._parts else np.empty((4, 0), np.int64)
        if (over := rows.shape[1] - rank_phases.MAX_SPANS) > 0:
            self.left_out += over
            rows = rows[:, longest(rows[3] - rows[2], rank_phases.MAX_SPANS)]
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


def _warnings(faults: _Faults) -> Iterator[str]:
    for (what, job), some in groupby(sorted(faults), key=itemgetter(0, 1)):
        keys = list(some)
        of = f"{job}: " if job else ""
        count = sum(faults[key] for key in keys)
        yield f"{of}{what}: {count:,} (rank {fold_ranks(rank for *_, rank in keys)})"


def replayed(
    marks: Iterable[PhaseMark], last_ns: Mapping[Process, int]
) -> tuple[list[PhaseSpan], list[str]]:
    """All scopes, those of a thread in the order in which they began; and warnings.

    Args:
        last_ns: when the recording of a process ended; its last mark may be later.
    """
    faults = _Faults()
    threads: dict[tuple[Process, str, int], list[PhaseMark]] = {}
    ends: dict[Process, int] = {}
    for mark in marks:
        if not 0 < mark.at_ns < LAST_NS or (mark.entered and not mark.path):
            faults[_UNUSABLE, mark.job, mark.rank] += 1
            continue
        process = mark.job, mark.rank, mark.pid, mark.session
        ends[process] = max(mark.at_ns, ends.get(process, 0))
        # A thread may be renamed between two marks.
        threads.setdefault((process, mark.host, mark.thread_id), []).append(mark)
    spans: list[PhaseSpan] = []
    for (process, host, thread_id), some in threads.items():
        job, rank, pid, session = process
        name = next((mark.thread_name for mark in some if mark.thread_name), "")
        thread = PhaseThread(job, rank, host, pid, session, thread_id, name)
        last = max(ends[process], min(last_ns.get(process, 0), LAST_NS))
        some.sort(key=_order)
        spans += _scopes(thread, some, last, faults)
    return spans, list(_warnings(faults))


def _scopes(
    thread: PhaseThread, marks: Sequence[PhaseMark], last_ns: int, faults: _Faults
) -> Iterator[PhaseSpan]:
    """`marks` are in order; the same mark twice in a row is one, as files may be given twice."""
    begun: list[PhaseMark] = []
    ends: list[int | None] = []
    running: list[int] = []
    """Indexes in `begun`, the innermost last."""
    previous: PhaseMark | None = None
    for mark in marks:
        if mark == previous:
            continue
        previous = mark
        if mark.entered:
            running.append(len(begun))
            begun.append(mark)
            ends.append(None)
            continue
        if (at := _match(begun, running, mark)) < 0:
            faults[_NO_BEGIN, thread.job, thread.rank] += 1
            continue
        ended = {running[at], *_inside(begun, running[at], running[at + 1 :])}
        if len(ended) > 1:
            faults[_NO_END, thread.job, thread.rank] += len(ended) - 1
        running[at:] = [one for one in running[at:] if one not in ended]
        for one in ended:
            ends[one] = mark.at_ns
    for mark, end in zip(begun, ends, strict=True):
        stop = last_ns if end is None else end
        yield PhaseSpan(thread, mark.path, mark.at_ns, stop, end is None, mark.scope_id, EVENTS)


def _match(begun: Sequence[PhaseMark], running: Sequence[int], mark: PhaseMark) -> int:
    """The index in `running` of the scope that `mark` ends; -1 if there is no such scope."""
    for at in range(len(running) - 1, max(len(running) - _SEARCHED, 0) - 1, -1):
        one = begun[running[at]]
        if one.scope_id and mark.scope_id:
            if one.scope_id == mark.scope_id:
                return at
        elif one.path == mark.path:
            return at
    return -1


def _inside(begun: Sequence[PhaseMark], outer: int, later: Sequence[int]) -> list[int]:
    """Those of `later` whose path is inside that of `outer`."""
    path = begun[outer].path
    return [
        one
        for one in later
        if len(begun[one].path) > len(path) and begun[one].path[: len(path)] == path
    ]
