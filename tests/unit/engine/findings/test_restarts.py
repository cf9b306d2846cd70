"""Findings of scripted jobs: new attempts, restarts of the service, limits."""

from __future__ import annotations

from frd.engine.policy import Policy
from frd.model import AlignedNs, Change, RankState
from tests.world.job import Job, changes, hanging

OPENED, CLOSED = Change.OPENED, Change.CLOSED


def test_a_new_attempt_closes_the_stall_of_the_old_one_and_is_clean() -> None:
    """The job is restarted during a stall; late reports of the old attempt change nothing."""
    job = hanging(8)
    again = Job(4, attempt=1, engine=job.engine, now=job.now)
    again.group("dp", range(4)).all_reduce("dp", 0)
    assert changes(again.run(1)) == [CLOSED]
    job.now = again.now
    job.run(20)
    assert job.open() == []


def test_other_jobs_are_not_concerned() -> None:
    """Two jobs stall; one is restarted; the other's finding stays."""
    one = hanging()
    other = Job(2, engine=one.engine, now=one.now, name="other").group("dp", [0, 1])
    other.join("dp", [0], 0)
    other.run(1)
    one.run(1)
    for _ in range(16):
        one.run(0.5)
        other.now = one.now
        other.report()
    assert {finding.job for finding in one.open()} == {"job", "other"}
    Job(4, attempt=1, engine=one.engine, now=one.now).run(1)
    assert {finding.job for finding in one.open()} == {"other"}


def test_a_restored_finding_is_not_closed_before_it_was_opened() -> None:
    """The clock of the service that goes on with a finding is a minute behind: the finding, closed
    by hand, ends when it was opened."""
    job = hanging(8)
    before = job.only()
    job.restart_service()
    now = AlignedNs(before.opened_at - 60_000_000_000)
    (event,) = job.engine.dismiss(before.id, now, "closed by hand: known")
    assert event.change is CLOSED
    assert event.finding.closed_at == before.opened_at


def test_a_restarted_service_does_not_report_an_old_loss_again() -> None:
    """A rank was lost and the finding closed; later the service restarts and agents resync."""
    job = Job(4, Policy(stall_after_s=5, lost_close_after_s=30)).group("dp", range(4))
    job.all_reduce("dp", 0).run(1)
    job.status(2, RankState.EXITED)
    job.run(60)
    assert changes(job.events) == [OPENED, CLOSED]
    job.restart_service()
    job.reconnect(range(4))
    assert job.run(10) == []


def test_remembered_findings_are_bounded() -> None:
    """Ten stalls in a row with room for three: the oldest are forgotten, and counted."""
    job = Job(2, Policy(stall_after_s=1, max_findings=3))
    for name in map(str, range(10)):
        job.group(name, [0, 1]).join(name, [0], 0).run(3)
        job.join(name, [1], 0).complete(name, [0, 1], 0).run(3)
    assert len(job.findings()) == 3
    assert job.engine.status_view(job.now).evicted["findings"] >= 7
