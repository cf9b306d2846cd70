"""The local database of a replica follows the findings of the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from frd.errors import StoreError
from frd.model import AlignedNs, Finding, FindingEvent, FindingState, Kind
from frd.service.cells.replica import copy
from frd.service.journal.payloads import encode_finding
from frd.store.findings import FindingStore
from tests.world.fake_cluster import FakeCells, FakeKeys, FakeRegistry, Faults
from tests.world.virtual_time import run_virtual


class _Store(FindingStore):
    """Fails as often as `failures` says, then keeps ids in the order of `save`."""

    def __init__(self, failures: list[Exception]) -> None:
        self.failures = failures
        self.saved: list[str] = []

    def save(self, events: Sequence[FindingEvent]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.saved += [event.finding.id for event in events]


class _BrokenOnce(FakeCells):
    """Its first answer cannot be used."""

    is_broken = True

    def _since(self, revision: int):  # type: ignore[no-untyped-def]
        if self.is_broken:
            self.is_broken = False
            raise ValueError("no finding")
        return super()._since(revision)


def copied(failures: list[Exception], kind: type[FakeCells] = FakeCells) -> list[str]:
    """Ids that are copied within ten seconds. The findings are f1, one of a newer release, f2."""

    async def work() -> list[str]:
        keys = FakeKeys()
        claim = await FakeRegistry(keys, Faults()).put("c.07", b"frd-0", 0)
        shared, store = kind(keys, Faults()), _Store(failures)
        for id_ in ("f1", "newer", "f2"):
            data = encode_finding(
                Finding(id_, Kind.STALL, FindingState.OPEN, "job", 0, AlignedNs(10**18))
            )
            if id_ == "newer":
                data = data.replace(b'"stall"', b'"drizzle"')
            await shared.put(7, claim, id_, data)
        copying = asyncio.create_task(copy(shared, store))
        await asyncio.sleep(10)
        copying.cancel()
        await asyncio.wait({copying})
        return store.saved

    return run_virtual(work())


def test_the_database_refuses_a_finding_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """The disk is full three times: the same finding is tried each second, with one line in the
    log, and then it and the one after it are copied; one of a newer release is left out."""
    assert copied([StoreError("disk full")] * 3) == ["f1", "f2"]
    assert caplog.text.count("disk full") == 1


def test_a_finding_that_cannot_be_stored(caplog: pytest.LogCaptureFixture) -> None:
    """A finding makes the database fail with an unexpected error: it is logged with its id,
    and the next one is copied."""
    assert copied([OverflowError("too large")]) == ["f2"]
    assert "cell 7: finding f1: not copied" in caplog.text


def test_an_answer_that_cannot_be_used() -> None:
    """Reading the findings of the cluster fails with an unexpected error: copying goes on."""
    assert copied([], _BrokenOnce) == ["f1", "f2"]
