"""What the service costs for a fleet that is well: 1,250 agents of 8 ranks in 10 groups each.

The service is a real `frd serve`. What agents send, and when, decides the agent's own code: each of
the simulated ones has the real `Uplinks` on a separate connection, with rows, progress and pings
as those of a node whose ranks do five collectives a second. When their rings of 2,000 entries are
read, decides the real `PollSchedule`, about every 6.4 s. Every rank has two series of memory at ten
samples a second: one flutters by some pages, one is constant.

`--tree PATH` measures the code of another working tree, agents included; `--against PATH` both, in
turns: the machine's speed changes from minute to minute, so only figures of one run compare. A
share of 1 is one core. `--profile FILE` samples the service with `perf` and py-spy meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

import numpy as np

from bench.ingest import SIGNATURE, Node, _cpu_s, _rss_bytes
from bench.report import show
from frd.flight.entry import Status
from frd.model import (
    AttemptKey,
    EntryColumns,
    Flags,
    MemoryColumns,
    NodeNs,
    NodeRawNs,
    RankState,
    RankStatus,
    SeriesInfo,
    SeriesKind,
)
from frd.wire.messages import PROTOCOL, Hello
from frd_agent.counters import Counters
from frd_agent.memory.samples import Samples
from frd_agent.node_time import NodeTime, raw_now
from frd_agent.ranks.poll_schedule import PollPolicy, PollSchedule
from frd_agent.recorder.group_progress import GroupWatermarks
from frd_agent.recorder.rank_progress import RankProgress
from frd_agent.uplink import uplinks
from frd_agent.uplink.dictionary import Dictionary
from frd_agent.uplink.uplinks import Uplinks
from tests.world.daemons import get, metric

HERE: Final = Path(__file__).parents[1]

AGENTS: Final = 1_250
PROCESSES: Final = 2
"""Of agents."""
RANKS: Final = 8
CONNECT_EVERY_S: Final = 0.01
OP_NS: Final = 200_000_000
OP_LASTS_NS: Final = 100_000_000
JITTER_NS: Final = 2_000_000
"""Between the ranks that join an op."""
RING: Final = 2_000
STARTED_WITHIN_S: Final = 1.0
"""The ranks of a node start so close to each other."""
TICK_S: Final = 0.25
"""Of the agent."""
SAMPLE_NS: Final = 100_000_000
READ_NS: Final = 2_000_000
GIB: Final = 1 << 30
PAGE: Final = 4_096
SCRAPE_EVERY_S: Final = 15.0
"""Twice, as two Prometheus servers do; a metric of a lag is the worst of so long."""
JOB: Final = "fleet"
ENDPOINT: Final[Any] = vars(uplinks)["Endpoint"]
CALLS: Final = sys.modules[ENDPOINT.__module__]
"""Another tree may have these in other modules."""


# -- agents ----------------------------------------------------------------------------------------


class _Counted:
    """A call that counts what the agent writes."""

    messages = 0
    sent = 0
    """Bytes."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    async def write(self, data: bytes) -> None:
        _Counted.messages += 1
        _Counted.sent += len(data)
        await self._call.write(data)


class _Scripted(Samples):
    """Samples as a watched node has them, made when they are sent: ten times a second is much for
    1,250 nodes in Python."""

    def script(self, ranks: list[int], seed: int) -> None:
        dice = np.random.default_rng(seed)
        level = dice.integers(20 * GIB, 60 * GIB, (RANKS, 1))
        self._flutter = level + PAGE * dice.integers(-256, 256, (RANKS, 64))
        kinds = SeriesKind.DEVICE_USED, SeriesKind.TORCH_RESERVED
        self._numbers = np.array(
            [
                self.number_of(SeriesInfo(rank, kind, f"GPU-{seed}-{place}"))
                for kind in kinds
                for place, rank in enumerate(ranks)
            ],
            np.uint32,
        )
        self._constant = np.repeat(level - 2 * GIB, 64, axis=1)
        self._last = raw_now() // SAMPLE_NS

    def next_batch(self) -> MemoryColumns | None:
        now = raw_now() // SAMPLE_NS
        moments = np.arange(max(self._last, now - 100) + 1, now + 1)
        self._last = now
        if not len(moments):
            return None
        end = moments * SAMPLE_NS
        values = np.concatenate([self._flutter[:, moments % 64], self._constant[:, moments % 64]])
        capacity = np.full(2 * RANKS, 80 * GIB, np.int64)
        return MemoryColumns(self._numbers, capacity, end - READ_NS, end, values)


class Agent:
    def __init__(self, address: str, number: int, agents: int) -> None:
        self._node = node = Node(number, agents)
        self._dictionary = dictionary = Dictionary()
        stats = Counters()
        self.uplinks = Uplinks(
            *(ENDPOINT((address,)), 64 << 20, dictionary, stats, NodeTime(stats)),
            hello=self._hello,
            in_flight=lambda job: (),
            on_request=lambda stream, request: None,
        )
        attempt = dictionary.attempt(AttemptKey(JOB, 0), node.world)
        self._ranks = [dictionary.rank(attempt, info) for info in node.infos()]
        groups = [dictionary.group(attempt, info) for info in node.groups]
        self._groups = [[groups[index] for index in some] for some in node.groups_of]
        self._signature = dictionary.signature(SIGNATURE)
        self._reports = self.uplinks.reports(attempt)
        (uplink,) = self.uplinks
        uplink.dispatch.samples = samples = _Scripted(1 << 20, dictionary.series_number)
        samples.script(self._ranks, number)
        self._known = [(-1, -1)] * RANKS
        """The last ops joined and completed, by rank."""
        for rank, some in zip(self._ranks, self._groups, strict=True):
            for group in some:
                self._reports.current.expect(rank, group)
            self._reports.current.set_status(RankStatus(rank, RankState.LIVE, raw_now()))

    def _hello(self) -> Hello:
        name, now = self._node.number, NodeNs(time.time_ns())
        paced: Any = {"paced": True} if "paced" in Hello.__dataclass_fields__ else {}  # since 0.9
        names = f"n{name}", f"b{name}", f"s{name}"
        return Hello(PROTOCOL, "bench", *names, now, raw_now(), **paced)

    @property
    def is_connected(self) -> bool:
        return self.uplinks.connected

    async def run(self, start_ns: int) -> None:
        dice = np.random.default_rng(self._node.number)
        booted_s = dice.uniform(0, 1_000)  # before the first tick
        schedules = [PollSchedule(PollPolicy()) for _ in range(RANKS)]
        due = dice.integers(0, int(STARTED_WITHIN_S / TICK_S), RANKS).tolist()
        begin_s = (start_ns - raw_now()) / 1e9 + time.monotonic() + dice.uniform(0, TICK_S)
        while True:
            tick = min(due)
            await asyncio.sleep(max(begin_s + tick * TICK_S - time.monotonic(), 0))
            for place, schedule in enumerate(schedules):
                if due[place] == tick:
                    self._dump(place, start_ns)
                    due[place] = _next_tick(schedule, booted_s, tick)
            self._reports.wake()

    def _dump(self, place: int, start_ns: int) -> None:
        """What the agent learns when it reads the recorder of a rank."""
        rank, groups, now = self._ranks[place], self._groups[place], raw_now()
        before_joined, before_completed = self._known[place]
        joined = (now - start_ns - JITTER_NS) // OP_NS
        completed = (now - start_ns - OP_LASTS_NS) // OP_NS
        if joined <= before_joined:
            return
        self._known[place] = joined, completed
        ended = np.arange(before_completed + 1, before_joined + 1)
        fresh = np.arange(before_joined + 1, joined + 1)
        ops, is_over = np.concatenate([ended, fresh]), np.concatenate([ended, fresh]) <= completed
        flags = np.where(is_over, Flags.COMPLETED, 0) | np.where(
            ops > before_joined, Flags.JOINED, 0
        )
        keep = flags > 0
        ops, is_over, flags = ops[keep], is_over[keep], flags[keep].astype(np.uint8)
        created = self._created(rank, ops, start_ns)
        rows = EntryColumns(
            rank=rank,
            first_revision=0,
            group=np.array(groups, np.uint32)[ops % len(groups)],
            seq=ops // len(groups),
            signature=np.full(len(ops), self._signature, np.uint32),
            flags=flags.astype(np.uint8),
            created_ns=created,
            started_ns=np.zeros(len(ops), np.int64),
            completed_ns=np.where(is_over, start_ns + ops * OP_NS + OP_LASTS_NS, 0),
        )
        marks = []
        for slot, group in enumerate(groups):
            last, done = ((upto - slot) // len(groups) for upto in (joined, completed))
            head = done * len(groups) + len(groups) + slot
            head_ns = int(self._created(rank, np.array([head]), start_ns)[0]) if last > done else 0
            marks.append((group, GroupWatermarks(last, -1, done, head_ns)))
        self._reports.outbox.record(rows)
        self._reports.current.set_progress(rank, RankProgress(marks, NodeRawNs(now), False))

    @staticmethod
    def _created(rank: int, ops: Any, start_ns: int) -> Any:
        return start_ns + ops * OP_NS + (ops * 2_654_435_761 + rank * 40_503) % JITTER_NS


def _next_tick(schedule: PollSchedule, booted_s: float, tick: int) -> int:
    """When a rank that makes progress, and was read at `tick`, is read again."""
    schedule.asked(booted_s + tick * TICK_S)
    schedule.dumped({}, RING)
    while True:
        tick += 1
        now = booted_s + tick * TICK_S
        counters = {(0, 0): Status(tick, -1, tick)}
        schedule.see(counters, 0.0, exact=False, now=now)
        if schedule.due(now) is not None:
            return tick


async def agents(address: str, numbers: range, count: int) -> None:
    """Answers each line of the standard input: `start NS`, or what was sent until then."""
    calls = {name: getattr(CALLS, name) for name in ("open_stream", "open_clock")}
    for name, call in calls.items():
        counted = lambda *args, make=call, **options: _Counted(make(*args, **options))  # noqa: E731
        setattr(CALLS, name, counted)
    fleet: list[Agent] = []
    for number in numbers:
        fleet.append(Agent(address, number, count))
        await asyncio.sleep(CONNECT_EVERY_S * PROCESSES)
    while not all(agent.is_connected for agent in fleet):
        await asyncio.sleep(0.1)
    print("connected", flush=True)
    start_ns = int(await asyncio.to_thread(sys.stdin.readline))
    running = [asyncio.create_task(agent.run(start_ns)) for agent in fleet]
    while await asyncio.to_thread(sys.stdin.readline):
        late = sum(
            task.done() or not agent.is_connected
            for task, agent in zip(running, fleet, strict=True)
        )
        sent = {"messages": _Counted.messages, "bytes": _Counted.sent, "lost": late}
        print(json.dumps(sent), flush=True)


# -- processes -------------------------------------------------------------------------------------


def _python(stack: contextlib.ExitStack, tree: Path, *command: str) -> subprocess.Popen[str]:
    path = f"{tree}:{tree / 'agents'}"
    process = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path, "FRD_LOG__LEVEL": "warning"},
        cwd=tree,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end() -> None:
        process.terminate()
        process.wait(60)

    stack.callback(end)
    return process


def _line(process: subprocess.Popen[str], say: str = "") -> str:
    assert process.stdout is not None
    assert process.stdin is not None
    if say:
        process.stdin.write(f"{say}\n")
        process.stdin.flush()
    return process.stdout.readline()


@contextlib.contextmanager
def fleet(tree: Path, count: int) -> Iterator[tuple[int, str, list[subprocess.Popen[str]]]]:
    """The service's process id and HTTP address, and the processes of the agents, at work."""
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(tempfile.TemporaryDirectory())
        addresses = "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir", data
        service = _python(stack, tree, "-m", "frd", "serve", *addresses)
        ready = json.loads(_line(service))
        senders = stack.enter_context(fleet_agents(tree, count, ready["grpc"]))
        yield service.pid, ready["http"], senders


@contextlib.contextmanager
def fleet_agents(tree: Path, count: int, address: str) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of `count` agents, which all report to the service at `address`."""
    with contextlib.ExitStack() as stack:
        command = __file__, "--agents", str(count), "--connect", address
        senders = [_python(stack, tree, *command, "--part", str(part)) for part in range(PROCESSES)]
        for sender in senders:
            _line(sender)
        start_ns = raw_now() + 1_000_000_000
        for sender in senders:
            assert sender.stdin is not None
            sender.stdin.write(f"{start_ns}\n")
            sender.stdin.flush()
        yield senders


def cost(tree: Path, options: argparse.Namespace) -> dict[str, float]:
    """One run with the code of `tree`."""
    with fleet(tree, options.agents) as (pid, http, senders):
        time.sleep(options.settle)
        sent = [json.loads(_line(sender, "sent")) for sender in senders]
        began, used = time.monotonic(), _cpu_s(pid)
        used_of_agents = sum(_cpu_s(sender.pid) for sender in senders)
        loop_lags, ingest_lags, rss = [], [], []
        with _profiled(pid, options):
            while time.monotonic() < began + options.seconds:
                time.sleep(SCRAPE_EVERY_S)
                loop_lags.append(metric(http, "frd_loop_lag_seconds"))
                ingest_lags.append(metric(http, "frd_ingest_lag_seconds"))
                rss.append(_rss_bytes(pid))
        took, used = time.monotonic() - began, _cpu_s(pid) - used
        used_of_agents = sum(_cpu_s(sender.pid) for sender in senders) - used_of_agents
        now = [json.loads(_line(sender, "sent")) for sender in senders]
        total = {
            name: (sum(one[name] for one in now) - sum(one[name] for one in sent)) / took
            for name in ("messages", "bytes")
        }
        return {
            "cpu_share": round(used / took, 4),
            "rss_mb": round(max(rss) / 1e6, 1),
            "loop_lag_p99_s": round(_p99(loop_lags), 4),
            "ingest_lag_p99_s": round(_p99(ingest_lags), 4),
            "messages_per_s": round(total["messages"]),
            "kb_per_s": round(total["bytes"] / 1e3),
            "entries": metric(http, "frd_ingest_entries_total"),
            "findings": len(get(http, "/api/v1/findings")["findings"]),
            "refused": metric(http, "frd_ingest_refused_total"),
            "agents_lost": sum(one["lost"] for one in now),
            "agents_cpu_share": round(used_of_agents / took, 3),
        }


def _p99(values: list[float]) -> float:
    return sorted(values)[math.ceil(len(values) * 0.99) - 1]


@contextlib.contextmanager
def _profiled(pid: int, options: argparse.Namespace) -> Iterator[None]:
    if not options.profile:
        yield
        return
    of, seconds = ("--pid", str(pid)), str(math.floor(options.seconds))
    raw = "--format", "raw", "--rate", "200", "--nonblocking", "--output", options.profile
    spy = ["py-spy", "record", *of, "--duration", seconds, *raw]
    sampling = subprocess.Popen(spy, stdout=subprocess.DEVNULL)
    yield
    sampling.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--agents", type=int, default=AGENTS)
    parser.add_argument("--tree", type=Path, default=HERE, help="the working tree to measure")
    parser.add_argument("--against", type=Path, help="another one, measured in turns with it")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--settle", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--profile", metavar="FILE", help="stacks of the service, by py-spy")
    parser.add_argument("--connect", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if options.connect:
        size = math.ceil(options.agents / PROCESSES)
        numbers = range(options.agents)[options.part * size : (options.part + 1) * size]
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(agents(options.connect, numbers, options.agents))
        return
    trees = [options.tree, *([options.against] if options.against else [])]
    result: dict[str, Any] = {"agents": options.agents, "seconds": options.seconds}
    runs: dict[Path, list[dict[str, float]]] = {tree: [] for tree in trees}
    for _ in range(options.turns):
        for tree in trees:
            runs[tree].append(cost(tree.resolve(), options))
    for name, tree in zip(("tree", "against"), trees, strict=False):
        middle = {key: statistics.median(run[key] for run in runs[tree]) for key in runs[tree][0]}
        result[name] = {**middle, "cpu_shares": [run["cpu_share"] for run in runs[tree]]}
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
