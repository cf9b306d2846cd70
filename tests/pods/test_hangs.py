"""Ranks that hang in the pod of examples/kubernetes/job.yaml, with and without a shared process
namespace."""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress

import pytest

from tests.pods.cluster import STALL_AFTER_S, Cluster, Job, kill
from tests.pods.judge import APART, TRAINING_BYTES, apart, check_memory, edits, limit, suspect
from tests.pods.manifests import quantity
from tests.world.daemons import opened_s

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SHARED = pytest.mark.parametrize("shared", [True, False], ids=["shared", "apart"])


def start(cluster: Cluster, shared: bool) -> Job:
    """A job that is watched, and whose memory is its own."""
    job = cluster.start_job(2, edit=edits(limit(f"{TRAINING_BYTES}"), *([] if shared else [apart])))
    job.until_watched()
    check_memory(job, TRAINING_BYTES)
    return job


@SHARED
def test_a_rank_that_is_stuck_in_a_read(cluster: Cluster, shared: bool) -> None:
    """The rank and its line are named, and the file that it reads if the agent sees its process."""
    job = start(cluster, shared)
    job.break_("read 1")
    found = job.finding(lambda one: one["suspects"] and suspect(one).get("stack"))
    assert found["kind"] == "stall"
    assert suspect(found)["rank"] == 1
    assert suspect(found)["reason"] == "cpu_stuck"
    assert suspect(found)["stack"][0].endswith("in read_sample")
    assert STALL_AFTER_S < opened_s(found) - job.broke_s() < STALL_AFTER_S + 5.0
    if shared:
        whole = job.finding(lambda one: suspect(one).get("waits_for", {}).get("what"))
        waits = suspect(whole)["waits_for"]
        assert (waits["kind"], waits["what"]) == ("file_read", "/data/shard-17.tar")
    else:
        assert "used no processor time" not in suspect(found)["evidence"]


@SHARED
def test_a_rank_that_keeps_the_interpreter_lock(cluster: Cluster, shared: bool) -> None:
    """Its stack comes from outside the process, or else the finding says what to set."""
    job = start(cluster, shared)
    job.break_("gil 1")
    if shared:
        found = job.finding(lambda one: one["suspects"] and suspect(one).get("stack"))
        assert any("tokenize" in frame for frame in suspect(found)["stack"])
    else:
        found = job.finding(lambda one: one["suspects"] and APART in suspect(one)["evidence"])
        assert not suspect(found).get("stack")
    assert suspect(found)["rank"] == 1


def test_a_rank_that_computes_out_of_sight(cluster: Cluster) -> None:
    """Without a shared namespace nothing is claimed about its processor time."""
    job = start(cluster, shared=False)
    job.break_("compute 1")
    found = job.finding(lambda one: one["suspects"] and suspect(one).get("stack"))
    assert suspect(found)["rank"] == 1
    assert suspect(found)["stack"][0].endswith("in compute")
    assert "processor time" not in suspect(found)["evidence"]


# -- ranks that end in their pod: killed, and by the kernel when memory runs out -------------------


LIMIT = "1Gi"


def begin(cluster: Cluster, shared: bool) -> Job:
    job = cluster.start_job(edit=edits(limit(LIMIT), *([] if shared else [apart])))
    job.until_watched()
    check_memory(job, quantity(LIMIT))
    return job


@SHARED
def test_a_rank_that_is_killed(cluster: Cluster, shared: bool) -> None:
    """SIGKILL of a rank: it is the first cause, although torchrun then ends the others too."""
    job = begin(cluster, shared)
    job.break_("kill 1")
    found = job.ended()
    assert suspect(found)["rank"] == 1
    assert suspect(found)["reason"] == "exited"


@SHARED
def test_the_kernel_kills_a_rank(cluster: Cluster, shared: bool) -> None:
    """Memory runs out under the container's limit, and the kernel kills the rank that took it."""
    job = begin(cluster, shared)
    job.break_("memory 1")
    check_out_of_memory(job)


@SHARED
def test_the_kernel_kills_a_container(cluster: Cluster, shared: bool) -> None:
    """With cgroup v2 the kubelet lets the kernel kill all processes of the container together."""
    job = begin(cluster, shared)
    pids = job.pod.processes("training")
    counter = job.pod.cgroup("training", "memory") / "memory.oom_control"
    began = int(re.findall(r"oom_kill (\d+)", counter.read_text())[0])

    def group_kill() -> None:
        deadline = time.monotonic() + 60.0
        with suppress(OSError):
            while time.monotonic() < deadline:
                if int(re.findall(r"oom_kill (\d+)", counter.read_text())[0]) > began:
                    break
                time.sleep(0.001)  # as soon after the kernel as possible
        kill(pids)

    killer = threading.Thread(target=group_kill)
    killer.start()
    job.break_("memory 1")
    killer.join()
    if shared:
        # The kernel counts by cgroup and does not say which process it chose: no rank is accused.
        found = job.finding(lambda one: one["kind"] == "oom")
        assert found["suspects"] == [] or 1 in [one["rank"] for one in found["suspects"]], found
        assert "ran out of host memory" in found["summary"]
        return

    # How they ended is not known, so this may be the end of the job: no finding, but no lie either.
    def ended() -> bool:
        ranks = job.details()["ranks"]
        return all(rank["state"] == "exited" for rank in ranks) and len(ranks) == job.world

    job.until(ended, "the ends of all ranks")
    for rank in job.details()["ranks"]:
        # Of the whole node: the kernel may kill a second one before this test does.
        assert re.search(r"killer killed \d+ process(es)? on its node", rank["detail"]), rank
        assert "cannot be known" in rank["detail"], rank


def check_out_of_memory(job: Job) -> None:
    """The finding says that the kernel killed, or that this cannot be known."""
    found = job.finding(lambda one: one["suspects"] and one["kind"] in ("rank_lost", "oom"))
    texts = " ".join([found["summary"], *(one["evidence"] for one in found["suspects"])])
    assert 1 in [one["rank"] for one in found["suspects"]], found
    assert "killed no process" not in texts
    if "cannot be known" not in texts:
        assert re.search(r"kill\w* (a|\d+) process(es)? in ", texts), texts
