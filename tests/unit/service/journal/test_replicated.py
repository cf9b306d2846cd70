"""The log of a cell on fake servers: checkpoints, findings, bounds; what the next owner reads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from frd.cluster.log import Bundle, Fenced
from frd.cluster.packing import FRAME_BYTES, Frame, Joiner, Mark
from frd.engine.matching.learned_pauses import JobPauses
from frd.model import AlignedNs, Finding, FindingState, Kind, NodeNs, NodeRawNs
from frd.service.journal import preamble
from frd.service.journal.appending import Appender
from frd.service.journal.payloads import Settings, encode_finding, encode_pauses, encode_payload
from frd.service.journal.preamble import KeptFindings
from frd.service.journal.reading import Recovered, read, recover
from frd.service.journal.replay import replay
from frd.service.journal.replicated import CHECKPOINT_EVERY_NS, ReplicatedLog
from frd.service.journal.runs import Budget
from frd.store.journal import JournalLimits
from frd.store.records import Record, RecordKind
from frd.wire.messages import PROTOCOL, Declare, Hello, Part, ResponsePart, Statuses
from tests.world.fake_cluster import FakeLog, FakeStream, Faults
from tests.world.virtual_time import in_virtual_time

HELLO: Final = Hello(PROTOCOL, "0", "n", "b", "s", NodeNs(1), NodeRawNs(1))
SETTINGS: Final = encode_payload(Settings("0"))
T0: Final = AlignedNs(1_790_000_000_000_000_000)
SOME: Final = Statuses(())


class Cell:
    """The log of one owner."""

    def __init__(self, servers: FakeStream, **options: Any) -> None:
        self.servers = servers
        self.faults = Faults()
        self.fenced = 0
        self.now = T0
        self.limits: JournalLimits = options.pop("limits", JournalLimits())
        self.budget: Budget = options.pop("budget", None) or Budget()
        self._options = options
        self.log: ReplicatedLog

    async def begin(self, owner: str = "a") -> Cell:
        fenced = FakeLog(self.servers, self.faults, patience_s=1.0)
        await fenced.take(owner)
        self.log = ReplicatedLog(
            Appender(7, fenced, owner),
            settings=SETTINGS,
            now=self.now,
            limits=self.limits,
            budget=self.budget,
            on_fenced=self._on_fenced,
            **self._options,
        )
        return self

    def _on_fenced(self) -> None:
        self.fenced += 1

    def open(self, stream: int, declared: bytes = b"declare") -> None:
        self.log.record(RecordKind.OPENED, self.now, stream)
        self.log.message(stream, self.now, b"hello", HELLO)
        self.log.message(stream, self.now, declared, Declare())

    async def pass_s(self, seconds: float) -> None:
        """The engine advances, and the log has time to write."""
        self.now = AlignedNs(self.now + round(seconds * 1e9))
        self.log.tick(self.now)
        await asyncio.sleep(1)

    def frames(self) -> list[Frame]:
        joiner = Joiner()
        found = []
        for number, message in enumerate(self.servers.messages, self.servers.first):
            if message.epoch:
                found.append(joiner.add(Bundle(number, message.epoch, message.data)))
        return [frame for frame in found if frame is not None]


async def everything(servers: FakeStream, warn: Callable[[str], None]) -> list[Record]:
    log = FakeLog(servers, Faults())
    pieces = [records async for records in read(log, servers.first, servers.last, warn)]
    return [record for records in pieces for record in records]


async def recovered(servers: FakeStream) -> tuple[Recovered, list[Record]]:
    records: list[Record] = []
    warnings: list[str] = []
    found = await recover(FakeLog(servers, Faults()), warnings.append, records.append)
    assert warnings == []
    return found, records


def payloads(records: list[Record], stream: int) -> list[bytes]:
    return [r.payload for r in records if r.stream == stream and r.kind is RecordKind.MESSAGE]


def finding(id_: str, state: FindingState = FindingState.OPEN) -> Finding:
    closed_at = T0 if state is FindingState.CLOSED else None
    return Finding(id_, Kind.STALL, state, "job", 0, T0, closed_at=closed_at)


@in_virtual_time
async def test_records_come_back_in_order() -> None:
    """A stream opens, reports and closes; what is read begins with a START."""
    cell = await Cell(FakeStream()).begin()
    cell.open(7)
    assert cell.log.message(7, T0, b"statuses", SOME)
    assert cell.log.message(7, T0, b"answer", ResponsePart(1, 0, Part.STACK, b"", True))
    cell.log.record(RecordKind.CLOSED, T0, 7)
    assert cell.log.stored == 0
    await cell.pass_s(0.25)
    assert cell.log.stored == cell.log.position > 0
    await cell.log.stop()
    records = await everything(cell.servers, pytest.fail)
    assert [(r.kind, r.payload) for r in records] == [
        (RecordKind.START, SETTINGS),
        (RecordKind.OPENED, b""),
        (RecordKind.MESSAGE, b"hello"),
        (RecordKind.MESSAGE, b"declare"),
        (RecordKind.MESSAGE, b"statuses"),
        (RecordKind.CLOSED, b""),
        (RecordKind.TICK, b""),
    ]
    assert (cell.log.unacked_bytes, cell.log.dropped, cell.fenced) == (0, 0, 0)


@in_virtual_time
async def test_the_next_owner_reads_from_the_last_checkpoint() -> None:
    """Two checkpoints, of which the second is the last complete one: live streams, learned pauses
    and what came after them are read, and nothing of what came before."""
    pauses = JobPauses("job", T0)
    cell = await Cell(FakeStream()).begin()
    cell.open(1, b"one")
    cell.open(2, b"two")
    cell.log.record(RecordKind.LEARNED, T0, payload=encode_pauses([pauses]))
    cell.log.record(RecordKind.ALIGNED, T0, 2, b"aligned")
    cell.log.message(2, T0, b"early", SOME)
    cell.log.record(RecordKind.CLOSED, T0, 1)
    await cell.pass_s(0.25)
    cell.log.message(2, cell.now, b"middle" + bytes(2_000), SOME)
    await cell.pass_s(CHECKPOINT_EVERY_NS / 1e9)
    cell.log.message(2, cell.now, b"late", SOME)
    await cell.pass_s(0.25)
    found, records = await recovered(cell.servers)
    assert found.pauses == (pauses,)
    assert payloads(records, 2) == [b"hello", b"two", b"late"]
    assert payloads(records, 1) == []
    assert [r.kind for r in records][:3] == [
        RecordKind.START, RecordKind.LEARNED, RecordKind.OPENED,
    ]  # fmt: skip
    whole = await everything(cell.servers, pytest.fail)
    assert [r.kind for r in whole].count(RecordKind.START) == 1
    assert payloads(whole, 2)[-1] == b"late"
    await cell.log.stop()


@in_virtual_time
async def test_a_checkpoint_that_is_not_complete_is_not_used() -> None:
    """The owner dies while it writes a checkpoint of several bundles: the one before it counts."""
    cell = await Cell(FakeStream()).begin()
    for stream in range(1, 4):
        cell.open(stream, bytes([stream]) * (FRAME_BYTES // 2 + 1))
    await cell.pass_s(0.25)
    for _ in range(2):
        await cell.pass_s(700)
    marks = [frame.mark for frame in cell.frames() if frame.mark]
    middle = Mark.MIDDLE
    once = [middle | Mark.FIRST, middle, middle | Mark.LAST]
    assert marks == [middle | Mark.FIRST | Mark.LAST | Mark.START, *once, *once]
    complete, records = await recovered(cell.servers)
    first, last = [f for f in cell.frames() if f.mark & (Mark.FIRST | Mark.LAST)][-2:]
    servers = FakeStream()
    servers.messages = list(cell.servers.messages)
    servers.lose_after(last.first - 1)
    torn, same = await recovered(servers)
    assert (torn, same) == (complete, records)
    del servers.messages[: first.first - 1]
    servers.first = first.first
    warnings: list[str] = []
    read: list[Record] = []
    await recover(FakeLog(servers, Faults()), warnings.append, read.append)
    assert read == []
    assert warnings == ["log: it has no complete checkpoint, from which reading could begin"]
    servers.messages.append(cell.servers.messages[last.first - 1])
    _, purged = await recovered(servers)
    assert [r for r in purged if r.stream] == [r for r in records if r.stream]
    await cell.log.stop()


@pytest.mark.parametrize("is_torn", [False, True])
@in_virtual_time
async def test_an_owner_that_dies_soon(is_torn: bool) -> None:
    """An owner is killed during its first checkpoint, or right after it, and so is the next one:
    the third finds the last checkpoint of the first owner, and does not read the whole log."""
    servers = FakeStream()
    first = await Cell(servers).begin()
    first.open(1)
    for number in range(40):
        first.log.message(1, first.now, b"%d" % number + bytes(2_000), SOME)
        await first.pass_s(20)
    await first.log.save([finding("f1")], first.now)
    checkpoint = [f.first for f in first.frames() if f.mark & Mark.FIRST][-1]
    assert checkpoint > 20
    for owner in ("b", "c"):
        left, _ = await recovered(servers)
        learned = bytes(FRAME_BYTES) if is_torn else b""  # that of a checkpoint of two frames
        now = await Cell(servers, findings=KeptFindings(T0, left.findings), learned=learned).begin(
            owner
        )
        await asyncio.sleep(5)
        last = now.frames()[-1]
        assert (last.mark & (Mark.START | Mark.LAST), last.first) == (
            Mark.START | Mark.LAST, servers.last,
        )  # fmt: skip
        if is_torn:
            servers.lose_after(last.first - 1)
        now.log.abandon()
    log = _Counted(servers, Faults())
    found = await recover(log, pytest.fail)
    assert [one.id for one in found.findings] == ["f1"]
    assert min(log.numbers[-1]) == checkpoint
    first.log.abandon()


class _Counted(FakeLog):
    """A log that counts what is read."""

    def __init__(self, servers: FakeStream, faults: Faults) -> None:
        super().__init__(servers, faults)
        self.numbers: list[list[int]] = []
        """Of each `read`."""

    async def read(self, first: int, last: int) -> AsyncIterator[Bundle]:
        self.numbers.append([])
        async for bundle in super().read(first, last):
            self.numbers[-1].append(bundle.number)
            yield bundle


@in_virtual_time
async def test_a_new_owner_begins_with_what_is_open() -> None:
    """The first owner finds only its fence, which is no loss. It leaves two findings, of which it
    has closed one: the second owner's log begins with the open one, and a replay of both owners has
    it once."""
    servers = FakeStream()
    await FakeLog(servers, Faults()).take("a")
    nothing, records = await recovered(servers)
    assert (nothing.findings, records) == ((), [])
    first = await Cell(servers).begin()
    first.open(1)
    await first.log.save([finding("f1"), finding("f2")], T0)
    await first.log.save([finding("f2", FindingState.CLOSED)], T0)
    left, _ = await recovered(servers)
    assert [one.id for one in left.findings] == ["f1"]
    second = await Cell(servers, findings=KeptFindings(T0, left.findings)).begin("b")
    second.open(1, b"again")
    await second.pass_s(0.25)
    assert [one.id for one in (await recovered(servers))[0].findings] == ["f1"]
    with pytest.raises(Fenced):
        await first.log.save([finding("f3")], T0)
    assert (first.fenced, first.log.fenced, first.log.stored) == (1, True, -1)
    assert not first.log.message(1, T0, b"late", SOME)
    records = await everything(servers, pytest.fail)
    assert payloads(records, 1) == [b"hello", b"declare", b"hello", b"again"]
    restored = [r for r in records if r.kind is RecordKind.RESTORED]
    assert len(restored) == 1
    replayed = replay([r for r in records if r.kind is not RecordKind.MESSAGE], pytest.fail)
    assert [one.id for one in replayed.findings] == ["f1"]
    for cell in (first, second):
        await cell.log.stop()


@pytest.mark.parametrize("has_checkpoint", [False, True])
@in_virtual_time
async def test_dismissed_findings(*, has_checkpoint: bool) -> None:
    """Two findings are closed by hand, and a third one by the engine: the next owner gets the
    first two, also if a checkpoint came in between; the trouble of one is over: the owner after
    that gets the other one. Each can be decoded by a release that does not know the mark."""
    servers = FakeStream()
    cell = await Cell(servers).begin()
    await cell.log.save([finding(id_) for id_ in "abc"], cell.now)
    cell.log.keep_dismissed({"a", "b"}, cell.now)
    await cell.log.save([finding(id_, FindingState.CLOSED) for id_ in "abc"], cell.now)
    for _ in range(2 * has_checkpoint):  # the second one names the first
        await cell.pass_s(700)
    await cell.log.stop()
    left, _ = await recovered(servers)
    assert [(one.id, one.state) for one in left.findings] == [
        ("a", FindingState.CLOSED),
        ("b", FindingState.CLOSED),
    ]
    assert [one.id for one in left.closed] == ["c"]
    second = await Cell(servers, findings=KeptFindings(T0, left.findings)).begin("b")
    second.log.keep_dismissed({"a", "b"}, second.now)
    second.log.keep_dismissed({"b"}, second.now)
    for _ in range(2 * has_checkpoint):
        await second.pass_s(700)
    await second.log.stop()
    left, _ = await recovered(servers)
    assert [one.id for one in left.findings] == ["b"]


@in_virtual_time
async def test_findings_of_a_newer_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer release has stored one finding of a kind that this release does not know, another
    whose last version has such a kind, and pauses of another form: the rest is read, with a line
    for each of these."""

    def newer(one: Finding, **_: bool) -> bytes:
        data = encode_finding(one)
        return data.replace(b'"stall"', b'"drizzle"') if one.summary else data

    cell = await Cell(FakeStream()).begin()
    await cell.log.save([finding("f1"), finding("f2")], T0)
    with monkeypatch.context() as patch:
        patch.setattr(preamble, "encode_finding", newer)
        versions = [replace(finding(one), summary="newer") for one in ("f2", "f3")]
        await cell.log.save(versions, T0)
    await cell.log.save([finding("f4")], T0)
    cell.log.record(RecordKind.LEARNED, T0, payload=b"?")
    await cell.pass_s(0.25)
    warnings: list[str] = []
    found = await recover(FakeLog(cell.servers, Faults()), warnings.append)
    assert [one.id for one in found.findings] == ["f1", "f2", "f4"]
    assert warnings.pop().startswith("journal: pauses of a job: ")
    assert warnings == [
        f"journal: finding {one}: Invalid enum value 'drizzle' - at `$.kind`: "
        "damaged, or of a newer frd: it is left out"
        for one in ("f2", "f3")
    ]
    await cell.log.stop()


@in_virtual_time
async def test_a_finding_waits_until_it_is_stored() -> None:
    """The servers have no leader for 7 s: the finding is stored then, and not said to be before."""
    cell = await Cell(FakeStream()).begin()
    await cell.pass_s(0.25)
    loop = asyncio.get_running_loop()
    began = loop.time()
    cell.faults.no_leader_until = began + 7
    saving = asyncio.create_task(cell.log.save([finding("f1")], T0))
    await asyncio.sleep(5)
    assert not saving.done()
    assert cell.log.append_s >= 5
    await saving
    assert 7 <= loop.time() - began < 8
    assert cell.log.append_s >= 7
    await cell.log.stop()


@in_virtual_time
async def test_a_log_that_is_away_cuts_streams() -> None:
    """Nothing is stored for a minute, and little may wait: what came first is stored, the stream
    ends when the log is back, and its later declarations are not in the log."""
    cell = await Cell(FakeStream(), budget=Budget(5_000)).begin()
    cell.open(1)
    cell.open(2)
    await cell.pass_s(0.25)
    cell.faults.no_leader_until = asyncio.get_running_loop().time() + 60
    taken = [cell.log.message(1, cell.now, b"%03d" % i + bytes(900), SOME) for i in range(9)]
    assert taken == [True] * 5 + [False] * 4
    assert not cell.log.message(1, cell.now, b"more", Declare())
    cell.open(3)
    assert not cell.log.message(3, cell.now, b"hello", HELLO)
    await cell.pass_s(1)
    assert cell.log.take_cut() == ()
    assert cell.log.unacked_bytes <= 6_000
    await asyncio.sleep(60)
    assert set(cell.log.take_cut()) == {1, 3}
    assert cell.log.take_cut() == set()
    assert not cell.log.message(1, cell.now, b"still cut", SOME)
    assert cell.log.message(2, cell.now, b"fine", SOME)
    for stream in (1, 3):
        cell.log.record(RecordKind.CLOSED, cell.now, stream)
    await cell.log.stop()
    records = await everything(cell.servers, pytest.fail)
    assert [p[:3] for p in payloads(records, 1)[2:]] == [b"%03d" % i for i in range(5)]
    assert payloads(records, 2)[2:] == [b"fine"]
    assert [r.stream for r in records if r.kind is RecordKind.CLOSED] == [1]
    assert [r.stream for r in records if r.kind is RecordKind.OPENED] == [1, 2]


@in_virtual_time
async def test_old_bundles_are_deleted() -> None:
    """Records may be two minutes old: what is left can be read from a checkpoint on."""
    cell = await Cell(FakeStream(), limits=JournalLimits(max_age_s=120.0)).begin()
    cell.open(1)
    await cell.pass_s(0)
    for minute in range(6):
        cell.log.message(1, cell.now, b"%d" % minute + bytes(2_000), SOME)
        await cell.pass_s(60)
        await asyncio.sleep(59)
    assert cell.log.evicted == 4
    assert cell.servers.first > 5
    warnings: list[str] = []
    records = await everything(cell.servers, warnings.append)
    assert [p[:1] for p in payloads(records, 1)[2:]] == [b"4", b"5"]
    assert payloads(records, 1)[:2] == [b"hello", b"declare"]
    assert warnings == []
    await cell.log.stop()


@in_virtual_time
async def test_the_logs_of_a_process_share_what_may_wait() -> None:
    """Five cells of one replica, and the log of one is away for a minute: it uses up the budget,
    and the others go on. Then all are away: what waits stays below twice the budget. When they
    are back, all streams that were cut end, and each log has what it accepted of them."""
    budget = Budget(20_000)
    cells = [await Cell(FakeStream(), budget=budget).begin() for _ in range(5)]
    accepted: dict[int, list[bytes]] = {}
    for number, cell in enumerate(cells):
        accepted[number] = [b"hello", b"declare"]
        cell.open(1)

    def report(number: int) -> bool:
        data = b"%05d" % len(accepted[number]) + bytes(800)
        if is_taken := cells[number].log.message(1, cells[number].now, data, SOME):
            accepted[number].append(data)
        return is_taken

    async def pass_s(seconds: float) -> None:
        for cell in cells:
            cell.log.tick(cell.now)
        await asyncio.sleep(seconds)

    await pass_s(1)
    back = asyncio.get_running_loop().time() + 60
    cells[0].faults.no_leader_until = back
    assert not all(report(0) for _ in range(30))
    for _ in range(20):
        assert all(report(number) for number in range(1, 5))
        await pass_s(0.25)
    for cell in cells:
        cell.faults.no_leader_until = back
    for _ in range(50):
        for number in range(5):
            report(number)
    assert budget.limit < budget.waiting < 2 * budget.limit
    assert [list(cell.log.take_cut()) for cell in cells] == [[]] * 5
    await asyncio.sleep(60)
    await pass_s(1)
    for number, cell in enumerate(cells):
        assert list(cell.log.take_cut()) == [1]
        await cell.log.stop()
        stored = payloads(await everything(cell.servers, pytest.fail), 1)
        assert stored == accepted[number]
    assert (budget.waiting, budget.logs) == (0, 0)


@pytest.mark.parametrize(
    "limits", [JournalLimits(max_age_s=3600.0), JournalLimits(total_bytes=20_000)]
)
@in_virtual_time
async def test_limits_hold_for_the_logs_of_many_owners(limits: JournalLimits) -> None:
    """A cell has a new owner every 20 minutes, and none of them writes a second checkpoint: what is
    too old, or too much, is deleted nevertheless, and the rest can be read."""
    servers, evicted = FakeStream(), 0
    for number in range(12):
        cell = await Cell(servers, limits=limits).begin(f"o{number}")
        cell.open(1)
        cell.log.message(1, cell.now, random.Random(number).randbytes(5_000), SOME)
        await cell.pass_s(1)
        assert len((await recovered(servers))[1]) == 6
        evicted += cell.log.evicted
        await cell.log.stop()
        await asyncio.sleep(1_200)
    assert evicted >= 8
    assert len(await everything(servers, pytest.fail)) in (18, 24)


@in_virtual_time
async def test_a_loss_and_a_new_owner(caplog: pytest.LogCaptureFixture) -> None:
    """The servers lose the end of the log and its owner is cut off when it learns that. Another
    replica takes the cell meanwhile: the former owner is fenced when it is back, and the new one
    goes on."""
    servers = FakeStream()
    first = await Cell(servers).begin()
    first.open(1)
    await first.pass_s(0.25)
    servers.lose_after(servers.last - 1)
    first.faults.delay_s = 1.0
    first.log.message(1, first.now, b"rows", SOME)
    first.log.tick(first.now)
    async with asyncio.timeout(60):
        while "log's end is lost" not in caplog.text:
            await asyncio.sleep(0.01)
    first.faults.no_leader_until = asyncio.get_running_loop().time() + 30
    await asyncio.sleep(1)
    second = await Cell(servers).begin("b")
    await second.pass_s(0.25)
    await asyncio.sleep(60)
    assert (first.fenced, first.log.stored) == (1, -1)
    assert first.log.dropped == 2, "the rows and the tick that the servers refused"
    second.open(2)
    await second.pass_s(0.25)
    assert (second.fenced, second.log.stored) == (0, second.log.position)
    await second.log.stop()


@in_virtual_time
async def test_lines_name_the_cell(caplog: pytest.LogCaptureFixture) -> None:
    """The servers of cell 7 are away until its budget is used up and it is stopped, are back, and
    another owner takes the cell: each line says which cell."""
    servers = FakeStream()
    cell = await Cell(servers, budget=Budget(2_000)).begin()
    cell.open(1)
    cell.faults.no_leader_until = asyncio.get_running_loop().time() + 3
    while cell.log.message(1, cell.now, bytes(500), SOME):
        pass
    await cell.pass_s(1)
    await asyncio.sleep(5)
    cell.faults.no_leader_until = asyncio.get_running_loop().time() + 20
    cell.log.record(RecordKind.SETTINGS, cell.now)
    await cell.log.stop()
    later = await Cell(servers).begin("b")
    await later.pass_s(1)
    await FakeLog(servers, Faults()).take("c")
    later.open(1)
    await later.pass_s(30)
    assert later.fenced
    texts = "wait", "trying again", "written again", "not stored", "taken by another"
    for text in texts:
        assert any(text in line for line in caplog.messages), text
    assert all(line.startswith("cell 7: ") for line in caplog.messages)


@in_virtual_time
async def test_stopping_a_busy_log(caplog: pytest.LogCaptureFixture) -> None:
    """A cell is handed over while its last append takes a second and agents still report: what was
    put before is stored and can be acknowledged a second later, and what came since is not."""
    cell = await Cell(FakeStream()).begin()
    cell.open(1)
    await cell.pass_s(0.25)
    began = asyncio.get_running_loop().time()
    cell.faults.no_leader_until = began + 1
    cell.log.message(1, cell.now, b"last", SOME)
    target = cell.log.position
    stopping = asyncio.create_task(cell.log.stop())
    await asyncio.sleep(0.5)
    assert cell.log.message(1, cell.now, b"later", SOME)
    await stopping
    assert asyncio.get_running_loop().time() - began < 2
    assert cell.log.stored == target < cell.log.position
    assert payloads(await everything(cell.servers, pytest.fail), 1)[2:] == [b"last"]
    assert "not stored" not in caplog.text


@in_virtual_time
async def test_missing_bundles_are_named() -> None:
    """The log lacks a bundle in its middle: reading goes on at the next checkpoint, with a line."""
    cell = await Cell(FakeStream()).begin()
    cell.open(1)
    for number in range(6):
        cell.log.message(1, cell.now, b"%d" % number + bytes(2_000), SOME)
        await cell.pass_s(20)
    await cell.log.stop()
    lost = 4  # has the second message
    warnings: list[str] = []
    log = _Without(cell.servers, lost)
    pieces = [r async for r in read(log, 1, cell.servers.last, warnings.append)]
    records = [record for piece in pieces for record in piece]
    assert warnings == ["log: records before bundle 5 are missing"]
    assert [p[:1] for p in payloads(records, 1)] == [
        b"h",
        b"d",
        b"0",
        *(b"h", b"d"),
        *(b"2", b"3", b"4", b"5"),
    ]


class _Without(FakeLog):
    """A log that lacks a bundle."""

    def __init__(self, servers: FakeStream, number: int) -> None:
        super().__init__(servers, Faults())
        self._number = number

    async def read(self, first: int, last: int) -> AsyncIterator[Bundle]:
        async for bundle in super().read(first, last):
            if bundle.number != self._number:
                yield bundle


@in_virtual_time
async def test_an_idle_cell_writes_little() -> None:
    """Nothing happens for two minutes: ticks are recorded each 0.25 s, in few bundles."""
    cell = await Cell(FakeStream()).begin()
    for _ in range(480):
        await cell.pass_s(0.25)
    assert len(cell.servers.messages) == 2 + 12
    await cell.log.stop()
    records = await everything(cell.servers, pytest.fail)
    assert [r.kind for r in records].count(RecordKind.TICK) == 480


@in_virtual_time
async def test_an_abandoned_log_is_silent() -> None:
    """A cell is dropped because another replica has claimed it, and the log answers only much
    later, when this replica may own the cell again: the former log neither writes nor reports that
    it was refused, and nothing of it is acknowledged."""
    servers = FakeStream()
    cell = await Cell(servers).begin()
    await cell.pass_s(1)
    cell.faults.no_leader_until = asyncio.get_running_loop().time() + 5.0
    cell.open(1)
    cell.log.message(1, cell.now, b"rows", SOME)
    await cell.pass_s(1)
    cell.log.abandon()
    assert cell.log.stored == -1
    await FakeLog(servers, Faults()).take("b")
    end = servers.last
    await asyncio.sleep(20)
    assert cell.fenced == 0
    assert servers.last == end
    with pytest.raises(Fenced):
        await cell.log.save([finding("f")], cell.now)
    assert cell.log._task.done()
