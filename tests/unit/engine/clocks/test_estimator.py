"""One node's clock: what it learns, what it refuses, and when it says that it does not know."""

from __future__ import annotations

import random

import pytest

from frd.engine.clocks.alignment import FAR_NS
from frd.engine.clocks.estimator import START_OVER, Exchange, NodeClock, Refusal
from frd.engine.clocks.exchange import SILENT_NS
from frd.model import NodeRawNs, ServiceRawNs
from tests.world.clocks import EPOCH, MS, US, Agent, Clock, Host, Network, Path, S

LAN = Network(Path(60 * US, 40 * US), Path(60 * US, 40 * US))


class World:
    """A node whose raw clock is six seconds behind, and its agent, which pings once a second."""

    def __init__(self, *, ppb: int = 20_000, network: Network = LAN) -> None:
        self.node = Host(Clock(3 * S, ppb), Clock(EPOCH + 2 * S))
        self.service = Host(Clock(9 * S), Clock(EPOCH))
        self.at = S
        self.agent = Agent(self.node, self.service, network, random.Random(1))

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
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
        sent = NodeRawNs(world.node.raw(world.at - way_ms * MS))
        clock.one_way(sent, ServiceRawNs(world.service.raw(world.at)))
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


def test_old_times_keep_their_place() -> None:
    """A collective that hangs for an hour keeps its place on the timeline, and of its age the claim
    is true."""
    world = World(ppb=30_000)
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
    assert max(places) - min(places) < MS


# -- steps, sleep and silence --------------------------------------------------------------------


@pytest.mark.parametrize("step", [2 * S, -2 * S, 5 * MS])
def test_a_step_of_a_wall_clock_is_none_of_the_raw_one(step: int) -> None:
    """Of the node's, of the service's: nothing changes."""
    plain, stepped = World(), World()
    for world in (plain, stepped):
        world.run(10)
        if world is stepped:
            world.node.step(world.at, step)
            world.service.step(world.at, -step)
        world.run(5)
    assert stepped.agent.alignment(stepped.at) == plain.agent.alignment(plain.at)


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


def exchange(at: int, ahead: int = S, **changed: int) -> Exchange:
    """A millisecond's round trip at a node raw time; the service's raw clock is `ahead`."""
    stamps = {"t1": at, "t2": at + ahead, "t3": at + ahead, "t4": at + MS} | changed
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
    clock = NodeClock()
    assert clock.exchange(exchange(10 * S)) is None
    before = clock.newest(ServiceRawNs(12 * S))
    assert clock.exchange(refused) is why
    assert clock.newest(ServiceRawNs(12 * S))[:5] == pytest.approx(before[:5], abs=2)


def test_refusals_do_not_last_for_ever() -> None:
    """One absurd timestamp was believed because it came first; soon the clock forgets it."""
    clock = NodeClock()
    clock.exchange(exchange(FAR_NS - 2 * S))
    seconds = range(20, 24 + 2 * START_OVER)
    refusals = [clock.exchange(exchange(second * S + MS)) for second in seconds]
    assert refusals.count(Refusal.BACKWARDS) == START_OVER
    assert not clock.newest(ServiceRawNs((25 + 2 * START_OVER) * S)).reason


def test_exchanges_that_contradict_before_the_first_question() -> None:
    """Its raw clock jumps by 10 s between two pings: the first is forgotten, others count."""
    clock = NodeClock()
    assert clock.newest(ServiceRawNs(9 * S)).reason == "no exchange yet"
    for at in range(10, 30):
        assert clock.exchange(exchange(at * S, S if at == 10 else 11 * S)) is None
    assert clock.contradictions == 1
    assert not clock.newest(ServiceRawNs(41 * S)).reason


# -- what collectives say ------------------------------------------------------------------------


def test_others_that_agree_move_an_estimate_but_not_its_interval() -> None:
    """Two peers show that this node's times are 20 µs early: the estimate moves, the bounds of the
    truth do not; one peer alone moves nothing."""
    world = World()
    world.run(30)
    clock = world.agent.clock
    now = ServiceRawNs(world.service.raw(world.at))
    plain = world.agent.alignment(world.at)
    assert clock.constrain("a", 7, now, least_ns=20 * US)
    assert world.agent.alignment(world.at).aligned_ns == plain.aligned_ns
    assert clock.constrain("b", 7, now, least_ns=30 * US)
    moved = world.agent.alignment(world.at)
    by = moved.aligned_ns - plain.aligned_ns
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
    now = ServiceRawNs(world.service.raw(world.at))
    before = world.agent.alignment(world.at)
    for _ in range(100):
        assert world.agent.clock.constrain("liar", 7, now, most_ns=-5 * S)
    assert world.agent.alignment(world.at) == before


@pytest.mark.parametrize(("peers", "names"), [(7, ("a", "b")), (1, ("a",))])
def test_a_clock_that_all_others_contradict(peers: int, names: tuple[str, ...]) -> None:
    """It is dropped and learned again; of two nodes it is not known which is wrong."""
    world = World()
    world.run(30)
    now = ServiceRawNs(world.service.raw(world.at))
    agreed = [world.agent.clock.constrain(name, peers, now, most_ns=-5 * S) for name in names]
    assert agreed[-1] is False
    assert all(agreed[:-1])
    assert world.reason == "contradiction"
    assert world.off()[0] < MS
    assert world.off()[1] is None
    world.run(5)
    assert world.reason == ""


def test_what_a_collective_says_of_an_unknown_clock_is_no_contradiction() -> None:
    """There is nothing yet that it could contradict, and it is not remembered against the clock."""
    clock = NodeClock()
    for peer in "abc":
        assert clock.constrain(peer, 7, ServiceRawNs(41 * S), most_ns=-5 * S)
    assert clock.contradictions == 0
