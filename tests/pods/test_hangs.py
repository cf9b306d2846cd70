"""Ranks that hang in the pod of examples/kubernetes/job.yaml, with and without a shared process
namespace."""

from __future__ import annotations

import pytest

from tests.pods.cluster import STALL_AFTER_S, Cluster, Job
from tests.pods.judge import APART, TRAINING_BYTES, apart, check_memory, edits, limit, suspect
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
