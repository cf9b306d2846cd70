"""The same tests against the fakes of simulations and against three real NATS servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias
from uuid import uuid4

import pytest

from frd.cluster.cluster import CellStore
from frd.cluster.registry import Registry
from tests.world.fake_cluster import (
    FakeCells,
    FakeKeys,
    FakeRegistry,
    Faults,
    Loss,
)
from tests.world.nats_clients import nats_client, options_for
from tests.world.nats_servers import NatsServers, nats_servers


@dataclass(frozen=True, slots=True)
class Client:
    """What one replica uses of empty streams that the clients of a test share."""

    registry: Registry
    new_values: Callable[[list[Loss]], CellStore]
    """An owner's access to the values of cells; the losses happen to its next writes, one by
    one."""


World: TypeAlias = Callable[[int], AbstractAsyncContextManager[list[Client]]]
"""So many clients of the same servers."""


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    """Three servers for all tests of this process; a test that harms one heals it."""
    with nats_servers(tmp_path_factory.mktemp("nats")) as servers:
        yield servers


@asynccontextmanager
async def fake_clients(count: int) -> AsyncIterator[list[Client]]:
    keys = FakeKeys()

    def client() -> Client:
        return Client(
            FakeRegistry(keys, Faults()), lambda losses: FakeCells(keys, Faults(losses=losses))
        )

    yield [client() for _ in range(count)]


@pytest.fixture(params=["fake", pytest.param("nats", marks=pytest.mark.nats)])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "fake":
        return fake_clients
    options = options_for(request.getfixturevalue("servers"), f"t{uuid4().hex[:8]}")

    @asynccontextmanager
    async def clients(count: int) -> AsyncIterator[list[Client]]:
        async with nats_client(options) as first:
            others = [nats_client(options) for _ in range(count - 1)]
            opened = [first, *[await other.__aenter__() for other in others]]
            try:
                yield [Client(c.registry, c.values) for c in opened]
            finally:
                for other in others:
                    await other.__aexit__(None, None, None)

    return clients
