"""Machines that die without a word, and services of an earlier release that want fewer pings.

Nothing here can be made faster: the times are those of gRPC's keepalive.
"""

from __future__ import annotations

import asyncio
import time
from itertools import repeat
from pathlib import Path

import grpc
import grpc.aio
import pytest

from frd.rpc import CHANNEL_OPTIONS, SERVER_OPTIONS, open_stream
from frd.wire.encode import encode_agent
from frd.wire.messages import PROTOCOL, Goodbye, Hello
from tests.world.collector import agent
from tests.world.daemons import async_until
from tests.world.proxy import Proxy
from tests.world.replicas import Replica, serving

pytestmark = pytest.mark.timeout(100)

DEAD_AFTER_S = 7.0
RECONNECT_S = 1.5
"""Jitter, a new connection, and a machine that is busy with other tests."""


async def settled(service: Replica) -> None:
    """The agent is welcome, knows it, and has nothing to report."""
    await async_until(lambda: service.open and service.pings, "the welcome")


async def test_the_machine_of_the_service_dies(tmp_path: Path) -> None:
    """Nothing comes from the service any more, not even the end of its connections: within 7 s the
    agent goes to the second choice of its welcome."""
    successor = Replica()
    owner = Replica(following=successor.address)
    async with serving(owner, successor):
        with Proxy(owner.address) as cable:
            async with agent(tmp_path, cable.address):
                await settled(owner)
                assert not successor.hellos
                cable.cut()
                began = time.monotonic()
                await async_until(lambda: successor.open, "the successor", 30)
                assert time.monotonic() - began < DEAD_AFTER_S + RECONNECT_S


async def test_the_machine_of_an_agent_dies(tmp_path: Path) -> None:
    """Nothing comes from the agent any more: within 7 s its stream has ended for the service."""
    service = Replica()
    async with serving(service):
        with Proxy(service.address) as cable:
            async with agent(tmp_path, cable.address):
                await settled(service)
                cable.cut()
                began = time.monotonic()
                await async_until(lambda: not service.open, "the end of the stream", 30)
                assert time.monotonic() - began < DEAD_AFTER_S + RECONNECT_S


@pytest.mark.long
async def test_an_earlier_release_of_the_service_that_says_nothing(tmp_path: Path) -> None:
    """A service of an earlier release permits a ping every 20 s. It throws out a client that has
    this release's keepalive; not the agent, which after its first welcome pings less often."""
    service = Replica()
    service.keepalives = repeat(0)
    earlier = dict(SERVER_OPTIONS) | {"grpc.http2.min_ping_interval_without_data_ms": 20_000}
    for key in (
        "grpc.keepalive_time_ms",
        "grpc.keepalive_timeout_ms",
        "grpc.http2.ping_timeout_ms",
    ):
        del earlier[key]
    hello = encode_agent(Hello(PROTOCOL, "0", "node", "boot", "session", 1, 1))  # type: ignore[arg-type]
    async with (
        serving(service, options=tuple(earlier.items())),
        agent(tmp_path, service.address),
        grpc.aio.insecure_channel(service.address, options=CHANNEL_OPTIONS) as channel,
    ):
        await async_until(lambda: service.hellos == 2 and service.open, "the welcomes")
        assert isinstance(service.streams[0][-1], Goodbye)
        call = open_stream(channel)
        await call.write(hello)
        assert isinstance(await call.read(), bytes)
        with pytest.raises(grpc.aio.AioRpcError, match="Too many pings"):
            await asyncio.wait_for(call.read(), 40)
        assert service.hellos == 3
        assert len(service.open) == 1
