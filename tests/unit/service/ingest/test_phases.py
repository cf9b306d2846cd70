"""Phases on a stream: whose they are, and how a reconnect repeats them."""

from __future__ import annotations

from frd.engine.state.phases import PhasesAt
from frd.model import AlignedNs, NodeNs, NodeRawNs, PhaseSpan, RankInfo, RankPhases, SuspectPhase
from frd.service.ingest.session import Session
from frd.wire.codec import encode_agent
from frd.wire.messages import PROTOCOL, AgentEvent, AttemptDecl, Declare, Hello, RankDecl, Statuses
from tests.world.sessions import KEY, NOW, S, Service

RAW_NOW = 77 * S


def phases(index: int, *spans: PhaseSpan) -> Statuses:
    return Statuses((), (RankPhases(index, spans),))


def agent(service: Service) -> Session:
    """A stream of an agent that hosts ranks 0 and 3, and whose raw clock shows `RAW_NOW`."""
    session = service.session()
    infos = [RankInfo(rank, 4, "n", "boot", 10 + rank) for rank in (0, 3)]
    send(service, session, Hello(PROTOCOL, "0", "n", "boot", "s", NodeNs(NOW), NodeRawNs(RAW_NOW)))
    declare = Declare(
        attempts=(AttemptDecl(0, KEY, 4),),
        ranks=tuple(RankDecl(index, 0, info) for index, info in enumerate(infos)),
    )
    send(service, session, declare)
    return session


def send(service: Service, session: Session, event: AgentEvent) -> None:
    session.receive(encode_agent(event), AlignedNs(service.now))


def current(service: Service, rank: int) -> SuspectPhase | None:
    attempt = service.engine.known(KEY)
    assert attempt is not None
    now = AlignedNs(service.now)
    return PhasesAt(attempt.tables.phases, attempt.tables.ranks, now).current(rank)


def test_a_phase_is_of_a_rank_and_in_aligned_time() -> None:
    """Stream index 1 is rank 3; eval began seven seconds ago by its node's raw clock. The agent
    reconnects and sends all again, and later that the phase has ended."""
    service = Service()
    path, since = ("epoch", "eval"), NodeRawNs(RAW_NOW - 7 * S)
    for _ in range(2):
        stream = agent(service)
        send(service, stream, phases(1, PhaseSpan(path, since)))
        assert current(service, 3) == SuspectPhase(path, AlignedNs(NOW - 7 * S))
        assert current(service, 0) is None
    send(service, stream, phases(1, PhaseSpan(path, since, NodeRawNs(RAW_NOW))))
    attempt = service.engine.known(KEY)
    assert attempt is not None
    known = attempt.tables.phases.known(3)
    assert known is not None
    assert (known.open, len(known.ended)) == ((), 1)
