"""A finding closed by hand: gone for people and alerts, not forgotten by the engine."""

from __future__ import annotations

import pytest

from frd.engine.findings.attachments import Evidence
from frd.forms import finding_from_json, finding_json
from frd.model import Change, FindingState, Kind, RankState
from tests.world.job import Job, hanging


@pytest.mark.parametrize("has_new_owner", [False, True])
def test_the_same_incident_does_not_come_back(has_new_owner: bool) -> None:
    """Dismissed while it lasts, and perhaps another process goes on with the job: no event for a
    minute, nor at its end; a new hang opens one."""
    job = hanging(7)
    found = job.only()
    (event,) = job.engine.dismiss(found.id, job.now, "closed by hand: a known pause")
    assert event.change is Change.CLOSED
    assert (event.finding.state, event.finding.closed_at) == (FindingState.CLOSED, job.now)
    assert event.finding.close_reason == "closed by hand: a known pause"
    if has_new_owner:
        job.restart_service()
        job.engine.restore([event.finding], job.now)
        job.reconnect(range(4))
    assert job.open() == []
    assert job.run(60) == []
    assert job.engine.dismissed == {found.id}
    job.join("dp", [2], 1).complete("dp", range(4), 1)
    assert job.run(10) == []
    assert job.engine.dismissed == frozenset()
    job.join("dp", [0, 1, 3], 2)
    job.run(7)
    assert job.only().id != found.id


def test_news_from_before_do_not_open_it_again() -> None:
    """UTC was set by an hour a moment before, of which all open findings are news."""
    job = hanging(7)
    job.engine.adopt(job.engine.policy, 3_600_000_000_000)
    job.engine.dismiss(job.only().id, job.now, "x")
    assert job.run(1) == []
    assert job.open() == []


def test_other_findings_of_the_job_go_on() -> None:
    """Two separate hangs: closing one by hand leaves the other open and changing."""
    job = Job(4).group("a", [0, 1]).group("b", [2, 3])
    job.all_reduce("a", 0).all_reduce("b", 0).run(1)
    job.join("a", [0], 1).join("b", [2], 1)
    job.run(8)
    one, other = job.open()
    job.engine.dismiss(one.id, job.now, "x")
    assert [f.id for f in job.open()] == [other.id]
    job.join("b", [3], 1).complete("b", [2, 3], 1)
    assert [(e.finding.id, e.change) for e in job.run(10)] == [(other.id, Change.CLOSED)]


def test_a_lost_rank_can_be_dismissed() -> None:
    """A killed rank, closed by hand: its peers' wait for it is the same incident."""
    job = Job(4).group("dp", range(4)).all_reduce("dp", 0)
    job.run(2)
    job.status(2, RankState.EXITED, "signal 9").join("dp", [0, 1, 3], 1)
    job.run(20)
    (found,) = [f for f in job.open() if f.kind is Kind.RANK_LOST]
    job.engine.dismiss(found.id, job.now, "x")
    assert [e.change for e in job.run(30) if e.change is Change.OPENED] == []


def test_a_finding_that_was_closed_by_hand_goes_on() -> None:
    """While its trouble lasts, the record says so, also with another owner; with the trouble that
    ends, and the record stays closed under its id."""
    job = hanging(7)
    found = job.only()
    (event,) = job.engine.dismiss(found.id, job.now, "closed by hand: a known pause")
    assert event.finding.goes_on
    assert list(job.engine.status_view(job.now).going_on) == [event.finding]
    assert finding_from_json(finding_json(event.finding)) == event.finding
    job.restart_service()
    job.engine.restore([event.finding], job.now)
    job.reconnect(range(4))
    job.run(10)
    (lasting,) = job.engine.status_view(job.now).going_on
    assert (lasting.id, lasting.state, lasting.goes_on) == (found.id, FindingState.CLOSED, True)
    job.join("dp", [2], 1).complete("dp", range(4), 1)
    job.run(10)
    assert list(job.engine.status_view(job.now).going_on) == []


def test_evidence_of_what_goes_on_is_shown() -> None:
    """A dump that comes after the closing is in the record that goes on, and in the one that is
    over."""
    job = hanging(7)
    found = job.only()
    job.engine.dismiss(found.id, job.now, "closed by hand: x")
    job.engine.attach(found.id, Evidence(dump="d-1"))
    (lasting,) = job.engine.status_view(job.now).going_on
    assert (lasting.dump, lasting.goes_on) == ("d-1", True)
    job.join("dp", [2], 1).complete("dp", range(4), 1)
    job.run(10)
    (over,) = job.findings()
    assert (over.dump, over.goes_on, over.close_reason) == ("d-1", False, "closed by hand: x")


def test_of_a_job_of_which_nothing_is_heard_it_is_not_known() -> None:
    """All agents leave for good: the finding rests like an open one, and does not go on."""
    job = hanging(7)
    job.engine.dismiss(job.only().id, job.now, "closed by hand: x")
    tracker = job.engine._evaluations[job.key].tracker
    tracker.rest(job.now, "nothing is heard of the job")
    assert list(job.engine.status_view(job.now).going_on) == []
    assert job.engine.dismissed
