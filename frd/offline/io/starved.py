"""What the traces say of a first cause: the file its rank was reading when it was last seen.

Only a rank that has not joined a collective can be starved by a file. Its main thread must have
been waiting: in a call on the file, or in a fetch while another thread or process of the rank was
in such a call. A trace shows that only if the call has returned. A call that never returned has no
line: then the last call that ended, and the file that is open after it, are likely the cause,
unless the rank did anything later. Whatever the trace shows before or after the moment can refute a
claim. A trace that was not finalized may lack what was buffered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from frd.dftracer.line import Kind, may_read_next
from frd.engine.findings import text as words
from frd.forms import clock_text, duration_text, utc_text
from frd.model import Finding, Reason, Suspect
from frd.offline.analysis.analyze import Analysis
from frd.offline.io.evidence.activity import NEVER, Call, Process, Thread, processes_at

if TYPE_CHECKING:
    from frd.offline.io.analysis import IoAnalysis, RankIo

SEEN: Final = "seen"
LIKELY: Final = "likely"
_MAY_WAIT: Final = frozenset({Reason.CPU_STUCK, Reason.UNREACHABLE})
"""A suspect for any other reason has joined, has ended, or waits for a rank."""
_MOST: Final = 2
"""A call that took at least one part in so many of the wait is its cause, ..."""
_SOME: Final = 10
"""... and one that took less than one in so many was in progress by chance."""
_NOT_FINALIZED: Final = " (the trace was not finalized, so buffered calls are missing)"
_NOT_DATA: Final = frozenset({Kind.WRITE, Kind.CLOSE})
"""Calls after which an open file is no sign that the process reads from it."""
_LEAST_WAIT_NS: Final = 10**9
_START_NS: Final = 3_600 * 10**9
"""A rank without entries may have begun so long before the first entry of the job."""


@dataclass(frozen=True, slots=True)
class Starved:
    """A rank, and the file that kept it waiting."""

    rank: int
    path: str
    certainty: str
    """``seen``: the main thread was in a call on it, or waited for data that one of its processes
    was reading from it; ``likely``: as far as the trace shows."""
    call: str
    """The call that was in progress, or that ended last."""
    since_ns: int
    """When the call in progress began, or the last one ended."""
    pid: int
    text: str

    def to_json(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "path": self.path,
            "certainty": self.certainty,
            "call": self.call,
            "since": utc_text(self.since_ns),
            "pid": self.pid,
            "text": self.text,
        }


def with_starved(analysis: Analysis, io: IoAnalysis) -> tuple[Analysis, IoAnalysis]:
    """Both, with what the traces say of the suspects of the findings."""
    found: dict[tuple[int, Reason], Starved] = {}
    asked: set[tuple[int, Reason]] = set()
    warnings: dict[str, None] = {}
    by_rank = {one.rank: one for one in io.ranks}
    for finding in analysis.findings:
        for suspect in finding.suspects:
            key = (suspect.rank, suspect.reason)
            mine = by_rank.get(suspect.rank)
            if mine is None or key in asked or suspect.reason not in _MAY_WAIT:
                continue
            asked.add(key)
            moment = moment_of(analysis, finding, suspect)
            processes = _of_this_run(io, mine, suspect.rank, moment, warnings)
            claim = _Judge(io, suspect, moment, processes).claim()
            if claim is not None:
                found[key] = claim
    io = replace(io, warnings=[*io.warnings, *warnings])
    if not found:
        return analysis, io
    findings = [_with_evidence(finding, found) for finding in analysis.findings]
    summary = analysis.summary
    first = (found.get((suspect.rank, suspect.reason)) for suspect in findings[0].suspects)
    if (one := next(filter(None, first), None)) is not None:
        summary = f"{summary}; {_in_short(one)}"
    by_first: dict[int, Starved] = {}
    for claim in found.values():
        by_first.setdefault(claim.rank, claim)
    io = replace(io, starved=list(by_first.values()))
    return replace(analysis, findings=findings, summary=summary), io


def _with_evidence(finding: Finding, found: Mapping[tuple[int, Reason], Starved]) -> Finding:
    suspects = [
        replace(one, evidence=f"{one.evidence}; {claim.text}")
        if (claim := found.get((one.rank, one.reason))) is not None
        else one
        for one in finding.suspects
    ]
    return replace(finding, suspects=tuple(suspects))


def _in_short(one: Starved) -> str:
    perhaps = "" if one.certainty == SEEN else "probably "
    return f"rank {one.rank} is {perhaps}starved by {words.clean(one.path)}"


def _of_this_run(
    io: IoAnalysis, mine: RankIo, rank: int, moment: Moment, warnings: dict[str, None]
) -> list[Process]:
    """Without the traces of another attempt: those that ended before the rank's first recorded
    entry, and those of processes that began after it was last seen."""
    processes = processes_at(io.facts, mine.sources, moment.at)
    for one in processes:
        if one.last_end < moment.begun and not one.is_child:
            warnings[
                f"{one.trace}: ends before the first recorded entry of rank {rank}, so it is of "
                "another run, or its end is lost: not used to say what the rank waited for"
            ] = None
    return [one for one in processes if one.last_end >= moment.begun and not one.is_later]


# -- the claim -------------------------------------------------------------------------------------


class _Judge:
    """What the threads of one suspect were doing, and what follows."""

    def __init__(
        self, io: IoAnalysis, suspect: Suspect, moment: Moment, processes: Sequence[Process]
    ) -> None:
        self._io, self._rank, self._moment = io, suspect.rank, moment
        self._processes = processes
        self._may_be_seen = suspect.reason is Reason.CPU_STUCK
        ranks = [one for one in processes if not one.is_child]
        self._main = ranks[0].main if len(ranks) == 1 else None
        """The thread that trains; None if it is not known which one."""
        self._mains = [self._main] if self._main else [t for p in ranks for t in p.threads.values()]
        """The thread that trains is one of these, if it is traced."""

    def claim(self) -> Starved | None:
        inside = [main.inside for main in self._mains if main.inside is not None]
        if any(call.kind in (Kind.COMPUTE, Kind.OTHER) for call in inside):
            return None  # it computes, sleeps, or waits for a process
        if self._main is None or self._main.inside is None:
            return self._of_others() if self._others() else self._left_open()
        if self._main.inside.kind is Kind.FETCH:
            return self._fetching(self._main, self._main.inside)
        call = self._main.inside
        return self._in_progress(self._main, call, "", kept=call.length, may_be_seen=True)

    # -- calls that were in progress --

    def _fetching(self, main: Thread, fetch: Call) -> Starved | None:
        """The main thread got its data after the call of another thread or process had ended."""
        helpers = [
            (thread, call)
            for thread, call in self._others()
            if call.end <= fetch.end and call.kind not in _NOT_DATA
        ]
        if not helpers:
            return None
        thread, call = max(helpers, key=lambda pair: pair[1].end)
        more = len({self._path(*pair) for pair in helpers}) - 1
        meanwhile = ", while its main thread was waiting for a batch"
        if more:
            files = "file" if more == 1 else "files"
            meanwhile += f"; calls on {more} other {files} were in progress, too"
        kept = call.end - max(call.start, fetch.start)
        others = [t for p in self._processes for t in p.threads.values()]
        is_plain = (
            not more
            and kept * _MOST >= fetch.length
            and main.noted_inside <= fetch.start
            and all(t is main or t is thread or self._is_idle(t, call.end) for t in others)
        )
        return self._in_progress(thread, call, meanwhile, kept=kept, may_be_seen=is_plain)

    def _is_idle(self, other: Thread, until: int) -> bool:
        """No data came from it in the second half of the wait, nor after it until a time."""
        is_reading = other.inside is not None and other.inside.kind not in _NOT_DATA
        goes_on = other.next_begin is not None and other.next_begin < until
        return not is_reading and not goes_on and other.active_at <= self._middle

    def _of_others(self) -> Starved | None:
        """The trace does not show what the main thread was doing, but nothing else that it did."""
        active_at = max([self._moment.entered, *(main.active_at for main in self._mains)])
        if active_at > self._middle or self._has_batch:
            return None
        later = [main.next_begin for main in self._mains if main.next_begin is not None]
        calls = [pair for pair in self._others() if not later or pair[1].end <= min(later)]
        if not calls or len({self._path(*pair) for pair in (*calls, *self._open_files())}) != 1:
            return None
        thread, call = max(calls, key=lambda pair: pair[1].length)
        meanwhile = "; the trace does not show what its main thread was doing"
        return self._in_progress(thread, call, meanwhile, kept=call.length, may_be_seen=False)

    def _others(self) -> list[tuple[Thread, Call]]:
        """Long calls on files that were in progress in other threads than the main one."""
        return [
            (thread, call)
            for process in self._processes
            for thread in process.threads.values()
            if thread is not self._main
            and (call := thread.inside) is not None
            and call.kind >= Kind.IO
            and call.key
            and call.length * _SOME >= self._moment.wait
        ]

    def _in_progress(
        self, thread: Thread, call: Call, meanwhile: str, *, kept: int, may_be_seen: bool
    ) -> Starved | None:
        """`kept` is how long the main thread may have waited for the call."""
        at, wait = self._moment.at, self._moment.wait
        if not call.key or kept * _SOME < wait:
            return None
        went_on = any(main.next_begin is not None for main in self._mains)
        if went_on and not self._moment.is_measured and call.end - at < wait:
            return None  # the rank may have done anything when the dumps were taken
        path = self._path(thread, call)
        is_seen = (
            (may_be_seen and self._may_be_seen)
            and kept * _MOST >= wait
            and self._is_one_file(thread, call)
        )
        text = (
            f"{'' if is_seen else 'probably '}starved by {words.clean(path)}: "
            f"{self._who(thread)} was in {call.name} of it for {duration_text(call.length / 1e9)} "
            f"from {clock_text(call.start)} on, which includes {clock_text(at)}, when the rank was "
            f"last seen{meanwhile}"
        )
        certainty = SEEN if is_seen else LIKELY
        return Starved(self._rank, path, certainty, call.name, call.start, thread.process.pid, text)

    # -- calls that ended --

    def _left_open(self) -> Starved | None:
        """The file of the last call of all, if it is open and the rank did nothing later."""
        if any(main.goes_on for main in self._mains):
            return None
        calls = self._open_files()
        idle = self._mains if self._main else [m for m in self._mains if (m, m.last) not in calls]
        active_at = max([self._moment.entered, *(main.active_at for main in idle)])
        later = [pair for pair in calls if pair[1].end >= active_at]
        if len({self._path(*pair) for pair in later}) != 1:
            return None
        thread, call = max(later, key=lambda pair: pair[1].end)
        # After a read, a helper may be idle; after an open, its next call is a read.
        is_sure = call.kind is Kind.OPEN and len({self._path(*pair) for pair in calls}) == 1
        if thread is not self._main and (self._has_batch or not is_sure):
            return None
        if call.start > self._middle:
            return None  # until lately it was busy
        path = self._path(thread, call)
        before = duration_text(max(self._moment.at - call.end, 0) / 1e9)
        unsure = "" if thread.process.is_finalized else _NOT_FINALIZED
        text = (
            f"probably starved by {words.clean(path)}: the last call of {self._who(thread)} "
            f"that ended is {call.name} of it, {before} before the rank was last seen, and the "
            f"file is open{unsure}"
        )
        return Starved(self._rank, path, LIKELY, call.name, call.end, thread.process.pid, text)

    # -- what both need --

    def _open_files(self) -> list[tuple[Thread, Call]]:
        """Threads that are silent after a call on a file that is open."""
        return [
            (thread, call)
            for process in self._processes
            for thread in process.threads.values()
            if (call := _read_of_open_file(thread)) is not None
        ]

    @property
    def _has_batch(self) -> bool:
        """The last that is known of the main thread is the end of a fetch: it does not wait for
        another one."""
        return any(main.last and main.last.kind is Kind.FETCH for main in self._mains)

    @property
    def _middle(self) -> int:
        """Of the wait, as far as it is known."""
        return (self._moment.since + self._moment.at) // 2

    def _path(self, thread: Thread, call: Call) -> str:
        return self._io.identities.files.text(thread.process.trace, call.key)

    def _is_one_file(self, thread: Thread, call: Call) -> bool:
        return len(self._io.identities.files.names(thread.process.trace, call.key)) == 1

    def _who(self, thread: Thread) -> str:
        if thread.process.is_child:
            return f"its child pid {thread.process.pid}"
        other = "" if thread is thread.process.main else "a thread of "
        return f"{other}pid {thread.process.pid}"


def _read_of_open_file(thread: Thread) -> Call | None:
    """The last call of a thread, if the next one may be a read of the same file."""
    process, call = thread.process, thread.last
    if call is None or process.is_over or thread.goes_on or call.end < thread.noted:
        return None
    may_read = may_read_next(call.kind, call.name) and process.is_open(call.key)
    return call if may_read else None


@dataclass(frozen=True, slots=True)
class Moment:
    """When a suspect was last seen, and what its dump shows; aligned nanoseconds."""

    at: int
    is_measured: bool
    """It was asked for its dump then; else this is the last time in the dumps, and the dumps were
    taken later."""
    since: int
    """Since when its peers had waited, if that is known."""
    wait: int
    """How long its peers had waited when the dumps were taken, at least."""
    entered: int
    """When it made its last collective; `NEVER` if it made none."""
    begun: int
    """A trace that ended before this is of another run."""


def moment_of(analysis: Analysis, finding: Finding, suspect: Suspect) -> Moment:
    at, is_measured = _last_seen_ns(analysis, finding, suspect)
    times = {rank: found for rank in analysis.trace.ranks if (found := _entered(analysis, rank))}
    first, last = times.get(suspect.rank, (NEVER, NEVER))
    if first == NEVER and times:
        first = min(begin for begin, _ in times.values()) - _START_NS
    since = at if suspect.onset_at is None else min(suspect.onset_at, at)
    wait = max(at - since, int(analysis.stall_after_s * 1e9), _LEAST_WAIT_NS)
    return Moment(at, is_measured, since, wait, entered=min(last, at), begun=first)


def _entered(analysis: Analysis, rank: int) -> tuple[int, int] | None:
    """When a rank made the first and the last collective that its dump has."""
    created = analysis.trace.ranks[rank].created_ns
    created = created[created > 0]
    if not len(created):
        return None
    offset = analysis.clock_offsets_ns.get(rank, 0)
    return int(created.min()) + offset, int(created.max()) + offset


def _last_seen_ns(analysis: Analysis, finding: Finding, suspect: Suspect) -> tuple[int, bool]:
    """When the rank was asked for its dump; else the last moment that a dump of the job shows.

    The time of a file alone is no evidence: it may have been copied.
    """
    trace = analysis.trace
    offsets = analysis.clock_offsets_ns
    one = trace.ranks.get(suspect.rank)
    if one is not None and one.dumped_from_ns:
        return one.dumped_from_ns + offsets.get(suspect.rank, 0), True
    times = [
        int(of.created_ns.max()) + offsets.get(rank, 0)
        for rank, of in trace.ranks.items()
        if len(of)
    ]
    return max([*times, finding.opened_at, suspect.onset_at or 0]), False
