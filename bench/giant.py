"""One job of 98,304 ranks in one process: the cost of its watermarks, its evaluation, its views.

12,288 agents of 8 ranks in 10 groups each introduce themselves, then each sends its watermarks once
a second, spread over the second. The messages come from another process through a socket, without
gRPC, into what the service has behind gRPC: streams, sessions, journal, evaluation four times a
second, a view of everything once a second. Each agent's clock is exchanged as by its pings. What is
measured begins after every agent has sent its first watermarks, which cost more.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parents[1]))  # `bench` and `tests` are not installed

import numpy as np

from bench.ingest import HEAD_AGO_NS, RANKS, Node
from bench.report import show
from frd import __version__
from frd.cli.commands.serve import tune
from frd.engine.clocks.exchange import Exchange
from frd.engine.engine import Engine
from frd.engine.policy import Policy
from frd.engine.views import StatusView
from frd.model import AttemptKey, NodeRawNs, ServiceRawNs
from frd.service.clocks.agent_clocks import AgentClocks
from frd.service.clocks.real_time import RealTime, raw_now
from frd.service.findings.evaluator import Evaluator
from frd.service.findings.keepers import LocalKeeper
from frd.service.ingest.shared import Shared
from frd.service.ingest.streams import Stream, Streams
from frd.service.journal.payloads import Settings, encode_payload
from frd.service.journal.writer import JournalWriter
from frd.service.state import ServiceState
from frd.store.findings import FindingStore
from frd.store.journal import JournalLimits
from frd.wire.clock import Readings
from frd.wire.messages import Hello, Watermarks

_FRAME: Final = struct.Struct("<II")
"""Number of the agent, bytes of its message."""
_INT64: Final = struct.Struct("<q")
_SEQ: Final = 123_456_789
"""A seq that is nothing else in a message."""
_SLICES: Final = 100
"""Parts of a second in which agents send."""
_SAMPLE_S: Final = 0.05
_HALF_NS: Final = 50_000
"""Half of the round trip of a ping."""
_BURST: Final = 8
"""Pings."""
_BURST_EVERY_NS: Final = 10_000_000
_PING_EVERY: Final = 16
"""Messages of an agent; about as many seconds."""


now = RealTime()


async def feed(path: str, agents: int) -> None:
    """All introductions, then a second's watermarks in every second, until killed."""
    _, writer = await asyncio.open_unix_connection(path)
    nodes = [Node(number, agents) for number in range(agents)]
    template_ns = time.time_ns()
    templates = [node.watermarks(_SEQ, template_ns) for node in nodes]

    async def send(node: Node, message: bytes) -> None:
        writer.write(_FRAME.pack(node.number, len(message)) + message)
        await writer.drain()

    for node in nodes:
        for message in node.introduction():
            await send(node, message)
    began, seq = time.monotonic(), 0
    while True:
        for part in range(_SLICES):
            for node in nodes[part::_SLICES]:
                await send(node, _patched(templates[node.number], template_ns, seq))
            await asyncio.sleep(max(0, began + seq + (part + 1) / _SLICES - time.monotonic()))
        seq += 1


def _patched(message: bytes, then_ns: int, seq: int) -> bytes:
    """The same watermarks at another seq, now: to encode them takes too long for one process."""
    later_ns = time.time_ns()
    for old, new in (
        (_SEQ, seq),
        (_SEQ + 1, seq + 1),
        (then_ns, later_ns),
        (then_ns - HEAD_AGO_NS, later_ns - HEAD_AGO_NS),
    ):
        message = message.replace(_INT64.pack(old), _INT64.pack(new))
    return message.replace(_varint(then_ns), _varint(later_ns))


def _varint(value: int) -> bytes:
    groups = []
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


@dataclass(slots=True)
class Costs:
    """Processor time of the event loop's thread, and how late the loop woke."""

    introductions_s: float = 0.0
    messages_s: float = 0.0
    evaluation_s: float = 0.0
    view_s: float = 0.0
    messages: int = 0
    lags: list[float] = field(default_factory=list)

    async def sample(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _SAMPLE_S
            await asyncio.sleep(_SAMPLE_S)
            self.lags.append(max(loop.time() - due, 0.0))


class Process:
    """The parts of `frd.service.app.App` behind gRPC."""

    def __init__(self, folder: Path) -> None:
        self.shared = Shared(Engine(Policy()))
        self.store = FindingStore(folder / "findings.sqlite3")
        self.journal = JournalWriter(
            folder / "journal",
            settings=encode_payload(Settings(__version__, Policy())),
            now=now(),
            limits=JournalLimits(total_bytes=1 << 30, max_age_s=3600.0),
        )
        recorder = self.journal.whole()
        self.clocks = AgentClocks(now)
        self.streams = Streams(
            self.shared,
            self.clocks,
            recorder,
            now=now,
            version=__version__,
            instance="bench",
            ids=itertools.count(1),
        )
        self.evaluator = Evaluator(
            self.shared,
            LocalKeeper(self.store),
            recorder,
            now=now,
            project=self._project,
            publish=lambda events: None,
            settle=self.streams.settle,
        )
        self.costs = Costs()

    def _project(self, view: StatusView) -> ServiceState:
        self.streams.keep(frozenset(one.key for one in view.attempts))
        return ServiceState(view, nodes=self.streams.nodes.views(view.at, 10.0))

    async def take(self, reader: asyncio.StreamReader, agents: int, ready: asyncio.Event) -> None:
        streams: list[Stream] = []
        marked: list[int] = []
        """Watermark messages, by stream."""
        costs = self.costs
        while True:
            number, size = _FRAME.unpack(await reader.readexactly(_FRAME.size))
            data = await reader.readexactly(size)
            began = time.thread_time()
            if number == len(streams):
                streams.append(self.streams.open())
                marked.append(0)
            stream = streams[number]
            event = self.streams.take(stream, data)
            is_marks = isinstance(event, Watermarks)
            if isinstance(event, Hello) or (is_marks and marked[number] % _PING_EVERY == 0):
                self._exchange(stream)
            marked[number] += is_marks
            spent = time.thread_time() - began
            if ready.is_set():
                costs.messages_s, costs.messages = costs.messages_s + spent, costs.messages + 1
            elif not is_marks:
                costs.introductions_s += spent
            elif len(streams) == agents and min(marked) == 1:
                ready.set()
            await asyncio.sleep(0)  # each message is an event of the loop, as in gRPC

    def _exchange(self, stream: Stream) -> None:
        """What a burst of pings brings; the raw clock of a node here is the wall clock."""
        assert stream.clock is not None
        # Other threads may run between these.
        sent, there, back = time.time_ns(), raw_now(), time.time_ns()
        for before in range(_BURST * _BURST_EVERY_NS, 0, -_BURST_EVERY_NS):
            times = np.array([sent - before])
            readings = Readings(times, times, np.array([1_000]))
            left = NodeRawNs(sent - before - _HALF_NS)
            returned = NodeRawNs(back - before + _HALF_NS)
            answered = ServiceRawNs(there - before)
            exchange = Exchange(left, answered, answered, returned)
            self.clocks.learn(stream.clock, readings, exchange)

    async def evaluate(self) -> None:
        """As `Evaluator.run` does it."""
        while True:
            await asyncio.sleep(0.25)
            began = time.thread_time()
            await self.evaluator.evaluate()
            self.costs.evaluation_s += time.thread_time() - began


async def measure(ranks: int, seconds: float) -> dict[str, Any]:
    agents = ranks // RANKS
    with tempfile.TemporaryDirectory() as name:
        process, ready = Process(Path(name)), asyncio.Event()
        taking: list[asyncio.Task[None]] = []
        path = f"{name}/feed"

        def connected(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            taking.append(asyncio.create_task(process.take(reader, agents, ready)))

        server = await asyncio.start_unix_server(connected, path, limit=1 << 20)
        feeder = subprocess.Popen([sys.executable, __file__, "--feed", path, "--ranks", str(ranks)])
        tasks = [asyncio.create_task(process.evaluate())]
        try:
            await ready.wait()
            costs = process.costs
            introduction_us = 1e6 * costs.introductions_s / agents
            costs.messages_s = costs.evaluation_s = costs.messages = 0
            tasks.append(asyncio.create_task(costs.sample()))
            began = time.monotonic()
            await asyncio.sleep(seconds)
            wall = time.monotonic() - began
            key = AttemptKey("bench", 0)
            attempt = process.shared.engine.known(key)
            assert attempt is not None
            snapshot_s = _timed(lambda: attempt.snapshot(now()))
            view_s = _timed(lambda: attempt.view(now()))
            view = process.evaluator.state.status_view
            assert len(view.attempts[0].ranks) == ranks, len(view.attempts[0].ranks)
            assert not view.findings, view.findings[0].summary
        finally:
            feeder.kill()
            feeder.wait()
            for task in (*tasks, *taking):
                task.cancel()
            server.close()
            process.journal.close()
            process.store.close()
    lags = sorted(costs.lags)
    return {
        "ranks": ranks,
        "messages_per_s": round(costs.messages / wall),
        "introduction_us": round(introduction_us),
        "message_us": round(1e6 * costs.messages_s / costs.messages, 1),
        "messages_core_share": round(costs.messages_s / wall, 3),
        "evaluation_core_share": round(costs.evaluation_s / wall, 3),
        "snapshot_s": round(snapshot_s, 3),
        "view_s": round(view_s, 3),
        "loop_lag_p99_s": round(lags[math.ceil(len(lags) * 0.99) - 1], 3),
        "loop_lag_max_s": round(lags[-1], 3),
        "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _timed(call: Any) -> float:
    began = time.thread_time()
    call()
    return time.thread_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--ranks", type=int, default=98_304)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--feed", metavar="PATH", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    if options.feed:
        asyncio.run(feed(options.feed, options.ranks // RANKS))
    else:
        tune()
        show(asyncio.run(measure(options.ranks, options.seconds)), as_json=options.json)


if __name__ == "__main__":
    main()
