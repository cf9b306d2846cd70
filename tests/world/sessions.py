"""Agent streams into the service's sessions and a real engine: no sockets, injected time."""

from __future__ import annotations

import itertools

from frd.engine.engine import Engine
from frd.engine.policy import Policy
from frd.engine.views import AttemptView, RankView
from frd.model import (
    AlignedNs,
    AttemptKey,
    EntryColumns,
    GroupInfo,
    NodeNs,
    NodeRawNs,
    RankInfo,
    RankState,
    RankStatus,
    ServiceRawNs,
    Signature,
)
from frd.service.cells.replica import NoLog
from frd.service.clocks.agent_clocks import AgentClocks
from frd.service.clocks.real_time import RealTime
from frd.service.ingest.session import Session
from frd.service.ingest.shared import Shared
from frd.service.ingest.streams import Streams
from frd.wire.codec import encode_agent
from frd.wire.messages import (
    PROTOCOL,
    AgentEvent,
    AttemptDecl,
    Declare,
    GroupDecl,
    Hello,
    RankDecl,
    SignatureDecl,
    Statuses,
)
from tests.world.messages import BOTH, entry_columns, p2p_ops, watermarks

S = 1_000_000_000
NOW = 1_790_000_000 * S
OFFSET = 100 * S
"""The node's clock is a hundred seconds behind the service's."""
KEY = AttemptKey("job", 0)
GROUPS = (
    GroupDecl(0, 0, GroupInfo("0", "default_pg", (0, 1, 2, 3))),
    GroupDecl(1, 0, GroupInfo("7", "TENSOR", (0, 1))),
)


class Service:
    """What all streams of one service share."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.engine = Engine(policy or Policy(stall_after_s=1.0))
        self.shared = Shared(self.engine)
        self.now = NOW
        self._streams = 0

    def session(self) -> Session:
        self._streams += 1
        return Session(self.shared, self._streams)

    def stream(self, session: str = "s", pid: int = 10) -> Stream:
        return Stream(self, self.session(), session, pid)

    def view(self) -> AttemptView:
        self.shared.flush()
        (view,) = self.engine.status_view(AlignedNs(self.now)).attempts
        return view

    def rank(self, rank: int) -> RankView:
        return next(view for view in self.view().ranks if view.info.rank == rank)


def quiet_streams() -> Streams:
    """Those of a cell without a log, in which no time passes."""
    return Streams(
        Shared(Engine(Policy())),
        AgentClocks(RealTime(lambda: 1, lambda: ServiceRawNs(1))),
        NoLog(),
        now=lambda: AlignedNs(1),
        version="test",
        instance="one",
        ids=itertools.count(1),
    )


class Stream:
    """An agent that hosts the ranks 0 and 3 of four."""

    def __init__(self, service: Service, session: Session, name: str, pid: int) -> None:
        self.service = service
        self.session = session
        infos = [RankInfo(rank, 4, "n", "boot", pid + rank) for rank in (0, 3)]
        self.send(Hello(PROTOCOL, "0", "n", "boot", name, NodeNs(NOW), self.node_now()))
        self.send(
            Declare(
                attempts=(AttemptDecl(0, KEY, 4),),
                ranks=tuple(RankDecl(i, 0, info) for i, info in enumerate(infos)),
                groups=GROUPS,
                signatures=(SignatureDecl(0, Signature("gloo", "all_reduce")),),
            )
        )
        self.send(Statuses(tuple(RankStatus(i, RankState.LIVE, self.node_now()) for i in (0, 1))))

    def node_now(self) -> NodeRawNs:
        return NodeRawNs(self.service.now - OFFSET)

    def ago(self, seconds: float) -> NodeRawNs:
        """A time of the node's clock."""
        return NodeRawNs(self.node_now() - round(seconds * S))

    def send(self, event: AgentEvent) -> None:
        self.session.receive(encode_agent(event), AlignedNs(self.service.now))

    def take_acks(self) -> dict[int, int]:
        """After a tick of the engine."""
        self.service.shared.flush()
        return self.session.take_acks()

    def watermarks(self, enqueued: int, completed: int, since: int, index: int = 0) -> None:
        """Of the rank of that stream index."""
        now = self.node_now()
        marks = watermarks(
            [index], enqueued=enqueued, completed=completed, head=since,
            seen=[0, 1], as_of=now, sent=now,
        )  # fmt: skip
        self.send(marks)

    def channel(self, since: int) -> None:
        """The rank of stream index 0 sends to rank 1."""
        self.send(p2p_ops(0, (0, 1, True, 1, since)))


def entries(first_revision: int, seqs: range, *, rank: int = 0, group: int = 0) -> EntryColumns:
    return entry_columns(
        seqs,
        rank=rank,
        revision=first_revision,
        group=group,
        flags=BOTH,
        created=NOW - OFFSET,
    )
