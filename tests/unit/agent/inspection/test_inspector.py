"""The thread that inspects ranks."""

from __future__ import annotations

import time

import pytest

from frd.model import WaitKind
from frd_agent.counters import Counters
from frd_agent.inspection.inspector import Inspector
from tests.world.suspects import suspect


def test_an_error_does_not_end_inspections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Something unforeseen at the first look at /proc: the next one shows what the rank is in, and
    the log says it once."""
    inspector, looks = Inspector(Counters()), []
    look = inspector._processes.look

    def fails_at_first(now_s: float) -> None:
        looks.append(now_s)
        if len(looks) < 3:
            raise KeyError("unforeseen")
        look(now_s)

    monkeypatch.setattr(inspector._processes, "look", fails_at_first)
    monkeypatch.setattr("frd_agent.inspection.inspector.EVERY_S", 0.05)
    program = "import time; print('ready', flush=True); time.sleep(60)"
    try:
        with suspect(program) as rank:
            until_s, found = time.monotonic() + 20, None
            while time.monotonic() < until_s and found is not WaitKind.SLEEP:
                found = inspector.ask(rank.pid, {rank.pid: 0}).waits_for.kind
                time.sleep(0.05)
            assert found is WaitKind.SLEEP
    finally:
        inspector.stop()
    assert [record.getMessage() for record in caplog.records] == ["a rank could not be inspected"]
