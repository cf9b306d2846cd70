"""Laws of lateness: chance names no rank, and clocks within their bounds change nothing."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from frd.engine.matching.open_collectives import NEVER, OpenCollectives, RetiredCollectives
from frd.model import Kind
from tests.world.race import Layer, Race, arrivals
from tests.world.seeds import seeds

Dice = np.random.Generator

IMBALANCES: dict[str, Callable[[Dice, int], npt.NDArray[np.floating[Any]]]] = {
    "normal": lambda dice, world: np.abs(dice.normal(0.1, 0.03, world)),
    "uniform": lambda dice, world: dice.uniform(0.0, 0.2, world),
    "exponential": lambda dice, world: dice.exponential(0.1, world),
    "heavy tail": lambda dice, world: 0.1 * dice.lognormal(0.0, 1.0, world),
    "rare": lambda dice, world: 0.1 + 0.3 * (dice.random(world) < 0.05),
}


def layers_of(world: int, depth: int) -> list[Layer]:
    pairs = [[first, first + 1] for first in range(0, world, 2)]
    strides = [list(range(0, world, 2)), list(range(1, world, 2))]
    layers: list[Layer] = [[list(range(world))], pairs, strides]
    return layers[:depth]


@settings(max_examples=seeds(120, 30))
@given(
    st.sampled_from([2, 4, 8]),
    st.integers(1, 3),
    st.sampled_from(sorted(IMBALANCES)),
    st.sampled_from([1, 2, 8]),
    st.integers(0, 2**32 - 1),
)
def test_a_rank_that_is_late_by_chance_is_no_straggler(
    world: int, depth: int, kind: str, per_node: int, seed: int
) -> None:
    """Every rank works unevenly, none more than the others; some ranks have one more collective,
    without work before it. No rank is named in two minutes."""
    dice, layers = np.random.default_rng(seed), layers_of(world, depth)
    layers.append([sorted(dice.choice(world, dice.integers(2, world + 1), replace=False).tolist())])

    def work(step: int, layer: int) -> npt.NDArray[np.floating[Any]]:
        return IMBALANCES[kind](dice, world) if layer < depth else np.zeros(world)

    race = Race(world, layers, per_node=per_node, uncertainty_ns=200_000, seed=seed)
    race.run(arrivals(world, layers, 600 // depth, work))
    race.settle(15)
    assert race.events == []


@settings(max_examples=seeds(120, 30))
@given(st.integers(0, 7), st.sampled_from([1, 2, 4, 8]), st.integers(0, 2**32 - 1))
def test_a_straggler_is_named_whatever_clocks_do_within_their_bounds(
    late: int, per_node: int, seed: int
) -> None:
    """One of eight ranks is 20 ms late each time; clocks are off by up to 2 ms, and say so."""
    dice, layers = np.random.default_rng(seed), [[list(range(8))]]

    def work(step: int, layer: int) -> npt.NDArray[np.float64]:
        seconds = dice.normal(0.1, 0.001, 8)
        seconds[late] += 0.02
        return seconds

    race = Race(8, layers, per_node=per_node, uncertainty_ns=2_000_000, seed=seed)
    race.run(arrivals(8, layers, 700, work))
    (finding,) = race.open()
    assert finding.kind is Kind.STRAGGLER
    assert [suspect.rank for suspect in finding.suspects] == [late]


# -- open collectives ------------------------------------------------------------------------------
# Laws of the accumulators: whatever order ranks report in, a slot has what a sorted list has.


SEQS = 6


def retired(
    created: list[list[int]],
    done: list[list[int]],
    node_of: list[int],
    order: list[int],
    together: int,
) -> RetiredCollectives:
    """One group in which each rank joins and completes `SEQS` collectives; ranks in `order`, so
    many `together` in one call."""
    open_collectives = OpenCollectives(1 << 10, 1 << 8)
    open_collectives.windows.reserve(1)
    open_collectives.make_room(0, 0, SEQS - 1)
    nodes = np.array(node_of, np.int32)
    for at in range(0, len(order), together):
        some = order[at : at + together]
        seq, rank = np.tile(np.arange(SEQS), len(some)), np.repeat(some, SEQS)
        group = np.zeros(len(seq), np.int32)
        slot = open_collectives.windows.slot(group, seq)
        open_collectives.merge(
            slot, seq, group, np.array([created[r] for r in some]).ravel(), rank, nodes
        )
        times = np.array([done[r] for r in some]).ravel()
        open_collectives.complete(slot, times, rank, np.zeros(len(times), np.bool_))
    assert open_collectives.open == SEQS
    return open_collectives.take(np.zeros(1, np.int32), np.array([SEQS - 1]))


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_who_was_last_and_what_would_be_without_it(
    ranks: int, nodes: int, together: int, seed: int
) -> None:
    """Arrivals and completions, many at the same time, some unknown: the same as after sorting."""
    dice = Random(seed)
    node_of = [dice.randrange(nodes) for _ in range(ranks)]
    span = dice.choice([3, 10**9])
    created = [[1 + dice.randrange(span) for _ in range(SEQS)] for _ in range(ranks)]
    done = [[dice.choice([0, 1 + dice.randrange(span)]) for _ in range(SEQS)] for _ in created]
    closed = retired(created, done, node_of, dice.sample(range(ranks), ranks), together)
    assert closed.joined.tolist() == [ranks] * SEQS
    for at in range(SEQS):
        arrivals = [created[rank][at] for rank in range(ranks)]
        last = int(closed.last_rank[at])
        elsewhere = [a for a, node in zip(arrivals, node_of, strict=True) if node != node_of[last]]
        assert arrivals[last] == max(arrivals) == closed.last_created[at]
        assert closed.first_created[at] == min(arrivals)
        assert closed.second_created[at] == max([0, *arrivals[:last], *arrivals[last + 1 :]])
        assert closed.other_created[at] == max([0, *elsewhere])
        ends = {rank: done[rank][at] for rank in range(ranks) if done[rank][at]}
        assert closed.first_completed[at] == min(ends.values(), default=NEVER)
        assert closed.last_completed[at] == max(ends.values(), default=0)
        if ends:
            assert ends[int(closed.first_done[at])] == closed.first_completed[at]
