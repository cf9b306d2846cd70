"""Values of cells: the claim fences earlier owners, and a new owner reads all that they stored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from uuid import uuid4

import pytest

from frd.cluster.cluster import STATE, CellStore, CellValue, Superseded
from frd.cluster.nats.cells import JetStreamCells
from frd.cluster.nats.connection import Ack, Connection, Unanswered
from frd.cluster.registry import Conflict, RegistryUnavailable
from frd.errors import StoreError
from tests.contract.conftest import Client, World
from tests.world.fake_cluster import Loss
from tests.world.nats_clients import Lossy, nats_client, options_for
from tests.world.nats_servers import NatsServers

pytestmark = pytest.mark.xdist_group("nats")


async def claimed(client: Client, former: int = 0) -> int:
    """Claim cell 7, as a replica does; the claim's revision."""
    while True:
        try:
            return await client.registry.put("c.07", uuid4().bytes, former)
        except RegistryUnavailable:  # a write that names the former claim is in flight
            await asyncio.sleep(0.01)


async def stored(values: CellStore, claim: int, key: str, data: bytes) -> int:
    """Store as an owner does: the same value again until it is stored."""
    while True:
        try:
            return await values.put(7, claim, key, data)
        except RegistryUnavailable:
            await asyncio.sleep(0.01)


async def test_values_of_a_cell(world: World) -> None:
    """A successor reads the state of its cell and the last version of every finding, and nothing of
    another cell."""
    async with world(2) as (one, two):
        values = one.new_values([])
        claim = await claimed(one)
        other = await one.registry.put("c.08", b"one", 0)
        await values.put(7, claim, "a", b"1")
        second = await values.put(7, claim, STATE, b"2")
        await values.put(8, other, "b", b"3")
        last = await values.put(7, claim, "a", b"4")
        assert await two.new_values([]).of_cell(7) == [
            CellValue(7, STATE, b"2", second),
            CellValue(7, "a", b"4", last),
        ]
        assert not await two.new_values([]).of_cell(9)


async def test_a_former_owner_is_refused_and_stays_refused(world: World) -> None:
    """Another replica claims the cell, and later the former one does again: only the last claim
    allows writes, also if a writer tries again, and also of values that do not exist yet."""
    async with world(2) as (one, two):
        old, new = one.new_values([]), two.new_values([])
        with pytest.raises(Superseded):
            await old.put(7, 1, STATE, b"before there is a claim")
        first = await claimed(one)
        await old.put(7, first, "a", b"1")
        second = await claimed(two, first)
        for key in ("a", "new", STATE) * 2:
            with pytest.raises(Superseded):
                await old.put(7, first, key, b"late")
        await new.put(7, second, "a", b"2")
        assert [value.data for value in await new.of_cell(7)] == [b"2"]
        third = await claimed(one, second)
        for values in (old, new):
            with pytest.raises(Superseded):
                await values.put(7, second, "a", b"late")
        await old.put(7, third, "a", b"3")
        assert [value.data for value in await new.of_cell(7)] == [b"3"]


async def test_a_former_owner_that_hammers(world: World) -> None:
    """An owner writes without a pause while another replica claims the cell, some times: no value
    has a revision above the claim's that is not the new owner's; what the new owner reads after its
    claim has all that was confirmed, and stays."""
    async with world(2) as (one, two):
        values = (one.new_values([]), two.new_values([]))
        claim = await claimed(one)

        async def hammer(at: CellStore, claim: int) -> int:
            last = number = 0
            while True:
                try:
                    last = await stored(at, claim, f"f{number % 5}", b"%d" % claim)
                except Superseded:
                    return last
                number += 1
                await asyncio.sleep(0)

        for turn in range(6):
            writing = asyncio.create_task(hammer(values[turn % 2], claim))
            await asyncio.sleep(0.1)
            claim = await asyncio.wait_for(claimed((two, one)[turn % 2], claim), 10)
            found = await values[1 - turn % 2].of_cell(7)
            last = await asyncio.wait_for(writing, 10)
            assert 0 < last == max(value.revision for value in found) < claim
            assert await values[1 - turn % 2].of_cell(7) == found


async def test_an_owner_that_writes_while_others_try_to_claim(world: World) -> None:
    """Another replica writes the claim with an outdated expectation, again and again: a living
    owner may be refused for a moment, and stores all its values."""
    async with world(2) as (one, two):
        claim = await claimed(one)
        values = one.new_values([])

        async def disturb() -> None:
            while True:
                with pytest.raises((Conflict, RegistryUnavailable)):
                    await two.registry.put("c.07", b"two", claim + 1)
                await asyncio.sleep(0)

        disturbing = asyncio.create_task(disturb())
        for n in range(40):
            await asyncio.wait_for(stored(values, claim, f"f{n}", b"%d" % n), 5)
        disturbing.cancel()
        assert [value.data for value in await values.of_cell(7)] == [b"%d" % n for n in range(40)]


async def test_a_lost_confirmation(world: World) -> None:
    """A value or its confirmation is lost, and the owner tries again: it is stored. If the cell was
    claimed meanwhile, the owner learns that."""
    async with world(2) as (one, two):
        losses: list[Loss] = ["answer", "request", "answer"]
        values = one.new_values(losses)
        claim = await claimed(one)
        for _ in range(3):
            with pytest.raises(RegistryUnavailable):
                await values.put(7, claim, "a", b"1")
        last = await values.put(7, claim, "a", b"1")
        assert await values.of_cell(7) == [CellValue(7, "a", b"1", last)]
        for loss in ("answer", "request"):
            losses.append(loss)
            with pytest.raises(RegistryUnavailable):
                await values.put(7, claim, loss, b"2")
            after = await claimed(two, claim)
            with pytest.raises(Superseded):
                await values.put(7, claim, loss, b"2")
            claim = await claimed(one, after)
        assert [value.key for value in await values.of_cell(7)] == ["a", "answer"]


async def test_a_value_without_an_answer_and_the_next_one(world: World) -> None:
    """The outcome of a write is not known, and the owner writes a newer version, then the first one
    again: the last one is there."""
    async with world(1) as (one,):
        claim = await claimed(one)
        for loss in ("answer", "request"):
            losses: list[Loss] = [loss]
            values = one.new_values(losses)
            with pytest.raises(RegistryUnavailable):
                await values.put(7, claim, "a", b"1")
            for data in (b"2", b"1"):
                await values.put(7, claim, "a", data)
                assert [value.data for value in await values.of_cell(7)] == [data]


async def test_a_value_is_deleted_at_one_revision(world: World) -> None:
    """The owner deletes an old finding, twice without harm; a deletion of an older version does
    nothing."""
    async with world(1) as (one,):
        values = one.new_values([])
        claim = await claimed(one)
        old = CellValue(7, "a", b"1", await values.put(7, claim, "a", b"1"))
        await values.put(7, claim, "b", b"2")
        new = CellValue(7, "a", b"3", await values.put(7, claim, "a", b"3"))
        await values.delete(old)
        assert [value.key for value in await values.of_cell(7)] == ["b", "a"]
        for _ in range(2):
            await values.delete(new)
        assert [value.key for value in await values.of_cell(7)] == ["b"]
        assert await values.put(7, claim, "a", b"4") > new.revision


async def test_a_copy_follows(world: World) -> None:
    """A replica copies the findings of all cells that exist and then each new version, in order,
    and no state of a cell."""
    async with world(2) as (one, two):
        values = one.new_values([])
        claim = await claimed(one)
        other = await one.registry.put("c.08", b"one", 0)
        await values.put(7, claim, STATE, b"state")
        await values.put(7, claim, "a", b"1")
        tail = two.new_values([]).tail()
        assert (await anext(tail)).data == b"1"
        revision = 0
        for n in range(5):
            await values.put(7, claim, STATE, b"state")
            revision = await values.put(7, claim, "a", b"again %d" % n)
            found = await asyncio.wait_for(anext(tail), 10)
            assert found == CellValue(7, "a", b"again %d" % n, revision)
        await tail.aclose()  # type: ignore[attr-defined]
        later = two.new_values([]).tail(revision)
        await values.put(8, other, "b", b"new")
        assert (await asyncio.wait_for(anext(later), 10)).key == "b"
        await later.aclose()  # type: ignore[attr-defined]


@pytest.mark.nats
async def test_a_foreign_message_among_values(servers: NatsServers) -> None:
    """A message is below the subject of a cell that is not from frd: readers pass over it."""
    options = options_for(servers, f"t{uuid4().hex[:8]}")
    async with nats_client(options) as client:
        claim = await client.registry.put("c.07", b"one", 0)
        values = client.values()
        await values.put(7, claim, "a", b"1")
        for name in ("v.07.note", "v.07.f.a.b", "v.07.f.a=b", "v.x.f.a"):
            subject = f"$KV.{options.name}.{name}"
            await client.thread.call(client.connection.publish(subject, b"hello", {}))
        last = await values.put(7, claim, "b", b"2")
        assert [value.key for value in await values.of_cell(7)] == ["a", "b"]
        tail = values.tail()
        found = [await asyncio.wait_for(anext(tail), 10) for _ in range(2)]
        assert found[1] == CellValue(7, "b", b"2", last)
        await tail.aclose()  # type: ignore[attr-defined]
        with pytest.raises(StoreError, match="an id has letters"):
            await values.put(7, claim, "a.b", b"3")
        with pytest.raises(StoreError, match="NATS takes"):
            await values.put(7, claim, "c", bytes(1_000_000))
        await values.put(7, claim, "d", bytes(900_000))  # the earlier one does not block it


class Late(Lossy):
    """A connection whose first write has no answer and stays on the way, as in a server that is
    stopped."""

    def __init__(self, real: Connection) -> None:
        super().__init__(real, [])
        self._held: tuple[str, bytes, Mapping[str, str]] | None = None

    async def publish(self, subject: str, data: bytes, headers: Mapping[str, str]) -> Ack:
        if self._held is None:
            self._held = subject, data, dict(headers)
            raise Unanswered("held")
        return await super().publish(subject, data, headers)

    async def arrive(self) -> None:
        assert self._held is not None
        await super().publish(*self._held)


@pytest.mark.nats
async def test_a_write_that_arrives_after_a_newer_one(servers: NatsServers) -> None:
    """A write has no answer, the owner stores a newer version, or the same one and then a newer
    one, and then the first write arrives: the newer version stays."""
    for again in (False, True):
        async with nats_client(options_for(servers, f"t{uuid4().hex[:8]}")) as client:
            claim = await client.registry.put("c.07", b"one", 0)
            connection = Late(client.connection)
            values = JetStreamCells(client.thread, connection, client.options.name)
            with pytest.raises(RegistryUnavailable):
                await values.put(7, claim, "a", b"old")
            if again:
                await values.put(7, claim, "a", b"old")
            await values.put(7, claim, "a", b"new")
            await client.thread.call(connection.arrive())
            assert [value.data for value in await values.of_cell(7)] == [b"new"]


# -- the registry: compare-and-set, and what readers see -------------------------------------------


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
