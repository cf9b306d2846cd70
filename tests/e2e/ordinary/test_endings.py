"""How real jobs end: frd names the first rank that ended, or reports nothing."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Any

import pytest

from frd.cli.client import Client
from frd.errors import FrdError
from tests.world import daemons
from tests.world.daemons import (
    JOBS,
    STEADY,
    Stage,
    exec_command,
    findings,
    rank_environment,
    running,
    watched,
)

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240), pytest.mark.xdist_group("endings")]
until = partial(daemons.until, ignoring=FrdError)

Finding = Mapping[str, Any]
_STALL_S = 8.0
"""Longer than a rank that has ended needs until its process is gone: torch takes seconds."""
_JUDGED_S = _STALL_S + 2.0
"""After so long no finding about a job that has ended is still to come."""


class Jobs:
    """One service and one agent for all jobs of this module."""

    def __init__(self, stage: Stage, client: Client, stack: ExitStack) -> None:
        self.stage, self.client = stage, client
        self._stack = stack
        self._numbers = count()

    def start(self, mode: str, *, world: int = 3, torchrun: bool = False) -> Job:
        """A job with a new name, also if a test is run again."""
        name = f"{mode}-{next(self._numbers)}"
        return Job(self, self._stack, mode, name, world, torchrun=torchrun)

    def findings(self, job: str) -> list[dict[str, Any]]:
        return findings(self.client, job=job)


class Job:
    """The ranks of `jobs/endings.py` in a mode, below torchrun or a process each."""

    def __init__(
        self, jobs: Jobs, stack: ExitStack, mode: str, name: str, world: int, *, torchrun: bool
    ) -> None:
        self.jobs, self.name, self.world = jobs, name, world
        python, script = [sys.executable], [str(JOBS / "endings.py"), mode]
        environments: list[dict[str, str]] = [{"OMP_NUM_THREADS": "1"}]
        if torchrun:
            python += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        else:
            port = daemons.free_port()
            environments = [rank_environment(rank, world, port) for rank in range(world)]
        command = exec_command(jobs.stage.run_dir, *python, *script)
        self.processes = [
            stack.enter_context(running(command, env={**environment, "FRD_JOB": name}))
            for environment in environments
        ]

    def steps(self) -> Job:
        """Wait until the ranks step together, and the service knows them all."""
        assert "steps" in daemons.first_line(self.processes[0])
        api = f"/api/v1/jobs/{self.name}"
        until(lambda: len(self.jobs.client.get(api)["ranks"]) == self.world, f"{self.name}: ranks")
        return self

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes:
            os.killpg(process.pid, number)

    def gone(self) -> None:
        for process in self.processes:
            process.wait(60)
        api = f"/api/v1/jobs/{self.name}"
        until(lambda: self.jobs.client.get(api)["ended"], f"{self.name}: reported as ended")

    def only(self) -> Finding:
        return self.once(lambda finding: True, "a finding")

    def once(self, is_settled: Callable[[Finding], bool], what: str) -> Finding:
        """The job's only finding, once `is_settled`: a finding may change as ranks report."""

        def settled() -> Finding | None:
            findings = self.jobs.findings(self.name)
            assert len(findings) <= 1, findings
            return next(filter(is_settled, findings), None)

        return until(settled, lambda: f"{self.name}: {what}: {self.jobs.findings(self.name)}")

    def closed(self) -> Finding:
        return self.once(lambda finding: finding["state"] == "closed", "closed")


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    with watched(STEADY, 0, _STALL_S, job=False) as (stage, client), ExitStack() as stack:
        yield Jobs(stage, client, stack)


def suspects(finding: Finding) -> list[tuple[int, str, str]]:
    return [(s["rank"], s["reason"], s["confidence"]) for s in finding["suspects"]]


@pytest.mark.recorder
def test_ctrl_c_on_a_hang_keeps_its_cause(jobs: Jobs) -> None:
    """Rank 1 hangs and is named; the user presses Ctrl-C: its cause stays, the end is added."""
    job = jobs.start("hang").steps()
    opened = job.once(lambda finding: suspects(finding)[0][2] == "high", "high")
    assert suspects(opened) == [(1, "cpu_stuck", "high")]
    job.signal(signal.SIGINT)
    job.gone()
    closed = job.closed()
    assert closed["id"] == opened["id"]
    assert suspects(closed) == suspects(opened)
    assert closed["ended_by"].startswith("ended by KeyboardInterrupt at ")
    assert closed["ended_by"] in closed["summary"]
    assert all(s["onset_at"] <= closed["opened_at"] for s in closed["suspects"])


@pytest.mark.parametrize("batches", [[2], pytest.param([5, 5], marks=pytest.mark.soak)])
def test_ctrl_c_on_healthy_jobs_is_no_finding(jobs: Jobs, batches: list[int]) -> None:
    """Every time, and SIGTERM to all, one rank of which saves a checkpoint for 3 s."""
    ended: list[Job] = []
    for size in batches:
        started = [jobs.start("healthy", world=2) for _ in range(size)]
        for job in started:
            job.steps().signal(signal.SIGINT)
        for job in started:
            job.gone()
        ended += started
    preempted = jobs.start("preempt").steps()
    preempted.signal(signal.SIGTERM)
    preempted.gone()
    time.sleep(_JUDGED_S)
    found = {job.name: jobs.findings(job.name) for job in (*ended, preempted)}
    assert not any(found.values()), found


@pytest.mark.recorder
def test_the_first_to_go_is_the_cause(jobs: Jobs) -> None:
    """A crash under torchrun, an early return, an exit status, and peers that catch and wait."""
    started = {
        "crash": jobs.start("crash", world=2, torchrun=True),
        "leave": jobs.start("leave", world=2),
        "exit": jobs.start("exit", world=2),
        "catch": jobs.start("catch"),
    }
    begins = {
        "crash": "raised RuntimeError: bad batch (endings.py:",
        "leave": "exited with status 0",
        "exit": "exited with status 1",
        "catch": "exited with status 0",
    }
    for mode, job in started.items():
        is_right = partial(names_rank_1, begins[mode], job.world)
        finding = job.once(is_right, "rank 1 ended first, the others wait")
        assert finding["kind"] == "rank_lost"
    started["catch"].once(lambda finding: "2 ranks wait for it" in finding["summary"], "both wait")


def names_rank_1(begin: str, world: int, finding: Finding) -> bool:
    """Rank 1 ended in this way, and all others are its victims."""
    return (
        suspects(finding) == [(1, "exited", "high")]
        and finding["victims"] == [rank for rank in range(world) if rank != 1]
        and finding["headline"].partition(") ")[2].startswith(begin)
    )
