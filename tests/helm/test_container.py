"""The container file, as far as it can be tested without a container engine.

The file is parsed, its build context is copied as .dockerignore says, and its pip steps run on that
copy. `make test-pods` builds the whole image.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import frd
from frd_agent import config as agent_config
from frd_agent.exec import environment
from scripts.requirements import pins
from tests.helm.chart import ROOT, Cluster, Object, check, containers, recipe, render
from tests.world.daemons import run_program

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@dataclass(frozen=True, slots=True)
class Step:
    stage: int
    name: str
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)


def steps() -> list[Step]:
    text = (ROOT / "Dockerfile").read_text("utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    found: list[Step] = []
    stage = -1
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        stage += name == "FROM"
        found.append(Step(stage, name, rest))
    return found


def final(name: str) -> list[Step]:
    last = steps()[-1].stage
    return [step for step in steps() if step.stage == last and step.name == name]


def context(target: Path) -> Path:
    """The build context after .dockerignore, where the last matching line counts."""
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*", "what is not named is not sent"
    sent = [line[1:] for line in patterns if line.startswith("!")]
    held_back = [line for line in patterns[1:] if not line.startswith("!")]
    assert held_back == patterns[len(sent) + 1 :]

    def ignored(folder: str, names: list[str]) -> set[str]:
        here = Path(folder).relative_to(ROOT)
        return {
            name
            for name in names
            for pattern in held_back
            if name == pattern.removeprefix("**/") or str(here / name) == pattern
        }

    for name in sent:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignored)
        else:
            shutil.copy(source, target / name)
    return target


def test_two_stages_of_one_pinned_base() -> None:
    """The final image has only the result of the build; the base is pinned to a patch release, and
    the builder may name another one, with its digest."""
    assert [step.words[0] for step in steps() if step.name == "FROM"] == ["${BASE}"] * 2
    base = steps()[0]  # before the first stage, so that both have it
    assert (base.stage, base.name) == (-1, "ARG")
    version = re.fullmatch(r"BASE=python:(\d+\.\d+)\.\d+-slim-[a-z]+", base.text)
    assert version is not None
    assert f"Programming Language :: Python :: {version[1]}" in PYPROJECT["project"]["classifiers"]


def test_it_does_not_run_as_root() -> None:
    """The user is numeric, which runAsNonRoot can check, and the same as in the chart."""
    (user,) = final("USER")
    uid, _, gid = user.text.partition(":")
    pod = render().pod()["securityContext"]
    assert (int(uid), int(gid)) == (pod["runAsUser"], pod["runAsGroup"])
    assert not [step for step in final("RUN") if "root" in step.text]


def test_the_ports_are_frds() -> None:
    """The exposed ports are the default ports of service and agent."""
    (exposed,) = final("EXPOSE")
    rendered = render({"agent": {"daemonset": {"enabled": True}}})
    used = {
        str(port["containerPort"])
        for _, pod in rendered.pods()
        for container in containers(pod)
        for port in container.get("ports", ())
    }
    assert set(exposed.words) == used


def copied() -> dict[str, str]:
    """Targets of the final stage, with their sources in the first one."""
    words = [step.words for step in final("COPY")]
    assert {options[0] for options in words} == {"--from=build"}
    return {target: source for _, source, target in words}


def test_a_change_of_the_source_leaves_the_dependencies_layer() -> None:
    """Dependencies are installed before the source is copied, and are a layer below it."""
    names = [step.text for step in steps() if step.stage == 0 and step.name in ("COPY", "RUN")]
    everything = names.index(". .")
    (installed,) = (at for at, text in enumerate(names) if "--requirement" in text)
    assert names[:installed] == ["requirements requirements"]
    assert installed < everything
    order = [step.words[1] for step in final("COPY")]
    assert order[:2] == ["/opt/frd/venv", "/frd"]


def test_the_image_has_no_installer() -> None:
    """No pip and setuptools, neither in the virtual environment nor in the base's Python."""
    (venv_made,) = (step for step in steps() if "python -m venv" in step.text)
    assert "--without-pip" in venv_made.words
    (removed,) = final("RUN")
    assert {"uninstall", "pip", "setuptools"} <= set(removed.words)
    assert "ensurepip" in removed.text


def test_the_labels_are_those_of_the_package() -> None:
    """OCI labels repeat what pyproject.toml says; the version may be given to the build."""
    (label,), (arg,) = final("LABEL"), final("ARG")
    found = dict(word.split("=", 1) for word in label.words)
    project = PYPROJECT["project"]
    name, _, default = arg.text.partition("=")
    assert (name, default) == ("VERSION", frd.__version__)
    assert found == {
        "org.opencontainers.image.title": "frd",
        "org.opencontainers.image.description": project["description"],
        "org.opencontainers.image.licenses": project["license"],
        "org.opencontainers.image.source": project["urls"]["Source"],
        "org.opencontainers.image.version": "$VERSION",
    }


def test_every_pin_of_the_image_is_a_tested_one() -> None:
    """The image has what the package and the extra for clusters need, in files that `make` installs
    from, too. pip takes only files whose hashes these have; the builds download nothing."""
    commands = [
        shlex.split(command)
        for step in steps()
        for command in step.text.split("&&")
        if re.match(r" *pip .*(install|wheel)\b", command) and "uninstall" not in command
    ]
    for words in commands:
        files = [words[at + 1] for at, word in enumerate(words) if word == "--requirement"]
        assert "--require-hashes" in words or not files
        assert files or words[-1] in (".", "/needed/*.whl", "/wheels/*.whl")
        assert "--no-deps" in words
        assert "wheel" not in words or "--no-build-isolation" in words
    (installed,) = (words for words in commands if "requirements/service.txt" in words)
    files = [words for words in installed if words.startswith("requirements/")]
    assert files == ["requirements/service.txt", "requirements/cluster.txt"]
    pinned = {pin.partition("==")[0] for file in files for pin in pins((ROOT / file).read_text())}
    project = PYPROJECT["project"]
    for one in [*project["dependencies"], *project["optional-dependencies"]["cluster"]]:
        assert re.split(r"[^\w-]", one)[0] in pinned
    lines = (ROOT / "requirements/dev.txt").read_text("utf-8").splitlines()
    assert {f"-r {Path(file).name}" for file in files} <= set(lines)


def test_the_tap_is_where_the_chart_copies_it_from(tmp_path: Path) -> None:
    """The init container's `cp -r /opt/frd/tap` finds tap.py and _site in one folder."""
    sent = context(tmp_path)
    tap = {to: of for to, of in copied().items() if to != "/opt/frd/venv"}
    assert tap.keys() == {"/opt/frd/tap/tap.py", "/opt/frd/tap/_site"}
    assert all((sent / Path(source).relative_to("/src")).exists() for source in tap.values())


def test_what_the_build_installs_runs(tmp_path: Path) -> None:
    """The wheel step, run on the build context, gives a wheel with both programs, the runbooks and
    the files that commands read.

    Hatchling and the dependencies are those of this environment: what the image would download is
    pinned to the same versions.
    """
    (tmp_path / "src").mkdir()
    sent = context(tmp_path / "src")
    (build,) = (step.words for step in steps() if "/wheels ." in step.text)
    assert build[:2] == ["pip", "wheel"]
    assert "--no-build-isolation" in build
    build = [word.replace("/wheels", str(tmp_path / "wheels")) for word in build[1:]]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *build, "--no-index"], cwd=sent, check=True)
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=False)
    inside = tmp_path / "venv/bin"
    fresh = [*pip, "--python", str(inside / "python")]
    subprocess.run([*fresh, "install", "--no-deps", "--no-index", str(wheel)], check=True)
    dependencies = next(path for path in map(Path, sys.path) if (path / "click").is_dir())
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(dependencies)}
    for program, said in (("frd", f"frd {frd.__version__}"), ("frd-agent", "Usage: frd-agent")):
        option = "--version" if program == "frd" else "--help"
        done = run_program([str(inside / program), option], env=env, cwd=tmp_path)
        assert done.stdout.startswith(said), done.stderr
    made = run_program([str(inside / "frd"), "init", "conf"], env=env, cwd=tmp_path)
    assert (tmp_path / "conf/frd.toml").exists(), made.stderr
    assert list((tmp_path / "venv").rglob("frd/offline/output/page.css"))
    pages = sorted(path.name for path in (tmp_path / "venv").rglob("frd/runbooks/*"))
    assert pages == sorted(path.name for path in (ROOT / "docs/runbooks").iterdir())


# -- the agent as a sidecar of the ranks: recipe in the notes, examples, and that they work --------


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
