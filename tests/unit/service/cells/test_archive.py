"""What a new owner begins with: what its log has, else what all replicas share."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frd.cluster.cluster import Cluster
from frd.cluster.registry import RegistryUnavailable
from frd.config import Config
from frd.engine.policy import Policy
from frd.errors import StoreError
from frd.forms import later
from frd.model import AlignedNs, Change, Finding, FindingEvent, FindingState, Note
from frd.service.cells.alone import LocalLease
from frd.service.cells.owner import Opened
from frd.service.cells.replica import SharedArchive
from frd.service.clocks.real_time import RealTime
from frd.service.journal.payloads import (
    Settings,
    decode_finding,
    decode_payload,
    encode_finding,
    settings_of,
)
from frd.service.journal.preamble import KeptFindings
from frd.service.journal.reading import recover
from frd.store.findings import FindingStore
from frd.store.records import Record, RecordKind
from tests.world.evaluated import Evaluated
from tests.world.fake_cluster import (
    FakeFindings,
    FakeKeys,
    FakeLog,
    FakeRegistry,
    FakeStream,
    Faults,
)
from tests.world.virtual_time import in_virtual_time

CELL = 7


class Servers:
    """The log and the shared findings of a cluster."""

    def __init__(self, store: FindingStore) -> None:
        self.stream = FakeStream()
        self.of_findings = Faults()
        self.keys = FakeKeys()
        self.findings = _Findings(self)
        self.writes_fail = False
        """No finding can be shared."""
        self.puts = 0
        self.store = store

    def log(self, cell: int) -> FakeLog:
        return FakeLog(self.stream, Faults())

    async def open(
        self, now: RealTime | None = None, config: Callable[[], Config] = Config
    ) -> Opened:
        """As the next replica does it."""
        cluster = Cluster(
            LocalLease(), self.log, self.findings, FakeRegistry(self.keys, Faults()), _nothing
        )
        archive = SharedArchive(cluster, config, self.store, now or RealTime())
        return await archive.open(CELL)

    async def shared(self) -> list[Finding]:
        return [decode_finding(one.data) for one in await self.findings.of_cell(CELL)]


class _Findings(FakeFindings):
    def __init__(self, servers: Servers) -> None:
        super().__init__(servers.keys, servers.of_findings)
        self._servers = servers

    async def put(self, cell: int, id: str, data: bytes, revision: int) -> int:
        self._servers.puts += 1
        if self._servers.writes_fail:
            raise RegistryUnavailable("no leader")
        return await super().put(cell, id, data, revision)


async def _nothing() -> None:
    pass


async def logged(servers: Servers, kind: RecordKind) -> list[Record]:
    """The records of this kind that the next owner reads."""
    records: list[Record] = []
    await recover(servers.log(CELL), pytest.fail, records.append)
    return [record for record in records if record.kind is kind]


async def end(opened: Opened) -> None:
    """As a cell that is handed over."""
    await opened.keeper.close()
    await opened.log.stop()


async def die(opened: Opened) -> None:
    """Everything that is in the log stays there, and nothing else happens any more."""
    opened.keeper.abandon()
    await opened.log.stop()


def closed(finding: Finding) -> Finding:
    return dataclasses.replace(finding, state=FindingState.CLOSED, closed_at=finding.opened_at)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    store = FindingStore(tmp_path / "copy.sqlite3")
    yield Servers(store)
    store.close()


@pytest.fixture
def finding(tmp_path: Path) -> Iterator[Finding]:
    """An open stall."""
    job = Evaluated(tmp_path)
    job.hang()
    job.evaluate()
    (opened,) = job.evaluator.state.open_findings()
    yield opened
    job.close()


async def test_open_findings_come_from_the_log(servers: Servers, finding: Finding) -> None:
    """One owner opens a finding and ends; the next one has it, with the same id, and so has the
    store of all replicas. The second owner closes it: the third has none."""
    first = await servers.open()
    assert not first.findings
    await first.keeper.save([FindingEvent(Change.OPENED, finding)], [])
    await end(first)
    second = await servers.open()
    assert [one.id for one in second.findings] == [finding.id]
    (shared,) = await servers.findings.of_cell(CELL)
    assert shared.id == finding.id
    await second.keeper.save([FindingEvent(Change.CLOSED, closed(finding))], [])
    await end(second)
    third = await servers.open()
    assert not third.findings
    await end(third)


@pytest.mark.parametrize("is_shared", [True, False])
@in_virtual_time
async def test_what_people_said_outlasts_a_takeover(
    is_shared: bool, servers: Servers, finding: Finding
) -> None:
    """A finding is acknowledged, closed, and gets a note after all replicas know it as closed; its
    owner dies, with the note shared or not. The next owners have each of these versions, and at the
    end all replicas have the note."""
    said = dataclasses.replace(finding, acknowledged_by="al", acknowledged_at=finding.opened_at)
    first = await servers.open()
    await first.keeper.save([FindingEvent(Change.OPENED, said)], [])
    await die(first)
    second = await servers.open()
    assert list(second.findings) == [said]
    over = closed(said)
    await second.keeper.save([FindingEvent(Change.CLOSED, over)], [])
    await asyncio.sleep(1)
    assert await servers.shared() == [over]
    servers.writes_fail = not is_shared
    noted = dataclasses.replace(over, notes=(Note("al", finding.opened_at, "a disk"),))
    await second.keeper.save([FindingEvent(Change.UPDATED, noted)], [])
    for _ in range(2):  # the first one makes a checkpoint, the second one names it
        second.log.tick(AlignedNs(RealTime()() + 1200 * 10**9))
        await asyncio.sleep(1)
    await die(second)
    assert (await servers.shared() == [noted]) is is_shared
    servers.writes_fail = False
    third = await servers.open()
    await asyncio.sleep(1)
    assert await servers.shared() == [noted]
    assert servers.store.get(noted.id) == noted
    await end(third)


def test_a_note_while_the_closing_is_being_shared(finding: Finding) -> None:
    """Checkpoints of the log keep the version with the note until all replicas have that one."""
    over, kept = closed(finding), KeptFindings(AlignedNs(0))
    noted = dataclasses.replace(over, notes=(Note("al", finding.opened_at, "a disk"),))
    for version in (over, noted):
        kept.see(version, AlignedNs(1))
    kept.shared(over)
    assert [decode_finding(one.payload) for one in kept.records()] == [noted]
    kept.shared(noted)
    assert kept.records() == []


async def test_a_log_that_cannot_be_read(
    servers: Servers, finding: Finding, caplog: pytest.LogCaptureFixture
) -> None:
    """The log holds bytes that are no records: the cell gets an owner, with the open
    findings that all replicas share, and the log is used again."""
    broken = servers.log(CELL)
    await broken.take("frd-0")
    await broken.append(b"no bundle at all")
    await servers.findings.put(CELL, finding.id, encode_finding(finding), 0)
    opened = await servers.open()
    assert [one.id for one in opened.findings] == [finding.id]
    assert "begins without what its log has" in caplog.text
    await end(opened)
    again = await servers.open()
    assert [one.id for one in again.findings] == [finding.id]
    await end(again)


async def test_a_finding_of_a_newer_release(
    servers: Servers, finding: Finding, caplog: pytest.LogCaptureFixture
) -> None:
    """A newer replica stored a finding of a kind that this one does not know, and died: the cell
    gets an owner with the findings that it can read; the other one is left as it is."""
    newer = encode_finding(finding).replace(b'"stall"', b'"slow_fan"')
    assert newer != encode_finding(finding)
    await servers.findings.put(CELL, "newer", newer, 0)
    await servers.findings.put(CELL, finding.id, encode_finding(finding), 0)
    opened = await servers.open()
    assert [one.id for one in opened.findings] == [finding.id]
    assert f"cell 7: journal: finding {finding.id}: Invalid enum value" in caplog.text
    assert (await servers.findings.of_cell(CELL))[0].data == newer
    await end(opened)


@pytest.mark.parametrize("has_leader", [False, True])
@in_virtual_time
async def test_no_answer_about_the_shared_findings(
    has_leader: bool, servers: Servers, finding: Finding, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream of findings has no leader while a cell is taken over, or its leader hangs: one
    fence, and after a second at most the findings of the log. They are shared when there is an
    answer again, and so is what changes then."""
    time = asyncio.get_running_loop().time
    servers.of_findings.lost_requests = 1.0
    first = await servers.open()
    await first.keeper.save([FindingEvent(Change.OPENED, finding)], [])
    await die(first)
    fences = sum(not message.epoch for message in servers.stream.messages)
    if not has_leader:
        servers.of_findings.lost_requests, servers.of_findings.losses = 0.0, ["request"]
    began = time()
    second = await servers.open()
    assert time() - began < 1.5
    assert [one.id for one in second.findings] == [finding.id]
    why = "no answer within 1 s" if has_leader else "no answer"
    assert f"findings of its log only: {why}" in caplog.text
    assert sum(not message.epoch for message in servers.stream.messages) == fences + 1
    servers.of_findings.lost_requests = 0.0
    await asyncio.sleep(5)
    assert [one.id for one in await servers.shared()] == [finding.id]
    await second.keeper.save([FindingEvent(Change.CLOSED, closed(finding))], [])
    await end(second)
    assert [one.state for one in await servers.shared()] == [FindingState.CLOSED]


@pytest.mark.parametrize("is_back", [True, False])
@in_virtual_time
async def test_a_closing_that_was_not_shared(
    is_back: bool, servers: Servers, finding: Finding
) -> None:
    """The first owner closes a finding, dies before all replicas know it, after another
    checkpoint of its log: the finding stays closed, whether the shared findings answer
    the second owner or the third one only; at the end all know it, and checkpoints forget it."""
    first = await servers.open()
    await first.keeper.save([FindingEvent(Change.OPENED, finding)], [])
    await asyncio.sleep(0.1)
    servers.writes_fail = True
    await first.keeper.save([FindingEvent(Change.CLOSED, closed(finding))], [])
    for _ in range(2):  # the first one makes a checkpoint, the second one names it
        first.log.tick(AlignedNs(RealTime()() + 1200 * 10**9))
        await asyncio.sleep(0.1)
    await die(first)
    servers.writes_fail = not is_back
    second = await servers.open()
    assert not second.findings
    await asyncio.sleep(0.1)
    await die(second)
    assert [one.state.value for one in await servers.shared()] == ["closed" if is_back else "open"]
    servers.writes_fail = False
    third = await servers.open()
    assert not third.findings
    await end(third)
    assert [one.state for one in await servers.shared()] == [FindingState.CLOSED]
    await end(await servers.open())
    left = await recover(servers.log(CELL), pytest.fail)
    assert (left.findings, left.closed) == ((), ())


@in_virtual_time
async def test_the_shared_findings_hang(
    servers: Servers, finding: Finding, caplog: pytest.LogCaptureFixture
) -> None:
    """The server of the shared findings hangs for a minute while a finding opens and changes: each
    version is saved immediately, and is in the log once; the local copy has the newest one, and
    later all replicas have it. A failure is logged once."""
    time = asyncio.get_running_loop().time
    owner = await servers.open()
    servers.of_findings.lost_requests = 1.0
    for summary in ("1", "2", "3"):
        version = dataclasses.replace(finding, summary=summary)
        began = time()
        await owner.keeper.save([FindingEvent(Change.UPDATED, version)], [])
        assert time() - began < 0.1
        await asyncio.sleep(20)
    assert not await FakeFindings(servers.keys, Faults()).of_cell(CELL)
    (copy,) = servers.store.open_findings()
    assert copy.summary == "3"
    servers.of_findings.lost_requests = 0.0
    await asyncio.sleep(5)
    assert [one.summary for one in await servers.shared()] == ["3"]
    await end(owner)
    assert len(await logged(servers, RecordKind.FINDING)) == 3
    assert caplog.text.count("trying again") == 1


@in_virtual_time
async def test_the_local_copy_fails(
    servers: Servers, finding: Finding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database of the machine refuses a finding: all replicas have it nevertheless, the failure
    is counted, and the copy is written when the database takes it."""
    owner = await servers.open()
    with monkeypatch.context() as patch:
        patch.setattr(servers.store, "save", _refuse)
        await owner.keeper.save([FindingEvent(Change.OPENED, finding)], [])
        await asyncio.sleep(0.1)
        assert owner.keeper.failures == 1
    assert [one.id for one in await servers.shared()] == [finding.id]
    assert not servers.store.open_findings()
    await asyncio.sleep(2)
    assert [one.id for one in servers.store.open_findings()] == [finding.id]
    await end(owner)


def _refuse(events: object) -> None:
    raise StoreError("disk full")


@in_virtual_time
async def test_a_replica_that_was_fenced_shares_nothing_more(
    servers: Servers, finding: Finding
) -> None:
    """An owner waits to share a finding when another replica takes the cell and closes it: what
    the former owner has is refused, and after it was dropped it tries no more."""
    first = await servers.open()
    servers.writes_fail = True
    await first.keeper.save([FindingEvent(Change.OPENED, finding)], [])
    await asyncio.sleep(0.1)
    servers.writes_fail = False
    second = await servers.open()
    await second.keeper.save([FindingEvent(Change.CLOSED, closed(finding))], [])
    await asyncio.sleep(5)
    assert first.log.fenced
    assert [one.state for one in await servers.shared()] == [FindingState.CLOSED]
    first.keeper.abandon()
    servers.puts = 0
    await asyncio.sleep(60)
    assert not servers.puts
    await end(second)


async def test_settings_change_while_the_log_is_read(servers: Servers) -> None:
    """SIGHUP while a cell is taken over: its log begins with the settings that are in force when
    the cell begins."""
    old, new = Config(), Config(policy=Policy(stall_after_s=77.0))

    def config() -> Config:
        return new if servers.stream.last else old  # the fence is there

    await end(await servers.open(config=config))
    starts = await logged(servers, RecordKind.START)
    assert [record.payload for record in starts] == [settings_of(new, 0)]


def clock(ahead_s: float) -> RealTime:
    """Of a machine whose clock is ahead of the true time."""
    return RealTime(lambda: time.time_ns() + round(ahead_s * 1e9))


def corrected(ahead_s: float) -> RealTime:
    """Of a machine whose clock was ahead when the process began, and has been corrected."""
    ahead_ns = [round(ahead_s * 1e9)]
    now = RealTime(lambda: time.time_ns() + sum(ahead_ns))
    ahead_ns.clear()
    now.follow()
    return now


async def last_at(servers: Servers) -> int:
    return (await recover(servers.log(CELL), pytest.fail)).last_at


async def test_the_clock_of_the_last_owner_was_set(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """The wall clock of the last owner was an hour late when its process began, and was corrected
    then; that of the new owner is right: nothing is wrong with it."""
    now = corrected(-3600)
    first = await servers.open(now)
    first.log.tick(now())
    await end(first)
    assert abs(await last_at(servers) - time.time_ns()) < 10**9
    await end(await servers.open())
    assert "synchronize" not in caplog.text


async def test_the_clock_of_this_owner_was_set(servers: Servers, finding: Finding) -> None:
    """An open finding is handed over to a process whose UTC has moved by an hour: what its log
    keeps is in UTC, and its settings say how far that is ahead of the times of its records."""
    now = corrected(-3600)
    first = await servers.open()
    await first.keeper.save([FindingEvent(Change.OPENED, finding)], ())
    await end(first)
    second = await servers.open(now)
    assert [one.opened_at // 1000 for one in second.findings] == [finding.opened_at // 1000]
    await end(second)
    start = (await logged(servers, RecordKind.START))[-1]
    ahead_ns = decode_payload(start.payload, Settings).utc_ahead_ns
    assert abs(start.at + ahead_ns - time.time_ns()) < 10**9 < abs(start.at - time.time_ns())


@pytest.mark.parametrize("ahead_s", [0.9, 40.0])
async def test_the_clock_of_the_last_owner_was_ahead(
    servers: Servers, finding: Finding, ahead_s: float
) -> None:
    """It opened a finding and died: for the new owner, the finding is as old as it was then."""
    now = clock(ahead_s)
    finding = later(finding, now() - 5 * 10**9 - finding.opened_at)
    first = await servers.open(now)
    await first.keeper.save([FindingEvent(Change.OPENED, finding)], ())
    await end(first)
    second = await servers.open()
    (restored,) = second.findings
    assert 4.5e9 < time.time_ns() - restored.opened_at < 6e9
    await end(second)


async def test_the_clock_of_the_last_owner_was_far_ahead(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """The last owner's clock was 40 s ahead: the new owner keeps its time, and says what to do."""
    await end(await servers.open(clock(40)))
    now = RealTime()
    second = await servers.open(now)
    assert now.utc() < await last_at(servers)
    assert "cell 7: its log ends 40 s ahead of this machine's clock: synchronize" in caplog.text
    await end(second)
