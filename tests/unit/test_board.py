"""The open findings of a watcher: one a subject, told when it is news, attachments kept."""

from __future__ import annotations

from frd.engine.findings.board import Board
from frd.model import (
    Activity,
    AlignedNs,
    Change,
    Confidence,
    Finding,
    FindingEvent,
    FindingState,
    Kind,
    Reason,
    Suspect,
)

S = 1_000_000_000


def board() -> Board:
    return Board(frozenset({Kind.STRAGGLER}), lambda finding: finding.suspects[0].rank)


def claim(rank: int, evidence: str = "was late") -> Finding:
    suspect = Suspect(rank, "node0", Reason.LATE, Confidence.HIGH, evidence)
    return Finding(
        "", Kind.STRAGGLER, FindingState.OPEN, "job", 0, AlignedNs(0), suspects=(suspect,)
    )


def changes(events: list[FindingEvent]) -> list[Change]:
    return [event.change for event in events]


def test_a_subject_is_one_finding_from_its_opening_to_its_end() -> None:
    """Rank 3 is told of three times: opened, nothing new, something new; then it is over."""
    findings = board()
    (opened,) = findings.put(claim(3), AlignedNs(S))
    assert findings.put(claim(3), AlignedNs(2 * S)) == []
    (updated,) = findings.put(claim(3, "was very late"), AlignedNs(3 * S))
    (closed,) = findings.close(3, AlignedNs(4 * S), "no longer late")
    assert changes([opened, updated, closed]) == [Change.OPENED, Change.UPDATED, Change.CLOSED]
    assert {e.finding.id for e in (opened, updated, closed)} == {opened.finding.id}
    assert (closed.finding.opened_at, closed.finding.closed_at) == (S, 4 * S)
    assert closed.finding.close_reason == "no longer late"
    assert closed.finding.suspects[0].evidence == "was very late"
    assert not len(findings)
    assert findings.close(3, AlignedNs(5 * S), "again") == []


def test_what_changes_quietly_is_seen_by_who_asks() -> None:
    """A quiet change is no event, but the next question shows it."""
    findings = board()
    findings.put(claim(3), AlignedNs(S))
    assert findings.put(claim(3, "was very late"), AlignedNs(2 * S), quiet=True) == []
    assert findings.findings(AlignedNs(2 * S))[0].suspects[0].evidence == "was very late"


def test_a_stack_stays_through_later_versions() -> None:
    """A stack that came between two looks is in the finding after both."""
    findings = board()
    (opened,) = findings.put(claim(3), AlignedNs(S))
    stack = ("train.py:88 in load_batch",)
    events = findings.attach(
        opened.finding.id, rank=3, activity=Activity(stack), note="", dump="dump-1"
    )
    assert events is not None
    assert changes(events) == [Change.UPDATED]
    (event,) = findings.put(claim(3, "was very late"), AlignedNs(2 * S))
    assert event.finding.suspects[0].stack == stack
    assert event.finding.suspects[0].evidence.startswith("was very late; main thread at train.py")
    assert event.finding.dump == "dump-1"
    assert findings.attach("unknown", rank=3, activity=Activity(stack), note="", dump=None) is None


def test_a_finding_from_before_a_restart_goes_on() -> None:
    """A restored finding is found again by its subject, and expires when nobody sees it."""
    findings, earlier = board(), board()
    (opened,) = earlier.put(claim(3), AlignedNs(S))
    findings.restore(opened.finding, AlignedNs(10 * S))
    assert findings.put(claim(3), AlignedNs(11 * S)) == []
    assert findings.expire(AlignedNs(20 * S), 10.0) == []
    (closed,) = findings.expire(AlignedNs(21 * S), 10.0)
    assert closed.finding.id == opened.finding.id
    assert closed.finding.close_reason == "nothing new for 10 s"


def test_an_attempt_that_ends_closes_what_is_open() -> None:
    """All subjects but those of the excepted kind."""
    findings = board()
    findings.put(claim(3), AlignedNs(S))
    findings.put(claim(4), AlignedNs(S))
    assert findings.close_all(AlignedNs(2 * S), "ended", but=(Kind.STRAGGLER,)) == []
    assert len(findings.close_all(AlignedNs(2 * S), "ended")) == 2
