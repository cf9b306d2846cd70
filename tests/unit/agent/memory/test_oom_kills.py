"""Whether the kernel's out-of-memory killer was active where a rank ran."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from frd_agent.memory.host.cgroup import OomKills
from tests.world.daemons import until

KILLER = "the kernel's out-of-memory killer killed"


class Node:
    """Files as the kernel lays them out: process 7 in a cgroup of version 2."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.root = folder / "proc", folder / "cgroup"
        self.group = self.root / "job" / "step"
        (self.proc / "7").mkdir(parents=True)
        self.group.mkdir(parents=True)
        (self.proc / "7" / "cgroup").write_text("0::/job/step\n")
        (self.group / "memory.current").write_text("5\n")
        self.kills(3, 10)

    def kills(self, in_cgroup: int, on_node: int) -> None:
        (self.group / "memory.events").write_text(f"oom 5\noom_kill {in_cgroup}\n")
        (self.proc / "vmstat").write_text(f"pgfault 1\noom_kill {on_node}\n")

    def watch(self, pid: int = 7) -> OomKills:
        return OomKills(pid, self.proc, self.root)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


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


def test_without_a_cgroup_the_node_counts(node: Node) -> None:
    """A cgroup that went with its last process, or is out of sight: the whole node is asked."""
    watch, elsewhere = node.watch(), node.watch(pid=8)
    (node.group / "memory.events").unlink()
    (node.proc / "vmstat").write_text("pgfault 1\noom_kill 11\n")
    assert watch.text() == f"{KILLER} 1 process on its node while it ran"
    assert elsewhere.text() == f"{KILLER} 1 process on its node while it ran"


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
