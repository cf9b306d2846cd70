"""The chain of waits of a rank, from its main thread to the end: pure, waits in, a report out.

The main thread of a rank mostly waits for another thread, for a loader worker or for a child, and
the cause is what those wait for. Each step that was not seen but follows from who holds a pipe or a
lock lowers the certainty, unless it is the only possible one. A lock ends the chain: its holder may
be another rank, whose own wait is another story and is only added.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from frd.model import Certainty, WaitKind, WaitsFor
from frd.wire.waits import WaitReport
from frd_agent.inspection.claims import (
    UNKNOWN,
    ProcessView,
    RankView,
    claim,
    holder_words,
    in_call,
    joined,
    likely,
    of_computing,
    of_fault,
    of_file,
    of_other,
    of_socket,
    of_state,
    subject,
)
from frd_agent.inspection.pipe_waits import (
    NAMED,
    answering,
    awaits_request,
    is_idle,
    of_file_lock,
    of_pipe,
    of_poll,
    of_shared_lock,
    of_workers,
    workers_behind,
)
from frd_agent.inspection.reading.files import printable
from frd_agent.inspection.syscalls import Class
from frd_agent.inspection.targets import Object, Target
from frd_agent.inspection.tracking import BUSY, Wait

_GIL_WAKES_PER_S: Final = 50.0
"""A thread of Python that waits for the interpreter lock asks for it 200 times a second."""
_MAX_STEPS: Final = 256
"""Processes that are followed in one report. Most are followed once; but where forked workers hold
all ends of each other's pipes there are as many ways as permutations."""
_PASSING_PER_S: Final = 5.0
"""A thread that comes out of its call so often works through many short waits."""
_MAX_STOPPED: Final = 4
"""Stopped processes that a report names."""
_HELPERS: Final = ("pt_nccl_", "pt_tcpstore", "cuda-", "frd-", "pt_gloo_")
"""Names of threads that serve: they wait and compute in a healthy process, too."""


def waits_for(view: RankView) -> WaitReport:
    """What the rank waits for; of the kind unknown and without text before there are enough
    samples."""
    report = _with_stopped(_Chain(view).of_process(view.pid, ()), view)
    return replace(report, is_idle=awaits_request(view))


def _with_stopped(report: WaitReport, view: RankView) -> WaitReport:
    """What is not certain may be due to a process of the rank that a signal has stopped, wherever
    the chain of waits has led."""
    found = report.waits_for
    mains = [view.processes[pid].main for pid in view.family[1:] if pid in view.processes]
    stopped = [one for one in mains if one.state in "Tt" and one.is_sure and one.pid != found.pid]
    if not found.says or found.certainty is Certainty.SEEN or not stopped:
        return report
    states = [of_state(subject(view, wait), wait) for wait in stopped[:_MAX_STOPPED]]
    says = [one.waits_for.says for one in states if one is not None]
    return replace(report, waits_for=replace(found, rest=joined([found.rest, *says])))


class _Chain:
    def __init__(self, view: RankView) -> None:
        self._view = view
        self._known: dict[int, WaitReport] = {}
        """By process, of those whose wait is known."""
        self._steps = 0

    def of_process(self, pid: int, path: tuple[int, ...]) -> WaitReport:
        """`path`: the processes on the way to this one, which wait for it."""
        process = self._view.processes.get(pid)
        if process is None or pid in path:
            return UNKNOWN
        if pid in self._known:
            return self._known[pid]
        if self._steps >= _MAX_STEPS:
            return UNKNOWN
        self._steps += 1
        report = self._of_process(process, path)
        if report.waits_for.kind is not WaitKind.UNKNOWN:
            self._known[pid] = report
        return report

    def _of_process(self, process: ProcessView, path: tuple[int, ...]) -> WaitReport:
        pid = process.pid
        wait = process.main
        who = subject(self._view, wait)
        if not wait.is_sure and wait.busy_since_ns is None:
            return UNKNOWN
        if state := of_state(who, wait):
            return state
        if not wait.is_readable:
            computing = of_computing(who, wait)
            if computing.waits_for.kind is WaitKind.ON_CPU:
                return computing
            denial = self._view.denial or "the agent may not read what it waits for"
            found = WaitsFor(
                WaitKind.NOT_ALLOWED, Certainty.UNKNOWN, pid=pid, process=who.process, says=denial
            )
            return WaitReport(found)
        return _if_it_lasts(self._of_thread(process, wait, (*path, pid)), wait)

    def _of_thread(self, process: ProcessView, wait: Wait, path: tuple[int, ...]) -> WaitReport:
        target = wait.target
        who = subject(self._view, wait)
        if target is None or wait.busy_since_ns is not None:
            return of_computing(who, wait)
        match target.call.kind:
            case Class.READ | Class.WRITE | Class.SYNC | Class.OPEN:
                if not target.objects:
                    return of_file(who, wait, target.path, target.mount)
                return self._of_object(wait, target.objects[0], path)
            case Class.RECEIVE | Class.SEND | Class.CONNECT | Class.ACCEPT:
                return self._of_object(wait, target.objects[0], path)
            case Class.POLL | Class.SELECT | Class.EPOLL:
                return self._of_poll(wait, target, path)
            case Class.LOCK if target.path:
                return of_file_lock(self._view, self.of_process, wait, target, path)
            case Class.FUTEX if target.is_private:
                return self._inner(process, wait, path)
            case Class.FUTEX | Class.SEMAPHORE:
                return of_shared_lock(self._view, self.of_process, wait, target, path)
            case Class.CHILD:
                return self._child(process, wait, target, path)
            case Class.SLEEP:
                return self._asleep(wait, target, path)
            case Class.FAULT:
                return of_fault(self._view, wait, target)
            case _:
                return of_other(who, wait, target)

    # -- descriptors ---------------------------------------------------------------------------

    def _of_object(self, wait: Wait, one: Object, path: tuple[int, ...]) -> WaitReport:
        assert wait.target is not None
        who, call = subject(self._view, wait), wait.target.call
        below = workers_behind(self._view, one, path)
        if below and (one.file.special == "pipe" or not (one.peer and one.peer.address)):
            report = of_workers(self._view, self.of_process, wait, one, below, path)
            return likely(report) if one.is_guess else report
        holders = answering(self._view, one)
        # After a fork several processes hold one end; which of them is to answer is not known.
        holder = self._view.holder(min(holders)) if len(holders) == 1 else None
        if one.file.special == "socket":
            return of_socket(who, wait, one, holder)
        kinds = (Class.READ, Class.WRITE, Class.SYNC, Class.OPEN)
        if one.file.special == "pipe" or (one.file.is_path and call.kind not in kinds):
            return of_pipe(self._view, wait, one)
        # close() has taken the descriptor out of the table before it writes what is left.
        if one.file.is_path or (call.kind is Class.SYNC and not one.file.link):
            return of_file(who, wait, one.file.link, one.file.mount, holder)
        return of_other(who, wait, wait.target)

    def _of_poll(self, wait: Wait, target: Target, path: tuple[int, ...]) -> WaitReport:
        """The one descriptor of a poll that another process is expected to make ready."""
        who = subject(self._view, wait)
        if not target.objects and not target.problem:
            if target.call.kind is Class.EPOLL and not wait.polls:
                return of_other(who, wait, target)
            return self._asleep(wait, target, path)
        pipes = [one for one in target.objects if workers_behind(self._view, one, path)]
        sockets = [one for one in target.objects if one.peer and one.peer.address]
        paths = [one for one in target.objects if one.file.special in ("", "pipe")]
        for found in (pipes, sockets, paths):
            if found and (len(found) == 1 or found is pipes):
                report = self._of_object(wait, self._first(found, path), path)
                return likely(report) if len(target.objects) > 1 else report
        # An event loop always watches two sockets that it made itself.
        is_one = len(target.objects) == 1
        if is_one and (one := target.objects[0]).peer and (one.ends or one.peer.is_listening):
            return self._of_object(wait, one, path)
        return of_other(who, wait, target)

    def _first(self, found: list[Object], path: tuple[int, ...]) -> Object:
        """The pipe behind which some process is stuck, if there is one."""
        for one in found:
            if any(
                not is_idle(self._view, pid, path) for pid in workers_behind(self._view, one, path)
            ):
                return one
        return found[0]

    def _inner(self, process: ProcessView, wait: Wait, path: tuple[int, ...]) -> WaitReport:
        """A lock inside the process: the thread that is in a call, or computes, likely holds it."""
        thing = "a lock inside the process"
        assert wait.target is not None
        joined_to = [other for other in process.others if other.tid == wait.target.joins]
        if joined_to:
            return self._join(process, wait, joined_to[0], path)
        is_gil = wait.tid == wait.pid and wait.wakes_per_s >= _GIL_WAKES_PER_S
        if is_gil:
            thing = "the interpreter lock (GIL)"
        if process.others and not any(other.is_sure for other in process.others):
            return UNKNOWN  # they have been sampled for a shorter time
        for found in (self._in_calls(process, path), self._computing(process)):
            causes = {(one.waits_for.kind, one.waits_for.what): one for one in reversed(found)}
            if len(causes) == 1:
                report = found[0]
                rest = joined([report.waits_for.rest, f"its main thread waits for {thing}"])
                return likely(replace(report, waits_for=replace(report.waits_for, rest=rest)))
        is_timed = wait.target.is_timed and not (is_gil or wait.woke)
        if is_timed:
            thing = "another thread of the process, with a time-out"
        report = claim(
            WaitKind.LOCK_INNER,
            Certainty.LIKELY if is_gil else Certainty.SEEN,
            subject(self._view, wait),
            f"has been waiting for {thing}",
            wait.since_ns,
            what=thing,
            topic="another thread" if is_timed else "a lock",
        )
        return replace(report, may_be_for_peer=is_timed and path == (self._view.pid,))

    def _join(
        self, process: ProcessView, wait: Wait, other: Wait, path: tuple[int, ...]
    ) -> WaitReport:
        """The main thread waits for the end of another one."""
        if not other.is_sure:
            return UNKNOWN
        thing = f"the end of its thread {printable(other.thread)} (tid {other.tid})"
        found = self._of_thread(process, other, path)
        if found.waits_for.says:
            rest = joined([found.waits_for.rest, f"its main thread waits for {thing}"])
            return replace(found, waits_for=replace(found.waits_for, rest=rest))
        return claim(
            WaitKind.LOCK_INNER,
            Certainty.SEEN,
            subject(self._view, wait),
            f"has been waiting for {thing}",
            wait.since_ns,
            what=thing,
            topic="another thread",
        )

    def _in_calls(self, process: ProcessView, path: tuple[int, ...]) -> list[WaitReport]:
        """Threads that are blocked in something that is a cause: files first, then workers."""
        reports = [
            self._of_thread(process, wait, path)
            for wait in process.others
            if wait.is_sure and wait.target is not None and not _is_helper(wait)
            and wait.target.call.kind not in (Class.FUTEX, Class.ACCEPT, Class.EPOLL, Class.SLEEP)
        ]  # fmt: skip
        causes = [
            report
            for report in reports
            if report.waits_for.kind in NAMED and report.waits_for.topic != "input"
            and report.waits_for.kind is not WaitKind.SOCKET
        ]  # fmt: skip
        below = [one for one in reports if one.waits_for.pid not in (0, process.pid)]
        return causes or below

    def _computing(self, process: ProcessView) -> list[WaitReport]:
        return [
            of_computing(subject(self._view, wait), wait)
            for wait in process.others
            if wait.busy_since_ns is not None and wait.cores >= BUSY and not _is_helper(wait)
        ]

    # -- others --------------------------------------------------------------------------------

    def _asleep(self, wait: Wait, target: Target, path: tuple[int, ...]) -> WaitReport:
        """In one sleep after another a program may wait for its only child, as `Popen.wait` with a
        time-out does."""
        children, rest = self._view.processes[wait.pid].children, ""
        if wait.woke and len(children) == 1:
            found = self.of_process(children[0], path).waits_for
            rest = found.says if found.kind in NAMED else ""
        if wait.polls and wait.tid == self._view.pid and not rest:
            return of_poll(self._view, self.of_process, wait, path)
        return claim(
            WaitKind.SLEEP,
            Certainty.SEEN,
            subject(self._view, wait),
            f"has been asleep ({target.call.name})",
            wait.since_ns,
            rest=rest,
        )

    def _child(
        self, process: ProcessView, wait: Wait, target: Target, path: tuple[int, ...]
    ) -> WaitReport:
        children = process.children
        pid = target.child if target.child in children else 0
        if not pid and len(children) == 1:
            [pid] = children  # any child; or the number that it has in its own namespace
        found = self.of_process(pid, path) if pid else UNKNOWN
        topic = f"its child process {pid}" if pid else "a child process"
        if found.waits_for.kind in NAMED:
            return replace(found, waits_for=replace(found.waits_for, topic=topic))
        holder = self._view.holder(pid) if pid else None
        words = holder_words(holder) if holder else "a child process"
        return claim(
            WaitKind.CHILD,
            Certainty.SEEN,
            subject(self._view, wait),
            f"{in_call(wait, target.call.name)} for {words}",
            wait.since_ns,
            what=words if holder else "",
            holder=holder,
            topic=topic,
            rest=found.waits_for.says,
        )


def _if_it_lasts(report: WaitReport, wait: Wait) -> WaitReport:
    """A thread that comes out of its call many times a second does not wait for one thing, unless
    the call has a time-out: it works through many small ones."""
    found, target = report.waits_for, wait.target
    is_own = (found.pid, found.thread) == (wait.pid, printable(wait.thread))
    if not is_own or report.is_poll or target is None or target.call.timeout is not None:
        return report
    if wait.wakes_per_s < _PASSING_PER_S or found.kind is WaitKind.ON_CPU:
        return report
    says = f"it comes out of it {wait.wakes_per_s:.0f} times a second"
    return likely(replace(report, waits_for=replace(found, rest=joined([says, found.rest]))))


def _is_helper(wait: Wait) -> bool:
    return wait.thread.startswith(_HELPERS)
