"""A scripted job whose findings go through a real evaluator into a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from frd.engine.policy import Policy
from frd.model import AlignedNs, FindingEvent
from frd.service.findings.evaluator import Evaluator
from frd.service.findings.keepers import LocalKeeper
from frd.service.ingest.shared import Shared
from frd.service.journal.writer import JournalWriter
from frd.service.state import ServiceState
from frd.store.findings import FindingStore
from frd.store.journal import JournalLimits
from tests.world.job import Job


class Evaluated:
    """Four ranks of one group; `see` and `prepare` are those of a notifier."""

    def __init__(
        self,
        folder: Path,
        policy: Policy | None = None,
        see: Callable[[Sequence[FindingEvent]], None] = lambda _: None,
        prepare: Callable[[Sequence[FindingEvent]], None] = lambda _: None,
    ) -> None:
        self.job = Job(4, policy).group("dp", range(4)).all_reduce("dp", 0)
        self.job.run(1)
        self.path = folder / "findings.sqlite3"
        self.store = FindingStore(self.path)
        self.recorder = JournalWriter(
            folder / "journal", settings=b"{}", now=self.job.now, limits=JournalLimits()
        )
        self.published: list[FindingEvent] = []
        self._see = see
        self.evaluator = Evaluator(
            Shared(self.job.engine),
            LocalKeeper(self.store),
            self.recorder.whole(),
            now=lambda: self.job.now,
            project=ServiceState,
            publish=self._publish,
        )
        self.evaluator.prepare = prepare

    def _publish(self, events: Sequence[FindingEvent]) -> None:
        self.published += events
        self._see(events)

    def pass_s(self, seconds: float) -> None:
        self.job.now = AlignedNs(self.job.now + round(seconds * 1e9))
        self.job.report()

    def hang(self) -> None:
        """Rank 2 does not join; the next evaluation opens a finding."""
        self.job.join("dp", [0, 1, 3], 1)
        self.pass_s(6)

    def evaluate(self) -> None:
        asyncio.run(self.evaluator.evaluate())

    def close(self) -> None:
        self.recorder.close()
        self.store.close()
