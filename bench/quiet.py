"""The hour of `bench/soak.py --quiet`: healthy jobs, the shipped alerts, and no critical alert.

Three real training jobs of two Gloo ranks each, one agent, one service and the real Prometheus with
the shipped rules, all as the documentation sets them up. The jobs do what jobs do: rank 0 saves
checkpoints of 2, 10 and 40 seconds or evaluates while its peers wait in a barrier, loaders are
uneven, and every few minutes one of the jobs is ended (Ctrl-C, SIGTERM, or by itself) and
started again under its name; once the service is restarted. Not one alert may become critical, and
every warning is listed with what frd said.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

from tests.world.cluster import Cluster, until
from tests.world.prometheus import Prometheus

JOB: Final = Path(__file__).with_name("ordinary_job.py")
PROGRAMS: Final[dict[str, tuple[str, ...]]] = {
    "short": (
        "--checkpoint-s", "2", "--checkpoint-every-s", "30",
        "--evaluate-s", "8", "--evaluate-every-s", "90",
    ),
    "medium": ("--checkpoint-s", "10", "--checkpoint-every-s", "75", "--uneven-s", "0.2"),
    "long": (
        "--checkpoint-s", "40", "--checkpoint-every-s", "240",
        "--evaluate-s", "20", "--evaluate-every-s", "200",
    ),
}  # fmt: skip
"""By the name of the job: what it does."""
ENDINGS: Final = ("ctrl-c", "sigterm", "itself")
EVERY_S: Final = 200.0
"""Between two endings of jobs, one job after the other."""
AGAIN_AFTER_S: Final = 5.0
SAMPLE_EVERY_S: Final = 2.0
END_WITHIN_S: Final = 60.0


@dataclass(slots=True)
class Run:
    """One job, started again and again under its name."""

    name: str
    folder: Path
    run_dir: Path
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    def start(self, seconds: float | None = None) -> None:
        """`seconds`: after which the job ends by itself."""
        command = [sys.executable, "-m", "frd_agent", "exec", "--run-dir", str(self.run_dir)]
        command += ["--job", self.name, "--", sys.executable, "-m", "torch.distributed.run"]
        command += ["--nproc-per-node", "2", "--rdzv-backend", "c10d"]
        command += ["--rdzv-endpoint", "localhost:0", str(JOB), *PROGRAMS[self.name]]
        if seconds is not None:
            command += ["--seconds", f"{seconds:g}"]
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self.starts += 1

    def end(self, how: str) -> None:
        """As a terminal does it (SIGINT to all of the process group) or a scheduler (SIGTERM)."""
        assert self.process is not None
        number = signal.SIGINT if how == "ctrl-c" else signal.SIGTERM
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
        self.wait()

    def wait(self, within_s: float = END_WITHIN_S) -> None:
        assert self.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(within_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass(slots=True)
class Quiet:
    """The hour, and what was seen in it."""

    world: Cluster
    prometheus: Prometheus
    runs: list[Run]
    began: float = field(default_factory=time.monotonic)
    endings: Counter[str] = field(default_factory=Counter)
    firing: dict[tuple[str, ...], int] = field(default_factory=dict)
    """Looks at which an alert fired, by name, severity, job and finding."""
    findings: dict[str, dict[str, Any]] = field(default_factory=dict)
    service_restarts: int = 0

    def run(self, seconds: float) -> None:
        until_s, half_s = self.began + seconds, self.began + seconds / 2
        next_ending, turn = self.began + EVERY_S, 0
        again: list[tuple[float, Run]] = []
        while (now := time.monotonic()) < until_s:
            for at, run in [entry for entry in again if entry[0] <= now]:
                again.remove((at, run))
                run.start(EVERY_S * len(self.runs) * 0.9 if self._ends_itself(turn) else None)
            if now >= next_ending and now < until_s - EVERY_S / 2:
                next_ending = now + EVERY_S
                run, how = self.runs[turn % len(self.runs)], ENDINGS[turn // len(self.runs) % 2]
                turn += 1
                if run.process is not None and run.process.poll() is not None:
                    how = "itself"
                run.end(how)
                self.endings[how] += 1
                again.append((time.monotonic() + AGAIN_AFTER_S, run))
            if now >= half_s and not self.service_restarts:
                self.service_restarts = 1
                self.world.service.process.terminate()  # type: ignore[union-attr]
                self.world.service.process.wait(30)  # type: ignore[union-attr]
                self.world.start_service()
            self.look()
            time.sleep(SAMPLE_EVERY_S)

    @staticmethod
    def _ends_itself(turn: int) -> bool:
        return turn % 4 == 3

    def look(self) -> None:
        for series in self.prometheus.query('ALERTS{alertstate="firing"}'):
            labels = series["metric"]
            key = tuple(
                labels.get(name, "") for name in ("alertname", "severity", "job", "finding")
            )
            self.firing[key] = self.firing.get(key, 0) + 1
        with contextlib.suppress(OSError):
            self.findings |= {found["id"]: found for found in self.world.findings()}
        if sys.stderr.isatty():
            passed = (time.monotonic() - self.began) / 60
            text = f"{passed:5.1f} min  findings: {len(self.findings)}  alerts: {len(self.firing)}"
            print(f"\r{text:<78}", end="", file=sys.stderr, flush=True)

    def report(self) -> dict[str, Any]:
        with contextlib.suppress(OSError):
            jobs = self.world.get("/api/v1/jobs")["jobs"]
        return {
            "minutes": round((time.monotonic() - self.began) / 60, 1),
            "jobs": {run.name: {"starts": run.starts} for run in self.runs},
            "jobs_seen": sorted(job["job"] for job in jobs),
            "endings": dict(self.endings),
            "service_restarts": self.service_restarts,
            "critical": self._alerts("critical"),
            "warnings": self._alerts("warning"),
            "findings": [
                {
                    "job": found["job"],
                    "kind": found["kind"],
                    "opened_at": found["opened_at"],
                    "closed_at": found["closed_at"],
                    "severity": found.get("severity", ""),
                    "summary": found["summary"],
                }
                for found in sorted(self.findings.values(), key=lambda found: found["opened_at"])
            ],
        }

    def _alerts(self, severity: str) -> list[dict[str, Any]]:
        return [
            {
                "alert": name,
                "job": job,
                "seconds": round(looks * SAMPLE_EVERY_S),
                "summary": self.findings.get(finding, {}).get("summary", ""),
            }
            for (name, of, job, finding), looks in sorted(self.firing.items())
            if of == severity
        ]


@contextlib.contextmanager
def quiet(folder: Path) -> Iterator[Quiet]:
    """Service, agent, Prometheus and the jobs, all of them up."""
    with ExitStack() as stack:
        world = stack.enter_context(Cluster(folder))
        world.start_agent(samples_memory=True)
        prometheus = stack.enter_context(Prometheus(folder, world.http))
        runs = [Run(name, folder, world.run_dir(0)) for name in PROGRAMS]
        for run in runs:
            stack.callback(run.end, "sigterm")
            run.start()
        until(
            lambda: len(world.get("/api/v1/jobs")["jobs"]) == len(runs),
            "jobs are missing: see their logs",
            180,
        )
        until(lambda: prometheus.query("frd_build_info"), "a first scrape")
        yield Quiet(world, prometheus, runs)


def broken(report: dict[str, Any]) -> list[str]:
    """The promises that were not kept."""
    kept = {
        "no alert is critical": not report["critical"],
        "all jobs are watched": set(report["jobs_seen"]) == set(report["jobs"]),
        "jobs were ended and started": sum(report["endings"].values()) > 0,
    }
    return [promise for promise, is_kept in kept.items() if not is_kept]


def live(folder: Path, minutes: float) -> dict[str, Any]:
    """The hour of `minutes`; its report."""
    with quiet(folder) as hour:
        hour.run(minutes * 60)
        return hour.report()


def show(
    report: dict[str, Any], keys: Sequence[str] = ("critical", "warnings", "findings")
) -> None:
    """For people: the figures, then a line for each alert and finding."""
    for key, value in report.items():
        if key not in keys:
            print(f"{key}: {json.dumps(value)}")
    for key in keys:
        print(f"{key}: {len(report[key])}")
        for row in report[key]:
            print(f"  {json.dumps(row)}")
