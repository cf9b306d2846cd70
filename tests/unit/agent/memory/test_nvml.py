"""The real sampler of devices and the real pynvml over a scripted driver, built here."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from frd.model import MemoryEventKind, SeriesKind
from frd_agent.memory.gpu import nvml as nvml_module
from frd_agent.memory.gpu.gpus import Gpus, owners
from frd_agent.memory.gpu.nvml import RETRY_S, Devices, Look, Nvml
from frd_agent.memory.target import NO_SAMPLE, Part, Target
from frd_agent.node_time import raw_now
from tests.world import nvml
from tests.world.daemons import run_program, until
from tests.world.nvml import (
    DRIVER_NOT_LOADED,
    GIB,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNKNOWN,
    Driver,
    uuid,
)

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = nvml.build(tmp_path_factory.mktemp("nvml"))
    if folder is None:
        pytest.skip("no C compiler to build the scripted NVIDIA driver with")
    nvml.preload(folder)
    return folder


@pytest.fixture
def driver(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """One that has one device."""
    monkeypatch.setenv(nvml.SCRIPT, str(tmp_path / "driver.txt"))
    return Driver(tmp_path / "driver.txt", {uuid(0): (GIB, 80 * GIB)}).write()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


# -- what the driver says ----------------------------------------------------------------------


def test_eight_devices_with_their_processes(driver: Driver) -> None:
    """Used, total and who; a process on both lists counts once, one that is hidden is known."""
    for number in range(8):
        driver.devices[uuid(number)] = (number * GIB, 80 * GIB)
        driver.processes.append((uuid(number), "compute", 100 + number, number * GIB // 2))
    driver.processes += [(uuid(3), "graphics", 103, GIB), (uuid(3), "graphics", 7, -1)]
    driver.write()
    look = Nvml().look(0.0)
    assert [device.uuid for device in look.devices] == [uuid(number) for number in range(8)]
    third = look.devices[3]
    assert (third.used, third.total) == (3 * GIB, 80 * GIB)
    assert third.processes == {103: 3 * GIB // 2, 7: NO_SAMPLE}
    assert look.lost == {}


def test_processes_are_listed_when_use_has_changed_and_once_a_second(driver: Driver) -> None:
    """In between the last list is used: no other call costs the driver more."""
    nvml = Nvml()

    def processes(now_s: float) -> dict[int, int]:
        (device,) = nvml.look(now_s).devices
        return dict(device.processes)

    driver = replace(driver, processes=[(uuid(0), "compute", 100, GIB)]).write()
    assert processes(0.0) == {100: GIB}
    driver = replace(
        driver, processes=[(uuid(0), "compute", 100, GIB // 2), (uuid(0), "compute", 101, GIB // 2)]
    ).write()
    assert processes(0.9) == {100: GIB}
    assert processes(1.0) == {100: GIB // 2, 101: GIB // 2}
    driver.devices[uuid(0)] = (2 * GIB, 80 * GIB)
    driver = replace(driver, processes=[(uuid(0), "compute", 101, 2 * GIB)]).write()
    assert processes(1.1) == {101: 2 * GIB}


def test_instances_stand_in_the_place_of_their_device(driver: Driver) -> None:
    """A divided GPU is two devices with separate sizes, whose places need not be the first ones."""
    one, two = uuid(1, "MIG"), uuid(2, "MIG")
    driver = replace(
        driver,
        devices={uuid(0): (50 * GIB, 80 * GIB), uuid(9): (GIB, 80 * GIB)},
        instances={one: (0, 1, 5 * GIB, 20 * GIB), two: (0, 4, 6 * GIB, 40 * GIB)},
        processes=[(two, "compute", 100, 5 * GIB)],
    ).write()
    devices = Nvml().look(0.0).devices
    assert [(d.uuid, d.used, d.total) for d in devices] == [
        (one, 5 * GIB, 20 * GIB),
        (two, 6 * GIB, 40 * GIB),
        (uuid(9), GIB, 80 * GIB),
    ]
    assert devices[1].processes == {100: 5 * GIB}


def test_a_device_that_falls_off_the_bus_is_reported_once(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """The others go on; when it is back a minute later, so is its series."""
    nvml = Nvml()
    driver = replace(driver, devices={uuid(n): (GIB, 80 * GIB) for n in range(2)}).write()
    assert len(nvml.look(0.0).devices) == 2
    driver = replace(driver, errors={("DeviceGetMemoryInfo", uuid(1)): GPU_IS_LOST}).write()
    look = nvml.look(0.1)
    assert [device.uuid for device in look.devices] == [uuid(0)]
    assert list(look.lost) == [uuid(1)]
    assert nvml.look(0.2).lost == {}
    assert [line for line in said(caplog) if uuid(1) in line] == [
        f"NVIDIA driver: {uuid(1)}: lost: {look.lost[uuid(1)]}"
    ]
    driver.errors.clear()
    driver.write()
    assert len(nvml.look(RETRY_S - 1).devices) == 1
    assert len(nvml.look(RETRY_S).devices) == 2


def test_an_error_that_passes_is_no_loss(driver: Driver) -> None:
    """Twice unknown and then well again; three times in a row is lost."""
    nvml = Nvml()
    nvml.look(0.0)
    for errors, expected in (
        ({("DeviceGetMemoryInfo", "*"): UNKNOWN}, [({}, 0), ({}, 0)]),
        ({}, [({}, 1)]),
        ({("DeviceGetMemoryInfo", "*"): UNKNOWN}, [({}, 0), ({}, 0), ({uuid(0)}, 0)]),
    ):
        driver = replace(driver, errors=errors).write()
        for lost, devices in expected:
            look = nvml.look(1.0)
            assert (set(look.lost), len(look.devices)) == (set(lost), devices)


@pytest.mark.parametrize("code", [NO_PERMISSION, NOT_SUPPORTED])
def test_processes_that_may_not_be_seen_are_none(
    driver: Driver, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    """Permission denied, or a driver that keeps no such list: devices are still seen, and
    one line says what is not."""
    driver.processes = [(uuid(0), "compute", 100, GIB)]
    driver.errors = {
        (f"DeviceGet{which}RunningProcesses", "*"): code for which in ("Compute", "Graphics")
    }
    driver.write()
    nvml = Nvml()
    for now_s in (0.0, 1.0, 2.0):
        (device,) = nvml.look(now_s).devices
        assert (device.used, device.processes) == (GIB, {})
    (line,) = said(caplog)
    assert line.endswith("memory per process is not available")


def test_a_device_that_may_not_be_seen_is_not_lost(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """Permission denied for one of two devices: one line, no event."""
    driver = replace(
        driver,
        devices={uuid(n): (GIB, 80 * GIB) for n in range(2)},
        errors={("DeviceGetMemoryInfo", uuid(0)): NO_PERMISSION},
    ).write()
    nvml = Nvml()
    for _ in range(5):
        look = nvml.look(0.0)
        assert ([device.uuid for device in look.devices], look.lost) == ([uuid(1)], {})
    assert len(said(caplog)) == 1


def test_a_driver_that_is_loaded_later_is_found(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """Kubernetes installs drivers into running nodes: one line at first, devices a minute later."""
    caplog.set_level(logging.INFO)
    driver = replace(driver, errors={("InitWithFlags", "*"): DRIVER_NOT_LOADED}).write()
    nvml = Nvml()
    assert [nvml.look(float(second)).devices for second in range(3)] == [()] * 3
    (line,) = said(caplog)
    assert line.startswith("NVIDIA driver: ")
    assert line.endswith(": host memory only")
    driver.errors.clear()
    driver.write()
    assert len(nvml.look(RETRY_S).devices) == 1


def test_a_driver_that_was_reset_is_opened_again(driver: Driver) -> None:
    """Reset under our feet: its calls say that they are not initialized, of every device."""
    driver = replace(driver, devices={uuid(number): (GIB, 80 * GIB) for number in range(2)}).write()
    nvml = Nvml()
    nvml.look(0.0)
    driver = replace(driver, errors={("DeviceGetMemoryInfo", "*"): 1}).write()
    assert nvml.look(1.0) == Look()
    driver.errors.clear()
    driver.write()
    assert len(nvml.look(RETRY_S).devices) == 2


NO_DRIVER = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
from frd_agent.memory.gpu.nvml import Nvml
from frd_agent.node_time import raw_now
nvml = Nvml()
assert nvml.look(0.0) == nvml.look(100.0), "no devices"
"""


def test_a_machine_without_a_driver_gets_one_line(tmp_path: Path) -> None:
    """No library at all, asked twice."""
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has an NVIDIA driver")
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    done = run_program([sys.executable, "-c", NO_DRIVER], env=environment, check=True)
    assert done.stdout.splitlines() == [
        "NVIDIA driver: NVML Shared Library Not Found: host memory only"
    ]


# -- a driver that hangs -----------------------------------------------------------------------


@pytest.fixture
def devices(driver: Driver) -> Iterator[Devices]:
    found = Devices(Nvml())
    yield found
    driver = replace(driver, hangs="").write()


def test_an_answer_that_cannot_be_read_is_not_the_last(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    """pynvml raises an unforeseen error twice: one log line, and the thread goes on."""

    class Odd(Nvml):
        looks = 0

        def look(self, now_s: float) -> Look:
            self.looks += 1
            if self.looks < 3:
                raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "not a name")
            return super().look(now_s)

    odd = Devices(Odd())
    found: list[Look] = []

    def seen() -> bool:
        odd.ask()
        if (answer := odd.take(0.1)) is not None:
            found.append(answer)
        return bool(found and found[-1].devices)

    until(seen)
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


def test_a_call_that_hangs_delays_no_caller(driver: Driver, devices: Devices) -> None:
    """A caller waits no longer than it asked for; the late answer has the times of its call."""
    answers: list[Look] = []

    def answered() -> bool:
        devices.ask()
        answer = devices.take(0.1)
        answers.extend([answer] if answer else [])
        return bool(answer)

    until(answered)
    driver = replace(driver, hangs="DeviceGetMemoryInfo").write()
    until(devices.ask)
    assert devices.take(0.01) is None
    assert not devices.ask(), "one look at a time"
    until(lambda: devices.silent_s > 0.05)
    assert devices.take(0.0) is None
    asked_by_ns = raw_now()
    driver = replace(driver, hangs="").write()
    until(answered)
    late = answers[-1]
    assert late.begin_ns < asked_by_ns < late.end_ns
    assert len(late.devices) == 1
    until(lambda: devices.silent_s == 0)


def test_an_absent_driver_is_asked_rarely(
    driver: Driver, devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a driver, no thread is woken until it is time to look for one again, which finds the
    driver that was loaded since."""
    monkeypatch.setattr(nvml_module, "RETRY_S", 0.5)
    driver.errors["InitWithFlags", "*"] = DRIVER_NOT_LOADED
    driver.write()
    assert devices.ask()
    found = devices.take(5.0)
    assert found is not None
    assert not found.devices
    until(lambda: devices.silent_s == 0)
    assert not devices.ask()
    driver.errors.clear()
    driver.write()
    until(devices.ask)
    found = devices.take(5.0)
    assert found is not None
    assert len(found.devices) == 1
    until(devices.ask, within_s=0.4)


# -- whose memory it is ------------------------------------------------------------------------


def target(number: int, pid: int | None, said_pid: int, *uuids: str, attempt: int = 0) -> Target:
    return Target(number, attempt, pid, said_pid, uuids, Path("none"), moving=True)


def test_an_agent_of_the_host_knows_processes_by_their_number(proc_files: Path) -> None:
    """Ranks of the host, and of containers through NSpid: the number they call themselves. If two
    containers look alike and use the same device, neither is guessed."""
    for pid in (4711, 4712):
        (proc_files / str(pid)).mkdir()
        status = f"Name:\tpython\nPid:\t{pid}\nNSpid:\t{pid}\t12\nNSpgid:\t1\n"
        (proc_files / str(pid) / "status").write_text(status)
    ranks = [
        target(0, 100, 100, uuid(0)),
        target(1, None, 12, uuid(0)),
        target(2, None, 12, uuid(1)),
    ]
    assert owners(uuid(0), [100, 4711], ranks, sees_host=True) == {0: 100, 1: 4711}
    assert owners(uuid(1), [4712], ranks, sees_host=True) == {2: 4712}
    assert owners(uuid(0), [999, 998], ranks, sees_host=True) == {}, "of other processes"
    alike = [target(number, None, 12, uuid(0)) for number in (0, 1)]
    assert owners(uuid(0), [4711, 4712], alike, sees_host=True) == {}


def test_an_agent_in_a_container_trusts_no_number_alone() -> None:
    """The driver's 100 is the host's, ours is another; device and pid together are the rank's."""
    here = target(0, 100, 100, uuid(0))
    assert owners(uuid(1), [100, 5], [here], sees_host=False) == {}
    assert owners(uuid(0), [100, 5], [here], sees_host=False) == {0: 100}
    assert owners(uuid(0), [4711], [here], sees_host=False) == {0: 4711}, "alone on its device"
    assert owners(uuid(0), [4711, 5], [here], sees_host=False) == {}


def read(gpus: Gpus, look: Look, targets: list[Target]) -> Part:
    return gpus.read(replace(look, begin_ns=1, end_ns=2), targets)


def test_devices_become_series_of_the_ranks_that_use_them(driver: Driver, tmp_path: Path) -> None:
    """Two ranks share one GPU, one has an instance, one uses none, and a stranger has the rest. The
    GPU is lost: an event of the ranks that used it, one known by its own word and one only by its
    process; the others hear nothing."""
    instance = uuid(5, "MIG")
    driver.devices = {uuid(0): (30 * GIB, 80 * GIB), uuid(1): (9 * GIB, 80 * GIB)}
    driver.instances = {instance: (1, 0, 5 * GIB, 20 * GIB)}
    driver.processes = [
        (uuid(0), "compute", 100, 10 * GIB),
        (uuid(0), "compute", 101, 11 * GIB),
        (uuid(0), "compute", 9, 9 * GIB),
        (instance, "compute", 102, 4 * GIB),
    ]
    driver.write()
    gpus = Gpus(sees_host=True)
    ranks = [
        target(0, 100, 100, uuid(0)),
        target(1, 101, 101),
        target(2, 102, 102, uuid(5), attempt=3),
        target(3, 103, 103),
    ]
    nvml = Nvml()
    part = read(gpus, nvml.look(0.0), ranks)
    used, own = SeriesKind.DEVICE_USED, SeriesKind.PROCESS_USED
    assert {
        (r.attempt, r.series.rank, r.series.kind, r.series.device): r.value for r in part.readings
    } == {
        (0, 0, used, uuid(0)): 30 * GIB,
        (0, 1, used, uuid(0)): 30 * GIB,
        (0, 0, own, uuid(0)): 10 * GIB,
        (0, 1, own, uuid(0)): 11 * GIB,
        (3, 2, used, instance): 5 * GIB,
        (3, 2, own, instance): 4 * GIB,
    }
    assert {reading.capacity for reading in part.readings} == {80 * GIB, 20 * GIB}
    assert gpus.names[bytes.fromhex(uuid(5).removeprefix("GPU-").replace("-", ""))] == instance
    assert part.events == []
    driver = replace(driver, errors={("DeviceGetMemoryInfo", uuid(0)): GPU_IS_LOST}).write()
    look = nvml.look(0.1)
    part = read(gpus, look, ranks)
    assert [(event.rank, event.kind, event.device) for event in part.events] == [
        (0, MemoryEventKind.DEVICE_LOST, uuid(0)),
        (1, MemoryEventKind.DEVICE_LOST, uuid(0)),
    ]
    assert part.events[0].detail == look.lost[uuid(0)]
    assert {reading.series.rank for reading in part.readings} == {2}
