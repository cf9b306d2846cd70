"""Decisions of ownership: who lives, what may be claimed, what is drained and forgotten."""

from __future__ import annotations

import pytest

from frd.cluster import ownership
from frd.cluster.cells import CELLS, preferred
from frd.cluster.ownership import LATE, QUIET, SILENT, Claim, Heartbeat, Ownership


def test_one_reading_without_a_replica_is_no_sign_of_death() -> None:
    """A reading of the registry lacks a living owner: it stays one; six such readings are as good
    as six silent heartbeats."""
    own = Ownership("a")
    for revision in range(2 * SILENT):
        decision = own.beat({"b": Heartbeat(1, 1 + revision, {5: 1})}, ())
    for _ in range(SILENT - 1):
        assert own.owners()[5] == "b"
        decision = own.beat({}, ())
    assert 5 not in decision.claim
    own.beat({}, ())
    assert own.living == ["a"]
    assert 5 not in own.owners()


def test_only_the_first_of_the_living_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas died long ago: the first of the living ones deletes their keys one by one, at
    the revisions that it has seen."""
    monkeypatch.setattr(ownership, "FORGOTTEN", 10)
    first, second = Ownership("b"), Ownership("c")
    gone = {"a": Heartbeat(1, 7), "d": Heartbeat(1, 8, leaving=True)}
    for revision in range(11):
        of_first = first.beat(gone | {"c": Heartbeat(1, 100 + revision)}, ())
        of_second = second.beat(gone | {"b": Heartbeat(1, 200 + revision)}, ())
    assert of_second.forget is None
    assert of_first.forget == ("a", 7)
    del gone["a"]
    assert first.beat(gone | {"c": Heartbeat(1, 300)}, ()).forget == ("d", 8)
    assert first.beat({"c": Heartbeat(1, 301)}, ()).forget is None


def drained(ready: set[int], *, silent: int = 0) -> tuple[int, str] | None:
    """What a quiet owner of all cells hands over, while another replica waits for its share, after
    so many own heartbeats without a new one of that replica."""
    own = Ownership("a")
    for cell in range(CELLS):
        own.claimed(cell, 1)
    for revision in range(QUIET):
        own.beat({"b": Heartbeat(1, 1 + revision)}, ())
    for _ in range(silent):
        own.beat({"b": Heartbeat(1, QUIET)}, ())
    return own.beat({"b": Heartbeat(1, QUIET if silent else QUIET + 1)}, ready).drain


def test_a_takeover_that_is_stuck_does_not_hold_others_back() -> None:
    """The takeover of the first cell that should move is not complete: the next one is drained,
    unless the replica that waits for its share has missed two heartbeats."""
    of_b = [cell for cell in range(CELLS) if preferred(cell, ["a", "b"]) == "b"]
    assert drained(set(range(CELLS))) == (of_b[0], "b")
    assert drained(set(range(CELLS)) - {of_b[0]}) == (of_b[1], "b")
    assert drained(set()) is None
    assert drained(set(range(CELLS)), silent=LATE) is None


def test_a_fresh_claim_is_respected_until_its_owner_has_had_time_to_report_it() -> None:
    """A living replica has claimed a cell and does not report it yet: others leave it alone, and
    take it when it stays unreported."""
    own = Ownership("a")
    beats = {"b": Heartbeat(1, 1)}
    own.beat(beats, ())
    claim = Claim("b", 1, 17)
    assert not own.may_claim(5, claim)
    for revision in range(SILENT):
        assert not own.may_claim(5, claim)
        own.beat({"b": Heartbeat(1, 2 + revision)}, ())
    assert own.may_claim(5, claim)
    assert not own.may_claim(5, claim._replace(revision=18)), "another claim"
    assert own.may_claim(5, claim._replace(generation=0)), "of a process that has ended"
    assert own.may_claim(5, claim._replace(owner="c")), "of a replica that is gone"
