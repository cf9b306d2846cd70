"""A replica's access to real NATS servers, without the service around it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from frd.cluster.nats.connection import Access, Connection
from frd.cluster.nats.findings import JetStreamFindings
from frd.cluster.nats.log import JetStreamLog
from frd.cluster.nats.registry import JetStreamRegistry
from frd.cluster.nats.streams import finding_stream, log_stream, registry_stream
from frd.cluster.registry import Entry
from frd.cluster.thread import LoopThread
from frd.config import ClusterOptions
from tests.world.nats_servers import NatsServers


def options_for(servers: NatsServers, name: str) -> ClusterOptions:
    """Of a cluster with separate streams."""
    return ClusterOptions(servers.urls, name, replicas=min(3, len(servers.all)), log_bytes=1 << 28)


class CalledRegistry:
    """A registry whose work is done in the thread, for callers in another event loop."""

    def __init__(self, thread: LoopThread, registry: JetStreamRegistry) -> None:
        self._thread = thread
        self._registry = registry

    async def get(self, key: str) -> Entry | None:
        return await self._thread.call(self._registry.get(key))

    async def find(self, prefix: str) -> dict[str, Entry]:
        return dict(await self._thread.call(self._registry.find(prefix)))

    async def put(self, key: str, value: bytes, revision: int) -> int:
        return await self._thread.call(self._registry.put(key, value, revision))


@dataclass(frozen=True, slots=True)
class NatsClient:
    thread: LoopThread
    connection: Connection
    options: ClusterOptions
    registry: CalledRegistry
    findings: JetStreamFindings

    def log(self, cell: int, patience_s: float = 10.0) -> JetStreamLog:
        stream = log_stream(self.options, cell)
        return JetStreamLog(self.thread, self.connection, stream, patience_s)


@asynccontextmanager
async def nats_client(
    options: ClusterOptions, *, server: str | None = None
) -> AsyncIterator[NatsClient]:
    """Connected to `server` or any of the servers; registry and findings have their streams."""
    thread = LoopThread("nats")
    connection = Connection(Access((server,) if server else options.servers, "test"))
    try:
        await thread.call(connection.open())
        for stream in (registry_stream(options), finding_stream(options)):
            await thread.call(connection.ask(lambda js, s=stream: js.add_stream(s), 10))  # type: ignore[misc]
        registry = JetStreamRegistry(connection, options.name)
        yield NatsClient(
            thread,
            connection,
            options,
            CalledRegistry(thread, registry),
            JetStreamFindings(thread, connection, options.name),
        )
    finally:
        await thread.call(connection.close())
        await thread.stop()
