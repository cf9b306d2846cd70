"""Whose process it is that the driver names by a number: pids of the host to ranks.

The driver numbers processes as the host does. An agent in the host's pid namespace sees the same
numbers, and for a rank in a container both of its own (NSpid). An agent in a container sees other
numbers, or the same ones by chance, so there only the pair counts that the rank reports itself, its
device and its pid. Where a device has one process and one rank says that it uses it, that is it.
Nobody is guessed: a process that is nobody's stays nobody's, and is seen in the device's total.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from frd_agent.memory.target import Target

_INITIAL_NAMESPACE: Final = 0xEFFFFFFC
"""Inode of the pid namespace that the kernel starts with."""


class PidSpace:
    """Our view of processes."""

    def __init__(self, proc: Path = Path("/proc"), initial: bool | None = None) -> None:
        self._proc = proc
        self.is_initial = _is_initial(proc) if initial is None else initial

    def inner_pid(self, pid: int) -> int | None:
        """The number that a process gives itself; None when it is not seen."""
        try:
            status = (self._proc / str(pid) / "status").read_bytes()
        except OSError:
            return None
        _, found, rest = status.partition(b"\nNSpid:")
        numbers = rest.partition(b"\n")[0].split()
        return int(numbers[-1]) if found and numbers else pid


def _is_initial(proc: Path) -> bool:
    try:
        return os.stat(proc / "self/ns/pid").st_ino == _INITIAL_NAMESPACE
    except OSError:
        return False


def device_key(uuid: str) -> str:
    """A device's UUID without its kind: a rank cannot tell a GPU from an instance."""
    return uuid.partition("-")[2]


def users(uuid: str, targets: Iterable[Target]) -> list[Target]:
    """The ranks that say that they use the device."""
    key = device_key(uuid)
    return [target for target in targets if key in map(device_key, target.devices)]


def owners(
    uuid: str, pids: Sequence[int], targets: Sequence[Target], space: PidSpace
) -> dict[int, int]:
    """By number of the rank, which of the device's processes it is."""
    claiming = users(uuid, targets)
    found: dict[int, int] = {}
    for pid in pids:
        candidates = [target for target in targets if space.is_initial and target.pid == pid]
        if not candidates:
            inner = space.inner_pid(pid) if space.is_initial else pid
            candidates = [target for target in claiming if target.said_pid == inner]
        if len(candidates) == 1:
            found.setdefault(candidates[0].number, pid)
    if not found and len(pids) == 1 and len(claiming) == 1:
        found[claiming[0].number] = pids[0]
    return found
