"""Real daemons that faults hit: one service and some agents, each in its own process.

They keep their addresses and folders over a restart, as under a supervisor. Tests read only the
HTTP API and the metrics, as users and Prometheus do.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from tests.e2e.faults.account import Account, account
from tests.e2e.faults.job import Training
from tests.world import daemons
from tests.world.daemons import PATIENCE_S, fetch, free_port, metric

until = partial(daemons.until, ignoring=OSError)
"""A daemon that does not answer gives nothing."""


class Daemon:
    """One process that can be killed, stopped and started again."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.command = list(command)
        self.log = log
        self.environment = {**os.environ, **(environment or {})}
        self.process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=log, text=True, env=self.environment
            )

    def first_line(self) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def freeze(self) -> None:
        """Returns once it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class World:
    """A service and its agents below one folder.

    `environment` is the service's, and `policy` are keys of its policy.
    """

    def __init__(
        self,
        folder: Path,
        *,
        data_dir: Path | None = None,
        environment: Mapping[str, str] | None = None,
        **policy: float,
    ) -> None:
        self.folder = folder
        self.data_dir = data_dir or folder / "data"
        self.grpc, self.http = (f"127.0.0.1:{free_port()}" for _ in range(2))
        command = [sys.executable, "-m", "frd", "serve", "--data-dir", str(self.data_dir)]
        command += ["--grpc", self.grpc, "--http", self.http]
        policies = {f"FRD_POLICY__{key.upper()}": str(value) for key, value in policy.items()}
        self.service = Daemon(command, folder / "service.log", policies | dict(environment or {}))
        self.agents: list[Daemon] = []
        self._metrics_of: list[str] = []

    def __enter__(self) -> Self:
        self.start_service()
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in (*self.agents, self.service):
            daemon.kill()

    def start_service(self) -> None:
        self.service.start()
        said = self.service.first_line()
        assert said, f"the service does not start: {self.service.log.read_text()[-500:]}"
        assert json.loads(said) == {"grpc": self.grpc, "http": self.http}

    def run_dir(self, number: int) -> Path:
        return self.folder / f"run{number}"

    def start_agent(self, through: str = "", *, samples_memory: bool = False) -> Daemon:
        """The next one; `through` is where it finds the service, if not where that is."""
        number = len(self.agents)
        self._metrics_of.append(f"127.0.0.1:{free_port()}")
        command = [sys.executable, "-m", "frd_agent", "run", "--service", through or self.grpc]
        command += ["--run-dir", str(self.run_dir(number)), "--metrics", self._metrics_of[-1]]
        daemon = Daemon(
            command,
            self.folder / f"agent{number}.log",
            {"FRD_AGENT_NODE": f"node{number}"}
            | ({} if samples_memory else {"FRD_AGENT_MEMORY_HZ": "0"}),
        )
        self.agents.append(daemon)
        daemon.start()
        return daemon

    def begin(self, training: Training) -> None:
        """All agents speak, and the job begins under their eyes."""
        agents = len(self.agents)
        until(lambda: self.reporting(agents), "agents are missing: see their logs", 3 * PATIENCE_S)
        training.go_on()

    # -- what it says --------------------------------------------------------------------------

    def get(self, path: str, timeout_s: float = 10.0) -> Any:
        return json.loads(fetch(self.http, path, timeout_s))

    def findings(self, state: str = "") -> list[dict[str, Any]]:
        query = f"?state={state}" if state else ""
        found: list[dict[str, Any]] = self.get(f"/api/v1/findings{query}")["findings"]
        return found

    def metric(self, series: str) -> float:
        return metric(self.http, series)

    def reporting(self, agents: int) -> bool:
        return self.metric("frd_agents_reporting") == agents

    def steps(self, training: Training) -> int:
        """That all ranks have completed, as far as the service knows."""
        groups = self.get(f"/api/v1/jobs/{training.job}")["groups"]
        return max((group["completed"] for group in groups), default=0)

    def agent_metric(self, number: int, series: str) -> float:
        return metric(self._metrics_of[number], series)

    def account(self, training: Training) -> Account:
        """As far as the service has come; see `settled`."""
        journal = self.data_dir / "journal"
        return account(journal, training.job, training.joined, training.completed)

    def settled(self, training: Training, within_s: float = PATIENCE_S) -> Account:
        """The job rests: the account, once it balances."""
        last: list[Account] = []
        gap = 0

        def balanced() -> bool:
            nonlocal gap
            last[:] = [self.account(training)]
            gap = int(self.metric("frd_telemetry_gap_entries_total"))
            return last[0].balances(gap)

        until(balanced, lambda: f"{last[0]}; known to be missing: {gap}", within_s)
        return last[0]


def blamed(findings: Sequence[Mapping[str, Any]], confidence: str = "") -> set[tuple[int, str]]:
    """Suspects and reasons, of that confidence only where one is given."""
    return {
        (suspect["rank"], suspect["reason"])
        for finding in findings
        for suspect in finding["suspects"]
        if confidence in ("", suspect["confidence"])
    }
