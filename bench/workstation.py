"""What frd costs on a workstation: one service, one agent, three healthy jobs of two Gloo ranks.

All are real processes, as the documentation sets them up. For each, with no job and with the jobs:
the share of a core of the process and its children, the times a second that its threads wake
(voluntary context switches; `by_thread` has those of the busiest), and its resident memory. With
``--against``, the same of another working tree, in turns with this one: first without jobs, then
with them. Ranks, tap included, are those of the tree as well.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

from bench.report import show
from frd_agent.proc import TICKS_PER_S, by_parent, descendants, read_all
from tests.world.daemons import end, first_line, free_address, get, until

JOB: Final = Path(__file__).with_name("ordinary_job.py")
JOBS: Final = ("first", "second", "third")
SETTLE_S: Final = 12.0
_BUSIEST: Final = 6
_END_S: Final = 15.0


@dataclass(slots=True)
class Spent:
    """Of one process and its children, since it started."""

    at_s: float
    cpu_s: float
    wakes: dict[str, int]
    """By the thread's name and number."""

    @classmethod
    def of(cls, pid: int) -> Spent:
        stats = read_all()
        pids = [pid, *descendants(pid, by_parent(stats))]
        ticks = sum(stats[one].cpu_ticks + children_ticks(one) for one in pids if one in stats)
        return cls(time.monotonic(), ticks / TICKS_PER_S, wakes_of(pids))


def children_ticks(pid: int) -> int:
    """Processor time of its children that have ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[13]) + int(fields[14])
    return 0


def wakes_of(pids: Sequence[int]) -> dict[str, int]:
    found = {}
    for task in (task for pid in pids for task in Path(f"/proc/{pid}/task").glob("*")):
        with contextlib.suppress(OSError):
            name = (task / "comm").read_text().strip()
            for line in (task / "status").read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    found[f"{name}/{task.name}"] = int(line.split()[1])
    return found


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Watched:
    """One daemon, and what it spent in each round."""

    pid: int
    shares: list[float] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)
    by_thread: dict[str, float] = field(default_factory=dict)

    def see(self, before: Spent) -> None:
        now = Spent.of(self.pid)
        passed_s = now.at_s - before.at_s
        rates = {
            name: round((count - before.wakes.get(name, 0)) / passed_s, 1)
            for name, count in now.wakes.items()
        }
        self.shares.append((now.cpu_s - before.cpu_s) / passed_s)
        self.wakes.append(sum(rates.values()))
        busiest = sorted(rates.items(), key=lambda rate: -rate[1])[:_BUSIEST]
        self.by_thread = {name: rate for name, rate in busiest if rate}

    def report(self) -> dict[str, Any]:
        return {
            "cpu_share": round(statistics.median(self.shares), 4),
            "wakes_a_second": round(statistics.median(self.wakes), 1),
            "by_thread": self.by_thread,
            "rss_mb": round(resident_bytes(self.pid) / 1e6, 1),
        }


class Side:
    """A working tree's service, agent and jobs."""

    def __init__(self, tree: Path, folder: Path, stack: ExitStack) -> None:
        self._tree, self._folder, self._stack = tree, folder, stack
        self._env = {"PYTHONPATH": f"{tree}:{tree / 'agents'}", "OMP_NUM_THREADS": "1"}
        self.run_dir = folder / "run"
        grpc, self.http = free_address(), free_address()
        serve = ["-m", "frd", "serve", "--data-dir", str(folder / "data")]
        service = self._start("service", *serve, "--grpc", grpc, "--http", self.http)
        assert first_line(service), (folder / "service.log").read_text()
        run = ["-m", "frd_agent", "run", "--run-dir", str(self.run_dir), "--service", grpc]
        agent = self._start("agent", *run, "--metrics", free_address())
        self.watched = {"service": Watched(service.pid), "agent": Watched(agent.pid)}
        self.reports: dict[str, Any] = {}

    def start_jobs(self) -> None:
        for name in JOBS:
            arguments = ["-m", "frd_agent", "exec", "--run-dir", str(self.run_dir), "--job", name]
            launch = ["--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
            meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
            self._start(name, *arguments, *launch, *meet, str(JOB))
        until(lambda: len(get(self.http, "/api/v1/jobs")["jobs"]) == len(JOBS), "jobs", 120)

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        with (self._folder / f"{name}.log").open("w") as log:  # not warm: that is of this tree
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env=os.environ | self._env,
                cwd=self._tree,  # `python -m` looks there first
                stdout=subprocess.PIPE if name == "service" else log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._stack.callback(_end, process)
        return process

    def look(self, seconds: float) -> None:
        before = {name: Spent.of(one.pid) for name, one in self.watched.items()}
        time.sleep(seconds)
        for name, one in self.watched.items():
            one.see(before[name])

    def keep(self, when: str) -> None:
        self.reports[when] = {name: one.report() for name, one in self.watched.items()}
        self.watched = {name: Watched(one.pid) for name, one in self.watched.items()}


def _end(process: subprocess.Popen[str]) -> None:
    """torchrun ends its ranks, which are in separate sessions, when it is asked to."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    end(process)


@contextlib.contextmanager
def sides(trees: dict[str, Path]) -> Iterator[dict[str, Side]]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        made = {}
        for name, tree in trees.items():
            (at := Path(folder) / name).mkdir()
            made[name] = Side(tree, at, stack)
        yield made


def measure(trees: dict[str, Path], seconds: float, rounds: int) -> dict[str, Any]:
    reports: dict[str, dict[str, Any]] = {name: {} for name in trees}
    with sides(trees) as idle:
        time.sleep(SETTLE_S)
        for side in [side for _ in range(rounds) for side in idle.values()]:
            side.look(seconds)
        for name, side in idle.items():
            side.keep("idle")
            reports[name] |= side.reports
    for turn in range(rounds):
        for name, tree in trees.items():  # one after the other: jobs of both would slow each other
            with sides({name: tree}) as busy:
                busy[name].start_jobs()
                time.sleep(SETTLE_S)
                busy[name].look(seconds)
                busy[name].keep("jobs")
                reports[name].setdefault("rounds", []).append(busy[name].reports["jobs"])
            print(f"round {turn + 1} of {rounds}: {name}", file=sys.stderr)
    return reports


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", type=Path, metavar="TREE", help="another working tree")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each look")
    parser.add_argument("--rounds", type=int, default=1, help="looks at each side")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    trees = {"now": Path(__file__).parents[1].resolve()}
    if options.against is not None:
        trees = {"before": options.against.resolve()} | trees
    show(measure(trees, options.seconds, options.rounds), as_json=options.json)


if __name__ == "__main__":
    main()
