"""Silences in the findings database, and in the registry of a cluster, where replicas change them
at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from frd.cluster.registry import Entry
from frd.errors import ServiceUnavailable
from frd.forms import encodable
from frd.model import AlignedNs
from frd.service.findings import people
from frd.service.findings.people import LocalKeys, Refused, Scope, Silence, Silences
from frd.store.findings import FindingStore
from tests.world.fake_cluster import FakeKeys, FakeRegistry, Faults
from tests.world.http_api import finding
from tests.world.virtual_time import in_virtual_time

NOW = AlignedNs(1_000_000_000)


def silence(name: str, for_s: int = 10, by: str = "alice", of: Scope = Scope.JOB) -> Silence:
    return Silence(of, name, AlignedNs(NOW + for_s * 1_000_000_000), by)


def names(of: Silences, now: AlignedNs = NOW) -> list[str]:
    return sorted(one.name for one in of.all(now))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FindingStore]:
    store = FindingStore(tmp_path / "findings.sqlite3")
    yield store
    store.close()


async def test_the_next_process_has_them(store: FindingStore) -> None:
    """The later request for the same job replaces; what is over is deleted with the next change;
    one is ended by its id, that of a finding by the id of the finding."""
    first, keys = Silences(LocalKeys(store)), LocalKeys(store)
    for one in (silence("a"), silence("b", 1), silence("a", 20, "bob")):
        await first.put(one, NOW)
    second = Silences()
    await second.keep_in(keys)
    assert sorted((one.name, one.by) for one in second.all(NOW)) == [("a", "bob"), ("b", "alice")]
    later = AlignedNs(NOW + 5_000_000_000)
    assert names(second, later) == ["a"]
    await second.put(silence("f" * 16, of=Scope.FINDING), later)
    assert b'"b"' not in (store.value("silences") or b"")
    assert await second.end("f" * 16, later)
    assert await second.end("a", later) is None  # the name of a job is no id
    assert await second.end(silence("a").id, later)
    await first.read()
    assert names(first) == []


async def test_a_reading_that_is_slow(store: FindingStore) -> None:
    """It has seen the value before a change, and ends after it: the change stays."""
    has_seen, may_end = asyncio.Event(), asyncio.Event()

    class Slow(LocalKeys):
        async def get(self, key: str) -> Entry | None:
            found = await super().get(key)
            if not has_seen.is_set():
                has_seen.set()
                await may_end.wait()
            return found

    await Silences(LocalKeys(store)).put(silence("a"), NOW)
    known = Silences(Slow(store))
    reading = asyncio.create_task(known.read())
    await has_seen.wait()
    changing = asyncio.create_task(known.put(silence("b"), NOW))
    await asyncio.wait({changing}, timeout=0.3)  # which may have to wait for the reading
    may_end.set()
    await asyncio.gather(reading, changing)
    assert names(known) == ["a", "b"]


async def test_there_are_at_most_so_many(
    store: FindingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more is refused, a change of a known one is not, and those that are over do not count."""
    monkeypatch.setattr(people, "MAX_SILENCES", 2)
    known = Silences(LocalKeys(store))
    for one in (silence("a"), silence("b", 1), silence("a", 20)):
        await known.put(one, NOW)
    with pytest.raises(Refused, match="silences: 2 already"):
        await known.put(silence("c"), NOW)
    await known.put(silence("c"), AlignedNs(NOW + 2_000_000_000))
    assert names(known, AlignedNs(NOW + 2_000_000_000)) == ["a", "c"]


@in_virtual_time
async def test_people_on_two_replicas_at_once() -> None:
    """Twenty silences on each replica at the same time, with slow servers: all are there, and each
    replica has them after its next reading."""
    keys, faults = FakeKeys(), Faults(delay_s=0.1)
    replicas = [Silences(FakeRegistry(keys, faults)) for _ in range(2)]
    await asyncio.gather(
        *(one.put(silence(f"{n}-{i}"), NOW) for n, one in enumerate(replicas) for i in range(20))
    )
    for one in replicas:
        await one.read()
        assert names(one) == sorted(f"{n}-{i}" for n in range(2) for i in range(20))


@in_virtual_time
async def test_servers_that_do_not_answer() -> None:
    """A change is refused as unavailable, and what is known stays in force. A lost answer to a
    change that was made is an error, too: the same request again succeeds."""
    keys, faults = FakeKeys(), Faults()
    known = Silences(FakeRegistry(keys, faults))
    with pytest.raises(ServiceUnavailable, match="starting"):
        await Silences().put(silence("a"), NOW)
    await known.put(silence("a"), NOW)
    faults.no_leader_until = asyncio.get_running_loop().time() + 60
    await known.read()
    with pytest.raises(ServiceUnavailable, match="silences: "):
        await known.put(silence("b"), NOW)
    assert names(known) == ["a"]
    await asyncio.sleep(60)
    faults.lost_answers = 1.0
    with pytest.raises(ServiceUnavailable):
        await known.put(silence("b"), NOW)
    faults.lost_answers = 0.0
    await known.put(silence("b"), NOW)
    assert names(known) == ["a", "b"]


async def test_a_job_with_a_hostile_name(store: FindingStore) -> None:
    """Half of a surrogate pair, which no JSON holds, and control characters: the silence is found
    again, and what is shown of it is printable."""
    name = "a\udc80\x1b[31m"
    known = Silences(LocalKeys(store))
    await known.put(silence(encodable(name)), NOW)
    until_at, by = known.of(finding(1, name), NOW)
    assert (until_at, by) == (NOW + 10_000_000_000, "alice, for job a\\udc80\ufffd[31m")


@pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b'[{"of":"moon","name":"x"}]', b"\xff"])
async def test_a_value_that_cannot_be_read(
    store: FindingStore, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It silences nothing, is logged, and the next change replaces it."""
    store.keep_value("silences", value)
    known = Silences()
    await known.keep_in(LocalKeys(store))
    assert names(known) == []
    assert "silences: damaged" in caplog.text
    await known.put(silence("a"), NOW)
    assert names(known) == ["a"]
