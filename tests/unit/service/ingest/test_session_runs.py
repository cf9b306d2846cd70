"""Two launches of one job name on a stream: what one reports counts, the other is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from frd.model import (
    AlignedNs,
    GroupInfo,
    NodeNs,
    NodeRawNs,
    RankInfo,
    RankState,
    RankStatus,
    Signature,
)
from frd.service.clocks.agent_clocks import AgentClock, guess
from frd.service.clocks.real_time import RealTime
from frd.service.ingest.shared import RankOwners
from frd.service.state import NodeView, unwatched
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
from tests.world.messages import watermarks
from tests.world.sessions import KEY, NOW, OFFSET, Service, Stream, entries

FIRST, SECOND = "vm:29500", "vm:29501"
S = 1_000_000_000


class Agent:
    """Hosts ranks 0 and 3 of each run; run number i has the stream indexes 2i and 2i + 1."""

    def __init__(self, service: Service, runs: Sequence[str], pid: int = 10) -> None:
        self.service = service
        self.session = service.session()
        node_now = NodeNs(service.now - OFFSET)
        self.send(Hello(PROTOCOL, "0", "n", "boot", f"agent{pid}", node_now, NodeRawNs(node_now)))
        self.send(Declare(signatures=(SignatureDecl(0, Signature("gloo", "all_reduce")),)))
        for index, run in enumerate(runs):
            infos = [RankInfo(rank, 4, "n", "boot", pid + 100 * index + rank) for rank in (0, 3)]
            world = GroupInfo("0", "default_pg", (0, 1, 2, 3))
            self.send(
                Declare(
                    attempts=(AttemptDecl(index, KEY, 4, run),),
                    ranks=tuple(RankDecl(2 * index + i, index, one) for i, one in enumerate(infos)),
                    groups=(GroupDecl(index, index, world),),
                )
            )

    def send(self, event: AgentEvent) -> None:
        self.session.receive(encode_agent(event), AlignedNs(self.service.now))

    def ends(self, *indexes: int) -> None:
        at = NodeNs(self.service.now - OFFSET)
        self.send(Statuses(tuple(RankStatus(i, RankState.EXITED, at, "killed") for i in indexes)))

    def reports_progress(self, index: int, enqueued: int) -> None:
        """Watermarks of the rank of that stream index."""
        now = self.service.now - OFFSET
        group = index // 2
        self.send(
            watermarks(
                [index], enqueued=enqueued, completed=enqueued, group=group,
                seen=[index], as_of=now, sent=now, attempt=group, raw=now,
            )
        )  # fmt: skip


def enqueued(service: Service) -> int:
    return max(group.enqueued for group in service.view().groups)


def pids(service: Service) -> list[int]:
    return [rank.info.pid for rank in service.view().ranks]


def test_reports_of_the_second_run_are_dropped() -> None:
    """Rows, watermarks and ends of the second launch have no effect; rows are acknowledged."""
    service = Service()
    agent = Agent(service, (FIRST, SECOND))
    agent.send(entries(1, range(5)))
    agent.send(entries(1, range(90), rank=2, group=1))
    agent.reports_progress(2, 89)
    agent.ends(3)
    service.shared.flush()
    assert agent.session.take_acks() == {0: 5, 2: 90}
    assert service.shared.entries == 5
    assert enqueued(service) == 4
    assert pids(service) == [10, 13]
    assert {rank.status.state for rank in service.view().ranks} == {RankState.LIVE}
    assert service.shared.runs.refused == 2


def test_the_second_run_counts_once_the_first_has_ended() -> None:
    """Nothing is kept of the first launch; the agent is asked to send the second's again."""
    service = Service()
    agent = Agent(service, (FIRST, SECOND))
    agent.send(entries(1, range(5)))
    agent.send(entries(1, range(90), rank=2, group=1))
    agent.ends(0, 1)
    assert not agent.session.declared.must_resync
    assert service.shared.runs.settle(AlignedNs(service.now))
    assert agent.session.declared.must_resync
    assert service.shared.runs.take_changed() == [agent.session.stream]
    assert agent.session.declared.take_entered() == [0, 1, 2, 3]
    assert pids(service) == [110, 113]
    assert enqueued(service) == -1
    agent.reports_progress(2, 89)
    agent.send(entries(91, range(90, 95), rank=2, group=1))
    assert enqueued(service) == 94
    agent.ends(0, 1)  # as after a reconnect: of processes that are not the ranks any more
    assert {rank.status.state for rank in service.view().ranks} == {RankState.LIVE}


def test_an_agent_without_runs_keeps_its_stream() -> None:
    """An agent reports two live processes of one rank: the later one is watched."""
    service = Service()
    owners = RankOwners()
    stream = service.stream()
    owners.claim(stream.session)
    stream.send(entries(1, range(50)))
    info = RankInfo(0, 4, "n", "boot", 77)
    stream.send(Declare(ranks=(RankDecl(2, 0, info),)))
    owners.claim(stream.session)
    stream.send(entries(1, range(5), rank=2))
    for revision in (51, 61):
        stream.send(replace(entries(revision, range(10)), seq=np.arange(50, 60)))
        stream.watermarks(59, 59, NodeNs(0))
    assert stream.take_acks() == {0: 70, 2: 5}
    assert enqueued(service) == 4


def test_ranks_without_a_reporting_agent_are_unwatched() -> None:
    """The agent is gone: ranks that had not ended are unwatched since its last message."""
    service = Service()
    stream = Stream(service, service.session(), "s", 10)
    stream.send(Statuses((RankStatus(1, RankState.FINISHED, stream.node_now()),)))
    view = service.view()
    clock = AgentClock("", guess(NodeNs(NOW - OFFSET), AlignedNs(NOW)), RealTime()).view(
        AlignedNs(NOW)
    )
    node = NodeView("n", "boot", True, True, AlignedNs(NOW), clock, {KEY: (0, 3)})
    assert unwatched(view, [node]) == {}
    later = AlignedNs(NOW + 5 * S)
    gone = replace(node, connected=False, reporting=False, last_message_at=later)
    assert unwatched(view, [gone]) == {0: later}
    assert unwatched(view, [gone, node]) == {}
