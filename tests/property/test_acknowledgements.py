"""Laws of acknowledgements: an agent forgets only what the service has applied, each row is applied
once, and nothing is acknowledged while another replica may have the cell.

Real outboxes of agents, real sessions and streams. Connections break with messages and
acknowledgements in flight, and old streams go on for a while after new ones.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from frd.engine.engine import Engine
from frd.engine.policy import Policy
from frd.model import AlignedNs, NodeNs, NodeRawNs, RankInfo
from frd.service.cells.homes import NoLog
from frd.service.clocks.agent_clocks import AgentClocks
from frd.service.clocks.real_time import RealTime
from frd.service.ingest.shared import Shared
from frd.service.ingest.streams import Stream, Streams
from frd.wire.encode import encode_agent
from frd.wire.messages import PROTOCOL, Ack, Hello
from frd_agent.uplink.outbox import Outbox
from tests.world.messages import BOTH, declare, entry_columns
from tests.world.seeds import seeds

RANKS: Final = 2
"""Of each agent."""
AGENTS: Final = 2
START: Final = AlignedNs(1_790_000_000_000_000_000)


@dataclass(eq=False)
class Connection:
    agent: Agent
    stream: Stream
    unread: list[bytes] = field(default_factory=list)
    """Messages that the service has not read."""


class Agent:
    """Sends rows of its ranks from a real outbox."""

    def __init__(self, number: int) -> None:
        name, first = str(number), number * RANKS
        self.outbox = Outbox(10**12)
        self.recorded = [0] * RANKS
        self.acked: dict[int, int] = defaultdict(int)
        """The highest revision of each rank that the service has acknowledged."""
        self.connection: Connection | None = None
        infos = [
            RankInfo(rank, AGENTS * RANKS, f"n{name}", f"b{name}", 10 + rank)
            for rank in range(first, first + RANKS)
        ]
        hello = Hello(PROTOCOL, "0", f"n{name}", f"b{name}", name, NodeNs(1), NodeRawNs(1))
        self.introduction = [encode_agent(hello), encode_agent(declare(infos))]

    def record(self, rank: int, rows: int) -> None:
        seqs = range(self.recorded[rank], self.recorded[rank] + rows)
        self.recorded[rank] += rows
        at = START - 10**9 + np.arange(seqs.start, seqs.stop)
        self.outbox.record(entry_columns(seqs, rank=rank, flags=BOTH, created=at, completed=at + 1))


class World:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.agents = [Agent(number) for number in range(AGENTS)]
        self.late: list[Connection] = []
        """Connections that their agent has left."""
        self.is_sure = True
        self.ack_loss = 0.1
        self.shared = Shared(Engine(Policy()))
        self.streams = Streams(
            self.shared, AgentClocks(RealTime()), NoLog(),
            now=lambda: START, version="0", instance="i", ids=itertools.count(1),
            is_sure=lambda: self.is_sure,
        )  # fmt: skip

    def connect(self, agent: Agent) -> None:
        """The former stream is left with what it has in flight."""
        if agent.connection is not None:
            self.late.append(agent.connection)
        agent.connection = Connection(agent, self.streams.open(), list(agent.introduction))
        agent.outbox.rewind()

    def send(self, agent: Agent) -> None:
        if agent.connection is not None and (batch := agent.outbox.next_batch()) is not None:
            agent.connection.unread.append(encode_agent(batch))

    def receive(self, connection: Connection) -> None:
        if connection.unread:
            self.streams.take(connection.stream, connection.unread.pop(0))

    def acknowledge(self) -> None:
        """All streams write what they have; the former ones in vain."""
        self.streams.flush_acks()
        for connection in [*self.late, *filter(None, (a.connection for a in self.agents))]:
            self.write(connection)

    def write(self, connection: Connection) -> None:
        agent = connection.agent
        for event in connection.stream.take_outgoing():
            if not isinstance(event, Ack):
                continue
            assert self.is_sure
            for rank, revision in event.revisions.items():
                assert revision <= agent.recorded[rank]
                agent.acked[rank] = max(agent.acked[rank], revision)
            assert sum(n for a in self.agents for n in a.acked.values()) <= self.shared.entries
            if connection is agent.connection:
                if self.dice.random() < self.ack_loss:
                    self.connect(agent)  # the connection broke before it came
                else:
                    agent.outbox.ack(event.revisions)

    def end(self, connection: Connection) -> None:
        """The service notices that a former stream is over."""
        self.late.remove(connection)
        self.streams.close(connection.stream)
        self.write(connection)

    def act(self) -> None:
        agent, dice = self.dice.choice(self.agents), self.dice
        match dice.randrange(8):
            case 0 if agent.connection is None or dice.random() < 0.2:
                self.connect(agent)
            case 0 | 1:
                agent.record(dice.randrange(RANKS), dice.randrange(1, 30))
            case 2:
                self.send(agent)
            case 3 if agent.connection is not None:
                self.receive(agent.connection)
            case 4 if self.late:
                self.receive(dice.choice(self.late))
            case 5 if self.late and dice.random() < 0.3:
                self.end(dice.choice(self.late))
            case 6:
                self.shared.flush()
            case _:
                self.is_sure = dice.random() < 0.7
                self.acknowledge()

    def settle(self) -> None:
        """The replica is sure, all agents are connected, and everything is sent."""
        self.is_sure, self.ack_loss = True, 0.0
        for _ in range(200):
            for agent in self.agents:
                if agent.connection is None:
                    self.connect(agent)
                self.send(agent)
                while agent.connection is not None and agent.connection.unread:
                    self.receive(agent.connection)
            self.shared.flush()
            self.acknowledge()


@given(seed=st.integers(0, 2**32))
@settings(max_examples=seeds(40, 5))
def test_what_is_acknowledged_is_applied(seed: int) -> None:
    """Agents come and go while the replica is sure of the cell or not: in the end each row is
    applied once and acknowledged, and the agents keep nothing."""
    world = World(seed)
    for _ in range(300):
        world.act()
    world.settle()
    for agent in world.agents:
        assert [agent.acked[rank] for rank in range(RANKS)] == agent.recorded
        assert agent.outbox.rows == 0
    assert world.shared.entries == sum(sum(agent.recorded) for agent in world.agents)
