"""Open files of a process: path, access, position, and the mount below it; and which processes hold
a pipe or a socket.

All of it comes from links and text in /proc. A path of the process itself is never opened and never
stat'ed: its file server may hang, and the agent with it. A path is as the process sees it, in its
own mount namespace, and so is the table of mounts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from frd_agent.inspection.reading.memory import Polled, polled
from frd_agent.proc import content, link, names_in, read_file

MAX_FDS: Final = 4096
"""Of one process whose links are read."""
MAX_PROCESSES: Final = 1024
"""Whose descriptors are listed at a time."""
_MAX_FDINFO: Final = 256 * 1024
_EPOLL: Final = "anon_inode:[eventpoll]"
_MAX_MOUNTINFO: Final = 4 * 1024 * 1024
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_ACCESS: Final = {0: "r", 1: "w", 2: "rw"}
_ODD: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Mount:
    point: str
    fs: str
    """Type and source: ``nfs4 server:/export``."""
    root: str = "/"
    """What of the file system is mounted."""
    options: str = ""
    """Of the file system, separated by commas."""


@dataclass(frozen=True, slots=True)
class OpenFile:
    fd: int
    link: str
    """A path, ``pipe:[1]``, ``socket:[1]``, ``anon_inode:[eventfd]``; empty if it is not known."""
    access: str = ""
    """``r``, ``w``, ``rw``; empty if it is not known."""
    inode: int = 0
    position: int = 0
    mount: Mount | None = None

    @property
    def is_path(self) -> bool:
        return self.link.startswith("/")

    @property
    def special(self) -> str:
        """``pipe``, ``socket`` or ``anon_inode``; empty for a path."""
        return "" if self.is_path else self.link.partition(":")[0]


def open_file(pid: int, fd: int, mounts: Mapping[int, Mount]) -> OpenFile:
    """Nothing but the link is read of an epoll instance: see `read_watched`."""
    target = link(pid, f"fd/{fd}")
    info = content(f"{pid}/fdinfo/{fd}", _MAX_FDINFO) if target != _EPOLL else b""
    if not info:
        return OpenFile(fd, target)
    values: dict[str, str] = {}
    for line in info.decode("ascii", "replace").splitlines():
        key, _, value = line.partition(":")
        values.setdefault(key, value.strip())
    return OpenFile(
        fd,
        target,
        access=_ACCESS.get(int(values.get("flags", "0"), 8) & 3, ""),
        inode=int(values.get("ino", "0")),
        position=int(values.get("pos", "0")),
        mount=mounts.get(int(values.get("mnt_id", "-1"))) if target.startswith("/") else None,
    )


def read_watched(pid: int, fd: int) -> tuple[Polled, ...]:
    """The descriptors that an epoll instance watches. It waits while another thread polls one of
    them, which a file system that hangs can keep up for ever: call it with a deadline.

    Raises:
        OSError: no right, or the process is gone.
    """
    lines = read_file(f"{pid}/fdinfo/{fd}", _MAX_FDINFO).decode("ascii", "replace")
    rows = [line.split() for line in lines.splitlines() if line.startswith("tfd:")]
    return tuple(polled(int(row[1]), int(row[3], 16)) for row in rows if len(row) > 3)


def links(pid: int) -> dict[int, str]:
    """Every descriptor of the process, up to `MAX_FDS`; empty without the right to read them."""
    return {int(fd): link(pid, f"fd/{fd}") for fd in names_in(f"{pid}/fd")[:MAX_FDS]}


def read_mounts(pid: int | str) -> dict[int, Mount]:
    """The mounts of the process's own namespace, by id, in order of mounting."""
    text = content(f"{pid}/mountinfo", _MAX_MOUNTINFO).decode("utf-8", "replace")
    found = {}
    for line in text.split("\n"):  # names may have other characters that end lines
        left, _, right = line.partition(" - ")
        fields, source = left.split(), right.split()
        if len(fields) > 4 and len(source) > 1 and fields[0].isdecimal():
            fs = f"{source[0]} {_plain(source[1])}"
            point, root, options = _plain(fields[4]), _plain(fields[3]), "".join(source[2:])
            found[int(fields[0])] = Mount(point, fs, root, options)
    return found


@dataclass(frozen=True, slots=True)
class End:
    """A process that holds a pipe or socket."""

    pid: int
    access: str
    """``r``, ``w`` or ``rw``."""


class Descriptors:
    """What the descriptors of some processes lead to, as of one moment.

    A pipe has one inode for both of its ends; which end a descriptor is shows in its access mode.
    After a fork most processes of a family hold most ends of most pipes, so a holder is a candidate
    and no proof.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._found: dict[str, list[tuple[int, int]]] = {}
        for pid in list(pids)[:MAX_PROCESSES]:
            for fd, target in links(pid).items():
                self._found.setdefault(target, []).append((pid, fd))

    def ends(self, link: str) -> tuple[End, ...]:
        """The holders of `link`, one row for each process and access mode."""
        held = self._found.get(link, ())
        ends = [End(pid, open_file(pid, fd, {}).access) for pid, fd in held]
        return tuple(dict.fromkeys(end for end in ends if end.access))


def _plain(field: str) -> str:
    """Blanks and backslashes are written in octal."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)


def mount_of(path: str, mounts: Mapping[int, Mount]) -> Mount | None:
    """The mount that a path is on, by its text; the last one mounted wins. A symbolic link on the
    way may lead to another, and so may ``..``: then it is not known."""
    if ".." in path.split("/"):
        return None
    found: Mount | None = None
    for mount in mounts.values():
        below = mount.point.rstrip("/") + "/"
        if (path == mount.point or path.startswith(below)) and (
            found is None or len(mount.point) >= len(found.point)
        ):
            found = mount
    return found


def printable(text: str) -> str:
    """For a report: control characters, and bytes that are no UTF-8, as escapes."""
    return _ODD.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)
