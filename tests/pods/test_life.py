"""What happens to pods while a job runs, and other shapes of them: a restarted sidecar, two pods,
fsGroup, the DaemonSet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.helm.chart import recipe
from tests.pods.cluster import VALUES, Cluster, Job
from tests.pods.judge import apart, check_memory, edits, suspect
from tests.pods.manifests import Object, Template

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SHARED = pytest.mark.parametrize("shared", [True, False], ids=["shared", "apart"])


def hangs(job: Job, rank: int = 1) -> dict[str, Any]:
    """The finding about a rank that gets stuck, with its stack."""
    job.break_(f"read {rank}")
    found = job.finding(lambda one: one["suspects"] and suspect(one).get("stack"))
    assert suspect(found)["rank"] == rank
    assert suspect(found)["stack"][0].endswith("in read_sample")
    return found


@SHARED
def test_a_sidecar_that_is_killed_and_restarted(cluster: Cluster, shared: bool) -> None:
    """No finding comes from it while the job is healthy; a finding keeps its id while it hangs."""
    job = cluster.start_job(2, edit=edits(*([] if shared else [apart])))
    job.until_watched()

    def restart() -> None:
        job.pod.kill("frd-agent")
        job.pod.restart("frd-agent")
        back = f"connected, job {job.name}"
        job.until(lambda: back in job.pod.logs("frd-agent"), "the agent is back")

    restart()
    matched = job.matched()
    job.until(lambda: job.matched() > matched + 10, "collectives are matched again")
    assert not job.findings()
    found = hangs(job)
    restart()
    done = job.frd("findings")
    assert done.returncode == 3, done.stdout
    (still,) = job.findings()
    assert still["id"] == found["id"]
    assert still["state"] == "open"
    assert [one["rank"] for one in still["suspects"]] == [1]


def test_two_pods_of_one_job(cluster: Cluster) -> None:
    """`frd doctor` has no complaint in either sidecar; a rank of the second pod is named."""
    job = cluster.start_job(2, pods=2)
    job.until_watched()
    check_memory(job, job.machine_bytes())
    for pod in job.pods:
        done = pod.exec("frd-agent", "frd", "doctor")
        assert done.returncode == 0, done.stdout + done.stderr
    hangs(job, rank=3)


def test_a_pod_with_a_group_for_its_volumes(cluster: Cluster) -> None:
    """With fsGroup the volumes have mode 2777 and a group, and everything is as without."""

    def edit(spec: Object) -> None:
        spec["securityContext"]["fsGroup"] = 3000

    job = cluster.start_job(2, edit=edit)
    job.until_watched()
    hangs(job)


DAEMONSETS: list[tuple[Mapping[str, Any], int]] = [
    ({"enabled": True, "hostPID": True, "runAsUser": 1000}, 1000),
    ({"enabled": True, "hostPID": True, "capabilities": ["DAC_OVERRIDE", "SYS_PTRACE"]}, 2000),
    ({"enabled": True, "runAsUser": 1000}, 1000),
]


@pytest.fixture(params=DAEMONSETS, ids=["uid", "root", "uid-apart"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Cluster, int]]:
    """A node with an agent of the DaemonSet, and the user of its ranks."""
    daemonset, uid = request.param
    values = {**VALUES, "agent": {**VALUES["agent"], "daemonset": daemonset}}
    with Cluster(tmp_path, values) as made:
        made.start_service()
        thing = made.rendered.one("DaemonSet")["spec"]["template"]
        made.create(Template("frd-agent-x7k2p", "frd", thing["spec"])).start()
        yield made, uid


def test_an_agent_of_the_whole_node(node: tuple[Cluster, int]) -> None:
    """The DaemonSet's agent names a stuck rank of a pod that has no sidecar, and no other pod's."""
    cluster, uid = node

    def edit(spec: Object) -> None:
        shown = recipe(cluster.values)
        del spec["initContainers"], spec["shareProcessNamespace"]
        spec["volumes"] = shown["volumes"]
        spec["securityContext"] = {"runAsUser": uid, "runAsGroup": uid, "runAsNonRoot": True}
        (training,), (ours,) = spec["containers"], shown["containers"]
        training["volumeMounts"] = ours["volumeMounts"]

    job = cluster.start_job(2, edit=edit)
    job.until_watched()
    hangs(job)
    if cluster.values["agent"]["daemonset"].get("hostPID"):
        whole = job.finding(lambda one: suspect(one).get("waits_for", {}).get("what"))
        assert suspect(whole)["waits_for"]["what"] == "/data/shard-17.tar"
