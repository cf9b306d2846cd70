"""When the tap starts no thread, or no worker server: limits of a scripted process."""

from __future__ import annotations

import _thread
import resource
import sys

import pytest

from frd_agent import tap

SERVER = 9
GIB, MIB = 1 << 30, 1 << 20
FIRST = tap.FIRST_PID_NAMESPACE


class System:
    """What the kernel shows of a process far from every limit; a test changes some of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = {
            "/proc/loadavg": "0.1 0.2 0.3 1/5000 4000",
            "/proc/sys/kernel/threads-max": "190000",
            "/proc/sys/kernel/pid_max": "32768",
            "/proc/self/cgroup": "4:memory:/a\n0::/slice/job\n",
            "/sys/fs/cgroup/slice/job/pids.max": "max",
            "/proc/self/status": "VmSize: 2000000 kB VmData: 900000 kB VmLck: 0 kB",
            "/proc/sys/vm/overcommit_memory": "0",
            "/proc/sys/vm/max_map_count": "65530",
            "/proc/self/maps": "map\n" * 1_000,
        }
        self.limits: dict[str, int] = {"RLIMIT_STACK": 8 * MIB}
        self.namespace = FIRST
        self.threads = 20
        monkeypatch.setattr(tap, "_content", lambda path, _=0: self.files.get(path, "").encode())
        monkeypatch.setattr(tap, "_soft", lambda limit: self.limits.get(limit, -1))
        monkeypatch.setattr(tap, "pid_namespace", lambda: self.namespace)
        monkeypatch.setattr(tap, "_threads_of_user", lambda: self.threads)

    def cgroup(self, path: str, most: int, used: int) -> None:
        folder = f"/sys/fs/cgroup{path}"
        self.files |= {f"{folder}/pids.max": f"{most}", f"{folder}/pids.current": f"{used}"}


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    return System(monkeypatch)


def server() -> str:
    return tap.shortage(SERVER, is_server=True)


def thread() -> str:
    return tap.shortage(1)


def test_far_from_all_limits(system: System) -> None:
    """Unlimited, as on most machines: both start."""
    assert (server(), thread()) == ("", "")


@pytest.mark.parametrize(
    ("limit", "used", "starts"),
    [
        (100, 27, True),  # 64 remain
        (100, 28, False),
        (1000, 741, True),  # a quarter remains
        (1000, 742, False),
    ],
)
def test_threads_that_must_remain(system: System, limit: int, used: int, starts: bool) -> None:
    """Of a user, of the cgroup, of its parent and of the kernel: 64, and a quarter."""
    system.limits["RLIMIT_NPROC"], system.threads = limit, used
    assert (server() == "") is starts
    system.limits.clear()
    for folder in ("/slice/job", "/slice", ""):
        system.cgroup(folder, limit, used)
        assert (server() == "") is starts, folder
        assert (f"{folder}/pids.max: {used} of {limit} in use" in server()) is not starts
        system.cgroup(folder, 10 * limit, used)
    for name in ("threads-max", "pid_max"):
        path, before = f"/proc/sys/kernel/{name}", system.files[f"/proc/sys/kernel/{name}"]
        system.files |= {path: str(limit), "/proc/loadavg": f"0 0 0 1/{used} 9"}
        assert (server() == "") is starts, name
        system.files[path] = before


def test_all_ranks_of_a_node_start_together(system: System) -> None:
    """Each sees the limit before the others have started their servers. Address space is of one."""
    system.cgroup("/slice/job", 1000, 741 - 7 * SERVER)
    assert tap.shortage(SERVER, is_server=True, processes=8) == ""
    assert "and 81 more would leave" in tap.shortage(SERVER, is_server=True, processes=9)
    system.files.pop("/sys/fs/cgroup/slice/job/pids.max")
    system.limits["RLIMIT_AS"] = 11 * GIB
    assert tap.shortage(SERVER, is_server=True, processes=64) == ""


def test_the_thread_of_the_tap_leaves_a_number(system: System) -> None:
    """It is one thread, so it leaves 64, and no quarter."""
    system.limits["RLIMIT_NPROC"], system.threads = 1000, 935
    assert thread() == ""
    system.threads = 936
    assert thread().startswith("RLIMIT_NPROC: 936 of 1000 in use, and 1 more would leave less")


def test_threads_of_other_containers_are_not_seen(system: System) -> None:
    """In a pid namespace, what is seen and the pool must be below a quarter of the limit. Without
    a limit they do not matter."""
    system.namespace, system.limits["RLIMIT_NPROC"] = FIRST - 7, 400
    for system.threads, starts in ((91, True), (92, False)):
        assert (server() == "") is starts
    assert thread() == ""
    system.limits.clear()
    assert server() == ""


@pytest.mark.parametrize(("limit", "used"), [("RLIMIT_AS", "VmSize"), ("RLIMIT_DATA", "VmData")])
def test_address_space_that_must_remain(system: System, limit: str, used: str) -> None:
    """A quarter and 8 GiB, after nine stacks; the thread of the tap leaves 1 GiB."""
    for most, already, starts in (
        (10 * GIB, 2 * GIB - 72 * MIB, True),
        (10 * GIB, 2 * GIB - 71 * MIB, False),
        (40 * GIB, 30 * GIB - 72 * MIB, True),
        (40 * GIB, 30 * GIB - 71 * MIB, False),
    ):
        system.limits[limit] = most
        system.files["/proc/self/status"] = f"{used}: {already >> 10} kB"
        assert (server() == "") is starts
        assert thread() == ""
    system.files["/proc/self/status"] = f"{used}: {39 * GIB >> 10} kB"
    assert "of 42949672960 in use" in thread()


def test_the_heaps_of_many_threads(system: System) -> None:
    """Each thread that answers reserves 64 MiB: of 193 threads they are more than the 8 GiB."""
    system.limits["RLIMIT_AS"] = 22 * GIB
    assert tap.shortage(193, is_server=True).startswith("RLIMIT_AS: ")
    system.limits["RLIMIT_AS"] = 30 * GIB
    assert tap.shortage(193, is_server=True) == ""


def test_locked_and_committed_memory(system: System) -> None:
    """A program that locks its pages, and a kernel that promises no more than it has, to all ranks
    of the node together."""
    system.limits["RLIMIT_MEMLOCK"] = 64 * MIB
    assert server() == ""
    system.files["/proc/self/status"] = "VmLck: 4000 kB"
    assert server().startswith("RLIMIT_MEMLOCK: ")
    assert thread() == ""
    system.limits.clear()
    system.files["/proc/meminfo"] = "CommitLimit: 20000000 kB Committed_AS: 19000000 kB"
    assert server() == ""
    system.files["/proc/sys/vm/overcommit_memory"] = "2"
    assert server().startswith("CommitLimit of /proc/meminfo: ")
    system.files["/proc/meminfo"] = "CommitLimit: 20000000 kB Committed_AS: 11500000 kB"
    assert server() == ""
    assert tap.shortage(SERVER, is_server=True, processes=4).startswith("CommitLimit ")


def test_stacks_mappings_and_files(system: System) -> None:
    """Small stacks, many mappings, few descriptors."""
    system.files["/proc/self/maps"] = "map\n" * 64_500
    assert server().startswith("vm.max_map_count: 64500 of 65530 in use")
    system.files["/proc/self/maps"] = ""
    system.limits["RLIMIT_NOFILE"] = 70
    assert server().startswith("RLIMIT_NOFILE: ")
    system.limits["RLIMIT_STACK"] = 128 << 10
    for why in (server(), thread()):
        assert why == "stacks of threads have 131072 bytes: less than 262144"


def test_a_program_without_room_gets_no_thread(
    system: System, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line says why, and nothing else happens."""
    system.cgroup("/slice/job", 100, 99)
    started: list[object] = []
    monkeypatch.setattr(_thread, "start_new_thread", lambda *args: started.append(args))
    monkeypatch.setitem(sys.modules, "_frd_tap", tap)
    monkeypatch.setattr(tap, "_installed_pid", 0)
    monkeypatch.setattr(tap, "_complained_pid", 0)
    tap.install()
    assert not started
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("frd: warning: tap: install: /sys/fs/cgroup/slice/job/pids.max: 99 of")


def test_unreadable_files_are_no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox that shows no limits. Where nothing at all can be read, as in a process without a
    free descriptor, there is no server."""
    shown = {"/proc/self/status": b"Name: python"}
    monkeypatch.setattr(tap, "_content", lambda path, _=0: shown.get(path, b""))
    assert (server(), thread()) == ("", "")
    shown.clear()
    assert server() == "/proc cannot be read, so no limit is known"


def test_soft_limits_are_read() -> None:
    """Those of this process, as the kernel shows them."""
    for name in tap._LIMITS:
        soft = resource.getrlimit(getattr(resource, name))[0]
        assert tap._soft(name) == (soft if soft != resource.RLIM_INFINITY else -1)
