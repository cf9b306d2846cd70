"""What the tap and the agent cost the ranks that they watch.

Two pairs of gloo ranks live side by side: one below `frd-agent exec`, watched by a running agent
that reports to a running service, and one that has never heard of frd. They take turns of a few
seconds, in changing order, and the other pair is stopped, frd's own processes with their
pair. Loss is taken between neighbouring turns, so slow drift of the machine cancels; every round
starts new processes, so the luck of a process's memory layout averages out. On a machine that does
other things as well, believe the CPU shares before the loss.

A rank keeps its core busy with compute and enters about 200 small all_reduces a second (turns
`work`), or does nothing but all_reduces (turns `tight`). With `--backend nccl` the ranks compute on
a GPU, which they share if there is only one, and the agent reads its memory ten times a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

RANK = Path(__file__).with_name("overhead_rank.py")
WORLD = 2
STEP_S = 1 / 200
SETTLE_S = 0.5
"""After a pair is resumed: the agent immediately polls ranks that stood still for so long."""


class Pair:
    """Two ranks, and whatever watches them; all of it stops and goes on together."""

    def __init__(self, stack: contextlib.ExitStack, run_dir: Path | None, backend: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, str(RANK), backend]
        if run_dir is not None:
            exec_ = [sys.executable, "-m", "frd_agent", "exec", "--run-dir", str(run_dir), "--"]
            command = exec_ + command
        env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        env |= {"WORLD_SIZE": str(WORLD), "OMP_NUM_THREADS": "1"}
        self.ranks = [
            spawn(stack, command, env | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(WORLD)
        ]
        self.watchers: dict[str, subprocess.Popen[str]] = {}

    def order(self, line: str) -> list[dict[str, Any]]:
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.write(line + "\n")
            rank.stdin.flush()
        answers = []
        for rank in self.ranks:
            assert rank.stdout is not None
            if not (answer := rank.stdout.readline()):
                raise SystemExit(f"bench: rank: it ended: {rank.wait()}")
            answers.append(json.loads(answer))
        return answers

    def signal(self, number: int) -> None:
        for process in [*self.ranks, *self.watchers.values()]:
            process.send_signal(number)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        self.signal(signal.SIGCONT)
        time.sleep(SETTLE_S)
        yield
        self.signal(signal.SIGSTOP)


def spawn(
    stack: contextlib.ExitStack,
    command: list[str],
    env: dict[str, str] | None = None,
    stderr: int | IO[str] = subprocess.DEVNULL,
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
    )

    def end() -> None:
        process.kill()
        process.communicate()

    stack.callback(end)
    return process


def watch(stack: contextlib.ExitStack, pair: Pair, folder: Path) -> str:
    """Start service and agent; returns what is wrong with them, if anything."""
    log = stack.enter_context((folder / "log").open("w"))
    service = spawn(
        stack,
        [sys.executable, "-m", "frd", "serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        + ["--data-dir", str(folder / "data")],
        stderr=log,
    )
    assert service.stdout is not None
    if not (ready := service.stdout.readline()):
        return f"service: {(folder / 'log').read_text()[-300:]}"
    agent = spawn(
        stack,
        [sys.executable, "-m", "frd_agent", "run", "--service", json.loads(ready)["grpc"]]
        + ["--run-dir", str(folder / "run"), "--metrics", "off"],
        stderr=log,
    )
    time.sleep(3)
    if agent.poll() is not None:
        return f"agent: {(folder / 'log').read_text()[-300:]}"
    pair.watchers = {"service": service, "agent": agent}
    return ""


def cpu_s(process: subprocess.Popen[str]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Tally:
    """All turns of one kind, over all rounds."""

    losses: list[float] = field(default_factory=list)
    rates: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    latencies_s: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    shares: dict[str, list[float]] = field(
        default_factory=lambda: {"tap_cpu_share": [], "server_cpu_share": []}
    )

    def add(self, turns: dict[bool, list[dict[str, Any]]]) -> None:
        rate = {watched: answers[0]["steps_per_s"] for watched, answers in turns.items()}
        self.losses.append(1 - rate[True] / rate[False])
        for watched, answers in turns.items():
            self.rates[watched].append(rate[watched])
            for answer in answers:
                self.latencies_s[watched] += answer["latencies_s"]
        for name, shares in self.shares.items():
            shares += [answer[name] for answer in turns[True]]

    def report(self) -> dict[str, Any]:
        low, middle, high = statistics.quantiles(self.losses, n=4)
        return {
            "throughput_loss": middle,
            "loss_quartiles": [low, high],
            "turns": len(self.losses),
            "steps_per_s_without": statistics.median(self.rates[False]),
            "steps_per_s_with": statistics.median(self.rates[True]),
            "p50_s_without": statistics.median(self.latencies_s[False]),
            "p50_s_with": statistics.median(self.latencies_s[True]),
            "p999_s_without": quantile(self.latencies_s[False], 0.999),
            "p999_s_with": quantile(self.latencies_s[True], 0.999),
            **{name: statistics.mean(shares) for name, shares in self.shares.items()},
        }


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * q), len(ordered) - 1)]


def run_round(args: argparse.Namespace, work: Tally, tight: Tally) -> dict[str, Any]:
    """New processes, then `args.turns` turns of each kind for each pair."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="frd-bench-")))
        pairs = {
            True: Pair(stack, folder / "run", args.backend),
            False: Pair(stack, None, args.backend),
        }
        unit_s = [pair.order("unit 1")[0]["unit_s"] for pair in pairs.values()]
        units = max(1, round(STEP_S * 0.95 / min(unit_s)))
        fault = "not asked for" if args.tap_only else watch(stack, pairs[True], folder)
        for pair in pairs.values():
            pair.signal(signal.SIGSTOP)
        used = dict.fromkeys(pairs[True].watchers, 0.0)
        for turn in range(args.turns):
            order = [turn % 2 == 0, turn % 2 == 1]
            for tally, line in (
                (work, f"segment {args.work_s} {units}"),
                (tight, f"segment {args.tight_s} 0"),
            ):
                answers = {}
                for watched in order:
                    with pairs[watched].awake():
                        before = {n: cpu_s(p) for n, p in pairs[watched].watchers.items()}
                        answers[watched] = pairs[watched].order(line)
                        if tally is work:
                            for name, cpu in before.items():
                                used[name] += cpu_s(pairs[watched].watchers[name]) - cpu
                tally.add(answers)
        for pair in pairs.values():
            pair.signal(signal.SIGCONT)
        shares = {f"{name}_cpu_share": s / args.turns / args.work_s for name, s in used.items()}
        return {"agent": fault or "running", **shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=4, help="of each kind, pair and round")
    parser.add_argument("--work-s", type=float, default=2.5)
    parser.add_argument("--tight-s", type=float, default=1.5)
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo")
    parser.add_argument("--tap-only", action="store_true", help="no service and no agent")
    args = parser.parse_args()
    work, tight = Tally(), Tally()
    rounds = [run_round(args, work, tight) for _ in range(args.rounds)]
    watched: dict[str, Any] = {"agent": rounds[-1]["agent"]}
    for name in ("service_cpu_share", "agent_cpu_share"):
        if all(name in each for each in rounds):
            watched[name] = statistics.mean(each[name] for each in rounds)
    report = work.report() | watched | {"tight_loop": tight.report()}
    if args.json:
        print(json.dumps(report))
        return
    for title, part in (("work", report), ("tight loop", report["tight_loop"])):
        print(
            f"{title}: loss {part['throughput_loss']:.2%} "
            f"(quartiles {part['loss_quartiles'][0]:.2%} to {part['loss_quartiles'][1]:.2%}), "
            f"{part['steps_per_s_without']:.0f} steps/s without, "
            f"{part['steps_per_s_with']:.0f} with, p99.9 of one op "
            f"{part['p999_s_without'] * 1e3:.2f} ms without, {part['p999_s_with'] * 1e3:.2f} with; "
            f"tap {part['tap_cpu_share']:.3%} and worker server {part['server_cpu_share']:.2%} "
            f"of a core in each rank"
        )
    print(", ".join(f"{name} {value}" for name, value in watched.items()))


if __name__ == "__main__":
    main()
