"""The cgroup that bounds a rank's memory: its usage, its limit and how often the kernel killed.

Supports both versions of the interface at their usual mount points. Of a rank's cgroup and its
parents, the nearest one with a limit counts, because the rank can reach that limit; without a
limit, it is the rank's own cgroup. Used memory is what the kernel cannot reclaim: usage minus file
pages and cached file names. The "working set" by which the kubelet evicts excludes only inactive
pages; but all pages of a dataset that is read a second time are active, and healthy jobs fill
their cgroups with those without being killed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frd_agent.memory.host.processes import total_bytes
from frd_agent.proc import PROC

_ROOT: Final = Path("/sys/fs/cgroup")


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


@dataclass(frozen=True, slots=True)
class CgroupReading:
    used: int
    oom_kills: int
    """Ever, by the kernel, in this cgroup and below."""


@dataclass(frozen=True, slots=True)
class Cgroup:
    path: Path
    limit: int
    """0: none that is below the machine's memory."""
    names: _Names

    def read(self) -> CgroupReading | None:
        """None when it is gone."""
        try:
            usage = int((self.path / self.names.usage).read_bytes())
            reclaimable = _sum(self.path / "memory.stat", self.names.reclaimable)
            return CgroupReading(
                used=max(usage - reclaimable, 0),
                oom_kills=_sum(self.path / self.names.events, ("oom_kill",)),
            )
        except (OSError, ValueError):
            return None


def find(pid: int, proc: Path = PROC, root: Path = _ROOT) -> Cgroup | None:
    """None where memory is not accounted, or out of sight."""
    machine = total_bytes(proc)
    for base, path, names in _places(pid, proc, root):
        if (found := _nearest(base, path, names, machine)) is not None:
            return found
    return None


def kills_file(pid: int, proc: Path = PROC, root: Path = _ROOT) -> Path | None:
    """Where the process's own cgroup counts, as ``oom_kill``, how often the kernel killed in it. Of
    those around it only version 2 counts its kills too."""
    for base, path, names in _places(pid, proc, root):
        if (leaf := _leaf(base, path, names)) is not None:
            return leaf / names.events
    return None


def oom_kills(file: Path) -> int | None:
    """What such a file, or ``/proc/vmstat`` for the whole machine, says now; None when it is gone
    or does not count."""
    try:
        lines = [line.split() for line in file.read_text("ascii").splitlines()]
        return next(int(words[1]) for words in lines if words[:1] == ["oom_kill"])
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _places(pid: int, proc: Path, root: Path) -> list[tuple[Path, str, _Names]]:
    try:
        lines = (proc / str(pid) / "cgroup").read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [place for line in lines if (place := _place(line, root)) is not None]


def _place(line: str, root: Path) -> tuple[Path, str, _Names] | None:
    """Mount point, path below it, and version of one line of ``/proc/<pid>/cgroup``."""
    number, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if "memory" in controllers.split(","):
        return root / "memory", path, _V1
    return (root, path, _V2) if number == "0" and not controllers else None


def _leaf(base: Path, path: str, names: _Names) -> Path | None:
    """The cgroup that the process itself is in."""
    parts = [part for part in path.split("/") if part]
    if ".." in parts:
        return None  # outside our own namespace
    leaf = base.joinpath(*parts)
    if not (leaf / names.usage).exists():
        leaf = base  # in a container, whose own cgroup is mounted here under no name
    return leaf if (leaf / names.usage).exists() else None


def _nearest(base: Path, path: str, names: _Names, machine: int) -> Cgroup | None:
    if (leaf := _leaf(base, path, names)) is None:
        return None
    around = leaf
    while True:
        if limit := _limit(around / names.limit, machine):
            return Cgroup(around, limit, names)
        if around == base:
            return Cgroup(leaf, 0, names)
        around = around.parent


def _limit(path: Path, machine: int) -> int:
    try:
        text = path.read_text("ascii").strip()
    except OSError:
        return 0
    limit = int(text) if text.isdecimal() else 0
    return limit if not machine or limit < machine else 0


def _sum(path: Path, names: tuple[str, ...]) -> int:
    """Sum of the values of these keys; a missing line counts 0."""
    lines = [line.partition(" ") for line in path.read_text("ascii").splitlines()]
    return sum(int(number) for name, _, number in lines if name in names)


class OomKills:
    """Whether the kernel's out-of-memory killer was active in the cgroup of a process.

    SIGKILL has no reason. The kernel counts its out-of-memory kills, by cgroup and for the whole
    machine, before it sends the signal; so the count at the end of the
    process, less the count when this object was made, covers the time between. The kernel does not
    name the processes.
    """

    def __init__(self, pid: int, proc: Path = PROC, root: Path | None = None) -> None:
        own = kills_file(pid, proc) if root is None else kills_file(pid, proc, root)
        places = ((own, "in its cgroup"), (proc / "vmstat", "on its node"))
        self._places = [
            (file, where, before)
            for file, where in places
            if file is not None and (before := oom_kills(file)) is not None
        ]

    def text(self) -> str:
        """Text for people; empty if there is no counter."""
        for file, where, before in self._places:
            if (count := oom_kills(file)) is not None:
                killed = max(count - before, 0)
                what = f"{killed} process{'' if killed == 1 else 'es'}" if killed else "no process"
                during = " while it ran" if killed else ""
                return f"the kernel's out-of-memory killer killed {what} {where}{during}"
        return ""
