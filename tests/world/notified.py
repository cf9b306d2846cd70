"""A scripted job whose findings are sent to webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from frd.config import NotifyTarget
from frd.engine.policy import Policy
from frd.model import Change, Finding, FindingEvent
from frd.service.findings.notifier import Notifier
from tests.world.evaluated import Evaluated

POLICY = Policy(stall_after_s=5.0, critical_after_s=20.0)


class Scene:
    """A scripted job whose findings go through a real evaluator to real webhooks."""

    def __init__(self, folder: Path, *targets: NotifyTarget, has_pages: bool = True) -> None:
        self.world = Evaluated(folder, POLICY, self._see, self._prepare)
        self.job, self.published = self.world.job, self.world.published
        self.store = self.world.store
        self._has_pages = has_pages
        self.notifier = self._notifier(targets)

    def _prepare(self, events: Sequence[FindingEvent]) -> None:
        self.notifier.prepare(events)

    def _see(self, events: Sequence[FindingEvent]) -> None:
        self.notifier.see(events)

    def _notifier(self, targets: Sequence[NotifyTarget]) -> Notifier:
        notifier = Notifier(
            targets,
            lambda: "http://127.0.0.1:9374",
            has_pages=self._has_pages,
            first_pause_s=0.05,
            now=lambda: self.job.now,
        )
        self.store.owed, self.store.notified = notifier.owed, notifier.notified
        return notifier

    def hold(self) -> None:
        """Messages wait for ranks that were asked, as in the service."""
        self.notifier.is_asking = lambda one: one.id in self.world.evaluator.asking

    def restart(self, *targets: NotifyTarget) -> None:
        """Another process goes on with what is stored."""
        self.store.keep_owed()
        owed, notified = self.store.outbox(), self.store.were_notified()
        self.notifier = self._notifier(targets)
        self.notifier.resume(owed)
        self.notifier.recall(notified)
        self.notifier.take_up(self.store.open_findings())

    def pass_s(self, seconds: float) -> None:
        self.world.pass_s(seconds)
        self.world.evaluate()

    def hang(self) -> None:
        """Rank 2 does not come; a finding opens."""
        self.world.hang()
        self.world.evaluate()

    def whole_story(self) -> None:
        """A finding opens, becomes critical, and closes."""
        self.hang()
        for _ in range(25):
            self.pass_s(1)
        self.job.join("dp", [2], 1).complete("dp", range(4), 1)
        for _ in range(5):
            self.pass_s(1)
        assert [e.change for e in self.published][-1] is Change.CLOSED

    def send(self, events: Sequence[FindingEvent]) -> None:
        self._prepare(events)
        self._see(events)

    def say(self, **changes: Any) -> Finding:
        """A person changes something of the finding that was published last."""
        finding = replace(self.published[-1].finding, **changes)
        event = FindingEvent(Change.UPDATED, finding)
        self.send([event])
        self.published.append(event)
        self.store.save([event])
        return finding

    def counted(self, result: str, target: str = "") -> int:
        return self.notifier.counted()[target, result]

    def close(self) -> None:
        self.notifier.close()
        self.world.close()
