"""One demo from curtain to curtain: stage the job, inject the fault, wait for the truth.

`play` yields what happens as it happens; the CLI draws it. Whether the demo succeeded is decided
here alone, by comparing the service's findings with the injected truth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frd.cli.client import Client
from frd.cli.commands.demo.scenarios import Scenario, Truth, disagreements
from frd.cli.commands.demo.stage import Addresses, Stage, watch
from frd.errors import FrdError

WITHIN_S = 50.0
_POLL_S = 0.25
_HEALTHY_FOR_S = 12.0
_STEPS_BEFORE_FAULT = 40
_EVIDENCE_WITHIN_S = 8.0


@dataclass(frozen=True, slots=True)
class Scene:
    """The demo at one moment."""

    passed_s: float
    doing: str
    job: Mapping[str, Any] | None
    """`/api/v1/jobs/{job}`, None before the service has heard of the job."""
    findings: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended: `problems` is empty when the findings match the injected truth."""

    findings: Sequence[Mapping[str, Any]]
    metrics: Sequence[str]
    problems: Sequence[str]


def play(stage: Stage) -> Iterator[Scene | Outcome]:
    """Run the staged scenario; yields scenes and, last, the outcome.

    Raises:
        FrdError: a part of the demo did not start.
    """
    scenario, truth = stage.scenario, stage.scenario.truth(stage.world)
    yield Scene(0.0, "starting the service", None, ())
    addresses = stage.start_service()
    client = Client(addresses.http)
    stage.start_agent(addresses)
    stage.start_job()

    injected = scenario.signal is None
    seen = None
    findings: Sequence[Mapping[str, Any]] = ()
    settled_at: float | None = None
    for passed in watch(_POLL_S, WITHIN_S):
        job, findings = _look(client, stage.job)
        if seen is None and _steps(job) >= _STEPS_BEFORE_FAULT:
            seen = passed
        if seen is not None and not injected:
            stage.inject()
            injected = True
        yield Scene(passed, _doing(seen, injected, findings), job, findings)
        if truth is None:
            if findings or (seen is not None and passed - seen > _HEALTHY_FOR_S):
                break
        elif _settled(scenario, truth, findings):
            settled_at = passed if settled_at is None else settled_at
            if _has_evidence(findings) or passed - settled_at > _EVIDENCE_WITHIN_S:
                break
        else:
            settled_at = None

    problems = disagreements(truth, findings)
    if scenario.recovers and any(f["state"] == "open" for f in findings):
        problems.append("the finding did not close after the job went on")
    if truth is None and seen is None:
        problems.append("the job never ran: " + stage.log("rank0")[-300:])
    if problems and not findings:
        problems += [f"{name}: {stage.log(name)[-300:]}" for name in ("agent", "service", "rank0")]
    yield Outcome(findings, _alert_metrics(client), problems)


def _look(client: Client, job: str) -> tuple[Mapping[str, Any] | None, list[Mapping[str, Any]]]:
    try:
        known = [j["job"] for j in client.get("/api/v1/jobs")["jobs"]]
        if job not in known:
            return None, []
        findings = client.get("/api/v1/findings", {"job": job})["findings"]
        return client.get(f"/api/v1/jobs/{job}"), findings
    except FrdError:
        return None, []


def _steps(job: Mapping[str, Any] | None) -> int:
    """Highest collective that a whole group has completed."""
    return max((g["completed"] for g in job["groups"]), default=0) if job else 0


def _doing(seen: float | None, injected: bool, findings: Sequence[Mapping[str, Any]]) -> str:
    if seen is None:
        return "the ranks start (importing torch takes some seconds)"
    if any(f["state"] == "open" for f in findings):
        return "found; collecting stacks and dumps"
    if findings:
        return "the job went on"
    return "the job runs" if injected else "the job runs; the fault comes next"


def _settled(scenario: Scenario, truth: Truth, findings: Sequence[Mapping[str, Any]]) -> bool:
    if disagreements(truth, findings):
        return False
    return not scenario.recovers or findings[0]["state"] == "closed"


def _has_evidence(findings: Sequence[Mapping[str, Any]]) -> bool:
    """Of a straggler no more is asked: it does not stand still."""
    return all(f["state"] == "closed" or f["kind"] == "straggler" or "dump" in f for f in findings)


def _alert_metrics(client: Client) -> list[str]:
    wanted = ("frd_stalled_collectives", "frd_stall_seconds", "frd_findings_open", "frd_suspect")
    try:
        text = client.text("/metrics")
    except FrdError:
        return []
    return [
        line
        for line in text.splitlines()
        if line.startswith(wanted) and not line.endswith((" 0.0", " 0"))
    ]


__all__ = ["WITHIN_S", "Addresses", "Outcome", "Scene", "play"]
