"""Times of a rank are kept as its node reports them, and aligned when they are looked at."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from frd.model import AlignedNs, Flags, NodeRawNs, RankState, RankStatus
from tests.world import messages, observe
from tests.world.attempt import Job, S, at
from tests.world.history import line, listed, recent

BEHIND = 900 * S
"""How far the clock of node time is behind aligned time."""


def node(seconds: float, behind: int = BEHIND) -> AlignedNs:
    return AlignedNs(at(seconds) - behind)


def waiting(job: Job, rank: int = 0) -> None:
    """The rank completed 6 at second 4, joined 7 at second 5, and is known up to second 8."""
    seq, times = [6, 7], np.array([node(3), node(5)])
    flags = np.array([int(messages.BOTH), int(Flags.JOINED)])
    done = np.array([node(4), 0])
    observe.entries(
        job.attempt, rank, job.group, seq, flags, created=times, completed=done, now=at(8.5)
    )
    row = (job.attempt.pair(rank, job.group), 7, -1, 6, node(5))
    observe.watermarks(job.attempt, [row], rank, node(8))


def waiting_job() -> Job:
    """The clock of rank 0 is known; it waits, and has had a send in flight since second 7."""
    job = Job()
    job.attempt.clocks.set([0], 1, 50_000, at(0), line(900))
    waiting(job)
    job.sends(0, (1, True, 1, 7.0 - BEHIND / S), now=8.5)
    return job


def test_a_snapshot_aligns_what_is_kept() -> None:
    """The clock becomes known after the report, runs 100 ppm slow, and all times follow."""
    job = Job()
    waiting(job)
    job.sends(0, (1, True, 1, 7.0 - BEHIND / S), now=8.5)
    job.attempt.observe_status(RankStatus(0, RankState.SILENT, node(8)), at(9))  # type: ignore[arg-type]
    job.attempt.clocks.set([0], 1, 50_000, at(9), line(900, rate=1e-4))
    snapshot = job.attempt.snapshot(at(20))
    pairs = snapshot.pairs
    found = [
        pairs.head_since[0],
        pairs.moved_at[0],
        pairs.since[0],
        snapshot.channels.since[0],
        snapshot.as_of[0],
        snapshot.state_since[0],
    ]
    expected = [at(s * 1.0001) for s in (5, 4, 5, 7, 8, 8)]
    assert found == pytest.approx(expected, abs=2_000)
    view = job.attempt.view(at(20)).ranks[0]
    assert view.as_of == pytest.approx(at(8.0008), abs=2_000)
    assert view.waiting_s == pytest.approx(20 - 5.0005, abs=1e-5)
    done, open_op = listed(recent(job, 20))
    times = done.enqueued, done.ended, open_op.enqueued
    assert times == pytest.approx((3.0003, 4.0004, 5.0005), abs=2e-6)


def test_a_stall_needs_no_clock() -> None:
    """The node's own report says how long the rank has waited, whatever its clock shows."""
    job = Job()
    waiting(job)
    for second, stalled in ((14.9, []), (15.1, [(0, 7)])):
        observe.watermarks(job.attempt, [], 0, node(second))
        assert job.stalled(30) == stalled


def test_a_misjudged_clock_confirms_no_wait_that_has_not_happened() -> None:
    """The agent claims to know the next minute; of that, only what has passed counts."""
    job = waiting_job()
    observe.watermarks(job.attempt, [], 0, node(60))
    assert job.stalled(14.9) == []
    assert job.stalled(15.1) == [(0, 7)]
    assert job.attempt.snapshot(at(15)).as_of[0] == at(15)


@pytest.mark.parametrize("late_s", [0.3, 2.5, 10.5])
def test_another_agent_of_the_same_clock_changes_nothing(late_s: float) -> None:
    """It is restarted; its first message took so long, so its first guess is late by that."""
    job = waiting_job()
    job.attempt.clocks.set([0], 2, None, at(10), line(900 + late_s))
    job.attempt.clocks.set([0], 2, 50_000, at(10), line(900))
    snapshot = job.attempt.snapshot(at(20))
    assert (snapshot.pairs.head_since[0], snapshot.as_of[0]) == (at(5), at(8))


def test_another_agent_of_another_clock_keeps_the_moments() -> None:
    """Its container has a time namespace: the raw clock shows another hour there."""
    job = Job()
    job.attempt.clocks.set([0, 1], 1, 50_000, at(0), line(900))
    waiting(job)
    waiting(job, 1)
    job.sends(0, (1, True, 1, 7.0 - BEHIND / S), now=8.5)
    other = BEHIND - 3600 * S
    job.attempt.clocks.set([0], 2, 50_000, at(10), line(other / S))
    snapshot = job.attempt.snapshot(at(20))
    pairs = snapshot.pairs
    assert pairs.head_since[:2].tolist() == pairs.since[:2].tolist() == [at(5)] * 2
    assert snapshot.as_of[:2].tolist() == [at(8)] * 2
    assert snapshot.channels.since.tolist() == [at(7)]
    observe.watermarks(job.attempt, [], 0, node(9, other))
    assert job.attempt.snapshot(at(20)).as_of[:2].tolist() == [at(9), at(8)]
    assert [(op.enqueued, op.ended) for op in listed(recent(job, 20, [0]))] == [(3, 4), (5, None)]


def test_another_agent_of_another_clock_is_believed() -> None:
    """Its raw clock shows less: what it says of the rank is newer nevertheless, and what
    it saw before its own last word is not."""
    job = Job()
    job.attempt.clocks.set([0], 1, 50_000, at(0), line(900))

    def status(state: RankState, seconds: float, behind: int) -> None:
        seen = node(seconds, behind)
        report = RankStatus(0, state, NodeRawNs(seen), as_of_ns=seen)
        job.attempt.observe_status(report, at(20))

    status(RankState.SILENT, 8, BEHIND)
    other = BEHIND + 90 * S
    job.attempt.clocks.set([0], 2, 50_000, at(10), line(other / S))
    assert job.attempt.snapshot(at(20)).state_since[0] == at(8)
    status(RankState.LIVE, 7, other)
    assert job.attempt.view(at(20)).ranks[0].status.state is RankState.SILENT
    status(RankState.EXITED, 12, other)
    assert job.attempt.view(at(20)).ranks[0].status.state is RankState.EXITED


def test_the_wall_clock_of_the_service_moves_all_times() -> None:
    """It is set a minute ahead: the line of a clock that did not jump moves, and all times with it,
    so no wait becomes longer."""
    job = waiting_job()
    job.attempt.clocks.set([0], 1, 50_000, at(70), line(960))
    snapshot = job.attempt.snapshot(at(80))
    assert (snapshot.pairs.head_since[0], snapshot.as_of[0]) == (at(65), at(68))


# -- when a member came as far as it is ----------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_order_of_reports_does_not_matter(order: tuple[int, ...]) -> None:
    """Rows of an op, and two rounds of watermarks that show it: the earliest report of each mark
    says when it was reached."""
    job = Job()
    pair = job.attempt.pair(0, job.group)
    reports: list[Callable[[], object]] = [
        lambda: job.entries(0, [7], Flags.JOINED, created=5, now=20, replay=True),
        lambda: job.entries(0, [7], Flags.COMPLETED, completed=6.5, now=20, replay=True),
        lambda: observe.watermarks(job.attempt, [(pair, 7, 7, 6, at(5))], 0, at(6)),
        lambda: observe.watermarks(job.attempt, [(pair, 7, 7, 7, 0)], 0, at(7)),
    ]
    for number in order:
        reports[number]()
    snapshot = job.attempt.snapshot(at(30))
    assert snapshot.pairs.since[0] == at(6.5)
    assert snapshot.moved_at[0] == at(6.5)
    assert snapshot.as_of[0] == at(7)


def test_what_the_device_started() -> None:
    """The row of the start says when; a later repetition changes nothing. Without a time, it is by
    now, until a watermark message shows more."""
    job = Job()
    observe.entries(
        job.attempt, 0, job.group, [1], Flags.STARTED, created=at(1), started=at(2), now=at(3)
    )
    observe.entries(job.attempt, 1, job.group, [1], Flags.STARTED, created=at(1), now=at(4))
    pair = job.attempt.pair(0, job.group)
    observe.watermarks(job.attempt, [(pair, 1, 1, 0, at(1))], 0, at(5))
    assert job.attempt.snapshot(at(9)).pairs.moved_at.tolist()[:2] == [at(5), at(9)]
    assert job.attempt.tables.pairs.started_at[pair] == at(2)


def test_channels_are_of_the_time_of_their_dump() -> None:
    """P2P ops have no numbers: the rank moved by the time of the dump that shows a change."""
    job = Job()
    ops = messages.p2p_ops(0, (job.group, 1, True, 1, at(1)))
    for as_of, now in ((2, 5), (3, 6)):
        job.attempt.observe_channels(replace(ops, as_of_ns=at(as_of)), at(now))
    assert job.attempt.snapshot(at(9)).moved_at[0] == at(2)
