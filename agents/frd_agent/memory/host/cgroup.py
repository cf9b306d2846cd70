"""The cgroup that bounds a rank's memory: its usage, its limit and how often the kernel killed.

Supports both versions of the interface. `mountinfo` shows where cgroups are mounted, and which part
of the tree a mount shows: in a container only its own cgroup, under no name. A rank's cgroup is
looked for below the agent's own mounts, and else below those of the rank (``/proc/<pid>/root``), as
from the sidecar of a pod. A mount counts only if the rank's cgroup is in the part that it shows:
that of another container is never taken for it. The kernel shows both paths relative to the cgroup
namespace of the reader, so they can be compared.

Of a rank's cgroup and its parents, the nearest one with a limit counts, because the rank can reach
that limit; without a limit, it is the rank's own cgroup. Used memory is what the kernel cannot
reclaim: usage minus file pages and cached file names. The "working set" by which the kubelet evicts
excludes only inactive pages; but all pages of a dataset that is read a second time are active, and
healthy jobs fill their cgroups with those without being killed.

Files stay open: the way to them ends with the rank, and the kernel counts a kill after it.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from frd_agent.inspection.reading.files import read_mounts
from frd_agent.memory.host.processes import total_bytes
from frd_agent.proc import content, path_of

_MAX_BYTES: Final = 64 * 1024
_LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Names:
    """What the files of one version are called."""

    usage: str
    limit: str
    reclaimable: tuple[str, ...]
    """Lines of ``memory.stat``."""
    events: str


_V1: Final = _Names(
    "memory.usage_in_bytes",
    "memory.limit_in_bytes",
    ("total_inactive_file", "total_active_file"),
    "memory.oom_control",
)
_V2: Final = _Names(
    "memory.current",
    "memory.max",
    ("inactive_file", "active_file", "slab_reclaimable"),
    "memory.events",
)


class CgroupReading(NamedTuple):
    used: int
    oom_kills: int
    """Ever, by the kernel, in this cgroup and below."""


class Cgroup:
    """One cgroup; ranks of one cgroup find equal ones."""

    def __init__(self, folder: Path, name: str, limit: int, names: _Names) -> None:
        """
        Raises:
            OSError: a file cannot be opened.
        """
        self.name = name
        """Its path, as the kernel shows it to the agent."""
        self.limit = limit
        """0: none that is below the machine's memory."""
        self._reclaimable = names.reclaimable
        self._usage = _Numbers(folder / names.usage)
        self._stat = _Numbers(folder / "memory.stat")
        self._events = _Numbers(folder / names.events)
        self._identity = self._usage.identity, limit

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cgroup) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def read(self) -> CgroupReading | None:
        """None when it is gone."""
        try:
            used = int(self._usage.text()) - self._stat.sum_of(self._reclaimable)
            return CgroupReading(max(used, 0), self._events.sum_of(("oom_kill",)))
        except (OSError, ValueError):
            return None


class _Numbers:
    """A file of the kernel that stays open. After its cgroup was removed, every read fails."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            OSError: it cannot be opened.
        """
        self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)
        found = os.fstat(self._fd)
        self.identity = found.st_dev, found.st_ino

    def text(self) -> str:
        """
        Raises:
            OSError, ValueError: it is gone; it is no text.
        """
        return os.pread(self._fd, _MAX_BYTES, 0).decode("ascii")

    def sum_of(self, names: tuple[str, ...]) -> int:
        """Sum of the values of these lines; a missing line counts 0.

        Raises:
            OSError, ValueError: as `text`.
        """
        lines = [line.partition(" ") for line in self.text().splitlines()]
        return sum(int(number) for name, _, number in lines if name in names)

    def oom_kills(self) -> int | None:
        """How often the kernel has killed; None if the file is gone or does not count."""
        with contextlib.suppress(OSError, ValueError):
            if "oom_kill " in self.text():
                return self.sum_of(("oom_kill",))
        return None


class _Place(NamedTuple):
    """Where the cgroup of a process can be read."""

    mount: Path
    folder: Path
    """At or below the mount."""
    name: PurePosixPath
    names: _Names


def find(pid: int) -> Cgroup | None:
    """None where memory is not accounted, or out of sight."""
    machine = total_bytes()
    for place in _places(pid):
        folder, name = place.folder, place.name
        while not (limit := _limit(folder / place.names.limit, machine)) and folder != place.mount:
            folder, name = folder.parent, name.parent
        if not limit:
            folder, name = place.folder, place.name
        with contextlib.suppress(OSError):
            return Cgroup(folder, str(name), limit, place.names)
    return None


def _places(pid: int) -> Iterator[_Place]:
    paths: dict[_Names, str] = {}
    for line in _lines(f"{pid}/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            paths[_V1] = path
        elif number == "0" and not controllers:
            paths[_V2] = path
    for process in ("self", pid):
        for mount in read_mounts(process).values():
            kind = mount.fs.partition(" ")[0]
            names = _V2 if kind == "cgroup2" else _V1
            if names is _V1 and (kind != "cgroup" or "memory" not in mount.options.split(",")):
                continue
            below = _below(paths[names], mount.root) if names in paths else None
            at = Path(path_of(f"{process}/root{mount.point}"))
            if below is not None and os.path.exists(at / below / names.usage):
                yield _Place(at, at / below, PurePosixPath(paths[names]), names)


def _below(path: str, root: str) -> str | None:
    """The path below a mount that shows the tree from `root` on; None if it is not there."""
    if path == root:
        return "."
    below = path.removeprefix(root.rstrip("/") + "/")
    return below if below != path and ".." not in below.split("/") else None


def _lines(path: str) -> list[str]:
    return content(path, _MAX_BYTES).decode("utf-8", "surrogateescape").splitlines()


def _limit(path: Path, machine: int) -> int:
    text = "".join(_lines(str(path))).strip()
    limit = int(text) if text.isdecimal() else 0
    return limit if not machine or limit < machine else 0


class OomKills:
    """Whether the kernel's out-of-memory killer was active in the cgroup of a process.

    SIGKILL has no reason. The kernel counts its out-of-memory kills, by cgroup and for the whole
    machine, before it sends the signal; so the count at the end of the process, less the count when
    this object was made, covers the time between. The kernel does not name the processes. The count
    is of the process's own cgroup: of those around it only version 2 counts its kills too. A
    container that is killed as a whole takes its cgroup with it; then the last `look` counts.
    """

    def __init__(self, pid: int | None) -> None:
        """`pid` is None if the process is out of sight."""
        place = next(_places(pid), None) if pid is not None else None
        self._own: _Numbers | None = None
        with contextlib.suppress(OSError):
            self._own = _Numbers(place.folder / place.names.events) if place else None
        self._vmstat = Path(path_of("vmstat"))
        self._before = _kills(self._own), self._on_node()
        self._last = self._before[0]
        self._look_at = 0.0

    def look(self) -> None:
        """Count, if the last look was some time ago."""
        if (now := time.monotonic()) >= self._look_at:
            self._look_at = now + _LOOK_S
            self._last = _kills(self._own) or self._last

    def text(self) -> str:
        """Text for people; empty if there is no counter."""
        (own_before, node_before), own, node = self._before, _kills(self._own), self._on_node()
        if own is None and self._last != own_before:
            own = self._last  # counted before the cgroup went
        if own is not None and own_before is not None:
            return _said(own - own_before, "in its cgroup")
        if node is None or node_before is None:
            return ""
        said = _said(node - node_before, "on its node")
        return said if node == node_before else f"{said}; in which cgroup cannot be known"

    def _on_node(self) -> int | None:
        with contextlib.suppress(OSError):
            return _kills(_Numbers(self._vmstat))
        return None


def _kills(file: _Numbers | None) -> int | None:
    return None if file is None else file.oom_kills()


def _said(killed: int, where: str) -> str:
    what = f"{killed} process{'' if killed == 1 else 'es'}" if killed else "no process"
    during = " while it ran" if killed else ""
    return f"the kernel's out-of-memory killer killed {what} {where}{during}"
