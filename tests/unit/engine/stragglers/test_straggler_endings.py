"""What becomes of a straggler's finding when it turns out that others are to blame."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frd.model import Change, Finding, FindingEvent, Float64s
from tests.world.race import Layer, Race, arrivals

ROWS = [list(range(first, first + 4)) for first in range(0, 16, 4)]
COLUMNS = [list(range(first, 16, 4)) for first in range(4)]


def run(race: Race, layers: Sequence[Layer], ranks: Sequence[int], layer: int) -> None:
    """A hundred seconds in which some ranks take 30 ms longer before one layer of each step."""
    dice = np.random.default_rng(len(race.events))

    def work(step: int, of: int) -> Float64s:
        seconds = dice.normal(0.05, 0.0005, race.world)
        seconds[list(ranks)] += 0.03 * (of == layer)
        return seconds

    race.run(arrivals(race.world, layers, round(100 / 0.065 / len(layers)), work))


def ends(events: Sequence[FindingEvent]) -> list[tuple[tuple[int, ...], str]]:
    closed = [event.finding for event in events if event.change is Change.CLOSED]
    return [(named(finding), finding.close_reason) for finding in closed]


def named(finding: Finding) -> tuple[int, ...]:
    return tuple(suspect.rank for suspect in finding.suspects)


def test_a_rank_whose_whole_node_becomes_slow_is_part_of_that() -> None:
    """Rank 5 is slow; later all of its node are: one finding, about the node."""
    layers = [[range(16)]]
    race = Race(16, layers, per_node=4, uncertainty_ns=100_000)
    run(race, layers, [5], 0)
    assert [named(finding) for finding in race.open()] == [(5,)]
    run(race, layers, [4, 5, 6, 7], 0)
    assert [named(finding) for finding in race.open()] == [(4, 5, 6, 7)]
    assert ends(race.events) == [((5,), "part of the lateness of ranks 4-7")]


def test_a_rank_that_others_hold_up_from_now_on_is_not_kept_as_a_straggler() -> None:
    """Rank 5 is slow before its column; later 6 delays their row, and 5 is late because of that."""
    layers = [ROWS, COLUMNS]
    race = Race(16, layers, per_node=1, uncertainty_ns=100_000)
    run(race, layers, [5], 1)
    assert [named(finding) for finding in race.open()] == [(5,)]
    run(race, layers, [6], 0)
    assert [named(finding) for finding in race.open()] == [(6,)]
    assert race.open()[0].groups_held_up == ("layer0", "layer1")
    assert ends(race.events) == [((5,), "other ranks delayed it")]
