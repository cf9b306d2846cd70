"""The judge of rises, fed by hand as a job that runs feeds it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import cast

from frd.engine.memory.coverage import Coverage
from frd.engine.memory.decisions import Decisions, Outcome
from frd.engine.memory.report import report
from frd.engine.memory.walk.rank_rise import RankRise
from frd.model import Confidence, SeriesKind
from tests.world.memory import EPOCH, GIB, S


@dataclass
class AllShown:
    """All ranks are sampled ten times a second."""

    ranks: int

    def gap(self, rank: int) -> int:
        return S // 10

    def shown_at(self, when: int, but: Set[int]) -> int:
        return when + S // 10

    def silent_at(self, when: int) -> set[int]:
        return set()


def shown(ranks: int) -> Coverage:
    return cast(Coverage, AllShown(ranks))


def jump(rank: int, at_s: float, gib: float = 1, *, end_s: float | None = None) -> RankRise:
    """A rise within one sample, that is trusted immediately."""
    at = EPOCH + round(at_s * S)
    lo = at - S // 10
    rise = RankRise(
        rank=rank,
        row=rank,
        kind=SeriesKind.DEVICE_USED,
        on_host=False,
        device="GPU",
        lo=lo,
        lo_when_seen=lo,
        hi=at,
        seen=at,
        high=GIB,
        from_start=False,
        began_before=False,
        is_certain=True,
        established=at,
        ready=at,
        size=round(gib * GIB),
        grown=at,
        peak=GIB + round(gib * GIB),
    )
    if end_s is not None:
        rise.sized = rise.end = rise.back = EPOCH + round(end_s * S)
    return rise


def advance(decisions: Decisions, at_s: float, *new: RankRise, ranks: int = 4) -> list[Outcome]:
    """The outcomes of what was decided by then."""
    decisions.advance(EPOCH + round(at_s * S), new, shown(ranks))
    return [one.outcome for one in decisions.decided]


def test_sizes_are_waited_for() -> None:
    """All ranks jump together: that is said when it is known that none goes on to rise further."""
    decisions = Decisions()
    rises = [jump(rank, 10) for rank in range(4)]
    assert advance(decisions, 12, *rises) == []
    (open_one,) = decisions.undecided(EPOCH + 12 * S, shown(4))
    assert (open_one.outcome, open_one.ranks) == (Outcome.UNDECIDED, {0, 1, 2, 3})
    rises[2].size = 40 * GIB
    for rise in rises:
        rise.sized = EPOCH + 15 * S
    assert advance(decisions, 14.9) == []
    assert advance(decisions, 15) == [Outcome.FIRST, Outcome.TOGETHER]
    assert [one.ranks for one in decisions.decided] == [{2}, {0, 1, 3}]


def test_a_chain_of_onsets() -> None:
    """Each of three onsets overlaps with the next one: the first two ranks may each have been
    first, and the third rose when the first already had. All are trusted later."""
    decisions, rises = Decisions(), [jump(rank, 10 + rank) for rank in range(3)]
    for rise in rises:
        rise.lo = rise.lo_when_seen = rise.hi - 3 * S // 2
        rise.ready = EPOCH + 13 * S
    assert advance(decisions, 20, *rises, ranks=8) == [Outcome.FIRST] * 2
    assert [one.ranks for one in decisions.decided] == [{0, 1}, {2}]


def test_what_is_over_is_forgotten() -> None:
    """Of two rises that were named the first has fallen back, and only the other one is kept."""
    decisions = Decisions()
    advance(decisions, 20, jump(0, 10, end_s=12))
    assert advance(decisions, 200, jump(1, 190)) == [Outcome.FIRST] * 2
    decisions.forget(EPOCH + 140 * S)
    assert [one.ranks for one in decisions.decided] == [{1}]


def test_a_report_while_a_rise_goes_on() -> None:
    """A rise is named, grows, becomes alarming and falls back: the figures follow, and the rank and
    its confidence stay."""
    decisions, rise = Decisions(), jump(3, 10)
    advance(decisions, 11, rise)

    def said(at_s: float) -> tuple[object, ...]:
        ((one, first),) = report(decisions.decided, 4, EPOCH + round(at_s * S))
        assert first is rise
        (suspect,) = one.suspects
        assert (suspect.rank, suspect.confidence) == (3, Confidence.HIGH)
        return one.bytes / GIB, (one.end_ns - EPOCH) / S, one.alarming, one.fell_back

    assert said(11) == (1, 11, False, False)
    rise.peak, rise.alarming_at = 9 * GIB, EPOCH + 14 * S
    assert said(15) == (8, 15, True, False)
    rise.end = rise.back = EPOCH + 20 * S
    assert said(30) == (8, 20, True, True)
