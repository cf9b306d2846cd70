"""All phases of all ranks in one table, from phase events and from traces; the entry point.

Times are those of the host's clock, on which samples are as well: the uncertainty of clocks does
not matter between a sample and a phase of the same rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from frd.offline.io.analysis import IoAnalysis
from frd.offline.phases.answer import Certainty, PhaseAnswer
from frd.offline.phases.gains import PhaseGain, PhaseSeries, gains_of
from frd.offline.phases.marks import PhaseMark
from frd.offline.phases.rank_phases import RankPhases
from frd.offline.phases.replay import replayed
from frd.offline.phases.spans import PhaseSpan, Process, longest_of
from frd.offline.phases.traces import all_processes, trace_spans


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
