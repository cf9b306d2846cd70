"""The chain of waits of a rank, from its main thread to the end: pure, waits in, a report out.

The main thread of a rank mostly waits for another thread, for a loader worker or for a child, and
the cause is what those wait for. Each step that was not seen but follows from who holds a pipe or a
lock lowers the certainty, unless it is the only possible one. A lock ends the chain: its holder may
be another rank, whose own wait is another story and is only added.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from frd.model import Certainty, WaitKind, WaitsFor
from frd.wire.waits import WaitReport
from frd_agent.inspection.claims import (
    LOADER,
    UNKNOWN,
    ProcessView,
    RankView,
    claim,
    holder_words,
    in_call,
    mount_fields,
    mount_words,
    of_computing,
    of_file,
    of_other,
    of_socket,
    of_state,
    subject,
)
from frd_agent.inspection.reading.files import printable
from frd_agent.inspection.syscalls import Class
from frd_agent.inspection.targets import Object, Target
from frd_agent.inspection.tracking import BUSY, Wait

_GIL_WAKES_PER_S: Final = 50.0
"""A thread of Python that waits for the interpreter lock asks for it 200 times a second."""
_POLLS: Final = (Class.POLL, Class.SELECT, Class.EPOLL)
_HELPERS: Final = ("pt_nccl_", "pt_tcpstore", "cuda-", "frd-", "pt_gloo_")
"""Names of threads that serve: they wait and compute in a healthy process, too."""
_NAMED: Final = (
    *(WaitKind.FILE_READ, WaitKind.FILE_WRITE, WaitKind.FILE_SYNC, WaitKind.FILE_OPEN),
    *(WaitKind.PAGE_FAULT, WaitKind.LOCK_FILE, WaitKind.SOCKET),
)
"""Ends of a chain that are a cause, in the order in which they are preferred."""


def waits_for(view: RankView) -> WaitReport:
    """What the rank waits for; of the kind unknown and without text before there are enough
    samples."""
    return _Chain(view).of_process(view.pid, ())


class _Chain:
    def __init__(self, view: RankView) -> None:
        self._view = view

    def of_process(self, pid: int, path: tuple[int, ...]) -> WaitReport:
        """`path`: the processes on the way to this one, which wait for it."""
        process = self._view.processes.get(pid)
        if process is None or pid in path:
            return UNKNOWN
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
        return self._of_thread(process, wait, (*path, pid))

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
                return self._file_lock(wait, target, path)
            case Class.FUTEX if target.is_private:
                return self._inner(process, wait, path)
            case Class.FUTEX | Class.SEMAPHORE:
                return self._shared(wait, target, path)
            case Class.CHILD:
                return self._child(process, wait, target, path)
            case Class.SLEEP:
                does = f"has been asleep ({target.call.name})"
                return claim(WaitKind.SLEEP, Certainty.SEEN, who, does, wait.since_ns)
            case Class.FAULT:
                return self._fault(wait, target)
            case _:
                return of_other(who, wait, target)

    # -- descriptors ---------------------------------------------------------------------------

    def _of_object(self, wait: Wait, one: Object, path: tuple[int, ...]) -> WaitReport:
        assert wait.target is not None
        who, call = subject(self._view, wait), wait.target.call
        below = self._workers(one, path)
        if below and (one.file.special == "pipe" or not (one.peer and one.peer.address)):
            return self._workers_of(wait, one, below, path)
        holder = self._view.holder(one.ends[0].pid) if one.ends else None
        if one.file.special == "socket":
            return of_socket(who, wait, one, holder)
        kinds = (Class.READ, Class.WRITE, Class.SYNC, Class.OPEN)
        if one.file.special == "pipe" or (one.file.is_path and call.kind not in kinds):
            return self._of_pipe(wait, one)
        if one.file.is_path:
            only = holder if len({end.pid for end in one.ends}) == 1 else None
            return of_file(who, wait, one.file.link, one.file.mount, only)
        return of_other(who, wait, wait.target)

    def _of_pipe(self, wait: Wait, one: Object) -> WaitReport:
        """A pipe that no process of the rank holds the other end of, or a polled path."""
        assert wait.target is not None
        writes = one.file.access == "w" or wait.target.call.kind is Class.WRITE
        kind = WaitKind.FILE_WRITE if writes else WaitKind.FILE_READ
        others = {end.pid for end in one.ends}
        holder = self._view.holder(min(others)) if others else None
        place = {1: "standard output, ", 2: "standard error, ", 0: "standard input, "}
        thing = printable(one.file.link)
        if one.file.special == "pipe":
            thing = f"{place.get(one.file.fd, '')}a pipe"
        ends = "reads" if writes else "writes to"
        held = f" that {holder_words(holder)} {ends}" if holder else ""
        if one.file.special == "pipe" and not others:
            held = " that no other process holds"
        return claim(
            kind,
            Certainty.SEEN if len(others) < 2 else Certainty.LIKELY,
            subject(self._view, wait),
            f"{in_call(wait, wait.target.call.name)} of {thing}{held}",
            wait.since_ns,
            what=printable(one.file.link),
            holder=holder,
            topic=f"a reader of its {'output' if one.file.fd in (1, 2) else 'pipe'}"
            if writes
            else "data",
            **mount_fields(one.file.mount),
        )

    def _of_poll(self, wait: Wait, target: Target, path: tuple[int, ...]) -> WaitReport:
        """The one descriptor of a poll that another process is expected to make ready."""
        who = subject(self._view, wait)
        if not target.objects and not target.problem:
            if target.call.kind is Class.EPOLL:
                return of_other(who, wait, target)
            does = f"has been asleep ({target.call.name})"
            return claim(WaitKind.SLEEP, Certainty.SEEN, who, does, wait.since_ns)
        pipes = [one for one in target.objects if self._workers(one, path)]
        sockets = [one for one in target.objects if one.peer and one.peer.address]
        paths = [one for one in target.objects if one.file.special in ("", "pipe")]
        for found in (pipes, sockets, paths):
            if found and (len(found) == 1 or found is pipes):
                report = self._of_object(wait, self._first(found, path), path)
                return _likely(report) if len(target.objects) > 1 else report
        if len(target.objects) == 1 and target.objects[0].peer:
            return self._of_object(wait, target.objects[0], path)
        return of_other(who, wait, target)

    def _first(self, found: list[Object], path: tuple[int, ...]) -> Object:
        """The pipe behind which some process is stuck, if there is one."""
        for one in found:
            if any(not self._is_idle(pid, path) for pid in self._workers(one, path)):
                return one
        return found[0]

    # -- worker processes ----------------------------------------------------------------------

    def _workers(self, one: Object, path: tuple[int, ...]) -> list[int]:
        """Processes of the rank, other than those on the way here, at the other end."""
        family = self._view.family
        return sorted({end.pid for end in one.ends if end.pid in family and end.pid not in path})

    def _workers_of(
        self, wait: Wait, one: Object, below: list[int], path: tuple[int, ...]
    ) -> WaitReport:
        """A pipe, to processes of the rank."""
        assert wait.target is not None
        stuck = [pid for pid in below if not self._is_idle(pid, path)]
        reports = {pid: self.of_process(pid, path) for pid in stuck}
        is_early = any(self._is_new(pid) for pid in stuck)
        if is_early and all(report == UNKNOWN for report in reports.values()):
            return UNKNOWN
        idle = len(below) - len(stuck)
        are_loaders = any(self._view.processes[pid].name == LOADER for pid in below
                          if pid in self._view.processes)  # fmt: skip
        topic = "data" if are_loaders else "its worker process"
        pid = min(reports, key=lambda one: (_preference(reports[one]), one), default=None)
        if pid is not None and (found := reports[pid].waits_for).kind not in (
            *(WaitKind.UNKNOWN, WaitKind.NOT_ALLOWED),
        ):
            is_only = len({_cause(report) for report in reports.values()}) == 1
            rest = _joined([found.rest, _others(idle, len(stuck) - 1, are_loaders)])
            report = replace(
                reports[pid],
                waits_for=replace(found, topic=topic, rest=rest),
            )
            return report if is_only else _likely(report)
        held = [pid] if pid is not None else below
        words = f"a pipe from its {_count(len(below), 'worker process', 'worker processes')}"
        return claim(
            WaitKind.PIPE_WORKER,
            Certainty.SEEN if pid is None else Certainty.LIKELY,
            subject(self._view, wait),
            f"{in_call(wait, wait.target.call.name)} of {words}",
            wait.since_ns,
            what=printable(one.file.link),
            topic=topic,
            holder=self._view.holder(held[0]) if len(held) == 1 else None,
            rest=_others(idle, len(stuck), are_loaders),
        )

    def _is_new(self, pid: int) -> bool:
        process = self._view.processes.get(pid)
        return process is not None and not process.main.is_sure

    def _is_idle(self, pid: int, path: tuple[int, ...]) -> bool:
        """Whether it waits for work: for a pipe from a process that waits for it, or for its turn
        to read such a pipe."""
        process = self._view.processes.get(pid)
        if process is None or not process.main.is_sure or process.main.target is None:
            return False
        target = process.main.target
        if target.call.kind in (Class.READ, Class.RECEIVE, *_POLLS) and target.objects:
            return all(any(end.pid in path for end in one.ends) for one in target.objects)
        if target.call.kind is Class.FUTEX and target.shared:
            return any(
                other not in (pid, *path)
                and self._is_reader(other, path)
                for other in self._view.family
            )  # fmt: skip
        return False

    def _is_reader(self, pid: int, path: tuple[int, ...]) -> bool:
        process = self._view.processes.get(pid)
        is_futex = (
            process is not None
            and process.main.target is not None
            and process.main.target.call.kind is Class.FUTEX
        )
        return not is_futex and self._is_idle(pid, path)

    # -- locks ---------------------------------------------------------------------------------

    def _file_lock(self, wait: Wait, target: Target, path: tuple[int, ...]) -> WaitReport:
        what = printable(target.path)
        does = f"{in_call(wait, target.call.name)} of {what}{mount_words(target.mount)}"
        holder = self._view.holder(target.holder) if target.holder else None
        rest = ""
        if holder is not None:
            does += f", held by {holder_words(holder)}"
            rest = self._own_wait(holder.pid, path)
        return claim(
            WaitKind.LOCK_FILE,
            Certainty.SEEN,
            subject(self._view, wait),
            does,
            wait.since_ns,
            what=what,
            holder=holder,
            rest=rest or ("" if holder else "its holder is not visible to the agent"),
            **mount_fields(target.mount),
        )

    def _own_wait(self, pid: int, path: tuple[int, ...]) -> str:
        """What the holder itself does: ``the holder has been in fsync() of /ckpt/step40.pt``."""
        found = self.of_process(pid, path).waits_for
        if found.kind in (WaitKind.UNKNOWN, WaitKind.NOT_ALLOWED) or not found.says:
            return ""
        _, has, does = found.says.partition(" has been ")
        if found.pid == pid and has:
            return f"the holder has been {does}"
        return f"the holder waits: {found.says}"

    def _shared(self, wait: Wait, target: Target, path: tuple[int, ...]) -> WaitReport:
        """The holder of a semaphore is not recorded anywhere: it is likely the only process of the
        rank that does not wait for it."""
        others = [
            pid
            for pid in self._view.family
            if pid != wait.pid and not self._is_in(pid, target.shared)
            and not self._is_idle(pid, self._view.family)
        ]  # fmt: skip
        only = others[0] if len(others) == 1 else None
        holder = self._view.holder(only) if only is not None else None
        name = target.name or (target.shared if target.call.kind is Class.SEMAPHORE else "")
        held = f", which {holder_words(holder)} seems to hold" if holder else ""
        return claim(
            WaitKind.LOCK_SHARED,
            Certainty.LIKELY if holder else Certainty.SEEN,
            subject(self._view, wait),
            f"has been in {target.call.name}() for a lock shared between processes{held}",
            wait.since_ns,
            what=printable(name),
            holder=holder,
            rest=self._own_wait(holder.pid, path) if holder else target.problem,
        )

    def _is_in(self, pid: int, shared: str) -> bool:
        process = self._view.processes.get(pid)
        return process is not None and any(
            wait.target is not None and wait.target.shared == shared
            for wait in (process.main, *process.others)
        )

    def _inner(self, process: ProcessView, wait: Wait, path: tuple[int, ...]) -> WaitReport:
        """A lock inside the process: the thread that is in a call, or computes, likely holds it."""
        thing = "a lock inside the process"
        is_gil = wait.tid == wait.pid and wait.wakes_per_s >= _GIL_WAKES_PER_S
        if is_gil:
            thing = "the interpreter lock (GIL)"
        if process.others and not any(other.is_sure for other in process.others):
            return UNKNOWN  # they have been sampled for a shorter time
        for found in (self._in_calls(process, path), self._computing(process)):
            if len(found) == 1:
                [report] = found
                rest = _joined([report.waits_for.rest, f"its main thread waits for {thing}"])
                return _likely(replace(report, waits_for=replace(report.waits_for, rest=rest)))
        return claim(
            WaitKind.LOCK_INNER,
            Certainty.LIKELY if is_gil else Certainty.SEEN,
            subject(self._view, wait),
            f"has been waiting for {thing}",
            wait.since_ns,
            what=thing,
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
            if report.waits_for.kind in _NAMED and report.waits_for.topic != "input"
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

    def _child(
        self, process: ProcessView, wait: Wait, target: Target, path: tuple[int, ...]
    ) -> WaitReport:
        children = process.children
        pid = target.child if target.child in children else 0
        if not pid and len(children) == 1:
            [pid] = children  # any child; or the number that it has in its own namespace
        found = self.of_process(pid, path) if pid else UNKNOWN
        topic = f"its child process {pid}" if pid else "a child process"
        if found.waits_for.kind in _NAMED:
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

    def _fault(self, wait: Wait, target: Target) -> WaitReport:
        files = [printable(path) for path in target.mapped]
        only = files[0] if len(files) == 1 else ""
        rest = target.problem
        if len(files) > 1:
            rest = f"mapped data files: {', '.join(files[:4])}{', ...' if len(files) > 4 else ''}"
        likely = f", likely of {only}, the only data file that it has mapped" if only else ""
        return claim(
            WaitKind.PAGE_FAULT,
            Certainty.LIKELY,
            subject(self._view, wait),
            f"has been in a page fault{likely}",
            wait.since_ns,
            what=only,
            rest=rest,
        )


def _is_helper(wait: Wait) -> bool:
    return wait.thread.startswith(_HELPERS)


def _preference(report: WaitReport) -> int:
    """Named causes first, in the order of `_NAMED`; then locks, sleep and computing."""
    kind = report.waits_for.kind
    if kind in _NAMED:
        return _NAMED.index(kind)
    return len(_NAMED) + (kind in (WaitKind.UNKNOWN, WaitKind.NOT_ALLOWED))


def _cause(report: WaitReport) -> tuple[WaitKind, str]:
    return report.waits_for.kind, report.waits_for.what


def _likely(report: WaitReport) -> WaitReport:
    found = report.waits_for
    if found.certainty is not Certainty.SEEN:
        return report
    return replace(report, waits_for=replace(found, certainty=Certainty.LIKELY))


def _others(idle: int, stuck: int, are_loaders: bool) -> str:
    """``3 other workers are idle``."""
    words = []
    if stuck > 0:
        words.append(f"{_count(stuck, 'other worker waits', 'other workers wait')} too")
    if idle > 0:
        words.append(f"{_count(idle, 'other worker is', 'other workers are')} idle")
    return _joined(words)


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def _joined(parts: Iterable[str]) -> str:
    return "; ".join(filter(None, parts))
