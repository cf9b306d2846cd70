"""Host memory of all ranks of the node as series: their processes, and the cgroups they are in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from frd.model import MemoryEvent, MemoryEventKind, NodeRawNs, SeriesInfo, SeriesKind
from frd_agent.memory.host import cgroup
from frd_agent.memory.host import processes as host
from frd_agent.memory.host.cgroup import Cgroup
from frd_agent.memory.host.processes import ProcessMemory
from frd_agent.memory.target import Part, Reading, Target

_CGROUP_S: Final = 0.5
"""Between two looks at a cgroup, whose statistics the kernel gathers from all CPUs when asked."""
_FIND_S: Final = 30.0
"""Interval at which a rank's cgroup and its limit are looked up again."""
_LINGER_S: Final = 3.0
"""A cgroup is read for a while after its rank is gone: the kernel counts a kill after it."""


@dataclass(slots=True)
class _Rank:
    target: Target
    cgroup: Cgroup | None = None
    find_at: float = float("-inf")
    gone_at: float | None = None

    def reading(self, kind: SeriesKind, capacity: int, used: int) -> Reading:
        return Reading(self.target.attempt, SeriesInfo(self.target.number, kind), capacity, used)


@dataclass(slots=True)
class NodeMemory:
    """Lives on one thread."""

    processes: ProcessMemory
    find: Callable[[int], Cgroup | None] = cgroup.find
    machine_bytes: int = field(default_factory=host.total_bytes)
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _cgroups_at: float = float("-inf")
    _kills: dict[Cgroup, int | None] = field(default_factory=dict)
    """The cgroups that are open, and how often the kernel had killed there at the last look."""
    _killed_at: dict[Cgroup, float] = field(default_factory=dict)
    """Of kills that no rank is known to have lost a process by."""

    def read(self, targets: Sequence[Target], now_s: float, part: Part) -> None:
        """Add to `part` what is read now."""
        self._follow(targets, now_s)
        self.processes.look_around([t.pid for t in targets if t.pid is not None], now_s)
        for rank in self._ranks.values():
            if rank.gone_at is None and rank.target.pid is not None:
                used = self.processes.used(rank.target.pid)
                part.readings.append(rank.reading(SeriesKind.HOST_USED, self._capacity(rank), used))
        if now_s >= self._cgroups_at:
            self._cgroups_at = now_s + _CGROUP_S
            self._read_cgroups(part, now_s)

    def close(self) -> None:
        self.processes.close()

    def _follow(self, targets: Sequence[Target], now_s: float) -> None:
        living = {target.number: target for target in targets}
        for number, target in living.items():
            self._ranks.setdefault(number, _Rank(target)).target = target
        for number, rank in list(self._ranks.items()):
            if number in living:
                if now_s >= rank.find_at and rank.target.pid is not None:
                    rank.find_at = now_s + _FIND_S
                    rank.cgroup = self._known(self.find(rank.target.pid))
            elif rank.gone_at is None:
                rank.gone_at = now_s
                self._cgroups_at = now_s  # its cgroup may go with it, and with it the count
            elif now_s - rank.gone_at > _LINGER_S:
                del self._ranks[number]

    def _known(self, found: Cgroup | None) -> Cgroup | None:
        """The one that is open already, if it is the same."""
        if found is not None:
            self._kills.setdefault(found, None)
        return next((group for group in self._kills if group == found), None)

    def _capacity(self, rank: _Rank) -> int:
        return (rank.cgroup.limit if rank.cgroup else 0) or self.machine_bytes

    def _read_cgroups(self, part: Part, now_s: float) -> None:
        """Each cgroup once, however many ranks it holds. The kernel does not say which process it
        kills: it was of a rank if one has lost a process since, and else another user's."""
        inside: dict[Cgroup, list[_Rank]] = {}
        for rank in self._ranks.values():
            if rank.cgroup is not None:
                inside.setdefault(rank.cgroup, []).append(rank)
        for group, ranks in inside.items():
            if (found := group.read()) is None:
                continue
            before = self._kills[group]
            killed = 0 if before is None else found.oom_kills - before
            for rank in ranks:
                if rank.gone_at is None:
                    part.readings.append(
                        rank.reading(SeriesKind.CGROUP_USED, self._capacity(rank), found.used)
                    )
            if killed > 0:
                hit = [rank for rank in ranks if self.processes.has_lost(rank.target.pid)]
                part.events += [_kill(rank, group, killed, part.begin_ns) for rank in hit]
                if not hit and now_s - self._killed_at.setdefault(group, now_s) <= _LINGER_S:
                    continue
            self._killed_at.pop(group, None)
            self._kills[group] = found.oom_kills
        self._kills = {group: self._kills[group] for group in inside}


def _kill(rank: _Rank, group: Cgroup, killed: int, at_ns: int) -> MemoryEvent:
    processes = "a process" if killed == 1 else f"{killed} processes"
    return MemoryEvent(
        rank=rank.target.number,
        kind=MemoryEventKind.OOM_KILL,
        at_ns=NodeRawNs(at_ns),
        detail=f"the kernel killed {processes} in {group.name}",
    )
