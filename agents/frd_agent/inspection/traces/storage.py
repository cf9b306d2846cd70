"""Whether a trace may be read while its rank is stuck: not if it may be stuck as well. Pure.

A read of a trace that is on storage that does not answer would hang like the rank. Which file
systems the rank is stuck in shows in its blocked calls; if that is not known, no trace of it is
read. Of two file systems of one server one rarely works alone: while the rank is stuck in one that
is not local, no trace on another such is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from frd_agent.inspection.claims import RankView
from frd_agent.inspection.reading.files import Mount
from frd_agent.inspection.syscalls import Class
from frd_agent.inspection.tracking import Wait

_LOCAL: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "jfs"}
    | {"tmpfs", "ramfs", "rootfs", "overlay", "fuse.fuse-overlayfs"}
    | {"devtmpfs", "devpts", "proc", "sysfs", "hugetlbfs"}
)
_CALLS: Final = frozenset(
    {Class.READ, Class.WRITE, Class.SYNC, Class.OPEN, Class.FAULT, Class.LOCK}
)


def objection(view: RankView, trace: Mount | None) -> str:
    """Why a trace on this mount is not read now; empty if it may be read."""
    if trace is None:
        return "its file system is not known"
    for stuck in _stuck_in(view):
        if stuck is None:
            return "it is not known in which file system the rank is stuck"
        if stuck.fs == trace.fs:
            return "it is on the file system that the rank is stuck in"
        if not _is_local(stuck) and not _is_local(trace):
            return "neither it nor what the rank is stuck in is on a local file system"
    return ""


def _is_local(mount: Mount) -> bool:
    return mount.fs.partition(" ")[0] in _LOCAL


def _stuck_in(view: RankView) -> Iterator[Mount | None]:
    """By the waits of its processes, and of those that hold a lock that it waits for. None for a
    file system that is not known."""
    waits = [wait for pid in view.family for wait in _waits(view, pid)]
    for wait in waits:
        yield from _of_wait(wait)
        holder = wait.target.holder if wait.target is not None else None
        if holder is not None and holder not in view.family:
            for other in _waits(view, holder):
                yield from _of_wait(other)


def _waits(view: RankView, pid: int) -> tuple[Wait, ...]:
    process = view.processes.get(pid)
    return () if process is None else (process.main, *process.others)


def _of_wait(wait: Wait) -> list[Mount | None]:
    target = wait.target
    if wait.state not in "SD":
        return []
    if target is None or target.call.kind not in _CALLS:
        return [None] if wait.state == "D" else []
    mounts: list[Mount | None] = [None]  # a page fault, or sync()
    if target.path:
        mounts = [target.mount]
    elif target.objects:
        files = [one.file for one in target.objects if not one.is_pipe]
        mounts = [file.mount for file in files if not file.special]
    if target.call.kind is Class.LOCK:  # no matter of storage, unless a server keeps the locks
        mounts = [mount for mount in mounts if mount is None or not _is_local(mount)]
    return mounts
