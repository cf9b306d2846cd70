"""The pace of jobs: completed collectives a second, sampled at given times."""

from __future__ import annotations

import dataclasses

from frd.engine.views import AttemptView
from frd.model import AlignedNs, AttemptKey, Flags
from frd.service.state import Paces
from tests.world.attempt import Job, at
from tests.world.views import TRAIN, attempt_view, rank_view

OTHER = AttemptKey("other", 0)


def view(matched: int, key: AttemptKey = TRAIN) -> AttemptView:
    return dataclasses.replace(attempt_view([rank_view(0)], key=key), matched=matched)


def sampled(*samples: tuple[float, int]) -> tuple[float | None, ...]:
    """Of samples of (second, total)."""
    paces = Paces()
    for second, matched in samples:
        paces.sample([view(matched)], at(second))
    return paces.known[TRAIN]


def test_collectives_a_second() -> None:
    """The first sample has nothing to be compared with; then 50 in 5 s, none, and 3 in 10 s."""
    assert sampled((0, 100), (5, 150), (10, 150), (20, 153)) == (None, 10.0, 0.0, 0.3)


def test_a_job_that_starts_again() -> None:
    """Its total falls: it is slow, not faster than before."""
    assert sampled((0, 100), (5, 20), (10, 45)) == (None, 0.0, 5.0)


def test_no_time_has_passed() -> None:
    """The service has evaluated nothing since the last sample, or its clock was set back: unknown,
    and no division by nothing."""
    assert sampled((0, 100), (0, 100), (-5, 200), (5, 300)) == (None, None, None, 10.0)


def test_five_minutes_are_kept() -> None:
    """A job that runs for long has sixty values, the newest last."""
    recent = sampled(*((5 * n, n * n) for n in range(500)))
    assert len(recent) == 60
    assert recent[-1] == (499**2 - 498**2) / 5


def test_an_attempt_that_is_absent_is_forgotten() -> None:
    """It is not in the list, and when it comes back it begins without a value. What was published
    before does not change."""
    paces = Paces()
    paces.sample([view(0), view(0, OTHER)], at(0))
    paces.sample([view(10), view(5, OTHER)], at(5))
    before = paces.known
    paces.sample([view(20)], at(10))
    assert paces.known.keys() == {TRAIN}
    assert before[OTHER] == (None, 1.0)
    paces.sample([view(30), view(9, OTHER)], at(15))
    assert paces.known[TRAIN] == (None, 2.0, 2.0, 2.0)
    assert paces.known[OTHER] == (None,)


def test_the_total_of_an_engine() -> None:
    """Each collective that all members have completed counts once; one that a member is inside of
    does not count."""
    job, paces = Job(2), Paces()
    for second in (0, 5):
        paces.sample([job.attempt.view(at(second))], AlignedNs(at(second)))
        for rank in (0, 1):
            job.entries(rank, range(4 * second, 4 * second + 20), created=second)
    job.entries(0, [40], created=9)
    job.entries(1, [40], Flags.JOINED, created=9)
    paces.sample([job.attempt.view(at(10))], at(10))
    assert paces.known[AttemptKey("job", 0)] == (None, 4.0, 4.0)
