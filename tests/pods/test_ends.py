"""Pods that are deleted, which is no alarm, and pods that are killed, which leaves frd blind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.chart import recipe
from tests.pods.cluster import VALUES, Cluster, Job
from tests.pods.engine import ROOT
from tests.pods.judge import apart, check_memory, edits, suspect
from tests.pods.manifests import Object, Template
from tests.world.daemons import throughout

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

LOST_AFTER_S = 15.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """With a running service, which gives up a lost job soon."""
    policy = VALUES["config"]["policy"] | {"lost_after_s": LOST_AFTER_S}
    with Cluster(tmp_path, {**VALUES, "config": {"policy": policy}}) as made:
        made.start_service()
        yield made


def ends_on_term(spec: Object) -> None:
    """Its ranks do not save a checkpoint first."""
    (training,) = (c for c in spec["containers"] if c["name"] == "training")
    training["env"].append({"name": "ON_TERM", "value": "end"})


def short_grace(spec: Object) -> None:
    """Ranks that ignore SIGTERM are killed, with two seconds left for the sidecar."""
    spec["terminationGracePeriodSeconds"] = 5


def check_over(job: Job) -> None:
    """frd neither waits for the job nor accuses a rank."""
    job.until(lambda: job.line()["state"] in ("ended", "lost"), "the job is over")
    job.until(lambda: not job.line()["open_findings"], "its findings are closed")
    assert job.blind() == []
    done = job.frd("findings", "--job", job.name)
    assert done.returncode == 0, done.stdout
    assert job.metric("frd_agents_expected") <= job.metric("frd_agents_reporting")  # no FrdBlind
    for one in job.findings():
        assert one["kind"] == "stall"
        assert (one["state"], one["severity"]) == ("closed", "warning"), one


def check_blind(job: Job, exit_code: int) -> None:
    """The job's agent is missed, and no agent counts as its successor."""
    line = job.line()
    assert not line["ended"]
    assert line["ranks"] == {"unwatched": job.world}
    assert len(job.blind()) == 1
    assert job.frd("findings", "--job", job.name).returncode == exit_code
    assert job.metric("frd_agents_expected") > job.metric("frd_agents_reporting")


@pytest.mark.parametrize("hung", [False, True], ids=["healthy", "hung"])
@pytest.mark.parametrize(
    "edit",
    [ends_on_term, short_grace, edits(short_grace, apart)],
    ids=["30s", "2s", "2s-apart"],
)
def test_a_pod_that_is_deleted(
    cluster: Cluster, hung: bool, edit: Callable[[Object], None]
) -> None:
    """The job is over, whatever the grace period leaves for the sidecar; a stall is closed."""
    job = cluster.start_job(2, edit=edit)
    job.until_watched()
    if hung:
        job.break_("read 1")
        job.finding(lambda one: one["suspects"], kind="stall")
    job.pod.delete()
    check_over(job)
    assert bool(job.findings(state="closed")) == hung


def test_another_job_on_the_node_of_a_killed_agent(cluster: Cluster) -> None:
    """The first job stays blind while another one runs on its node, and after that one."""
    first = cluster.start_job(2)
    first.until_watched()
    first.pod.kill("frd-agent")
    first.until(first.blind, "the agent is missed")
    other = cluster.start_job(2, name="other", edit=ends_on_term)
    other.until_watched()
    assert other.blind() == []
    check_blind(first, 4)
    other.pod.delete()
    check_over(other)
    check_blind(first, 4)


def test_a_hung_pod_that_is_deleted_by_force(cluster: Cluster) -> None:
    """All processes are killed together: no agent said that it leaves, and the finding stays."""
    job = cluster.start_job(2)
    job.until_watched()
    job.break_("read 1")
    found = job.finding(lambda one: one["suspects"], kind="stall")
    job.pod.kill_everything()
    job.pod.remove()
    job.until(job.blind, "the agent is missed")

    def check() -> None:
        check_blind(job, 3)
        (still,) = job.findings()
        assert (still["id"], still["state"]) == (found["id"], "open")

    throughout(LOST_AFTER_S + 5.0, check)


def before_1_29(spec: Object) -> None:
    """The recipe of docs/kubernetes.md, as it is written there."""
    _, _, section = (ROOT / "docs/kubernetes.md").read_text("utf-8").partition("## Before 1.29")
    shown = yaml.safe_load(re.findall(r"```yaml\n(.+?)```", section, re.DOTALL)[0])
    ours = {container["name"]: container["command"] for container in shown["containers"]}
    (training,), (tap, agent) = spec["containers"], spec["initContainers"]
    shell, flag, script = ours["training"]
    assert "torchrun train.py" in script
    script = script.replace("torchrun train.py", " ".join(training["command"]))
    training["command"] = [shell, flag, script]
    agent["command"] = ours["frd-agent"]
    del agent["restartPolicy"]
    spec["initContainers"], spec["containers"] = [tap], [training, agent]


def start_before_1_29(cluster: Cluster, *more: Callable[[Object], None]) -> Job:
    job = cluster.start_job(2, edit=edits(before_1_29, ends_on_term, *more))
    job.until_watched()
    return job


def exit_codes(job: Job) -> dict[str, Any]:
    return {name: job.pod.exit_code(name) for name in ("training", "frd-agent")}


def test_an_ordinary_container_ends_after_the_ranks(cluster: Cluster) -> None:
    """Before 1.29: both containers succeed, so a Job completes."""
    job = start_before_1_29(cluster)
    job.break_("end")
    for name in ("training", "frd-agent"):
        job.until(lambda name=name: not job.pod.is_running(name), f"{name} ends")  # type: ignore[misc]  # mypy cannot infer the default's type
    assert exit_codes(job) == {"training": 0, "frd-agent": 0}
    check_over(job)
    assert job.line()["state"] == "ended"


def test_an_ordinary_container_is_killed_with_its_ranks(cluster: Cluster) -> None:
    """Before 1.29, ranks that outlast the grace period: the agent has said that it leaves, so the
    job is lost, not blind."""
    job = cluster.start_job(2, edit=before_1_29)
    job.until_watched()
    job.break_("read 1")
    job.finding(lambda one: one["suspects"], kind="stall")
    for name in ("training", "frd-agent"):
        job.pod.kill(name, "TERM")
    staying = "2 ranks live: staying"
    job.until(lambda: staying in job.pod.logs("frd-agent"), "the agent outlives its ranks")
    job.pod.kill_everything()
    job.pod.remove()
    check_over(job)
    assert job.line()["state"] == "lost"
    (found,) = job.findings()
    assert found["close_reason"] == "nothing is heard any more"


@pytest.mark.parametrize("more", [(), (apart,)], ids=["shared", "apart"])
def test_an_ordinary_container_is_deleted(
    cluster: Cluster, more: tuple[Callable[[Object], None], ...]
) -> None:
    """Before 1.29: both shells pass the signal on, also as first process of their namespace."""
    job = start_before_1_29(cluster, *more)
    job.pod.stop()
    assert exit_codes(job) == {"training": 1, "frd-agent": 0}
    assert (job.pod.volumes["frd"] / "done").exists()
    check_over(job)
    assert job.line()["state"] == "ended"


# -- life ------------------------------------------------------------------------------------------
# What happens to pods while a job runs, and other shapes of them: a restarted sidecar, two pods,
# fsGroup, the DaemonSet.


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
