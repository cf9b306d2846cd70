"""What a replica refuses when it starts: one line that names the key and what to do."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from frd.cluster.nats import checks, connect
from frd.cluster.nats.streams import registry_stream
from frd.cluster.registry import Entry
from frd.config import ClusterOptions
from frd.errors import ClusterError
from tests.world.daemons import free_port
from tests.world.nats_clients import nats_client, options_for
from tests.world.nats_servers import USER, NatsServers, nats_servers

pytestmark = [pytest.mark.nats, pytest.mark.xdist_group("nats")]


async def opened(options: ClusterOptions) -> bool:
    """Open and close; whether the cluster is durable."""
    cluster = await connect(options, "a", "127.0.0.1:1", "http://127.0.0.1:2", "1")
    try:
        return cluster.lease.view.durable
    finally:
        await cluster.close()


async def refusal(options: ClusterOptions) -> str:
    with pytest.raises(ClusterError) as caught:
        await opened(options)
    text = str(caught.value)
    assert "\n" not in text
    assert "correct horse" not in text, "a password"
    return text


def fresh(servers: NatsServers) -> ClusterOptions:
    return options_for(servers, f"s{uuid4().hex[:8]}")


async def test_created_once_and_compared_later(servers: NatsServers) -> None:
    """The first replica creates the stream of the cluster; a second one that is configured with
    fewer copies is refused and changes nothing."""
    options = fresh(servers)
    await opened(options)
    text = await refusal(replace(options, replicas=1))
    assert text.startswith(f"cluster.replicas: stream KV_{options.name}: replicas is 3, not 1: ")


async def test_a_cluster_of_an_older_release(servers: NatsServers) -> None:
    """The stream has the format and limits of a release that had a log for each cell: the replica
    is refused with what to delete."""
    options = fresh(servers)
    async with nats_client(options) as client:
        await client.registry.put("meta", b'{"format":1,"cells":64}', 0)
        older = registry_stream(options).evolve(duplicate_window=2)
        await client.thread.call(client.connection.ask(lambda js: js.update_stream(older)))
    text = await refusal(options)
    assert "a cluster of format 1 with 64 cells, not 2 and 64: stop all replicas, delete" in text
    assert f"{options.name}-F and {options.name}-J00 to {options.name}-J63 with the nats" in text


async def test_meta_is_written_once(servers: NatsServers) -> None:
    """Three replicas start at the same time with no streams: all start, and one writes the format.
    A cluster with another number of cells is refused."""
    options = fresh(servers)
    await asyncio.gather(*(opened(options) for _ in range(3)))
    async with nats_client(options) as client:
        entry = await client.registry.get("meta")
        assert isinstance(entry, Entry)
        assert json.loads(entry.value) == {"format": 2, "cells": 64}
        await client.registry.put("meta", b'{"format":2,"cells":128}', entry.revision)
    text = await refusal(options)
    assert text.startswith(f"cluster.name: {options.name}: a cluster of format 2 with 128 cells")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"member": "n 1"}, "cluster.member: 'n 1': "),
        ({"name": "a.b"}, "cluster.name: 'a.b': "),
        ({"servers": ("nats://frd:correct horse@127.0.0.1",)}, "cluster.servers: an address with"),
        ({"user_file": Path("/nowhere")}, "cluster.user_file: /nowhere: No such file"),
        ({"credentials_file": Path(__file__)}, "cluster.credentials_file: "),
        ({"tls_ca_file": Path(__file__)}, "cluster.tls_ca_file: "),
    ],
)
async def test_unusable_settings(options: dict[str, Any], error: str) -> None:
    """Settings that cannot be right are refused before any connection."""
    options = {"servers": ("nats://127.0.0.1:1",), "member": "a", **options}
    with pytest.raises(ClusterError) as caught:
        await connect(ClusterOptions(**options), options["member"], "h:1", "http://h:2", "1")
    assert str(caught.value).startswith(error)
    assert "horse" not in str(caught.value)


async def test_accounts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server with accounts: wrong and missing credentials, and an account without JetStream are
    refused; the right ones work, and the account may ask whether writes are synced."""
    user = tmp_path / "user"
    with nats_servers(tmp_path, 1, accounts=True) as servers:
        options = replace(options_for(servers, "frd"), user_file=user)
        assert "refuses these credentials" in await refusal(replace(options, user_file=None))
        user.write_text("frd:wrong\n")
        assert "refuses these credentials" in await refusal(options)
        user.write_text("plain:plain\n")
        assert "JetStream is not enabled for this account" in await refusal(options)
        user.write_text(f"{USER}\n")
        with caplog.at_level(logging.WARNING):
            assert await opened(options)
        assert not caplog.records
    assert "horse" not in caplog.text


async def test_unsynced_writes_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Servers with the default sync_interval: a warning, and the log counts as not durable."""
    user = tmp_path / "user"
    user.write_text(f"{USER}\n")
    with nats_servers(tmp_path, 1, accounts=True, sync="2m") as servers:
        options = replace(options_for(servers, "frd"), user_file=user)
        assert not await opened(options)
    assert "sync_interval: not always" in caplog.text


async def test_unknown_whether_writes_are_synced(
    servers: NatsServers, caplog: pytest.LogCaptureFixture
) -> None:
    """An account that may not ask: not durable, with a warning."""
    assert not await opened(fresh(servers))
    assert "cluster.servers: unknown" in caplog.text


async def test_fewer_servers_than_copies(tmp_path: Path) -> None:
    """One server runs, and three copies are configured."""
    with nats_servers(tmp_path, 1) as servers:
        options = options_for(servers, "frd")
        wanted = replace(options, replicas=3)
        async with nats_client(replace(options, name="x")) as client:
            with pytest.raises(ClusterError, match=r"cluster\.replicas: 3: too few NATS servers"):
                await client.thread.call(checks.check_stream(client.connection, wanted, 0.5))


async def test_without_jetstream_or_without_a_server(tmp_path: Path) -> None:
    """The server runs without JetStream; then none listens at the address."""
    with nats_servers(tmp_path, 1, jetstream=False) as servers:
        text = await refusal(options_for(servers, "frd"))
        assert text.endswith("without JetStream: enable it")
    text = await refusal(ClusterOptions((f"nats://127.0.0.1:{free_port()}",)))
    assert text.endswith("no NATS server answers: start them")


@asynccontextmanager
async def server_that_says(**info: object) -> Any:
    """A server that greets with its INFO and answers a ping, and no more."""
    full = {"server_id": "x", "max_payload": 1 << 20, "proto": 1, "headers": True} | info

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"INFO {json.dumps(full)}\r\n".encode())
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1")
    async with server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("info", "error"),
    [
        ({"version": "2.9.10"}, "version 2.9: install nats-server 2.12 or later"),
        (
            {"version": "2.15.1", "max_payload": 65_536},
            "max_payload 65536: set it to at least 901000",
        ),
    ],
    ids=["old", "no message as large as a bundle"],
)
async def test_an_unfit_server(info: dict[str, Any], error: str) -> None:
    """A server greets that is older than 2.12, as Debian 12 ships one, or takes only small
    messages."""
    async with server_that_says(**info) as url:
        assert error in await refusal(ClusterOptions((url,)))


def test_nats_is_not_imported_without_a_cluster() -> None:
    """The service and all parts of frd.cluster but one are imported: the NATS library is not."""
    code = (
        "import sys, frd.service.app, frd.cluster.heartbeats, frd.cluster.cluster; "
        "assert 'nats' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
