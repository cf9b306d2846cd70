"""Agent and ranks of different users, and of root: what the agent may not read is said, and how to
change it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.pods.cluster import Cluster
from tests.pods.judge import APART, apart, edits, suspect
from tests.pods.manifests import Object

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SHARED = pytest.mark.parametrize("shared", [True, False], ids=["shared", "apart"])
SYS_PTRACE = 1 << 19


def ranks_as(uid: int) -> Callable[[Object], None]:
    """The training container has another user than the rest of the pod."""

    def edit(spec: Object) -> None:
        (training,) = spec["containers"]
        training["securityContext"] = {"runAsUser": uid, "runAsNonRoot": uid != 0}

    return edit


def pod_of_root(spec: Object) -> None:
    """All containers that do not say otherwise run as root, with the engine's capabilities."""
    spec["securityContext"] = {"runAsUser": 0, "runAsGroup": 0}


def without_capabilities(spec: Object) -> None:
    (training,) = spec["containers"]
    training["securityContext"] = {"capabilities": {"drop": ["ALL"]}}


def said_of(finding: Mapping[str, Any]) -> str:
    return f"{suspect(finding)['evidence']} {finding['summary']}"


@SHARED
@pytest.mark.parametrize("uid", [2000, 0])
def test_ranks_of_another_user(cluster: Cluster, shared: bool, uid: int) -> None:
    """`frd findings` is blind, exits with 4, and names both users and the value to set; the ranks
    train on."""
    job = cluster.start_job(2, edit=edits(ranks_as(uid), *([] if shared else [apart])))

    def is_known() -> bool:
        return 'frd_node_unreadable{node="node-a"} 1' in job.client.text("/metrics")

    job.until(is_known, "the agent reports what it cannot read")
    done = job.frd("findings")
    assert done.returncode == 4, done.stdout
    said = done.stdout + done.stderr
    numbers = set(re.findall(r"\d+", said))
    assert {str(uid), "1000"} <= numbers, said
    assert "agent.sidecar.runAsUser" in said
    assert job.name in said
    job.until(lambda: "rank 0 trains" in job.pod.logs("training"), "ranks train")
    assert not job.findings()


@pytest.mark.parametrize(
    ("capabilities", "more", "shared", "sees"),
    [
        ([], [], True, False),
        ([], [], False, False),
        (["SYS_PTRACE"], [], True, True),
        (["SYS_PTRACE"], [], False, False),
        ([], [without_capabilities], True, True),
    ],
    ids=["none", "none-apart", "ptrace", "ptrace-apart", "none-dropped"],
)
def test_ranks_of_root(
    cluster: Cluster,
    capabilities: list[str],
    more: list[Callable[[Object], None]],
    shared: bool,
    sees: bool,
) -> None:
    """An agent of root reads a stack under a held interpreter lock with SYS_PTRACE, or if the ranks
    have no capabilities; else it says which one is missing."""
    values = {"runAsUser": 0, "capabilities": capabilities}
    edit = edits(pod_of_root, *more, *([] if shared else [apart]))
    job = cluster.start_job(2, edit=edit, sidecar=values)
    status = Path(f"/proc/{job.pod.pid('frd-agent')}/status").read_text()
    has = int(re.findall(r"^CapEff:\s+(\w+)", status, re.MULTILINE)[0], 16)
    assert has == (SYS_PTRACE if capabilities else 0)
    job.until_watched()
    job.break_("gil 1")
    if sees:
        found = job.finding(lambda one: one["suspects"] and suspect(one).get("stack"))
        assert any("tokenize" in frame for frame in suspect(found)["stack"])
    else:
        why = "SYS_PTRACE" if shared else APART
        found = job.finding(lambda one: one["suspects"] and why in said_of(one))
        assert not suspect(found).get("stack")
    assert suspect(found)["rank"] == 1


def test_ranks_of_another_group(cluster: Cluster) -> None:
    """The kernel lets an agent of the same user but another group read no process: torch's own
    stack is there, and the finding names the group that prevents the rest."""

    def edit(spec: Object) -> None:
        (training,) = spec["containers"]
        training["securityContext"] = {"runAsGroup": 4000}

    job = cluster.start_job(2, edit=edit)
    job.until_watched()
    job.break_("read 1")
    found = job.finding(
        lambda one: one["suspects"] and suspect(one).get("stack") and "4000" in said_of(one)
    )
    assert suspect(found)["rank"] == 1
