"""What a log does when its servers fail: confirmed bundles stay, once, in order; no long gap."""

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

import nats.errors
import pytest
from nats.js import JetStreamContext

from frd.cluster.log import Bundle, Fenced, FencedLog, LogLost, LogUnavailable
from frd.cluster.nats import connection
from frd.cluster.nats.connection import Access, Connection
from frd.cluster.nats.streams import log_stream
from frd.cluster.registry import RegistryUnavailable
from tests.contract.conftest import contents
from tests.world.certs import Authority
from tests.world.daemons import async_until
from tests.world.fake_cluster import Loss
from tests.world.nats_clients import NatsClient, nats_client, options_for
from tests.world.nats_servers import NatsServers, nats_servers

pytestmark = pytest.mark.xdist_group("nats")
GAP_S = 12.0
"""Longest time without a confirmed append when the leader fails."""


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


async def patiently(log: FencedLog, data: bytes) -> int:
    """Append as an owner does: the same bundle again until it is stored."""
    while True:
        try:
            return await log.append(data)
        except LogUnavailable:
            pass


@pytest.mark.nats
@pytest.mark.parametrize("fault", ["kill", "freeze", "terminate"])
async def test_the_leader_fails_under_an_owner(servers: NatsServers, fault: str) -> None:
    """The server that leads the log is killed, stopped or ended while an owner appends: after a
    gap the owner goes on; all that was confirmed is there, once, in order."""
    async with client_of(servers) as client:
        log = client.log(3)
        epoch = await log.take("a")
        leader = await asyncio.to_thread(servers.leader, f"{client.options.name}-J03")
        strike: Callable[[], None] = getattr(leader, fault)
        confirmed: list[Bundle] = []
        longest, end = 0.0, time.monotonic() + 0.5
        struck = False
        try:
            while time.monotonic() < end or len(confirmed) < 50:
                if not struck and len(confirmed) >= 20:
                    struck = True
                    await asyncio.to_thread(strike)
                    end = time.monotonic() + 1.0
                data = b"%d" % len(confirmed)
                began = time.monotonic()
                confirmed.append(Bundle(await patiently(log, data), epoch, data))
                longest = max(longest, time.monotonic() - began)
            numbers = [bundle.number for bundle in confirmed]
            assert numbers == list(range(epoch + 1, epoch + 1 + len(numbers)))
            assert await contents(client.log(3)) == confirmed
        finally:
            await asyncio.to_thread(servers.heal)
        print(f"{fault}: {longest:.1f} s without a confirmed append")
        assert longest <= GAP_S
        assert await contents(client.log(3)) == confirmed


@pytest.mark.nats
async def test_resend_after_the_servers_forgot_the_id(servers: NatsServers) -> None:
    """A bundle is stored and its confirmation lost; the owner sends it again after the window in
    which the servers recognize ids: it is still stored once, and is not taken for another
    owner's."""
    async with client_of(servers) as client:
        losses: list[Loss] = []
        log = client.log(3, patience_s=0.0, losses=losses, duplicate_window_s=0.1)
        epoch = await log.take("a")
        losses += ["answer"]
        with pytest.raises(LogUnavailable):
            await log.append(b"1")
        await asyncio.sleep(0.5)  # the window is the servers', and the shortest that they accept
        assert await log.append(b"1") == epoch + 1
        assert await log.append(b"2") == epoch + 2
        assert [bundle.data for bundle in await contents(client.log(3))] == [b"1", b"2"]


@pytest.mark.nats
async def test_the_servers_lose_the_end_of_a_log(servers: NatsServers) -> None:
    """The stream is restored without its last bundles: the owner learns that with its next append,
    takes the log again and goes on."""
    async with client_of(servers) as client:
        log = client.log(3)
        await log.take("a")
        for n in range(5):
            await log.append(b"%d" % n)
        await lose_after(client, 3)
        with pytest.raises(LogLost, match="ends at 3, not 6: take it again"):
            await log.append(b"5")
        with pytest.raises(Fenced):
            await log.append(b"5")
        await log.retake("a")
        await log.append(b"all")
        assert [bundle.data for bundle in await contents(log)] == [b"0", b"1", b"all"]
        await lose_after(client, 4)
        with pytest.raises(LogLost, match="ends at 4, not 5"):
            await log.append(b"more")
        new = client.log(3)
        await new.take("b")
        with pytest.raises(Fenced, match="taken by b after a loss"):
            await log.retake("a")
        await new.append(b"b's")


@pytest.mark.nats
async def test_another_owner_takes_a_log_that_lost_its_end(servers: NatsServers) -> None:
    """The stream is restored without its last bundles and another owner takes it: the former owner
    is refused. Its bundle at the very position that it expects is stored, but never read."""
    async with client_of(servers) as client:
        log, new = client.log(3), client.log(3)
        await log.take("a")
        for n in range(5):
            await log.append(b"%d" % n)
        await lose_after(client, 3)
        assert await new.take("b") == 4
        with pytest.raises(Fenced, match="taken by b"):
            await log.append(b"5")
        log = client.log(3)
        epoch = await log.take("a")
        position = await log.append(b"5")
        await lose_after(client, 4)
        assert await new.take("b") == epoch, "two fences of one number"
        assert await new.append(b"6") == position
        await log.append(b"at an expected position")
        assert [bundle.data for bundle in await contents(client.log(3))] == [b"0", b"1", b"6"]
        with pytest.raises(Fenced):
            await new.append(b"7")


@pytest.mark.nats
async def test_the_servers_lose_the_whole_log(servers: NatsServers) -> None:
    """The stream is gone: the owner learns it, takes the log again, which makes a new stream, and
    goes on."""
    async with client_of(servers) as client:
        log = client.log(3, patience_s=0.5)
        await log.take("a")
        await log.append(b"1")
        stream = f"{client.options.name}-J03"
        await client.thread.call(client.connection.ask(lambda js: js.delete_stream(stream)))
        with pytest.raises(LogLost, match="the stream is gone"):
            await log.append(b"2")
        await log.retake("a")
        await log.append(b"all")
        assert [bundle.data for bundle in await contents(client.log(3))] == [b"all"]


@pytest.mark.nats
async def test_a_hole_in_a_log_is_passed_over(servers: NatsServers) -> None:
    """A bundle in the middle is gone: a reader yields all others."""
    async with client_of(servers) as client:
        log = client.log(3)
        epoch = await log.take("a")
        for n in range(40):
            await log.append(b"%d" % n)
        stream = f"{client.options.name}-J03"
        for gone in (epoch + 5, epoch + 6, epoch + 40):
            await client.thread.call(
                client.connection.ask(lambda js, seq=gone: js.delete_msg(stream, seq))  # type: ignore[misc]
            )
        found = [bundle.number for bundle in await contents(client.log(3))]
        assert found == [*range(epoch + 1, epoch + 5), *range(epoch + 7, epoch + 40)]


async def lose_after(client: NatsClient, last: int) -> None:
    """Make the stream of cell 3 again from its messages up to `last`, as from an old backup."""
    config = log_stream(client.options, 3)

    async def again(js: JetStreamContext) -> None:
        assert config.name
        messages = [await js.get_msg(config.name, n) for n in range(1, last + 1)]
        await js.delete_stream(config.name)
        await js.add_stream(config)
        for message in messages:
            assert message.subject
            headers = {
                k: v
                for k, v in (message.headers or {}).items()
                if k.startswith(("Frd", "Nats-Msg"))
            }
            for attempt in range(20):  # the new stream may have no leader yet
                try:
                    await js.publish(message.subject, message.data or b"", headers=headers)
                except (nats.errors.Error, TimeoutError):
                    if attempt == 19:
                        raise
                    await asyncio.sleep(0.2)
                else:
                    break

    await client.thread.call(client.connection.ask(again, 30))


@pytest.mark.nats
async def test_a_frozen_server_does_not_hold_its_clients(servers: NatsServers) -> None:
    """The server that a replica is connected to is stopped, and leads nothing: the replica uses
    another one, before other replicas could take it for dead."""
    async with client_of(servers) as client:
        log = client.log(3)
        await log.take("a")
        streams = [f"{client.options.name}-J03", f"KV_{client.options.name}"]
        leaders = {await asyncio.to_thread(servers.leader, stream) for stream in streams}
        near = next(server for server in servers.all if server not in leaders)
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
