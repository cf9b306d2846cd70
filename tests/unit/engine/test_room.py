"""What all attempts may hold: a job has as much as it leaves free."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frd.engine.engine import Engine
from frd.engine.policy import Policy
from frd.engine.room import OF_ATTEMPT, Room
from frd.errors import WireError
from frd.model import (
    Address,
    AttemptKey,
    GroupInfo,
    RankInfo,
    RankState,
    SeriesInfo,
    SeriesKind,
    Signature,
)
from tests.world.job import START, Job

S = 1_000_000_000


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 400)), max_size=200))
def test_whatever_others_take_there_is_room_for_a_small_job(wanted: list[tuple[int, int]]) -> None:
    """Up to six jobs take what they get, in any order: the seventh still gets a hundredth."""
    room = Room(12_800)
    for job, objects in wanted:
        if room.fits(f"job{job}", objects):
            room.take(f"job{job}", objects, "groups")
    assert room.fits("small", 12_800 // 2**7)
    assert sum(room.held.values()) <= room.most


def test_a_job_that_takes_all_it_gets_leaves_half() -> None:
    """A job declares groups until it is refused; another job comes and has its ranks, its group and
    its finding."""
    engine = Engine(Policy(stall_after_s=5, max_objects=20_000))
    greedy = engine.attempt(AttemptKey("a", 0), 0, START)
    infos = (GroupInfo(f"{number}", "", tuple(range(100))) for number in count())
    with pytest.raises(
        WireError, match=r"job 'a' holds \d+ objects already: raise policy\.max_obj"
    ):
        all(greedy.group(info) >= 0 for info in infos)
    assert 9_000 < engine.room.held["a"] <= 10_000
    job = Job(4, engine=engine, name="b").group("dp", range(4)).join("dp", [0, 1, 2], 0)
    job.run(8)
    assert [suspect.rank for suspect in job.only().suspects] == [3]


def test_what_is_forgotten_gives_its_room_back() -> None:
    """Attempts with ranks, groups, signatures and a new run; when all are forgotten, nothing is
    held."""
    engine = Engine(Policy(attempt_retention_s=5, max_objects=1_000_000))
    job = Job(4, engine=engine).group("dp", range(4)).all_reduce("dp", 0)
    engine.start_over(job.attempt, 4, job.now)
    for rank in range(4):
        engine.rank(job.attempt, RankInfo(rank, 4, "n", "b", 900 + rank), job.now)
    held = engine.room.held["job"]
    assert held == job.attempt.objects > OF_ATTEMPT
    for rank in range(4):
        engine.rank(job.attempt, RankInfo(rank, 4, "n", "b", 900 + rank), job.now)
        job.attempt.signature(Signature("gloo", "all_reduce", ((4,),), ((4,),)))
        job.status(rank, RankState.FINISHED)
    assert engine.room.held["job"] == held
    job.run(60)
    assert not engine.status_view(job.now).attempts
    assert not engine.room.held


def test_without_room_memory_is_not_watched() -> None:
    """A rank has many devices, and there is room for some: the other series are dropped and
    counted; the rank and its groups are watched."""
    engine = Engine(Policy(max_objects=2 * (OF_ATTEMPT + 200)))
    job = Job(4, engine=engine).group("dp", range(4))
    infos = [SeriesInfo(0, SeriesKind.DEVICE_USED, f"GPU{n}") for n in range(40)]
    handles = [job.attempt.memory_series(info) for info in (*infos, *infos)]
    kept = handles.index(-1)
    assert 1 <= kept < 12
    assert handles[:40] == handles[40:] == [*range(kept), *[-1] * (40 - kept)]
    assert engine.status_view(job.now).evicted["memory_series"] == 2 * (40 - kept)


def test_long_texts_take_room() -> None:
    """Groups, ranks and signatures with long names, many devices or shapes."""
    attempt = Engine(Policy(max_objects=1_000_000)).attempt(AttemptKey("a", 0), 4, START)
    before = attempt.objects
    attempt.group(GroupInfo("n" * 4_000, "d" * 4_000))
    attempt.rank(RankInfo(0, 4, "n", "b", 1, devices=("GPU-" + "x" * 60,) * 64))
    attempt.rank(RankInfo(1, 4, "n", "b", 1, address=Address(command="x" * 4_000)))
    attempt.signature(Signature("nccl", "op", ((1, 2, 3),) * 1_000))
    assert attempt.objects - before > 60 + 90 + 30 + 2_000


def test_a_rank_that_is_refused_takes_no_room() -> None:
    """It is outside the world: what the attempt holds stays."""
    engine = Engine(Policy(max_objects=10_000))
    attempt = engine.attempt(AttemptKey("a", 0), 4, START)
    with pytest.raises(WireError, match=r"ranks\.rank: 7"):
        engine.rank(attempt, RankInfo(7, 4, "n", "b", 1), START)
    assert attempt.objects == engine.room.held["a"] == OF_ATTEMPT


def test_a_job_beyond_its_share_may_start_over() -> None:
    """Job a grew alone, then b came: a has more than it leaves free, and starts again."""
    engine = Engine(Policy(max_objects=2_200))
    attempt = engine.attempt(AttemptKey("a", 0), 100, START)
    for rank in range(100):
        engine.rank(attempt, RankInfo(rank, 100, "n", "b", rank), START)
    engine.room.take("b", 600, "groups")
    engine.start_over(attempt, 100, START)
    assert engine.room.held["a"] == OF_ATTEMPT


def test_the_next_attempt_of_a_large_job_has_room() -> None:
    """A job that takes a third of the room is restarted again and again, right after its end:
    its earlier attempts make room for the next one."""
    engine, now = Engine(Policy(max_objects=6_000)), START
    for number in range(12):
        job = Job(150, engine=engine, name="a", attempt=number, now=now).group("dp", range(150))
        for rank in range(150):
            job.status(rank, RankState.FINISHED)
        job.run(3)
        now = job.now
        assert job.attempt.objects > 1_200
    evicted = engine.status_view(now).evicted
    assert evicted["attempts"] == 0
    assert evicted["earlier_attempts"] > 8


def test_small_jobs_come_before_the_history_of_large_ones() -> None:
    """There is no room for another attempt: an ended attempt of the job that holds most goes."""
    engine = Engine(Policy(max_objects=8 * OF_ATTEMPT))
    for attempt in range(4):
        Job(1, engine=engine, name="a", attempt=attempt).run(1)
    ended = Job(1, engine=engine, name="b").status(0, RankState.EXITED)
    ended.run(1)
    for name in "cde":
        Job(1, engine=engine, name=name, now=ended.now)
    keys = [view.key for view in engine.status_view(ended.now).attempts]
    assert [f"{key.job}{key.attempt}" for key in keys if key.job != "a"] == ["b0", "c0", "d0", "e0"]
    assert AttemptKey("a", 3) in keys
