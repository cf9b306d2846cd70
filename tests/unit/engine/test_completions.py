"""Completions that come in separate batches, as they do where ops last."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from frd.engine.policy import Policy
from frd.engine.views import AttemptView
from frd.errors import WireError
from frd.model import Flags
from tests.world import observe
from tests.world.attempt import Job, S, at


class Ops:
    """Four ranks of one group; op n is enqueued at second n and lasts for a quarter of one."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.job = Job(policy=policy)
        self.attempt = self.job.attempt

    def report(self, rank: int, seqs: Iterable[int], flags: int) -> None:
        seq = np.array([*seqs])
        ended = (at(0.25) + seq * S) * bool(flags & Flags.COMPLETED)
        observe.entries(
            self.attempt, rank, self.job.group, seq, flags,
            created=at(0) + seq * S, completed=ended, now=at(300),
        )  # fmt: skip

    def view(self) -> AttemptView:
        return self.attempt.view(at(310))


def test_when_an_op_ended_is_learned_whenever_it_is_reported() -> None:
    """Three ops join in one batch and complete in another: as long as if reported together."""
    apart, together = Ops(), Ops()
    for rank in range(4):
        apart.report(rank, (1, 2, 3), Flags.JOINED)
        together.report(rank, (1, 2, 3), Flags.JOINED | Flags.COMPLETED)
    assert apart.view().duration == {}
    for rank in range(4):
        apart.report(rank, (1, 2), Flags.COMPLETED)
        apart.report(rank, (3,), Flags.COMPLETED)
    duration = apart.view().duration["all_reduce"]
    assert duration == together.view().duration["all_reduce"]
    assert sum(duration.counts) == 3
    assert duration.total == pytest.approx(3 / 4)


def test_ends_of_ops_that_are_kept_no_more_are_passed_over() -> None:
    """More are open than are kept: how long ops last is known from the others, and right."""
    job = Ops(Policy(max_open_collectives=64, max_open_collectives_per_group=64))
    for rank in range(4):
        job.report(rank, range(1, 201), Flags.JOINED)
    for rank in range(4):
        job.report(rank, range(1, 201), Flags.COMPLETED)
    duration = job.view().duration["all_reduce"]
    kept = sum(duration.counts)
    assert 0 < kept <= 64
    assert duration.total == pytest.approx(kept / 4)


def test_what_retires_by_the_thousand_is_learned_from_together() -> None:
    """Nobody looks for a while: what is over does not pile up, and all of it is counted."""
    job = Ops()
    for first in range(1, 40_000, 1_000):
        for rank in range(4):
            job.report(rank, range(first, first + 1_000), Flags.JOINED | Flags.COMPLETED)
        assert sum(map(len, job.attempt._collectives._retired)) <= 8_192
    view = job.view()
    assert view.groups[0].matched == 40_000
    assert sum(view.duration["all_reduce"].counts) == 40_000


def test_marks_of_a_rank_that_is_no_member_are_refused() -> None:
    """One row of two is of no member of its group: the error names it, and nothing is applied."""
    job = Ops()
    rows = [(job.attempt.pair(0, job.job.group), 5, -1, 5, 0), (-1, 5, -1, 5, 0)]
    with pytest.raises(WireError, match="row 1: the rank is not in the group"):
        observe.watermarks(job.attempt, rows, (), 0)
    group = job.attempt.snapshot(at(0)).pairs
    assert group.joined.max() == -1


def test_rows_that_come_after_the_watermarks_that_passed_them() -> None:
    """The rank is in op 12 since second 12, as its agent said; then rows of ops 5 to 10 arrive."""
    job = Ops()
    row = (job.attempt.pair(0, job.job.group), 12, -1, 11, at(12))
    observe.watermarks(job.attempt, [row], 0, at(13))
    job.report(0, range(5, 11), Flags.JOINED)
    group = job.attempt.snapshot(at(13)).pairs
    assert (group.joined[0], group.completed[0]) == (12, 11)
    assert group.head_since[0] == at(12)
