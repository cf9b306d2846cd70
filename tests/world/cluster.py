"""Real daemons that faults hit: one service and some agents, each in its own process.

They keep their addresses and folders over a restart, as under a supervisor. Tests read only the
HTTP API and the metrics, as users and Prometheus do.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from tests.world import daemons
from tests.world.account import Account, account
from tests.world.daemons import PATIENCE_S, free_address, get, metric
from tests.world.proxy import Proxy
from tests.world.training import Training

STALL_S: Final = 2.0
LATE_S: Final = 5.0
"""More than the 3 s that a ring of a `Scene` holds."""
HELD: Final = 2
"""The rank that stops in a `Scene`; it is on the second of two nodes, as rank 3 is."""
CULPRIT: Final = {(HELD, "cpu_stuck")}
until = partial(daemons.until, ignoring=OSError)
"""A daemon that does not answer gives nothing."""


class Daemon:
    """One process that can be killed, stopped and started again."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.command = list(command)
        self.log = log
        self.environment = environment
        self.process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self.process = daemons.start(self.command, env=self.environment, log=self.log)

    def first_line(self) -> str:
        assert self.process is not None
        return daemons.first_line(self.process)

    def freeze(self) -> None:
        assert self.process is not None
        daemons.freeze(self.process)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None:
            daemons.end(self.process)


class Cluster:
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
        self.grpc, self.http = free_address(), free_address()
        addresses = ("--grpc", self.grpc, "--http", self.http)
        command = daemons.serve_command(self.data_dir, *addresses)
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
        assert self.service.first_line(), (
            f"the service does not start: {self.service.log.read_text()[-500:]}"
        )

    def run_dir(self, number: int) -> Path:
        return self.folder / f"run{number}"

    def start_agent(self, through: str = "", *, samples_memory: bool = False) -> Daemon:
        """The next agent; `through` is the service's address for it, if it has another one."""
        number = len(self.agents)
        self._metrics_of.append(free_address())
        flags = ("--service", through or self.grpc, "--metrics", self._metrics_of[-1])
        environment = {"FRD_AGENT_NODE": f"node{number}"}
        if not samples_memory:
            environment["FRD_AGENT_MEMORY_HZ"] = "0"
        daemon = Daemon(
            daemons.agent_command(self.run_dir(number), *flags),
            self.folder / f"agent{number}.log",
            environment,
        )
        self.agents.append(daemon)
        daemon.start()
        return daemon

    def begin(self, training: Training) -> None:
        """Wait until all agents report, then let the job begin."""
        agents = len(self.agents)
        until(lambda: self.reporting(agents), "agents are missing: see their logs", 3 * PATIENCE_S)
        training.go_on()

    # -- what it reports --------------------------------------------------------------------------

    def get(self, path: str, timeout_s: float = 10.0) -> Any:
        return get(self.http, path, timeout_s)

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
        return account([journal], training.job, training.joined, training.completed)

    def settled(self, training: Training) -> Account:
        """The job rests: the account, once it balances."""
        last: list[Account] = []
        gap = 0

        def balanced() -> bool:
            nonlocal gap
            last[:] = [self.account(training)]
            gap = int(self.metric("frd_telemetry_gap_entries_total"))
            return last[0].balances(gap)

        until(balanced, lambda: f"{last[0]}; known to be missing: {gap}")
        return last[0]


def blamed(findings: Sequence[Mapping[str, Any]], confidence: str = "") -> set[tuple[int, str]]:
    """Suspects and reasons, of that confidence only where one is given."""
    return {
        (suspect["rank"], suspect["reason"])
        for finding in findings
        for suspect in finding["suspects"]
        if confidence in ("", suspect["confidence"])
    }


@dataclass(frozen=True)
class Scene:
    """A service, and a job of four ranks on two nodes; the second one's agent is behind `proxy`."""

    cluster: Cluster
    training: Training
    proxy: Proxy

    def reported(self) -> None:
        """Wait until the service knows all that the ranks have done until now."""
        steps = self.training.steps + 1
        until(lambda: self.cluster.steps(self.training) >= steps, "rows are missing")

    def named(self, confidence: str = "high") -> set[tuple[int, str]]:
        return blamed(self.cluster.findings("open"), confidence)

    def over(self, *, overrun: bool | None = False) -> None:
        """The rank that was held joins: open findings close, and every row is accounted for."""
        self.training.release(HELD)
        until(lambda: not self.cluster.findings("open"), lambda: str(self.cluster.findings("open")))
        self.accounted(overrun=overrun)

    def accounted(self, *, overrun: bool | None = False) -> None:
        """Every row is accounted for; `overrun`: rings ran over while no agent read them, or None
        if they may have."""
        self.training.rest()
        self.cluster.settled(self.training)
        is_lossy = self.cluster.metric("frd_telemetry_gap_entries_total") > 0
        assert overrun is None or is_lossy is overrun


@contextmanager
def scene(folder: Path, **options: Any) -> Iterator[Scene]:
    """A `Scene` whose job is reported; `options` of the `Cluster`."""
    with (
        Cluster(folder, stall_after_s=STALL_S, telemetry_late_s=LATE_S, **options) as cluster,
        Proxy(cluster.grpc) as proxy,
        Training([cluster.run_dir(number) for number in range(2)]) as training,
    ):
        cluster.start_agent()
        cluster.start_agent(proxy.address)
        cluster.begin(training)
        made = Scene(cluster, training, proxy)
        made.reported()
        yield made
