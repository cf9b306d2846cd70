"""Entries a second that one service process can take, and the cost of 2,048 idle agents.

Four measurements on two processors that all processes share:
simulated agents send pre-made messages through real gRPC into a real `frd serve`; the same
messages go to a server that discards them; the same columns go into the engine alone; and
2,048 streams with 8 ranks and 10 groups a rank send their watermarks once a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
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

import grpc.aio
import numpy as np

from bench.report import show
from frd.engine.engine import Engine
from frd.engine.policy import Policy
from frd.engine.state.entry_batch import EntryMessage, EntryRows
from frd.model import (
    AlignedNs,
    AttemptKey,
    EntryColumns,
    GroupInfo,
    Int32s,
    NodeNs,
    NodeRawNs,
    RankInfo,
    RankState,
    RankStatus,
    Signature,
    WatermarkColumns,
)
from frd.rpc import (
    CHANNEL_OPTIONS,
    SERVER_OPTIONS,
    Context,
    StreamCall,
    collector,
    job_metadata,
    open_stream,
)
from frd.service.ingest.buffers import EntryBuffer, Outcome
from frd.wire.codec import encode_agent
from frd.wire.messages import (
    PROTOCOL,
    AttemptDecl,
    Declare,
    Goodbye,
    GroupDecl,
    Hello,
    RankDecl,
    SignatureDecl,
    Statuses,
    Watermarks,
)
from tests.world.daemons import metric

RANKS: Final = 8
"""Of a node."""
NODES: Final = 4
"""Nodes that send entries."""
ROWS: Final = 4_000
"""Entries of one message, 160 KB."""
LEAD: Final = 4
"""Messages that one rank may be ahead of another."""
STREAMS: Final = 2_048
CONNECT_EVERY_S: Final = 0.01
START_NS: Final = 1_790_000_000_000_000_000
HEAD_AGO_NS: Final = 1_000_000
"""How long ago ranks enqueued what they are in, in watermarks."""
TICK_ROUNDS: Final = 4
"""Messages of each rank between two ticks of the engine alone."""
JOB: Final = "bench"
SIGNATURE: Final = Signature("nccl", "all_reduce", ((4096,),), ((4096,),), ("Float",), ("Float",))


# -- a job ---------------------------------------------------------------------------------------


@functools.cache
def group(name: str, desc: str, ranks: range) -> GroupInfo:
    """Made once, because hundreds of nodes are members of the large ones."""
    return GroupInfo(name, desc, tuple(ranks))


class Node:
    """One host of a job in which every rank is in ten groups: twice the world, three times its
    node, and five slices across nodes."""

    def __init__(self, number: int, nodes: int) -> None:
        self.number = number
        self.world = nodes * RANKS
        first = number * RANKS
        here = range(first, first + RANKS)
        self.groups = [
            group("0", "default_pg", range(self.world)),
            group("1", "WORLD_COPY", range(self.world)),
            *(group(f"node-{i}-{number}", f"NODE_{i}", here) for i in range(3)),
        ]
        shared = range(len(self.groups))
        self.groups_of: list[list[int]] = []
        """Stream indexes, by local rank."""
        for slot in range(RANKS):
            own = len(self.groups)
            for index, size in enumerate((2, 4, 8, 16, nodes)):
                block = number // size * size
                last = min(block + size, nodes) * RANKS
                ranks = range(block * RANKS + slot, last, RANKS)
                self.groups.append(group(f"{index}-{block}-{slot}", f"SLICE_{index}", ranks))
            self.groups_of.append([*shared, *range(own, len(self.groups))])

    def infos(self) -> list[RankInfo]:
        first = self.number * RANKS
        return [
            RankInfo(first + i, self.world, f"n{self.number}", f"b{self.number}", 1000 + i, i)
            for i in range(RANKS)
        ]

    def introduction(self) -> list[bytes]:
        now = NodeNs(time.time_ns())
        name = str(self.number)
        live = [RankStatus(i, RankState.LIVE, now) for i in range(RANKS)]
        declare = Declare(
            attempts=(AttemptDecl(0, AttemptKey(JOB, 0), self.world),),
            ranks=tuple(RankDecl(i, 0, info) for i, info in enumerate(self.infos())),
            groups=tuple(GroupDecl(i, 0, group) for i, group in enumerate(self.groups)),
            signatures=(SignatureDecl(0, SIGNATURE),),
        )
        hello = Hello(PROTOCOL, "bench", f"n{name}", f"b{name}", f"s{name}", now, NodeRawNs(now))
        return [encode_agent(event) for event in (hello, declare, Statuses(tuple(live)))]

    def entries(self, rank: int, number: int) -> EntryColumns:
        """The `number`-th message of a local rank: its groups in turn, each op 100 µs after the
        one before, joined and completed."""
        groups = np.array(self.groups_of[rank], np.uint32)
        at = np.arange(number * ROWS, (number + 1) * ROWS, dtype=np.int64)
        created = START_NS + at * 100_000
        return EntryColumns(
            rank=rank,
            first_revision=number * ROWS + 1,
            group=groups[at % len(groups)],
            seq=at // len(groups),
            signature=np.zeros(ROWS, np.uint32),
            flags=np.full(ROWS, 5, np.uint8),
            created_ns=created,
            started_ns=np.zeros(ROWS, np.int64),
            completed_ns=created + 50_000,
        )

    def watermarks(self, seq: int, now: int | None = None) -> bytes:
        """Every rank has completed `seq` in all its groups and is in the next one."""
        now = now or time.time_ns()
        rows = sum(len(groups) for groups in self.groups_of)
        rank = np.repeat(np.arange(RANKS, dtype=np.uint32), rows // RANKS)
        columns = WatermarkColumns(
            rank=rank,
            group=np.concatenate([np.array(groups, np.uint32) for groups in self.groups_of]),
            enqueued=np.full(rows, seq + 1, np.int64),
            started=np.full(rows, -1, np.int64),
            completed=np.full(rows, seq, np.int64),
            head_created_ns=np.full(rows, now - HEAD_AGO_NS, np.int64),
            seen_rank=np.arange(RANKS, dtype=np.uint32),
            as_of_ns=np.full(RANKS, now, np.int64),
        )
        return encode_agent(Watermarks(0, columns, NodeNs(now), NodeRawNs(now)))


@contextlib.asynccontextmanager
async def stream(address: str) -> Any:
    """A stream on its own connection; answers of the service are read and ignored."""
    options = [("grpc.use_local_subchannel_pool", 1), *CHANNEL_OPTIONS]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        call = open_stream(channel, metadata=job_metadata(JOB), wait_for_ready=True)
        reading = asyncio.create_task(_drain(call))
        yield call
        await call.done_writing()
        await reading


async def _drain(call: StreamCall) -> None:
    while isinstance(await call.read(), bytes):
        pass


# -- entries -------------------------------------------------------------------------------------


async def send_entries(address: str, messages: int) -> float:
    """All ranks of `NODES` nodes send `messages` each; returns the seconds that it took."""
    nodes = [Node(number, NODES) for number in range(NODES)]
    made = [
        [[encode_agent(node.entries(r, m)) for r in range(RANKS)] for m in range(messages)]
        for node in nodes
    ]
    ready, abreast = asyncio.Barrier(NODES), asyncio.Barrier(NODES)
    began = 0.0

    async def agent(node: Node, rounds: list[list[bytes]]) -> None:
        nonlocal began
        async with stream(address) as call:
            for message in node.introduction():
                await call.write(message)
            await ready.wait()
            began = time.perf_counter()
            for number, batch in enumerate(rounds):
                if number % LEAD == 0:
                    await abreast.wait()
                for message in batch:
                    await call.write(message)
            await call.write(encode_agent(Goodbye("done")))

    await asyncio.gather(*(agent(*work) for work in zip(nodes, made, strict=True)))
    return time.perf_counter() - began


async def discard() -> None:
    """A server that discards everything; prints its address."""

    async def handle(_: Any, context: Context) -> None:
        while isinstance(await context.read(), bytes):
            pass

    server = grpc.aio.server(options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((collector(handle),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(json.dumps({"grpc": f"127.0.0.1:{port}"}), flush=True)
    await server.wait_for_termination()


def engine_alone(messages: int, *, together: bool = False) -> float:
    """Entries a second that one engine applies from prepared columns, by processor time: as the
    service does it, which collects messages; or `together`: those of all ranks in one call."""
    engine = Engine(Policy())
    now = AlignedNs(START_NS + 1_000_000_000_000)
    attempt = engine.attempt(AttemptKey(JOB, 0), NODES * RANKS, now)
    nodes = [Node(number, NODES) for number in range(NODES)]
    signature = attempt.signature(SIGNATURE)
    work = []
    for node in nodes:
        groups = [attempt.group(info) for info in node.groups]
        for local, info in enumerate(node.infos()):
            rank = attempt.rank(info)
            attempt.clocks.set([rank], node.number, 50_000, now)
            pairs = np.array([attempt.pair(rank, group) for group in groups], np.int32)
            work.append((node, local, rank, pairs))
    waiting, spent = EntryBuffer(), 0.0
    for number in range(messages):
        made = [
            _rows(node.entries(local, number), rank, pairs, signature)
            for node, local, rank, pairs in work
        ]
        began = time.process_time()
        if together:
            attempt.apply_entries([EntryMessage(rows, -1, now) for rows in made])
        else:
            for rows in made:
                if waiting.has(attempt, rows.rank):
                    waiting.flush()
                waiting.add(attempt, EntryMessage(rows, -1, now), _ignore)
        if number % TICK_ROUNDS == 0:
            waiting.flush()
            attempt.stalls(now)
        spent += time.process_time() - began
    return messages * len(work) * ROWS / spent


def _ignore(outcome: Outcome) -> None:
    """Nothing is acknowledged."""


def _rows(c: EntryColumns, rank: int, pairs: Int32s, signature: int) -> EntryRows:
    signatures = np.full(len(c), signature, np.int32)
    times = (c.created_ns, c.started_ns, c.completed_ns)
    return EntryRows(rank, pairs[c.group], c.seq, signatures, c.flags, *times)


# -- 2,048 quiet streams -------------------------------------------------------------------------


async def trickle(address: str, streams: int) -> None:
    """`streams` agents that send watermarks once a second until killed; prints a line when all are
    connected."""
    nodes = [Node(number, streams) for number in range(streams)]
    connected = 0

    async def agent(node: Node) -> None:
        nonlocal connected
        await asyncio.sleep(node.number * CONNECT_EVERY_S)  # agents do not connect together
        introduction = node.introduction()
        async with stream(address) as call:
            for message in introduction:
                await call.write(message)
            connected += 1
            if connected == streams:
                print("connected", flush=True)
            seq, due = 0, time.monotonic()
            while True:
                await call.write(node.watermarks(seq))
                seq, due = seq + 1, due + 1.0
                await asyncio.sleep(max(due - time.monotonic(), 0))

    await asyncio.gather(*(agent(node) for node in nodes))


def watch(pid: int, http: str, seconds: float) -> dict[str, float]:
    """The cost of the service during `seconds`: processor time, largest loop lags, memory."""
    lags, rss = [], []
    began, used = time.monotonic(), _cpu_s(pid)
    while time.monotonic() < began + seconds:
        time.sleep(2.0)
        lags.append(metric(http, "frd_loop_lag_seconds"))
        rss.append(_rss_bytes(pid))
    share = (_cpu_s(pid) - used) / (time.monotonic() - began)
    worst = sorted(lags)[math.ceil(len(lags) * 0.99) - 1]
    return {"cpu_share": share, "loop_lag_p99_s": worst, "rss_bytes": max(rss)}


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


# -- processes -------------------------------------------------------------------------------------


@contextlib.contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "FRD_LOG__LEVEL": "error"}
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def service() -> Iterator[tuple[int, str, str]]:
    """Process id and addresses of a real `frd serve`."""
    with tempfile.TemporaryDirectory() as data_dir:
        addresses = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
        with started("-m", "frd", "serve", *addresses, "--data-dir", data_dir) as process:
            ready = json.loads(line(process))
            yield process.pid, ready["grpc"], ready["http"]


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def send(address: str, messages: int) -> float:
    with started(__file__, "--send", address, "--messages", str(messages)) as process:
        return float(line(process))


def throughput(messages: int) -> tuple[float, float]:
    """Entries a second into the service, and into the server that discards them."""
    total = messages * NODES * RANKS * ROWS
    with service() as (_, address, http):
        kept = total / send(address, messages)
        _await_count(http, total)
    with started(__file__, "--discard") as process:
        thrown = total / send(json.loads(line(process))["grpc"], messages)
    return kept, thrown


def _await_count(http: str, total: int) -> None:
    """The service publishes its count once a second."""
    deadline = time.monotonic() + 10
    while (applied := metric(http, "frd_ingest_entries_total")) != total:
        if time.monotonic() > deadline:
            raise SystemExit(f"ingest: {applied:.0f} of {total} entries applied: see the log")
        time.sleep(0.2)


def quiet_streams(streams: int, settle_s: float, seconds: float) -> dict[str, float]:
    with (
        service() as (pid, address, http),
        started(__file__, "--trickle", address, "--streams", str(streams)) as agents,
    ):
        line(agents)
        time.sleep(settle_s)
        return {"count": streams, **watch(pid, http, seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--messages", type=int, default=60, help="of each rank")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--send", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--trickle", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--discard", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if options.discard:
        asyncio.run(discard())
    elif options.send:
        print(asyncio.run(send_entries(options.send, options.messages)), flush=True)
    elif options.trickle:
        asyncio.run(trickle(options.trickle, options.streams))
    else:
        report(options)


def report(options: argparse.Namespace) -> None:
    runs = [throughput(options.messages) for _ in range(options.runs)]
    alone = [
        (engine_alone(options.messages), engine_alone(options.messages, together=True))
        for _ in range(options.runs)
    ]
    result: dict[str, Any] = {
        "entries_per_s": round(statistics.median(kept for kept, _ in runs)),
        "ratio_to_discard": round(statistics.median(kept / thrown for kept, thrown in runs), 3),
        "discard_entries_per_s": round(statistics.median(thrown for _, thrown in runs)),
        "engine_entries_per_s": round(statistics.median(engine for engine, _ in alone)),
        "engine_ratio_to_one_call": round(statistics.median(a / b for a, b in alone), 3),
        "streams": quiet_streams(options.streams, 20.0, options.seconds),
    }
    show(result, as_json=options.json)


if __name__ == "__main__":
    main()
