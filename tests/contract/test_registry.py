"""The registry: compare-and-set, and what readers see."""

from __future__ import annotations

import pytest

from frd.cluster.registry import Conflict
from tests.contract.conftest import World

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
