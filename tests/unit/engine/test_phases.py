"""Phases of programs in findings about hangs, stragglers, lost ranks and memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frd.engine.attempt import Attempt
from frd.engine.clocks.alignment import Alignment
from frd.engine.findings import text
from frd.engine.policy import Policy
from frd.engine.state.phases import MAX_ENDED, PhasesAt
from frd.forms import finding_from_json, finding_json
from frd.model import (
    AlignedNs,
    AttemptKey,
    Change,
    Kind,
    NodeRawNs,
    PhaseSpan,
    RankPhases,
    Suspect,
    SuspectPhase,
)
from tests.unit.engine.memory.test_findings import CALM
from tests.unit.engine.memory.test_findings import Job as MemoryJob
from tests.world import observe
from tests.world.job import Job, changes, hanging
from tests.world.memory import at, plus, ramp

S = 1_000_000_000


def span(path: str, since: int, until: int = 0) -> PhaseSpan:
    return PhaseSpan(tuple(path.split(" / ")), NodeRawNs(since), NodeRawNs(until))


def say(attempt: Attempt, rank: int, *spans: PhaseSpan) -> None:
    attempt.observe_phases(RankPhases(rank, spans))


def ago(job: Job, seconds: float) -> int:
    return int(job.now - seconds * S)


def suspect_of(job: Job) -> Suspect:
    (suspect,) = job.only().suspects
    return suspect


# -- hangs ---------------------------------------------------------------------------------------


def test_a_hang_says_the_phase_of_its_suspect() -> None:
    """Rank 2 is in eval of epoch 3, in which the others do not wait for it: key and evidence say
    so, other ranks' phases are not mentioned, and the finding survives a store."""
    job = hanging(2)
    epoch, began = ago(job, 60), ago(job, 4)
    say(job.attempt, 2, span("epoch 3", epoch), span("epoch 3 / eval", began))
    say(job.attempt, 0, span("epoch 3", epoch))
    opened, *_ = job.run(12)
    suspect = suspect_of(job)
    assert suspect.phase == SuspectPhase(("epoch 3", "eval"), AlignedNs(began))
    assert suspect.evidence.endswith("; in phase epoch 3 / eval since 22:13:19")
    assert opened.finding.suspects == (suspect,)
    document = finding_json(job.only())
    assert document["suspects"][0]["phase"] == {
        "path": ["epoch 3", "eval"],
        "since": "2023-11-14T22:13:19.000000Z",
    }
    assert finding_from_json(document) == job.only()


@pytest.mark.parametrize("is_over", [False, True])
def test_without_a_phase_nothing_is_said(is_over: bool) -> None:
    """A job that names no phase, or a rank that left eval before the others began to wait: the
    finding has no such key."""
    job = hanging(2)
    if is_over:
        say(job.attempt, 2, span("eval", ago(job, 60), ago(job, 1)))
    job.run(10)
    assert "phase" not in finding_json(job.only())["suspects"][0]
    assert "phase" not in suspect_of(job).evidence


def test_the_passing_of_time_and_better_clocks_are_no_news() -> None:
    """The same phase, while the estimate of the clock changes by a millisecond at each look: the
    finding opens and nothing more."""
    job = hanging(2)
    say(job.attempt, 2, span("eval", ago(job, 4)))
    events = job.run(12)
    for number in range(20):
        moved = AlignedNs(job.now + (number % 2) * 1_000_000)
        line = Alignment("test", moved, int(job.now), 1_000, 0.0, int(job.now))
        job.attempt.clocks.set([2], 1, 1_000, job.now, line)
        say(job.attempt, 2, *job.attempt.tables.phases._of[2].open)
        events += job.run(1)
    assert changes(events) == [Change.OPENED]


def test_a_suspect_that_goes_from_phase_to_phase_floods_no_one() -> None:
    """Rank 2 names another phase every second: the finding is updated every few seconds only."""
    job = hanging(12)
    updates = 0
    for number in range(60):
        say(job.attempt, 2, span(f"step {number}", int(job.now)))
        updates += len(job.run(1))
    assert 5 <= updates <= 15
    phase = suspect_of(job).phase
    assert phase is not None
    assert int(phase.path[0].removeprefix("step ")) >= 50


def test_names_of_phases_are_printable() -> None:
    """Line breaks, terminal codes and names of any length make one short line."""
    job = hanging(2)
    say(job.attempt, 2, span("a\n\x1b[31m" + "x" * 256, ago(job, 9)))
    job.run(12)
    suspect = suspect_of(job)
    assert suspect.phase is not None
    assert (suspect.phase.path[0] + suspect.evidence).isprintable()


def test_the_evidence_keeps_the_innermost_name() -> None:
    """A path of long names loses its outer ones; a name without text is shown as one."""
    for path, end in (
        (("x" * 64,) * 7 + ("eval",), "x / eval"),
        (("fit", "", "eval"), "in phase fit / '' / eval"),
    ):
        words = text.phase(SuspectPhase(path, AlignedNs(at(1)))).partition(" since ")[0]
        assert words.endswith(end)
        assert len(words) < 320


def test_a_new_process_of_the_rank_has_no_phase_yet() -> None:
    """Rank 2 was started again: what its predecessor was doing is forgotten."""
    job = hanging(2)
    say(job.attempt, 2, span("eval", ago(job, 9)))
    job.attempt.rank(observe.rank_info(2, 4, per_node=2, pid=9999))
    assert job.attempt.tables.phases.known(2) is None


# -- memory --------------------------------------------------------------------------------------


def memory_job() -> MemoryJob:
    """Memory of rank 1 rises from second 20 on."""
    return MemoryJob(CALM, plus(CALM, ramp(20, 3)))


def heard(job: MemoryJob, until: int, *, known_until: float | None = None) -> list[str]:
    """Evidence about rank 1 after each event; all is known of it up to half a second ago."""
    found: list[str] = []
    while job.second < until:
        as_of = job.second + 0.5 if known_until is None else known_until
        observe.watermarks(job.attempt, [], [0, 1], at(as_of))
        for event in job.run(job.second + 1):
            assert event.finding.kind is Kind.MEMORY_SPIKE
            found += [suspect.evidence for suspect in event.finding.suspects]
    return found


def test_memory_says_the_phase_in_which_it_began() -> None:
    """Rank 1 entered eval two seconds before its memory rose, and has left it since."""
    job = memory_job()
    say(job.attempt, 1, span("epoch", at(1)), span("epoch / eval", at(18)))
    heard(job, 21)
    say(job.attempt, 1, span("epoch / eval", at(18), at(20.9)), span("epoch", at(1)))
    evidence = heard(job, 26)
    assert evidence
    assert all("; began in phase epoch / eval since " in words for words in evidence)


def test_an_onset_that_is_in_no_phase_as_a_whole() -> None:
    """Eval began after the memory had begun to rise, or ended before: only the epoch around it
    certainly covers the onset."""
    for spans in ([span("epoch / eval", at(20.5))], [span("epoch / eval", at(2), at(19.5))]):
        job = memory_job()
        say(job.attempt, 1, span("epoch", at(1)), *spans)
        evidence = heard(job, 26)
        assert evidence
        assert all("; began in phase epoch since " in words for words in evidence)


def test_what_a_rank_did_after_its_last_report_is_not_known() -> None:
    """It was in eval when it last reported, ten seconds before: it may have left since."""
    job = memory_job()
    say(job.attempt, 1, span("eval", at(2)))
    evidence = heard(job, 26, known_until=10)
    assert evidence
    assert not any("phase" in words for words in evidence)


def test_a_phase_that_is_published_late_is_added() -> None:
    """The finding opens before the agent's next round: the phase comes as an update, once."""
    job = memory_job()
    say(job.attempt, 1)
    before = heard(job, 24)
    assert before
    assert not any("phase" in words for words in before)
    say(job.attempt, 1, span("eval", at(18)))
    after = heard(job, 25)
    assert any("; began in phase eval since " in words for words in after)
    say(job.attempt, 1, span("next", at(25)))
    assert all("; began in phase eval since " in words for words in heard(job, 30))


# -- the table -----------------------------------------------------------------------------------


@pytest.fixture
def attempt() -> Attempt:
    attempt = Attempt(AttemptKey("job", 0), 1, Policy(), at(0))
    attempt.rank(observe.rank_info(0, 1))
    return attempt


def during(attempt: Attempt, begin: float, end: float) -> tuple[str, ...]:
    phases = PhasesAt(attempt.tables.phases, attempt.tables.ranks, at(1_000))
    found = phases.during(0, at(begin), at(end))
    return () if found is None else found.path


def test_the_innermost_phase_that_covers_an_interval(attempt: Attempt) -> None:
    """Reports come in any order and repeat what was said."""
    said = [
        [span("a", at(1)), span("a / b", at(2))],
        [span("a / b", at(2), at(5)), span("a", at(1)), span("a / c", at(6))],
        [span("a / c", at(6), at(8)), span("a", at(1), at(9))],
    ]
    for spans in (*said, said[2]):
        say(attempt, 0, *spans)
    assert during(attempt, 3, 4) == ("a", "b")
    assert during(attempt, 4, 7) == ("a",)
    assert during(attempt, 6, 8) == ("a", "c")
    assert during(attempt, 8, 10) == ()
    assert during(attempt, 0, 1) == ()


def test_the_table_is_bounded(attempt: Attempt) -> None:
    """A rank that reports phases for ever: the last ones are kept."""
    for second in range(1_000):
        say(attempt, 0, span("next", at(second), at(second + 1)))
    known = attempt.tables.phases.known(0)
    assert known is not None
    assert [one.until_ns for one in known.ended] == [
        NodeRawNs(at(second + 1)) for second in range(1_000 - MAX_ENDED, 1_000)
    ]


def test_times_move_with_the_clock_of_the_rank(attempt: Attempt) -> None:
    """Another agent with another clock takes the rank over: its phases stay when they were."""
    say(attempt, 0, span("b", at(2), at(5)), span("a", at(1)))
    attempt.tables.move_times(0, 7)
    known = attempt.tables.phases.known(0)
    assert known is not None
    assert known.open == (replace(span("a", at(1)), since_ns=NodeRawNs(at(1) + 7)),)
    assert known.ended == (span("b", at(2) + 7, at(5) + 7),)
    attempt.start_over(1)
    assert attempt.tables.phases.known(0) is None
