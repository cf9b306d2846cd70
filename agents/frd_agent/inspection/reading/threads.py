"""Threads of a process: state, blocked system call, and whether they have run in between.

`stat`, `syscall` and `schedstat` take no lock that a process in trouble could hold: they are safe
to read of any process. How often a thread has run (`schedstat`) shows that it has not left its call
between two samples; a call with the same arguments alone could be the next one in a loop.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from frd_agent.inspection.syscalls import Class, is_lock, syscall_of
from frd_agent.proc import PROC

MAX_THREADS: Final = 1024
"""Of one process that are read."""
_CHUNK: Final = 4096
_UNKNOWN: Final = "?"
"""A state that says nothing."""


class Call(NamedTuple):
    """A line of /proc/<pid>/task/<tid>/syscall."""

    number: int
    args: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
    sp: int = 0


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


def read_process(pid: int, proc: Path = PROC) -> ProcessSample | None:
    """None if the process is gone. Other threads are read only when the main thread waits in
    memory: one of them may hold the lock. A main thread that has ended before the others looks like
    a zombie, but the process is alive."""
    main = read_thread(pid, pid, proc)
    if main is None:
        return None
    if main.state == "Z" and len(thread_ids(pid, proc)) > 1:
        main = replace(main, state=_UNKNOWN)
    others = []
    if main.call is not None and syscall_of(main.call.number).kind is Class.FUTEX:
        others = [
            thread
            for tid in thread_ids(pid, proc)[:MAX_THREADS]
            if tid != pid and (thread := read_thread(pid, tid, proc)) is not None
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


def thread_ids(pid: int, proc: Path = PROC) -> list[int]:
    """Empty when the process is gone."""
    try:
        return sorted(int(name) for name in os.listdir(f"{proc}/{pid}/task"))
    except OSError:
        return []


def read_thread(pid: int, tid: int, proc: Path = PROC) -> ThreadSample | None:
    """None when it is gone."""
    task = f"{proc}/{pid}/task/{tid}"
    try:
        stat = _read_line(f"{task}/stat")
    except OSError:
        return None
    # The name is in parentheses, and may itself contain spaces and parentheses.
    fields = stat[stat.rfind(b")") + 2 :].split(None, 20)
    if len(fields) < 20:
        return None
    started = int(fields[19])
    state, ticks = fields[0].decode("ascii", "replace"), int(fields[11]) + int(fields[12])
    if state in "ZX":
        return ThreadSample(tid, state, ticks, None, started=started)
    try:
        call = parse_call(_read_line(f"{task}/syscall"))
    except PermissionError:
        return ThreadSample(tid, state, ticks, None, is_readable=False, started=started)
    except OSError:  # gone, or a kernel without this file
        is_readable = os.path.isdir(task)
        return ThreadSample(tid, state, ticks, None, is_readable=is_readable, started=started)
    runs = -1
    if tid == pid or has_object(call):
        runs = _runs(task)
    return ThreadSample(tid, state, ticks, call, started=started, runs=runs)


def waits_for_thread(pid: int, proc: Path = PROC) -> bool:
    """The main thread waits for another one, with a time-out, as `Work.wait` of Gloo does."""
    main = read_thread(pid, pid, proc)
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
        return Call(number, sp=values[0] if values else 0)
    return Call(number, tuple(values[:6]), values[6])


def _runs(task: str) -> int:
    """The voluntary context switches if the kernel has no statistics of the scheduler; else -1."""
    try:
        return int(read_file(f"{task}/schedstat").split()[2])
    except (OSError, IndexError, ValueError):
        pass
    try:
        status = read_file(f"{task}/status")
    except OSError:
        return -1
    name = b"\nvoluntary_ctxt_switches:"
    at = status.find(name)
    return int(status[at + len(name) :].split(None, 1)[0]) if at >= 0 else -1


def comm(pid: int, tid: int, proc: Path = PROC) -> str:
    """Name of a thread; of a process, that of its main thread. Empty when it is gone."""
    try:
        raw = read_file(f"{proc}/{pid}/task/{tid}/comm")
    except OSError:
        return ""
    return raw.decode("utf-8", "backslashreplace").strip()


def _read_line(path: str) -> bytes:
    """A file of one line, which the kernel writes in one piece.

    Raises:
        OSError: as `open`.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _CHUNK)
    finally:
        os.close(fd)


def read_file(path: str, most: int = _CHUNK) -> bytes:
    """The whole file, which is small; at most about `most` bytes.

    Raises:
        OSError: as `open`.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = [os.read(fd, most)]
        while parts[-1] and (size := sum(map(len, parts))) < most:
            parts.append(os.read(fd, most - size))
    finally:
        os.close(fd)
    return b"".join(parts)
