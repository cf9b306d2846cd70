"""Whatever clocks and networks do, the true offset is in the interval; no message changes that."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frd.engine.clocks.alignment import FAR_NS, Alignment
from frd.engine.clocks.estimator import Exchange, NodeClock
from frd.engine.clocks.exchange import OffsetBounds
from frd.engine.clocks.offset_interval import LEAST_WAY_NS, OffsetInterval
from frd.engine.clocks.wall_readings import MOST_READINGS, WallReadings
from frd.model import NodeRawNs, ServiceRawNs
from frd.offline.analysis.clocks import FAR, Samples, bound
from frd.service.clocks.agent_clocks import align
from frd.service.clocks.real_time import RealTime
from tests.world.clock_lives import Life
from tests.world.clocks import EPOCH, MS, US, Clock, S
from tests.world.seeds import examples, seeds

BLOCKS = 4
SEEDS = seeds(500)
"""Of a block."""


# -- lives ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_true_offset_is_in_the_interval(block: int) -> None:
    """Hundreds of lives: oscillators that warm up and cool down, asymmetric and heavy-tailed
    delays, queues, lost pings, silence for a minute, agents that restart, hosts that sleep and go
    on with another drift: no stamp is further off than claimed, and for most stamps an uncertainty
    of a few hundred microseconds is claimed."""
    claims: list[int] = []
    unclaimed = contradictions = 0
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        life = Life(seed)
        life.live()
        assert not life.broken
        claims += life.claims
        unclaimed += life.unclaimed
        contradictions += life.contradictions
    assert contradictions
    assert unclaimed < len(claims) / 2
    assert np.median(claims) < 300 * US


# -- more samples --------------------------------------------------------------------------------

steps = st.tuples(
    st.integers(1, 20 * S), st.integers(0, 50 * MS), st.integers(0, 50 * MS), st.integers(0, MS)
)


def exchanges(drawn: list[tuple[int, int, int, int]], ppb: int) -> list[Exchange]:
    raw, service = Clock(7 * S, ppb), Clock(5 * S)
    at, made = S, []
    for pause, there, back, held in drawn:
        at += pause
        came, went = at + there, at + there + held
        made.append(
            Exchange(
                NodeRawNs(raw(at)),
                ServiceRawNs(service(came)),
                ServiceRawNs(service(went)),
                NodeRawNs(raw(went + back)),
            )
        )
        at = went + back
    return made


@given(st.lists(steps, min_size=2, max_size=30), st.integers(-100_000, 100_000), st.data())
def test_more_exchanges_never_widen_the_interval(
    drawn: list[tuple[int, int, int, int]], ppb: int, data: st.DataObject
) -> None:
    """Any exchanges, and any subset of them that begins with the first: all of them together bound
    at least as well, at every later moment."""
    made = exchanges(drawn, ppb)
    fewer = [x for x in made[1:] if data.draw(st.booleans())]
    all_of_them, some = OffsetBounds(made[0]), OffsetBounds(made[0])
    assert all(all_of_them.narrow(x) for x in made[1:])
    assert all(some.narrow(x) for x in fewer)
    raw = made[-1].t4 + data.draw(st.integers(0, 100 * S))
    (low, high), (lowest, highest) = all_of_them.at(raw), some.at(raw)
    assert lowest <= low <= high <= highest


ours = st.tuples(
    st.integers(1, 20 * S),
    st.integers(2 * LEAST_WAY_NS, 50 * MS),
    st.integers(2 * LEAST_WAY_NS, 50 * MS),
    st.integers(0, MS),
)


@given(st.lists(ours, min_size=2, max_size=60), st.integers(-100_000, 100_000))
def test_an_exchange_never_makes_an_estimate_less_certain(
    drawn: list[tuple[int, int, int, int]], ppb: int
) -> None:
    """On ways as our software takes them: the uncertainty just after an exchange is not larger than
    without it, and the truth is in the interval, at every later moment."""
    node, service = Clock(7 * S, ppb), Clock(5 * S)
    made = exchanges(drawn, ppb)
    interval = OffsetInterval(made[0])
    for x in made[1:]:
        _, before = interval.settle(x.t4)
        assert interval.narrow(x)
        _, after = interval.settle(x.t4)
        assert after <= before + 2
    at = S + sum(sum(step) for step in drawn)
    for later in (0, S, 60 * S):
        offset, half = interval.settle(node(at + later))
        assert abs(service(at + later) - node(at + later) - offset) <= half + 2


# -- any numbers ---------------------------------------------------------------------------------

extreme = st.one_of(
    st.integers(-2, 2),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(FAR_NS - 2, FAR_NS + 2),
    st.integers(EPOCH - S, EPOCH + S),
    st.integers(10 * S, 20 * S),
)


@given(
    st.lists(
        st.one_of(
            st.tuples(extreme, extreme, extreme, extreme),
            st.lists(st.tuples(extreme, extreme, extreme), max_size=MOST_READINGS + 1),
        ),
        max_size=12,
    ),
    st.lists(extreme, max_size=8),
)
def test_no_message_breaks_a_clock(messages: list[Any], stamps: list[int]) -> None:
    """Any numbers, refused or not: there is an alignment, it can be encoded and decoded, and it
    aligns single stamps as it aligns columns."""
    clock, wall = NodeClock(), WallReadings()
    for number, message in enumerate(messages):
        if isinstance(message, tuple):
            clock.exchange(Exchange(*message))
        else:
            raws, reals, slacks = ([row[at] for row in message] for at in range(3))
            wall.read(raws, reals, slacks)
        clock.one_way(NodeRawNs(7 * S), ServiceRawNs(10 * S + number))
        at = RealTime(lambda: EPOCH, lambda: ServiceRawNs(9 * S)).at
        alignment = align(clock.newest(ServiceRawNs(11 * S)), at)
        uncertainty_ns = alignment.uncertainty_ns(alignment.at_ns)
        assert uncertainty_ns is None or uncertainty_ns >= 0
        data = msgspec.msgpack.encode(alignment)
        assert msgspec.msgpack.decode(data, type=Alignment) == alignment
        aligned = alignment.to_aligned(np.array(stamps, np.int64))
        assert aligned.tolist() == [alignment.one_to_aligned(stamp) for stamp in stamps]
        assert all(aligned[i] == 0 for i, stamp in enumerate(stamps) if stamp == 0)


# -- laws of clocks in a folder of dumps: the true offset is within what is claimed ----------------


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
