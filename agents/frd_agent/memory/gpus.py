"""The driver's devices as series of the ranks that use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frd.model import MemoryEvent, MemoryEventKind, NodeNs, SeriesInfo, SeriesKind
from frd_agent.memory.devices import Answer
from frd_agent.memory.nvml import DeviceReading
from frd_agent.memory.owners import PidSpace, device_key, owners, users
from frd_agent.memory.target import Part, Reading, Target


class Gpus:
    """Lives on one thread."""

    def __init__(self, space: PidSpace) -> None:
        self._space = space
        self.devices: tuple[DeviceReading, ...] = ()
        """Of the last look."""
        self.names: dict[bytes, str] = {}
        """How the driver spells the UUIDs of its devices."""
        self._targets: dict[int, Target] = {}
        self._pids: dict[str, tuple[int, ...]] = {}
        self._owners: dict[str, dict[int, int]] = {}
        """By device: by number of a rank, its pid."""
        self._series: dict[tuple[int, SeriesKind, str], SeriesInfo] = {}

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
        known = {target.number: target for target in targets}
        who = {number: (t.pid, t.said_pid, t.devices) for number, t in known.items()}
        if who != {n: (t.pid, t.said_pid, t.devices) for n, t in self._targets.items()}:
            self._pids.clear()
            self._series = {key: one for key, one in self._series.items() if key[0] in known}
        self._targets = known

    def _readings(self, device: DeviceReading) -> Iterator[Reading]:
        uuid = device.uuid
        if self._pids.get(uuid) != (pids := tuple(device.processes)):
            self._pids[uuid] = pids
            self._learn(device, pids)
        owned = self._owners[uuid]
        using = owned.keys() | {target.number for target in users(uuid, self._targets.values())}
        for number in sorted(using & self._targets.keys()):
            attempt = self._targets[number].attempt
            series = self._one(number, SeriesKind.DEVICE_USED, uuid)
            yield Reading(attempt, series, device.total, device.used)
            if number in owned:
                series = self._one(number, SeriesKind.PROCESS_USED, uuid)
                yield Reading(attempt, series, device.total, device.processes[owned[number]])

    def _learn(self, device: DeviceReading, pids: Sequence[int]) -> None:
        targets = list(self._targets.values())
        self._owners[device.uuid] = owners(device.uuid, pids, targets, self._space)
        digits = device_key(device.uuid).replace("-", "")
        if len(digits) == 32:
            self.names[bytes.fromhex(digits)] = device.uuid

    def _one(self, number: int, kind: SeriesKind, uuid: str) -> SeriesInfo:
        """The same object again and again: tables compare by identity first."""
        key = number, kind, uuid
        return self._series.setdefault(key, SeriesInfo(number, kind, uuid))

    def _lost(self, uuid: str, why: str, at_ns: int) -> list[MemoryEvent]:
        using = self._owners.pop(uuid, {}).keys() | {
            target.number for target in users(uuid, self._targets.values())
        }
        return [
            MemoryEvent(number, MemoryEventKind.DEVICE_LOST, NodeNs(at_ns), uuid, detail=why)
            for number in sorted(using & self._targets.keys())
        ]
