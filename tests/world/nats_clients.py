"""A replica's access to real NATS servers, without the service around it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from nats.js import JetStreamContext
from nats.js.api import StreamConfig

from frd.cluster.nats.cells import JetStreamCells
from frd.cluster.nats.connection import Access, Ack, Connection, Unanswered
from frd.cluster.nats.registry import JetStreamRegistry
from frd.cluster.nats.streams import registry_stream
from frd.cluster.registry import Entry, Registry
from frd.cluster.thread import LoopThread, Runner
from frd.config import ClusterOptions
from tests.world.daemons import PATIENCE_S
from tests.world.fake_cluster import Loss
from tests.world.nats_servers import NatsServers

T = TypeVar("T")


def options_for(servers: NatsServers, name: str) -> ClusterOptions:
    """Of a cluster with separate streams."""
    return ClusterOptions(servers.urls, name, replicas=min(3, len(servers.all)))


class CalledRegistry:
    """A registry for callers in another event loop than that of its connection."""

    def __init__(self, runner: Runner, registry: Registry) -> None:
        self._runner = runner
        self._registry = registry

    async def get(self, key: str) -> Entry | None:
        return await self._runner.call(self._registry.get(key))

    async def find(self, prefix: str) -> Mapping[str, Entry]:
        return await self._runner.call(self._registry.find(prefix))

    async def put(self, key: str, value: bytes, revision: int) -> int:
        return await self._runner.call(self._registry.put(key, value, revision))

    async def delete(self, key: str, revision: int) -> None:
        await self._runner.call(self._registry.delete(key, revision))


@dataclass(frozen=True, slots=True)
class NatsClient:
    thread: LoopThread
    connection: Connection
    options: ClusterOptions
    registry: CalledRegistry

    def values(self, losses: list[Loss] | None = None) -> JetStreamCells:
        """`losses` happen to the next writes, one by one."""
        connection = self.connection if losses is None else Lossy(self.connection, losses)
        return JetStreamCells(self.thread, connection, self.options.name)


class Lossy(Connection):
    """The connection `real`, some of whose writes or confirmations are lost on the way."""

    def __init__(self, real: Connection, losses: list[Loss]) -> None:
        self._real = real
        self._losses = losses

    async def publish(self, subject: str, data: bytes, headers: Mapping[str, str]) -> Ack:
        loss = self._losses.pop(0) if self._losses else None
        if loss == "request":
            raise Unanswered("lost request")
        ack = await self._real.publish(subject, data, headers)
        if loss == "answer":
            raise Unanswered("lost answer")
        return ack

    async def ask(
        self, request: Callable[[JetStreamContext], Awaitable[T]], timeout_s: float | None = None
    ) -> T:
        return await self._real.ask(request, timeout_s)


@asynccontextmanager
async def nats_client(
    options: ClusterOptions, *, server: str | None = None, request_s: float = 2.0
) -> AsyncIterator[NatsClient]:
    """Connected to `server` or any of the servers; the registry has its stream."""
    thread = LoopThread("nats")
    connection = Connection(Access((server,) if server else options.servers, "test"), request_s)
    try:
        await thread.call(connection.open())
        await thread.call(_create(connection, registry_stream(options)))
        registry = JetStreamRegistry(connection, options.name)
        yield NatsClient(
            thread,
            connection,
            options,
            CalledRegistry(thread, registry),
        )
    finally:
        await thread.call(connection.close())
        await thread.stop()


async def _create(connection: Connection, stream: StreamConfig) -> None:
    """Servers that have just started again count as offline for a moment."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            await connection.ask(lambda js: js.add_stream(stream), 10)
            return
        except Unanswered:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.2)
