"""One demo from start to end: start the job, inject the fault, wait for the finding.

`play` reports each look at the service; the caller draws it. Whether the demo succeeded is decided
here alone, by comparing the service's findings with the scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frd.cli.client import Client, job_path
from frd.cli.commands.demo.replicas import Takeover, kill_owner, start_cluster
from frd.cli.commands.demo.scenarios import disagreements
from frd.cli.commands.demo.stage import Stage, watch
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
