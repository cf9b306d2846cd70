"""Registry and findings: compare-and-set, and what readers see."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from frd.cluster.cluster import StoredFinding
from frd.cluster.registry import Conflict
from tests.contract.conftest import World
from tests.world.nats_clients import nats_client, options_for
from tests.world.nats_servers import NatsServers

pytestmark = pytest.mark.xdist_group("nats")


async def test_one_of_two_writers_wins(world: World) -> None:
    """Two replicas change a key that both have read: one is refused, and reads the other's value. A
    writer that lost the answer to its write tries again, and gets the revision."""
    async with world(2) as (one, two):
        assert await one.registry.get("c.07") is None
        revision = await one.registry.put("c.07", b"one", 0)
        with pytest.raises(Conflict):
            await two.registry.put("c.07", b"two", 0)
        assert await one.registry.put("c.07", b"one", 0) == revision
        newer = await two.registry.put("c.07", b"two", revision)
        assert newer > revision
        with pytest.raises(Conflict):
            await one.registry.put("c.07", b"one again", revision)
        entry = await one.registry.get("c.07")
        assert entry is not None
        assert entry == (b"two", newer)


async def test_keys_by_prefix(world: World) -> None:
    """Replicas with dots in their names are found, and no key of another kind."""
    async with world(1) as (one,):
        for key in ("r.n1.site", "r.n2", "c.07", "meta"):
            await one.registry.put(key, key.encode(), 0)
        found = await one.registry.find("r.")
        assert {key: entry.value for key, entry in found.items()} == {
            "r.n1.site": b"r.n1.site",
            "r.n2": b"r.n2",
        }
        assert not await one.registry.find("x.")


async def test_a_key_is_deleted_at_one_revision(world: World) -> None:
    """A replica deletes a heartbeat that another one has renewed since: it stays. The last one can
    be deleted, twice without harm; after that the key gets a higher revision."""
    async with world(2) as (one, two):
        old = await one.registry.put("r.a", b"1", 0)
        last = await one.registry.put("r.a", b"2", old)
        await two.registry.delete("r.a", old)
        assert await one.registry.get("r.a") == (b"2", last)
        for _ in range(2):
            await two.registry.delete("r.a", last)
        assert await one.registry.get("r.a") is None
        assert not await one.registry.find("r.")
        with pytest.raises(Conflict):
            await one.registry.put("r.a", b"3", last)
        assert await one.registry.put("r.a", b"3", 0) > last


async def test_findings_of_a_cell(world: World) -> None:
    """A successor reads the last version of every finding of its cell, and of no other."""
    async with world(2) as (one, two):
        first = await one.findings.put(7, "a", b"1", 0)
        await one.findings.put(8, "b", b"2", 0)
        third = await one.findings.put(7, "c", b"3", 0)
        newer = await one.findings.put(7, "a", b"4", first)
        with pytest.raises(Conflict):
            await two.findings.put(7, "a", b"5", first)
        assert await two.findings.of_cell(7) == [
            StoredFinding(7, "c", b"3", third),
            StoredFinding(7, "a", b"4", newer),
        ]
        assert not await two.findings.of_cell(9)


async def test_a_copy_follows(world: World) -> None:
    """A replica copies the findings that exist and then each new version, in order."""
    async with world(2) as (one, two):
        revision = await one.findings.put(7, "a", b"1", 0)
        tail = two.findings.tail()
        assert (await anext(tail)).data == b"1"
        for n in range(5):
            revision = await one.findings.put(7, "a", b"again %d" % n, revision)
            found = await asyncio.wait_for(anext(tail), 10)
            assert found == StoredFinding(7, "a", b"again %d" % n, revision)
        await tail.aclose()  # type: ignore[attr-defined]
        later = two.findings.tail(revision)
        await one.findings.put(8, "b", b"new", 0)
        assert (await asyncio.wait_for(anext(later), 10)).id == "b"
        await later.aclose()  # type: ignore[attr-defined]


@pytest.mark.nats
async def test_a_foreign_message_among_findings(servers: NatsServers) -> None:
    """Somebody publishes below the subject of the findings: readers pass over it."""
    options = options_for(servers, f"t{uuid4().hex[:8]}")
    async with nats_client(options) as client:
        subject = f"{options.name}.f.note"
        await client.thread.call(client.connection.publish(subject, b"hello", {}))
        revision = await client.findings.put(7, "a", b"1", 0)
        tail = client.findings.tail()
        found = await asyncio.wait_for(anext(tail), 10)
        assert found == StoredFinding(7, "a", b"1", revision)
        await tail.aclose()  # type: ignore[attr-defined]
