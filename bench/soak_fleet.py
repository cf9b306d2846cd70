"""`bench/soak.py --cluster`: replicas, NATS servers and agents that are killed at random.

As in `bench.soak`, each agent watches two scripted ranks of one healthy job, here with three
replicas and three NATS servers. Agents are killed every few seconds; a replica, more often than not
the owner of the job, is killed, ended or stopped for a while every minute in the first half; one
NATS server is killed, ended or stopped every two minutes all the time. With ``--partition``, half
of the agents are cut off for that time in the middle. Required: no rank is ever blamed, every row
that a rank recorded is in the journal of a replica, was counted as a gap, or was recorded in the
last seconds before a replica was killed; memory does not grow, and all ranks are reported again
after each fault. That shows that no row gets lost between two owners; a row may be in the journals
of both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.ingest import _rss_bytes as rss_bytes
from bench.soak_watch import (
    AGENT_EVERY_S,
    AWAY_S,
    MOST_GROWTH,
    PATIENCE_S,
    RING,
    SAMPLE_EVERY_S,
    SERVICE_EVERY_S,
    Watch,
    broken,
    kept_on_failure,
)
from tests.world import daemons
from tests.world.account import Account, account
from tests.world.cluster import Daemon, until
from tests.world.daemons import end
from tests.world.fleet import Fleet, ReplicaProcess, fleet
from tests.world.nats_servers import NatsServer
from tests.world.training import Training

JOB: Final = "soak"
NATS_EVERY_S: Final = 120.0
NATS_AWAY_S: Final = (0.5, 20.0)
STOPPED_S: Final = (2.0, 12.0)
"""A stopped process loses its cells after 3 s."""
REPLICA_SETTLE_S: Final = 180.0
"""A replica that starts gets one cell after the other; its growth is that of these cells first."""
OWNER: Final = 0.6
"""How often the owner of the job is chosen."""
MARK: Final = "distant"
"""In the names of the nodes that a partition cuts off."""


@dataclass
class Soak:
    options: argparse.Namespace
    folder: Path
    fleet: Fleet
    training: Training
    agents: list[Daemon]
    watch: Watch = field(default_factory=Watch)
    due: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    """What to start again, and when."""
    hurt: set[str] = field(default_factory=set)
    """Replicas and NATS servers that do not run."""
    events: list[str] = field(default_factory=list)
    counted: dict[str, float] = field(default_factory=dict)
    """Counters of processes of replicas, by series and process, because they end with it."""

    def __post_init__(self) -> None:
        self.dice = random.Random(self.options.seed)
        self.mortal = self.agents[len(self.agents) // 4 :]

    def run(self, until_s: float, *, kill_replicas: bool) -> None:
        now = time.monotonic()
        next_agent = next_sample = now
        next_replica = now + SERVICE_EVERY_S * self.dice.uniform(0.5, 1.0)
        next_nats = now + NATS_EVERY_S * self.dice.uniform(0.3, 1.0)
        while (now := time.monotonic()) < until_s or self.due:
            ready = [start for at, start in self.due if at <= now]
            self.due = [(at, start) for at, start in self.due if at > now]
            for start in ready:
                start()
            if next_agent < now < until_s:
                next_agent = now + self.dice.expovariate(1 / AGENT_EVERY_S)
                self.kill_agent(now)
            if kill_replicas and next_replica < now < until_s:
                next_replica = now + SERVICE_EVERY_S * self.dice.uniform(0.5, 1.5)
                self.hurt_replica(now)
            if next_nats < now < until_s:
                next_nats = now + NATS_EVERY_S * self.dice.uniform(0.5, 1.5)
                self.hurt_nats(now)
            if next_sample < now:
                next_sample = now + SAMPLE_EVERY_S
                self.look()
                self.watch.progress(self.training.steps)
            time.sleep(0.1)

    # -- faults --------------------------------------------------------------------------------

    def kill_agent(self, now: float) -> None:
        agent = self.dice.choice(self.mortal)
        if agent.is_alive:
            agent.kill()
            self.watch.kills["agent"] += 1
            self.due.append((now + self.dice.uniform(*AWAY_S), agent.start))

    def hurt_replica(self, now: float) -> None:
        if any(name in self.fleet.replicas for name in self.hurt):
            return
        owner = self.fleet.owner_of(JOB) if self.dice.random() < OWNER else None
        replica = owner or self.dice.choice(self.fleet.alive)
        how = self.dice.choice(("killed", "killed", "ended", "stopped"))
        away = self.dice.uniform(*(STOPPED_S if how == "stopped" else AWAY_S))
        self.note("replica", replica.name, how, away)
        if how == "stopped":
            daemons.freeze(replica.process)
            again: Callable[[], object] = partial(replica.process.send_signal, signal.SIGCONT)
        else:
            self.count(replica)
            if how == "ended":
                replica.process.terminate()
                replica.process.wait(30)
            else:
                self.watch.service_killed_at.append(time.time())
            end(replica.process)
            again = partial(self.fleet.start, replica.name)
        self.due.append((now + away, partial(self.heal, replica.name, again)))

    def hurt_nats(self, now: float) -> None:
        servers = self.fleet.nats.all
        if any(server.name in self.hurt for server in servers):
            return
        server: NatsServer = self.dice.choice(servers)
        how = self.dice.choice(("killed", "killed", "ended", "stopped"))
        away = self.dice.uniform(*NATS_AWAY_S)
        self.note("nats", server.name, how, away)
        if how == "stopped":
            server.freeze()
            again: Callable[[], object] = server.thaw
        else:
            server.kill() if how == "killed" else server.terminate()
            again = server.start
        self.due.append((now + away, partial(self.heal, server.name, again)))

    def heal(self, name: str, again: Callable[[], object]) -> None:
        again()
        self.hurt.discard(name)
        self.events.append(f"{self.passed_s():.1f} {name} runs")

    def note(self, what: str, name: str, how: str, away_s: float) -> None:
        self.hurt.add(name)
        self.watch.kills[f"{what} {how}"] += 1
        self.events.append(f"{self.passed_s():.1f} {name} {how} for {away_s:.1f} s")

    def passed_s(self) -> float:
        return time.monotonic() - self.watch.began

    def partition(self, seconds: float) -> dict[str, Any]:
        """Half of the agents are cut off."""
        self.all_reported()
        before = set(self.watch.findings)
        proxies = [one.proxy for one in self.fleet.replicas.values() if one.proxy is not None]
        for proxy in proxies:
            proxy.cut(marked=True)
        self.events.append(f"{self.passed_s():.1f} half of the agents are cut off")
        cut = time.monotonic()
        while time.monotonic() < cut + seconds:
            self.look()
            self.watch.progress(self.training.steps, "cut")
            time.sleep(1.0)
        reporting = self.owner.metric("frd_agents_reporting")
        for proxy in proxies:
            proxy.heal()
        self.events.append(f"{self.passed_s():.1f} healed")
        healed = time.monotonic()
        self.all_reported()
        self.look()
        return {
            "seconds": seconds,
            "reporting_meanwhile": reporting,
            "findings": len(set(self.watch.findings) - before),
            "catch_up_s": round(time.monotonic() - healed, 2),
        }

    # -- what the replicas report --------------------------------------------------------------

    @property
    def owner(self) -> ReplicaProcess:
        return until(lambda: self.fleet.owner_of(JOB), "an owner of the job", PATIENCE_S)

    def awake(self) -> list[ReplicaProcess]:
        return [one for one in self.fleet.alive if one.name not in self.hurt]

    def look(self) -> None:
        self.watch.sizes(one.process.pid for one in self.awake())
        self.watch.sizes(agent.pid for agent in self.agents if agent.is_alive)
        for replica in self.awake():
            with contextlib.suppress(OSError):
                self.watch.lags_s.append(replica.metric("frd_loop_lag_seconds"))
                for found in replica.get("/api/v1/findings")["findings"]:
                    if found["id"] not in self.watch.findings:
                        self.events.append(f"{self.passed_s():.1f} finding {json.dumps(found)}")
                    self.watch.findings[found["id"]] = found["summary"]
                self.count(replica)

    def count(self, replica: ReplicaProcess) -> None:
        """Keep what the process has counted."""
        with contextlib.suppress(OSError):
            for series in ("frd_telemetry_gap_entries_total", "frd_fenced_total"):
                key = f"{series} {replica.process.pid}"
                self.counted[key] = max(replica.metric(series), self.counted.get(key, 0.0))

    def total(self, series: str) -> float:
        return sum(value for key, value in self.counted.items() if key.split()[0] == series)

    def all_reported(self) -> None:
        """Every agent reports, and all rows of the ranks have been sent."""
        agents, steps = len(self.agents), self.training.steps

        def state() -> tuple[float, int]:
            owner = self.owner
            groups = owner.get(f"/api/v1/jobs/{JOB}")["groups"]
            done = max((group["completed"] for group in groups), default=0)
            return owner.metric("frd_agents_reporting"), done

        until(
            lambda: (now := state())[0] == agents and now[1] >= steps,
            lambda: f"agents or rows are missing: {state()} of {agents}, {steps}",
            PATIENCE_S,
        )

    def account(self) -> Account:
        journals = [self.folder / name / "journal" for name in self.fleet.replicas]
        return account(journals, JOB, self.training.joined, self.training.completed)

    def settled(self) -> Account:
        """The account once nothing is missing, or as it is after some time."""
        deadline = time.monotonic() + 30
        while (account := self.account()).missing and time.monotonic() < deadline:
            time.sleep(2.0)
        return account

    def report(self, partition: dict[str, Any] | None) -> dict[str, Any]:
        self.training.rest()
        self.all_reported()
        account = self.settled()
        self.look()
        immortal = self.agents[: len(self.agents) - len(self.mortal)]
        growths = [self.watch.growth(agent.pid) for agent in immortal]
        pids = [one.process.pid for one in self.fleet.alive]
        replicas = [self.watch.growth(pid, REPLICA_SETTLE_S) for pid in pids]
        lags = sorted(self.watch.lags_s)
        return {
            "minutes": round(self.passed_s() / 60, 1),
            "agents": len(self.agents),
            "ranks": len(self.training.ranks),
            "steps": self.training.steps,
            "kills": dict(self.watch.kills),
            "rows": {
                "recorded": account.recorded,
                "applied": account.applied,
                "repeated": account.repeated,
                "missing": sum(map(len, account.missing.values())),
                "missing_by_rank": {rank: seqs[:8] for rank, seqs in account.missing.items()},
                "unwritten_at_kills": self.watch.unwritten(account, self.training.began_at),
                "invented": sum(map(len, account.invented.values())),
                "gap": self.total("frd_telemetry_gap_entries_total"),
            },
            "findings": list(self.watch.findings.values()),
            "fenced": self.total("frd_fenced_total"),
            "replica_rss_bytes": max(rss_bytes(one.process.pid) for one in self.fleet.alive),
            "replica_growth_bytes_per_min": max(filter(None, replicas), default=None),
            "agent_rss_bytes": max(rss_bytes(agent.pid) for agent in self.agents),
            "agent_growth_bytes_per_min": max(filter(None, growths), default=None),
            "loop_lag_p99_s": lags[math.ceil(len(lags) * 0.99) - 1],
            "replica_rss_mb": {
                one.name: self.watch.course(one.process.pid) for one in self.fleet.alive
            },
            "partition": partition,
        }


def required(report: dict[str, Any]) -> dict[str, bool]:
    rows, partition = report["rows"], report["partition"]
    growths = [report[f"{who}_growth_bytes_per_min"] for who in ("replica", "agent")]
    return {
        "no rank is blamed": not report["findings"],
        "no row is lost": rows["missing"] <= rows["unwritten_at_kills"] + rows["gap"],
        "no row is invented": not rows["invented"],
        "memory is flat": all(growth is None or growth < MOST_GROWTH for growth in growths),
        "a cut half is missed": partition is None
        or partition["reporting_meanwhile"] == report["agents"] - report["agents"] // 2,
    }


@contextlib.contextmanager
def scene(options: argparse.Namespace, folder: Path) -> Iterator[Soak]:
    """The servers, the daemons and the ranks, all running."""
    env = {"FRD_STORE__JOURNAL_BYTES": str(16 * 1024**3), "FRD_LOG__LEVEL": "info"}
    with ExitStack() as stack:
        whole = stack.enter_context(fleet(folder, env=env, mark=MARK.encode()))
        run_dirs = [folder / f"run{number}" for number in range(options.agents)]
        training = stack.enter_context(
            Training(run_dirs, each=options.ranks, rate=options.rate, ring=RING, job=JOB)
        )
        agents = []
        for number, run_dir in enumerate(run_dirs):
            command = daemons.agent_command(run_dir, "--service", whole.service)
            name = f"{MARK}{number}" if number % 2 else f"node{number}"
            environment = {"FRD_AGENT_NODE": name, "FRD_AGENT_MEMORY_HZ": "0"}
            agents.append(Daemon(command, folder / f"agent{number}.log", environment))
            stack.callback(agents[-1].kill)
            agents[-1].start()
        soak = Soak(options, folder, whole, training, agents)
        until(
            lambda: soak.owner.metric("frd_agents_reporting") == options.agents,
            "agents are missing: see their logs",
            PATIENCE_S,
        )
        training.go_on()
        yield soak


class _Broken(Exception):
    """The logs are of interest."""


def run(options: argparse.Namespace) -> dict[str, Any]:
    report: dict[str, Any] = {}
    with contextlib.suppress(_Broken), kept_on_failure() as folder:
        with scene(options, Path(folder)) as soak:
            try:
                half_s = options.minutes * 30
                soak.run(time.monotonic() + half_s, kill_replicas=True)
                partition = soak.partition(options.partition) if options.partition else None
                soak.run(time.monotonic() + half_s, kill_replicas=False)
                report = soak.report(partition)
            finally:
                (Path(folder) / "events").write_text("\n".join(soak.events) + "\n")
        report |= {"events": soak.events, "broken": broken(required(report))}
        if report["broken"]:
            raise _Broken
    return report
