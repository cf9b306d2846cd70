"""What a new owner begins with: what its log has, else what all replicas share."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frd.cluster.cluster import Cluster
from frd.config import Config
from frd.engine.policy import Policy
from frd.model import Change, Finding, FindingEvent, FindingState
from frd.service.cells.alone import LocalLease
from frd.service.cells.archive import Opened
from frd.service.cells.replica import SharedArchive
from frd.service.clocks.real_time import RealTime
from frd.service.journal.payloads import decode_finding, encode_finding, settings_of
from frd.service.journal.reading import recover
from frd.store.findings import FindingStore
from frd.store.records import Record, RecordKind
from tests.world.evaluated import Evaluated
from tests.world.fake_cluster import FakeFindings, FakeKeys, FakeLog, FakeStream, Faults

CELL = 7


class Servers:
    """The log and the shared findings of a cluster, without faults."""

    def __init__(self, store: FindingStore) -> None:
        self.stream = FakeStream()
        self.of_findings = Faults()
        self.findings = FakeFindings(FakeKeys(), self.of_findings)
        self._store = store

    def log(self, cell: int) -> FakeLog:
        return FakeLog(self.stream, Faults())

    async def open(
        self, now: RealTime | None = None, config: Callable[[], Config] = Config
    ) -> Opened:
        """As the next replica does it."""
        cluster = Cluster(LocalLease(), self.log, self.findings, _nothing)
        archive = SharedArchive(cluster, config, self._store, now or RealTime())
        return await archive.open(CELL)


async def _nothing() -> None:
    pass


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    store = FindingStore(tmp_path / "findings.sqlite3")
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
    await first.log.stop()
    second = await servers.open()
    assert [one.id for one in second.findings] == [finding.id]
    (shared,) = await servers.findings.of_cell(CELL)
    assert shared.id == finding.id
    closed = dataclasses.replace(finding, state=FindingState.CLOSED, closed_at=finding.opened_at)
    await second.keeper.save([FindingEvent(Change.CLOSED, closed)], [])
    await second.log.stop()
    third = await servers.open()
    assert not third.findings
    await third.log.stop()


async def test_a_dismissed_finding_comes_from_the_log(servers: Servers, finding: Finding) -> None:
    """A finding is closed by hand while its trouble lasts: the next owner has it, closed; all
    replicas see it closed. The trouble ends: the owner after that has none."""
    first = await servers.open()
    await first.keeper.save([FindingEvent(Change.OPENED, finding)], [])
    first.log.keep_dismissed({finding.id}, finding.opened_at)
    closed = dataclasses.replace(finding, state=FindingState.CLOSED, closed_at=finding.opened_at)
    await first.keeper.save([FindingEvent(Change.CLOSED, closed)], [])
    await first.log.stop()
    second = await servers.open()
    assert [(one.id, one.state) for one in second.findings] == [(finding.id, FindingState.CLOSED)]
    (shared,) = await servers.findings.of_cell(CELL)
    assert decode_finding(shared.data).state is FindingState.CLOSED
    second.log.keep_dismissed((), finding.opened_at)
    await second.log.stop()
    third = await servers.open()
    assert not third.findings
    await third.log.stop()


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
    await opened.log.stop()
    again = await servers.open()
    assert [one.id for one in again.findings] == [finding.id]
    await again.log.stop()


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
    await opened.log.stop()


async def test_no_answer_about_the_shared_findings(
    servers: Servers, finding: Finding, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream of findings has no leader while a cell is taken over: one fence, and the findings
    of the log; the next change of a finding reaches the stream nevertheless."""
    first = await servers.open()
    await first.keeper.save([FindingEvent(Change.OPENED, finding)], [])
    await first.log.stop()
    fences = sum(not message.epoch for message in servers.stream.messages)
    servers.of_findings.losses = ["request"]
    second = await servers.open()
    assert [one.id for one in second.findings] == [finding.id]
    assert "findings of its log only" in caplog.text
    assert sum(not message.epoch for message in servers.stream.messages) == fences + 1
    closed = dataclasses.replace(finding, state=FindingState.CLOSED, closed_at=finding.opened_at)
    await second.keeper.save([FindingEvent(Change.CLOSED, closed)], [])
    (shared,) = await servers.findings.of_cell(CELL)
    assert decode_finding(shared.data).state is FindingState.CLOSED
    await second.log.stop()


async def test_settings_change_while_the_log_is_read(servers: Servers) -> None:
    """SIGHUP while a cell is taken over: its log begins with the settings that are in force when
    the cell begins."""
    old, new = Config(), Config(policy=Policy(stall_after_s=77.0))

    def config() -> Config:
        return new if servers.stream.last else old  # the fence is there

    await (await servers.open(config=config)).log.stop()
    records: list[Record] = []
    await recover(servers.log(CELL), pytest.fail, records.append)
    starts = [record.payload for record in records if record.kind is RecordKind.START]
    assert starts == [settings_of(new)]


def clock(ahead_s: float) -> RealTime:
    """Of a machine whose clock is ahead of the true time."""
    return RealTime(lambda: time.time_ns() + round(ahead_s * 1e9))


async def last_at(servers: Servers) -> int:
    return (await recover(servers.log(CELL), pytest.fail)).last_at


async def test_the_clock_of_the_last_owner_was_ahead(servers: Servers) -> None:
    """The last owner's clock was 0.9 s ahead: all times of the new owner follow its last record."""
    first = await servers.open(clock(0.9))
    first.log.tick(clock(0.9)())
    await first.log.stop()
    before, now = await last_at(servers), RealTime()
    second = await servers.open(now)
    assert before < now() < before + 10**9
    await second.log.stop()
    records: list[Record] = []
    await recover(servers.log(CELL), pytest.fail, records.append)
    starts = [record.at for record in records if record.kind is RecordKind.START]
    assert starts[-1] > before


async def test_the_clock_of_the_last_owner_was_far_ahead(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """The last owner's clock was 40 s ahead: the new owner keeps its time, and says what to do."""
    await (await servers.open(clock(40))).log.stop()
    now = RealTime()
    second = await servers.open(now)
    assert now() < await last_at(servers)
    assert "cell 7: its log ends 40 s ahead of this machine's clock: synchronize" in caplog.text
    await second.log.stop()
