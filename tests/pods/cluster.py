"""A cluster of one node, as far as a test needs one: it runs pods as the kubelet would, in its
order, and knows names as the cluster's DNS would.

The service is that of the rendered chart, a job is that of examples/kubernetes/job.yaml. What a
test changes in them is visible in the test.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import yaml

from frd.cli.client import Client
from tests.helm.chart import Rendered, recipe, render
from tests.helm.test_container import example
from tests.pods.engine import NETWORK, ROOT, execute, inspect, podman, read_log
from tests.pods.images import TORCH, site_packages
from tests.pods.manifests import Object, Template, command, make_volumes, options
from tests.world.daemons import until

T = TypeVar("T")
JOB: Final = ROOT / "examples/kubernetes/job.yaml"
STALL_AFTER_S: Final = 5.0
PATIENCE_S: Final = 120.0
"""Limit for what takes seconds on an idle machine."""
VALUES: Final[Mapping[str, Any]] = {
    "agent": {"namespaces": ["training"]},
    "config": {"policy": {"stall_after_s": STALL_AFTER_S}},
}
"""Values of the chart; docs/kubernetes.md says that users set the first."""
_PROBE_S: Final = 2.0
_LEAST_GRACE_S: Final = 2
"""Of a sidecar: the kubelet's minimumGracePeriodInSeconds."""


class Pod:
    """Started: init containers one after the other, then sidecars, then the others."""

    def __init__(self, template: Template, volumes: Mapping[str, Path]) -> None:
        self.template = template
        self.volumes = volumes
        self._id = f"{template.name}-{uuid.uuid4().hex[:8]}"
        podman(
            "pod",
            "create",
            f"--name={self._id}",
            f"--hostname={template.name}",
            f"--network={NETWORK}",
            f"--share={template.shares()}",
        )
        self._infra = inspect(self._id, "pod")["InfraContainerID"]
        podman("pod", "start", self._id)
        found = inspect(self._infra)
        self.address = str(found["NetworkSettings"]["Networks"][NETWORK]["IPAddress"])
        self._hosts = Path(found["HostsPath"])
        own = (
            f"{template.name}.{template.spec['subdomain']}" if "subdomain" in template.spec else ""
        )
        full = f"{own}.{template.namespace}.svc.cluster.local " if own else ""
        self._hosts.write_text(f"127.0.0.1 localhost\n{self.address} {full}{template.name}\n")
        self._logs: dict[str, Path] = {}

    def start(self) -> None:
        spec = self.template.spec
        for container in spec.get("initContainers", ()):
            self._run(container, ends=not container.get("restartPolicy"))
        for container in spec["containers"]:
            self._run(container)

    def know(self, names: Mapping[str, str]) -> None:
        """Addresses by name, for all containers of the pod, now and later."""
        lines = [f"{address} {name}\n" for name, address in names.items()]
        with self._hosts.open("a") as file:
            file.writelines(lines)

    def container(self, name: str) -> str:
        """Its name for podman."""
        return f"{self._id}-{name}"

    def pid(self, name: str) -> int:
        """The first process of a container, as the machine numbers it."""
        return int(inspect(self.container(name))["State"]["Pid"])

    def processes(self, name: str) -> list[int]:
        """All processes of a container, as the machine numbers them."""
        path = self.cgroup(name, "memory") / "cgroup.procs"
        return [int(line) for line in path.read_text().split()]

    def cgroup(self, name: str, controller: str) -> Path:
        """On the machine."""
        lines = Path(f"/proc/{self.pid(name)}/cgroup").read_text().splitlines()
        paths = {line.split(":")[1]: line.split(":")[2] for line in lines}
        if controller in paths:
            return Path(f"/sys/fs/cgroup/{controller}{paths[controller]}")
        return Path(f"/sys/fs/cgroup{paths['']}")

    def is_running(self, name: str) -> bool:
        return bool(inspect(self.container(name))["State"]["Running"])

    def exit_code(self, name: str) -> int:
        return int(inspect(self.container(name))["State"]["ExitCode"])

    def logs(self, name: str) -> str:
        """What a container has written so far."""
        if name not in self._logs:
            found = inspect(self.container(name))
            self._logs[name] = Path(found["HostConfig"]["LogConfig"]["Path"])
        return read_log(self._logs[name])

    def exec(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        return execute(self.container(name), *command)

    def kill(self, name: str, signal: str = "KILL") -> None:
        """A signal to the container's first process."""
        podman("kill", "--signal", signal, self.container(name))

    def restart(self, name: str) -> None:
        """What the kubelet does when a sidecar has ended: a new container on the same volumes."""
        podman("wait", self.container(name))
        podman("rm", self.container(name))
        self._logs.pop(name, None)
        (spec,) = (c for c in self._containers() if c["name"] == name)
        self._run(spec)

    def stop(self) -> None:
        """As for a deletion: TERM to the containers, then to the sidecars, for which two seconds
        are left if the containers took the whole grace period."""
        grace_s = self.template.spec.get("terminationGracePeriodSeconds", 30)
        ends_s = time.monotonic() + grace_s
        for group in filter(None, (self.template.spec["containers"], self.template.sidecars)):
            left_s = max(_LEAST_GRACE_S, round(ends_s - time.monotonic()))
            names = [self.container(c["name"]) for c in group]
            podman("stop", "--ignore", "--time", str(left_s), *names)

    def delete(self) -> None:
        self.stop()
        self.remove()

    def kill_everything(self) -> None:
        """SIGKILL to all processes of all containers together: a deletion by force."""
        kill([pid for c in self._containers() for pid in self._alive(c["name"])])

    def remove(self) -> None:
        podman("pod", "rm", "--force", "--time", "0", self._id, check=False)

    def report(self) -> str:
        """The last lines that its containers wrote."""
        parts = []
        for container in self._containers():
            with contextlib.suppress(Exception):  # it may not have started
                name = container["name"]
                parts.append(f"--- {self.template.name} {name}:\n{self.logs(name)[-2500:]}")
        return "\n".join(parts)

    def _alive(self, name: str) -> list[int]:
        return self.processes(name) if self.is_running(name) else []

    def _containers(self) -> list[Object]:
        spec = self.template.spec
        return [*spec.get("initContainers", ()), *spec["containers"]]

    def _run(self, container: Object, ends: bool = False) -> None:
        name = f"--name={self.container(container['name'])}"
        given = options(self.template, container, self.volumes)
        if container["image"].startswith("training"):
            given.append(f"--volume={site_packages()}:{TORCH}:ro")  # as if the image had it
        how = [] if ends else ["--detach"]
        podman("run", *how, f"--pod={self._id}", name, *given, *command(container))


class Cluster:
    """Pods of one test; removes them at the end."""

    def __init__(self, folder: Path, values: Mapping[str, Any] = VALUES) -> None:
        self.folder = folder
        self.values = values
        self.rendered: Rendered = render(values)
        self.names: dict[str, str] = {}
        self.pods: list[Pod] = []
        self.service: Pod

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pod in reversed(self.pods):
            pod.remove()

    def create(self, template: Template, names: Sequence[str] = ()) -> Pod:
        """A pod that is not started, but known to the others by these names."""
        volumes = make_volumes(template, self.rendered.objects, self.folder)
        pod = Pod(template, volumes)
        pod.know(self.names)
        new = dict.fromkeys(names, pod.address)
        self.pods.append(pod)
        for one in self.pods:
            one.know(new)
        self.names |= new
        return pod

    def start_service(self) -> Client:
        """The StatefulSet's pod, once its probes succeed."""
        thing = self.rendered.one("StatefulSet")
        template = Template(
            f"{thing['metadata']['name']}-0",
            thing["metadata"]["namespace"],
            thing["spec"]["template"]["spec"],
            thing["spec"]["template"]["metadata"]["labels"],
            claims=tuple(c["metadata"]["name"] for c in thing["spec"]["volumeClaimTemplates"]),
        )
        services = [s["metadata"] for s in self.rendered.of("Service")]
        names = [f"{meta['name']}.{meta['namespace']}.svc" for meta in services]
        self.service = self.create(template, names)
        self.service.start()
        (container,) = template.spec["containers"]
        for kind in ("startupProbe", "readinessProbe"):
            probe = container[kind]["httpGet"]
            until(lambda probe=probe: self._answers(container, probe), self.report, PATIENCE_S)  # type: ignore[misc]  # mypy cannot infer the default's type
        return self.client()

    def client(self) -> Client:
        """To the service's HTTP port, with the operator's token, as through a forwarded port."""
        secret = self.rendered.one("Secret", "frd-tls")["data"]
        context = ssl.create_default_context(cadata=base64.b64decode(secret["ca.crt"]).decode())
        context.check_hostname = False  # the certificate names the Service, not the pod
        token = base64.b64decode(self.rendered.one("Secret", "frd-tokens")["data"]["operator"])
        return Client(f"{self.service.address}:9374", tls=context, token=token.decode())

    def start_job(
        self,
        ranks: int = 3,
        pods: int = 1,
        *,
        name: str = "train",
        edit: Callable[[Object], None] = lambda spec: None,
        sidecar: Mapping[str, Any] | None = None,
    ) -> Job:
        """The pods of examples/kubernetes/job.yaml, each with so many ranks.

        `edit` changes the pod's specification. `sidecar` are values of agent.sidecar: the parts
        of frd are then those that the chart's notes show for these values.
        """
        _, read = example(JOB)
        spec = copy.deepcopy(read["spec"])
        if sidecar is not None:
            agent = {**self.values["agent"], "sidecar": sidecar}
            shown = recipe({**self.values, "agent": agent})
            spec["initContainers"] = shown["initContainers"]
        service, job = yaml.safe_load_all(JOB.read_text("utf-8"))
        namespace, first = job["metadata"]["namespace"], f"{job['metadata']['name']}-0."
        (training,) = spec["containers"]
        words = [_count(word, ranks, pods) for word in training["command"]]
        training["command"] = [word.replace(first, f"{name}-0.") for word in words]
        edit(spec)
        domain = service["metadata"]["name"]
        assert domain == spec["subdomain"]
        labels = read["metadata"]["labels"] | {"batch.kubernetes.io/job-name": name}
        created = []
        for index in range(pods):
            index_env = {"JOB_COMPLETION_INDEX": str(index)}
            template = Template(f"{name}-{index}", namespace, spec, labels, index_env)
            full = f"{name}-{index}.{domain}"
            created.append(self.create(template, [full, f"{full}.{namespace}.svc.cluster.local"]))
        for pod in created:
            pod.start()
        return Job(self, f"{namespace}/{name}", created, ranks * pods)

    def report(self) -> str:
        return "\n".join(pod.report() for pod in self.pods)

    def _answers(self, container: Object, probe: Object) -> bool:
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert probe["scheme"] == "HTTPS"
        context = ssl._create_unverified_context()  # as the kubelet does
        connection = http.client.HTTPSConnection(
            self.service.address, ports[probe["port"]], timeout=_PROBE_S, context=context
        )
        try:
            connection.request("GET", probe["path"])
            return connection.getresponse().status < 400
        except OSError:
            return False
        finally:
            connection.close()


class Job:
    """A running job, and what the service says of it."""

    def __init__(self, cluster: Cluster, name: str, pods: Sequence[Pod], world: int) -> None:
        self.cluster = cluster
        self.name = name
        self.pods = pods
        self.world = world
        self.client = cluster.client()

    @property
    def pod(self) -> Pod:
        return self.pods[0]

    def until(
        self, condition: Callable[[], T | None], what: str, within_s: float = PATIENCE_S
    ) -> T:
        return until(condition, lambda: f"{what}: {self.report()}", within_s)

    def details(self) -> dict[str, Any]:
        """What the service knows of the job; nothing before the agent has named it."""
        path = f"/api/v1/jobs/{quote(self.name, safe='')}"
        found: dict[str, Any] = self.client.get(path, {"memory": "all"})
        return found

    def line(self) -> dict[str, Any]:
        """The job in short: its state, and how many ranks are in each."""
        (found,) = (x for x in self.client.get("/api/v1/jobs")["jobs"] if x["job"] == self.name)
        return dict(found)

    def blind(self) -> list[str]:
        """Why the service does not see all of it."""
        query = {"job": self.name}
        reasons: list[str] = self.client.get("/api/v1/findings", query)["watching"]["blind"]
        return reasons

    def metric(self, name: str) -> float:
        """The value of the job's series."""
        text = self.client.text("/metrics")
        (value,) = re.findall(rf'^{name}{{job="{self.name}".*}} (.+)$', text, re.MULTILINE)
        return float(value)

    def until_watched(self) -> None:
        """All ranks train, and the service has matched collectives of theirs."""

        def watched() -> bool:
            known = [one["job"] for one in self.client.get("/api/v1/jobs")["jobs"]]
            if self.name not in known:
                return False
            return self.matched() > 10

        self.until(watched, f"{self.name} is watched")

    def matched(self) -> int:
        """Collectives of all groups that are complete."""
        return sum(int(group["matched"]) for group in self.details()["groups"])

    def break_(self, fault: str) -> None:
        """Let it happen: see contexts/training/train.py."""
        for pod in self.pods:
            path = pod.volumes["frd"] / "fault"
            path.with_suffix(".new").write_text(fault)
            path.with_suffix(".new").rename(path)

    def findings(self, **query: str) -> list[dict[str, Any]]:
        found = self.client.get("/api/v1/findings", query)["findings"]
        return [one for one in found if one["job"] == self.name]

    def _whole(self, finding: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/api/v1/findings/{finding['id']}")
        return found

    def finding(
        self, holds: Callable[[dict[str, Any]], object] = lambda found: True, kind: str = ""
    ) -> dict[str, Any]:
        """The whole first finding of that kind for which `holds`."""

        def found() -> dict[str, Any] | None:
            for one in self.findings():
                whole = self._whole(one)
                if kind in ("", whole["kind"]) and holds(whole):
                    return whole
            return None

        return self.until(found, "a finding")

    def ended(self) -> dict[str, Any]:
        """The finding about the rank that ended first, once it says why."""
        return self.finding(lambda one: one["suspects"], kind="rank_lost")

    def broke_s(self) -> float:
        """When the fault began, by the clock of the machine."""
        text = "".join(pod.logs("training") for pod in self.pods)
        return min(int(at) for at in re.findall(r"breaks at (\d+)", text)) / 1e9

    def machine_bytes(self) -> int:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def frd(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command in the service's pod."""
        return self.cluster.service.exec("frd", "frd", *arguments)

    def report(self) -> str:
        """For a test that fails."""
        found = json.dumps([self._whole(one) for one in self.findings()], indent=1)
        return f"{found}\n{self.cluster.report()}"


def kill(pids: Sequence[int]) -> None:
    """SIGKILL to processes of a container, from outside."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _count(word: str, ranks: int, pods: int) -> str:
    for option, number in (("--nnodes=", pods), ("--nproc-per-node=", ranks)):
        if word.startswith(option):
            return f"{option}{number}"
    return word
