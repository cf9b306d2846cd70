"""Laws of the accumulators: whatever order ranks report in, a slot has what a sorted list has."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from frd.engine.matching.open_collectives import NEVER, OpenCollectives, RetiredCollectives

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
