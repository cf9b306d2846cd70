"""A real service process, and agents that say whatever they are told to."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np

from frd.model import (
    AttemptKey,
    EntryColumns,
    GroupInfo,
    NodeNs,
    RankInfo,
    RankState,
    RankStatus,
    Signature,
    WatermarkColumns,
)
from frd.rpc import CHANNEL_OPTIONS, StreamCall, open_stream
from frd.wire import (
    PROTOCOL,
    AgentEvent,
    AttemptDecl,
    Declare,
    GroupDecl,
    Hello,
    RankDecl,
    ServiceEvent,
    SignatureDecl,
    Statuses,
    Watermarks,
    Welcome,
    decode_service,
    encode_agent,
)

WORLD = 4


@dataclass
class Service:
    process: subprocess.Popen[str]
    grpc: str
    http: str

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=10) as answer:
            return json.load(answer)

    def metric(self, series: str) -> float:
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if line.startswith(f"{series} ")]
        return float(found[0].rpartition(" ")[2]) if found else 0.0


def serve_command(data_dir: Path, *flags: str) -> list[str]:
    addresses = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
    return [sys.executable, "-m", "frd", "serve", *addresses, "--data-dir", str(data_dir), *flags]


class Peer:
    """One stream. Node i of the job hosts the ranks 2i and 2i+1."""

    def __init__(self, call: StreamCall, node: int, session: str, job: str) -> None:
        self.call = call
        self.node = node
        self.session = session
        self.job = job

    async def send(self, *events: AgentEvent) -> None:
        for event in events:
            await self.call.write(encode_agent(event))

    async def hear(self, within_s: float = 10.0) -> ServiceEvent | None:
        data = await asyncio.wait_for(self.call.read(), within_s)
        return decode_service(data) if isinstance(data, bytes) else None

    async def hear_of(self, kind: type[Any], within_s: float = 10.0) -> Any:
        while not isinstance(event := await self.hear(within_s), kind):
            assert event is not None, f"the stream ended before {kind.__name__}"
        return event

    def hello(self) -> Hello:
        name = f"node-{self.job}-{self.node}"
        return Hello(PROTOCOL, "test", name, f"boot-{name}", self.session, NodeNs(time.time_ns()))

    def declare(self, attempt: int = 0) -> Declare:
        hello = self.hello()
        key = AttemptKey(self.job, attempt)
        ranks = (2 * self.node, 2 * self.node + 1)
        signature = Signature("gloo", "all_reduce", ((4,),), ((4,),), ("Float",), ("Float",))
        return Declare(
            attempts=(AttemptDecl(0, key, WORLD),),
            ranks=tuple(
                RankDecl(i, 0, RankInfo(rank, WORLD, hello.node, hello.boot_id, 100 + rank, i))
                for i, rank in enumerate(ranks)
            ),
            groups=(GroupDecl(0, 0, GroupInfo("0", "default_pg", tuple(range(WORLD)))),),
            signatures=(SignatureDecl(0, signature),),
        )

    async def introduce(self) -> None:
        live = tuple(RankStatus(i, RankState.LIVE, NodeNs(time.time_ns())) for i in range(2))
        await self.send(self.hello(), self.declare(), Statuses(live))
        assert isinstance(await self.hear(), Welcome)

    def watermarks(self, enqueued: tuple[int, int], since_ns: int) -> Watermarks:
        """The ranks have completed seq 6 and some wait in seq 7 `since_ns`."""
        now = time.time_ns()
        columns = WatermarkColumns(
            rank=np.arange(2, dtype=np.uint32),
            group=np.zeros(2, np.uint32),
            enqueued=np.array(enqueued, np.int64),
            started=np.full(2, -1, np.int64),
            completed=np.full(2, 6, np.int64),
            head_created_ns=np.array([since_ns if e > 6 else 0 for e in enqueued], np.int64),
            seen_rank=np.arange(2, dtype=np.uint32),
            as_of_ns=np.full(2, now, np.int64),
        )
        return Watermarks(0, columns, NodeNs(now))


def entries(first_revision: int, first_seq: int, rows: int, *, rank: int = 0) -> EntryColumns:
    return EntryColumns(
        rank=rank,
        first_revision=first_revision,
        group=np.zeros(rows, np.uint32),
        seq=np.arange(first_seq, first_seq + rows, dtype=np.int64),
        signature=np.zeros(rows, np.uint32),
        flags=np.full(rows, 5, np.uint8),
        created_ns=np.full(rows, time.time_ns(), np.int64),
        started_ns=np.zeros(rows, np.int64),
        completed_ns=np.zeros(rows, np.int64),
    )


@asynccontextmanager
async def peer(
    service: Service, node: int = 0, session: str = "s", job: str = "job"
) -> AsyncIterator[Peer]:
    # A connection of its own, as every agent has, without the client's limit on what it sends.
    unlimited = ("grpc.max_send_message_length", -1)
    options = [unlimited, ("grpc.use_local_subchannel_pool", 1), *CHANNEL_OPTIONS]
    async with grpc.aio.insecure_channel(service.grpc, options=options) as channel:
        yield Peer(open_stream(channel), node, session, job)
