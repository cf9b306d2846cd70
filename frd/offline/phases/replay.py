"""Scopes from their beginnings and ends: a stack for each thread, in the order of time.

An end belongs to the innermost running scope with its id; if one of them has no id, with its path.
That is the top of the stack, unless marks are missing (a file was cut or rotated) or tasks of one
thread take turns. So an end below the top ends that scope, and with it the scopes whose path is
inside it; other scopes go on. An end that matches no running scope is left out, as in the public
replay. A scope without an end lasts until the recording of its process ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Final, TypeAlias

from frd.forms import fold_ranks
from frd.offline.phases.marks import PhaseMark
from frd.offline.phases.spans import EVENTS, LAST_NS, PhaseSpan, PhaseThread, Process

_SEARCHED: Final = 256
"""Running scopes that are compared with an end: a damaged recording must not take forever."""

_UNUSABLE: Final = "phase events without a name or a possible time, left out"
_NO_BEGIN: Final = "ends of phases that match no beginning, left out"
_NO_END: Final = "phases without an end, ended with the phase around them"

_order = attrgetter("at_ns", "sequence")


_Faults: TypeAlias = Counter[tuple[str, str, int]]
"""How often marks were wrong: by what it was, job and rank."""


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
