"""Laws of clocks in a folder of dumps: the true offset is within what is claimed."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from frd.offline.analysis.clocks import FAR, Samples, bound
from tests.world.seeds import examples

SECOND = 1_000_000_000


def job(dice: random.Random, clocks: int, ops: int) -> tuple[list[int], Samples]:
    """True offsets, and completed calls of ops whose members join and leave at random times."""
    offsets = [dice.randint(-5 * SECOND, 5 * SECOND) for _ in range(clocks)]
    rows = []
    for op in range(ops):
        members = dice.sample(range(clocks), dice.randint(1, clocks))
        begin = op * SECOND
        joined = {clock: begin + dice.randint(0, SECOND // 2) for clock in members}
        last = max(joined.values())
        for clock in members:
            ended = last + dice.randint(0, SECOND // 5)
            rows.append((clock, op, joined[clock] - offsets[clock], ended - offsets[clock]))
    return offsets, Samples(*np.array(rows, np.int64).T)


@given(st.randoms(use_true_random=False), st.integers(2, 6), st.integers(1, 12), st.booleans())
@examples(300)
def test_the_true_offset_is_within_the_bounds(
    dice: random.Random, clocks: int, ops: int, offset_known: bool
) -> None:
    """With or without an offset in the folder's metadata; no clock is reported as wrong."""
    offsets, samples = job(dice, clocks, ops)
    true = np.array(offsets)
    low, high, centre = np.full(clocks, -FAR), np.full(clocks, FAR), np.zeros(clocks, np.int64)
    if offset_known:
        reach = dice.randint(0, SECOND)
        centre[0] = true[0] + dice.randint(-reach, reach)
        low[0], high[0] = centre[0] - reach, centre[0] + reach
    bounds = bound(centre, low, high, samples)
    assert not bounds.off_by_ns.any()
    if not offset_known:  # offsets are relative to some clock's own time
        (at,) = np.flatnonzero((bounds.low == 0) & (bounds.high == 0))[:1]
        true = true - true[at]
    assert ((bounds.low <= true) & (true <= bounds.high)).all()


@given(st.randoms(use_true_random=False), st.integers(2, 5), st.integers(2, 10))
@examples(100)
def test_more_collectives_never_widen_a_bound(dice: random.Random, clocks: int, ops: int) -> None:
    """One more op only adds information."""
    offsets, samples = job(dice, clocks, ops)
    low, high, centre = np.full(clocks, -FAR), np.full(clocks, FAR), np.zeros(clocks, np.int64)
    low[0] = high[0] = centre[0] = offsets[0]
    less = bound(centre, low, high, samples.only(samples.collective < ops - 1))
    more = bound(centre, low, high, samples)
    assert (more.low >= less.low).all()
    assert (more.high <= less.high).all()
