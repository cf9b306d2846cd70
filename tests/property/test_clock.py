"""Whatever clocks and networks do, the true offset is in the interval; no message changes that."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frd.engine.clocks.alignment import FAR_NS, Alignment
from frd.engine.clocks.estimator import Exchange, NodeClock
from frd.engine.clocks.exchange import OffsetBounds
from frd.engine.clocks.wall_readings import MOST_READINGS, WallReadings
from frd.model import AlignedNs, NodeRawNs, ServiceRawNs
from frd.service.clocks.agent_clocks import align
from frd.service.clocks.service_line import ServiceLine
from tests.world.clocks import EPOCH, MS, US, Agent, Clock, Host, Network, Path, S
from tests.world.seeds import seeds

LIFE = 100 * S
BLOCKS = 4
SEEDS = seeds(500)
"""Of a block."""


# -- a life ------------------------------------------------------------------------------------


def host(dice: random.Random, steepest: int) -> Host:
    """Drifts, is slewed, steps and sleeps at random, within the limits of real hosts."""
    born = Host(
        Clock(
            dice.randrange(1, 10**16), dice.choice((-steepest, dice.randint(-steepest, steepest)))
        ),
        Clock(EPOCH + dice.randint(-3 * S, 3 * S)),
    )
    plan: list[tuple[int, str]] = []
    for what, share, every in (("drift", 0.5, 20), ("slew", 0.6, 30), ("step", 0.5, 60)):
        at = S
        while dice.random() < share or (at > S and at < LIFE):
            at += dice.randrange(S // 10, every * S)
            plan.append((at, what))
    if dice.random() < 0.2:
        plan.append((dice.randrange(10 * S, LIFE), "sleep"))
    until = 0
    for at, what in sorted(plan):
        if at <= until:
            continue
        until = at
        match what:
            case "drift":
                born.raw.change(at, ppb=dice.choice((-steepest, 0, steepest)))
            case "slew":
                born.real.change(
                    at, ppb=dice.choice((-550_000, 550_000, dice.randint(-9_000, 9_000)))
                )
            case "step":
                born.step(at, int(10 ** dice.uniform(3, 9.5)) * dice.choice((-1, 1)))
            case _:
                length = int(10 ** dice.uniform(8.7, 10.3))
                born.sleep(at, length, real_knows=dice.random() < 0.6)
                until = at + length
    return born


def network(dice: random.Random) -> Network:
    """Good or bad, with different delays in each direction; some lose pings."""
    slow = 10 ** dice.uniform(0, 1.6)
    there, back = (
        Path(
            int(slow * dice.randrange(20 * US, 80 * US)),
            int(slow * 40 * US),
            dice.choice((0.0, 0.0, 0.1)),
        )
        for _ in range(2)
    )
    return Network(there, back, dice.choice((0.0, 0.0, 0.3)))


@dataclass
class Life:
    """An agent's pings from the first second on, and the uncertainties claimed for stamps."""

    seed: int
    claims: list[int] = field(default_factory=list)
    unclaimed: int = 0
    broken: list[str] = field(default_factory=list)
    contradictions: int = 0

    def __post_init__(self) -> None:
        dice = self.dice = random.Random(self.seed)
        one_sided = dice.random() < 0.3
        self.node = host(dice, 100_000 if one_sided else 50_000)
        self.service = host(dice, 0 if one_sided else 50_000)
        self.network = network(dice)

    def live(self) -> None:
        dice = self.dice
        silence = dice.choice((LIFE, LIFE, dice.randrange(20 * S, 60 * S)))
        restart = dice.choice((LIFE, LIFE, dice.randrange(20 * S, 90 * S)))
        agent, since, at, pings = self._agent(), S, S, 0
        while at < LIFE:
            pause = 5 * MS if pings < 8 else S + dice.randrange(-100 * MS, 100 * MS)
            if at > silence:
                silence, pause = LIFE, 60 * S
            if at > restart:
                restart, since, pings, agent = LIFE, at + pause, 0, self._agent()
            at = self.node.awake(at + pause)
            came = agent.ping(at)
            pings += 1
            if pings < 4 or dice.random() < 0.3:
                self._ask(agent, since, self.service.awake(came + dice.randrange(5 * MS)))
            at = max(at, came - S)
            self.contradictions += agent.clock.contradictions

    def _agent(self) -> Agent:
        return Agent(self.node, self.service, self.network, self.dice)

    def _ask(self, agent: Agent, since: int, now: int) -> None:
        """Align stamps of the last moments, and of any time since the session began."""
        alignment = agent.alignment(now)
        ages = [int(10 ** self.dice.uniform(5, 10.8)) for _ in range(4)]
        for made in (*(now - age for age in ages), self.dice.randrange(since, now + 1)):
            at = self.node.awake(made)
            if not since <= at <= now or not agent.knows(at):
                continue
            error, bound = agent.error(alignment, at)
            if bound is None:
                self.unclaimed += 1
                continue
            self.claims.append(bound)
            if abs(error) > bound:
                self.broken.append(f"seed {self.seed}, {now}: stamp of {at}: {error} > {bound}")


@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_true_offset_is_in_the_interval(block: int) -> None:
    """Hundreds of lives: drift to 100 ppm that changes, slew of 500 ppm and more, steps from a
    microsecond to seconds of either side, asymmetric and heavy-tailed delays, lost pings, silence
    for a minute, agents that restart, hosts that sleep: no stamp is further off than claimed, and
    for most stamps an uncertainty of a few milliseconds is claimed."""
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
    assert np.median(claims) < 4 * MS


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


@given(
    st.lists(steps, min_size=2, max_size=30),
    st.integers(-100_000, 100_000),
    st.lists(st.integers(-20 * MS, 20 * MS), min_size=60, max_size=60),
)
def test_an_exchange_never_makes_an_estimate_less_certain(
    drawn: list[tuple[int, int, int, int]], ppb: int, wishes: list[int]
) -> None:
    """For any preferred estimate: the uncertainty just after an exchange is not larger than without
    it, apart from rounding to nanoseconds."""
    made = exchanges(drawn, ppb)
    bounds = OffsetBounds(made[0])
    for x in made[1:]:
        near = x.t2 - x.t1
        _, before = bounds.settle(x.t4, near + wishes.pop())
        assert bounds.narrow(x)
        estimate, after = bounds.settle(x.t4, near + wishes.pop())
        low, high = bounds.at(x.t4)
        assert after <= before + 2
        assert estimate - after <= low <= high <= estimate + after


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
        line = ServiceLine(ServiceRawNs(9 * S), AlignedNs(EPOCH))
        alignment = align(clock.newest(ServiceRawNs(11 * S)), line)
        uncertainty_ns = alignment.uncertainty_ns(alignment.at_ns)
        assert uncertainty_ns is None or uncertainty_ns >= 0
        alignment = alignment._replace(reading=wall.last)
        data = msgspec.msgpack.encode(alignment)
        assert msgspec.msgpack.decode(data, type=Alignment) == alignment
        aligned = alignment.to_aligned(np.array(stamps, np.int64))
        assert aligned.tolist() == [alignment.one_to_aligned(stamp) for stamp in stamps]
        assert all(aligned[i] == 0 for i, stamp in enumerate(stamps) if stamp == 0)
