"""What the arrivals of single collectives show: which rank is charged, and how clocks matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from frd.engine.clocks.alignment import UNKNOWN_NS
from frd.engine.matching.lateness import NOBODY, ClockHint, GroupClocks, as_culprit, charges, waits
from frd.engine.matching.open_collectives import NEVER, RetiredCollectives
from frd.engine.state.tables import PairTable, RankTable
from frd.model import AlignedNs, RankInfo

MS = 1_000_000
T = 1_700_000_000_000_000_000
YES = np.ones(1, np.bool_)


def ranks(uncertainty_ms: tuple[float, ...] = (0, 0, 0, 0)) -> RankTable:
    """Four of them, two a node; the clocks of each are as good as that."""
    made = RankTable()
    for rank, ms in enumerate(uncertainty_ms):
        made.declare(RankInfo(rank, 4, f"node{rank // 2}", f"boot{rank // 2}", 100 + rank))
        made.set_clock(np.array([rank]), rank // 2, round(ms * MS), AlignedNs(T))
    return made


def clocks(of: RankTable, members: tuple[int, ...] = (0, 1, 2, 3)) -> GroupClocks:
    pairs = PairTable()
    pairs.add(0, members)
    return GroupClocks.of(1, of, pairs)


def closed(came_ms: dict[int, float], *, freed_ms: float = 0) -> RetiredCollectives:
    """One collective to which ranks came so late; the one before it was over at `freed_ms`."""
    order = sorted(came_ms, key=lambda rank: came_ms[rank])
    last = order[-1]
    others = [came_ms[rank] for rank in order if rank // 2 != last // 2]

    def at(ms: float) -> int:
        return T + round(ms * MS)

    row: dict[str, int] = {
        "group": 0,
        "seq": 7,
        "signature": 0,
        "joined": len(order),
        "first_created": at(came_ms[order[0]]),
        "last_created": at(came_ms[last]),
        "last_rank": last,
        "second_created": at(came_ms[order[-2]]),
        "other_created": at(max(others)) if others else 0,
        "first_completed": NEVER,
        "first_done": 0,
        "last_completed": 0,
        "bounded": False,
        "freed_at": at(freed_ms) if freed_ms else 0,
    }
    columns: dict[str, Any] = {name: np.array([value], np.int64) for name, value in row.items()}
    return RetiredCollectives(**columns)


def charged(of: RankTable, one: RetiredCollectives) -> dict[int, float]:
    """Culprits and the milliseconds that each cost."""
    charged = charges(one, YES, of, clocks(of))
    return dict(zip(charged.culprit.tolist(), (charged.lost_ns / MS).tolist(), strict=True))


# -- who is charged ------------------------------------------------------------------------------


def test_a_rank_is_charged_for_its_own_part_and_its_node_for_the_rest() -> None:
    """3 comes 5 ms after 2, and 2, of the same node, 10 ms after the other node."""
    assert charged(ranks(), closed({0: 0, 1: 1, 2: 11, 3: 16})) == {3: 5, as_culprit(1): 10}


def test_time_in_which_a_device_was_busy_is_lost_to_no_rank() -> None:
    """The collective before was over 4 ms before the last rank came, though others came earlier."""
    assert charged(ranks(), closed({0: 0, 1: 0, 2: 0, 3: 10}, freed_ms=6)) == {3: 4}
    assert charged(ranks(), closed({0: 0, 1: 0, 2: 0, 3: 10}, freed_ms=9.5)) == {}


@pytest.mark.parametrize(("ms", "costs"), [(2.9, {}), (3.1, {3: 3.1})])
def test_no_rank_is_charged_for_less_than_clocks_may_be_off(
    ms: float, costs: dict[int, float]
) -> None:
    """The clock of the late rank's node is known to 1 ms, as is the group's worst; and 1 ms is
    what schedulers do."""
    of = ranks((0.5, 0.5, 1, 1))
    assert charged(of, closed({0: 0, 1: 0, 2: 0, 3: ms})) == pytest.approx(costs)


def test_the_worst_clock_of_a_group_counts() -> None:
    """Rank 1 is known to 5 ms only: the same lateness says nothing then."""
    late = closed({0: 0, 1: 0, 2: 0, 3: 5})
    assert charged(ranks((0, 0, 1, 1)), late) == {3: 5}
    assert charged(ranks((0, 5, 1, 1)), late) == {}


def test_a_group_on_one_node_needs_no_clock() -> None:
    """Nothing bounds the clock that all members share, and nothing has to."""
    of = ranks((0, 0, 0, 0))
    of.set_clock(np.array([2, 3]), 1, UNKNOWN_NS, AlignedNs(0))
    inside, across = clocks(of, (2, 3)), clocks(of)
    one = closed({2: 0, 3: 5})
    assert inside.comparable(one).tolist() == [True]
    assert across.comparable(one).tolist() == [False]


# -- how long members waited ---------------------------------------------------------------------


def test_members_waited_for_the_last_and_where_clocks_do_not_compare_for_an_unknown_rank() -> None:
    """The first waited 12 ms and the last but one 8, which is 10 on an average."""
    one = closed({0: 0, 1: 2, 2: 4, 3: 12})
    for fair, culprit in ((YES, 3), (~YES, NOBODY)):
        waited = waits(one, YES, fair)
        assert (waited.culprit.tolist(), waited.lost_ns.tolist()) == ([culprit], [10 * MS])


# -- clocks --------------------------------------------------------------------------------------


def hint(slack_ms: float) -> ClockHint:
    """Of two clocks that may be off by 2 and 3 ms."""
    return ClockHint(0, 2, round(slack_ms * MS), AlignedNs(T), 2 * MS, 3 * MS)


@pytest.mark.parametrize(("slack_ms", "contradicts"), [(4, False), (-4.9, False), (-5.1, True)])
def test_clocks_contradict_each_other_beyond_what_both_may_be_off(
    slack_ms: float, contradicts: bool
) -> None:
    """A rank was done before the last one came, by more than their clocks explain."""
    assert hint(slack_ms).contradicts is contradicts


def test_times_aligned_with_another_estimate_of_the_clock_is_not_compared() -> None:
    """Two ranks of one node, whose clock is estimated again between the reports of the two."""
    of = ranks()
    for at in (0, 1000 * MS):
        of.set_clock(np.array([0, 1]), 0, UNKNOWN_NS, AlignedNs(T + at))
    both = closed({0: 0.0, 1: 50.0})
    assert not clocks(of, (0, 1)).comparable(both).any()
    assert clocks(of, (2, 3)).comparable(both).all()
