"""Which of the alignments that pings teach are in use, whose they are, and for how long."""

from __future__ import annotations

import weakref
from functools import partial
from math import nan

import numpy as np
import pytest

from frd.engine.clocks.alignment import WANDER_PPM, Alignment
from frd.engine.clocks.estimator import Exchange
from frd.engine.matching.lateness import ClockHint
from frd.errors import StoreError
from frd.model import NodeNs, NodeRawNs, ServiceRawNs, WatermarkColumns
from frd.service.clocks import agent_clocks as module
from frd.service.clocks.agent_clocks import AgentClock, AgentClocks, claim_ns, decode, guess
from frd.service.clocks.real_time import RealTime
from frd.wire.clock import Readings
from frd.wire.messages import Hello, Watermarks

S = 1_000_000_000
MS = 1_000_000
WALL = 1_790_000_000 * S


class World:
    """A service whose raw clock shows true time."""

    def __init__(self) -> None:
        self.at = 1_000 * S
        self.ahead = 0
        """Of the wall clock, of what it showed at first."""
        raw = lambda: ServiceRawNs(self.at)  # noqa: E731  # too short to be a method
        self.now = RealTime(lambda: WALL + self.at + self.ahead, raw)
        self.clocks = AgentClocks(self.now)


class Agent:
    """A node whose wall clock is `ahead`, and whose raw one counts from somewhere else."""

    def __init__(self, world: World, session: str = "s", ahead: int = 2 * S) -> None:
        self.world = world
        self.key = ("boot", session)
        self.ahead = ahead
        self.drift = 0
        self.used: list[Alignment] = []
        self.clock = self.connect(1)

    def connect(self, stream: int) -> AgentClock:
        first = guess(self.raw(-MS), self.world.now())
        clocks = self.world.clocks
        return clocks.connected(self.key, "node", first, stream, self.used.append)

    def raw(self, later: int = 0) -> NodeRawNs:
        return NodeRawNs(self.world.at + later - 700 * S + self.drift)

    def wall(self, later: int = 0) -> NodeNs:
        return NodeNs(WALL + self.world.at + later + self.ahead)

    def ping(self, way: int = MS // 10) -> None:
        """A round trip that is over now and took so long each way, and a reading of both clocks."""
        self.world.clocks.learn(self.clock, self._readings(), self.exchange(way))

    def exchange(self, way: int = MS // 10) -> Exchange:
        service = ServiceRawNs(self.world.at - way)
        return Exchange(self.raw(-2 * way), service, service, self.raw())

    def read(self) -> None:
        """A ping whose answer does not come."""
        self.world.clocks.learn(self.clock, self._readings(), None)

    def _readings(self) -> Readings:
        one = (np.array([value]) for value in (self.raw(), self.wall(), 100))
        return Readings(*one)

    def pings(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.at += S
            self.ping()

    @property
    def error(self) -> int:
        """How far off the aligned time of now is."""
        return abs(self.clock.used.one_to_aligned(self.raw()) - self.world.now())

    @property
    def claimed(self) -> int:
        """How far off it is claimed to be at most."""
        claimed = claim_ns(self.clock.used)
        assert claimed is not None
        return claimed

    @property
    def reason(self) -> str:
        """Why the clock is unsynchronized; empty otherwise."""
        return self.clock.used.reason


def two_nodes(seconds: int) -> tuple[World, Agent, Agent]:
    """A service, and two nodes that both ping once a second for so long."""
    world = World()
    one, other = Agent(world, "one"), Agent(world, "other")
    for _ in range(seconds):
        one.pings(1)
        other.ping()
    return world, one, other


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def agent(world: World) -> Agent:
    return Agent(world)


def marks(sent_at: NodeNs, raw: NodeRawNs) -> Watermarks:
    """Of no rank: only the clocks matter here."""
    none = np.zeros(0, np.int64)
    index = np.zeros(0, np.uint32)
    columns = WatermarkColumns(index, index, none, none, none, none, index, none)
    return Watermarks(0, columns, sent_at, raw, 100)


def offset_s(clock: AgentClock, world: World) -> float:
    """As people see it; not a number while none is known."""
    shown = clock.view(world.now()).offset_s
    return nan if shown is None else shown


def test_without_pings_the_fastest_message_counts(world: World, agent: Agent) -> None:
    """Messages take from 1 to 50 ms: the offset is high by the fastest way, and bounded by none."""
    for way_ms in (50, 7, 3, 20):
        world.at += S
        late = -way_ms * MS
        world.clocks.heard(agent.clock, marks(agent.wall(late), agent.raw(late)))
    assert agent.error == 3 * MS
    assert agent.reason == "no exchange yet"
    assert claim_ns(agent.clock.used) is None


def test_a_ping_before_any_watermark_is_a_message_too(world: World, agent: Agent) -> None:
    """Raw clocks count from anywhere: before the first ping has been answered, and before the first
    watermark, the reading that the ping carries says where."""
    world.clocks.refresh()
    assert agent.used == []
    world.at += S
    agent.read()
    assert agent.error <= MS
    assert agent.reason == "no exchange yet"


def test_a_few_pings_are_enough(world: World, agent: Agent) -> None:
    """A burst at connect, then one a second for a minute: the claim holds, and hardly changes."""
    for _ in range(8):
        world.at += 10 * MS
        agent.ping()
    assert agent.reason == ""
    before = len(agent.used)
    for _ in range(60):
        agent.pings(1)
        assert agent.error <= MS // 10
        assert agent.error <= agent.claimed < 4 * MS
    assert len(agent.used) - before <= 2


def test_what_is_claimed_becomes_less_when_more_is_known(world: World, agent: Agent) -> None:
    """The first ping took 40 ms, those after it a fifth of one."""
    world.at += S
    agent.ping(20 * MS)
    assert agent.claimed > 20 * MS
    agent.pings(5)
    assert agent.error <= agent.claimed < 4 * MS


def test_a_reading_that_came_on_both_streams_is_one(world: World, agent: Agent) -> None:
    """Watermarks have brought it already; the ping brings it again, with the next one."""
    agent.pings(2)
    raws, reals = [], []
    for _ in range(2):
        world.at += S
        raws.append(agent.raw())
        reals.append(agent.wall())
    world.clocks.heard(agent.clock, marks(reals[0], raws[0]))
    both = Readings(np.array(raws), np.array(reals), np.array([100, 100]))
    world.clocks.learn(agent.clock, both, None)
    assert world.clocks.refused.total() == 0
    assert agent.clock.read_at == raws[1]


def test_the_offset_that_people_see_begins_with_the_hello(world: World, agent: Agent) -> None:
    """The raw clock and the wall clock count from elsewhere, so until a reading of both is known
    there is no offset to show. The Hello is one, good to a millisecond."""
    assert agent.clock.view(world.now()).offset_s is None
    hello = Hello(2, "0", "node", *agent.key, agent.wall(-MS), agent.raw(-MS))
    world.clocks.greeted(agent.clock, hello)
    assert agent.clock.view(world.now()).offset_s == pytest.approx(-2.0, abs=0.01)
    agent.pings(3)
    assert agent.clock.view(world.now()).offset_s == pytest.approx(-2.0, abs=0.001)
    assert agent.clock.view(world.now()).steps == 0


@pytest.mark.parametrize("step", [3 * S, -3 * S, 5 * MS])
def test_a_step_is_counted_and_moves_nothing(world: World, agent: Agent, step: int) -> None:
    """The node's wall clock is set: people see it, the alignment stays."""
    agent.pings(20)
    used = agent.clock.used
    agent.ahead += step
    world.at += S // 4
    agent.read()
    assert agent.reason == ""
    assert agent.error <= MS // 10
    view = agent.clock.view(world.now())
    assert view.steps == 1
    assert view.offset_s == pytest.approx(-agent.ahead / S, abs=1e-3)
    moved = agent.clock.used.one_to_aligned(agent.raw()) - used.one_to_aligned(agent.raw())
    assert abs(moved) < MS // 1_000


@pytest.mark.parametrize("step", [3600 * S, -3600 * S, 86_400 * S, 60 * MS])
def test_a_step_of_the_service_moves_no_node(step: int) -> None:
    """The service's wall clock is set: nodes are aligned as before, and people see that their wall
    clocks are off by so much more."""
    world, one, other = two_nodes(20)
    before, began = [agent.clock.used for agent in (one, other)], world.now()
    world.ahead = step
    world.at += S
    world.now.follow()
    one.ping()
    assert world.now() - began == S
    for agent, used in zip((one, other), before, strict=True):
        assert agent.reason == ""
        assert agent.error <= MS // 10
        moved = agent.clock.used.one_to_aligned(agent.raw()) - used.one_to_aligned(agent.raw())
        assert abs(moved) < MS // 10
        assert offset_s(agent.clock, world) == pytest.approx((step - agent.ahead) / S, abs=2e-3)


@pytest.mark.parametrize("ppm", [400, 20, -90])
def test_a_service_whose_wall_clock_is_slewed(ppm: int) -> None:
    """For half an hour: nodes are aligned as before, and the offsets that people see follow."""
    world = World()
    one, other = Agent(world, "one"), Agent(world, "other")
    for _ in range(900):
        world.at += 2 * S
        world.ahead += 2 * ppm * 1_000
        world.now.follow()
        one.ping()
        other.ping()
        assert one.error < MS // 10
        same = one.raw() - S
        apart = one.clock.used.one_to_aligned(same) - other.clock.used.one_to_aligned(same)
        assert abs(apart) < MS // 10
        ahead_s = (world.ahead - one.ahead) / S
        assert offset_s(one.clock, world) == pytest.approx(ahead_s, abs=2e-3)
    assert len(one.used) < 60


def test_what_is_claimed_of_a_silent_clock_grows(world: World, agent: Agent) -> None:
    """Pings stop: the claim stays true without them, until nothing is claimed any more."""
    agent.pings(20)
    for second in range(200):
        world.at += S
        agent.drift += int(WANDER_PPM * 1_000) * second  # as fast as a drift can change
        world.clocks.refresh()
        claimed = claim_ns(agent.clock.used)
        assert claimed is None or agent.error <= claimed
    assert agent.reason == "silent"


def test_a_fleet_that_pings_rarely_keeps_its_alignments(world: World, agent: Agent) -> None:
    """A pair of pings every 8 s: the claim holds from one pair to the next, so no other alignment
    comes into use in between, and few do at a pair."""
    agent.pings(60)
    world.clocks.ping_every(8.0)
    for second in range(1, 801):
        world.at += S
        world.clocks.refresh()
        if second % 8 == 0:
            agent.ping()
        assert agent.error <= agent.claimed <= 3 * MS
        if second == 80:
            settled = len(agent.used)
    assert len(agent.used) - settled <= 720 // 60 + 3


def test_a_liar_moves_its_own_clock_only() -> None:
    """Two agents of one host: one sends impossible raw times, and a wall clock that runs
    wild; the other's clock does not move."""
    world = World()
    honest, liar = Agent(world, "honest"), Agent(world, "liar")
    for second in range(60):
        world.at += S
        honest.ping()
        liar.ahead += second * second * MS
        exchange = Exchange(liar.raw(-S), ServiceRawNs(world.at), ServiceRawNs(1), NodeRawNs(0))
        world.clocks.learn(liar.clock, liar._readings(), exchange)
    assert honest.error <= MS // 10
    assert honest.reason == ""
    assert liar.reason
    assert world.clocks.refused.total() >= 60


def test_a_session_that_comes_back_is_known(world: World, agent: Agent) -> None:
    """The connection breaks for a minute; when the agent is back its clock is known immediately."""
    agent.pings(20)
    agent.clock.disconnected(1, world.now())
    assert world.clocks.find(agent.key) is None
    world.at += 60 * S
    world.clocks.forget(world.now())
    agent.clock = agent.connect(2)
    assert world.clocks.find(agent.key) is agent.clock
    assert agent.reason == ""
    agent.clock.disconnected(1, world.now())
    assert world.clocks.find(agent.key) is agent.clock, "its newer stream is there"


def test_a_stream_that_is_gone_is_not_kept(world: World, agent: Agent) -> None:
    """Its clock is, for a while; the callback, which refers to all ranks, is not."""
    use = partial(agent.used.append)
    kept = weakref.ref(use)
    world.clocks.connected(agent.key, "node", guess(agent.raw(), world.now()), 2, use)
    del use
    assert kept() is not None
    agent.clock.disconnected(2, world.now())
    assert kept() is None
    agent.pings(20)


def test_all_streams_of_a_session_use_its_clock(world: World, agent: Agent) -> None:
    """An agent reports two jobs on two streams: both get each new alignment, and the session is
    gone when the last one ends."""
    other: list[Alignment] = []
    first = guess(agent.raw(), world.now())
    assert world.clocks.connected(agent.key, "node", first, 2, other.append) is agent.clock
    agent.pings(5)
    assert other == agent.used
    agent.clock.disconnected(1, world.now())
    assert world.clocks.find(agent.key) is agent.clock
    known = len(agent.used)
    agent.drift += 10 * S
    agent.pings(10)
    assert len(agent.used) == known
    assert len(other) > known
    agent.clock.disconnected(2, world.now())
    assert world.clocks.find(agent.key) is None
    assert agent.clock.gone_at == world.now()


def test_clock_streams_of_a_session_take_turns(world: World, agent: Agent) -> None:
    """Pings come on the connection of each job, on one of them often: what the others bring counts
    unless it is overtaken, which is no fault of theirs."""
    agent.pings(20)
    others = agent.exchange()
    for second in range(200):
        agent.pings(1)
        if second % 60 == 0:
            late, others = others, agent.exchange()
            world.clocks.learn(agent.clock, agent._readings(), late, "other")
        assert agent.claimed < MS
    assert not world.clocks.refused
    agent.drift += MS // 100
    for _ in range(20):
        world.at += S
        world.clocks.learn(agent.clock, agent._readings(), agent.exchange(), "other")
        assert agent.error <= agent.claimed < MS


def test_sessions_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents come and go under ever new sessions: a few are kept, for a while."""
    monkeypatch.setattr(module, "MAX_GONE", 8)
    world = World()
    agents = []
    for number in range(20):
        agents.append(Agent(world, f"session {number}"))
        agents[-1].clock.disconnected(1, world.now())
        world.at += S
    world.clocks.forget(world.now())
    kept = [agent for agent in agents if agent.connect(2) is agent.clock]
    assert kept == agents[-8:]
    for agent in kept:
        agent.clock.disconnected(2, world.now())
    world.at += 3600 * S
    world.clocks.forget(world.now())
    assert not [agent for agent in kept if agent.connect(3) is agent.clock]


@pytest.mark.parametrize("garbage", [b"", b"\x01", b"\x90", b"\x91\xa1\xff", b"\x80"])
def test_garbage_in_place_of_an_alignment_is_refused(garbage: bytes) -> None:
    with pytest.raises(StoreError, match="foreign file"):
        decode(garbage)


# -- collectives ---------------------------------------------------------------------------------


def test_collectives_that_cannot_be_make_both_clocks_unknown() -> None:
    """One node was done 5 ms before the other came: what pings taught of both is dropped, because
    either may be wrong; the next pings teach it again. Among three nodes, one word against another
    is not enough."""
    world, one, other = two_nodes(5)
    hint = ClockHint(0, 1, -5 * MS, world.now(), MS, MS)
    assert hint.contradicts
    world.clocks.compare(one.clock, other.clock, 3, hint)
    assert one.reason == other.reason == ""
    world.clocks.compare(one.clock, other.clock, 2, hint)
    assert one.reason == other.reason == "contradiction"
    one.pings(5)
    assert one.reason == ""


def test_what_a_collective_says_is_said_of_the_right_clock() -> None:
    """One was done 60 µs before the other came, whose clock is known to 10 µs: so the times of the
    one were 50 µs too early, as its own pings permit. Of the other nothing new is known."""
    world, one, other = two_nodes(5)
    before = [offset_s(agent.clock, world) for agent in (one, other)]
    hint = ClockHint(0, 1, -60_000, world.now(), MS, 10_000)
    world.clocks.compare(one.clock, other.clock, 2, hint)
    moved = []
    for agent, was in zip((one, other), before, strict=True):
        agent.read()
        moved.append(offset_s(agent.clock, world) - was)
    assert moved == pytest.approx([50e-6, 0.0], abs=5e-6)
