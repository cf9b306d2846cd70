"""Whether the kernel's out-of-memory killer was active where a rank ran."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from frd_agent.memory.host.cgroup import OomKills
from frd_agent.node_time import raw_now
from frd_agent.ranks.rank_process import RankProcess
from frd_agent.ranks.tap_files import TapIdentity
from tests.world.daemons import until
from tests.world.run_dir import identity

KILLER = "the kernel's out-of-memory killer killed"


class Node:
    """Files as the kernel lays them out: process 7 in a cgroup of version 2."""

    def __init__(self, proc: Path, root: Path) -> None:
        self.proc = proc
        self.group = root / "sys/fs/cgroup/job/step"
        for process in ("7", "8", "self"):
            (self.proc / process).mkdir(parents=True)
        self.group.mkdir(parents=True)
        (self.proc / "7/cgroup").write_text("0::/job/step\n")
        mount = "30 25 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
        (self.proc / "self/mountinfo").write_text(mount)
        (self.proc / "self/root").symlink_to(root)
        (self.group / "memory.current").write_text("5\n")
        self.kills(3, 10)

    def kills(self, in_cgroup: int, on_node: int) -> None:
        (self.group / "memory.events").write_text(f"oom 5\noom_kill {in_cgroup}\n")
        (self.proc / "vmstat").write_text(f"pgfault 1\noom_kill {on_node}\n")

    def watch(self, pid: int | None = 7) -> OomKills:
        return OomKills(pid)


@pytest.fixture
def node(proc_files: Path, tmp_path: Path) -> Node:
    return Node(proc_files, tmp_path / "root")


def test_kills_in_the_own_cgroup(node: Node) -> None:
    """Those of before do not count, nor do those of other jobs on the node."""
    watch = node.watch()
    assert watch.text() == f"{KILLER} no process in its cgroup"
    node.kills(3, 12)
    assert watch.text() == f"{KILLER} no process in its cgroup"
    node.kills(4, 13)
    assert watch.text() == f"{KILLER} 1 process in its cgroup while it ran"
    node.kills(6, 15)
    assert watch.text() == f"{KILLER} 3 processes in its cgroup while it ran"


def test_out_of_sight_the_node_counts(node: Node) -> None:
    """In another pid namespace, or in a cgroup that the agent does not see: a kill on the node may
    have been elsewhere, but if there was none, it was none here."""
    hidden, elsewhere = node.watch(None), node.watch(8)
    assert hidden.text() == f"{KILLER} no process on its node"
    node.kills(9, 11)
    said = f"{KILLER} 1 process on its node while it ran; in which cgroup cannot be known"
    assert hidden.text() == elsewhere.text() == said


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup of this machine that accounts memory."""
    controllers = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
    controller = next((one for one in controllers if (one / "memory.stat").exists()), None)
    if controller is None:
        pytest.skip("no cgroup accounts memory here")
    group = controller / f"frd-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    yield group
    if group.exists():
        group.rmdir()


HUNGRY = """
import sys
sys.stdin.readline()
held = []
while True:
    held.append(bytearray(1 << 20))
"""


@pytest.mark.xdist_group("kernel kills")  # the node's counter has those of the others, too
@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("looks", [False, True])
def test_the_kernel_kills(group: Path, looks: bool, removed: bool) -> None:
    """A process beyond its limit, whose cgroup is removed with it, as the kubelet's runtime does:
    what was seen before counts, else only that some process was killed is known."""
    limit = next(
        path for name in ("memory.max", "memory.limit_in_bytes") if (path := group / name).exists()
    )
    limit.write_text(str(64 << 20))
    with subprocess.Popen([sys.executable, "-c", HUNGRY], stdin=subprocess.PIPE) as process:
        (group / "cgroup.procs").write_text(str(process.pid))
        kills = OomKills(process.pid)
        known = msgspec.convert(identity(pid=process.pid, socket=None), TapIdentity)
        rank = RankProcess(known, None)
        assert kills.text() == f"{KILLER} no process in its cgroup"
        process.communicate(b"\n")
    assert process.returncode == -signal.SIGKILL
    if not removed:
        how, _ = rank.ended(None, None, raw_now())
        assert "killed 1 process in its cgroup" in how.note
    rank.close()
    if looks:
        kills._look_at = 0.0
        kills.look()
    if removed:
        until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
    one = f"{KILLER} 1 process "
    if looks or not removed:
        assert kills.text() == f"{one}in its cgroup while it ran"
    else:
        assert kills.text() == f"{one}on its node while it ran; in which cgroup cannot be known"


def test_without_a_counter_there_is_no_text(node: Node) -> None:
    """Kernels before 4.13 have no such line; a file that cannot be read is as good as none."""
    (node.group / "memory.events").write_text("oom 5\n")
    (node.proc / "vmstat").write_text("pgfault 1\n")
    assert node.watch().text() == ""
    (node.proc / "vmstat").write_text("oom_kill many\n")
    assert node.watch().text() == ""


def test_the_kernel_of_this_machine() -> None:
    """There is a counter, and it does not rise."""
    assert until(lambda: OomKills(os.getpid()).text()).startswith(f"{KILLER} no process ")
