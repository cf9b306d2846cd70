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

from frd.engine.evidence.answers import Answer, Stack
from frd.engine.evidence.questions import Occasion, Question
from frd.engine.matching.learned_pauses import JobPauses
from frd.model import AttemptKey, Change, Finding, FindingEvent, FindingState, WaitSource
from frd.service.findings import evaluator
from frd.service.findings.keepers import Keeper
from frd.service.journal.payloads import Dismissal, decode_payload
from frd.store.journal import read
from frd.store.records import RecordKind
from tests.world.asked import answer_to, stack_text
from tests.world.evaluated import Evaluated
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
