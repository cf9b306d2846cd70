"""The traces that a process has open, by its descriptors: what /proc alone shows of them.

How far a trace was written is the position of its descriptor: DFTracer appends through it. So a
trace that does not grow is never touched, and neither is one that nothing was written to yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from frd_agent.inspection.reading.files import (
    Mount,
    links,
    open_file,
    printable,
    read_mounts,
)

MAX_TRACES: Final = 4
"""Of one process."""
_PACKED: Final = ".pfw.gz"
_SUFFIXES: Final = (".pfw", _PACKED)
_DELETED: Final = " (deleted)"
_MAX_WORDS: Final = 120


@dataclass(frozen=True, slots=True)
class OpenTrace:
    """A trace that a process may write."""

    pid: int
    fd: int
    link: str
    inode: int
    written: int
    """Position of the descriptor."""
    mount: Mount | None

    @property
    def path(self) -> str:
        return self.link.removesuffix(_DELETED)

    @property
    def is_packed(self) -> bool:
        return self.path.endswith(_PACKED)

    @property
    def identity(self) -> tuple[str, int]:
        """Two descriptors with the same identity lead to the same file."""
        return (self.mount.fs if self.mount else "", self.inode)


def open_traces(pid: int) -> list[OpenTrace]:
    found = {
        fd: target
        for fd, target in sorted(links(pid).items())
        if target.startswith("/") and target.removesuffix(_DELETED).endswith(_SUFFIXES)
    }
    if not found:
        return []
    mounts = read_mounts(pid)
    traces = []
    for fd, target in found.items():
        file = open_file(pid, fd, mounts)
        if file.link == target and "w" in file.access:
            traces.append(OpenTrace(pid, fd, target, file.inode, file.position, file.mount))
    return traces[:MAX_TRACES]


def refreshed(trace: OpenTrace) -> OpenTrace | None:
    """As it is now; None if the descriptor was closed, or leads to another file."""
    file = open_file(trace.pid, trace.fd, {})
    if (file.link, file.inode) != (trace.link, trace.inode):
        return None
    return replace(trace, written=file.position)


def open_paths(pid: int) -> dict[str, int]:
    """The files that the process has open, with a descriptor for each."""
    return {target: fd for fd, target in links(pid).items() if target.startswith("/")}


def named(path: str) -> str:
    """A path for a report: printable, and of a long one the end."""
    text = printable(path)
    return text if len(text) <= _MAX_WORDS else f"...{text[-_MAX_WORDS:]}"
