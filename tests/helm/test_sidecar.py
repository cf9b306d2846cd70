"""The agent as a sidecar of the ranks: recipe in the notes, examples, and that they work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from frd_agent import config as agent_config
from frd_agent.exec import environment
from tests.helm.chart import ROOT, Cluster, Object, check, containers, recipe, render
from tests.world.daemons import run_program

EXAMPLES = sorted((ROOT / "examples/kubernetes").glob("*.yaml"))
PACKAGE = ROOT / "agents/frd_agent"
LABELS = {
    "Job": "batch.kubernetes.io/job-name",
    "JobSet": "jobset.sigs.k8s.io/jobset-name",
    "PyTorchJob": "training.kubeflow.org/job-name",
}
"""Label that each kind's controller sets on all pods of a job."""


def templates(thing: Any) -> Iterator[Object]:
    """Every pod template in an object of whatever kind."""
    if isinstance(thing, dict):
        if "containers" in thing.get("spec", {}):
            yield thing
        for part in thing.values():
            yield from templates(part)
    elif isinstance(thing, list):
        for part in thing:
            yield from templates(part)


def example(path: Path) -> tuple[str, Object]:
    """The job's kind and its one pod template."""
    job = list(yaml.safe_load_all(path.read_text("utf-8")))[-1]
    (template,) = templates(job)
    return job["kind"], template


def variables(container: Object) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container.get("env", ())}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_the_recipe_applied(path: Path) -> None:
    """Agent, volumes and variables are exactly those of the chart's notes. Ranks and agent are one
    user, because the agent reads files that only their owner may read."""
    shown, (kind, template) = recipe(), example(path)
    pod = template["spec"]
    for key in ("initContainers", "volumes", "shareProcessNamespace"):
        assert pod[key] == shown[key]
    (training,), (ours,) = pod["containers"], shown["containers"]
    for entry in ours["env"]:
        if entry["name"] == "POD_JOB":
            entry["valueFrom"]["fieldRef"]["fieldPath"] = f"metadata.labels['{LABELS[kind]}']"
        assert entry in training["env"]
    assert ours["volumeMounts"] == training["volumeMounts"]
    assert template["metadata"]["labels"]["frd-agent"] == "sidecar"
    contexts = [pod["securityContext"] | c.get("securityContext", {}) for c in containers(pod)]
    assert len({context["runAsUser"] for context in contexts}) == 1


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_examples_pods_are_valid(path: Path, version: str) -> None:
    """The pod and every object around it pass their schemas."""
    _, template = example(path)
    metadata = {"name": "train-0"} | template["metadata"]
    check({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    for thing in yaml.safe_load_all(path.read_text("utf-8")):
        check(thing, version)
        for job in thing["spec"].get("replicatedJobs", ()):
            check({"apiVersion": "batch/v1", "kind": "Job"} | job["template"], version)


def test_the_sidecar_outlives_the_ranks_and_never_delays_them() -> None:
    """It is a native sidecar without probes, and a pod stays in class Guaranteed. It is stopped
    with its ranks, unlike the DaemonSet's agent; a key of yours replaces the recipe's limit."""
    _, agent = recipe()["initContainers"]
    assert agent["restartPolicy"] == "Always"
    assert not [key for key in agent if key.endswith("Probe")]
    assert agent["resources"]["requests"] == agent["resources"]["limits"]
    option = "--outlive-ranks"
    assert option in agent["command"]
    own = recipe({"agent": {"config": {"outlive_ranks_s": 595}}})["initContainers"][1]
    assert option not in own["command"]
    assert variables(own)["FRD_AGENT_OUTLIVE_RANKS_S"] == "595"
    (of_node,) = render({"agent": {"daemonset": {"enabled": True}}}).pod("DaemonSet")["containers"]
    assert option not in of_node["command"]


def test_the_recipe_sets_what_exec_would(tmp_path: Path) -> None:
    """The variables are those of `frd-agent exec`, with the pod's paths in them."""
    set_by_exec = environment({}, str(tmp_path), job="j")
    (training,) = recipe()["containers"]
    shown = variables(training)
    assert shown.pop("POD_NAMESPACE") == shown.pop("POD_JOB") == ""  # the kubelet fills them in
    assert shown["FRD_JOB"] == "$(POD_NAMESPACE)/$(POD_JOB)"
    shown["FRD_JOB"] = "j"
    expected = {
        name: value.replace(str(tmp_path), "/run/frd/run").replace(str(PACKAGE), "/run/frd/tap")
        for name, value in set_by_exec.items()
    }
    assert shown == expected


def test_the_copied_tap_starts(tmp_path: Path) -> None:
    """The init container's command copies a tap that starts with torch.distributed. If the copy
    fails, the container still succeeds, and the ranks start without a tap."""
    image = tmp_path / "opt/frd/tap"
    shutil.copytree(PACKAGE / "_site", image / "_site")
    shutil.copy(PACKAGE / "tap.py", image)
    shared = tmp_path / "run/frd"
    shared.mkdir(parents=True)
    program, flag, script = recipe()["initContainers"][0]["command"]
    impossible = script.replace("/opt/frd", f"{tmp_path}/no").replace("/run/frd", f"{tmp_path}/no")
    subprocess.run([program, flag, impossible], check=True, stderr=subprocess.DEVNULL)
    script = script.replace("/opt/frd", f"{tmp_path}/opt/frd").replace("/run/frd", str(shared))
    for _ in range(2):  # a restarted pod sandbox runs it again
        subprocess.run([program, flag, script], check=True)
    assert (shared / "run/dumps").stat().st_mode & 0o777 == 0o700
    package = tmp_path / "torch/distributed"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    code = "import os, sys, torch.distributed"
    code += "; print(sys.modules['_frd_tap']._installed_pid == os.getpid())"
    paths = [str(shared / "tap/_site"), str(tmp_path)]
    done = run_program(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "FRD_RUN_DIR": str(shared / "run")},
        check=True,
    )
    assert done.stdout == "True\n", done.stderr


def test_the_agent_takes_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys in agent.config become variables of the agent."""
    values = {"agent": {"config": {"poll_s": 1, "outbox_bytes": 500_000, "log_level": "debug"}}}
    for name, value in variables(recipe(values)["initContainers"][1]).items():
        monkeypatch.setenv(name, value)
    loaded = agent_config.load()
    assert (loaded.poll_s, loaded.outbox_bytes, loaded.log_level) == (1, 500_000, "debug")


def test_without_tls_the_agent_needs_no_secret() -> None:
    """An insecure release mounts no Secret and needs no file."""
    shown = recipe({"insecure": True})
    assert [volume["name"] for volume in shown["volumes"]] == ["frd"]
    assert not [word for word in shown["initContainers"][1]["command"] if "-file" in word]


def test_the_notes_warn_a_cluster_without_native_sidecars() -> None:
    """Before 1.29 an init container that never ends would block the pod for ever."""
    assert 'see "Before 1.29"' in render(cluster=Cluster("1.28")).notes
    assert 'see "Before 1.29"' not in render(cluster=Cluster("1.29")).notes


def test_with_the_daemonset_the_notes_show_the_shared_directory() -> None:
    """Pods share the host's directory and have no agent container."""
    shown = recipe({"agent": {"daemonset": {"enabled": True, "hostPath": "/srv/frd"}}})
    assert "initContainers" not in shown
    assert shown["volumes"] == [{"name": "frd", "hostPath": {"path": "/srv/frd"}}]


def test_the_notes_say_what_an_agent_as_root_lacks_or_needs() -> None:
    """Without a capability, what it cannot read; with one, the Pod Security level of the job; as
    another user, neither."""
    lacks, needs = "capabilities={SYS_PTRACE}", "Pod Security level `privileged`, for SYS_PTRACE"
    root = {"runAsUser": 0}
    for sidecar, shown in (
        ({}, (False, False)),
        (root, (True, False)),
        (root | {"capabilities": ["SYS_PTRACE"]}, (False, True)),
    ):
        notes = render({"agent": {"sidecar": sidecar}}).notes
        assert (lacks in notes, needs in notes) == shown
        assert "exec POD --container frd-agent -- frd doctor" in notes


def test_the_notes_say_whose_ranks_the_daemonset_reads() -> None:
    """Of root, of one other user, or of all."""
    for values, words in (
        ({}, "read ranks of root only"),
        ({"runAsUser": 1000}, "read ranks of uid 1000 only"),
        ({"capabilities": ["DAC_OVERRIDE"]}, ""),
    ):
        notes = render({"agent": {"daemonset": {"enabled": True} | values}}).notes
        assert words in notes
        assert ("The agents read" in notes) == bool(words)


def test_commands_in_the_agents_container_find_the_ranks() -> None:
    """A typed command has no --run-dir; the variable has the same directory, for both agents."""
    pod = render({"agent": {"daemonset": {"enabled": True}}}).pod("DaemonSet")
    for agent in (recipe()["initContainers"][1], pod["containers"][0]):
        assert f"--run-dir={variables(agent)['FRD_RUN_DIR']}" in agent["command"]
