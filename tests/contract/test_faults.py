"""What values do when their servers fail: confirmed ones stay, and there is no long gap."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from frd.cluster.nats import connection
from frd.cluster.nats.connection import Access, Connection
from frd.cluster.registry import RegistryUnavailable
from tests.world.certs import Authority
from tests.world.daemons import async_until
from tests.world.nats_clients import NatsClient, nats_client, options_for
from tests.world.nats_servers import NatsServers, nats_servers

pytestmark = pytest.mark.xdist_group("nats")
GAP_S = 12.0
"""Longest time without a confirmed value when the leader fails."""


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """nats-py leaves the connection to a server that is stopped to the garbage collector, which
    would fail a later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@asynccontextmanager
async def client_of(servers: NatsServers) -> AsyncIterator[NatsClient]:
    async with nats_client(options_for(servers, f"f{uuid4().hex[:8]}")) as client:
        yield client


@pytest.mark.nats
@pytest.mark.parametrize("fault", ["kill", "freeze", "terminate"])
async def test_the_leader_fails_under_an_owner(servers: NatsServers, fault: str) -> None:
    """The server that leads the stream is killed, stopped or ended while an owner stores values:
    after a gap the owner goes on; what was confirmed last is there."""
    async with client_of(servers) as client:
        claim, values = await client.registry.put("c.03", b"a", 0), client.values()
        leader = await asyncio.to_thread(servers.leader, f"KV_{client.options.name}")
        strike: Callable[[], None] = getattr(leader, fault)
        longest, end, number = 0.0, time.monotonic() + 0.5, 0
        struck = False
        try:
            while time.monotonic() < end or number < 50:
                if not struck and number >= 20:
                    struck = True
                    await asyncio.to_thread(strike)
                    end = time.monotonic() + 1.0
                began = time.monotonic()
                while True:
                    with contextlib.suppress(RegistryUnavailable):
                        await values.put(3, claim, f"f{number % 7}", b"%d" % number)
                        break
                longest, number = max(longest, time.monotonic() - began), number + 1
            expected = [b"%d" % n for n in range(number - 7, number)]
            assert [value.data for value in await values.of_cell(3)] == expected
        finally:
            await asyncio.to_thread(servers.heal)
        print(f"{fault}: {longest:.1f} s without a confirmed value")
        assert longest <= GAP_S
        assert [value.data for value in await values.of_cell(3)] == expected


@pytest.mark.nats
async def test_a_frozen_server_does_not_hold_its_clients(servers: NatsServers) -> None:
    """The server that a replica is connected to is stopped, and leads nothing: the replica uses
    another one, before other replicas could take it for dead."""
    async with client_of(servers) as client:
        leader = await asyncio.to_thread(servers.leader, f"KV_{client.options.name}")
        near = next(server for server in servers.all if server is not leader)
        async with nats_client(client.options, server=near.url, request_s=1.0) as other:
            await other.registry.put("r.a", b"1", 0)
            near.freeze()
            try:
                began = time.monotonic()
                while True:
                    with contextlib.suppress(RegistryUnavailable):
                        await other.registry.get("r.a")
                        break
                    assert time.monotonic() - began < GAP_S
                print(f"frozen server left after {time.monotonic() - began:.1f} s")
                assert time.monotonic() - began < 3.0, "others count to six in 3 s"
            finally:
                near.thaw()


@pytest.mark.nats
async def test_a_client_that_has_ended_for_good_is_replaced(
    servers: NatsServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client of the library ends by itself and does not connect again: the watchdog makes a new
    one."""
    monkeypatch.setattr(connection, "WATCHDOG_S", 1.0)
    async with client_of(servers) as client:
        await client.registry.put("r.a", b"1", 0)
        await client.thread.call(client.connection.client.close())
        began = time.monotonic()
        while True:
            with contextlib.suppress(RegistryUnavailable):
                await client.registry.get("r.a")
                break
            assert time.monotonic() - began < GAP_S
            await asyncio.sleep(0.1)


@pytest.mark.nats
async def test_a_server_that_closes_an_encrypted_connection_is_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The library connects again; asyncio has nothing to say about its stream."""
    authority = Authority(tmp_path)
    context = ssl.create_default_context(cafile=authority.ca)
    with nats_servers(tmp_path, 1, jetstream=False, tls=authority.issue("server")) as servers:
        (server,) = servers.all
        opened = Connection(Access((server.url.replace("nats:", "tls:"),), "a", tls=context))
        await opened.open()
        client = opened._client
        assert client is not None
        server.kill()
        await async_until(lambda: not client.is_connected, "the end of the connection")
        server.start()
        await async_until(lambda: client.is_connected, "the next connection")
        await opened.close()
        await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
