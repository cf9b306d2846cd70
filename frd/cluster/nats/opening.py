"""Opening a cluster: the checks of a start, and the parts that the service uses."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from frd.cluster.cluster import Cluster
from frd.cluster.heartbeats import HeartbeatLease
from frd.cluster.lease import Replica
from frd.cluster.log import FencedLog
from frd.cluster.nats.access import access
from frd.cluster.nats.checks import check_durable, check_meta, check_servers, check_streams
from frd.cluster.nats.connection import Connection, Unanswered
from frd.cluster.nats.findings import JetStreamFindings
from frd.cluster.nats.log import JetStreamLog
from frd.cluster.nats.registry import JetStreamRegistry
from frd.cluster.nats.streams import log_stream
from frd.cluster.registry import Entry, Registry
from frd.cluster.thread import LoopThread
from frd.config import ClusterOptions
from frd.errors import ClusterError

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_MEMBER: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_HEARTBEAT_REQUEST_S: Final = 1.0
"""A heartbeat tries another server after that: others count six heartbeats, 3 s."""


@asynccontextmanager
async def reading(options: ClusterOptions, cell: int) -> AsyncIterator[FencedLog]:
    """The log of a cell, for a program that only reads it. Nothing is created or changed.

    Raises:
        ClusterError: the servers cannot be used: names the key and what to do.
    """
    opened = access(options, "reader")
    thread, data = LoopThread("frd-cluster"), Connection(opened)
    try:
        await thread.call(check_servers(opened))
        await thread.call(data.open())
        yield JetStreamLog(thread, data, log_stream(options, cell))
    except Unanswered as error:
        raise ClusterError(f"cluster.servers: no connection: {error}: check the servers") from None
    finally:
        await thread.call(data.close())
        await thread.stop()


async def connect(
    options: ClusterOptions, member: str, grpc: str, http: str, version: str
) -> Cluster:
    """Check the servers, create what is missing, and connect; heartbeats begin with `Lease.start`.

    `member` is the name of this replica, `grpc` (HOST:PORT) and `http` (a URL) are its addresses.

    Raises:
        ClusterError: names the key of ``[cluster]`` and what to do.
    """
    if not _NAME.fullmatch(options.name):
        raise ClusterError(f"cluster.name: {options.name!r}: use letters, digits, - and _ (32)")
    if not _MEMBER.fullmatch(member):
        raise ClusterError(f"cluster.member: {member!r}: use letters, digits, -, _ and single dots")
    opened = access(options, member)
    thread = LoopThread("frd-cluster")
    # Bundles of the log must not delay heartbeats, which have their own connection.
    registry, data = Connection(opened, _HEARTBEAT_REQUEST_S), Connection(opened)

    async def close() -> None:
        for connection in (registry, data):
            await thread.call(connection.close())
        await thread.stop()

    try:
        await thread.call(check_servers(opened))
        for connection in (registry, data):
            await thread.call(connection.open())
        await thread.call(check_streams(data, options))
        await thread.call(check_meta(data, options))
        durable = await thread.call(check_durable(data, options))
    except Unanswered as error:
        await close()
        raise ClusterError(f"cluster.servers: no connection: {error}: check the servers") from None
    except BaseException:
        await close()
        raise

    def log(cell: int) -> FencedLog:
        return JetStreamLog(thread, data, log_stream(options, cell))

    keys = JetStreamRegistry(registry, options.name)
    return Cluster(
        keys=_Keys(thread, JetStreamRegistry(data, options.name)),
        lease=HeartbeatLease(thread, keys, Replica(member, grpc, http, version), durable=durable),
        log=log,
        findings=JetStreamFindings(thread, data, options.name),
        close=close,
    )


class _Keys:
    """`frd.cluster.registry.Keys` for the service's event loop."""

    def __init__(self, thread: LoopThread, registry: Registry) -> None:
        self._thread = thread
        self._registry = registry

    async def get(self, key: str) -> Entry | None:
        return await self._thread.call(self._registry.get(key))

    async def put(self, key: str, value: bytes, revision: int) -> int:
        return await self._thread.call(self._registry.put(key, value, revision))
