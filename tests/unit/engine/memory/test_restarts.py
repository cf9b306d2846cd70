"""Findings about memory that an earlier process opened, and the same samples again."""

from __future__ import annotations

from dataclasses import replace

from frd.model import Change, Confidence, Finding, Kind
from tests.unit.engine.memory.test_findings import CALM, Job
from tests.world.memory import at, plus, ramp, step

OPENED, UPDATED, CLOSED = Change.OPENED, Change.UPDATED, Change.CLOSED
GROWS = plus(CALM, ramp(20, 1))
"""Begins at 20 s, fills a node of 16 GiB within 14 s."""


def spike_at(until: int) -> Finding:
    """The finding about rank 1, which begins to grow at 20 s, as it is at a later second."""
    job = Job(CALM, GROWS)
    job.run(until)
    (finding,) = job.engine.status_view(at(until)).findings
    return finding


def restarted(*open_findings: Finding, rank_1: object = GROWS) -> Job:
    job = Job(CALM, rank_1)  # type: ignore[arg-type]
    job.engine.restore(open_findings, at(26))
    return job


def test_the_same_rise_opens_no_second_finding() -> None:
    """The agents send the samples again that the earlier process has judged."""
    earlier = spike_at(26)
    job = restarted(earlier)
    assert job.run(30) == []
    assert job.engine.status_view(at(30)).findings == [earlier]


def test_a_finding_that_was_closed_by_hand_stays_closed() -> None:
    """Nor does the same rise open another one."""
    job = restarted(spike_at(26))
    (finding,) = job.engine.status_view(at(26)).findings
    job.engine.dismiss(finding.id, at(26), "closed by hand: known")
    assert job.run(30) == []


def test_memory_that_falls_back_ends_the_earlier_finding() -> None:
    """What the earlier process opened is over as if it had gone on. Its forecast goes first."""
    earlier = spike_at(26)
    job = restarted(earlier, rank_1=plus(CALM, ramp(20, 1, 7), step(27, -7)))
    updated, closed = job.run(40)
    assert updated.finding.id == earlier.id
    assert "exhausted in" in earlier.summary
    assert "exhausted in" not in updated.finding.summary + closed.finding.summary
    assert (closed.change, closed.finding.id) == (CLOSED, earlier.id)
    assert closed.finding.close_reason == "memory fell back"


def test_memory_that_runs_out_succeeds_the_earlier_finding() -> None:
    """As it does within one process: the spike closes, an oom opens."""
    earlier = spike_at(26)
    job = restarted(earlier)
    job.run(28)
    job.run_out(1)
    closed, opened = job.run(30)
    assert (closed.change, closed.finding.id) == (CLOSED, earlier.id)
    assert closed.finding.close_reason == "memory ran out"
    assert (opened.change, opened.finding.kind) == (OPENED, Kind.OOM)


def test_memory_that_ran_out_is_reported_once() -> None:
    """The agent sends the failed allocation again, too."""
    before = Job(CALM, GROWS)
    before.run(28)
    before.run_out(1)
    (_, opened) = before.run(30)
    earlier = opened.finding
    job = restarted(earlier)
    job.run(28)
    job.run_out(1)
    assert job.run(32) == []


def test_a_later_rise_of_the_same_rank_is_news() -> None:
    """The memory of the rank fell back during the restart and grows again."""
    earlier = spike_at(26)
    job = restarted(earlier, rank_1=plus(CALM, ramp(40, 1)))
    events = job.run(50)
    assert (events[0].change, events[0].finding.kind) == (OPENED, Kind.MEMORY_SPIKE)
    assert events[0].finding.id != earlier.id


def test_a_surer_look_updates_the_earlier_finding() -> None:
    """It was opened while a rank's samples were missing; now they are there."""
    job = Job(CALM, GROWS)
    (opened, *_) = job.run(26)
    (suspect,) = opened.finding.suspects
    doubtful = replace(
        opened.finding, suspects=(replace(suspect, confidence=Confidence.MEDIUM),), unknown=(0,)
    )
    (updated,) = restarted(doubtful).run(30)
    assert (updated.change, updated.finding.id) == (UPDATED, doubtful.id)
    assert [s.confidence for s in updated.finding.suspects] == [Confidence.HIGH]
    assert updated.finding.unknown == ()


def test_a_finding_that_expired_does_not_open_again() -> None:
    """Nothing new has come for long, and the memory is as it was."""
    earlier = spike_at(26)
    job = restarted(earlier)
    job.engine.adopt(replace(job.engine.policy, lost_close_after_s=5))
    (closed,) = job.run(33)
    assert (closed.change, closed.finding.id) == (CLOSED, earlier.id)
    assert closed.finding.close_reason == "nothing new for 5 s"


def test_a_surer_look_names_another_rank() -> None:
    """The earlier process had no samples of rank 1, which rose before rank 2: it named rank 2."""
    late = plus(CALM, ramp(21, 1))
    before = Job(CALM, CALM, late)
    (opened, *_) = before.run(26)
    (suspect,) = opened.finding.suspects
    doubtful = replace(suspect, confidence=Confidence.MEDIUM)
    earlier = replace(opened.finding, suspects=(doubtful,), unknown=(1,))
    job = Job(CALM, GROWS, late)
    job.engine.restore([earlier], at(27))
    updated = [event for event in job.run(34) if event.change is UPDATED]
    assert {event.finding.id for event in updated} == {earlier.id}
    (suspect,) = updated[-1].finding.suspects
    assert (suspect.rank, suspect.confidence) == (1, Confidence.HIGH)


def test_what_comes_after_the_restart_is_added() -> None:
    """Ranks 0 and 3 begin to rise later: they are victims of the same finding, as rank 2 is."""
    earlier = replace(spike_at(26), victims=(2,))
    job = Job(plus(CALM, ramp(28, 1)), GROWS, CALM, plus(CALM, ramp(31, 1)))
    job.engine.restore([earlier], at(26))
    events = job.run(36)
    assert {event.finding.id for event in events} == {earlier.id}
    assert [event.finding.victims for event in events] == [(0, 2), (0, 2, 3)]
    assert [s.rank for s in events[-1].finding.suspects] == [1]


def test_the_end_of_another_rise_ends_no_earlier_finding() -> None:
    """The finding names rank 1, whose memory goes on to rise; that of rank 0 falls back."""
    earlier = replace(spike_at(26), victims=(0,))
    first = plus(CALM, ramp(18, 1, 9), step(27, -9))
    job = Job(first, GROWS)
    job.engine.restore([earlier], at(26))
    assert CLOSED not in [event.change for event in job.run(32) if event.finding.id == earlier.id]
