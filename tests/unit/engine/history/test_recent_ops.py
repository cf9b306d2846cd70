"""The last ops of ranks: rows become ops, whose ends are exact or bounded by what is known."""

from __future__ import annotations

from itertools import permutations

import pytest

from frd.engine.policy import Policy
from frd.model import Flags, GroupInfo
from tests.world import observe
from tests.world.attempt import Job, at
from tests.world.history import (
    BROADCAST,
    Missing,
    Op,
    ended,
    history,
    joined,
    line,
    listed,
    missing,
    recent,
)
from tests.world.observe import rank_info


def test_rows_of_one_op_become_one() -> None:
    """Joined, started, completed: three rows of NCCL, whose completion time is exact."""
    job = Job()
    for flags, started, completed, now in (
        (Flags.JOINED, 0, 0, 1),
        (Flags.STARTED, at(2), 0, 2),
        (Flags.COMPLETED, at(2), at(3), 4),
    ):
        observe.entries(
            job.attempt, 0, job.group, 7, flags,
            created=at(1), started=started, completed=completed, now=at(now),
        )  # fmt: skip
    ops = recent(job, 9)
    assert listed(ops) == [Op(0, 7, "all_reduce", 1, 2, 3, 3, False)]
    assert [info.label for info in ops.groups] == ["default_pg"]


def test_an_op_without_a_completion_time_is_bounded() -> None:
    """Gloo: an all_reduce cannot have ended before the last rank joined it, nor after the report
    came that it had."""
    job = Job()
    for rank, created in ((0, 1), (1, 2)):
        job.entries(rank, [7], Flags.JOINED, created=created)
    for rank, now in ((0, 3), (1, 4)):
        ended(job, rank, 7, Flags.COMPLETED, created=rank + 1, now=now)
    ops = recent(job, 9)
    assert listed(ops) == [
        Op(0, 7, "all_reduce", 1, None, 2, 3, False),
        Op(1, 7, "all_reduce", 2, None, 2, 4, False),
    ]


def test_a_broadcast_may_end_before_others_join_it() -> None:
    """Its root does not wait for the receivers: only its own enqueue bounds its end."""
    job = Job()
    for rank, created in ((0, 1), (1, 2)):
        joined(job, rank, 7, created, BROADCAST)
        observe.entries(
            job.attempt, rank, job.group, 7, Flags.COMPLETED,
            signature=BROADCAST, created=at(created), now=at(3),
        )  # fmt: skip
    assert [(op.op, op.ended_from, op.ended) for op in listed(recent(job, 9))] == [
        ("broadcast", 1, 3),
        ("broadcast", 2, 3),
    ]


def test_an_op_that_failed() -> None:
    """It is over, and may have ended long before the last rank joined it: a time-out waits for
    no rank."""
    job = Job()
    job.entries(0, [7], Flags.JOINED, created=1)
    job.entries(1, [7], Flags.JOINED, created=2)
    ended(job, 0, 7, Flags.FAILED, created=1, now=5)
    first, second = listed(recent(job, 9))
    assert first == Op(0, 7, "all_reduce", 1, None, 1, 5, True)
    assert (second.ended, second.failed) == (None, False)


def test_the_end_is_never_before_the_enqueue() -> None:
    """A completion that was stamped before the enqueue, as by a clock that was set: a bar of no
    length, not of a negative one."""
    job = Job()
    observe.entries(job.attempt, 0, job.group, 7, created=at(3), completed=at(2), now=at(4))
    (op,) = listed(recent(job, 9))
    assert (op.enqueued, op.ended_from, op.ended) == (3, 3, 3)


def test_an_open_op_that_only_watermarks_show() -> None:
    """The rows of the op have not come, or are gone; a rank that has reported it says its name."""
    job = Job()
    job.watermark(0, 7, 6, 5.0)
    assert listed(recent(job, 9)) == [Op(0, 7, "", 5, None, None, None, False)]
    job.entries(1, [7], Flags.JOINED, created=6)
    assert listed(recent(job, 9)) == [
        Op(0, 7, "all_reduce", 5, None, None, None, False),
        Op(1, 7, "all_reduce", 6, None, None, None, False),
    ]


def test_a_row_and_a_watermark_of_one_op_are_one() -> None:
    """A rank reports the op that it is inside of twice: there is one bar."""
    job = Job()
    job.entries(0, [7], Flags.JOINED, created=5)
    job.watermark(0, 7, 6, 5.0)
    assert listed(recent(job, 9)) == [Op(0, 7, "all_reduce", 5, None, None, None, False)]


def test_watermarks_say_that_an_op_is_over() -> None:
    """The row of its end is lost: it ended between the last join and now."""
    job = Job()
    job.entries(0, [7], Flags.JOINED, created=1)
    job.watermark(0, 7, 7)
    (op,) = listed(recent(job, 9))
    assert (op.ended_from, op.ended) == (1, 9)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_the_order_of_rows_of_different_ranks_does_not_matter(order: tuple[int, ...]) -> None:
    """Each rank reports its op whole; whichever comes first, the ops are the same."""
    job = Job()
    for rank in order:
        job.entries(rank, [7, 8], created=1 + rank, now=6)
    ops = listed(recent(job, 9))
    assert [(op.rank, op.seq, op.ended_from, op.ended) for op in ops] == [
        (rank, 7 + step, 4 + step / 1000, 6) for rank in range(4) for step in (0, 1)
    ]


# -- what is asked for -------------------------------------------------------------------------


def test_the_last_ops_of_some_ranks() -> None:
    """Two ops of each of the ranks that are asked for, which may be unknown ones."""
    job = Job()
    for rank in range(4):
        job.entries(rank, [1, 2, 3], created=rank + 1)
    ops = listed(recent(job, 9, [2, 1, 77, -1], most=2))
    assert [(op.rank, op.seq) for op in ops] == [(1, 2), (1, 3), (2, 2), (2, 3)]
    assert listed(recent(job, 9, [])) == []


# -- missing ops -------------------------------------------------------------------------------

QUICK = Policy(stall_after_s=8.0)
"""A wait has lasted after 2 s, a quarter of this."""


def test_an_op_is_missing_once_the_wait_for_it_has_lasted() -> None:
    """Ranks 0 and 1 wait in an op; for two seconds, the others may be on their way to it."""
    job = Job(policy=QUICK)
    job.entries(0, [7], Flags.JOINED, created=5)
    job.entries(1, [7], Flags.JOINED, created=5.5)
    assert missing(recent(job, 6.9)) == []
    assert missing(recent(job, 7.1)) == [
        Missing(rank, "default_pg", 7, "all_reduce", 5) for rank in (2, 3)
    ]
    assert missing(recent(job, 7.1, [0, 3])) == [Missing(3, "default_pg", 7, "all_reduce", 5)]
    job.entries(2, [7], Flags.JOINED, created=7)
    assert [one.rank for one in missing(recent(job, 9))] == [3]


def test_the_first_op_that_a_rank_misses() -> None:
    """Rank 0 waits in broadcast 7, rank 1 has left it and waits in 8: the others miss 7 first."""
    job = Job(policy=QUICK)
    for rank in range(4):
        job.entries(rank, [6], created=0)
    joined(job, 0, 7, 1, BROADCAST)
    joined(job, 1, 7, 2, BROADCAST)
    ended(job, 1, 7, Flags.COMPLETED, created=2, now=3)
    joined(job, 1, 8, 4, BROADCAST)
    found = missing(recent(job, 9))
    assert [(one.rank, one.seq, one.since) for one in found] == [(0, 8, 4), (2, 7, 1), (3, 7, 1)]


# -- processes and runs ------------------------------------------------------------------------


def test_another_process_of_a_rank_has_none_of_its_ops() -> None:
    """Rank 0 is started again: the ops of its old process are gone, those of rank 1 are not."""
    job = Job()
    for rank in (0, 1):
        job.entries(rank, [1, 2], created=1)
    job.attempt.rank(rank_info(0, pid=4711))
    assert [(op.rank, op.seq) for op in listed(recent(job, 9))] == [(1, 1), (1, 2)]
    job.entries(0, [1], created=3)
    assert [op.enqueued for op in listed(recent(job, 9, [0]))] == [3]


def test_the_next_run_of_a_job_has_none_of_the_ops() -> None:
    """It starts over under its name."""
    job = Job()
    job.entries(0, [1, 2], created=1)
    job.attempt.start_over(4)
    job.attempt.rank(rank_info(0, pid=4711))
    assert listed(recent(job, 9)) == []


def test_rows_are_kept_up_to_a_bound() -> None:
    """A small job runs for long: of twenty thousand ops, the last few thousand are there. A rank
    whose rows are gone still has the op that it is inside of."""
    job = Job()
    other = job.attempt.group(GroupInfo("1", "other", (2, 3)))
    job.entries(3, [0], Flags.JOINED, created=0.5, group=other)
    for first in range(0, 20_000, 500):
        job.entries(0, range(first, first + 500), created=1 + first / 1000)
    ops = listed(recent(job, 50, [0], most=100_000))
    assert [op.seq for op in ops] == list(range(20_000 - len(ops), 20_000))
    assert 4_096 <= len(ops) < 4_096 + 500
    assert listed(recent(job, 50, [3])) == [Op(3, 0, "all_reduce", 0.5, None, None, None, False)]


# -- times of the nodes ----------------------------------------------------------------------------


def test_two_nodes_with_different_clocks() -> None:
    """One is 15 minutes behind, the other 3 seconds ahead: both ops are at the same time. The
    uncertainty of an unknown clock is absent, not a number."""
    job = Job()
    for rank, behind_s, uncertainty_ns in ((0, 900, 50_000), (1, -3, 70_000), (2, 0, None)):
        job.attempt.clocks.set([rank], rank + 1, uncertainty_ns, at(0), line(behind_s))
        created, completed = at(5 - behind_s), at(6 - behind_s)
        observe.entries(
            job.attempt, rank, job.group, 7, created=created, completed=completed, now=at(7)
        )
    ops = recent(job, 9)
    assert [(op.rank, op.enqueued, op.ended) for op in listed(ops)] == [
        (rank, 5, 6) for rank in (0, 1, 2)
    ]
    assert ops.uncertainty_ns == {0: 50_000, 1: 70_000}
    assert recent(job, 9, [1, 2]).uncertainty_ns == {1: 70_000}


def test_a_misjudged_clock_shows_nothing_of_the_future() -> None:
    """The clock is ahead by more than is known: an op is enqueued now at the latest."""
    job = Job()
    observe.entries(job.attempt, 0, job.group, 7, Flags.JOINED, created=at(60), now=at(7))
    assert [op.enqueued for op in listed(recent(job, 9))] == [9]


def test_what_a_reader_has_does_not_change() -> None:
    """The history of a view is as of that view, whatever is reported afterwards."""
    job = Job()
    job.entries(0, [7], Flags.JOINED, created=5)
    before = history(job.attempt, 9)
    job.entries(0, [7], Flags.COMPLETED, created=5, completed=9.5)
    job.entries(1, [7], Flags.JOINED, created=9)
    assert [(op.rank, op.ended) for op in listed(before.ops(range(4), 32))] == [(0, None)]
    assert [(op.rank, op.ended) for op in listed(recent(job, 10))] == [(0, 9.5), (1, None)]
