"""Whether dumps and traces are from the time of a recording: those of another run fit by rank only,
and a timeline of both is empty between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from frd.forms import utc_text
from frd.offline.analysis.analyze import Analysis
from frd.offline.io.analysis import IoAnalysis
from frd.offline.memory.analysis import MemoryAnalysis

_APART_NS: Final = 600 * 10**9
"""A tracker may end so long before the last collective of a job, or begin after the first."""


def other_times(
    memory: MemoryAnalysis, dumps: Analysis | None, io: IoAnalysis | None
) -> Iterator[str]:
    """A warning for dumps, and for traces, that are of a quite different time."""
    ranks = [usage for job in memory.jobs for usage in job.ranks.values()]
    begin, end = min(one.first_ns for one in ranks), max(one.last_ns for one in ranks)
    for what, times in (("dumps", _of_dumps(dumps)), ("traces", _of_traces(io))):
        if times and (min(times) > end + _APART_NS or max(times) < begin - _APART_NS):
            yield (
                f"the {what} are from {utc_text(min(times))} to {utc_text(max(times))}, and the "
                f"samples from {utc_text(begin)} to {utc_text(end)}: name files of one run"
            )


def _of_dumps(dumps: Analysis | None) -> list[int]:
    if dumps is None:
        return []
    times: list[int] = []
    for rank, trace in dumps.trace.ranks.items():
        if len(known := trace.created_ns[trace.created_ns > 0]):
            offset = dumps.clock_offsets_ns.get(rank, 0)
            times += [int(known.min()) + offset, int(known.max()) + offset]
    return times


def _of_traces(io: IoAnalysis | None) -> list[int]:
    known = [one.usage for one in io.ranks if one.usage.events] if io is not None else []
    return [at for usage in known for at in (usage.first_ns, usage.last_ns)]
