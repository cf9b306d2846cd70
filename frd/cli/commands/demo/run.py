"""One demo from start to end: start the job, inject the fault, wait for the finding.

`play` reports each look at the service; the caller draws it. Whether the demo succeeded is decided
here alone, by comparing the service's findings with the scenario.

The demo's cluster has three replicas of the service on three NATS servers. The replica that watches
the job is killed as soon as the finding is there. The finding has to come from another replica,
with the same id and the same suspects.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from frd.cli.client import Client, job_path
from frd.cli.commands.demo.scenarios import disagreements
from frd.cli.commands.demo.stage import ANY_PORTS, Addresses, Stage, free_port, watch
from frd.cluster import INSTALL
from frd.cluster.cells import cell_of
from frd.errors import FrdError

_WITHIN_S = 50.0
_POLL_S = 0.25
_HEALTHY_FOR_S = 12.0
_STEPS_BEFORE_FAULT = 40
_EVIDENCE_WITHIN_S = 8.0
_SHOWN_METRICS = (
    "frd_stalled_collectives",
    "frd_stall_seconds",
    "frd_findings_open",
    "frd_suspect",
)

REPLICAS: Final = 3
_OWNED_WITHIN_S: Final = 60.0
_TAKEN_WITHIN_S: Final = 30.0
_ASK_EVERY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Scene:
    """One look at the demo."""

    passed_s: float
    doing: str
    page: str = ""
    """The address of the service's page, once it runs."""
    job: Mapping[str, Any] | None = None
    """`/api/v1/jobs/{job}`, None before the service has heard of the job."""
    findings: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Takeover:
    """How another replica went on after the one that watched the job was killed."""

    killed: str
    by: str
    http: str
    """Where the other one listens."""
    seconds: float
    """From the kill until another replica showed the finding."""
    findings: Sequence[Mapping[str, Any]]
    """As that replica shows them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended: `problems` is empty when the findings match the scenario."""

    findings: Sequence[Mapping[str, Any]]
    metrics: Sequence[str]
    problems: Sequence[str]
    url: str
    """Of a service that still runs."""
    takeover: Takeover | None = None


def play(stage: Stage, show: Callable[[Scene], None]) -> Outcome:
    """Run the staged scenario; `show` gets every scene.

    Raises:
        FrdError: a part of the demo did not start.
    """
    scenario = stage.scenario
    show(Scene(0.0, "starting the service"))
    services = start_cluster(stage) if scenario.is_replicated else [stage.start_service()]
    client = Client(services[0].http)
    page = f"{client.url}/"
    stage.start_agent(*services)
    stage.start_job()

    running_at = settled_at = None
    injected = scenario.signal is None
    findings: Sequence[Mapping[str, Any]] = ()
    for passed_s in watch(_POLL_S, _WITHIN_S):
        job, findings = _look(client, stage.job)
        if running_at is None and _steps(job) >= _STEPS_BEFORE_FAULT:
            running_at = passed_s
        if running_at is not None and not injected:
            stage.inject()
            injected = True
        show(Scene(passed_s, _doing(running_at, injected, findings), page, job, findings))
        if scenario.expected is None:
            if findings or (running_at is not None and passed_s - running_at > _HEALTHY_FOR_S):
                break
        elif not _problems(stage, findings):
            settled_at = passed_s if settled_at is None else settled_at
            if _has_evidence(findings) or passed_s - settled_at > _EVIDENCE_WITHIN_S:
                break
        else:
            settled_at = None

    problems = _problems(stage, findings)
    if scenario.expected is None and running_at is None:
        problems.append("the job never ran: " + stage.log("rank0")[-300:])
    if problems and not findings:
        problems += [f"{name}: {stage.log(name)[-300:]}" for name in ("agent", "service", "rank0")]
    metrics = _alert_metrics(client)
    if problems or not scenario.is_replicated:
        return Outcome(findings, metrics, problems, client.url)
    show(Scene(passed_s, "found; the replica that watches the job is killed", page, job, findings))
    takeover = kill_owner(stage, services, findings[0]["id"])
    problems = _problems(stage, takeover.findings)
    return Outcome(takeover.findings, metrics, problems, Client(takeover.http).url, takeover)


def _look(client: Client, job: str) -> tuple[Mapping[str, Any] | None, list[Mapping[str, Any]]]:
    try:
        known = [line["job"] for line in client.get("/api/v1/jobs")["jobs"]]
        if job not in known:
            return None, []
        findings = client.get("/api/v1/findings", {"job": job})["findings"]
        return client.get(job_path(job)), findings
    except FrdError:
        return None, []


def _steps(job: Mapping[str, Any] | None) -> int:
    """Highest collective that a whole group has completed."""
    return max((group["completed"] for group in job["groups"]), default=0) if job else 0


def _doing(running_at: float | None, injected: bool, findings: Sequence[Mapping[str, Any]]) -> str:
    if running_at is None:
        return "the ranks start (importing torch takes some seconds)"
    if any(f["state"] == "open" for f in findings):
        return "found; collecting stacks and dumps"
    if findings:
        return "the job went on"
    return "the job runs" if injected else "the job runs; the fault comes next"


def _problems(stage: Stage, findings: Sequence[Mapping[str, Any]]) -> list[str]:
    problems = disagreements(stage.scenario, stage.world, findings)
    if stage.scenario.recovers and any(f["state"] == "open" for f in findings):
        problems.append("the finding did not close after the job went on")
    return problems


def _has_evidence(findings: Sequence[Mapping[str, Any]]) -> bool:
    """A straggler gets no dump, because it does not stand still."""
    return all(f["state"] == "closed" or f["kind"] == "straggler" or "dump" in f for f in findings)


def _alert_metrics(client: Client) -> list[str]:
    try:
        lines = client.text("/metrics").splitlines()
    except FrdError:
        return []
    return [
        line
        for line in lines
        if line.startswith(_SHOWN_METRICS) and not line.endswith((" 0.0", " 0"))
    ]


# -- the demo's cluster ---------------------------------------------------------------------------


def start_cluster(stage: Stage) -> list[Addresses]:
    """Start NATS servers and replicas; returns their addresses once all cells have an owner.

    Raises:
        FrdError: a program is missing, or did not start.
    """
    servers = _start_nats(stage)
    replicas = [
        stage.start_service(
            ANY_PORTS,
            name=_name(number),
            environment={
                "FRD_CLUSTER__SERVERS": ",".join(servers),
                "FRD_CLUSTER__MEMBER": _name(number),
            },
        )
        for number in range(REPLICAS)
    ]
    for _ in watch(_ASK_EVERY_S, _OWNED_WITHIN_S):
        if not Client(replicas[0].http).get("/api/v1/cluster")["unowned"]:
            return replicas
    raise FrdError(f"demo: failover: cells without an owner: {stage.log(_name(0))[-500:]}")


def kill_owner(stage: Stage, replicas: Sequence[Addresses], finding_id: str) -> Takeover:
    """Kill the replica that watches the job, and wait until another one shows the finding.

    Raises:
        FrdError: no other replica shows it in time.
    """
    owner = Client(replicas[0].http).get("/api/v1/cluster")["owners"][cell_of(stage.job)]
    os.killpg(stage.process(owner).pid, signal.SIGKILL)
    stage.process(owner).wait()
    began = time.monotonic()
    left = [at for number, at in enumerate(replicas) if _name(number) != owner]
    for _ in watch(_ASK_EVERY_S, _TAKEN_WITHIN_S):
        for at in left:
            with contextlib.suppress(FrdError):
                cluster = Client(at.http).get("/api/v1/cluster")
                by = cluster["owners"][cell_of(stage.job)]
                query = {"job": stage.job, "state": "open"}
                found = Client(at.http).get("/api/v1/findings", query)["findings"]
                if by not in (None, owner) and finding_id in [f["id"] for f in found]:
                    return Takeover(owner, by, at.http, time.monotonic() - began, found)
    raise FrdError(f"demo: failover: finding {finding_id} is gone: {stage.log(_name(1))[-500:]}")


def _name(number: int) -> str:
    return f"frd-{number}"


def _start_nats(stage: Stage) -> list[str]:
    """Three servers on free ports that form one cluster; returns their URLs."""
    if importlib.util.find_spec("nats") is None:
        raise FrdError(f"demo: failover: nats-py is missing: {INSTALL}")
    installed = Path(sys.executable).with_name("nats-server")
    program = str(installed) if installed.exists() else shutil.which("nats-server")
    if program is None:
        raise FrdError(
            "demo: failover: nats-server: not found: install NATS 2.12 or newer; see "
            "docs/cluster.md"
        )
    ports = [(free_port(), free_port()) for _ in range(REPLICAS)]
    routes = ", ".join(f"nats://127.0.0.1:{route}" for _, route in ports)
    for number, (client, route) in enumerate(ports):
        name = f"nats-{number}"
        config = stage.folder / f"{name}.conf"
        config.write_text(
            f"server_name: {name}\n"
            f"listen: 127.0.0.1:{client}\n"
            f'jetstream {{store_dir: "{stage.folder / name}", max_file_store: 200GB, '
            "sync_interval: always}\n"
            f"cluster {{name: demo, listen: 127.0.0.1:{route}, routes: [{routes}]}}\n"
        )
        stage.spawn(name, [program, "--config", str(config)])
    return [f"nats://127.0.0.1:{client}" for client, _ in ports]
