"""Which processes a pipe leads to, and which of them wait for work; whether a rank is idle.

A rank waits for a request if nothing but a request can end its call, as far as /proc proves that:

- in `accept`, or in a read or poll of connections that came to a port on which a socket listens. A
  connection that the rank made itself brings a reply, which is no request. What is at the other end
  of one from elsewhere is not known: it counts only if the rank waits for new connections as well;
- in a read of a terminal;
- in a read of a pipe without a path that a process above it holds, as `multiprocessing.Queue` is.

If a process of another rank is at the other end, it may wait for that rank, and is not idle.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from frd_agent.inspection.claims import RankView
from frd_agent.inspection.syscalls import POLLS, Class
from frd_agent.inspection.targets import Object
from frd_agent.proc import inode_of

_READS: Final = (Class.READ, Class.RECEIVE, *POLLS)
_TERMINALS: Final = ("/dev/pts/", "/dev/tty", "/dev/console")
_EVENTS: Final = "anon_inode:[eventfd]"


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
