"""One node's clock: what it learns, what it refuses, and when it says that it does not know."""

from __future__ import annotations

import random

import pytest

from frd.engine.clocks.alignment import FAR_NS
from frd.engine.clocks.estimator import (
    MOST_READINGS,
    SILENT_NS,
    START_OVER,
    Exchange,
    NodeClock,
    Refusal,
    ServiceTable,
)
from frd.engine.clocks.history import MOST_KNOTS, MOST_SEGMENTS
from frd.model import AlignedNs, NodeNs, ServiceRawNs
from tests.world.clocks import EPOCH, MS, US, Agent, Clock, Host, Network, Path, S

LAN = Network(Path(60 * US, 40 * US), Path(60 * US, 40 * US))


class World:
    """A node whose wall clock is two seconds ahead, and its agent, which pings once a second."""

    def __init__(self, *, ppb: int = 20_000, network: Network = LAN) -> None:
        self.node = Host(Clock(3 * S, ppb), Clock(EPOCH + 2 * S))
        self.service = Host(Clock(9 * S), Clock(EPOCH))
        self.at = S
        self.agent = Agent(self.node, self.service, network, ServiceTable(), random.Random(1))

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            for quarter in range(1, 5):
                self.agent.read(self.node.awake(self.at + quarter * S // 4 - US))
                self.agent.tick(self.at + quarter * S // 4 - US)
            self.at = self.node.awake(self.at + S)
            self.agent.ping(self.at)
            self.at += 2 * MS
            self.agent.alignment(self.at)

    @property
    def reason(self) -> str:
        """Why the clock is unsynchronized; empty otherwise."""
        return self.agent.alignment(self.at).reason

    def off(self, ago: int = 0) -> tuple[int, int | None]:
        """Of a stamp made `ago`: how far it is aligned from the truth, and what is claimed."""
        error, bound = self.agent.error(self.agent.alignment(self.at), self.at - ago)
        return abs(error), bound


# -- learning ------------------------------------------------------------------------------------


def test_nothing_is_known_before_the_first_exchange() -> None:
    """Messages alone: the fastest of the last two minutes counts, and nothing bounds the offset."""
    world = World()
    clock = world.agent.clock
    for way_ms in (50, 7, 20):
        world.at += S
        sent = NodeNs(world.node.real(world.at - way_ms * MS))
        clock.one_way(sent, AlignedNs(world.service.real(world.at)))
    assert world.reason == "no exchange yet"
    error, bound = world.off()
    assert abs(error - 7 * MS) < MS
    assert bound is None


def test_one_exchange_is_enough() -> None:
    """A ping, its pong, and the next ping, which reports it: within half a round trip."""
    world = World()
    world.run(2)
    assert world.reason == ""
    error, bound = world.off(MS)
    assert bound is not None
    assert error <= bound < MS


@pytest.mark.parametrize("ppb", [-100_000, 0, 20_000, 100_000])
def test_drift_is_learned(ppb: int) -> None:
    """A minute on a LAN: microseconds off, and the drift within a part in a million."""
    world = World(ppb=ppb)
    world.run(60)
    alignment = world.agent.alignment(world.at)
    assert abs(alignment.drift_ppm + ppb / 1e3) < 1
    assert world.off()[0] < 20 * US
    assert alignment.offset_ns == pytest.approx(-2 * S, abs=20 * US)
    assert alignment.age_s < 2


def test_old_times_are_remembered() -> None:
    """A collective that hangs for an hour keeps its place on the timeline while its node's wall
    clock gains 30 parts in a million; of its age the claim is true."""
    world = World()
    world.node.real.change(S, ppb=30_000)
    world.run(10)
    since = world.at
    places = []
    for _ in range(36):
        world.run(100)
        alignment = world.agent.alignment(world.at)
        error, bound = world.agent.error(alignment, since)
        assert bound is not None
        assert abs(error) <= bound
        places.append(error)
    assert max(places) - min(places) < 50 * US


def test_memory_is_bounded() -> None:
    """Two hours with a step every ten minutes."""
    world = World()
    for _ in range(12):
        world.run(600)
        world.node.step(world.at, 3 * S)
    segments = world.agent.alignment(world.at).segments
    assert len(segments) <= MOST_SEGMENTS + 1
    assert all(len(segment.knots) <= MOST_KNOTS for segment in segments)


def test_how_fast_an_offset_grows() -> None:
    """The node's wall clock gains 300 parts in a million on its raw one, the service's 200 on its
    own: the offset falls by 100, and 20 of drift."""
    world = World()
    world.node.real.change(S, ppb=320_000)
    world.service.real.change(S, ppb=200_000)
    world.run(60)
    assert world.agent.alignment(world.at).rate == pytest.approx(-120e-6, abs=2e-6)
    assert world.off()[0] < 20 * US


@pytest.mark.parametrize("slack", [100, 50 * US])
def test_two_clocks_that_were_read_loosely_bound_less(slack: int) -> None:
    """So much may have passed between the reading of the node's raw clock and of its real one."""
    clock, table = NodeClock(), ServiceTable()
    table.read(ServiceRawNs(12 * S), AlignedNs(EPOCH), 100)
    assert clock.readings([11 * S], [EPOCH], [slack]) is None
    assert clock.exchange(exchange(11 * S)) is None
    half = clock.newest(ServiceRawNs(12 * S), table).half_ns
    assert MS // 2 + slack <= half < MS // 2 + slack + 100 * US


# -- steps, sleep and silence --------------------------------------------------------------------


@pytest.mark.parametrize("step", [2 * S, -2 * S, 5 * MS])
def test_a_step_of_the_node_starts_over(step: int) -> None:
    """Unsynchronized until an exchange has begun since; then new times are as exact as before,
    and those from before the step as they were."""
    world = World()
    world.run(30)
    before = world.at
    world.node.step(world.at, step)
    world.run(1)
    assert world.reason == "stepped"
    world.run(2)
    assert world.reason == ""
    assert world.agent.clock.steps == 1
    error, bound = world.off()
    assert bound is not None
    assert error <= bound < 2 * MS
    assert abs(world.agent.error(world.agent.alignment(world.at), before - 5 * S)[0]) < 50 * US


def test_times_that_a_clock_showed_twice() -> None:
    """Set back by five minutes: a stamp of just before is taken for what it is until the clock
    comes there again; then for a later one, without a bound."""
    world = World()
    world.run(30)
    made = world.at - 2 * S
    stamp = world.node.real(made)
    world.node.step(world.at, -300 * S)
    world.run(5)
    error, bound = world.agent.error(world.agent.alignment(world.at), made)
    assert abs(error) < 50 * US
    assert bound is not None
    assert bound < 5 * MS
    world.run(300)
    alignment = world.agent.alignment(world.at)
    again = alignment.one_to_aligned(stamp)
    assert abs(again - 300 * S - world.service.real(made)) < MS
    bound = alignment.uncertainty_ns(stamp)
    assert bound is not None
    assert bound >= 300 * S


def test_a_step_of_the_service() -> None:
    """Its wall clock is set forward: old times stay where they were, new ones follow."""
    world = World()
    world.run(30)
    before = world.at - 5 * S
    world.service.step(world.at, 2 * S)
    world.at += MS
    assert world.reason == "stepped"
    world.run(3)
    assert world.reason == ""
    assert world.agent.clock.steps == 0
    for ago in (0, world.at - before):
        error, bound = world.off(ago)
        assert bound is not None
        assert error <= bound < 3 * MS


@pytest.mark.parametrize("real_knows", [True, False])
def test_a_host_that_sleeps(real_knows: bool) -> None:
    """Its raw clock stops for an hour: the bounds exclude each other, all is dropped, and a
    few exchanges later all is known again."""
    world = World()
    world.run(30)
    world.node.sleep(world.at + S // 2, 3600 * S, real_knows=real_knows)
    world.run(3)
    assert world.agent.clock.contradictions == 1
    assert world.reason == "contradiction"
    world.run(2)
    assert world.reason == ""
    error, bound = world.off()
    assert bound is not None
    assert error <= bound < 2 * MS


def test_what_was_dropped_is_not_in_the_estimate() -> None:
    """A host slept; a few pings later its offset is the middle of what they say, and not at the
    end nearest to the earlier estimate."""
    world = World(network=Network(Path(500 * US, 0), Path(500 * US, 0)))
    world.run(30)
    world.node.sleep(world.at + S // 2, 60 * S, real_knows=True)
    world.run(8)
    assert world.agent.clock.contradictions == 1
    assert world.reason == ""
    assert world.off()[0] < 150 * US


def test_silence() -> None:
    """No ping for a minute: the claim grows and stays true; after two minutes there is none."""
    world = World(ppb=100_000)
    world.run(30)
    world.node.real.change(world.at, ppb=-400_000)
    claims = []
    for _ in range(6):
        world.at += 10 * S
        error, bound = world.off()
        assert bound is not None
        assert error <= bound
        claims.append(bound)
    assert claims == sorted(claims)
    world.at += SILENT_NS
    assert world.reason == "silent"
    world.run(2)
    assert world.reason == ""


# -- refusals --------------------------------------------------------------------------------------


def exchange(at: int, **changed: int) -> Exchange:
    """A millisecond's round trip at a node raw time; the service's raw clock is a second ahead."""
    stamps = {"t1": at, "t2": at + S, "t3": at + S, "t4": at + MS} | changed
    return Exchange(*stamps.values())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (exchange(20 * S, t1=0), Refusal.ZERO),
        (exchange(20 * S, t4=-5), Refusal.NEGATIVE),
        (exchange(20 * S, t4=20 * S - MS), Refusal.BACKWARDS),
        (exchange(20 * S, t3=21 * S - 1), Refusal.BACKWARDS),
        (exchange(20 * S, t3=21 * S + 2 * MS), Refusal.BACKWARDS),
        (exchange(10 * S), Refusal.BACKWARDS),
        (exchange(9 * S), Refusal.BACKWARDS),
        (exchange(20 * S, t4=4000 * S), Refusal.FUTURE),
        (exchange(FAR_NS), Refusal.FUTURE),
    ],
)
def test_exchanges_that_cannot_be(refused: Exchange, why: Refusal) -> None:
    """Refused by name, and nothing changes."""
    clock, table = NodeClock(), ServiceTable()
    table.read(ServiceRawNs(11 * S), AlignedNs(EPOCH), 100)
    assert clock.readings([10 * S], [EPOCH], [100]) is None
    assert clock.exchange(exchange(10 * S)) is None
    before = clock.alignment(ServiceRawNs(12 * S), table)
    assert clock.exchange(refused) is why
    assert clock.alignment(ServiceRawNs(12 * S), table) == before


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ((0, EPOCH, 100), Refusal.ZERO),
        ((12 * S, 0, 100), Refusal.ZERO),
        ((-1, EPOCH, 100), Refusal.NEGATIVE),
        ((12 * S, EPOCH, -1), Refusal.NEGATIVE),
        ((10 * S, EPOCH, 100), Refusal.BACKWARDS),
        ((12 * S, FAR_NS, 100), Refusal.FUTURE),
        ((12 * S, EPOCH + 2 * S, 2 * S), Refusal.LOOSE),
    ],
)
def test_readings_that_cannot_be(row: tuple[int, int, int], why: Refusal) -> None:
    """The whole message is refused, and nothing changes."""
    clock, table = NodeClock(), ServiceTable()
    table.read(ServiceRawNs(11 * S), AlignedNs(EPOCH), 100)
    assert clock.readings([10 * S], [EPOCH], [100]) is None
    assert clock.exchange(exchange(10 * S)) is None
    before = clock.alignment(ServiceRawNs(12 * S), table)
    assert clock.readings(*zip((11 * S, EPOCH + S, 100), row, strict=True)) is why
    assert clock.alignment(ServiceRawNs(12 * S), table) == before


def test_too_many_readings() -> None:
    """More than a message may carry."""
    rows = [(i * S, EPOCH + i * S, 100) for i in range(1, MOST_READINGS + 2)]
    assert NodeClock().readings(*zip(*rows, strict=True)) is Refusal.FLOOD


def test_refusals_do_not_last_for_ever() -> None:
    """One absurd timestamp was believed because it came first; soon the clock forgets it."""
    clock, table = NodeClock(), ServiceTable()
    table.read(ServiceRawNs(11 * S), AlignedNs(EPOCH), 100)
    clock.readings([FAR_NS - 5], [EPOCH], [100])
    clock.exchange(exchange(FAR_NS - 2 * S))
    refusals = []
    for second in range(20, 24 + 2 * START_OVER):
        refusals.append(clock.readings([second * S], [EPOCH + second * S], [100]))
        clock.exchange(exchange(second * S + MS))
        table.read(ServiceRawNs((second + 1) * S), AlignedNs(EPOCH + second * S), 100)
    assert refusals.count(Refusal.BACKWARDS) == START_OVER
    alignment = clock.alignment(ServiceRawNs((25 + 2 * START_OVER) * S), table)
    assert not alignment.reason


# -- what collectives say ------------------------------------------------------------------------


def test_others_that_agree_move_an_estimate_but_not_its_interval() -> None:
    """Two peers show that this node's times are 20 µs early: the estimate moves, the bounds of the
    truth do not; one peer alone moves nothing."""
    world = World()
    world.run(30)
    clock = world.agent.clock
    now = AlignedNs(world.service.real(world.at))
    plain = world.agent.alignment(world.at)
    assert clock.constrain("a", 7, now, least_ns=20 * US)
    assert world.agent.alignment(world.at).line_ns == plain.line_ns
    assert clock.constrain("b", 7, now, least_ns=30 * US)
    moved = world.agent.alignment(world.at)
    by = moved.line_ns - plain.line_ns
    assert 15 * US < by <= 20 * US
    before, after = (one.uncertainty_ns(one.at_ns) for one in (plain, moved))
    assert before is not None
    assert after is not None
    assert before - US < after < before + by + US
    world.run(70)
    assert world.off()[0] < 20 * US


def test_one_liar_among_many_moves_no_honest_clock() -> None:
    """Only its collectives contradict all other clocks, by seconds, again and again."""
    world = World()
    world.run(30)
    now = AlignedNs(world.service.real(world.at))
    before = world.agent.alignment(world.at)
    for _ in range(100):
        assert world.agent.clock.constrain("liar", 7, now, most_ns=-5 * S)
    assert world.agent.alignment(world.at) == before


@pytest.mark.parametrize(("peers", "names"), [(7, ("a", "b")), (1, ("a",))])
def test_a_clock_that_all_others_contradict(peers: int, names: tuple[str, ...]) -> None:
    """It is dropped and learned again; of two nodes it is not known which is wrong."""
    world = World()
    world.run(30)
    now = AlignedNs(world.service.real(world.at))
    agreed = [world.agent.clock.constrain(name, peers, now, most_ns=-5 * S) for name in names]
    assert agreed[-1] is False
    assert all(agreed[:-1])
    assert world.reason == "contradiction"
    assert world.off()[0] < MS
    assert world.off()[1] is None
    world.run(5)
    assert world.reason == ""
