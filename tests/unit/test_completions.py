"""Completions that come in batches of their own, as they do where ops last."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from frd.engine.attempt import Attempt
from frd.engine.policy import Policy
from frd.errors import WireError
from frd.model import AlignedNs, AttemptKey, Flags, GroupInfo
from frd.views import AttemptView
from tests.world import observe
from tests.world.observe import rank_info

S = 1_000_000_000
START = AlignedNs(1_800_000_000 * S)


class Job:
    """Four ranks of one group; op n is enqueued at second n and lasts for a quarter of one."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.attempt = Attempt(AttemptKey("job", 0), 4, policy or Policy(), START)
        for rank in range(4):
            self.attempt.rank(rank_info(rank), START)
        self.group = self.attempt.group(GroupInfo("0", "dp", (0, 1, 2, 3)))

    def tell(self, rank: int, seqs: Iterable[int], flags: int) -> None:
        seq = np.array(list(seqs), np.int64)
        created = START + seq * S
        completed = (created + S // 4) * bool(flags & Flags.COMPLETED)
        observe.entries(
            self.attempt, rank, self.group, seq, flags,
            created=created, completed=completed, now=START,
        )  # fmt: skip

    def view(self) -> AttemptView:
        return self.attempt.view(AlignedNs(START + 10 * S))


def test_when_an_op_ended_is_learned_whenever_it_is_told() -> None:
    """Three ops join in one batch and complete in another: as long as if told at once."""
    apart, at_once = Job(), Job()
    for rank in range(4):
        apart.tell(rank, (1, 2, 3), Flags.JOINED)
        at_once.tell(rank, (1, 2, 3), Flags.JOINED | Flags.COMPLETED)
    assert apart.view().duration == {}
    for rank in range(4):
        apart.tell(rank, (1, 2), Flags.COMPLETED)
        apart.tell(rank, (3,), Flags.COMPLETED)
    told = apart.view().duration["all_reduce"]
    assert told == at_once.view().duration["all_reduce"]
    assert sum(told.counts) == 3
    assert told.total == pytest.approx(3 / 4)


def test_ends_of_ops_that_are_kept_no_more_are_passed_over() -> None:
    """More are open than are kept: how long ops last is told by those that are, and truly."""
    job = Job(Policy(max_open_collectives=64, max_open_collectives_per_group=64))
    for rank in range(4):
        job.tell(rank, range(1, 201), Flags.JOINED)
    for rank in range(4):
        job.tell(rank, range(1, 201), Flags.COMPLETED)
    told = job.view().duration["all_reduce"]
    kept = sum(told.counts)
    assert 0 < kept <= 64
    assert told.total == pytest.approx(kept / 4)


def test_what_retires_by_the_thousand_is_learned_from_at_once() -> None:
    """Nobody looks for a while: what is over does not pile up, and all of it is counted."""
    job = Job()
    for first in range(1, 40_000, 1_000):
        for rank in range(4):
            job.tell(rank, range(first, first + 1_000), Flags.JOINED | Flags.COMPLETED)
        assert sum(map(len, job.attempt._collectives._retired)) <= 8_192
    view = job.view()
    assert view.groups[0].matched == 40_000
    assert sum(view.duration["all_reduce"].counts) == 40_000


def test_marks_of_a_rank_that_is_no_member_are_refused() -> None:
    """One row of two is of no member of its group: the error names it, and nothing is applied."""
    job = Job()
    rows = [(job.attempt.pair(0, job.group), 5, -1, 5, 0), (-1, 5, -1, 5, 0)]
    with pytest.raises(WireError, match="row 1: the rank is not in the group"):
        observe.watermarks(job.attempt, rows, (), 0, START)
    (group,) = job.attempt.snapshot(START).groups
    assert group.enqueued.max() == -1


def test_rows_that_come_after_the_watermarks_that_passed_them() -> None:
    """The rank is in op 12 since second 12, as its agent said; then rows of ops 5 to 10 arrive."""
    job = Job()
    row = (job.attempt.pair(0, job.group), 12, -1, 11, START + 12 * S)
    observe.watermarks(job.attempt, [row], 0, START + 13 * S, AlignedNs(START + 13 * S))
    job.tell(0, range(5, 11), Flags.JOINED)
    (group,) = job.attempt.snapshot(AlignedNs(START + 13 * S)).groups
    assert (group.enqueued[0], group.completed[0]) == (12, 11)
    assert group.head_since[0] == START + 12 * S
