"""Waits for another process: for a lock that it holds, or for a pipe.

A pipe leads to worker processes of the rank, whose own wait is the cause, or to others.

Which processes a pipe leads to, and which of them wait for work, also shows whether a rank is idle.
A rank waits for a request if nothing but a request can end its call, as far as /proc proves that:

- in `accept`, or in a read or poll of connections that came to a port on which a socket listens. A
  connection that the rank made itself brings a reply, which is no request. What is at the other end
  of one from elsewhere is not known: it counts only if the rank waits for new connections as well;
- in a read of a terminal;
- in a read of a pipe without a path that a process above it holds, as `multiprocessing.Queue` is.

If a process of another rank is at the other end, it may wait for that rank, and is not idle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final, TypeAlias

from frd.model import Certainty, WaitKind
from frd.wire.waits import WaitReport
from frd_agent.inspection.claims import (
    LOADER,
    MAX_FAMILY,
    UNKNOWN,
    RankView,
    claim,
    holder_words,
    in_call,
    joined,
    likely,
    mount_fields,
    mount_words,
    subject,
)
from frd_agent.inspection.reading.files import printable
from frd_agent.inspection.syscalls import POLLS, Class
from frd_agent.inspection.targets import Object, Target
from frd_agent.inspection.tracking import Wait
from frd_agent.proc import inode_of

Follow: TypeAlias = Callable[[int, tuple[int, ...]], WaitReport]
"""What a process waits for; with the processes on the way to it."""
NAMED: Final = (
    *(WaitKind.FILE_READ, WaitKind.FILE_WRITE, WaitKind.FILE_SYNC, WaitKind.FILE_OPEN),
    *(WaitKind.PAGE_FAULT, WaitKind.LOCK_FILE, WaitKind.SOCKET),
)
"""Ends of a chain that are a cause, in the order in which they are preferred."""
_READS: Final = (Class.READ, Class.RECEIVE, *POLLS)
_TERMINALS: Final = ("/dev/pts/", "/dev/tty", "/dev/console")
_EVENTS: Final = "anon_inode:[eventfd]"


def of_pipe(view: RankView, wait: Wait, one: Object) -> WaitReport:
    """A pipe that no process of the rank holds the other end of, or a polled path."""
    assert wait.target is not None
    writes = one.writes or one.file.access == "w" or wait.target.call.kind is Class.WRITE
    kind = WaitKind.FILE_WRITE if writes else WaitKind.FILE_READ
    others = answering(view, one)
    holder = view.holder(min(others)) if others else None
    place = {1: "standard output, ", 2: "standard error, ", 0: "standard input, "}
    thing = printable(one.file.link)
    if one.file.special == "pipe":
        thing = f"{place.get(one.file.fd, '')}a pipe"
    ends = "reads" if writes else "writes to"
    held = f" that {holder_words(holder)} {ends}" if holder else ""
    if one.file.special == "pipe" and not others:
        held = " that no other process of its user holds"
    return claim(
        kind,
        Certainty.SEEN if len(others) < 2 else Certainty.LIKELY,
        subject(view, wait),
        f"{in_call(wait, wait.target.call.name)} of {thing}{held}",
        wait.since_ns,
        what=printable(one.file.link),
        holder=holder,
        topic=f"a reader of its {'output' if one.file.fd in (1, 2) else 'pipe'}"
        if writes
        else "data",
        **mount_fields(one.file.mount),
    )


def of_workers(
    view: RankView, follow: Follow, wait: Wait, one: Object, below: list[int], path: tuple[int, ...]
) -> WaitReport:
    """A pipe, to processes of the rank."""
    assert wait.target is not None
    stuck = [pid for pid in below if not is_idle(view, pid, path)]
    reports = {pid: follow(pid, path) for pid in stuck}
    is_early = any(is_new(view, pid) for pid in stuck)
    if is_early and all(report == UNKNOWN for report in reports.values()):
        return UNKNOWN
    idle = len(below) - len(stuck)
    are_loaders = any(view.processes[pid].name == LOADER for pid in below
                      if pid in view.processes)  # fmt: skip
    is_whole = len(view.family) < MAX_FAMILY
    topic = "data" if are_loaders else "its worker process"
    pid = min(reports, key=lambda one: (_preference(reports[one]), one), default=None)
    if pid is not None and (found := reports[pid].waits_for).kind not in (
        *(WaitKind.UNKNOWN, WaitKind.NOT_ALLOWED),
    ):
        is_only = len({_cause(report) for report in reports.values()}) == 1
        rest = joined([found.rest, _others(idle, len(stuck) - 1)])
        report = replace(
            reports[pid],
            waits_for=replace(found, topic=topic, rest=rest),
        )
        # If the process that waits could write itself, a worker that is in a call is a cause, but
        # one that sleeps or computes may have nothing to do with it.
        is_theirs = are_loaders or found.kind in NAMED or not one.is_shared
        return report if is_only and is_theirs and is_whole else likely(report)
    held = [pid] if pid is not None else below
    words = f"a pipe from its {_count(len(below), 'worker process', 'worker processes')}"
    return claim(
        WaitKind.PIPE_WORKER,
        Certainty.SEEN if pid is None and is_whole else Certainty.LIKELY,
        subject(view, wait),
        f"{in_call(wait, wait.target.call.name)} of {words}",
        wait.since_ns,
        what=printable(one.file.link),
        topic=topic,
        holder=view.holder(held[0]) if len(held) == 1 else None,
        rest=_others(idle, 0, other=""),
    )


def _preference(report: WaitReport) -> int:
    """Named causes first, in the order of `NAMED`; then locks, sleep and computing."""
    kind = report.waits_for.kind
    if kind in NAMED:
        return NAMED.index(kind)
    return len(NAMED) + (kind in (WaitKind.UNKNOWN, WaitKind.NOT_ALLOWED))


def _cause(report: WaitReport) -> tuple[WaitKind, str]:
    return report.waits_for.kind, report.waits_for.what


def _others(idle: int, stuck: int, other: str = "other ") -> str:
    """``3 other workers are idle``."""
    words = []
    if stuck > 0:
        words.append(f"{_count(stuck, f'{other}worker waits', f'{other}workers wait')} too")
    if idle > 0:
        words.append(f"{_count(idle, f'{other}worker is', f'{other}workers are')} idle")
    return joined(words)


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def of_file_lock(
    view: RankView, follow: Follow, wait: Wait, target: Target, path: tuple[int, ...]
) -> WaitReport:
    what = printable(target.path)
    does = f"{in_call(wait, target.call.name)} of {what}{mount_words(target.mount)}"
    holder = view.holder(target.holder) if target.holder else None
    rest = ""
    if holder is not None and holder.pid == wait.pid:
        does += ", which the process itself holds by another open file"
    elif holder is not None:
        does += f", held by {holder_words(holder)}"
        rest = _own_wait(follow, holder.pid, path)
    return claim(
        WaitKind.LOCK_FILE,
        Certainty.SEEN,
        subject(view, wait),
        does,
        wait.since_ns,
        what=what,
        holder=holder,
        rest=rest if holder else "its holder is not visible to the agent",
        **mount_fields(target.mount),
    )


def of_poll(view: RankView, follow: Follow, wait: Wait, path: tuple[int, ...]) -> WaitReport:
    """The main thread of a rank sleeps, and wakes again and again to look for something: a lock
    perhaps. The package filelock has the file open for ten microseconds, twenty times a second, so
    no sample shows it. But if processes of one other rank only have locked files, it is likely one
    of these."""
    assert wait.target is not None
    does = f"has been polling (asleep in {wait.target.call.name}(), awake again and again)"
    ranks = {view.holder(lock.pid).rank for lock in view.locked}
    if len(ranks) != 1:
        asleep = (WaitKind.SLEEP, Certainty.SEEN, subject(view, wait), does, wait.since_ns)
        return replace(claim(*asleep, topic="what it polls for"), is_poll=True)
    lock, *more = view.locked
    holder = view.holder(lock.pid)
    what, mount = ("", None) if more else (printable(lock.path), lock.mount)
    thing = f"one of {len(view.locked)} files" if more else f"{what}{mount_words(mount)}"
    found = claim(
        WaitKind.SLEEP,
        Certainty.LIKELY,
        subject(view, wait),
        f"{does}, likely for a lock of {thing}, held by {holder_words(holder)}",
        wait.since_ns,
        what=what,
        topic="a lock",
        holder=holder,
        rest=_own_wait(follow, lock.pid, path),
        **mount_fields(mount),
    )
    return replace(found, is_poll=True)


def of_shared_lock(
    view: RankView, follow: Follow, wait: Wait, target: Target, path: tuple[int, ...]
) -> WaitReport:
    """The holder of a semaphore is not recorded anywhere: it is likely the only process of the
    rank that does not wait for it."""
    others = [
        pid
        for pid in view.family
        if pid != wait.pid and not _is_in(view, pid, target.shared)
        and not is_idle(view, pid, view.family)
    ]  # fmt: skip
    only = others[0] if len(others) == 1 else None
    holder = view.holder(only) if only is not None else None
    name = target.name or (target.shared if target.call.kind is Class.SEMAPHORE else "")
    held = f", which {holder_words(holder)} seems to hold" if holder else ""
    return claim(
        WaitKind.LOCK_SHARED,
        Certainty.LIKELY if holder or target.problem else Certainty.SEEN,
        subject(view, wait),
        f"has been in {target.call.name}() for a lock shared between processes{held}",
        wait.since_ns,
        what=printable(name),
        holder=holder,
        rest=_own_wait(follow, holder.pid, path) if holder else target.problem,
    )


def _own_wait(follow: Follow, pid: int, path: tuple[int, ...]) -> str:
    """What the holder itself does: ``the holder has been in fsync() of /ckpt/step40.pt``."""
    found = follow(pid, path).waits_for
    if found.kind in (WaitKind.UNKNOWN, WaitKind.NOT_ALLOWED) or not found.says:
        return ""
    _, has, does = found.says.partition(" has been ")
    if found.pid == pid and has:
        return f"the holder has been {does}"
    return f"the holder waits: {found.says}"


def _is_in(view: RankView, pid: int, shared: str) -> bool:
    process = view.processes.get(pid)
    return process is not None and any(
        wait.target is not None and wait.target.shared == shared
        for wait in (process.main, *process.others)
    )


def answering(view: RankView, one: Object) -> set[int]:
    """Processes at the other end, without those that are blocked in it like the one that waits:
    after a fork they hold both ends."""
    return {end.pid for end in one.ends if not _waits_for(view, end.pid, one)}


def _waits_for(view: RankView, pid: int, one: Object) -> bool:
    process = view.processes.get(pid)
    target = process.main.target if process is not None else None
    if target is None or len(target.objects) != 1:
        return False
    return bool(one.file.link) and target.objects[0].file.link == one.file.link


def workers_behind(view: RankView, one: Object, path: tuple[int, ...]) -> list[int]:
    """Processes of the rank, other than those on the way here, at the other end."""
    return sorted(pid for pid in answering(view, one) if pid in view.family and pid not in path)


def is_new(view: RankView, pid: int) -> bool:
    process = view.processes.get(pid)
    return process is not None and not process.main.is_sure


def is_idle(view: RankView, pid: int, path: tuple[int, ...]) -> bool:
    """Whether it waits for work: for a pipe from a process that waits for it, or for its turn
    to read such a pipe."""
    process = view.processes.get(pid)
    if process is None or not process.main.is_sure or process.main.target is None:
        return False
    if process.main.state in "TtZX":
        return False  # it would not take the work
    target = process.main.target
    if target.call.kind in _READS and target.objects:
        return all(any(end.pid in path for end in one.ends) for one in target.objects)
    if target.call.kind is Class.FUTEX and target.shared:
        return any(
            other not in (pid, *path)
            and _is_reader(view, other, path)
            for other in view.family
        )  # fmt: skip
    return False


def awaits_request(view: RankView) -> bool:
    """Whether the main thread of the rank waits for a request, and for nothing else."""
    wait = view.processes[view.pid].main
    target = wait.target
    if target is None or target.problem or target.is_cut or not wait.is_at_rest:
        return False
    if target.call.kind not in (*_READS, Class.ACCEPT):
        return False
    # An event loop also watches what its own threads wake it by.
    inodes = {inode_of(one.file.link) for one in target.objects}
    others = [one for one in target.objects if not _is_own(one, inodes)]
    is_server = any(one.peer is not None and one.peer.is_listening for one in others)
    return bool(others) and all(_brings_request(view, one, is_server) for one in others)


def _is_own(one: Object, inodes: Collection[int]) -> bool:
    """A program that waits for both of two sockets has not made them to wake itself."""
    is_pair = one.is_shared and not one.ends and not (one.pair and one.pair in inodes)
    return one.file.link == _EVENTS or is_pair


def _brings_request(view: RankView, one: Object, is_server: bool) -> bool:
    ends = {end.pid for end in one.ends} - {*view.family}
    if one.writes or any(view.holder(pid).rank is not None for pid in ends):
        return False
    if one.file.special == "pipe":
        return bool(ends & view.above)
    if one.peer is not None:
        is_known = bool(one.ends) or is_server
        return one.peer.is_listening or one.peer.is_own or (one.peer.is_served and is_known)
    return one.file.link.startswith(_TERMINALS)


def _is_reader(view: RankView, pid: int, path: tuple[int, ...]) -> bool:
    process = view.processes.get(pid)
    target = process.main.target if process is not None else None
    return target is not None and target.call.kind is not Class.FUTEX and is_idle(view, pid, path)
