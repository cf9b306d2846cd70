"""Findings that open with several suspects, of which some turn out to wait for another."""

from __future__ import annotations

from frd.model import (
    Change,
    Confidence,
    FindingEvent,
    FindingState,
    NodeNs,
    Reason,
    UnrecordedWait,
    WaitSource,
)
from tests.world.job import Job
from tests.world.scene import blamed, named

HIGH = (Reason.CPU_STUCK, Confidence.HIGH)


def held() -> Job:
    """Ranks 0 to 3 do not come to the all_reduce in which 4 and 5 wait."""
    job = Job(6).group("dp", range(6)).all_reduce("dp", 0)
    job.run(1)
    job.join("dp", [4, 5], 1)
    job.run(7)
    assert blamed(job.only()) == dict.fromkeys(range(4), HIGH)
    return job


def lock(job: Job, ranks: list[int], holder: int) -> list[FindingEvent]:
    since = job.now
    events = job.run(3)
    for rank in ranks:
        waits(job, rank, "lock", since, holder)
    return events + job.run(2)


def waits(job: Job, rank: int, op: str, since: int, *peers: int) -> None:
    source = WaitSource.STACK if op == "recv" else WaitSource.INSPECTION
    wait = UnrecordedWait(rank, source, op, NodeNs(since), NodeNs(job.now), peers)
    job.attempt.observe_unrecorded(wait)


def test_ranks_that_wait_for_the_lock_of_another_suspect() -> None:
    """Ranks 0 to 2 wait for a lock that rank 3 holds: the finding stays, and names only 3."""
    job = held()
    opened = job.only()
    [event] = lock(job, [0, 1, 2], 3)
    assert (event.change, event.finding.id) == (Change.UPDATED, opened.id)
    assert blamed(event.finding) == {3: HIGH}
    assert event.finding.victims == (0, 1, 2, 4, 5)


def test_two_ranks_that_hold_the_lock_that_the_other_waits_for() -> None:
    """The agent of rank 0 reports a second before that of rank 1: both stay suspects, because
    neither of them is the cause without the other."""
    job = Job(4).group("dp", range(4)).all_reduce("dp", 0)
    job.run(1)
    job.join("dp", [2, 3], 1)
    job.run(7)
    since = job.now
    job.run(3)
    for rank, holder in ((0, 1), (1, 0)):
        waits(job, rank, "lock", since, holder)
        job.run(1)
    job.run(5)
    assert blamed(job.only()) == dict.fromkeys((0, 1), HIGH)


def test_the_only_suspect_turns_out_to_receive() -> None:
    """Two groups wait, for ranks 0 and 1, which are both named. The stack of rank 1 then shows a
    receive: its finding becomes a part of that about rank 0, the only rank that waits for none."""
    job = Job(4).group("dp0", [0, 2]).group("dp1", [1, 3])
    job.all_reduce("dp0", 0).all_reduce("dp1", 0)
    job.run(1)
    job.join("dp1", [3], 1)
    job.run(0.25)
    job.join("dp0", [2], 1)
    job.run(7)
    assert [blamed(one) for one in job.open()] == [{0: HIGH}, {1: HIGH}]
    since = job.now
    job.run(3)
    waits(job, 1, "recv", since)
    job.run(3)
    assert blamed(job.only()) == {0: HIGH}
    assert job.only().victims == (1, 2, 3)
    closed = [one for one in job.findings() if one.state is FindingState.CLOSED]
    assert [set(named(one)) for one in closed] == [{1}]


def test_a_finding_whose_only_suspect_waits_for_another_rank() -> None:
    """Only the group of rank 1 waits, and is in its finding; rank 1 receives from rank 0: the
    finding then names rank 0."""
    job = Job(3).group("dp1", [1, 2]).group("world", range(3))
    job.all_reduce("world", 0).all_reduce("dp1", 0)
    job.run(1)
    job.join("dp1", [2], 1)
    job.run(7)
    opened = job.only()
    assert blamed(opened) == {1: HIGH}
    since = job.now
    job.run(3)
    waits(job, 1, "recv", since)
    job.run(4)
    assert (job.only().id, set(named(job.only()))) == (opened.id, {0})


def test_a_rank_that_was_cleared_is_named_no_more() -> None:
    """The ranks that waited for the lock wait no longer, and still do not come."""
    job = held()
    lock(job, [0, 1, 2], 3)
    for rank in (0, 1, 2):
        waits(job, rank, "", job.now)
    [event] = job.run(5)
    assert "lock" not in event.finding.suspects[0].evidence
    assert set(named(job.only())) == {3}


def test_a_wait_for_a_rank_that_is_not_named() -> None:
    """Ranks 0 to 3 wait for a lock of rank 4, which is in the collective itself. That is another
    cause, and the finding keeps the one that it named with high confidence."""
    job = held()
    assert lock(job, [0, 1, 2, 3], 4) == []
    assert blamed(job.only()) == dict.fromkeys(range(4), HIGH)
