"""Which ranks of a job get a lane in the picture of a finding, and with which role."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from frd.model import Finding
from frd.service.timelines.drawing import lanes_of, roles_of
from tests.world.timelines import finding

RANKS = st.lists(st.integers(0, 60), max_size=30, unique=True)


def test_those_that_matter_most_come_first() -> None:
    """Sixteen lanes of a thousand ranks: suspects, the witness, some of the missing, then waiting
    ones at even distances, the first and the last of them included."""
    of = finding(500, 7, missing=(500, 7, *range(100, 120)), waiting=range(200, 301), witness=250)
    chosen = lanes_of(of, range(1000), 16)
    assert chosen[:3] == [500, 7, 250]
    assert len(chosen) == len({*chosen}) == 16
    missing = [rank for rank in chosen if 100 <= rank < 120]
    assert (len(missing), missing[-1]) == (3, 119)
    waiting = [rank for rank in chosen[3:] if 200 <= rank <= 300]
    assert waiting[:1] + waiting[-1:] == [200, 300]
    steps = [b - a for a, b in pairwise(waiting)]
    assert max(steps) - min(steps) <= 2


def test_other_ranks_fill_the_lanes() -> None:
    """Rank 3 is the only one that is involved: others are shown for comparison."""
    assert lanes_of(finding(3), range(8), 4) == [3, 0, 4, 7]


def test_fewer_ranks_than_lanes() -> None:
    """Each rank has one lane, whatever it is named for; ranks that are not known have none."""
    of = finding(2, 99, missing=(2,), waiting=(0, 1), victims=(0, 77), unknown=(3,), witness=0)
    assert sorted(lanes_of(of, [0, 1, 2, 3], 16)) == [0, 1, 2, 3]
    assert lanes_of(of, [], 16) == []


def test_more_suspects_than_have_room() -> None:
    """Forty suspects of four lanes, and of sixteen: others have their lanes too."""
    of = finding(*range(40), waiting=range(40, 80))
    assert lanes_of(of, range(80), 4) == [0, 1, 2, 3]
    chosen = lanes_of(of, range(80), 16)
    assert chosen[:8] == [*range(8)]
    assert [rank for rank in chosen if rank >= 40] == chosen[8:]


@given(RANKS, RANKS, RANKS, RANKS, st.integers(0, 60), st.integers(1, 20))
def test_lanes_are_bounded_and_of_known_ranks(
    ranks: list[int], suspects: list[int], missing: list[int], waiting: list[int], who: int, n: int
) -> None:
    """Whatever a finding says: at most so many lanes, each of a known rank, none twice, and none
    is left free that a rank could have."""
    of = finding(*suspects, missing=missing, waiting=waiting, witness=who)
    chosen = lanes_of(of, sorted(ranks), n)
    assert {*chosen} <= {*ranks}
    assert len({*chosen}) == len(chosen) == min(n, len(ranks))


def test_the_role_of_a_rank() -> None:
    """A rank has the role that says most: a suspect that is missing is a suspect."""
    of: Finding = finding(
        1, missing=(1, 2), waiting=(3, 4), victims=(5,), unknown=(6, 4), witness=4
    )
    assert roles_of(of, range(8)) == {
        0: "other",
        1: "suspect",
        2: "member",
        3: "waiting",
        4: "witness",
        5: "waiting",
        6: "member",
        7: "other",
    }
    assert roles_of(of, [3]) == {3: "waiting"}
    assert roles_of(finding(), [0]) == {0: "other"}
