"""The driver's devices as series of the ranks that use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from frd.model import MemoryEvent, MemoryEventKind, NodeNs, SeriesInfo, SeriesKind
from frd_agent.memory.gpu.devices import Answer
from frd_agent.memory.gpu.nvml import DeviceReading
from frd_agent.memory.gpu.owners import PidSpace, device_key, owners, users
from frd_agent.memory.target import Part, Reading, Target


@dataclass(frozen=True, slots=True)
class _Use:
    """Which ranks use a device, as series; the same objects until something changes."""

    pids: frozenset[int]
    device: list[tuple[int, SeriesInfo]]
    """With the attempt of each."""
    processes: list[tuple[int, SeriesInfo, int]]
    """With attempt and pid."""


class Gpus:
    """Lives on one thread."""

    def __init__(self, space: PidSpace) -> None:
        self._space = space
        self.devices: tuple[DeviceReading, ...] = ()
        """Of the last look."""
        self.names: dict[bytes, str] = {}
        """How the driver spells the UUIDs of its devices."""
        self._targets: dict[int, Target] = {}
        self._uses: dict[str, _Use] = {}
        """By device."""

    def read(self, answer: Answer, targets: Sequence[Target]) -> Part:
        self._follow(targets)
        self.devices = answer.look.devices
        part = Part(answer.begin_ns, answer.end_ns)
        for device in self.devices:
            part.readings += self._readings(device)
        for uuid, why in answer.look.lost.items():
            part.events += self._lost(uuid, why, answer.end_ns)
        return part

    def _follow(self, targets: Sequence[Target]) -> None:
        """Who uses what is found out anew when there is a reason for it."""
        known = {target.number: target for target in targets}
        if known.keys() != self._targets.keys() or any(
            _who(target) != _who(self._targets[number]) for number, target in known.items()
        ):
            self._uses.clear()
        self._targets = known

    def _readings(self, device: DeviceReading) -> Iterator[Reading]:
        use = self._uses.get(device.uuid)
        if use is None or use.pids != device.processes.keys():
            use = self._uses[device.uuid] = self._learn(device)
        for attempt, series in use.device:
            yield Reading(attempt, series, device.total, device.used)
        for attempt, series, pid in use.processes:
            yield Reading(attempt, series, device.total, device.processes[pid])

    def _learn(self, device: DeviceReading) -> _Use:
        uuid, targets = device.uuid, list(self._targets.values())
        digits = device_key(uuid).replace("-", "")
        if len(digits) == 32:
            self.names[bytes.fromhex(digits)] = uuid
        owned = owners(uuid, list(device.processes), targets, self._space)
        using = owned.keys() | {target.number for target in users(uuid, targets)}
        attempt_of = {number: target.attempt for number, target in self._targets.items()}
        return _Use(
            pids=frozenset(device.processes),
            device=[
                (attempt_of[number], SeriesInfo(number, SeriesKind.DEVICE_USED, uuid))
                for number in sorted(using)
            ],
            processes=[
                (attempt_of[number], SeriesInfo(number, SeriesKind.PROCESS_USED, uuid), pid)
                for number, pid in sorted(owned.items())
            ],
        )

    def _lost(self, uuid: str, why: str, at_ns: int) -> list[MemoryEvent]:
        use = self._uses.pop(uuid, None)
        using = {target.number for target in users(uuid, self._targets.values())}
        using |= {series.rank for _, series in use.device} if use else set()
        return [
            MemoryEvent(number, MemoryEventKind.DEVICE_LOST, NodeNs(at_ns), uuid, detail=why)
            for number in sorted(using & self._targets.keys())
        ]


def _who(target: Target) -> tuple[int, int | None, int, tuple[str, ...]]:
    return target.attempt, target.pid, target.said_pid, target.devices
