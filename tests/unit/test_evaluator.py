"""Findings on their way out: stored first, but never silenced by a disk or by another job."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from frd.model import AlignedNs, FindingEvent, FindingState
from frd.service.findings import evaluator
from frd.service.findings.evaluator import Evaluator
from frd.service.ingest.watermark_buffer import WatermarkBuffer
from frd.service.journal.writer import JournalWriter
from frd.service.state import ServiceState
from frd.store.findings import FindingStore
from frd.store.journal import JournalLimits
from tests.world.job import Job


class Bench:
    """A scripted job whose findings go through a real evaluator into a real store."""

    def __init__(self, folder: Path) -> None:
        self.job = Job(4).group("dp", range(4)).all_reduce("dp", 0)
        self.job.run(1)
        self.path = folder / "findings.sqlite3"
        self.store = FindingStore(self.path)
        self.recorder = JournalWriter(
            folder / "journal", settings=b"{}", now=self.job.now, limits=JournalLimits()
        )
        self.published: list[FindingEvent] = []
        self.evaluator = Evaluator(
            self.job.engine,
            WatermarkBuffer(self.job.engine),
            self.store,
            self.recorder,
            now=lambda: self.job.now,
            project=ServiceState,
            publish=self.published.extend,
        )

    def hang(self) -> None:
        """Rank 2 does not come; the next evaluation opens a finding."""
        self.job.join("dp", [0, 1, 3], 1)
        self.pass_s(6)

    def pass_s(self, seconds: float) -> None:
        self.job.now = AlignedNs(self.job.now + round(seconds * 1e9))
        self.job.report()

    def evaluate(self) -> Coroutine[Any, Any, None]:
        return self.evaluator.evaluate()

    def close(self) -> None:
        self.recorder.close()
        self.store.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def test_a_finding_is_stored_before_it_is_published(bench: Bench) -> None:
    """A rank does not come: when the finding is seen, the database has it."""
    bench.hang()
    asyncio.run(bench.evaluate())
    (event,) = bench.published
    assert bench.store.get(event.finding.id) == event.finding
    assert bench.evaluator.store_errors == 0


def test_a_disk_that_does_not_answer_delays_no_alert(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is held by a lock: the finding is published, then stored when it is free."""
    monkeypatch.setattr(evaluator, "SAVE_WITHIN_S", 0.05)

    async def scene() -> None:
        held = sqlite3.connect(bench.path, isolation_level=None)
        held.execute("BEGIN IMMEDIATE")
        bench.hang()
        await bench.evaluate()
        assert [event.finding.state for event in bench.published] == [FindingState.OPEN]
        assert bench.evaluator.store_errors == 1
        assert bench.evaluator.kept_back() == [bench.published[0].finding]
        bench.pass_s(2)
        await bench.evaluate()  # does not wait for the disk again
        assert bench.evaluator.state.evaluated_at == bench.job.now
        held.execute("ROLLBACK")
        held.close()
        while not bench.store.open_findings():
            await asyncio.sleep(0.01)
        bench.pass_s(2)
        await bench.evaluate()

    asyncio.run(scene())
    assert bench.evaluator.store_errors == 1
    assert bench.evaluator.kept_back() == []
    assert [f.id for f in bench.store.open_findings()] == [bench.published[0].finding.id]


def test_a_fault_in_one_job_silences_no_other(bench: Bench) -> None:
    """The tables of another job are damaged: the hang is told, and the evaluation is stale."""
    other = Job(2, engine=bench.job.engine, now=bench.job.now, name="another")
    other.attempt.stalls = None  # type: ignore[assignment,method-assign]
    bench.hang()
    before = bench.evaluator.state.evaluated_at
    with pytest.raises(TypeError):
        asyncio.run(bench.evaluate())
    assert [event.finding.job for event in bench.published] == ["job"]
    assert bench.evaluator.state.evaluated_at == before
    assert bench.store.open_findings() == [bench.published[0].finding]
