"""The tracker: one finding a subject, reported when it is news; lifetimes by kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frd.engine.engine import Engine
from frd.engine.findings.builder import NEVER, Anchors, Claim, ClaimStatus, Known, Lifetime, Look
from frd.engine.findings.tracker import Tracker
from frd.engine.policy import Policy
from frd.model import (
    AlignedNs,
    AttemptKey,
    Change,
    Confidence,
    Finding,
    FindingEvent,
    FindingState,
    Kind,
    Reason,
    Suspect,
)
from tests.world.job import changes

LIFE = Lifetime(
    kinds=frozenset({Kind.STRAGGLER}),
    anchors_of=lambda finding: frozenset(suspect.rank for suspect in finding.suspects),
    close_reason="not seen",
)
OPENED, UPDATED, CLOSED = Change.OPENED, Change.UPDATED, Change.CLOSED


def claim(rank: int, evidence: str = "was late", **fields: object) -> Claim:
    suspect = Suspect(rank, "node0", Reason.LATE, Confidence.HIGH, evidence)
    one = Claim(Kind.STRAGGLER, str(rank), frozenset({rank}), suspects=(suspect,))
    return replace(one, **fields)  # type: ignore[arg-type]


class Life:
    """A tracker of one kind, looked at second by second."""

    def __init__(self, life: Lifetime = LIFE) -> None:
        self.life = life
        self.tracker = Tracker(AttemptKey("job", 0), [life])

    def look(
        self, second: float, *claims: Claim, over: dict[int, str] | None = None, room: int = 10
    ) -> list[FindingEvent]:
        ended: dict[Anchors, str] = {
            frozenset({rank}): reason for rank, reason in (over or {}).items()
        }
        look = Look(at(second), claims, ended)
        return self.tracker.update(self.life, look, room=room)


def at(second: float) -> AlignedNs:
    return AlignedNs(round(second * 1e9))


def test_a_subject_is_one_finding_from_its_opening_to_its_end() -> None:
    """Rank 3 is claimed three times: opened, nothing new, something new; then it is over."""
    life = Life()
    (opened,) = life.look(1, claim(3))
    assert life.look(2, claim(3)) == []
    (updated,) = life.look(3, claim(3, "was very late"))
    (closed,) = life.look(4, over={3: "no longer late"})
    assert changes([opened, updated, closed]) == [OPENED, UPDATED, CLOSED]
    assert {e.finding.id for e in (opened, updated, closed)} == {opened.finding.id}
    assert (closed.finding.opened_at, closed.finding.closed_at) == (at(1), at(4))
    assert closed.finding.close_reason == "no longer late"
    assert closed.finding.suspects[0].evidence == "was very late"
    assert not len(life.tracker)
    assert life.look(5, over={3: "again"}) == []


def test_changes_between_two_updates_are_no_event() -> None:
    """An event at most every 10 s; a snapshot shows the newest version nevertheless."""
    life = Life(replace(LIFE, update_every_s=10))
    life.look(1, claim(3))
    assert life.look(2, claim(3, "was very late")) == []
    assert life.tracker.findings(at(2))[0].suspects[0].evidence == "was very late"
    assert changes(life.look(11, claim(3, "was late all the time"))) == [UPDATED]


def test_a_possible_claim_opens_when_it_has_lasted() -> None:
    """Seen for 1.5 s without a break, also if it grows meanwhile; a break starts again."""
    life = Life(replace(LIFE, confirm_s=1.5))
    possible = claim(3, status=ClaimStatus.UNCONFIRMED)
    larger = replace(possible, anchors=frozenset({3, 4}))
    assert life.look(1, possible) == []
    assert life.look(2) == []
    assert life.look(3, possible) == []
    assert life.look(4, larger) == []
    assert changes(life.look(4.5, larger)) == [OPENED]


def test_a_lasting_claim_continues_a_finding_and_opens_none() -> None:
    """Rank 3 costs less than what opens a finding, before and after it has one."""
    life = Life()
    lasting = claim(3, "was a bit late", status=ClaimStatus.CONTINUING)
    assert life.look(1, lasting) == []
    life.look(2, claim(3))
    assert changes(life.look(3, lasting)) == [UPDATED]


def test_a_loss_merges_into_no_other_finding() -> None:
    """A loss of rank 3 and a stall on rank 2 turn out to wait in one collective: both stay open,
    because rank 3 is lost until the attempt ends."""
    kinds = frozenset({Kind.STALL, Kind.RANK_LOST})
    life = Life(replace(LIFE, kinds=kinds, final=frozenset({Kind.RANK_LOST}), keeps_cause=True))
    stall = replace(claim(2), kind=Kind.STALL, named=frozenset({2}))
    loss = replace(claim(3), kind=Kind.RANK_LOST, exits=frozenset({(3, 99)}), named=frozenset({3}))
    assert changes(life.look(1, stall, loss)) == [OPENED, OPENED]
    both = replace(stall, anchors=frozenset({2, 3}), named=frozenset({2, 3}))
    assert life.look(2, both) == []
    assert len(life.tracker) == 2


@pytest.mark.parametrize("close_after_s", [0.0, 5.0])
def test_what_no_look_shows_is_over(close_after_s: float) -> None:
    """At once, or after five seconds, as the kind has it."""
    life = Life(replace(LIFE, close_after_s=close_after_s))
    life.look(1, claim(3))
    assert life.look(2, claim(3)) == []
    if close_after_s:
        assert life.look(6.5) == []
    (closed,) = life.look(7)
    assert (closed.change, closed.finding.close_reason) == (CLOSED, "not seen")


def test_no_more_findings_than_there_is_room_for() -> None:
    """Two subjects and one place; the second opens when the first has left."""
    life = Life()
    assert len(life.look(1, claim(3), claim(4), room=1)) == 1
    assert life.look(2, claim(3), claim(4), room=0) == []
    assert changes(life.look(3, claim(4), over={3: "gone"}, room=0)) == [CLOSED, OPENED]


def test_a_restored_finding_has_its_own_time_to_be_seen_again() -> None:
    """Counted from the first look, however long that takes; once seen it lives as others do."""
    life = Life(replace(LIFE, close_after_s=NEVER, restored_close_after_s=5))
    for rank in (3, 4):
        (opened,) = Life().look(1, claim(rank))
        life.tracker.restore(opened.finding, at(10))
    assert life.look(100, claim(3)) == []
    assert life.look(104) == []
    (closed,) = life.look(105)
    assert closed.finding.suspects[0].rank == 4
    assert life.look(1000) == []


def test_a_dismissed_finding_is_silent_until_its_trouble_is_over() -> None:
    """No event, not in the list, no second finding for the same trouble; a new one afterwards."""
    life = Life()
    (opened,) = life.look(1, claim(3))
    event = life.tracker.dismiss(opened.finding.id, at(2), "by hand")
    assert event is not None
    assert (event.change, event.finding.close_reason) == (CLOSED, "by hand")
    assert life.tracker.dismiss(opened.finding.id, at(2), "by hand") is None
    assert life.tracker.findings(at(2)) == []
    assert life.look(3, claim(3, "was very late")) == []
    assert life.look(4, over={3: "no longer late"}) == []
    assert changes(life.look(5, claim(3))) == [OPENED]


def test_a_detector_sees_what_is_open_of_its_kinds() -> None:
    """The finding of rank 3, dismissed or not, and none of other kinds."""
    life = Life()
    (opened,) = life.look(1, claim(3))
    life.tracker.dismiss(opened.finding.id, at(2), "by hand")
    assert life.tracker.known(LIFE.kinds) == Known([opened.finding], set())
    assert life.tracker.known({Kind.OOM}).findings == []


@pytest.mark.parametrize("kind", Kind)
def test_a_finding_of_every_kind_survives_a_restart(kind: Kind) -> None:
    """The engine restores it, shows it as open, and closes it when nothing new is seen for long: a
    pause of the service is no time in which something could be seen."""
    engine = Engine(Policy())
    finding = Finding("id", kind, FindingState.OPEN, "job", 0, at(1))
    engine.restore([finding], at(10))
    assert [(f.id, f.kind) for f in engine.status_view(at(10)).findings] == [("id", kind)]
    assert engine.advance(at(1000)).events == []
    (closed,) = [e for s in range(1000, 2000, 4) for e in engine.advance(at(s)).events]
    assert (closed.change, closed.finding.id) == (CLOSED, "id")
    assert closed.finding.closed_at in [at(second) for second in (1060, 1900)]
