"""Device memory from the NVIDIA driver: memory used, by which process, and lost devices.

Uses pynvml, which is imported only here. Every state may change: a missing driver may be loaded
later, a driver that was reset is opened again, and a device that falls off the bus is reported once
and searched for again. A call into the driver may hang for minutes, or forever if a device has
failed. It must not block other work, and it cannot be cancelled: so a helper thread makes the calls
(`Devices`), callers wait for an answer with a timeout, and a late answer keeps its own timestamp.

Process lists cost the driver more than all other calls. They are read once a second, and when the
used memory of the device has changed at all, which is rare in training because the allocator keeps
its memory. In between, the last list is used.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from frd_agent.inspection.reading.memory import Helper
from frd_agent.memory.target import NO_SAMPLE
from frd_agent.node_time import raw_now

RETRY_S: Final = 60.0
"""Between two attempts to open the driver, or to find devices that have come."""
_PROCESSES_S: Final = 1.0
_FAILURES: Final = 3
"""Unforeseen errors in a row after which a device counts as lost."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceReading:
    uuid: str
    """Of a GPU (``GPU-...``) or of a MIG instance (``MIG-...``)."""
    used: int
    total: int
    processes: Mapping[int, int]
    """Bytes by pid, as the driver numbers processes; `NO_SAMPLE` where it does not say."""


@dataclass(frozen=True, slots=True)
class Look:
    """All devices, read together."""

    devices: tuple[DeviceReading, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)
    """Devices lost since the last read: reason by UUID."""
    begin_ns: int = 0
    """The raw clock, as `end_ns`: they were read in between."""
    end_ns: int = 0


@dataclass(slots=True)
class _Device:
    handle: Any
    uuid: str
    used: int = NO_SAMPLE
    processes: dict[int, int] = field(default_factory=dict)
    processes_at: float = float("-inf")
    failures: int = 0


class Nvml:
    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[_Device] = []
        self._open_at = float("-inf")
        self._said: set[str] = set()

    @property
    def blind_until_s(self) -> float:
        """Until then, looks find nothing."""
        return 0.0 if self._devices else self._open_at

    def look(self, now_s: float) -> Look:
        """Never raises; without a driver there are no devices."""
        if now_s >= self._open_at:
            self._open_at = now_s + RETRY_S
            self._open()
        lost: dict[str, str] = {}
        readings = []
        for device in list(self._devices):
            if self._nvml is None:
                break  # closed at the device before
            try:
                readings.append(self._read(device, now_s))
                device.failures = 0
            except self._nvml.NVMLError as error:
                if (why := self._judge(device, error)) is not None:
                    lost[device.uuid] = why
                    self._devices.remove(device)
        return Look(tuple(readings), lost)

    # -- coming and going ----------------------------------------------------------------------

    def _open(self) -> None:
        if self._nvml is None:
            try:
                import pynvml
            except ImportError as error:
                self._say_once(logging.INFO, f"{error}: host memory only")
                return
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError as error:
                self._say_once(logging.INFO, f"{_line(error)}: host memory only")
                return
            self._nvml = pynvml
        try:
            known = {device.uuid: device for device in self._devices}
            count = self._nvml.nvmlDeviceGetCount()
            found = [device for index in range(count) for device in self._at(index)]
            self._devices = [known.get(device.uuid, device) for device in found]
        except self._nvml.NVMLError as error:
            self._say_once(logging.WARNING, f"its devices cannot be listed: {_line(error)}")
            self._close()

    def _close(self) -> None:
        """Close the driver; a later look opens it again."""
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
        self._nvml = None
        self._devices = []

    def _at(self, index: int) -> list[_Device]:
        """The device, or in its place the instances that it is divided into."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            instances = self._instances(handle)
            return [
                _Device(one, str(nvml.nvmlDeviceGetUUID(one)))
                for one in (instances if instances is not None else [handle])
            ]
        except nvml.NVMLError as error:
            self._say_once(logging.WARNING, f"device {index}: {_line(error)}")
            return []

    def _instances(self, handle: Any) -> list[Any] | None:
        """None when the device is not divided."""
        nvml = self._nvml
        try:
            if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
                return None
            most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
            return None
        instances = []
        for index in range(most):
            try:
                instances.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
            except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
                continue  # places need not be filled in order
        return instances

    # -- one device ----------------------------------------------------------------------------

    def _read(self, device: _Device, now_s: float) -> DeviceReading:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(device.handle)
        used, total = int(memory.used), int(memory.total)
        if used != device.used or now_s - device.processes_at >= _PROCESSES_S:
            device.processes = self._processes(device)
            device.processes_at = now_s
            device.used = used
        return DeviceReading(device.uuid, used, total, device.processes)

    def _processes(self, device: _Device) -> dict[int, int]:
        """By pid. A process that computes and renders is on both lists with the same value."""
        nvml = self._nvml
        used: dict[int, int] = {}
        for ask in (
            nvml.nvmlDeviceGetComputeRunningProcesses,
            nvml.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            for process in self._listed(ask, device):
                value = process.usedGpuMemory
                used_bytes = NO_SAMPLE if value is None else int(value)
                used[process.pid] = max(used_bytes, used.get(process.pid, NO_SAMPLE))
        return used

    def _listed(self, ask: Callable[[Any], list[Any]], device: _Device) -> list[Any]:
        nvml = self._nvml
        try:
            return ask(device.handle)
        except (
            nvml.NVMLError_NoPermission,
            nvml.NVMLError_NotSupported,
            nvml.NVMLError_FunctionNotFound,
        ) as error:
            self._say_once(
                logging.WARNING,
                f"{device.uuid}: {_line(error)}: memory per process is not available",
            )
            return []

    def _judge(self, device: _Device, error: Exception) -> str | None:
        """Why the device counts as lost; None when it may come back at the next look."""
        nvml, why = self._nvml, _line(error)
        match error:
            case nvml.NVMLError_GpuIsLost() | nvml.NVMLError_ResetRequired():
                pass
            case nvml.NVMLError_NoPermission() | nvml.NVMLError_NotSupported():
                self._say_once(logging.WARNING, f"{device.uuid}: {why}: not seen")
                return None
            case nvml.NVMLError_Uninitialized():
                self._close()
                return None
            case _:
                device.failures += 1
                if device.failures < _FAILURES:
                    return None
        log.warning("NVIDIA driver: %s: lost: %s", device.uuid, why)
        return why

    def _say_once(self, level: int, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            log.log(level, "NVIDIA driver: %s", message)


def _line(error: object) -> str:
    return " ".join(str(error).split())


HANGS_S: Final = 5.0
"""A read that takes longer than this is logged."""
SHARE: Final = 1 / 100
"""Looks become less frequent if they would use more than this share of a core."""


class Devices:
    """Calls the driver on a thread, and notices a call that hangs."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._helper = Helper(name="frd-nvml")
        self._answers: queue.SimpleQueue[Look] = queue.SimpleQueue()
        self._asked_at = self._rest_until = 0.0
        self._failing = False

    def ask(self) -> bool:
        """Request a look at all devices; False while one is in progress, or a rest after it."""
        now_s = time.monotonic()
        if self._helper.hangs or now_s < self._rest_until:
            return False
        self._asked_at = now_s
        self._helper.start(self._look)
        return True

    def take(self, timeout_s: float) -> Look | None:
        """The next look, each once; waits if one is in progress. None if there is none yet."""
        try:
            return self._answers.get(self._helper.hangs, timeout_s)
        except queue.Empty:
            return None

    @property
    def silent_s(self) -> float:
        """For how long the driver has not answered."""
        return time.monotonic() - self._asked_at if self._helper.hangs else 0.0

    def _look(self) -> None:
        before, begin_ns = time.thread_time(), raw_now()
        try:
            look = self._nvml.look(time.monotonic())
        except Exception:  # pynvml cannot read the driver's answer; the next look may work
            if not self._failing:
                log.exception("NVIDIA driver: an answer could not be read")
            self._failing, look = True, Look()
        rest_until_s = time.monotonic() + (time.thread_time() - before) / SHARE
        self._rest_until = max(rest_until_s, self._nvml.blind_until_s)
        self._answers.put(replace(look, begin_ns=begin_ns, end_ns=raw_now()))
