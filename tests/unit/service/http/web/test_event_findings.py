"""Findings as server-sent events: when they open, say something else, and close."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import pytest

from frd.do_now import shown_json
from frd.errors import StoreError
from frd.model import CollectiveRef, Finding, Severity, Witness
from tests.world.event_feed import Feeding, news
from tests.world.http_api import closed, finding


async def seen(feeding: Feeding, *looks: tuple[float, Finding | None]) -> list[list[Finding | int]]:
    """What viewers get at each of these looks, each so many seconds after the one before."""
    found: list[list[Finding | int]] = []
    async with feeding.viewer():
        for seconds, one in looks:
            feeding.show(*([one] if one is not None else []))
            before = len(feeding.feed._findings)
            await feeding.look(seconds)
            found.append([number for number, _ in [*feeding.feed._findings][before:]])
    return found


async def test_a_finding_opens_changes_and_closes(feeding: Feeding) -> None:
    """Each of these is an event with the finding as the API has it; those that were open before are
    known from the API."""
    old, one = finding(1), finding(2)
    worse = dataclasses.replace(one, severity=Severity.CRITICAL)
    feeding.show(old)
    async with feeding.viewer() as stream:
        await feeding.look()
        for shown in (one, worse):
            feeding.show(old, shown)
            await feeding.look(1)
            assert await news(stream) == [("finding", shown_json(shown))]
        feeding.show(old)
        feeding.store(closed(worse))
        await feeding.look(1)
        assert await news(stream) == [("finding", shown_json(closed(worse)))]


OP = CollectiveRef("dp", "g", 2, 7, "all_reduce", (1,), (0,), 5.0)
WAITING = dataclasses.replace(finding(1), collective=OP)


def changed(**fields: object) -> Finding:
    return dataclasses.replace(WAITING, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        changed(severity=Severity.CRITICAL),
        changed(dump="d1"),
        changed(ended_by="ended by KeyboardInterrupt"),
        changed(acknowledged_by="alice"),
        changed(silenced_until_at=WAITING.opened_at),
        changed(witness=Witness(1, ())),
        changed(victims=(1, 2)),
        changed(suspects=()),
        changed(suspects=(dataclasses.replace(WAITING.suspects[0], rank=5),)),
    ],
)
async def test_a_finding_that_says_something_else(feeding: Feeding, other: Finding) -> None:
    """Viewers get it at the next look."""
    first, second, third = await seen(feeding, (0, WAITING), (1, other), (1, other))
    assert (first, len(second), third) == ([], 1, [])


@pytest.mark.parametrize(
    ("other", "again"),
    [
        (changed(summary="it has waited for 9 s"), 0),
        (changed(collective=dataclasses.replace(OP, waited_s=9.0)), 0),
        (changed(suspects=(dataclasses.replace(WAITING.suspects[0], evidence="other"),)), 1),
    ],
)
async def test_another_wording_comes_rarely(feeding: Feeding, other: Finding, again: int) -> None:
    """The age of a wait counts up in the browser. What the evidence says comes after ten seconds,
    once."""
    counts = [
        len(got)
        for got in await seen(
            feeding, (0, WAITING), (1, other), (8, other), (2, other), (20, other)
        )
    ]
    assert counts == [0, 0, 0, again, 0]


async def test_a_finding_that_closes_while_the_store_fails(
    feeding: Feeding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end cannot be read: viewers get it when the store answers again."""
    async with feeding.viewer() as stream:
        feeding.show(finding(1))
        await feeding.look()
        feeding.show()
        store = feeding.service.store
        with monkeypatch.context() as patch:

            def fails(_: str) -> Finding:
                raise StoreError("findings database: disk I/O error")

            patch.setattr(store, "get", fails)
            with contextlib.suppress(StoreError):
                await feeding.look(1)
        feeding.store(closed(finding(1)))
        await feeding.look(1)
        data = await asyncio.wait_for(anext(stream), 1)
        assert b'"state":"closed"' in data


async def test_a_slow_viewer_starts_over(feeding: Feeding) -> None:
    """It reads nothing while three hundred findings open: it gets hello, and gets the last ones; a
    viewer that keeps up gets all of them."""
    feeding.show()
    async with feeding.viewer() as slow, feeding.viewer() as quick:
        await feeding.look()
        stuck = asyncio.ensure_future(anext(slow))
        reading = asyncio.ensure_future(anext(quick))
        await asyncio.sleep(0)
        feeding.show(finding(1))
        await feeding.look(1)
        await stuck
        got = 1
        await reading
        for count in range(100, 700, 100):
            feeding.show(*(finding(n) for n in range(1, count + 1)))
            await feeding.look(1)
            got += len(await news(quick))
        assert got == 600
        found = await news(slow)
        assert [name for name, _ in found] == ["hello"] + ["finding"] * 256
        assert found[-1][1]["id"] in {finding(n).id for n in range(501, 601)}
        waiting = asyncio.ensure_future(anext(slow))
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
