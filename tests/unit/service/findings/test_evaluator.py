"""Findings are stored, then published; a disk or another job cannot hold them back. What a replay
needs besides messages is in the journal."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from frd.cluster.registry import Entry
from frd.engine.evidence.answers import Answer, Stack
from frd.engine.evidence.questions import Occasion, Question
from frd.engine.matching.learned_pauses import JobPauses
from frd.errors import ServiceUnavailable
from frd.forms import encodable
from frd.model import AlignedNs, AttemptKey, Change, Finding, FindingEvent, FindingState, WaitSource
from frd.service.findings import evaluator, people
from frd.service.findings.keepers import Keeper
from frd.service.findings.people import LocalKeys, Refused, Scope, Silence, Silences
from frd.service.journal.payloads import Dismissal, decode_payload
from frd.store.findings import FindingStore
from frd.store.journal import read
from frd.store.records import RecordKind
from tests.world.asked import answer_to, stack_text
from tests.world.evaluated import Evaluated
from tests.world.fake_cluster import FakeKeys, FakeRegistry, Faults
from tests.world.http_api import finding
from tests.world.job import Job
from tests.world.virtual_time import in_virtual_time


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Evaluated]:
    bench = Evaluated(tmp_path)
    yield bench
    bench.close()


async def test_a_disk_that_does_not_answer_delays_no_alert(
    bench: Evaluated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is held by a lock: the finding is published, then stored when it is free."""
    monkeypatch.setattr(evaluator, "SAVE_WITHIN_S", 0.05)
    held = sqlite3.connect(bench.path, isolation_level=None)
    held.execute("BEGIN IMMEDIATE")
    bench.hang()
    await bench.evaluator.evaluate()
    assert [event.finding.state for event in bench.published] == [FindingState.OPEN]
    assert bench.evaluator.store_errors == 1
    assert bench.evaluator.kept_back() == [bench.published[0].finding]
    bench.pass_s(2)
    await bench.evaluator.evaluate()  # does not wait for the disk again
    assert bench.evaluator.state.evaluated_at == bench.job.now
    held.execute("ROLLBACK")
    held.close()
    while bench.evaluator.kept_back():  # until the task that stores it has ended
        await asyncio.sleep(0.01)
    bench.pass_s(2)
    await bench.evaluator.evaluate()
    assert bench.evaluator.store_errors == 1
    assert bench.evaluator.kept_back() == []
    assert [f.id for f in bench.store.open_findings()] == [bench.published[0].finding.id]


async def test_that_a_message_was_sent_is_stored(bench: Evaluated) -> None:
    """Also if nothing else changes; and not in place of a newer version, which says so, too."""
    keeper, evaluator = _Announcing(), bench.evaluator
    evaluator.keeper = keeper
    bench.hang()
    await evaluator.evaluate()
    opened, keeper.saved = keeper.saved, []
    keeper.sent = [event.finding for event in opened]
    await evaluator.evaluate()
    assert [event.finding for event in keeper.saved] == keeper.sent
    newer = FindingEvent(Change.UPDATED, replace(keeper.sent[0], assigned_to="al"))
    evaluator._unsaved, keeper.saved = {newer.finding.id: newer}, []
    bench.pass_s(2)
    await evaluator.evaluate()
    assert keeper.saved == [newer]


class _Announcing(Keeper):
    name = "nothing"

    def __init__(self) -> None:
        self.saved: list[FindingEvent] = []
        self.sent: list[Finding] = []

    async def save(self, events: Sequence[FindingEvent], pauses: Sequence[JobPauses]) -> None:
        self.saved += events

    def settled(self) -> Sequence[Finding]:
        return self.sent


def test_a_fault_in_one_job_does_not_affect_others(bench: Evaluated) -> None:
    """The tables of another job are damaged: the hang is published, and the evaluation is stale."""
    other = Job(2, engine=bench.job.engine, now=bench.job.now, name="another")
    other.attempt.stalls = None  # type: ignore[assignment,method-assign]
    bench.hang()
    before = bench.evaluator.state.evaluated_at
    with pytest.raises(TypeError):
        bench.evaluate()
    assert [event.finding.job for event in bench.published] == ["job"]
    assert bench.evaluator.state.evaluated_at == before
    assert bench.store.open_findings() == [bench.published[0].finding]


async def test_what_is_closed_by_hand_is_stored_and_in_the_journal(tmp_path: Path) -> None:
    """The caller gets the closed finding once it is published and stored."""
    bench = Evaluated(tmp_path)
    with contextlib.closing(bench):
        bench.hang()
        await bench.evaluator.evaluate()
        (opened,) = bench.published
        dismissals = (Dismissal(opened.finding.id, "a known pause"), Dismissal("nothing", "x"))
        asking, unknown = (asyncio.create_task(bench.evaluator.dismiss(d)) for d in dismissals)
        await asyncio.sleep(0)
        bench.pass_s(1)
        await bench.evaluator.evaluate()
        closed = await asking
        assert closed is not None
        assert closed.close_reason == "closed by hand: a known pause"
        assert bench.evaluator.state.open_findings() == []
        assert bench.store.get(closed.id) == closed
        assert await unknown is None
    records = list(read(tmp_path / "journal", pytest.fail))
    (record,) = [r for r in records if r.kind is RecordKind.DISMISSED]
    assert decode_payload(record.payload, Dismissal).because == "a known pause"


async def test_what_goes_on_outlasts_a_restart(tmp_path: Path) -> None:
    """A finding that was closed by hand is among those that the next process restores, until its
    trouble is over: then the database says so, and no event is published."""
    bench = Evaluated(tmp_path)
    with contextlib.closing(bench):
        bench.hang()
        await bench.evaluator.evaluate()
        (opened,) = bench.published
        asking = asyncio.create_task(bench.evaluator.dismiss(Dismissal(opened.finding.id, "x")))
        await asyncio.sleep(0)
        bench.pass_s(1)
        await bench.evaluator.evaluate()
        closed = await asking
        assert closed is not None
        assert bench.store.open_findings() == [closed]
        assert bench.evaluator.state.lasting_findings() == [closed]
        published = len(bench.published)
        bench.job.join("dp", [2], 1).complete("dp", range(4), 1)
        for _ in range(10):
            bench.pass_s(1)
            await bench.evaluator.evaluate()
        assert bench.store.open_findings() == bench.evaluator.state.lasting_findings() == []
        assert bench.store.get(closed.id) == replace(closed, goes_on=False)
        assert len(bench.published) == published


async def test_answers_go_to_the_engine_and_into_the_journal(tmp_path: Path) -> None:
    """A finding opens and its ranks are asked, once. The journal holds a stack that shows a wait
    and the dump, but no answer of a rank or an attempt that is not known, or of a rank that gave
    none."""
    bench = Evaluated(tmp_path)
    job, asked = bench.job, list[Question]()
    with contextlib.closing(bench):
        bench.evaluator.ask = asked.extend
        bench.hang()
        await bench.evaluator.evaluate()
        (question,) = [one for one in asked if one.occasion is Occasion.OPENED]
        stack = answer_to(question, 2, job.now, stack=Stack.of(stack_text()))
        dump = answer_to(question, -1, job.now, dump="d1")
        unanswered = answer_to(question, 1, job.now, unanswered="x", is_silent=True)
        for answer in (
            *(stack, dump, unanswered),
            replace(stack, rank=9),
            replace(stack, attempt=AttemptKey("other", 0)),
        ):
            bench.evaluator.answer(answer)
        (wait,) = job.attempt.snapshot(job.now).unrecorded[2]
        assert (wait.source, wait.op) == (WaitSource.STACK, "recv")
        await bench.evaluator.evaluate()
        opened, *updated = bench.published
        assert opened.finding.dump is None
        assert [event.finding.dump for event in updated][-1] == "d1"
        assert [one for one in asked if one.occasion is Occasion.OPENED] == [question]
    records = list(read(tmp_path / "journal", pytest.fail))
    answers = [r for r in records if r.kind is RecordKind.ANSWERED]
    assert [decode_payload(record.payload, Answer) for record in answers] == [
        *(stack, dump, unanswered)
    ]


async def test_an_evaluation_that_cannot_be_published(
    bench: Evaluated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its questions are asked with those of the next one."""
    asked = list[Question]()
    bench.evaluator.ask = asked.extend
    bench.hang()
    with monkeypatch.context() as patch:
        patch.setattr(bench.evaluator, "project", None)
        with pytest.raises(TypeError):
            await bench.evaluator.evaluate()
    assert asked == []
    await bench.evaluator.evaluate()
    assert Occasion.OPENED in {one.occasion for one in asked}


async def test_a_finding_that_is_closed_by_hand_after_an_answer(tmp_path: Path) -> None:
    """A dump arrives a moment before the evaluation that closes its finding: the finding is stored
    closed, with the dump."""
    bench = Evaluated(tmp_path)
    asked = list[Question]()
    with contextlib.closing(bench):
        bench.evaluator.ask = asked.extend
        bench.hang()
        await bench.evaluator.evaluate()
        (question,) = [one for one in asked if one.occasion is Occasion.OPENED]
        closing = asyncio.create_task(bench.evaluator.dismiss(Dismissal(question.finding, "x")))
        await asyncio.sleep(0)
        bench.evaluator.answer(answer_to(question, -1, bench.job.now, dump="d1"))
        await bench.evaluator.evaluate()
        await closing
        assert bench.published[-1].change is Change.CLOSED
        stored = bench.store.get(question.finding)
        assert stored is not None
        assert (stored.state, stored.dump) == (FindingState.CLOSED, "d1")


async def test_an_answer_about_a_finding_is_shown_immediately(bench: Evaluated) -> None:
    """The loop does not wait for its next turn, which on an idle service is a second away."""
    bench.hang()
    asked = list[Question]()
    bench.evaluator.ask = asked.extend
    await bench.evaluator.evaluate()
    (question,) = [one for one in asked if one.occasion is Occasion.OPENED]
    bench.evaluator._wake.clear()
    bench.evaluator.answer(answer_to(question, 9, bench.job.now, unanswered="no such rank"))
    assert not bench.evaluator._wake.is_set()
    bench.evaluator.answer(answer_to(question, -1, bench.job.now, dump="d1"))
    assert bench.evaluator._wake.is_set()


@in_virtual_time
async def test_nothing_is_evaluated_often_while_all_is_well(bench: Evaluated) -> None:
    """Once a second while nothing comes; what comes is evaluated within a quarter of a second, ten
    messages a second at most four times; four times a second when something is wrong, from the
    next evaluation on."""
    is_calm = [True]
    bench.evaluator.is_calm = lambda: is_calm[0]
    loop, times = asyncio.get_running_loop(), list[float]()
    bench.evaluator.settle = lambda now: times.append(loop.time())
    running = asyncio.create_task(bench.evaluator.run())
    await asyncio.sleep(10.1)
    assert len(times) == 10
    for _ in range(20):
        bench.evaluator.news()
        came_s = loop.time()
        await asyncio.sleep(evaluator.TICK_S + 0.01)
        assert came_s <= times[-1] <= came_s + evaluator.TICK_S
        await asyncio.sleep(0.4)
    times.clear()
    for _ in range(100):
        bench.evaluator.news()
        await asyncio.sleep(0.1)
    assert len(times) <= 41
    is_calm[0] = False
    await asyncio.sleep(1.0)
    times.clear()
    await asyncio.sleep(10.0)
    assert 39 <= len(times) <= 41
    bench.evaluator.stop()
    await running


async def test_a_stop_during_an_evaluation(bench: Evaluated) -> None:
    """What has come since that evaluation began is evaluated, too."""
    times: list[float] = []

    def settle(now: int) -> None:
        times.append(now)
        bench.evaluator.stop()

    bench.evaluator.settle = settle
    await bench.evaluator.run()
    assert len(times) == 2


# -- silences --------------------------------------------------------------------------------------
# Silences in the findings database, and in the registry of a cluster, where replicas change them
# at the same time.


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
