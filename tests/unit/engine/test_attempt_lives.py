"""The life of attempts: names that are used again, agents that vanish, room for the next job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frd.engine.findings.builder import suspect
from frd.engine.policy import Policy
from frd.engine.views import AttemptView
from frd.errors import WireError
from frd.model import Address, AlignedNs, Confidence, RankInfo, RankState, Reason, Severity
from tests.world.job import Job
from tests.world.scene import named

POLICY = Policy(stall_after_s=5.0, attempt_retention_s=60.0, deserted_after_s=30.0, max_attempts=2)


def finish(job: Job) -> Job:
    for rank in range(job.world):
        job.status(rank, RankState.FINISHED)
    job.run(1)
    return job


def again(job: Job, *, attempt: int = 0, world: int = 4) -> Job:
    """The job runs again: other processes, the same name."""
    return Job(world, attempt=attempt, engine=job.engine, now=job.now, first_pid=500)


def hang(job: Job) -> Job:
    """Rank 2 never comes to seq 1."""
    job.group("dp", range(job.world)).all_reduce("dp", 0).run(1)
    job.join("dp", [rank for rank in range(job.world) if rank != 2], 1).run(8)
    return job


def views(job: Job) -> dict[int, AttemptView]:
    return {view.key.attempt: view for view in job.engine.status_view(job.now).attempts}


@pytest.mark.parametrize("world", [2, 4, 8])
def test_a_job_that_runs_again_under_its_name_is_watched(world: int) -> None:
    """All ranks finish; a minute later the same attempt starts with fewer, as many, more ranks."""
    job = finish(Job(4, POLICY).group("dp", range(4)).all_reduce("dp", 0))
    job.run(10)
    second = again(job, world=world)
    assert [rank.info.pid for rank in views(second)[0].ranks] == list(range(500, 500 + world))
    assert views(second)[0].world_size == world
    second.run(5)
    assert second.findings() == []


def test_a_hang_of_a_job_that_runs_again_is_found() -> None:
    """The second run of a name hangs in the very collective that the first one completed."""
    job = finish(hang(Job(4, POLICY)).complete("dp", range(4), 1))
    second = hang(again(job))
    assert [suspect.rank for suspect in second.only().suspects] == [2]


def test_attempts_that_count_from_zero_again_are_watched() -> None:
    """Attempts 0 and 1 fail; the user starts the job again, which calls itself attempt 0 again."""
    job = finish(Job(4, POLICY))
    job = finish(again(job, attempt=1))
    third = hang(Job(4, engine=job.engine, now=job.now, first_pid=900))
    assert third.only().attempt == 0
    assert {key: view.superseded for key, view in views(third).items()} == {0: False, 1: True}
    third.run(120)
    assert list(views(third)) == [0]


def test_an_old_process_does_not_take_its_job_back() -> None:
    """Attempt 1 has ended as well when an agent declares the processes of attempt 0 once more."""
    job = finish(Job(4, POLICY))
    second = finish(again(job, attempt=1))
    Job(4, engine=job.engine, now=second.now)
    assert {key: view.superseded for key, view in views(second).items()} == {0: True, 1: False}


def test_ranks_of_an_attempt_that_was_forgotten_must_be_declared_again() -> None:
    """A stream outlives the attempt it declared; what it says of new ranks is not lost silently."""
    job = finish(Job(4, POLICY))
    job.run(90)
    assert views(job) == {}
    info = RankInfo(0, 4, "n", "b", 700)
    with pytest.raises(WireError, match=r"^declare\.ranks\.attempt_index: .*forgotten"):
        job.engine.rank(job.attempt, info, job.now)


def test_a_world_that_grows_is_no_error() -> None:
    """An elastic job goes on with twice the ranks in the same attempt."""
    job = Job(2, POLICY)
    for rank in range(4):
        job.engine.rank(job.attempt, RankInfo(rank, 4, "n", "b", 800 + rank), job.now)
    assert views(job)[0].world_size == 4


def test_a_dead_rank_keeps_its_address() -> None:
    """Its agent is started again and finds nothing of the process that it declares; another process
    of the rank has no part of that address. In findings an address is printable."""
    job = Job(2, POLICY)
    info = RankInfo(1, 2, "n", "b", 801, address=Address(801, "python\x1b[2J\n" + "x" * 4_000))
    job.engine.rank(job.attempt, info, job.now)
    job.engine.rank(job.attempt, replace(info, address=None), job.now)
    snapshot = job.attempt.snapshot(job.now)
    found = suspect(snapshot, 1, Reason.EXITED, Confidence.HIGH).address
    assert found is not None
    assert (found.pid, found.command[:11], len(found.command)) == (801, "python\ufffd[2J ", 300)
    job.engine.rank(job.attempt, RankInfo(1, 2, "n", "b", 802), job.now)
    snapshot = job.attempt.snapshot(job.now)
    assert suspect(snapshot, 1, Reason.EXITED, Confidence.HIGH).address is None


def test_an_attempt_without_agents_ends() -> None:
    """Its nodes vanish without a report: first it hangs, then nothing is expected of it."""
    job = hang(Job(4, POLICY))
    assert job.open()
    job.attempt.connection(range(4), False)
    job.reporting.clear()
    job.run(20)
    assert not views(job)[0].ended
    job.run(15)
    assert views(job)[0].ended
    assert job.open() == []
    assert job.findings()[0].close_reason == "no agent has reported on it for 30 s"
    job.run(70)
    assert views(job) == {}


def test_agents_that_come_back_take_their_attempt_up_again() -> None:
    """The network is cut for longer than the service waits, but shorter than it remembers."""
    job = Job(4, POLICY).group("dp", range(4)).all_reduce("dp", 0)
    job.attempt.connection(range(4), False)
    job.run(40)
    assert views(job)[0].ended
    job.attempt.connection(range(4), True)
    job.run(1)
    assert not views(job)[0].ended
    job.join("dp", [0, 1, 3], 1).run(8)
    assert [s.rank for s in job.only().suspects] == [2]
    assert job.only().suspects[0].reason is Reason.CPU_STUCK


LOST = Policy(stall_after_s=5.0, critical_after_s=20.0, lost_after_s=30.0, attempt_retention_s=60.0)


def lost(job: Job) -> Job:
    """All agents are stopped while the job hangs, and nothing is heard for 40 s."""
    job.attempt.agent_leaves(range(4))
    job.attempt.connection(range(4), False)
    job.reporting.clear()
    job.run(40)
    assert views(job)[0].lost
    assert job.open() == []
    return job


def test_a_lost_job_that_comes_back_goes_on_with_its_finding() -> None:
    """The same stall, which never became critical meanwhile, opens again under its id."""
    job = hang(Job(4, LOST))
    job.run(10)
    found = job.only()
    lost(job)
    assert job.findings()[0].close_reason == "nothing is heard any more"
    assert Severity.CRITICAL not in {event.finding.severity for event in job.events}
    job.run(90)
    job.reconnect(range(4))
    job.run(5)
    assert not views(job)[0].lost
    assert job.only().id == found.id
    assert [f.id for f in job.findings()] == [found.id]


def test_a_finding_of_a_lost_job_that_is_over_stays_closed() -> None:
    """The rank that was waited for has come while no agent watched: nothing opens again. A stall
    that a person had closed stays closed as well."""
    job = lost(hang(Job(4, LOST)))
    job.events.clear()
    job.attempt.connection(range(4), True)
    job.reporting |= set(range(4))
    job.join("dp", [2], 1).complete("dp", range(4), 1).all_reduce("dp", 2).run(20)
    assert job.events == []
    job = hang(Job(4, LOST))
    job.engine.dismiss(job.only().id, job.now, "known")
    lost(job)
    job.run(90)
    job.reconnect(range(4))
    job.run(20)
    assert job.open() == []


@pytest.mark.parametrize("ends", [True, False])
def test_attempts_that_are_over_or_have_no_agent_make_room(ends: bool) -> None:
    """Two jobs fill a policy of two; one ends, or its nodes are gone: a third job is welcome."""
    job = Job(1, Policy(max_attempts=2), name="a")
    Job(1, engine=job.engine, now=job.now, name="b")
    with pytest.raises(WireError, match="max_attempts"):
        Job(1, engine=job.engine, now=job.now, name="c")
    if ends:
        job.status(0, RankState.FINISHED).run(1)
    else:
        job.attempt.connection([0], False)
        job.run(90)
    Job(1, engine=job.engine, now=job.now, name="c")
    assert [view.key.job for view in job.engine.status_view(job.now).attempts] == ["b", "c"]


@pytest.mark.parametrize("was_away", [True, False])
def test_a_service_that_was_away_names_no_rank_whose_report_still_waits_for_it(
    was_away: bool,
) -> None:
    """The service is stopped for 17 s. Meanwhile rank 2 is in no op, the others wait for it; the
    service looks when it has read all reports but that of rank 2. If it has looked all the time,
    the agent of rank 2 is late."""
    job = Job(4, POLICY).group("dp", range(4)).all_reduce("dp", 0)
    job.run(2)
    job.join("dp", [0, 1, 3], 1)
    job.reporting = {0, 1, 3}
    if was_away:
        job.now = AlignedNs(job.now + 17_000_000_000)
        job.report()
        job.engine.advance(job.now)
        assert [f.suspects for f in job.open() if f.suspects] == []
        job.reporting = set(range(4))
        job.run(1)
    else:
        job.run(17)
    reason = Reason.CPU_STUCK if was_away else Reason.UNREACHABLE
    assert named(job.only()) == {2: reason}
