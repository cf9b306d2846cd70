"""The driver's devices as series of the ranks that use them.

Maps the pids that the driver reports, which are those of the host, to ranks.

The driver numbers processes as the host does. An agent in the host's pid namespace sees the same
numbers, and for a rank in a container also the pid inside it (NSpid). An agent in a container sees
other numbers, or the same ones by chance, so there only the pair counts that the rank reports
itself, its device and its pid. If a device has one process and one rank reports that it uses the
device, they match. Nothing is guessed: an unmatched process counts only in the device's total.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from frd.model import MemoryEvent, MemoryEventKind, NodeRawNs, SeriesInfo, SeriesKind
from frd_agent.memory.gpu.nvml import DeviceReading, Look
from frd_agent.memory.target import Part, Reading, Target
from frd_agent.proc import inner_pid


def device_key(uuid: str) -> str:
    """A device's UUID without its kind: a rank cannot distinguish a GPU from an instance."""
    return uuid.partition("-")[2]


def users(uuid: str, targets: Iterable[Target]) -> list[Target]:
    """The ranks that report that they use the device."""
    key = device_key(uuid)
    return [target for target in targets if key in map(device_key, target.devices)]


def owners(
    uuid: str, pids: Sequence[int], targets: Sequence[Target], *, sees_host: bool
) -> dict[int, int]:
    """By number of the rank, which of the device's processes it is. `sees_host`: /proc shows
    the processes of the host."""
    claiming = users(uuid, targets)
    found: dict[int, int] = {}
    for pid in pids:
        candidates = [target for target in targets if sees_host and target.pid == pid]
        if not candidates:
            inner = inner_pid(pid) if sees_host else pid
            candidates = [target for target in claiming if target.said_pid == inner]
        if len(candidates) == 1:
            found.setdefault(candidates[0].number, pid)
    if not found and len(pids) == 1 and len(claiming) == 1:
        found[claiming[0].number] = pids[0]
    return found


@dataclass(frozen=True, slots=True)
class _Use:
    """Which ranks, by number, use a device."""

    known: object
    """The processes and the ranks from which this follows."""
    ranks: list[int]
    owned: dict[int, int]
    """By rank, which of the device's processes is the rank's."""


class Gpus:
    """Lives on one thread."""

    def __init__(self, *, sees_host: bool) -> None:
        """`sees_host`: as of `owners`."""
        self._sees_host = sees_host
        self.devices: tuple[DeviceReading, ...] = ()
        """Of the last look."""
        self.names: dict[bytes, str] = {}
        """How the driver spells the UUIDs of its devices."""
        self._targets: dict[int, Target] = {}
        self._uses: dict[str, _Use] = {}
        """By device."""

    def read(self, look: Look, targets: Sequence[Target]) -> Part:
        self._targets = {target.number: target for target in targets}
        self.devices = look.devices
        part = Part(look.begin_ns, look.end_ns)
        ranks = [(t.number, t.attempt, t.pid, t.said_pid, t.devices) for t in targets]
        for device in self.devices:
            known = frozenset(device.processes), ranks
            use = self._uses.get(device.uuid)
            if use is None or use.known != known:
                use = self._uses[device.uuid] = self._learn(device, known)
            part.readings += self._readings(device, use)
        for uuid, why in look.lost.items():
            part.events += self._lost(uuid, why, look.end_ns)
        return part

    def _readings(self, device: DeviceReading, use: _Use) -> Iterator[Reading]:
        for number in use.ranks:
            yield self._reading(number, SeriesKind.DEVICE_USED, device, device.used)
        for number, pid in use.owned.items():
            used = device.processes[pid]
            yield self._reading(number, SeriesKind.PROCESS_USED, device, used)

    def _reading(self, number: int, kind: SeriesKind, device: DeviceReading, used: int) -> Reading:
        series = SeriesInfo(number, kind, device.uuid)
        return Reading(self._targets[number].attempt, series, device.total, used)

    def _learn(self, device: DeviceReading, known: object) -> _Use:
        uuid, targets = device.uuid, list(self._targets.values())
        digits = device_key(uuid).replace("-", "")
        if len(digits) == 32:
            self.names[bytes.fromhex(digits)] = uuid
        owned = owners(uuid, list(device.processes), targets, sees_host=self._sees_host)
        using = owned.keys() | {target.number for target in users(uuid, targets)}
        return _Use(known, sorted(using), dict(sorted(owned.items())))

    def _lost(self, uuid: str, why: str, at_ns: int) -> list[MemoryEvent]:
        use = self._uses.pop(uuid, None)
        using = {target.number for target in users(uuid, self._targets.values())}
        using |= set(use.ranks) if use else set()
        return [
            MemoryEvent(number, MemoryEventKind.DEVICE_LOST, NodeRawNs(at_ns), uuid, detail=why)
            for number in sorted(using & self._targets.keys())
        ]
