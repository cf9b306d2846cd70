"""The cgroup that bounds a rank's memory: its usage, its limit and how often the kernel killed.

Both versions of the interface, wherever they are mounted usually. Of a rank's cgroup and those
around it the nearest one that has a limit counts, because that is what the rank can run into;
where none has, it is the rank's own. Used is what the kernel cannot take back: usage less pages of
files and what it remembers of file names. The "working set" by which the kubelet evicts leaves only
inactive pages out, and of a dataset that is read for the second time all pages are active: healthy
jobs fill their cgroups with those, and are not killed for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frd_agent.memory.host import total_bytes

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


def find(pid: int, proc: Path = Path("/proc"), root: Path = _ROOT) -> Cgroup | None:
    """None where memory is not accounted, or out of sight."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    machine = total_bytes(proc)
    for line in lines:
        if (place := _place(line, root)) is not None:
            base, path, names = place
            if (found := _nearest(base, path, names, machine)) is not None:
                return found
    return None


def _place(line: str, root: Path) -> tuple[Path, str, _Names] | None:
    """Mount point, path below it, and version of one line of ``/proc/<pid>/cgroup``."""
    number, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if "memory" in controllers.split(","):
        return root / "memory", path, _V1
    return (root, path, _V2) if number == "0" and not controllers else None


def _nearest(base: Path, path: str, names: _Names, machine: int) -> Cgroup | None:
    parts = [part for part in path.split("/") if part]
    if ".." in parts:
        return None  # beside our own namespace
    leaf = base.joinpath(*parts)
    if not (leaf / names.usage).exists():
        leaf = base  # in a container, whose own cgroup is mounted here under no name
    if not (leaf / names.usage).exists():
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
    """Of the numbers beside these names; a line that is not there counts nothing."""
    lines = [line.partition(" ") for line in path.read_text("ascii").splitlines()]
    return sum(int(number) for name, _, number in lines if name in names)
