"""UTC moves against the engine's time: findings stay as they are, and their times follow."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from frd.engine.engine import Engine
from frd.engine.findings.builder import severity_of
from frd.engine.policy import Policy
from frd.forms import clock_text, finding_from_json, finding_json, later, utc_text
from frd.model import (
    AlignedNs,
    Certainty,
    Change,
    ExitInfo,
    ExitKind,
    Finding,
    Kind,
    RankState,
    Reason,
    Severity,
    SuspectPhase,
    WaitKind,
    WaitsFor,
)
from tests.world.job import START, Job, changes, hanging
from tests.world.scene import named

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


# -- A finding that waits or misses ranks is a warning, and critical once it has lasted ------------


OPENED, UPDATED, CLOSED = Change.OPENED, Change.UPDATED, Change.CLOSED
WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL
POLICY = Policy(stall_after_s=5.0, critical_after_s=20.0)


def severities(job: Job) -> list[tuple[Change, Severity | None]]:
    return [(event.change, event.finding.severity) for event in job.events]


def again(finding: Finding) -> Finding:
    """As the store gives it back."""
    return finding_from_json(finding_json(finding))


def test_a_stall_becomes_critical_once_and_stays_so() -> None:
    """It opens as a warning, is reported again 20 s later as critical, and closes as critical."""
    job = hanging(7, policy=POLICY)
    assert severities(job) == [(OPENED, WARNING)]
    opened_at = job.only().opened_at
    job.run(40)
    assert severities(job) == [(OPENED, WARNING), (UPDATED, CRITICAL)]
    assert job.only().severity is CRITICAL
    assert job.only().collective.waited_s == pytest.approx(47, abs=1)  # type: ignore[union-attr]
    job.engine.adopt(replace(POLICY, critical_after_s=1000.0))
    job.run(2)
    job.join("dp", [2], 1).complete("dp", range(4), 1)
    job.run(3)
    assert severities(job)[2:] == [(CLOSED, CRITICAL)]
    assert job.events[1].finding.opened_at == opened_at
    critical_at = job.events[1].finding.critical_at
    assert critical_at is not None
    assert 20 <= (critical_at - opened_at) / 1e9 <= 22
    assert again(job.events[2].finding).critical_at == critical_at


def test_a_stall_that_passes_was_a_warning() -> None:
    """Rank 2 comes after 20 s, 15 s after the finding opened: nothing critical is ever reported."""
    job = hanging(20, policy=POLICY)
    job.join("dp", [2], 1).complete("dp", range(4), 1)
    job.run(60)
    assert severities(job) == [(OPENED, WARNING), (CLOSED, WARNING)]


def test_critical_from_the_first_moment_if_the_policy_says_so() -> None:
    """With `critical_after_s` 0 there is no first stage."""
    job = hanging(policy=replace(POLICY, critical_after_s=0.0))
    job.run(7)
    assert severities(job) == [(OPENED, CRITICAL)]


def test_a_hang_goes_on_over_a_restart_of_the_service() -> None:
    """Agents resync one by one: the restored finding keeps its id and its suspect, and counts from
    when it opened, as soon as it has been seen again."""
    job = hanging(10, policy=POLICY)
    before = job.only()
    job.restart_service()
    job.run(40)
    assert job.only().severity is WARNING, "no look has shown it since"
    job.reconnect([0, 1])
    job.run(4)
    job.reconnect([2, 3])
    job.run(10)
    assert [finding.id for finding in job.findings()] == [before.id]
    assert (named(job.only()), job.only().severity) == ({2: Reason.CPU_STUCK}, CRITICAL)


def test_what_ended_while_the_service_was_down_does_not_become_critical() -> None:
    """The job went on meanwhile: the restored finding closes as a warning, however old it is."""
    job = hanging(10, policy=POLICY)
    job.restart_service()
    job.run(40)
    job.marks.update({("dp", rank): [5, -1, 5, 0] for rank in range(4)})
    job.reconnect([2, 3])
    job.run(5)
    assert job.only().severity is WARNING, "the ranks that waited have not reported yet"
    job.reconnect([0, 1])
    job.run(5)
    assert severities(job) == [(OPENED, WARNING), (CLOSED, WARNING)]
    assert job.events[0].finding.id == job.events[1].finding.id


PEER_LOST = ExitInfo(ExitKind.EXCEPTION, exception="RuntimeError: Connection closed by peer")


@pytest.mark.parametrize(
    ("world", "gone", "suspects"),
    [
        pytest.param(4, {2: None}, [2], id="killed"),
        pytest.param(8, dict.fromkeys(range(5), PEER_LOST), [], id="each of five blames a peer"),
    ],
)
def test_a_loss_becomes_critical_while_the_others_run_on(
    world: int, gone: dict[int, ExitInfo | None], suspects: list[int]
) -> None:
    """Some ranks end and never come back; 20 s later that is critical, after a restart too."""
    job = Job(world, POLICY).group("dp", range(world)).all_reduce("dp", 0)
    job.run(1)
    for rank, how in gone.items():
        job.status(rank, RankState.EXITED, how=how)
    job.run(10)
    assert (job.only().kind, job.only().severity) == (Kind.RANK_LOST, WARNING)
    assert [suspect.rank for suspect in job.only().suspects] == suspects
    job.restart_service()
    job.run(40)
    assert changes(job.events) == [OPENED], "no look has shown since that they are gone"
    job.reconnect(range(world))
    job.run(2)
    assert severities(job) == [(OPENED, WARNING), (UPDATED, CRITICAL)]


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_its_stages(kind: Kind) -> None:
    """Who waits or is gone has two stages, failed memory is critical, the rest stays a warning."""
    staged = kind in (Kind.STALL, Kind.ORDER, Kind.MISMATCH, Kind.RANK_LOST)
    failed = kind is Kind.OOM
    assert severity_of(kind, 19.9, 20.0) is (CRITICAL if failed else WARNING)
    assert severity_of(kind, 20.0, 20.0) is (CRITICAL if failed or staged else WARNING)


def test_findings_of_an_earlier_version_have_a_severity_when_they_are_restored() -> None:
    """What was stored without one is a warning, and becomes critical like any other."""
    before = hanging(10, policy=POLICY)
    stored = {key: v for key, v in finding_json(before.only()).items() if key != "severity"}
    engine = Engine(POLICY)
    engine.restore([finding_from_json(stored)], before.now)
    assert [f.severity for f in engine.status_view(before.now).findings] == [WARNING]
