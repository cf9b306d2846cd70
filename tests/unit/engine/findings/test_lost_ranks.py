"""Findings of scripted jobs: lost ranks."""

from __future__ import annotations

from frd.engine.policy import Policy
from frd.model import AlignedNs, Change, ExitInfo, ExitKind, Kind, RankState, Reason
from tests.world.job import Job, changes, hanging
from tests.world.scene import named

OPENED, CLOSED = Change.OPENED, Change.CLOSED


def test_a_killed_rank_is_lost_while_others_live() -> None:
    """2 is killed, the others wait: one finding from beginning to end, and it is `rank_lost`."""
    job = hanging()
    job.status(2, RankState.EXITED, "process 102 is gone")
    job.run(3)
    finding = job.only()
    assert finding.kind is Kind.RANK_LOST
    assert named(finding) == {2: Reason.EXITED}
    assert finding.victims == (0, 1, 3)
    job.run(10)
    assert OPENED not in changes(job.events[1:])
    assert job.only().id == finding.id
    assert job.only().groups_held_up == ("dp",)


def test_ranks_that_vanish_together_just_ended() -> None:
    """The scheduler ends the job: all processes are gone within 50 ms and left no exit record."""
    job = hanging()
    for rank in range(4):
        job.status(rank, RankState.EXITED, "process is gone")
    job.run(10)
    assert job.events == []


def test_exceptions_of_peers_do_not_hide_the_killed_rank() -> None:
    """2 is killed; the others raise because of it, and its own exit is reported a second later."""
    job = hanging()
    for rank in (0, 1, 3):
        job.status(rank, RankState.EXITED, "RuntimeError: Connection closed by peer [::1]:4711")
    assert job.run(1.5) == []
    job.status(2, RankState.EXITED, "killed: no exit record")
    job.run(5)
    finding = job.only()
    assert finding.kind is Kind.RANK_LOST
    assert set(named(finding)) == {2}
    assert finding.victims == (0, 1, 3)


def test_an_own_exception_outranks_terminated_ranks() -> None:
    """1 raises; the launcher kills the rest, whose exits are seen a little earlier."""
    job = hanging()
    job.status(0, RankState.EXITED).status(2, RankState.EXITED).status(3, RankState.EXITED)
    job.now = AlignedNs(job.now + 200_000_000)
    job.status(1, RankState.EXITED, "ValueError: loss is NaN")
    job.run(5)
    assert set(named(job.only())) == {1}


def test_the_same_exception_of_all_ranks_is_no_lost_rank() -> None:
    """A wrong option makes every rank raise within 50 ms: none of them began it."""
    job = hanging()
    for rank in range(4):
        job.status(rank, RankState.EXITED, "ValueError: unknown option")
    job.run(10)
    assert job.events == []


def test_an_exception_while_others_run_on() -> None:
    """1 raises and is gone; the others are alive a second later."""
    job = hanging()
    job.status(1, RankState.EXITED, "ValueError: loss is NaN")
    job.run(3)
    assert set(named(job.only())) == {1}
    assert "ValueError: loss is NaN" in job.only().suspects[0].evidence


def test_ranks_that_a_stall_tore_down_are_not_lost_again() -> None:
    """A stall is open; its victims time out and exit: the stall stays the only finding."""
    job = hanging(8)
    stall = job.only()
    job.status(0, RankState.EXITED, "RuntimeError: timed out")
    job.run(5)
    assert job.only().id == stall.id
    for rank in (1, 2, 3):
        job.status(rank, RankState.EXITED, "RuntimeError: timed out")
    events = job.run(5)
    assert changes(events)[-1] is CLOSED
    assert events[-1].finding.close_reason == "the attempt ended"
    assert job.open() == []


def test_a_lost_rank_closes_half_a_minute_after_the_end_of_the_attempt() -> None:
    """After the crash all ranks are gone: the finding stays open for two more scrapes."""
    job = hanging()
    job.status(2, RankState.EXITED, "ValueError: x")
    job.run(3)
    lost = job.only()
    for rank in (0, 1, 3):
        job.status(rank, RankState.EXITED, how=ExitInfo(ExitKind.SIGNAL, signal=15))
    job.run(25)
    assert job.only().id == lost.id
    assert job.only().ended_by.startswith("ended by SIGTERM at ")
    (event,) = job.run(10)
    assert (event.change, event.finding.close_reason) == (CLOSED, "the attempt ended")
    assert event.finding.suspects == lost.suspects


def test_a_lost_rank_stays_open_until_a_new_attempt() -> None:
    """A rank is lost and the others wait for it; the finding is open until the job comes back."""
    job = hanging()
    job.status(2, RankState.EXITED)
    job.run(60)
    lost = job.only()
    again = Job(4, attempt=1, engine=job.engine, now=job.now)
    (event,) = again.run(0.5)
    assert (event.change, event.finding.id) == (CLOSED, lost.id)
    assert event.finding.close_reason == "attempt 1 of the job started"


def test_a_lost_rank_of_a_job_that_never_comes_back_is_closed_in_the_end() -> None:
    """No one restarts the job; after `lost_close_after_s` the finding closes."""
    job = Job(2, Policy(stall_after_s=5, lost_close_after_s=30)).group("dp", [0, 1])
    job.all_reduce("dp", 0).run(1)
    job.status(1, RankState.EXITED)
    job.run(25)
    assert len(job.open()) == 1
    job.run(15)
    assert job.open() == []
