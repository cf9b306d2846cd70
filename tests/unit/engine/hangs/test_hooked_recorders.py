"""Recorders of hooks (torch 2.15) show less: not when an op ended that is marked when it is issued,
and not a wait in a batch of sends."""

from __future__ import annotations

import pytest

from frd.model import HIDDEN, UNKNOWN_SEQ, UNSHOWN, Confidence, Reason
from tests.world.job import Job


def marked_when_issued(*, joined: dict[int, int]) -> Job:
    """Four ranks, all in one group; the last op of each counts as in flight."""
    job = Job().group("dp", range(4))
    for seq in range(1, 4):
        job.all_reduce("dp", seq)
    for rank, seq in joined.items():
        if seq > 3:
            job.join("dp", [rank], seq)
        job.marks["dp", rank] = [seq, UNSHOWN, seq - 1, job.now]
    return job


def test_a_rank_that_does_not_come() -> None:
    """Rank 2 has not joined op 4, which the others were marked to have ended when they issued it.
    Nothing shows that they wait for it, so its confidence is medium."""
    job = marked_when_issued(joined={0: 4, 1: 4, 2: 3, 3: 4})
    job.run(12)
    finding = job.only()
    (suspect,) = finding.suspects
    assert (suspect.rank, suspect.reason) == (2, Reason.CPU_STUCK)
    assert suspect.confidence is Confidence.MEDIUM
    assert "whether the others wait is not known: no entry of theirs shows" in suspect.evidence
    assert finding.victims == (0, 1, 3)


@pytest.mark.parametrize("after", [0, 1])
def test_an_op_that_all_have_joined_is_over(after: int) -> None:
    """The job pauses, after an op that all members have joined: nothing waits. `after`: one more op
    that all join while the last reports are still of the one before."""
    job = marked_when_issued(joined=dict.fromkeys(range(4), 4))
    job.run(30)
    assert job.findings() == []
    for rank in range(4 * after):
        job.join("dp", [rank], 5)
        job.marks["dp", rank] = [5, UNSHOWN, 4, job.now]
    job.run(30)
    assert job.findings() == []


@pytest.mark.parametrize(("started", "confidence"), [(HIDDEN, "medium"), (UNKNOWN_SEQ, "high")])
def test_a_rank_that_may_wait_in_a_batch(started: int, confidence: str) -> None:
    """Rank 2 looks idle while the others wait for it. Its newest op is a send: it may wait in the
    batch of it."""
    job = Job().group("dp", range(4))
    job.all_reduce("dp", 1)
    job.run(2)
    job.join("dp", [0, 1, 3], 2)
    job.marks["dp", 2][1] = started
    job.run(12)
    (suspect,) = job.only().suspects
    assert (suspect.rank, suspect.confidence.value) == (2, confidence)
    assert ("it may wait in a batch of sends" in suspect.evidence) is (started == HIDDEN)
