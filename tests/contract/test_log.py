"""The log of a cell: what fences an owner, what is stored once, and what is read."""

from __future__ import annotations

import asyncio

import pytest

from frd.cluster.log import (
    MAX_BUNDLE_BYTES,
    Bounds,
    Bundle,
    Fenced,
    LogUnavailable,
)
from tests.contract.conftest import World, contents
from tests.world.fake_cluster import Loss

pytestmark = pytest.mark.xdist_group("nats")


async def test_bundles_come_back_in_order(world: World) -> None:
    """An owner that has taken the log appends bundles, some with the same bytes; another replica
    reads them with their numbers and epoch, without the fence."""
    async with world(2) as (one, two):
        log = one.new_log()
        with pytest.raises(Fenced):
            await log.append(b"before it is taken")
        assert await two.new_log().bounds() == Bounds(1, 0)
        epoch = await log.take("a")
        sent = [bytes([n]) * (1 + n) for n in range(40) for _ in range(2 if n == 7 else 1)]
        numbers = [await log.append(data) for data in sent]
        assert numbers == list(range(epoch + 1, epoch + 42))
        reader = two.new_log()
        assert await reader.bounds() == Bounds(epoch, numbers[-1])
        expected = [Bundle(n, epoch, data) for n, data in zip(numbers, sent, strict=True)]
        assert await contents(reader) == expected
        assert [b async for b in reader.read(numbers[5], numbers[30])] == expected[5:31]


@pytest.mark.parametrize("names", [("a", "b"), ("same", "same")])
async def test_a_stale_owner_is_refused_and_stays_refused(
    world: World, names: tuple[str, str]
) -> None:
    """Another owner fences the log, maybe one of the same name; the former one is refused, also
    when it tries again, and nothing of it is stored after the fence. It may take the log again."""
    async with world(2) as (one, two):
        old, new = one.new_log(), two.new_log()
        await old.take(names[0])
        await old.append(b"before")
        epoch = await new.take(names[1])
        for _ in range(3):
            with pytest.raises(Fenced):
                await old.append(b"late")
        await new.append(b"after")
        assert [b.data for b in await contents(new)] == [b"before", b"after"]
        assert (await contents(new))[-1].epoch == epoch
        await old.take(names[0])
        await old.append(b"again")
        with pytest.raises(Fenced):
            await new.append(b"late")


async def test_an_owner_retakes_only_its_own_log(world: World) -> None:
    """An owner retakes the log, as after a loss, while its last bundle is the owner's own, also if
    an earlier attempt had no answer. Once another owner has it, it is refused, and the other one
    goes on."""
    async with world(2) as (one, two):
        losses: list[Loss] = []
        old, new = one.new_log(losses, patience_s=0.0), two.new_log()
        assert await old.retake("a") == 1, "an empty log is anyone's"
        await old.append(b"1")
        losses += ["answer"]
        with pytest.raises(LogUnavailable):
            await old.retake("a")
        assert await old.retake("a") == 4
        await old.append(b"2")
        await new.take("b")
        await new.append(b"3")
        for _ in range(2):
            with pytest.raises(Fenced):
                await old.retake("a")
            with pytest.raises(Fenced):
                await old.append(b"late")
        await new.append(b"4")
        assert [b.data for b in await contents(new)] == [b"1", b"2", b"3", b"4"]


async def test_largest_bundle(world: World) -> None:
    """A bundle of the largest size is stored; a larger one is refused before it is sent."""
    async with world(1) as (one,):
        log = one.new_log()
        await log.take("a")
        await log.append(bytes(MAX_BUNDLE_BYTES))
        with pytest.raises(ValueError, match="900001"):
            await log.append(bytes(MAX_BUNDLE_BYTES + 1))


async def test_trimmed_bundles_are_gone_and_the_owner_goes_on(world: World) -> None:
    """The owner deletes what is before a checkpoint and appends further; a read that begins before
    the checkpoint yields what there is."""
    async with world(2) as (one, two):
        log = one.new_log()
        await log.take("a")
        numbers = [await log.append(b"%d" % n) for n in range(20)]
        assert await log.trim(numbers[12], max_bytes=0)
        assert not await log.trim(numbers[12], max_bytes=0)
        last = await log.append(b"end")
        assert await log.bounds() == Bounds(numbers[12], last)
        found = [b.number async for b in two.new_log().read(numbers[3], last)]
        assert found == [*numbers[12:], last]
        assert await log.trim(last + 1, max_bytes=0)
        assert await log.bounds() == Bounds(last + 1, last)
        assert await log.append(b"more") == last + 1


async def test_what_is_trimmed(world: World) -> None:
    """Two owners have written a log. The later one deletes what is too old, then what is too much,
    and nothing if the limits allow all of it."""
    async with world(2) as (one, two):
        old, new = one.new_log(), two.new_log()
        await old.take("a")
        numbers = [await old.append(bytes(10_000)) for _ in range(10)]
        await asyncio.sleep(1.5)
        fence = await new.take("b")
        last = [await new.append(bytes(10_000)) for _ in range(10)][-1]
        assert not await new.trim(last, max_bytes=1_000_000, max_age_s=600)
        assert await new.bounds() == Bounds(numbers[0] - 1, last)
        assert not await new.trim(numbers[0] - 1, max_bytes=0, max_age_s=1)
        assert await new.trim(numbers[5], max_bytes=1_000_000, max_age_s=1)
        assert await new.bounds() == Bounds(numbers[5], last)
        assert await new.trim(last, max_bytes=1_000_000, max_age_s=1)
        assert await new.bounds() == Bounds(fence, last)
        assert await new.trim(last, max_bytes=55_000)
        assert (await new.bounds()).first - fence in (5, 6)
        await asyncio.sleep(1.5)
        assert await new.trim(last + 1, max_bytes=1_000_000, max_age_s=1)
        assert await new.bounds() == Bounds(last + 1, last), "all are older"


async def test_a_lost_confirmation(world: World) -> None:
    """A bundle is stored and its confirmation lost; the owner sends it again, and it is stored
    once."""
    async with world(1) as (one,):
        losses: list[Loss] = []
        log = one.new_log(losses)
        await log.take("a")
        losses += ["answer", "answer", "request"]
        first = await log.append(b"1")
        losses += ["request", "answer"]
        assert await log.append(b"2") == first + 1
        assert [b.data for b in await contents(log)] == [b"1", b"2"]


async def test_a_lost_confirmation_of_a_fence(world: World) -> None:
    """The confirmation of a fence is lost: the owner still takes the log, and the earlier
    owner is excluded."""
    async with world(2) as (one, two):
        old, new = one.new_log(), two.new_log(["request", "answer"])
        await old.take("a")
        await new.take("b")
        await new.append(b"data")
        with pytest.raises(Fenced):
            await old.append(b"late")
        assert [b.data for b in await contents(new)] == [b"data"]


async def test_another_bundle_after_an_unknown_outcome(world: World) -> None:
    """A bundle is stored, the owner does not learn it and appends another one: both are there."""
    async with world(1) as (one,):
        losses: list[Loss] = []
        log = one.new_log(losses, patience_s=0.0)
        await log.take("a")
        losses += ["answer"]
        with pytest.raises(LogUnavailable):
            await log.append(b"1")
        await log.append(b"2")
        assert [b.data for b in await contents(one.new_log())] == [b"1", b"2"]


async def test_fenced_before_the_outcome_is_known(world: World) -> None:
    """The last append of an owner has no answer, and another owner fences. If the bundle was stored
    before the fence, the append succeeds; if not, it is refused. Nothing is stored after it."""
    cases: list[tuple[Loss, list[bytes]]] = [("answer", [b"1"]), ("request", [])]
    for loss, stored in cases:
        async with world(2) as (one, two):
            losses: list[Loss] = []
            log = one.new_log(losses, patience_s=0.0)
            new = two.new_log()
            before = len(await contents(new))
            await log.take("a")
            losses += [loss]
            with pytest.raises(LogUnavailable):
                await log.append(b"1")
            await new.take("b")
            if stored:
                await log.append(b"1")
            with pytest.raises(Fenced):
                await log.append(b"1" if loss == "request" else b"2")
            assert [b.data for b in await contents(new)][before:] == stored


async def test_concurrent_appends(world: World) -> None:
    """An owner that was fenced appends four bundles at the same time: none is stored, although
    the later ones might expect the position of the fence. Those of the owner are stored in their
    order, although it does not wait for the answers."""
    async with world(2) as (one, two):
        old, new = one.new_log(), two.new_log()
        await old.take("a")
        await new.take("b")
        results = await asyncio.gather(
            *(old.append(b"%d" % n) for n in range(4)), return_exceptions=True
        )
        assert [type(result) for result in results] == [Fenced] * 4
        position = await new.append(b"new")
        numbers = await asyncio.gather(*(new.append(b"%d" % n) for n in range(12)))
        assert numbers == list(range(position + 1, position + 13))
        stored = [bundle.data for bundle in await contents(new)]
        assert stored == [b"new", *(b"%d" % n for n in range(12))]
