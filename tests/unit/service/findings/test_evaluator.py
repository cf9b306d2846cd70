"""Findings are stored, then published; a disk or another job cannot hold them back."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from frd.model import FindingState
from frd.service.findings import evaluator
from tests.world.evaluated import Evaluated
from tests.world.job import Job


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Evaluated]:
    bench = Evaluated(tmp_path)
    yield bench
    bench.close()


def test_a_finding_is_stored_before_it_is_published(bench: Evaluated) -> None:
    """A rank does not come: when the finding is seen, the database has it."""
    bench.hang()
    bench.evaluate()
    (event,) = bench.published
    assert bench.store.get(event.finding.id) == event.finding
    assert bench.evaluator.store_errors == 0


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
