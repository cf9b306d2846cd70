"""Which jobs have failed: they died by themselves, and did not start again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from frd.engine.engine import Engine
from frd.engine.matching.learned_pauses import JobPauses
from frd.engine.matching.usual_waits import LongWait
from frd.engine.policy import Policy
from frd.model import AlignedNs, ExitInfo, Failure, Kind, RankState
from frd.service.journal.payloads import decode_pauses, encode_pauses
from frd.store.findings import FindingStore
from tests.unit.engine.losses.test_endings import (
    ABORT,
    BAD_BATCH,
    CLEAN,
    CTRL_C,
    KILL,
    RESET,
    STATUS_1,
    STATUS_143,
    TERM,
    UNKNOWN,
    hanging,
    leave,
    running,
)
from tests.world.job import Job

DAY_NS = 24 * 3600 * 1_000_000_000
TIMED_OUT = replace(RESET, exception="torch.distributed.DistBackendError: ... timed out")
POLICY = Policy(stall_after_s=5.0, max_findings=1, max_findings_per_job=1)


def failure(engine: Engine, at: AlignedNs) -> Failure | None:
    """Of the present attempt of the only job, as the service shows it."""
    views = sorted(engine.status_view(at).attempts, key=lambda v: (not v.superseded, v.key.attempt))
    return views[-1].failure if views else None


def ended(job: Job, *hows: ExitInfo, then_s: float = 0.0) -> Job:
    """Rank 0 ends first. SIGKILL comes 30 s after SIGTERM, as launchers do."""
    for rank, how in enumerate(hows):
        job.run(30.0 if how is KILL and TERM in hows else 0.0)
        leave(job, rank, how)
        job.run(0.5)
    job.run(then_s)
    return job


def again(job: Job, *, attempt: int = 0) -> Job:
    """Other processes of the same job."""
    return Job(4, attempt=attempt, engine=job.engine, now=job.now, first_pid=500)


def restarted(engine: Engine) -> Engine:
    """The next process of the service, or the replica that takes the job over from the log."""
    after = Engine(engine.policy)
    after.learned.recall(decode_pauses(encode_pauses(engine.learned.all())))
    return after


@pytest.mark.parametrize(
    ("hows", "rank", "text"),
    [
        ((BAD_BATCH,) * 4, 0, "raised RuntimeError: bad batch (train.py:88 load); 3 other ranks"),
        ((RESET, BAD_BATCH, RESET, TERM), 1, "raised RuntimeError: bad batch (train.py:88 load)"),
        ((STATUS_1, CLEAN, CLEAN, CLEAN), 0, "exited with status 1"),
        ((KILL,) * 4, 0, "was killed by SIGKILL; 3 other ranks ended alike"),
        ((UNKNOWN, RESET, RESET, TERM), 0, "is gone and left no exit record"),
        ((ABORT,) * 4, 0, "was killed by SIGABRT; 3 other ranks ended alike"),
        ((TIMED_OUT, TERM, TERM, KILL), 0, "raised torch.distributed.DistBackendError"),
    ],
)
def test_a_job_that_dies_by_itself_has_failed(
    hows: tuple[ExitInfo, ...], rank: int, text: str
) -> None:
    """All ranks end, not all cleanly and not on request: a minute later the job has failed,
    with the first cause, also when its finding has closed long ago."""
    job = ended(running(), *hows)
    job.run(30)
    assert failure(job.engine, job.now) is None
    job.run(31)
    found = failure(job.engine, job.now)
    assert found is not None
    assert (found.rank, found.world_size) == (rank, 4)
    assert text in found.text
    assert found.exit == hows[rank]
    assert job.open() == []


@pytest.mark.parametrize(
    "hows",
    [
        (CLEAN,) * 4,
        (CTRL_C,) * 4,
        (CTRL_C, STATUS_1, KILL, RESET),
        (TERM,) * 4,
        (TERM, TERM, RESET, KILL),
        (STATUS_143,) * 4,
        (UNKNOWN,) * 4,
    ],
)
def test_a_job_that_is_done_or_stopped_has_not_failed(hows: tuple[ExitInfo, ...]) -> None:
    """All ranks end cleanly, or a person or the scheduler stops the job: nothing has failed."""
    job = ended(running(), *hows, then_s=120)
    assert failure(job.engine, job.now) is None


def test_ranks_that_end_together_with_their_agents_have_not_failed() -> None:
    """A scheduler stops a node: agents are asked to stop, and ranks exit with status 1."""
    job = running()
    job.attempt.agent_leaves(range(4))
    ended(job, *(STATUS_1,) * 4, then_s=120)
    assert failure(job.engine, job.now) is None


def test_a_rank_that_is_not_known_to_be_gone_keeps_its_job_from_failing() -> None:
    """Three ranks lose their connections to one whose node is gone: the job may still run there."""
    job = running()
    job.reporting.discard(3)
    ended(job, RESET, RESET, RESET, then_s=120)
    assert failure(job.engine, job.now) is None


@pytest.mark.parametrize(("how", "failed"), [(ABORT, True), (TERM, False), (CTRL_C, False)])
def test_the_cause_of_a_hung_job_is_that_of_its_finding(how: ExitInfo, failed: bool) -> None:
    """Rank 2 hangs; the watchdog aborts all ranks, or a person stops them."""
    job = hanging()
    stall = job.only()
    ended(job, *(how,) * 4, then_s=70)
    found = failure(job.engine, job.now)
    assert (found is not None) is failed
    if found is not None:
        assert (found.rank, found.finding) == (2, stall.id)
        assert "holds up 3 ranks" in found.text
        assert "SIGABRT" in found.text


@pytest.mark.parametrize("how", [ABORT, UNKNOWN], ids=["abort", "no-record"])
def test_the_cause_stays_though_its_finding_is_closed_or_forgotten(how: ExitInfo) -> None:
    """A user closes the finding about rank 2, which hangs, and all ranks end. After a restart of
    the service, which has no finding any more, agents report the same ends 5 ms later."""
    job = hanging()
    stall = job.only()
    job.engine.dismiss(stall.id, job.now, "closed by hand: known")
    ended(job, *(how,) * 4, then_s=70)
    found, ended_at = failure(job.engine, job.now), job.now - 70_495_000_000
    assert found is not None
    assert (found.rank, found.finding) == (2, stall.id)
    same = Job(4, engine=restarted(job.engine), now=job.now)
    same.reporting.clear()
    same.run(1)
    for rank in range(4):
        same.status(rank, RankState.EXITED, how=how, at=AlignedNs(ended_at))
    same.run(10)
    assert failure(same.engine, same.now) == found


@pytest.mark.parametrize("attempt", [0, 1])
@pytest.mark.parametrize("after_s", [5, 3600])
def test_a_job_that_starts_again_has_not_failed(attempt: int, after_s: int) -> None:
    """The next attempt, or the next run under the same number, after 5 s or an hour."""
    job = ended(running(), *(BAD_BATCH,) * 4)
    job.run(5)
    if after_s > 60:
        job.run(60)
        assert failure(job.engine, job.now) is not None
        job.now = AlignedNs(job.now + after_s * 1_000_000_000)
    second = again(job, attempt=attempt).group("dp", range(4)).all_reduce("dp", 0)
    second.run(1)
    assert failure(job.engine, second.now) is None
    second.run(120)
    assert failure(job.engine, second.now) is None
    assert all(one.failure is None for one in job.engine.learned.all())
    ended(second, *(CLEAN,) * 4, then_s=120)
    assert failure(job.engine, second.now) is None


def test_the_last_restart_of_a_launcher_fails() -> None:
    """Attempts 0 to 2 fail five seconds after each other, and no other follows: one failure."""
    job = ended(running(), *(BAD_BATCH,) * 4)
    for attempt in (1, 2):
        job.run(5)
        job = again(job, attempt=attempt).group("dp", range(4)).all_reduce("dp", 0)
        job.run(1)
        ended(job, *(BAD_BATCH,) * 4)
        assert failure(job.engine, job.now) is None
    job.run(70)
    found = failure(job.engine, job.now)
    assert found is not None
    assert found.attempt == 2


@pytest.mark.parametrize("ran_s", [10, 100])
def test_a_failure_outlives_the_service_and_its_attempt(ran_s: int) -> None:
    """The service restarts before the minute is over, or after it; its agents have gone. The job
    is shown for a day, and not longer."""
    job = ended(running(), *(BAD_BATCH,) * 4)
    job.run(ran_s)
    after, now = restarted(job.engine), AlignedNs(job.now + 100 * 1_000_000_000)
    after.advance(now)
    found = failure(after, now)
    assert found is not None
    assert (found.rank, found.exit.where) == (0, "train.py:88 load")
    (view,) = after.status_view(now).attempts
    assert (view.key.job, view.world_size, view.ended) == (job.attempt.key.job, 4, True)
    shown_from = found.at + 60 * 1_000_000_000
    assert failure(after, AlignedNs(shown_from - 1)) is None
    assert failure(after, AlignedNs(shown_from)) == found
    assert failure(after, AlignedNs(shown_from + DAY_NS - 1)) == found
    assert failure(after, AlignedNs(shown_from + DAY_NS)) is None


def test_agents_that_report_the_dead_ranks_again_change_nothing() -> None:
    """After a restart of the service, agents declare the ranks, and say a little later that they
    have ended: the job stays failed, and begins no new minute."""
    job = ended(running(), *(BAD_BATCH,) * 4)
    job.run(70)
    found, ended_at = failure(job.engine, job.now), job.now - 70 * 1_000_000_000
    same = Job(4, engine=restarted(job.engine), now=job.now)
    same.reporting.clear()
    same.run(1)
    for rank in range(4):
        same.status(rank, RankState.EXITED, how=BAD_BATCH, at=ended_at)
    same.run(10)
    again = failure(same.engine, same.now)
    assert found is not None
    assert again is not None
    assert abs(again.at - found.at) < 2_000_000_000
    assert again.text == found.text


def test_failures_are_outside_the_bound_of_findings_and_have_one_themselves(tmp_path: Path) -> None:
    """A job whose findings were evicted is still failed. Of 257 jobs that failed, the newest 256
    are kept, the other is counted, and none takes the place of a job with pauses."""
    job = ended(Job(4, POLICY).group("dp", range(4)), RESET, BAD_BATCH, RESET, TERM, then_s=61)
    engine, how = Engine(Policy()), failure(job.engine, job.now)
    assert how is not None
    waits = {("dp", 4): [LongWait.of(1, 2)]}
    trained = JobPauses("trained", AlignedNs(job.now - DAY_NS), waits)
    failed = [JobPauses(f"{i}", job.now, {}, how) for i in range(256)]
    engine.learned.recall([trained, *failed])
    last = Job(1, engine=engine, now=job.now, name="last").group("dp", [0])
    ended(last, BAD_BATCH, then_s=70)
    view = engine.status_view(last.now)
    names = {one.key.job for one in view.attempts if one.failure is not None}
    assert names == {*(f"{i}" for i in range(1, 256)), "last"}
    assert view.evicted["pauses"] == 1
    assert trained in engine.learned.all()
    store = FindingStore(tmp_path / "db")
    store.save_pauses([trained, *failed])
    store.save_pauses(engine.learned.take_news())
    assert trained in store.pauses()
    assert {one.job for one in store.pauses()} >= {"last", "trained"}
    assert len(store.pauses()) == 257


def test_what_another_release_stored_is_decoded() -> None:
    """Pauses that were stored without a failure, and one with a key that is not known yet."""
    how = Failure(1, 4, AlignedNs(5), 2, "rank 2 raised x", BAD_BATCH, "ab12")
    text = JobPauses("job", AlignedNs(7), {}, how).encode()
    assert JobPauses.decode(text).failure == how
    assert JobPauses.decode(text.replace('"rank":2', '"rank":2,"new":[1]')).failure == how
    assert JobPauses.decode('{"job":"job","learned_at":7,"groups":[]}').failure is None
    with pytest.raises(ValueError, match="pauses of a job"):
        JobPauses.decode(text.replace('"rank":2', '"rank":"x"'))


def test_a_loss_is_a_finding_at_once() -> None:
    """Rank 1 raises, and its peers die of it: the finding opens as ever, and is the cause."""
    job = ended(running(), RESET, BAD_BATCH, RESET, TERM)
    job.run(5)
    assert job.only().kind is Kind.RANK_LOST
    finding = job.only().id
    job.run(60)
    found = failure(job.engine, job.now)
    assert found is not None
    assert found.finding == finding
