"""Findings about memory that an earlier process opened, and the same samples again."""

from __future__ import annotations

from dataclasses import replace

from frd.model import Change, Confidence, Finding, Kind, MemoryEvent, MemoryEventKind, NodeNs
from tests.unit.engine.memory.test_findings import CALM, Job
from tests.world.memory import S, at, plus, ramp, step

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


def run_out(job: Job) -> None:
    kill = MemoryEvent(1, MemoryEventKind.OOM_KILL, NodeNs(0))
    job.attempt.memory.event(kill, at(job.second), S // 1000, at(job.second))


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
    """What the earlier process opened is over as if it had gone on."""
    earlier = spike_at(26)
    job = restarted(earlier, rank_1=plus(CALM, ramp(20, 1, 7), step(27, -7)))
    (closed,) = job.run(40)
    assert (closed.change, closed.finding.id) == (CLOSED, earlier.id)
    assert closed.finding.close_reason == "memory fell back"


def test_memory_that_runs_out_succeeds_the_earlier_finding() -> None:
    """As it does within one process: the spike closes, an oom opens."""
    earlier = spike_at(26)
    job = restarted(earlier)
    job.run(28)
    run_out(job)
    closed, opened = job.run(30)
    assert (closed.change, closed.finding.id) == (CLOSED, earlier.id)
    assert closed.finding.close_reason == "memory ran out"
    assert (opened.change, opened.finding.kind) == (OPENED, Kind.OOM)


def test_memory_that_ran_out_is_reported_once() -> None:
    """The agent sends the failed allocation again, too."""
    before = Job(CALM, GROWS)
    before.run(28)
    run_out(before)
    (_, opened) = before.run(30)
    earlier = opened.finding
    job = restarted(earlier)
    job.run(28)
    run_out(job)
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
