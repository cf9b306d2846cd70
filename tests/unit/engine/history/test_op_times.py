"""Recent ops keep the times of their nodes, and are aligned when they are looked at."""

from __future__ import annotations

import pytest

from frd.model import Flags
from tests.world import observe
from tests.world.attempt import Job, at
from tests.world.history import history, line, listed, recent


def node_op(job: Job, rank: int, behind_s: float) -> None:
    """Op 7, enqueued at second 5 and completed at second 6 of aligned time."""
    observe.entries(
        job.attempt, rank, job.group, 7,
        created=at(5 - behind_s), completed=at(6 - behind_s), now=at(7),
    )  # fmt: skip


def test_two_nodes_with_different_clocks() -> None:
    """One is 15 minutes behind, the other 3 seconds ahead: both ops are at the same time. The
    uncertainty of an unknown clock is absent, not a number."""
    job = Job()
    for rank, behind_s, uncertainty_ns in ((0, 900, 50_000), (1, -3, 70_000), (2, 0, None)):
        job.attempt.clocks.set([rank], rank + 1, uncertainty_ns, at(0), line(behind_s))
        node_op(job, rank, behind_s)
    ops = recent(job, 9)
    assert [(op.rank, op.enqueued, op.ended) for op in listed(ops)] == [
        (rank, 5, 6) for rank in (0, 1, 2)
    ]
    assert ops.uncertainty_ns == {0: 50_000, 1: 70_000}
    assert recent(job, 9, [1, 2]).uncertainty_ns == {1: 70_000}


def test_a_clock_that_is_known_later_moves_the_bars() -> None:
    """The ops came before the first reading of the clock, which turns out to be 900 s behind and
    100 ppm slow."""
    job = Job()
    node_op(job, 0, 900)
    job.attempt.clocks.set([0], 1, 50_000, at(9), line(900, rate=1e-4))
    (op,) = listed(recent(job, 20))
    assert (op.enqueued, op.ended) == pytest.approx((5.0005, 6.0006), abs=2e-6)


def test_a_misjudged_clock_shows_nothing_of_the_future() -> None:
    """The clock is ahead by more than is known: an op is enqueued now at the latest."""
    job = Job()
    observe.entries(job.attempt, 0, job.group, 7, Flags.JOINED, created=at(60), now=at(7))
    assert [op.enqueued for op in listed(recent(job, 9))] == [9]


def test_another_agent_of_another_clock_keeps_the_bars() -> None:
    """Its container has a time namespace, whose raw clock shows another hour: what was known of the
    rank stays where it was, its ops too."""
    job = Job()
    job.attempt.clocks.set([0], 1, 50_000, at(0), line(900))
    node_op(job, 0, 900)
    job.attempt.clocks.set([0], 2, 50_000, at(10), line(-2700))
    assert [(op.enqueued, op.ended) for op in listed(recent(job, 20))] == [(5, 6)]


def test_what_a_reader_has_does_not_change() -> None:
    """The history of a view is as of that view, whatever is reported afterwards."""
    job = Job()
    job.entries(0, [7], Flags.JOINED, created=5)
    before = history(job.attempt, 9)
    job.entries(0, [7], Flags.COMPLETED, created=5, completed=9.5)
    job.entries(1, [7], Flags.JOINED, created=9)
    assert [(op.rank, op.ended) for op in listed(before.ops(range(4), 32))] == [(0, None)]
    assert [(op.rank, op.ended) for op in listed(recent(job, 10))] == [(0, 9.5), (1, None)]
