"""A TLS connection to a NATS server that ends."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from frd.cluster.nats.connection import Access, Connection
from tests.world.certs import Authority
from tests.world.daemons import async_until
from tests.world.nats_servers import nats_servers

pytestmark = [pytest.mark.nats, pytest.mark.xdist_group("nats")]


async def test_a_server_that_closes_an_encrypted_connection_is_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The library connects again; asyncio has nothing to say about its stream."""
    authority = Authority(tmp_path)
    context = ssl.create_default_context(cafile=authority.ca)
    with nats_servers(tmp_path, 1, jetstream=False, tls=authority.issue("server")) as servers:
        (server,) = servers.all
        connection = Connection(Access((server.url.replace("nats:", "tls:"),), "a", tls=context))
        await connection.open()
        client = connection._client
        assert client is not None
        server.kill()
        await async_until(lambda: not client.is_connected, "the end of the connection")
        server.start()
        await async_until(lambda: client.is_connected, "the next connection")
        await connection.close()
        await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
