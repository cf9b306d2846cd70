"""Which processes a pipe leads to, and whether one of them is idle: it waits for work."""

from __future__ import annotations

from typing import Final

from frd_agent.inspection.claims import RankView
from frd_agent.inspection.syscalls import Class
from frd_agent.inspection.targets import Object

POLLS: Final = (Class.POLL, Class.SELECT, Class.EPOLL)


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
    if target.call.kind in (Class.READ, Class.RECEIVE, *POLLS) and target.objects:
        return all(any(end.pid in path for end in one.ends) for one in target.objects)
    if target.call.kind is Class.FUTEX and target.shared:
        return any(
            other not in (pid, *path)
            and _is_reader(view, other, path)
            for other in view.family
        )  # fmt: skip
    return False


def _is_reader(view: RankView, pid: int, path: tuple[int, ...]) -> bool:
    process = view.processes.get(pid)
    is_futex = (
        process is not None
        and process.main.target is not None
        and process.main.target.call.kind is Class.FUTEX
    )
    return not is_futex and is_idle(view, pid, path)
