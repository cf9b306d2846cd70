"""A connection whose server is stuck, on a scripted library, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import ParseResult, urlparse

import nats.errors
import pytest
from nats.js import JetStreamContext

from frd.cluster.nats import connection
from frd.cluster.nats.connection import Access, Connection, Unanswered
from tests.world.virtual_time import in_virtual_time

SERVERS = ("nats://n0:4222", "nats://n1:4222", "nats://n2:4222")
ADDRESSES = {server: f"nats://10.0.0.{n}:4222" for n, server in enumerate(SERVERS)}
"""Of the same servers, as servers report them to clients."""
SILENT = 3.0
"""Others take a replica for dead after so many seconds without a heartbeat."""


class Servers:
    def __init__(self) -> None:
        self.frozen = ""
        self.clients: list[Client] = []

    def is_frozen(self, url: str) -> bool:
        return bool(self.frozen) and url in (self.frozen, ADDRESSES[self.frozen])

    @property
    def connected(self) -> list[str]:
        return [client.url for client in self.clients if client.is_connected]


class Client:
    """What `Connection` uses of the library's client."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self.url = ""
        self.is_connected = False
        servers.clients.append(self)

    @property
    def connected_url(self) -> ParseResult:
        return urlparse(self.url)

    @property
    def discovered_servers(self) -> list[ParseResult]:
        return [urlparse(address) for address in ADDRESSES.values()]

    async def connect(self, servers: Sequence[str], **options: Any) -> None:
        for url in servers:
            if not self._servers.is_frozen(url):
                await asyncio.sleep(0.02)
                self.url, self.is_connected = url, True
                return
            await asyncio.sleep(options["connect_timeout"])

    async def flush(self, timeout: float) -> None:
        await self.answer(timeout)

    def jetstream(self, timeout: float) -> Client:
        return self

    async def answer(self, timeout: float) -> str:
        if self._servers.is_frozen(self.url):
            await asyncio.sleep(timeout)
            raise nats.errors.TimeoutError
        await asyncio.sleep(0.005)
        return self.url

    async def close(self) -> None:
        self.is_connected = False


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    servers = Servers()
    monkeypatch.setattr(connection, "Client", lambda: Client(servers))
    return servers


async def ask(of: Connection) -> str:
    """One request of a heartbeat."""

    async def request(js: JetStreamContext) -> str:
        assert isinstance(js, Client)
        return await js.answer(1.0)

    return await of.ask(request)


@in_virtual_time
async def test_a_frozen_server_costs_less_than_a_lease(servers: Servers) -> None:
    """The server of a client freezes, and the replica knows it under two names: the first heartbeat
    that is tried again arrives, 0.7 s before others take the replica for dead."""
    loop = asyncio.get_running_loop()
    opened = Connection(Access(SERVERS, "test"), request_s=1.0)
    await opened.open()
    (servers.frozen,) = servers.connected
    last = loop.time() - 0.5  # its last heartbeat
    refused = 0
    while True:
        try:
            answered_by = await ask(opened)
            break
        except Unanswered:
            refused += 1
            await asyncio.sleep(0.1)
    assert refused == 1
    assert loop.time() - last < SILENT - 0.6
    assert not servers.is_frozen(answered_by)
    await asyncio.sleep(3.0)
    assert servers.connected == [answered_by], "all other clients are closed"
    await opened.close()


@in_virtual_time
async def test_a_slow_answer_keeps_the_client(servers: Servers) -> None:
    """A request has no answer, and the ping after it has: the client stays, and is used on."""
    opened = Connection(Access(SERVERS, "test"), request_s=1.0)
    await opened.open()
    (url,) = servers.connected

    async def lost(js: JetStreamContext) -> str:
        raise nats.errors.TimeoutError

    with pytest.raises(Unanswered):
        await opened.ask(lost)
    assert await ask(opened) == url
    assert len(servers.clients) == 1
    await opened.close()
