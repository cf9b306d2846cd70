"""Machines that die without a word.

Nothing here can be made faster: the times are those of gRPC's keepalive.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

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
