"""Laws of a cell's log: what an agent may forget is stored, and the log has no holes.

Real outboxes of agents, real sessions and streams of the service, and the real replicated log on
fake servers. Connections break with messages and acknowledgements in flight, old streams go on for
a while after new ones, and the servers are slow, away, or lose answers.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from frd.cluster.log import Bundle
from frd.cluster.packing import Joiner
from frd.engine.engine import Engine
from frd.engine.policy import Policy
from frd.model import AlignedNs, NodeNs, NodeRawNs, RankInfo
from frd.service.clocks.agent_clocks import AgentClocks
from frd.service.clocks.real_time import RealTime
from frd.service.ingest.shared import Shared
from frd.service.ingest.streams import Stream, Streams
from frd.service.journal.appending import Appender
from frd.service.journal.payloads import Settings, encode_payload
from frd.service.journal.replicated import ReplicatedLog
from frd.service.journal.runs import Budget, Runs
from frd.store.journal import JournalLimits
from frd.store.records import Record, RecordKind
from frd.v1 import stream_pb2 as pb
from frd.wire.encode import encode_agent
from frd.wire.messages import PROTOCOL, Ack, Hello
from frd_agent.uplink.outbox import Outbox
from tests.world.fake_cluster import FakeLog, FakeStream, Faults
from tests.world.messages import BOTH, declare, entry_columns
from tests.world.seeds import seeds
from tests.world.virtual_time import in_virtual_time

RANKS: Final = 2
"""Of each agent."""
AGENTS: Final = 2
START: Final = AlignedNs(1_790_000_000_000_000_000)
SETTINGS: Final = encode_payload(Settings("0"))


@dataclass(eq=False)
class Connection:
    stream: Stream
    unread: list[bytes] = field(default_factory=list)
    """Messages that the service has not read."""


class Agent:
    """Sends rows of its ranks from a real outbox."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.outbox = Outbox(10**12)
        self.recorded = [0] * RANKS
        self.acked: dict[int, int] = defaultdict(int)
        """The highest revision of each rank that the service has acknowledged."""
        self.connection: Connection | None = None

    def introduction(self) -> list[bytes]:
        name = str(self.number)
        world = AGENTS * RANKS
        first = self.number * RANKS
        infos = [
            RankInfo(rank, world, f"n{name}", f"b{name}", 10 + rank)
            for rank in range(first, first + RANKS)
        ]
        hello = Hello(PROTOCOL, "0", f"n{name}", f"b{name}", name, NodeNs(1), NodeRawNs(1))
        return [encode_agent(hello), encode_agent(declare(infos))]

    def record(self, rank: int, rows: int) -> None:
        first = self.recorded[rank]
        self.recorded[rank] += rows
        created = START - 10**9 + np.arange(first, first + rows)
        self.outbox.record(
            entry_columns(
                range(first, first + rows),
                rank=rank,
                flags=BOTH,
                created=created,
                completed=created + 1,
            )
        )


class World:
    """One owner of a cell, and its agents. Every acknowledgement that leaves is checked."""

    def __init__(self, seed: int, bound: int = 10**9) -> None:
        self.dice = random.Random(seed)
        self.budget = Budget(bound)
        self.neighbour = Runs(self.budget)
        """Of another cell."""
        self.faults = Faults(random.Random(seed))
        self.servers = FakeStream()
        self.agents = [Agent(number) for number in range(AGENTS)]
        self.late: list[Connection] = []
        """Connections that their agent has left."""
        self.agent_of: dict[int, Agent] = {}
        self.reader = Reader(self.servers)
        self.applied: dict[tuple[int, int], int] = defaultdict(int)
        """The last row of each rank that is in the log, or was in it before the servers lost it."""
        self.ack_loss = 0.1

    async def begin(self) -> None:
        fenced = FakeLog(self.servers, self.faults)
        await fenced.take("a")
        self.log = ReplicatedLog(
            Appender(7, fenced, "a"),
            settings=SETTINGS,
            now=START,
            limits=JournalLimits(total_bytes=10**12),
            budget=self.budget,
            on_fenced=lambda: None,
        )
        self.shared = shared = Shared(Engine(Policy()))
        self.streams = Streams(
            shared, AgentClocks(RealTime(self.now)), self.log,
            now=self.now, version="0", instance="i", ids=itertools.count(1),
        )  # fmt: skip

    def crowd(self) -> None:
        """What waits in the other cell uses the budget up, or nothing waits there any more."""
        self.neighbour.clear()
        if self.dice.random() < 0.5:
            size = min(self.budget.limit, 20_000)
            self.neighbour.add(Record(RecordKind.MESSAGE, START, 1, bytes(size)), 1)

    def now(self) -> AlignedNs:
        return AlignedNs(START + round(asyncio.get_running_loop().time() * 1e9))

    # -- what may happen -------------------------------------------------------------------------

    def connect(self, agent: Agent) -> None:
        """The former stream is left with what it has in flight."""
        if agent.connection is not None:
            self.late.append(agent.connection)
        agent.connection = Connection(self.streams.open())
        self.agent_of[agent.connection.stream.id] = agent
        agent.connection.unread += agent.introduction()
        agent.outbox.rewind()

    def send(self, agent: Agent) -> None:
        if agent.connection is not None and (batch := agent.outbox.next_batch()) is not None:
            agent.connection.unread.append(encode_agent(batch))

    def receive(self, connection: Connection) -> None:
        if connection.unread:
            self.streams.take(connection.stream, connection.unread.pop(0))

    def acknowledge(self) -> None:
        """All streams that have something to write do so; the former ones in vain."""
        self.streams.flush_acks()
        current = [agent.connection for agent in self.agents if agent.connection]
        for connection in (*current, *self.late):
            stream = connection.stream
            if stream.moved:
                self.end(connection)
            elif stream.wake.is_set():
                self.write(connection)

    def write(self, connection: Connection) -> None:
        """The service writes what it has for the stream, for a request, too."""
        connection.stream.wake.clear()
        for event in connection.stream.take_outgoing():
            if isinstance(event, Ack):
                self._acked(connection, event)

    def end(self, connection: Connection) -> None:
        """The service notices that the stream is over."""
        if connection in self.late:
            self.late.remove(connection)
        agent = self.agent_of[connection.stream.id]
        if agent.connection is connection:
            agent.connection = None
        self.streams.close(connection.stream)
        self.write(connection)

    def _acked(self, connection: Connection, ack: Ack) -> None:
        agent = self.agent_of[connection.stream.id]
        for rank, revision in ack.revisions.items():
            agent.acked[rank] = max(agent.acked[rank], revision)
        self.check()
        if connection is agent.connection:
            if self.dice.random() < self.ack_loss:
                self.connect(agent)  # the connection broke before it came
            else:
                agent.outbox.ack(ack.revisions)

    # -- the laws --------------------------------------------------------------------------------

    def check(self) -> None:
        """Every acknowledged row is in the log; and there is no row before which one is missing."""
        for record in self.reader.fresh():
            if record.kind is not RecordKind.MESSAGE:
                continue
            message = pb.AgentMessage.FromString(record.payload)
            if message.WhichOneof("kind") == "entries":
                batch = message.entries
                key = self.agent_of[record.stream].number, batch.rank_index
                assert batch.first_revision <= self.applied[key] + 1, "a hole"
                last = batch.first_revision + len(batch.flags) - 1
                self.applied[key] = max(self.applied[key], last)
        for agent in self.agents:
            for rank, revision in agent.acked.items():
                assert revision <= self.applied[agent.number, rank]

    async def settle(self) -> None:
        """The servers answer, all agents are connected, and everything is sent."""
        self.faults.no_leader_until = self.ack_loss = 0.0
        self.faults.lost_answers = self.faults.lost_requests = 0.0
        self.neighbour.clear()  # seed 2425: its share may be less than what an agent says first
        for _ in range(200):
            for agent in self.agents:
                if agent.connection is None:
                    self.connect(agent)
                self.send(agent)
                while agent.connection is not None and agent.connection.unread:
                    self.receive(agent.connection)
            self.shared.flush()
            self.log.tick(self.now())
            await asyncio.sleep(0.5)
            for agent in self.agents:
                if agent.connection is not None:
                    self.write(agent.connection)
            self.acknowledge()


class Reader:
    """Reads what the servers have stored since the last call."""

    def __init__(self, servers: FakeStream) -> None:
        self._servers = servers
        self._joiner = Joiner()
        self._next = 1

    def lost(self) -> None:
        """The servers have lost the end of the log."""
        self._next = min(self._next, self._servers.last + 1)

    def fresh(self) -> Iterator[Record]:
        for number in range(self._next, self._servers.last + 1):
            message = self._servers.get(number)
            if message is not None and message.epoch:
                frame = self._joiner.add(Bundle(number, message.epoch, message.data))
                if frame is not None:
                    yield from frame.records()
        self._next = self._servers.last + 1


async def live(world: World, steps: int) -> None:
    """`steps` random events."""
    await world.begin()
    for _ in range(steps):
        agent = world.dice.choice(world.agents)
        if world.dice.random() < 0.6:
            agent_acts(world, agent)
        else:
            await service_acts(world)


def agent_acts(world: World, agent: Agent) -> None:
    dice = world.dice
    if agent.connection is None or dice.random() < 0.05:
        world.connect(agent)
        return
    match dice.randrange(3):
        case 0:
            agent.record(dice.randrange(RANKS), dice.randrange(1, 30))
        case 1:
            world.send(agent)
        case _:
            world.receive(agent.connection)


async def service_acts(world: World) -> None:
    dice = world.dice
    match dice.randrange(5):
        case 0 if world.late:
            connection = dice.choice(world.late)
            world.receive(connection)
            if dice.random() < 0.3:
                world.end(connection)
        case 1:
            world.shared.flush()
            world.log.tick(world.now())
        case 2:
            await asyncio.sleep(dice.choice([0, 0, 0.01, 0.3, 3]))
        case 3:
            world.acknowledge()
        case _ if dice.random() < 0.8:
            connected = [a.connection for a in world.agents if a.connection is not None]
            for connection in connected:
                world.write(connection)
        case _:
            world.faults.lost_answers = dice.choice([0, 0, 0.3])
            world.faults.delay_s = dice.choice([0, 0, 0.2])
            away = dice.choice([0, 0, 5, 20])
            world.faults.no_leader_until = asyncio.get_running_loop().time() + away
            world.crowd()


@given(seed=st.integers(0, 2**32), bound=st.sampled_from([3_000, 10_000, 10**9]))
@settings(max_examples=seeds(25, 3))
@in_virtual_time
async def test_what_is_acknowledged_is_stored(seed: int, bound: int) -> None:
    """Agents come and go while the servers have faults, and the memory for waiting records is
    small, and often used up by another cell: no row is acknowledged before it is stored, and once
    the other cell has written its records, all rows are."""
    world = World(seed, bound)
    await live(world, 300)
    await world.settle()
    world.check()
    for agent in world.agents:
        assert [agent.acked[rank] for rank in range(RANKS)] == agent.recorded
        assert agent.outbox.rows == 0
    await world.log.stop()
    assert (world.budget.logs, world.budget.waiting) == (1, world.neighbour.waiting)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=seeds(12, 3))
@in_virtual_time
async def test_servers_that_lose_the_end_of_the_log(seed: int) -> None:
    """The servers lose bundles that they had confirmed: rows that were not acknowledged before are
    stored again, before they are acknowledged."""
    world = World(seed)
    await live(world, 200)
    world.check()
    world.servers.lose_after(max(world.servers.last - world.dice.randrange(1, 6), 0))
    world.reader.lost()
    for _ in range(3):
        world.agents[0].record(0, 5)
    await world.settle()
    world.check()
    for agent in world.agents:
        assert [agent.acked[rank] for rank in range(RANKS)] == agent.recorded
    await world.log.stop()
