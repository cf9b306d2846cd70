"""When the timelines of findings are stored, and what an answer about one is made of."""

from __future__ import annotations

import dataclasses
import logging
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from frd.engine.views import StatusView
from frd.model import AlignedNs, Change, FindingEvent, Flags, Kind, Witness
from frd.service.timelines.timeline import Curve, Gap, Late, Timeline
from tests.world import observe
from tests.world.timelines import Keeper, S, bar, timeline


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    """A hang of four ranks whose finding has been open for 2.5 s."""
    made = Keeper(tmp_path)
    yield made
    made.store.close()


def seen(at: int) -> StatusView:
    return StatusView(AlignedNs(at), (), ())


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
    kept = keeper.timelines.of(done, None, seen(0), None)
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
    kept = keeper.timelines.of(done, None, seen(0), None)
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
    found = keeper.timelines.of(finding, keeper.attempt, seen(0), None)
    assert [(one.rank, one.role) for one in found.lanes] == lanes
    done = keeper.close(finding)
    keeper.look(1)
    found = keeper.timelines.of(done, None, seen(0), None)
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


# -- answers -----------------------------------------------------------------------------------


def test_an_open_finding_is_shown_as_of_now(keeper: Keeper) -> None:
    """Nothing is stored yet; later, what was stored and what is known now are together. What ranks
    enqueue a minute after the opening is of no interest."""
    (finding,) = keeper.findings
    live = keeper.timelines.of(finding, keeper.attempt, seen(keeper.job.now), None)
    assert [one.rank for one in live.gaps] == [2]
    keeper.look()
    keeper.job.now = AlignedNs(finding.opened_at + S)
    keeper.job.group("tp", (0, 1)).join("tp", [0], 0)
    keeper.job.now = AlignedNs(finding.opened_at + 60 * S)
    keeper.job.group("pp", (0, 1)).join("pp", [0], 0)
    live = keeper.timelines.of(finding, keeper.attempt, seen(keeper.job.now), None)
    assert sorted(live.groups.values()) == ["dp", "tp"]
    assert keeper.timelines.of(
        finding, keeper.attempt, seen(keeper.job.now), (0, 2)
    ).lanes == tuple(one for one in live.lanes if one.rank in (0, 2))


def test_a_restart_of_the_service_keeps_what_was_stored(keeper: Keeper) -> None:
    """The new engine knows no ops yet: what was stored stays, and grows when agents report."""
    (finding,) = keeper.findings
    keeper.look()
    kept = keeper.timelines.of(finding, keeper.attempt, seen(keeper.job.now), None)
    keeper.job.restart_service()
    assert keeper.timelines.of(finding, None, seen(keeper.job.now), None).bars == kept.bars
    keeper.look(6)
    keeper.job.reconnect(range(4))
    keeper.look(6)
    again = keeper.timelines.of(finding, keeper.attempt, seen(keeper.job.now), None)
    assert {*kept.bars} <= {*again.bars}
    assert again.gaps == kept.gaps


def test_ranks_that_are_not_stored(keeper: Keeper) -> None:
    """A straggler has been open for an hour; of a large job some ranks are stored. Another one that
    is asked for is shown as of now."""
    finding = dataclasses.replace(keeper.findings[0], kind=Kind.STRAGGLER)
    stored = timeline(0, bar(0, 1, 1, 2))
    keeper.store.save(finding.id, finding.opened_at, stored.encode())
    later = finding.opened_at + 3600 * S
    found = keeper.timelines.of(finding, keeper.attempt, seen(later), (3,))
    assert [one.rank for one in found.lanes] == [3]
    assert {one.rank for one in found.bars} == {3}


@pytest.mark.parametrize("kind", [Kind.STALL, Kind.STRAGGLER, Kind.MEMORY_SPIKE])
def test_a_timeline_does_not_grow_without_end(keeper: Keeper, kind: Kind) -> None:
    """A finding is open for twenty minutes while its job goes on: its curves go on, but ops that
    have nothing to do with its begin do not heap up."""
    keeper.findings = [dataclasses.replace(keeper.findings[0], kind=kind)]
    (finding,) = keeper.findings
    job = keeper.job
    job.join("dp", [2], 1).complete("dp", range(4), 1)
    sizes = []
    for look in range(20):
        for rank in range(4):
            seqs = range(2 + 50 * look, 52 + 50 * look)
            observe.entries(
                job.attempt, rank, job.handles["dp"], seqs, Flags.JOINED | Flags.COMPLETED,
                created=job.now, now=job.now,
            )  # fmt: skip
        keeper.look(60)
        sizes.append(len(keeper.timelines.of(finding, None, seen(0), None).bars))
    assert sizes[-1] == sizes[len(sizes) // 2]


@pytest.mark.parametrize("body", [b"", b"nonsense", zlib.compress(b"[]")])
def test_a_stored_timeline_that_is_damaged(
    keeper: Keeper, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted, and the log names the file and the finding; the next one replaces it."""
    (finding,) = keeper.findings
    keeper.store.save(finding.id, finding.opened_at, body)
    assert keeper.timelines.of(finding, None, seen(0), None) == Timeline(at=0)
    assert keeper.timelines.store_errors == 1
    assert f"timelines: {keeper.store.path}: {finding.id}: " in caplog.text
    keeper.look()
    assert Timeline.decode(keeper.store.get(finding.id) or b"").lanes


def test_lateness_stays_with_its_finding(keeper: Keeper) -> None:
    """A stored curve is shown with whatever lanes are asked for."""
    (finding,) = keeper.findings
    stored = timeline(0, bar(0, 1, 1, 2), lateness=(Late(2, "dp", 3, 5, 7),))
    keeper.store.save(finding.id, finding.opened_at, stored.encode())
    assert keeper.timelines.of(finding, None, seen(0), (0,)).lateness == (Late(2, "dp", 3, 5, 7),)


def test_the_wall_clock_is_set(keeper: Keeper) -> None:
    """An hour forward while the finding is open: all times of its timeline follow, those that were
    stored before, too."""
    (finding,) = keeper.findings
    keeper.look()
    before = keeper.timelines.now(finding, None)
    hour = 3600 * S
    keeper.job.engine.adopt(keeper.job.engine.policy, hour)
    keeper.findings = [dataclasses.replace(finding, opened_at=AlignedNs(finding.opened_at + hour))]
    after = keeper.timelines.now(keeper.findings[0], None)
    assert after == before.later(hour)
    assert {bar.enqueued for bar in after.bars} == {bar.enqueued + hour for bar in before.bars}
    keeper.look(6)
    assert keeper.kept_at(keeper.findings[0]) == 8.5
    assert keeper.timelines.now(keeper.findings[0], None).bars == after.bars


def test_a_timeline_moves() -> None:
    """All of its times, but not 0, which says unknown; memory in units of a tenth of a second."""
    one = Timeline(
        at=9 * S,
        bars=(bar(1, 1, 1), bar(1, 2, 2, 3)),
        gaps=(Gap(2, "dp", 1, "all_reduce", S, None),),
        curves=(Curve(1, "used", "GPU", 9, {10: 1, 20: 2}),),
        lateness=(Late(2, "dp", 3, 5, 7),),
    )
    moved = one.later(60 * S)
    assert (moved.at, moved.utc_ahead_ns) == (69 * S, 60 * S)
    for early, late in zip(one.bars, moved.bars, strict=True):
        assert late.enqueued == early.enqueued + 60 * S
        assert late.ended == (early.ended and early.ended + 60 * S)
        assert late.started == early.started == 0
    assert [(gap.since, gap.until) for gap in moved.gaps] == [(61 * S, None)]
    assert moved.curves[0].values == {610: 1, 620: 2}
    assert moved.lateness == (Late(2, "dp", 3, 60 * S + 5, 7),)
    assert moved.later(-60 * S) == one
