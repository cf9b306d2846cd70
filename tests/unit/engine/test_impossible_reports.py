"""Reports of agents that cannot be true: they open nothing, and hide nothing that is true."""

from __future__ import annotations

import pytest

from frd.engine.hangs.diagnosis import diagnose
from frd.model import Confidence, RankInfo, RankState, SeriesInfo, SeriesKind
from tests.world.job import Job


def running() -> Job:
    """Four ranks of two agents that have come as far as seq 3."""
    job = Job(4).group("dp", range(4))
    for seq in range(4):
        job.all_reduce("dp", seq)
    for number, ranks in enumerate(([0, 1], [2, 3])):
        job.attempt.clocks.set(ranks, number, 0, job.now)
    job.run(1)
    return job


@pytest.mark.parametrize(
    ("seq", "waiting", "missing", "suspects"),
    [
        pytest.param(1 << 40, [], None, [], id="its peers go on"),
        pytest.param(100, [1, 2], (0, 3), [3], id="1 and 2 wait for 3"),
        pytest.param(1 << 40, [1, 2, 3], (0,), [], id="1, 2 and 3 wait for it: no circle"),
    ],
)
def test_no_rank_completed_what_others_never_joined(
    seq: int, waiting: list[int], missing: tuple[int, ...] | None, suspects: list[int]
) -> None:
    """An agent claims that rank 0 has long been waiting far beyond its peers, which have come to
    seq 3 and may wait in seq 4: nothing of that is believed."""
    job = running()
    job.marks["dp", 0] = [seq, -1, seq - 1, job.now - 600_000_000_000]
    job.join("dp", waiting, 4)
    job.run(30)
    found = {f.collective.seq: f.collective.missing_ranks for f in job.findings() if f.collective}
    assert found == ({} if missing is None else {4: missing})
    assert [suspect.rank for finding in job.open() for suspect in finding.suspects] == suspects


def test_an_unknown_rank_joined_what_others_completed() -> None:
    """Nothing was ever read of rank 3 in the group, and the others are done with what takes all
    four: it came, and may have come to seq 4, too."""
    job = Job(4).group("dp", range(4))
    for seq in range(4):
        job.join("dp", [0, 1, 2], seq).complete("dp", [0, 1, 2], seq)
    job.run(3)
    job.join("dp", [0, 1, 2], 4)
    job.run(8)
    assert job.only().suspects == ()


@pytest.mark.parametrize("seq", [0, 4])
def test_a_timeout_that_ends_a_rank_convicts_no_rank(seq: int) -> None:
    """Rank 3 never came; the watchdogs of 0 and 1 call the op completed and end their ranks."""
    job = Job(4).group("dp", range(4))
    for done in range(seq):
        job.all_reduce("dp", done)
        job.run(1)
    job.join("dp", [0, 1, 2], seq)
    job.run(30)
    job.complete("dp", [0, 1], seq)
    for rank in (0, 1):
        job.status(rank, RankState.EXITED, "RuntimeError: Timed out")
    job.run(10)
    assert [suspect.rank for suspect in job.only().suspects] == [3]
    snapshot, stalls = job.attempt.snapshot(job.now), job.attempt.stalls(job.now)
    (diagnosis,) = diagnose(snapshot, stalls)
    assert [(b.rank, b.confidence) for b in diagnosis.suspects] == [(3, Confidence.HIGH)]


def test_what_only_an_earlier_agent_reported_disproves_nothing() -> None:
    """The agent of rank 3 was away while dp went on, and the next one finds nothing of it; then 3
    does not come any more."""
    job = Job(4).group("dp", range(4)).group("tp", [2, 3])
    for seq in range(4):
        job.all_reduce("dp", seq)
    for number, ranks in enumerate(([0, 1], [2], [3])):
        job.attempt.clocks.set(ranks, number, 0, job.now)
    job.run(1)
    job.reporting.discard(3)
    for seq in range(4, 30):
        job.join("dp", [0, 1, 2], seq).complete("dp", [0, 1, 2], seq)
        job.run(0.5)
    job.attempt.clocks.set([3], 7, 0, job.now)
    job.reporting.add(3)
    job.marks["dp", 3] = [-1, -1, -1, 0]
    job.all_reduce("tp", 3000)
    job.run(5)
    job.join("dp", [0, 1, 2], 30)
    job.run(20)
    assert [suspect.rank for suspect in job.only().suspects] == [3]


def test_what_an_agent_took_along_is_not_waited_for_for_ever() -> None:
    """Rank 0 came to seq 4 when its agent died; the next one, which finds nothing of the group in
    the ring, does not report. What it does report counts."""
    job = running()
    job.join("dp", [0], 4)
    job.run(1)
    job.attempt.clocks.set([0, 1], 3, 0, job.now)
    reported, job.marks["dp", 0] = job.marks["dp", 0], [-1, -1, -1, 0]
    job.run(30)
    assert job.findings() == []
    job.marks["dp", 0] = reported
    job.run(1)
    assert job.only().suspects


def test_what_comes_late_of_an_agent_before_is_not_of_the_next_one() -> None:
    """A row of the old stream, that rank 0 came to seq 4, arrives when the new one is there."""
    job = running()
    job.attempt.clocks.set([0, 1], 3, 0, job.now)
    job.session = 1
    job.join("dp", [0], 4)
    job.marks["dp", 0] = [-1, -1, -1, 0]
    job.run(30)
    assert job.findings() == []


def test_the_root_of_a_broadcast_may_be_done_before_all_have_come() -> None:
    """Rank 0 has sent seq 4 and waits in seq 5 for all ranks; rank 3 joined neither."""
    job = running()
    job.join("dp", [0, 1, 2], 4, "broadcast").complete("dp", [0, 1, 2], 4, "broadcast")
    job.run(1)
    job.join("dp", [0, 1, 2], 5)
    job.run(8)
    assert [s.rank for s in job.only().suspects] == [3]


def test_memory_of_a_rank_that_an_earlier_run_had() -> None:
    """The job has ended and runs again under its name, which a stream that reports the end has
    not heard of: the series that it declares is of an unknown rank, and no fault."""
    job = Job(2)
    for rank in range(2):
        job.status(rank, RankState.FINISHED)
    job.run(10)
    job.engine.rank(job.attempt, RankInfo(0, 2, "node0", "boot0", 900), job.now)
    series = SeriesInfo(1, SeriesKind.DEVICE_USED, "GPU-1")
    assert job.attempt.memory_series(series) >= 0
