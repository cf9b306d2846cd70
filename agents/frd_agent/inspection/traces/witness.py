"""What the traces of an inspected rank add to the report of its wait.

Followed are the traces of the rank's process and of the one that is blocked at the end of the
chain. The words do not change while the trace does not: a time is counted from the moment at which
the wait was first seen, not from now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from frd.dftracer.line import Kind, may_read_next
from frd.forms import duration_text
from frd.model import Certainty, NodeNs, NodeRawNs, WaitKind
from frd.wire.waits import WaitReport
from frd_agent.inspection.claims import (
    RankView,
    Who,
    claim,
    joined,
    mount_fields,
    mount_words,
)
from frd_agent.inspection.reading.files import open_file, printable, read_mounts
from frd_agent.inspection.syscalls import Class
from frd_agent.inspection.traces.followed import (
    Buffering,
    Followed,
    OpenTrace,
    Traces,
    named,
    open_paths,
    open_traces,
    refreshed,
)
from frd_agent.inspection.traces.history import LastCall, Names, end_ns
from frd_agent.inspection.tracking import ENOUGH, Wait
from frd_agent.proc import inner_pid

SEARCH_NS: Final = 10_000_000_000
"""How often the descriptors of a process are searched for traces."""
_IDLE_CORES: Final = 0.1
_NO_IO: Final = frozenset({"pause", "sigtimedwait", "sigsuspend", "restart_syscall"})


@dataclass(frozen=True, slots=True)
class _Story:
    """The trace of one process, and the last call in it."""

    pid: int
    followed: Followed
    last: LastCall | None

    @property
    def is_known(self) -> bool:
        """Whether what is in the trace is of use."""
        followed = self.followed
        is_live = followed.buffering is not Buffering.BUFFERED
        return is_live and not followed.problem and self.last is not None


class Witness:
    """Of one rank process."""

    def __init__(self, shared: Traces) -> None:
        self._shared = shared
        self._names = Names()
        self._open: dict[int, list[OpenTrace]] = {}
        """By process."""
        self._search_at_ns: dict[int, int] = {}
        self._followed: dict[tuple[str, int], Followed] = {}
        self._worded: tuple[object, str] = (None, "")
        """The last call that was put into words, and the words: to find them takes a look at all
        descriptors."""

    def add(self, report: WaitReport, view: RankView, now_ns: NodeRawNs) -> WaitReport:
        """The report with what the traces say; unchanged if no trace is open, or may be seen."""
        if not _is_settled(report, view):
            return report
        blocked = report.waits_for.pid
        pids = [view.pid]
        if blocked in view.processes and blocked in view.family and blocked != view.pid:
            pids.append(blocked)
        self._look(pids, view, now_ns)
        story = self._story(pids[-1], view.pid) if self._followed else None
        if story is None:
            return report
        found = self._likely_read(report, story, view) or report
        if not found.waits_for.says:
            return report
        rest = found.waits_for.rest
        # After words about another process, "its" would be that one's.
        rank_trace = "its trace" if len(pids) == 1 and not rest else "the rank's trace"
        whose = rank_trace if story.pid == view.pid else f"the trace of pid {story.pid}"
        words = [rest, self._said(story, whose, found.since_ns)]
        if story.is_known and (step := self._step(view.pid)):
            words.append(f"the last step in {rank_trace} is {step}")
        return replace(found, waits_for=replace(found.waits_for, rest=joined(words)))

    # -- reading -------------------------------------------------------------------------------

    def _look(self, pids: Sequence[int], view: RankView, now_ns: NodeRawNs) -> None:
        self._open = {pid: self._traces(pid, now_ns) for pid in pids}
        self._search_at_ns = {pid: self._search_at_ns[pid] for pid in pids}
        traces = {one.identity: one for pid in reversed(pids) for one in self._open[pid]}
        self._followed = {
            identity: self._followed.get(identity) or Followed(trace, self._names)
            for identity, trace in traces.items()
        }
        for identity, trace in traces.items():
            followed = self._followed[identity]
            followed.trace = trace
            followed.look(self._shared, view, now_ns)

    def _traces(self, pid: int, now_ns: NodeRawNs) -> list[OpenTrace]:
        if now_ns < self._search_at_ns.get(pid, 0):
            known = [refreshed(one) for one in self._open.get(pid, ())]
            if all(known):
                return [one for one in known if one is not None]
        self._search_at_ns[pid] = now_ns + SEARCH_NS
        return open_traces(pid)

    # -- choosing ------------------------------------------------------------------------------

    def _story(self, pid: int, rank_pid: int) -> _Story | None:
        """Of a trace that the process writes, else of one of the rank."""
        of_rank = {one.identity for one in self._open[rank_pid]}
        own = [one.identity for one in self._open[pid] if one.identity not in of_rank]
        inner = inner_pid(pid) or pid  # the number that it writes
        if pid != rank_pid:
            inherited = [key for key in of_rank if inner in self._followed[key].history.last]
            if mine := own or inherited:
                return self._latest(pid, mine, inner)
            inner = inner_pid(rank_pid) or rank_pid
        return self._latest(rank_pid, of_rank, inner)

    def _latest(self, pid: int, traces: Iterable[tuple[str, int]], inner: int) -> _Story | None:
        """Of some traces the one with the call that ended last."""
        stories = []
        for key in traces:
            calls = self._followed[key].history.last
            # The numbers of processes may be others: v0 writes those of ranks.
            last = calls.get(inner) or next(reversed(calls.values()), None)
            stories.append(_Story(pid, self._followed[key], last))
        return max(stories, key=_end_of, default=None)

    # -- saying --------------------------------------------------------------------------------

    def _said(self, story: _Story, whose: str, since_ns: NodeRawNs) -> str:
        followed, last = story.followed, story.last
        if followed.problem:
            return f"{whose} ({named(followed.trace.path)}) {followed.problem}"
        if followed.buffering is Buffering.BUFFERED:
            return f"{whose} is buffered, not live"
        if last is None:
            return ""
        before = ""
        at_ns = end_ns(last, self._shared.real_now())
        ended_ns = self._shared.to_raw(NodeNs(at_ns or 0))
        if ended_ns and since_ns:
            ahead_ns = since_ns - ended_ns
            if ahead_ns < 0:
                return f"{whose} goes on: calls have ended since"
            before = f", {duration_text(ahead_ns / 1e9)} before that was first seen"
        buffered = ""
        if followed.buffering is Buffering.UNKNOWN:
            buffered = ", unless later ones are still buffered"
        return f"{whose} ends with {self._call(story.pid, last)}{before}{buffered}"

    def _call(self, pid: int, last: LastCall) -> str:
        """``read() of 65536 bytes of /data/shard-17.tar``."""
        if self._worded[0] != (pid, last):
            self._worded = ((pid, last), self._words(pid, last))
        return self._worded[1]

    def _words(self, pid: int, last: LastCall) -> str:
        opened = open_paths(pid)
        if last.begun and (path := self._names.path(last.begun, opened)):
            return f"the begin of a call on {named(path)}"
        if last.kind < Kind.IO:
            return f"{named(last.name)} ({named(last.cat)})"
        size = f" of {last.nbytes} bytes" if last.nbytes is not None else ""
        path = self._names.path(last.file, opened)
        return f"{named(last.name)}(){size}" + (f" of {named(path)}" if path else "")

    def _step(self, rank_pid: int) -> str:
        """Of the rank's own traces, as the loop runs there: ``epoch 2 step 118``."""
        for one in self._open[rank_pid]:
            epoch, step = self._followed[one.identity].history.step
            numbers = {"epoch": epoch, "step": step}
            known = [f"{name} {number}" for name, number in numbers.items() if number is not None]
            if known:
                return " ".join(known)
        return ""

    def _likely_read(self, report: WaitReport, story: _Story, view: RankView) -> WaitReport | None:
        """If /proc does not show what it waits for: the file that the last call was on."""
        found, followed, last = report.waits_for, story.followed, story.last
        if found.kind is not WaitKind.UNKNOWN or last is None:
            return None
        if not may_read_next(last.kind, last.name):
            return None
        if followed.buffering is not Buffering.LIVE or followed.quiet < ENOUGH or last.begun:
            return None
        process = view.processes[story.pid]
        if not _may_do_io(process.main):
            return None
        opened = open_paths(story.pid)
        path = self._names.path(last.file, opened)
        if path not in opened:
            return None
        mounts = read_mounts(story.pid)
        file = open_file(story.pid, opened[path], mounts)
        if file.link != path or "r" not in file.access:
            return None
        who = Who("it", story.pid, printable(process.name))
        after = f"{named(last.name)}() of {named(path)}{mount_words(file.mount)}"
        return claim(
            WaitKind.FILE_READ,
            Certainty.LIKELY,
            who,
            f"has ended no traced call after {after}, which is still open,",
            followed.quiet_since_ns,
            what=named(path),
            rest=joined([found.says, found.rest]),
            **mount_fields(file.mount),
        )


def _is_settled(report: WaitReport, view: RankView) -> bool:
    """Whether it is known where the rank is stuck, and so which file systems to stay away from."""
    rank = view.processes.get(view.pid)
    if rank is None or not rank.main.is_readable:
        return False
    return rank.main.is_sure or bool(report.waits_for.says)


def _may_do_io(wait: Wait) -> bool:
    """Whether it is blocked in a call that may read a file, but does not say which: io_uring."""
    return (
        wait.is_sure
        and wait.state in "SD"
        and wait.cores < _IDLE_CORES
        and wait.target is not None
        and wait.target.call.kind is Class.OTHER
        and wait.target.call.name not in _NO_IO
    )


def _end_of(story: _Story) -> tuple[bool, int]:
    return story.last is not None, story.last.end or 0 if story.last is not None else 0
