"""UTC moves against the engine's time: findings stay as they are, and their times follow."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from frd.engine.engine import Engine
from frd.forms import clock_text, finding_from_json, finding_json, later, utc_text
from frd.model import (
    AlignedNs,
    Certainty,
    Change,
    ExitInfo,
    ExitKind,
    Finding,
    RankState,
    SuspectPhase,
    WaitKind,
    WaitsFor,
)
from tests.world.job import START, Job, changes, hanging

S = 1_000_000_000
HOUR = 3600 * S
STEPS = [HOUR, -HOUR, 24 * HOUR]


def follow(job: Job, ahead_ns: int) -> None:
    job.engine.adopt(job.engine.policy, ahead_ns)


def waited_s(finding: Finding) -> float:
    assert finding.collective is not None
    return finding.collective.waited_s


@pytest.mark.parametrize("step", STEPS)
def test_a_step_changes_the_times_of_a_finding_and_nothing_else(step: int) -> None:
    """A job hangs, and the wall clock is set: the finding is reported again with its new times. It
    neither closes nor becomes critical, and has waited no longer."""
    job = hanging(10)
    opened = job.only()
    follow(job, step)
    (event,) = job.run(0.5)
    assert event.change is Change.UPDATED
    for finding in (event.finding, job.only()):
        assert (finding.id, finding.severity) == (opened.id, opened.severity)
        assert finding.opened_at == opened.opened_at + step
        assert 0 <= waited_s(finding) - waited_s(opened) < 1
    job.join("dp", [2], 1).complete("dp", range(4), 1)
    (closing,) = job.run(1)
    assert closing.change is Change.CLOSED
    assert closing.finding.closed_at == job.now + step


@pytest.mark.parametrize("step", STEPS)
def test_a_job_that_is_well_when_the_clock_is_set(step: int) -> None:
    """It stays well, and what hangs later has waited as long as it has."""
    job = hanging(1)
    job.complete("dp", range(4), 1).run(5)
    follow(job, step)
    assert job.run(20) == []
    job.join("dp", [0, 1, 3], 2)
    opened = next(event.finding for event in job.run(10) if event.change is Change.OPENED)
    assert 5 <= waited_s(opened) < 6
    assert START + step < opened.opened_at < job.now + step


def test_utc_drifts() -> None:
    """By a second a second: times follow, and the finding is reported again only when they have
    moved by more than a report may be late."""
    job = hanging(10)
    opened, late_s = job.only(), round(job.engine.policy.telemetry_late_s)
    for seconds in range(1, 2 * late_s):
        follow(job, seconds * S)
        reported = changes(job.run(1.0))
        assert reported == ([Change.UPDATED] if seconds == late_s + 1 else [])
        assert job.only().opened_at == opened.opened_at + seconds * S


def test_a_restored_finding_has_the_same_utc() -> None:
    """The next process has another time, and so has a job that goes on there."""
    job = hanging(10)
    follow(job, HOUR)
    shown = job.only()
    after = Engine(job.engine.policy, -HOUR)
    after.restore([finding_from_json(finding_json(shown))], AlignedNs(job.now + 2 * HOUR))
    (restored,) = after.status_view(AlignedNs(job.now + 2 * HOUR)).findings
    assert restored.opened_at // 1000 == shown.opened_at // 1000
    assert abs(waited_s(restored) - waited_s(shown)) < 1


@pytest.mark.parametrize("step", [0, HOUR])
def test_sentences_have_utc(step: int) -> None:
    """Rank 2 is killed in a hang, and the evidence says when."""
    job = hanging(0)
    follow(job, step)
    job.status(2, RankState.EXITED, how=ExitInfo(ExitKind.SIGNAL, 9))
    exited_at = job.now
    job.run(15)
    (suspect, *_) = job.only().suspects
    assert f"at {clock_text(exited_at + step)}" in suspect.evidence


def times(finding: Finding) -> list[str]:
    """All in its JSON that are known."""
    found = re.findall(r"\d{4}-\d\d-\d\dT[\d:.]+Z", json.dumps(finding_json(finding)))
    return [text for text in found if not text.startswith("1970")]


def test_every_time_of_a_finding_moves() -> None:
    """Of a finding that has all of them, and 0, which says unknown, stays 0."""
    at = AlignedNs(START)
    waits = WaitsFor(WaitKind.FILE_READ, Certainty.SEEN, since_at=at, seen_at=at)
    (suspect,) = hanging(10).only().suspects
    suspect = replace(
        suspect, onset_at=at, waits_for=waits, phase=SuspectPhase(("epoch",), AlignedNs(0))
    )
    finding = replace(
        hanging(10).only(), opened_at=at, closed_at=at, critical_at=at, suspects=(suspect, suspect)
    )
    moved = later(finding, HOUR)
    assert times(finding) == [utc_text(at)] * 9
    assert times(moved) == [utc_text(at + HOUR)] * 9
    assert moved.suspects[0].phase == suspect.phase
    assert later(moved, -HOUR) == finding
