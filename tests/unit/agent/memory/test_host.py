"""Host memory from /proc and cgroups: laid out by hand, and of real processes."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from frd.model import MemoryEventKind, SeriesKind
from frd_agent.memory.host import cgroup
from frd_agent.memory.host.node_memory import NodeMemory
from frd_agent.memory.host.processes import SCAN_S, ProcessMemory, total_bytes
from frd_agent.memory.target import NO_SAMPLE, Part, Target
from frd_agent.proc import read_stat

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PAGE = mmap.PAGESIZE
STATUS = """Name:\tpython
Pid:\t{pid}
NSpid:\t{pid}
VmRSS:\t  999 kB
RssAnon:\t{anon:8d} kB
RssFile:\t{file:8d} kB
RssShmem:\t{shmem:8d} kB
VmSwap:\t{swap:8d} kB
Threads:\t4
"""


class Proc:
    """A /proc of a few processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "self").mkdir(parents=True)
        (path / "meminfo").write_text(f"MemTotal:       {64 * GIB // KIB} kB\nMemFree: 1 kB\n")

    def rank(self, pid: int, anon: int, shmem: int = 0, swap: int = 0, file: int = 7) -> None:
        """Sizes in KiB."""
        text = STATUS.format(pid=pid, anon=anon, file=file, shmem=shmem, swap=swap)
        self.write(pid, "status", text)
        self.child(pid, 1, private=anon * KIB // PAGE)

    def child(
        self, pid: int, parent: int, private: int, shared: int = 50, stack: int = 7777
    ) -> None:
        """Sizes in pages; forked, unless its stack is another one."""
        zeros = " 0" * 23
        self.write(pid, "stat", f"{pid} (a (b) c) S {parent}{zeros} {stack} 0 0\n")
        self.write(pid, "statm", f"9999 {private + shared} {shared} 1 0 100 0\n")

    def write(self, pid: int | str, name: str, text: str) -> None:
        file = self.path / str(pid) / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


@pytest.fixture
def proc(proc_files: Path) -> Proc:
    return Proc(proc_files)


@pytest.fixture
def host(proc: Proc) -> Iterator[ProcessMemory]:
    found = ProcessMemory()
    yield found
    found.close()


def test_a_status_is_read_again_when_pages_have_changed(proc: Proc, host: ProcessMemory) -> None:
    """Ten looks a second at a rank whose memory rests: each costs one small reading."""
    proc.rank(10, anon=1000)
    host.look_around([10], 0.0)
    assert host.used(10) == 1000 * KIB
    with patch("os.pread", wraps=os.pread) as read:
        assert host.used(10) == 1000 * KIB
    assert read.call_count == 1
    proc.rank(10, anon=2000)
    assert host.used(10) == 2000 * KIB


def test_pages_of_files_do_not_count(proc: Proc, host: ProcessMemory) -> None:
    """Anonymous, shared and swapped memory is the rank's; a mapped dataset is the kernel's."""
    proc.rank(10, anon=1000, shmem=200, swap=30, file=10**6)
    host.look_around([10], 0.0)
    assert host.used(10) == 1230 * KIB


def test_children_count_with_what_they_do_not_share(proc: Proc, host: ProcessMemory) -> None:
    """A forked loader has its parent's 1,000 pages and 20 more when it is first seen, and what it
    grows by later; so has its own child. Another rank below is not counted twice."""
    proc.rank(10, anon=1000 * PAGE // KIB)
    proc.rank(20, anon=2000)
    proc.child(20, 10, private=0)
    proc.child(11, 10, private=1020)
    proc.child(12, 11, private=600)
    own = 1000 * PAGE
    host.look_around([10, 20], 0.0)
    assert host.used(10) == own + 20 * PAGE
    proc.child(11, 10, private=1023)
    proc.child(12, 11, private=660, shared=900)
    assert host.used(10) == own + 83 * PAGE
    proc.child(12, 11, private=1)
    assert host.used(10) == own + 23 * PAGE, "what was given back is not counted against it"
    assert host.used(20) == 2000 * KIB


def test_a_spawned_child_shares_nothing(proc: Proc, host: ProcessMemory) -> None:
    """After an exec all of its pages are its own; a stack that may not be read proves no exec."""
    proc.rank(10, anon=1000 * PAGE // KIB)
    proc.child(11, 10, private=300, stack=8888)
    host.look_around([10], 0.0)
    assert host.used(10) == 1300 * PAGE
    proc.child(10, 1, private=1000, stack=0)
    proc.child(12, 10, private=900, stack=0)
    host.look_around([10], 10.0)
    assert host.used(10) == 1300 * PAGE


def test_children_are_looked_for_now_and_then(proc: Proc, host: ProcessMemory) -> None:
    """A scan every two seconds, or when ranks come and go; in between the known ones are read."""
    proc.rank(10, anon=1000)
    host.look_around([10], 100.0)
    proc.child(11, 10, private=252)
    host.look_around([10], 100.0 + SCAN_S / 2)
    assert host.used(10) == 1000 * KIB
    host.look_around([10], 100.0 + SCAN_S)
    assert host.used(10) == 1000 * KIB + 2 * PAGE


def test_processes_that_are_no_ranks_are_read_once(proc: Proc, host: ProcessMemory) -> None:
    """A busy machine has hundreds. One below an ended process is read again: the rank may be its
    parent now."""
    proc.rank(10, anon=0)
    for pid, parent in ((11, 10), (12, 11), (20, 1), (21, 20)):
        proc.child(pid, parent, private=0)
    proc.child(1, 0, private=0)
    host.look_around([10], 0.0)
    shutil.rmtree(proc.path / "20")
    proc.child(21, 10, private=51)
    with patch("frd_agent.proc.read_stat", wraps=read_stat) as read:
        host.look_around([10], SCAN_S)
    assert sorted(call.args[0] for call in read.call_args_list) == [1, 10, 11, 12, 21]
    assert host.used(10) == 51 * PAGE


def test_a_process_that_is_gone_has_no_memory(proc: Proc, host: ProcessMemory) -> None:
    """No such process; a zombie; a kernel without these counters."""
    proc.write(11, "status", "Name:\tx\nState:\tZ (zombie)\n")
    host.look_around([10, 11], 0.0)
    assert (host.used(10), host.used(11), host.used(12)) == (NO_SAMPLE,) * 3


def test_real_processes_are_read_and_let_go() -> None:
    """Once a child is gone, or is no rank any more, nothing of it stays open."""
    before = set(os.listdir("/proc/self/fd"))
    host = ProcessMemory()
    with subprocess.Popen(["sleep", "300"]) as child:
        host.look_around([os.getpid(), child.pid], 0.0)
        assert 0 < host.used(child.pid) < 10 * MIB < host.used(os.getpid())
        host.look_around([os.getpid()], 0.1)
        host.look_around([os.getpid(), child.pid], 0.2)
        child.kill()
    assert host.used(child.pid) == NO_SAMPLE
    host.close()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_child_that_was_killed_is_lost() -> None:
    """A real child of this process that has not been waited for."""
    host = ProcessMemory()
    child = subprocess.Popen(["sleep", "60"])
    host.look_around([os.getpid()], 0.0)
    assert not host.has_lost(os.getpid())
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert host.has_lost(os.getpid())
    child.wait()
    host.close()


# -- cgroups -----------------------------------------------------------------------------------


CGROUPS = Path("sys/fs/cgroup")
UNIFIED = "30 25 0:27 {} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
LEGACY = "31 25 0:28 {} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def unified(root: Path, path: str, used: int, limit: int | str = "max", kills: int = 0) -> Path:
    """Files of version 2 below a root directory."""
    folder = root / CGROUPS / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.max").write_text(f"{limit}\n")
    stat = "anon 1\nfile 5000\ninactive_file 1000\nactive_file 300\nslab_reclaimable 7\n"
    (folder / "memory.stat").write_text(stat)
    (folder / "memory.events").write_text(f"low 0\noom 9\noom_kill {kills}\noom_group_kill 0\n")
    return folder


def legacy(root: Path, path: str, used: int, limit: int) -> Path:
    folder = root / CGROUPS / "memory" / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    stat = "inactive_file 1\ntotal_inactive_file 300\ntotal_active_file 50\n"
    (folder / "memory.stat").write_text(stat)
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    return folder


def mounts(proc: Proc, process: int | str, root: Path, mountinfo: str) -> None:
    """What a process has mounted, and its root directory."""
    proc.write(process, "mountinfo", "29 25 0:26 / /sys rw shared:7 - sysfs sysfs rw\n" + mountinfo)
    root.mkdir(exist_ok=True)
    (proc.path / str(process) / "root").symlink_to(root)


def found_of(pid: int) -> cgroup.Cgroup:
    found = cgroup.find(pid)
    assert found is not None
    return found


def test_the_nearest_limit_counts(proc: Proc, tmp_path: Path) -> None:
    """The limit is that of the pod, above its container; cached files are not used memory."""
    mounts(proc, "self", tmp_path / "host", UNIFIED.format("/"))
    unified(tmp_path / "host", "pods/a/box", used=5000)
    unified(tmp_path / "host", "pods/a", used=7000, limit=8 * GIB, kills=2)
    unified(tmp_path / "host", "pods", used=10**9, limit=16 * GIB)
    proc.write(10, "cgroup", "0::/pods/a/box\n")
    found = found_of(10)
    assert (found.name, found.limit) == ("/pods/a", 8 * GIB)
    assert found.read() == cgroup.CgroupReading(7000 - 1307, 2)
    unified(tmp_path / "host", "pods/a", used=500)
    assert found.read() == cgroup.CgroupReading(0, 0)


def test_where_nothing_is_limited_the_ranks_own_cgroup_counts(proc: Proc, tmp_path: Path) -> None:
    """A session on a workstation; a limit beyond the machine's memory counts as no limit."""
    mounts(proc, "self", tmp_path / "host", UNIFIED.format("/"))
    unified(tmp_path / "host", "user/session", used=5000, limit=64 * GIB)
    unified(tmp_path / "host", ".", used=9000)
    proc.write(10, "cgroup", "0::/user/session\n")
    found = found_of(10)
    assert (found.name, found.limit) == ("/user/session", 0)
    assert found.read() == cgroup.CgroupReading(5000 - 1307, 0)


def test_the_old_interface_is_read_too(proc: Proc, tmp_path: Path) -> None:
    """Version 1, and a version 2 without a memory controller, as Debian 10 mounts them."""
    mounts(proc, "self", tmp_path / "host", UNIFIED.format("/") + LEGACY.format("/"))
    legacy(tmp_path / "host", "slurm/job_7", used=1000, limit=4 * GIB)
    legacy(tmp_path / "host", "slurm", used=9000, limit=9_223_372_036_854_771_712)
    proc.write(10, "cgroup", "5:cpuset:/\n4:cpu,memory:/slurm/job_7\n0::/init.scope\n")
    found = found_of(10)
    assert (found.name, found.limit) == ("/slurm/job_7", 4 * GIB)
    assert found.read() == cgroup.CgroupReading(650, 4)


@pytest.mark.parametrize(
    ("here", "its", "path"),
    [
        (LEGACY.format("/pods/agent"), LEGACY.format("/pods/rank"), "4:memory:/pods/rank"),
        (UNIFIED.format("/"), UNIFIED.format("/../rank"), "0::/../rank"),
        (UNIFIED.format("/../../a\\040b"), UNIFIED.format("/../c"), "0::/../c"),
    ],
)
def test_the_sidecar_reads_the_ranks_own_cgroup(
    here: str, its: str, path: str, proc: Proc, tmp_path: Path
) -> None:
    """Each container has only its own mounted, at the same place; the agent's is never the
    rank's, and a rank whose root may not be read has none."""
    make = legacy if "cgroup/memory" in here else unified
    make(tmp_path / "agent", ".", 3000, limit=GIB)
    make(tmp_path / "rank", ".", 6000, limit=2 * GIB)
    mounts(proc, "self", tmp_path / "agent", here)
    for pid in (10, 11):
        proc.write(pid, "cgroup", f"{path}\n")
    mounts(proc, 10, tmp_path / "rank", its)
    found = found_of(10)
    assert (found.name, found.limit) == (path.rpartition(":")[2], 2 * GIB)
    mounts(proc, 11, tmp_path / "nothing", its)
    assert cgroup.find(11) is None
    assert cgroup.find(12) is None, "no such process"


def test_what_is_below_a_mount(proc: Proc, tmp_path: Path) -> None:
    """A name that begins as the mount's is another cgroup; lines that are torn show nothing."""
    unified(tmp_path / "agent", ".", used=3000)
    mounts(proc, "self", tmp_path / "agent", "31\n" + UNIFIED.format("/pods/a") + "32 - cgroup2\n")
    proc.write(10, "cgroup", "0::/pods/ab\n")
    proc.write(11, "cgroup", "0::/pods/a/../b\n")
    proc.write(12, "cgroup", "0\n:::\n0::/pods/a\n")
    assert cgroup.find(10) is None
    assert cgroup.find(11) is None
    assert cgroup.find(12) is not None


def test_this_process_is_found_where_memory_is_accounted() -> None:
    """Whatever this machine mounts: no cgroup, or one that can be read."""
    found = cgroup.find(os.getpid())
    if found is None:
        pytest.skip("memory is not accounted by cgroups here")
    reading = found.read()
    assert reading is not None
    assert reading.used >= 0
    assert total_bytes() > 0


# -- series ------------------------------------------------------------------------------------


def target(number: int, pid: int | None, attempt: int = 0) -> Target:
    return Target(number, attempt, pid, pid or 1, (), Path("none"), moving=True)


def read(node: NodeMemory, targets: list[Target], now_s: float) -> Part:
    part = Part(123, 0)
    node.read(targets, now_s, part)
    return part


def test_ranks_of_one_cgroup_share_its_reading(
    proc: Proc, host: ProcessMemory, tmp_path: Path
) -> None:
    """Each rank has a series with the cgroup's limit, read twice a second and not ten times."""
    for pid in (10, 20, 30):
        proc.rank(pid, anon=pid)
    folder = unified(tmp_path, "box", used=9000, limit=GIB)

    def find(pid: int) -> cgroup.Cgroup | None:
        return None if pid == 30 else cgroup.Cgroup(folder, "/box", GIB, cgroup._V2)

    node = NodeMemory(host, find, machine_bytes=64 * GIB)
    ranks = [target(0, 10), target(1, 20), target(2, 30, attempt=5), target(3, None)]
    first = read(node, ranks, 100.0)
    assert [
        (r.attempt, r.series.rank, r.series.kind, r.capacity, r.value) for r in first.readings
    ] == [
        (0, 0, SeriesKind.HOST_USED, GIB, 10 * KIB),
        (0, 1, SeriesKind.HOST_USED, GIB, 20 * KIB),
        (5, 2, SeriesKind.HOST_USED, 64 * GIB, 30 * KIB),
        (0, 0, SeriesKind.CGROUP_USED, GIB, 9000 - 1307),
        (0, 1, SeriesKind.CGROUP_USED, GIB, 9000 - 1307),
    ]
    again = read(node, ranks, 100.1)
    assert {r.series.kind for r in again.readings} == {SeriesKind.HOST_USED}
    assert again.readings[0].series == first.readings[0].series
    assert len(read(node, ranks, 100.5).readings) == 5


def test_a_kill_is_of_the_rank_that_has_lost_a_process(
    proc: Proc, host: ProcessMemory, tmp_path: Path
) -> None:
    """Two ranks and another user share a session. The kernel kills a process of the other one: no
    event, also if a rank ends an hour later. It kills a data loader of rank 1, which is seen to be
    dead a second after the count."""
    proc.rank(10, anon=4096)
    proc.rank(11, anon=4096)
    proc.child(12, 11, private=500, stack=8888)
    box = cgroup.Cgroup(unified(tmp_path, "box", 9000, kills=0), "/box", GIB, cgroup._V2)
    node = NodeMemory(host, lambda pid: box, machine_bytes=64 * GIB)
    ranks = [target(0, 10), target(1, 11)]
    assert read(node, ranks, 100.0).events == []
    unified(tmp_path, "box", 9000, kills=1)
    assert [read(node, ranks, 100.0 + s).events for s in (1, 2, 3, 4, 5)] == [[]] * 5
    unified(tmp_path, "box", 9000, kills=2)
    assert read(node, ranks, 106.0).events == []
    proc.write(12, "statm", "0 0 0 0 0 0 0\n")
    assert [event.rank for event in read(node, ranks, 107.0).events] == [1]
    assert read(node, ranks[1:], 108.0).events == []


def test_a_kill_of_the_kernel_is_an_event(proc: Proc, host: ProcessMemory, tmp_path: Path) -> None:
    """Of every rank in the cgroup; kills before the first look are no news, and the last one is
    heard of although its rank is gone."""
    proc.rank(10, anon=1)
    box = cgroup.Cgroup(unified(tmp_path, "box", 9000, kills=3), "/box", GIB, cgroup._V2)
    node = NodeMemory(host, lambda pid: box, machine_bytes=64 * GIB)
    assert read(node, [target(0, 10)], 100.0).events == []
    unified(tmp_path, "box", 9000, kills=4)
    (event,) = read(node, [], 100.6).events
    assert (event.rank, event.kind, event.at_ns) == (0, MemoryEventKind.OOM_KILL, 123)
    assert event.detail == "the kernel killed a process in /box"
    unified(tmp_path, "box", 9000, kills=6)
    assert len(read(node, [], 103.0).events) == 1
    unified(tmp_path, "box", 9000, kills=7)
    assert read(node, [], 104.0).events == []
