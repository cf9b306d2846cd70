"""Threads of a process: state, blocked system call, and whether they have run in between.

`stat`, `syscall` and `schedstat` take no lock that a process in trouble could hold: they are safe
to read of any process. How often a thread has run (`schedstat`) shows that it has not left its call
between two samples; a call with the same arguments alone could be the next one in a loop.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from frd_agent.inspection.syscalls import Class, is_lock, syscall_of
from frd_agent.proc import content, names_in, path_of, read_file, read_stat, status_line

MAX_THREADS: Final = 1024
"""Of one process that are read."""
_UNKNOWN: Final = "?"
"""A state that says nothing."""


class Call(NamedTuple):
    """A line of /proc/<pid>/task/<tid>/syscall."""

    number: int
    args: tuple[int, ...] = (0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class ThreadSample:
    tid: int
    state: str
    """As in `stat`: R, S, D, T, Z."""
    cpu_ticks: int
    call: Call | None
    """None: it runs, or `is_readable` is False."""
    is_readable: bool = True
    """False if this process has no right to read its blocked call."""
    started: int = 0
    """When the thread started, in ticks since the boot: another thread may get the same id."""
    runs: int = -1
    """How often it has been put on a processor; -1 if the kernel does not count."""


@dataclass(frozen=True, slots=True)
class ProcessSample:
    pid: int
    threads: tuple[ThreadSample, ...]
    """The main thread first; only it, unless it waits for another thread."""

    @property
    def main(self) -> ThreadSample:
        return self.threads[0]


def read_process(pid: int) -> ProcessSample | None:
    """None if the process is gone. Other threads are read only when the main thread waits in
    memory: one of them may hold the lock. A main thread that has ended before the others looks like
    a zombie, but the process is alive."""
    main = read_thread(pid, pid)
    if main is None:
        return None
    if main.state == "Z" and len(thread_ids(pid)) > 1:
        main = replace(main, state=_UNKNOWN)
    others = []
    if main.call is not None and syscall_of(main.call.number).kind is Class.FUTEX:
        others = [
            thread
            for tid in thread_ids(pid)[:MAX_THREADS]
            if tid != pid and (thread := read_thread(pid, tid)) is not None
        ]
    return ProcessSample(pid, (main, *others))


_IS_OBJECT: Final = frozenset(
    {
        *(Class.READ, Class.WRITE, Class.SYNC, Class.OPEN, Class.LOCK, Class.POLL, Class.SELECT),
        *(Class.RECEIVE, Class.SEND, Class.CONNECT, Class.FAULT, Class.CHILD),
    }
)


def has_object(call: Call | None) -> bool:
    """Whether a thread in this call waits for something outside of the process. Threads that wait
    for work (futex, epoll, accept) or sleep are the ordinary helpers of a process."""
    if call is None:
        return False
    known = syscall_of(call.number)
    if known.kind is Class.LOCK and not is_lock(known, call.args[1]):
        return False
    return known.kind in _IS_OBJECT


def thread_ids(pid: int) -> list[int]:
    """Empty when the process is gone."""
    return sorted(map(int, names_in(f"{pid}/task")))


def read_thread(pid: int, tid: int) -> ThreadSample | None:
    """None when it is gone."""
    task = f"{pid}/task/{tid}"
    try:
        stat = read_stat(task)
    except OSError:
        return None
    if stat is None:
        return None
    found = ThreadSample(tid, stat.state, stat.cpu_ticks, None, started=stat.start_ticks)
    if stat.state in "ZX":
        return found
    try:
        call = parse_call(read_file(f"{task}/syscall"))
    except PermissionError:
        return replace(found, is_readable=False)
    except OSError:  # gone, or a kernel without this file
        return replace(found, is_readable=os.path.isdir(path_of(task)))
    runs = _runs(task) if tid == pid or has_object(call) else -1
    return replace(found, call=call, runs=runs)


def waits_for_thread(pid: int) -> bool:
    """The main thread waits for another one, with a time-out, as `Work.wait` of Gloo does."""
    main = read_thread(pid, pid)
    if main is None or main.call is None:
        return False
    known = syscall_of(main.call.number)
    is_timed = known.timeout is not None and main.call.args[known.timeout] != 0
    return known.kind is Class.FUTEX and is_timed


def parse_call(line: bytes) -> Call | None:
    """``running``; ``-1 sp pc``; or ``number arg0 ... arg5 sp pc``."""
    fields = line.split()
    if not fields or fields[0] == b"running":
        return None
    number = int(fields[0])
    values = [int(field, 16) for field in fields[1:]]
    if len(values) < 8:
        return Call(number)
    return Call(number, tuple(values[:6]))


def _runs(task: str) -> int:
    """The voluntary context switches if the kernel has no statistics of the scheduler; else -1."""
    counts = content(f"{task}/schedstat").split()[2:]
    return int((counts or status_line(task, "voluntary_ctxt_switches") or [-1])[0])


def comm(pid: int, tid: int) -> str:
    """Name of a thread; of a process, that of its main thread. Empty when it is gone."""
    return content(f"{pid}/task/{tid}/comm").decode("utf-8", "backslashreplace").strip()
