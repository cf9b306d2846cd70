"""What ranks are asked before a wait is a finding, and what that makes of the finding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest

from frd.engine.engine import Engine
from frd.engine.evidence.questions import MOST_EARLY, Occasion
from frd.engine.policy import Policy
from frd.model import (
    AlignedNs,
    Certainty,
    Change,
    Confidence,
    FindingEvent,
    NodeRawNs,
    WaitKind,
    WaitsFor,
)
from frd.wire.waits import WaitReport
from tests.world.asked import Asked, stack_text
from tests.world.job import Job

S = 10**9
EARLY, SUSPECTED = Occasion.EARLY, Occasion.SUSPECTED


def running(world: int = 4, stall_after_s: float = 10.0, backends: Sequence[str] = ()) -> Asked:
    """A job that has done one step, of a service that asks its ranks."""
    engine = Engine(Policy(stall_after_s=stall_after_s), can_ask=True)
    job = Job(world, engine=engine, backends=backends).group("dp", range(world))
    job.all_reduce("dp", 0).run(1)
    return Asked(job)


def waiting(asked: Asked, *absent: int, seq: int = 1) -> Asked:
    """These ranks do not come to the step."""
    asked.job.join("dp", [rank for rank in range(asked.job.world) if rank not in absent], seq)
    return asked


def in_read(asked: Asked, rank: int) -> None:
    """Its agent answers that it is in a read."""
    words = WaitsFor(WaitKind.FILE_READ, Certainty.SEEN, what="/data/7.tar", says="its main thread")
    now = asked.job.now
    asked.reports[rank] = WaitReport(words, NodeRawNs(now - 3 * S), NodeRawNs(now))


def opened(events: Sequence[FindingEvent]) -> FindingEvent:
    (event,) = [event for event in events if event.change is Change.OPENED]
    return event


def confidence(asked: Asked) -> Confidence:
    (suspect,) = asked.job.only().suspects
    return suspect.confidence


# -- when which ranks are asked ----------------------------------------------------------------


def test_a_wait_that_has_lasted_for_half_of_its_threshold() -> None:
    """Once for its stack the rank that has not come, with one that waits; then what it is blocked
    in, every second."""
    asked = waiting(running(), 2)
    asked.run(4.5)
    assert asked.questions == []
    asked.run(5)
    ((at, ranks),) = asked.of(EARLY)
    assert at == pytest.approx(6, abs=1)
    assert ranks == [2, 0]
    assert {tuple(ranks) for _, ranks in asked.of(SUSPECTED)} == {(2,)}
    assert 4 <= len(asked.of(SUSPECTED)) <= 6
    assert asked.job.open() == []


def test_a_long_wait_is_inspected_shortly_before_it_is_a_finding() -> None:
    """Of a threshold of a minute, only the last seconds."""
    asked = waiting(running(stall_after_s=60.0), 2)
    asked.run(59)
    assert len(asked.of(EARLY)) == 1
    times = [at for at, _ in asked.of(SUSPECTED)]
    assert times[0] == pytest.approx(55, abs=1.5)


def test_a_pause_is_asked_about_once() -> None:
    """A checkpoint of eight seconds, each time after ten steps: once it is learned, never."""
    asked, seq = running(), count(1)
    for _ in range(4):
        for _ in range(10):
            asked.job.all_reduce("dp", next(seq)).run(0.5)
        at = next(seq)
        waiting(asked, 0, seq=at).run(8)
        asked.job.join("dp", [0], at).complete("dp", range(4), at).run(0.5)
    assert 1 <= len(asked.of(EARLY)) <= 2
    assert asked.job.events == []


def test_an_hour_of_a_healthy_job() -> None:
    """Steps of two seconds, and twice as long an evaluation every minute: no request."""
    asked = running()
    job = asked.job
    for seq in range(1, 1800):
        absent = (0,) if seq % 30 == 0 else ()
        waiting(asked, *absent, seq=seq)
        for _ in range(1 + len(absent)):
            job.now = AlignedNs(job.now + 2 * S)
            job.report()
            job.advance()
            asked.answer_all()
        job.join("dp", absent, seq).complete("dp", range(4), seq)
    assert asked.questions == []
    assert job.events == []


def test_a_large_incident() -> None:
    """Thirty ranks are late: eight of them and a witness are asked."""
    asked = waiting(running(64), *range(30))
    asked.run(9)
    ((_, ranks),) = asked.of(EARLY)
    assert len(ranks) == MOST_EARLY + 1
    assert sum(rank >= 30 for rank in ranks) == 1
    assert all(len(ranks) <= MOST_EARLY for _, ranks in asked.of(SUSPECTED))


def test_an_incident_that_was_closed_by_hand() -> None:
    """It lasts, and is not asked about again."""
    asked = waiting(running(), 2)
    asked.run(12)
    finding = asked.job.only()
    asked.job.engine.dismiss(finding.id, asked.job.now, "known")
    asked.clear()
    asked.run(20)
    assert asked.of(EARLY, SUSPECTED) == []


# -- how the finding opens ---------------------------------------------------------------------


def test_a_finding_opens_with_what_was_answered() -> None:
    """With the line of its suspect, with what that is blocked in, and with a witness."""
    asked = waiting(running(), 2)
    asked.texts = {0: stack_text("", line=7)}
    events = asked.run(12, lambda: in_read(asked, 2))
    finding = opened(events).finding
    (suspect,) = finding.suspects
    assert suspect.stack == ("train.py:88 in exchange",)
    assert suspect.confidence is Confidence.HIGH
    assert suspect.waits_for is not None
    assert suspect.waits_for.what == "/data/7.tar"
    assert finding.witness is not None
    assert finding.witness.rank == 0
    assert "train.py:88" in finding.summary


def test_what_was_answered_before_the_wait() -> None:
    """The stack of an earlier pause says nothing of this one."""
    asked = running()
    waiting(asked, 2).run(7)
    asked.job.join("dp", [2], 1).complete("dp", range(4), 1).run(1)
    asked.job.all_reduce("dp", 2).run(1)
    waiting(asked, 1, seq=3)
    asked.texts = {1: "no stack"}
    event = opened(asked.run(40))
    assert event.finding.suspects[0].stack == ()


def test_a_rank_that_waits_for_another_one_is_never_named() -> None:
    """Rank 3 is in recv: at the threshold that is known, and rank 2 alone is named."""
    asked = waiting(running(), 2, 3)
    asked.texts = {3: stack_text()}
    event = opened(asked.run(12))
    assert [s.rank for s in event.finding.suspects] == [2]
    assert event.finding.victims == (0, 1, 3)


# -- high confidence ---------------------------------------------------------------------------


def test_nothing_was_answered_yet() -> None:
    """The agents are slow: the finding opens in time, not for sure, and is sure later."""
    asked = waiting(running(), 2)
    asked.job.run(12)
    assert confidence(asked) is Confidence.MEDIUM
    in_read(asked, 2)
    asked.answer_all()
    asked.run(1)
    assert confidence(asked) is Confidence.HIGH


@pytest.mark.parametrize(
    ("backends", "expected"),
    [(["nccl"], Confidence.HIGH), (["gloo"], Confidence.MEDIUM), ([], Confidence.MEDIUM)],
)
def test_a_stack_that_cannot_be_had(backends: list[str], expected: Confidence) -> None:
    """The evidence says so. If its backend does not record sends, it may be in one."""
    asked = waiting(running(backends=backends), 2)
    asked.texts = {2: "py-spy: permission denied"}
    asked.run(12)
    (suspect,) = asked.job.only().suspects
    assert suspect.confidence is expected
    assert "its stack cannot be had: it shows no frames of Python" in suspect.evidence


def test_a_stack_that_cannot_be_had_of_two_suspects() -> None:
    """The other one may be the cause of both."""
    asked = waiting(running(backends=["nccl"]), 1, 2)
    asked.texts = {2: ""}
    asked.run(14, lambda: in_read(asked, 1))
    assert {s.rank: s.confidence for s in asked.job.only().suspects} == {
        1: Confidence.HIGH,
        2: Confidence.MEDIUM,
    }


def test_where_no_rank_can_be_asked() -> None:
    """No question is asked: what ranks do is not known, and need not be."""
    job = Job().group("dp", range(4)).all_reduce("dp", 0)
    job.run(1)
    job.join("dp", [0, 1, 3], 1).run(7)
    assert confidence(Asked(job)) is Confidence.HIGH


def test_a_rank_that_was_never_seen() -> None:
    """Sixteen of seventeen ranks are in a call; of the last one no agent has ever heard, so it has
    no line in which it was seen."""
    engine = Engine(Policy(stall_after_s=10.0), can_ask=True)
    job = Job(16, engine=engine).group("dp", range(16)).all_reduce("dp", 0)
    job.attempt.world_size = 17
    job.run(1)
    asked = Asked(job)
    asked.texts = dict.fromkeys(range(16), stack_text("monitored_barrier"))
    asked.run(40)
    assert engine.faults == []
    (finding,) = job.open()
    assert [suspect.rank for suspect in finding.suspects] == [16]
