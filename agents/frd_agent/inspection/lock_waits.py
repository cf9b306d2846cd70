"""Waits for a lock that another process holds."""

from __future__ import annotations

from dataclasses import replace

from frd.model import Certainty, WaitKind
from frd.wire.waits import WaitReport
from frd_agent.inspection.claims import (
    RankView,
    claim,
    holder_words,
    in_call,
    mount_fields,
    mount_words,
    subject,
)
from frd_agent.inspection.idle import is_idle
from frd_agent.inspection.pipe_waits import Follow
from frd_agent.inspection.reading.files import printable
from frd_agent.inspection.syscalls import Class
from frd_agent.inspection.targets import Target
from frd_agent.inspection.tracking import Wait


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
