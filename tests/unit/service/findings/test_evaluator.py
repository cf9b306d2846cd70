"""Findings are stored, then published; a disk or another job cannot hold them back. What a replay
needs besides messages is in the journal."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from frd.service.findings.unrecorded import Unrecorded

from frd.model import AttemptKey, FindingState, NodeNs, UnrecordedWait, WaitSource
from frd.service.findings import evaluator
from frd.service.journal.payloads import Dismissal, Waited, decode_payload
from frd.store.journal import read
from frd.store.records import RecordKind
from tests.world.evaluated import Evaluated
from tests.world.job import Job


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


def recv(rank: int, since: int, as_of: int) -> UnrecordedWait:
    where = "train.py:8 in exchange"
    return UnrecordedWait(rank, WaitSource.STACK, "recv", NodeNs(since), NodeNs(as_of), (), where)


def test_a_wait_goes_to_the_engine_and_into_the_journal(tmp_path: Path) -> None:
    """One of a known rank; those of an unknown rank or attempt are left out."""
    bench = Evaluated(tmp_path)
    job = bench.job
    with contextlib.closing(bench):
        unrecorded = Unrecorded(job.engine, bench.recorder, lambda: job.now)
        seen = recv(2, job.now - 1_000_000_000, job.now)
        unrecorded.observe_aligned(job.key, seen)
        unrecorded.observe_aligned(job.key, recv(9, job.now, job.now))
        unrecorded.observe(AttemptKey("other", 0), seen)
        assert job.attempt.snapshot(job.now).unrecorded == {2: (seen,)}
    records = list(read(tmp_path / "journal", pytest.fail))
    (record,) = [r for r in records if r.kind is RecordKind.WAITED]
    waited = decode_payload(record.payload, Waited)
    assert (waited.key, waited.wait.op, waited.wait.rank) == (job.key, "recv", 2)
