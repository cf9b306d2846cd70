"""What the owners of a cell leave to each other in the values of the cluster, and what the journal
of each of them has."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from frd.cluster.cells import CELLS
from frd.cluster.cluster import Superseded
from frd.config import Config, NotifyTarget
from frd.engine.matching.learned_pauses import JobPauses
from frd.errors import FrdError, StoreError
from frd.forms import later
from frd.model import (
    AlignedNs,
    AttemptKey,
    Change,
    Finding,
    FindingEvent,
    FindingState,
    Kind,
    NodeNs,
    RankInfo,
    RankState,
    RankStatus,
    ServiceRawNs,
)
from frd.service.cells.cell import Cell, Common
from frd.service.cells.owner import Opened, open_journal
from frd.service.cells.replica import Deletion, SharedArchive, copy
from frd.service.clocks.agent_clocks import AgentClocks
from frd.service.clocks.real_time import RealTime
from frd.service.findings.notifier import Notifier
from frd.service.findings.people import Silences
from frd.service.ingest.streams import Stream
from frd.service.journal.payloads import Dismissal, decode_finding, encode_finding
from frd.service.journal.replay import replay
from frd.store.dumps import DumpStore
from frd.store.findings import FindingStore
from frd.store.journal import read
from frd.wire.codec import encode_agent
from frd.wire.messages import Statuses
from tests.world.daemons import until
from tests.world.evaluated import Evaluated
from tests.world.fake_cluster import FakeCells, FakeKeys, FakeRegistry, Faults
from tests.world.messages import BOTH, declare, entry_columns, watermarks
from tests.world.one_replica import CELL, HELLO, JOB
from tests.world.virtual_time import in_virtual_time, run_virtual
from tests.world.webhook import Receiver

PAUSES = JobPauses(JOB, AlignedNs(5))


class Owners:
    """Replicas that have the cell one after the other; each has a folder."""

    def __init__(self, folder: Path, keys: FakeKeys | None = None) -> None:
        self.folder = folder
        self.keys = keys or FakeKeys()
        self.faults = Faults()
        self.values = FakeCells(self.keys, self.faults)
        self.refused: list[int] = []
        self.notices = Notifier((), str)
        self._numbers = itertools.count()

    async def claim(self) -> int:
        key = f"c.{CELL:02}"
        known = self.keys.entries.get(key)
        value = b"owner %d" % next(self._numbers)
        claims = FakeRegistry(self.keys, Faults())
        return await claims.put(key, value, known.revision if known else 0)

    async def open(self, now: RealTime | None = None, name: str = "") -> Opened:
        """The next owner takes over."""
        claim, now = await self.claim(), now or RealTime()
        self.common = Common(
            config=lambda: Config(data_dir=self.folder / (name or str(claim))),
            now=now,
            clocks=AgentClocks(now),
            dumps=DumpStore(self.folder / "dumps", max_count=1, max_bytes=1),
            stream_ids=itertools.count(1),
            published=lambda events: None,
            silences=Silences(),
        )
        self.journal = open_journal(self.common)
        config = self.common.config
        archive = SharedArchive(
            self.values, self.journal, config, now, self.notices, self.refused.append
        )
        try:
            return await archive.open(CELL, claim)
        except BaseException:
            self.journal.close()
            raise

    async def findings(self) -> list[Finding]:
        """What is stored."""
        values = await FakeCells(self.keys, Faults()).of_cell(CELL)
        return [decode_finding(value.data) for value in values if value.key]


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[Owners]:
    made = Owners(tmp_path / "owners")
    yield made
    if hasattr(made, "journal"):
        made.journal.close()


@pytest.fixture
def finding(tmp_path: Path) -> Iterator[Finding]:
    """An open stall."""
    job = Evaluated(tmp_path)
    job.hang()
    job.evaluate()
    (opened,) = job.evaluator.state.open_findings()
    yield opened
    job.close()


async def saved(opened: Opened, *findings: Finding, change: Change = Change.UPDATED) -> None:
    await opened.keeper.save([FindingEvent(change, one) for one in findings], ())


def closed(finding: Finding, *, goes_on: bool = False) -> Finding:
    at = finding.opened_at
    return replace(finding, state=FindingState.CLOSED, closed_at=at, goes_on=goes_on)


async def test_the_next_owner_has_what_lasts(owners: Owners, finding: Finding) -> None:
    """One finding is open, one was closed by hand and goes on, one is closed: the next owner has
    the first two, and what jobs have learned. All of them stay stored."""
    first = await owners.open()
    assert (first.findings, first.pauses) == ([], ())
    dismissed = replace(closed(finding, goes_on=True), id="d")
    over = replace(closed(finding), id="o")
    await saved(first, finding, dismissed, over)
    await first.keeper.save([], [PAUSES])
    owners.journal.close()
    second = await owners.open()
    assert (second.findings, second.pauses) == ([finding, dismissed], [PAUSES])
    assert {one.id for one in await owners.findings()} == {finding.id, "d", "o"}


async def test_a_former_owner_stores_nothing_more(owners: Owners, finding: Finding) -> None:
    """Its write names its claim, after which there is another: it is refused, its cell is to be
    dropped, and it tries no more."""
    first = await owners.open()
    owners.journal.close()
    await owners.open()
    for _ in range(2):
        with pytest.raises(Superseded):
            await saved(first, finding)
    assert (first.keeper.is_over, owners.refused) == (True, [CELL])
    assert await owners.findings() == []


async def test_a_write_without_an_answer_is_made_again(owners: Owners, finding: Finding) -> None:
    """NATS does not answer: the finding is not kept, as far as the owner knows, and is kept when
    it tries again; its versions come in order."""
    first = await owners.open()
    for losses in (["request"], ["answer"]):
        owners.faults.losses = losses  # type: ignore[assignment]
        with pytest.raises(FrdError, match="no answer"):
            await saved(first, finding)
        noted = replace(finding, assigned_to="al")
        await asyncio.gather(saved(first, finding), saved(first, noted))
        assert await owners.findings() == [noted]


@pytest.mark.parametrize("is_closed", [False, True])
async def test_the_next_owner_sends_what_is_owed(
    is_closed: bool, owners: Owners, finding: Finding
) -> None:
    """A finding is stored while the messages about it are owed, and the cell is lost: the next
    owner sends them, also about a finding that is closed, and stores that they are sent. The owner
    after that one sends nothing."""

    async def next_owner() -> Opened:
        owners.notices = Notifier([NotifyTarget(name="chat", url=receiver.url)], str)
        opened = await owners.open()
        owners.notices.take_up(opened.findings)
        owners.journal.close()
        return opened

    with Receiver() as receiver:
        opened = await next_owner()
        events = [FindingEvent(Change.OPENED, finding)]
        if is_closed:
            events.append(FindingEvent(Change.CLOSED, closed(finding)))
        for event in events:
            owners.notices.prepare([event])
            await opened.keeper.save([event], ())
        owners.notices.forget([finding.id])
        opened = await next_owner()
        until(lambda: not owners.notices.owed(), "still owed")
        assert receiver.events() == ["opened", "closed"][: len(events)]
        settled = opened.keeper.settled()
        assert [one.id for one in settled] == [finding.id]
        await saved(opened, *settled)
        assert not opened.keeper.settled()
        await next_owner()
        assert owners.notices.owed() == []


async def test_a_value_that_can_never_be_stored(
    owners: Owners, finding: Finding, caplog: pytest.LogCaptureFixture
) -> None:
    """One finding is too large for NATS: those after it are stored, and the log says so."""
    opened, put = await owners.open(), owners.values.put

    async def refuse(cell: int, claim: int, key: str, data: bytes) -> int:
        if key == "large":
            raise StoreError("large: 1000000 bytes")
        return await put(cell, claim, key, data)

    owners.values.put = refuse  # type: ignore[method-assign]
    await saved(opened, replace(finding, id="large"), finding)
    assert "large: 1000000 bytes" in caplog.text
    assert await owners.findings() == [finding]


async def test_what_jobs_have_learned_fits_into_a_message(owners: Owners) -> None:
    """Of more pauses than one message holds, those that were learned last stay."""
    opened = await owners.open()
    learned = [JobPauses(f"{n:04}" * 1_000, AlignedNs(n)) for n in range(250)]
    await opened.keeper.save([], learned)
    (state,) = await owners.values.of_cell(CELL)
    assert len(state.data) < 901_000
    kept = (await owners.open()).pauses
    assert kept == learned[-len(kept) :]
    assert len(kept) > 100


async def test_a_late_refusal_of_an_earlier_claim(owners: Owners, finding: Finding) -> None:
    """This process has lost the cell, and may have it again: it is not dropped a second time."""
    opened, put = await owners.open(), owners.values.put

    async def late(cell: int, claim: int, key: str, data: bytes) -> int:
        opened.keeper.abandon()
        await owners.claim()
        return await put(cell, claim, key, data)

    owners.values.put = late  # type: ignore[method-assign]
    with pytest.raises(Superseded):
        await saved(opened, finding)
    assert not owners.refused


async def test_values_of_a_newer_release(
    owners: Owners, finding: Finding, caplog: pytest.LogCaptureFixture
) -> None:
    """A finding and the learned pauses are of a form that this release does not know: they are left
    out with a warning, and stay as they are."""
    claim = await owners.claim()
    newer = encode_finding(finding).replace(b'"stall"', b'"slow_fan"')
    for key, data in (("n", newer), (finding.id, encode_finding(finding)), ("", b"{}x")):
        await owners.values.put(CELL, claim, key, data)
    opened = await owners.open()
    assert (opened.findings, opened.pauses) == ([finding], ())
    assert caplog.text.count("it is left out") == 2
    assert (await owners.values.of_cell(CELL))[0].data == newer


@pytest.mark.parametrize("ahead_s", [0.9, 40.0])
async def test_the_clock_of_the_last_owner_was_ahead(
    owners: Owners, finding: Finding, ahead_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """The new owner goes on with a finding as old as it was; if it is much, it says what to do."""
    now = RealTime(lambda: time.time_ns() + round(ahead_s * 1e9))
    first = await owners.open(now)
    await saved(first, later(finding, now.utc() - 5 * 10**9 - finding.opened_at))
    await first.keeper.close()
    owners.journal.close()
    second = await owners.open()
    (restored,) = second.findings
    assert 4.5e9 < time.time_ns() - restored.opened_at < 6e9
    assert ("synchronize the clocks" in caplog.text) is (ahead_s > 1)


async def test_old_findings_are_deleted(owners: Owners, finding: Finding) -> None:
    """Only what is closed, does not go on, and is older than the retention, in the cells of this
    replica. NATS does not answer: it is tried again."""
    opened = await owners.open()
    day = 86_400 * 10**9
    over = [replace(later(closed(finding), -n * day), id=f"o{n}") for n in (1, 31, 32)]
    lasting = replace(later(closed(finding, goes_on=True), -40 * day), id="d")
    await saved(opened, later(finding, -50 * day), lasting, *over)
    cells: list[int] = []
    utc = AlignedNs(finding.opened_at + 1)
    deletion = Deletion(owners.values, lambda: cells, Config, lambda: utc)
    await deletion.look()
    assert len(await owners.findings()) == 5
    cells.append(CELL)
    owners.faults.losses = ["request"]
    await deletion.look()
    await deletion.look()
    assert {one.id for one in await owners.findings()} == {finding.id, "d", "o1"}


async def test_a_cell_keeps_so_many_closed_findings(owners: Owners, finding: Finding) -> None:
    """Of a job whose findings open and close all the time, the oldest are deleted."""
    opened = await owners.open()
    over = [replace(later(closed(finding), n * 10**6), id=f"o{n}") for n in range(5)]
    await saved(opened, finding, *reversed(over))
    config = Config.model_validate({"store": {"finding_count": 3 * CELLS}})
    utc = AlignedNs(finding.opened_at + 1)
    await Deletion(owners.values, lambda: [CELL], lambda: config, lambda: utc).look()
    assert {one.id for one in await owners.findings()} == {finding.id, "o2", "o3", "o4"}


# -- the journals of the owners ------------------------------------------------------------------


class Job:
    """Two ranks of one agent; rank 1 does not join the second collective."""

    def __init__(self, cell: Cell, stuck_at: NodeNs | None) -> None:
        self.cell = cell
        self.stuck_at = at = stuck_at or self.now
        self.stream: Stream = cell.home.streams.open()
        self.send(HELLO)
        infos = [RankInfo(rank, 2, "n", "boot", 10 + rank) for rank in range(2)]
        self.send(encode_agent(declare(infos, key=AttemptKey(JOB, 0))))
        live = [RankStatus(rank, RankState.LIVE, at) for rank in range(2)]
        self.send(encode_agent(Statuses(tuple(live))))
        for rank in range(2):
            done = entry_columns([0], rank=rank, flags=BOTH, created=at - 1, completed=at)
            self.send(encode_agent(done))

    @property
    def now(self) -> NodeNs:
        return NodeNs(self.cell.home.streams.now())

    def send(self, data: bytes) -> None:
        self.cell.home.streams.take(self.stream, data)

    async def hang(self, seconds: int) -> None:
        for _ in range(seconds):
            at = self.now
            heads = [self.stuck_at, 0]
            said = watermarks(
                range(2), enqueued=[1, 0], completed=0, head=heads, seen=range(2), as_of=at, sent=at
            )
            self.send(encode_agent(said))
            await asyncio.sleep(1)


def virtual(began: int) -> RealTime:
    """The time of the event loop, which was 0 at the UTC time `began`."""
    loop = asyncio.get_running_loop()
    return RealTime(
        lambda: began + round(loop.time() * 1e9), lambda: ServiceRawNs(round(loop.time() * 1e9))
    )


async def begun(owners: Owners, opened: Opened) -> Cell:
    cell = Cell(owners.common, opened.log, opened.keeper, one_job=True)
    await cell.start(opened.findings, opened.pauses)
    return cell


async def handed_over(owners: Owners, cell: Cell) -> None:
    await cell.finish()
    await cell.close()
    owners.journal.close()


@pytest.mark.parametrize("is_dismissed", [False, True])
@in_virtual_time
async def test_each_owner_can_replay_what_it_had(
    is_dismissed: bool, owners: Owners, caplog: pytest.LogCaptureFixture
) -> None:
    """A replica takes a cell, its job hangs, a person may close the finding; another replica takes
    the cell, where the hang goes on; then the first one has it again. Each version of the finding
    that a replica had is in its journal, and there is one id."""
    caplog.set_level(logging.ERROR)
    ids, stuck_at, began = set[str](), None, time.time_ns()
    for name in ("a", "b", "a"):
        cell = await begun(owners, await owners.open(virtual(began), name))
        job = Job(cell, stuck_at)
        stuck_at = job.stuck_at
        await job.hang(30)
        view = cell.state.status_view
        if is_dismissed and not ids:
            (found,) = view.findings
            await cell.evaluator.dismiss(Dismissal(found.id, "known", "al"))
            await job.hang(5)
        await handed_over(owners, cell)
        view = cell.state.status_view
        (last,) = view.going_on if is_dismissed else cell.state.open_findings()
        ids.add(last.id)
        warnings: list[str] = []
        replayed = replay(read(owners.folder / name / "journal", warnings.append), warnings.append)
        assert warnings == []
        (same,) = replayed.findings
        assert (same.id, same.state, same.victims) == (last.id, last.state, last.victims)
        assert [s.rank for s in same.suspects] == [s.rank for s in last.suspects]
        assert replayed.jobs == {JOB}
    assert len(ids) == 1


@in_virtual_time
async def test_a_cell_at_rest_is_not_recorded(owners: Owners) -> None:
    """No agent, no job and no finding: its evaluations are not in the journal."""
    cell = await begun(owners, await owners.open(virtual(time.time_ns()), "a"))
    await asyncio.sleep(10)
    await handed_over(owners, cell)
    kinds = [one.kind.name for one in read(owners.folder / "a" / "journal", pytest.fail)]
    assert kinds == ["START", "LEFT", "START", "LEFT"]


# -- the local database of a replica follows the findings of the cluster ---------------------------


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
