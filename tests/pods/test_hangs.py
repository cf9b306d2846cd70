"""Ranks that hang or end in the pod of examples/kubernetes/job.yaml, with and without a shared
process namespace."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pods.cluster import Cluster
from tests.pods.manifests import Object

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

OWN_NAMESPACE = "another pid namespace: set shareProcessNamespace"
SHARED = pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])


def unshared(spec: Object) -> None:
    """Each container has its own process namespace."""
    del spec["shareProcessNamespace"]


def leave(spec: Object) -> None:
    """The specification as it is."""


def suspect(finding: dict[str, Any]) -> dict[str, Any]:
    (one,) = finding["suspects"]
    return dict(one)


@SHARED
def test_a_rank_that_is_stuck_in_a_read(cluster: Cluster, shared: bool) -> None:
    """The rank and its line are named, and the file that it reads if the agent sees its process."""
    job = cluster.start_job(edit=leave if shared else unshared)
    job.until_watched()
    job.break_("read 1")
    found = suspect(job.finding(lambda one: one["suspects"] and suspect(one).get("stack")))
    assert (found["rank"], found["reason"]) == (1, "cpu_stuck")
    assert found["stack"][0].endswith("in read_sample")
    if shared:
        whole = job.finding(lambda one: suspect(one).get("waits_for", {}).get("what"))
        waits = suspect(whole)["waits_for"]
        assert (waits["kind"], waits["what"]) == ("file_read", "/data/shard-17.tar")
