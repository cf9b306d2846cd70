"""When the timelines of findings are stored, and what an answer about one is made of."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from frd.model import Change, FindingEvent, Kind, Witness
from tests.world.timelines import Keeper, S


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    """A hang of four ranks whose finding has been open for 2.5 s."""
    made = Keeper(tmp_path)
    yield made
    made.store.close()


def kept_at(keeper: Keeper, seconds: int) -> list[float]:
    """Looks each second: how long after the opening the timeline was stored."""
    (finding,) = keeper.findings
    found: list[float] = []
    for _ in range(seconds):
        keeper.look(1)
        kept = keeper.kept_at(finding)
        if kept is not None and kept not in found:
            found.append(kept)
    return found


def test_a_stall_is_stored_until_it_has_settled(keeper: Keeper) -> None:
    """At the first look, each 5 s while late reports may come in, and not after half a minute."""
    assert kept_at(keeper, 100) == [3.5, 8.5, 13.5, 18.5, 23.5, 28.5]


@pytest.mark.parametrize("kind", [Kind.MEMORY_SPIKE, Kind.OOM, Kind.STRAGGLER])
def test_curves_are_stored_as_long_as_they_go_on(keeper: Keeper, kind: Kind) -> None:
    """Memory and lateness: each 5 s until the finding closes."""
    keeper.findings = [dataclasses.replace(keeper.findings[0], kind=kind)]
    found = kept_at(keeper, 100)
    assert (found[0], found[-1], len(found)) == (3.5, 98.5, 20)


def test_a_finding_that_closes_is_stored_for_a_last_time(keeper: Keeper) -> None:
    """Rank 2 joins after a minute: bars and gap get their ends, and its late op is there; what the
    job does next is of no interest."""
    (finding,) = keeper.findings
    keeper.look()
    keeper.look(60)
    keeper.job.join("dp", [2], 1).complete("dp", range(4), 1)
    joined_at = keeper.job.now
    keeper.look(1)
    done = keeper.close(finding)
    keeper.job.all_reduce("dp", 2)
    keeper.look(1)
    assert keeper.kept_at(finding) == pytest.approx((keeper.job.now - finding.opened_at) / S)
    kept = keeper.timelines.of(done, None, 0, None)
    assert [(one.rank, one.seq) for one in kept.bars if one.seq > 1] == []
    assert {one.rank: one.ended for one in kept.bars if one.seq == 1} == dict.fromkeys(
        range(4), joined_at
    )
    assert [(one.rank, one.until) for one in kept.gaps] == [(2, joined_at)]
    before = keeper.store.get(finding.id)
    keeper.look(60)
    assert keeper.store.get(finding.id) == before


def test_a_finding_that_opens_and_closes_between_two_looks(keeper: Keeper) -> None:
    """It is stored once, as of its end."""
    (finding,) = keeper.findings
    done = keeper.close(finding)
    keeper.look(1)
    kept = keeper.timelines.of(done, None, 0, None)
    assert [(one.rank, one.until) for one in kept.gaps] == [(2, done.closed_at)]
    assert [one.rank for one in kept.lanes] == [2, 0, 1, 3]


def test_only_closings_are_taken_up(keeper: Keeper) -> None:
    """An opening or a change is in the published state anyway."""
    (finding,) = keeper.findings
    events = [FindingEvent(change, finding) for change in (Change.OPENED, Change.UPDATED)]
    keeper.timelines.see(events)
    keeper.findings = []
    keeper.look(1)
    assert keeper.store.get(finding.id) is None


def test_the_suspects_are_those_of_the_finding(keeper: Keeper) -> None:
    """A minute after the opening, rank 3 is named instead of rank 2, and rank 0 is the witness: the
    lanes say so immediately, and after the finding has closed."""
    (finding,) = keeper.findings
    keeper.look()
    keeper.look(60)
    (suspect,) = finding.suspects
    finding = dataclasses.replace(
        finding, suspects=(dataclasses.replace(suspect, rank=3),), witness=Witness(0, ())
    )
    keeper.findings = [finding]
    lanes = [(3, "suspect"), (0, "witness"), (1, "waiting"), (2, "member")]
    found = keeper.timelines.of(finding, keeper.attempt, 0, None)
    assert [(one.rank, one.role) for one in found.lanes] == lanes
    done = keeper.close(finding)
    keeper.look(1)
    found = keeper.timelines.of(done, None, 0, None)
    assert [(one.rank, one.role) for one in found.lanes] == lanes


def test_many_findings_take_their_turns(keeper: Keeper) -> None:
    """Forty stragglers, whose curves go on, and then a hang: a look stores a few of them, and the
    hang is not the last one in each."""
    (hang,) = keeper.findings
    stragglers = [dataclasses.replace(hang, id=f"{n:04x}", kind=Kind.STRAGGLER) for n in range(40)]
    keeper.findings = list(stragglers)
    for _ in range(10):
        keeper.look(2)
    assert all(keeper.store.get(one.id) for one in stragglers)
    hang = dataclasses.replace(hang, opened_at=keeper.job.now)
    keeper.findings.append(hang)
    keeper.look(2)
    assert keeper.store.get(hang.id) is not None


def test_a_store_that_fails_costs_a_picture(
    keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is full: each failure is counted, the first one is logged, and nothing else ends."""
    keeper.store.close()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            keeper.look(6)
    assert keeper.timelines.store_errors == 3
    (line,) = caplog.messages
    assert line.startswith(f"timelines: {keeper.store.path}: ")
