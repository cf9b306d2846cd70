"""A real service process, and scripted agents."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio

from frd.model import AttemptKey, EntryColumns, NodeNs, NodeRawNs, RankInfo, RankState, RankStatus
from frd.rpc import CHANNEL_OPTIONS, StreamCall, open_stream
from frd.wire.codec import decode_service, encode_agent
from frd.wire.messages import (
    PROTOCOL,
    AgentEvent,
    Declare,
    Hello,
    ServiceEvent,
    Statuses,
    Watermarks,
    Welcome,
)
from tests.world.daemons import first_line, get, metric, running, serve_command
from tests.world.messages import BOTH, declare, entry_columns, watermarks

T = TypeVar("T")
WORLD = 4


@dataclass
class Service:
    process: subprocess.Popen[str]
    grpc: str
    http: str

    def get(self, path: str) -> Any:
        return get(self.http, path)

    def metric(self, series: str) -> float:
        return metric(self.http, series)

    def terminate(self) -> None:
        """SIGTERM: it ends soon, with exit code 0."""
        self.process.terminate()
        assert self.process.wait(10) == 0


@contextmanager
def serving(data_dir: Path, *flags: object, log: Path | None = None) -> Iterator[Service]:
    """A service that listens; at the end it is killed, if it still runs."""
    with running(serve_command(data_dir, *flags), log=log) as process:
        listens = json.loads(first_line(process))
        yield Service(process, listens["grpc"], listens["http"])


class Peer:
    """One stream. Node i of the job hosts the ranks 2i and 2i+1."""

    def __init__(self, call: StreamCall, node: int, session: str, job: str) -> None:
        self.call = call
        self.node = node
        self.session = session
        self.job = job
        self._turn = asyncio.Lock()  # a call takes one write at a time

    async def send(self, *events: AgentEvent) -> None:
        for event in events:
            async with self._turn:
                await self.call.write(encode_agent(event))

    async def receive(self, within_s: float = 10.0) -> ServiceEvent | None:
        data = await asyncio.wait_for(self.call.read(), within_s)
        return decode_service(data) if isinstance(data, bytes) else None

    async def receive_a(self, kind: type[Any], within_s: float = 10.0) -> Any:
        while not isinstance(event := await self.receive(within_s), kind):
            assert event is not None, f"the stream ended before {kind.__name__}"
        return event

    def hello(self) -> Hello:
        name = f"node-{self.job}-{self.node}"
        now = time.time_ns()  # of both clocks: the origin of the raw one means nothing
        clocks = NodeNs(now), NodeRawNs(now)
        return Hello(PROTOCOL, "test", name, f"boot-{name}", self.session, *clocks)

    def declare(self, attempt: int = 0) -> Declare:
        hello = self.hello()
        key = AttemptKey(self.job, attempt)
        infos = [
            RankInfo(rank, WORLD, hello.node, hello.boot_id, 100 + rank, i)
            for i, rank in enumerate((2 * self.node, 2 * self.node + 1))
        ]
        return declare(infos, key=key)

    async def introduce(self) -> None:
        live = tuple(RankStatus(i, RankState.LIVE, NodeNs(time.time_ns())) for i in range(2))
        await self.send(self.hello(), self.declare(), Statuses(live))
        assert isinstance(await self.receive(), Welcome)

    def watermarks(self, enqueued: tuple[int, int], since_ns: int) -> Watermarks:
        """The ranks have completed seq 6 and some wait in seq 7 `since_ns`."""
        now = time.time_ns()
        heads = [since_ns if seq > 6 else 0 for seq in enqueued]
        return watermarks(
            [0, 1],
            enqueued=enqueued,
            completed=6,
            head=heads,
            seen=[0, 1],
            as_of=now,
            sent=now,
            raw=now,
        )


def entries(first_revision: int, first_seq: int, rows: int, *, rank: int = 0) -> EntryColumns:
    return entry_columns(
        range(first_seq, first_seq + rows),
        rank=rank,
        revision=first_revision,
        flags=BOTH,
        created=time.time_ns(),
    )


@asynccontextmanager
async def peer(
    service: Service, node: int = 0, session: str = "s", job: str = "job"
) -> AsyncIterator[Peer]:
    # Its own connection, as every agent has, without the client's limit on what it sends.
    unlimited = ("grpc.max_send_message_length", -1)
    options = [unlimited, ("grpc.use_local_subchannel_pool", 1), *CHANNEL_OPTIONS]
    async with grpc.aio.insecure_channel(service.grpc, options=options) as channel:
        yield Peer(open_stream(channel), node, session, job)


@asynccontextmanager
async def both_nodes(service: Service, *sessions: str) -> AsyncIterator[tuple[Peer, Peer]]:
    """The agents of both nodes of a job, introduced."""
    first, second = sessions or ("a", "b")
    async with peer(service, 0, first) as one, peer(service, 1, second) as two:
        await one.introduce()
        await two.introduce()
        yield one, two


async def stall(peers: tuple[Peer, Peer], since_ns: int, condition: Callable[[], T]) -> T:
    """Ranks 0, 1 and 3 wait in collective 7 since `since_ns`, which rank 2 never joins, until
    `condition` returns a true value; returns that."""
    first, second = peers
    async with asyncio.timeout(40):
        while not (found := await asyncio.to_thread(condition)):
            await first.send(first.watermarks((7, 7), since_ns))
            await second.send(second.watermarks((6, 7), since_ns))
            await asyncio.sleep(0.1)
    return found
