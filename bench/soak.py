"""A service and 64 agents for half an hour while they are killed at random: is anything lost?

All are real processes; each agent watches two scripted ranks of one healthy job. Agents are killed
and restarted every few seconds, the service now and then in the first half; a quarter of the
agents, and the service of the second half, are not killed, so that growth of their memory shows.
With ``--partition``, half of the agents are cut off for that time in the middle. Required: no rank
is ever blamed, every row that a rank recorded is accounted for, memory does not grow, and all ranks
are reported again after a cut. Exit status 1 if not.

``--cluster`` does this to three replicas and three NATS servers: see `bench.soak_fleet`.
``--quiet`` runs another test, an hour of normal operation: see `bench.quiet`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

from bench import quiet, soak_fleet
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
from tests.world.cluster import Cluster, until
from tests.world.proxy import Proxy
from tests.world.training import Training


@dataclass
class Soak:
    options: argparse.Namespace
    world: Cluster
    training: Training
    proxy: Proxy | None
    watch: Watch = field(default_factory=Watch)
    due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    """Daemons to restart, and when."""

    def __post_init__(self) -> None:
        self.dice = random.Random(self.options.seed)
        self.mortal = self.world.agents[len(self.world.agents) // 4 :]

    def run(self, until_s: float, *, kill_service: bool) -> None:
        next_agent = time.monotonic()
        next_service = next_agent + SERVICE_EVERY_S * self.dice.uniform(0.5, 1.0)
        next_sample = 0.0
        while (now := time.monotonic()) < until_s or self.due:
            self.restart(now)
            if next_agent < now < until_s:
                next_agent = now + self.dice.expovariate(1 / AGENT_EVERY_S)
                self.kill_agent(now)
            if kill_service and next_service < now < until_s:
                next_service = now + SERVICE_EVERY_S * self.dice.uniform(0.5, 1.5)
                self.kill_service(now)
            if next_sample < now:
                next_sample = now + SAMPLE_EVERY_S
                self.look()
                self.watch.progress(self.training.steps)
            time.sleep(0.1)

    def kill_agent(self, now: float) -> None:
        agent = self.dice.choice(self.mortal)
        if agent.is_alive:
            agent.kill()
            self.watch.kills["agent"] += 1
            self.due.append((now + self.dice.uniform(*AWAY_S), agent.start))

    def kill_service(self, now: float) -> None:
        if self.world.service.is_alive:
            self.watch.service_killed_at.append(time.time())
            self.world.service.kill()
            self.watch.kills["service"] += 1
            self.due.append((now + self.dice.uniform(*AWAY_S), self.world.start_service))

    def restart(self, now: float) -> None:
        ready = [start for at, start in self.due if at <= now]
        self.due = [(at, start) for at, start in self.due if at > now]
        for start in ready:
            start()

    def partition(self, seconds: float) -> dict[str, float]:
        """Half of the agents are cut off; returns how long it takes until rows, watermarks and lag
        are as before. The metric of the lag shows the largest recent value."""
        assert self.proxy is not None
        self.all_reported()
        before = set(self.watch.findings)
        self.proxy.cut()
        cut = time.monotonic()
        while time.monotonic() < cut + seconds:
            self.look()
            self.watch.progress(self.training.steps, "cut")
            time.sleep(1.0)
        reporting = self.world.metric("frd_agents_reporting")
        self.proxy.heal()
        healed = time.monotonic()
        self.all_reported()
        caught_up = time.monotonic()
        until(lambda: self.world.metric("frd_ingest_lag_seconds") < 1, "lag", PATIENCE_S)
        on_time = time.monotonic()
        self.look()
        return {
            "seconds": seconds,
            "reporting_meanwhile": reporting,
            "findings": len(set(self.watch.findings) - before),
            "catch_up_s": round(caught_up - healed, 2),
            "lag_normal_s": round(on_time - healed, 2),
        }

    def all_reported(self) -> None:
        """Every agent reports, and all rows of the ranks have been sent."""
        agents, steps = len(self.world.agents), self.training.steps

        def reported() -> bool:
            return self.world.reporting(agents) and self.world.steps(self.training) >= steps

        until(reported, "agents or rows are missing: see the logs", PATIENCE_S)

    def look(self) -> None:
        daemons = [one for one in (self.world.service, *self.world.agents) if one.is_alive]
        self.watch.sizes(daemon.pid for daemon in daemons)
        with contextlib.suppress(OSError):
            self.watch.lags_s.append(self.world.metric("frd_loop_lag_seconds"))
            self.watch.findings |= {f["id"]: f["summary"] for f in self.world.findings()}

    # -- the end -------------------------------------------------------------------------------

    def report(self, partition: dict[str, float] | None) -> dict[str, Any]:
        self.training.rest()
        self.all_reported()
        account = self.world.account(self.training)
        immortal = self.world.agents[: len(self.world.agents) - len(self.mortal)]
        growths = [self.watch.growth(agent.pid) for agent in immortal]
        lags = sorted(self.watch.lags_s)
        return {
            "minutes": round((time.monotonic() - self.watch.began) / 60, 1),
            "agents": len(self.world.agents),
            "ranks": len(self.training.ranks),
            "steps": self.training.steps,
            "kills": dict(self.watch.kills),
            "rows": {
                "recorded": account.recorded,
                "applied": account.applied,
                "repeated": account.repeated,
                "missing": sum(map(len, account.missing.values())),
                "unwritten_at_kills": self.watch.unwritten(account, self.training.began_at),
                "invented": sum(map(len, account.invented.values())),
                "gap": self.world.metric("frd_telemetry_gap_entries_total"),
            },
            "findings": list(self.watch.findings.values()),
            "service_rss_bytes": rss_bytes(self.world.service.pid),
            "service_growth_bytes_per_min": self.watch.growth(self.world.service.pid),
            "agent_rss_bytes": max(rss_bytes(agent.pid) for agent in self.world.agents),
            "agent_growth_bytes_per_min": max(filter(None, growths), default=None),
            "loop_lag_p99_s": lags[math.ceil(len(lags) * 0.99) - 1],
            "partition": partition,
        }


def required(report: dict[str, Any]) -> dict[str, bool]:
    """The requirements, and whether they were met."""
    rows, partition = report["rows"], report["partition"]
    growths = [report[f"{who}_growth_bytes_per_min"] for who in ("service", "agent")]
    return {
        "no rank is blamed": not report["findings"],
        "no row is lost": rows["missing"] == rows["unwritten_at_kills"] + rows["gap"],
        "no row is invented": not rows["invented"],
        "memory is flat": all(growth is None or growth < MOST_GROWTH for growth in growths),
        "a cut half is missed": partition is None
        or partition["reporting_meanwhile"] == report["agents"] - report["agents"] // 2,
    }


@contextlib.contextmanager
def scene(options: argparse.Namespace) -> Iterator[Soak]:
    """The daemons and the ranks, all running."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(kept_on_failure()))
        room = {"FRD_STORE__JOURNAL_BYTES": str(16 * 1024**3), "FRD_LOG__LEVEL": "warning"}
        world = stack.enter_context(Cluster(folder, environment=room))
        proxy = stack.enter_context(Proxy(world.grpc)) if options.partition else None
        run_dirs: Sequence[Path] = [world.run_dir(number) for number in range(options.agents)]
        training = stack.enter_context(
            Training(run_dirs, each=options.ranks, rate=options.rate, ring=RING, job="soak")
        )
        for number in range(options.agents):
            world.start_agent(proxy.address if proxy is not None and number % 2 else "")
        world.begin(training)
        yield Soak(options, world, training, proxy)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--minutes", type=float, help="30, or 60 with --quiet")
    parser.add_argument("--seconds", type=float, help="instead of --minutes")
    parser.add_argument(
        "--quiet", action="store_true", help="an hour of healthy jobs and of the shipped alerts"
    )
    parser.add_argument("--cluster", action="store_true", help="replicas and NATS servers")
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=2, help="of each agent")
    parser.add_argument("--rate", type=float, default=5.0, help="steps a second")
    parser.add_argument("--partition", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.seconds:
        options.minutes = options.seconds / 60
    options.minutes = options.minutes or (60.0 if options.quiet else 30.0)
    if options.quiet:
        with kept_on_failure() as folder:
            report = quiet.live(Path(folder), options.minutes)
        report["broken"] = quiet.broken(report)
        print(json.dumps(report)) if options.json else quiet.show(report)
        sys.exit(bool(report["broken"]))
    report = soak_fleet.run(options) if options.cluster else run(options)
    if options.json:
        print(json.dumps(report))
    else:
        for key, value in report.items():
            print(f"{key}: {value}")
    sys.exit(bool(report["broken"]))


def run(options: argparse.Namespace) -> dict[str, Any]:
    with scene(options) as soak:
        half_s = options.minutes * 30
        soak.run(time.monotonic() + half_s, kill_service=True)
        partition = soak.partition(options.partition) if options.partition else None
        soak.run(time.monotonic() + half_s, kill_service=False)
        report = soak.report(partition)
    return report | {"broken": broken(required(report))}


if __name__ == "__main__":
    main()
