"""Which findings are asked about, which agents, and what becomes of the answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import replace

import pytest
from frd.service.second_opinions.asker import MAX_AT_ONCE, TIMEOUT_S, SecondOpinions

from frd.engine.findings.attachments import Evidence
from frd.errors import ServiceUnavailable
from frd.model import AttemptKey, Change, Finding, FindingEvent, Reason
from frd.service.requests.inquiry import Answer
from frd.wire.messages import Part
from frd.wire.ras import encode_ras
from frd_agent.nccl_ras.answer import read_answer
from frd_agent.nccl_ras.client import TIMEOUT_S as QUESTION_S
from frd_agent.uplink.answers import _MARGIN
from tests.world.job import Job
from tests.world.ras_server import moved

PIDS = {671: 100, 674: 101, 677: 102, 678: 103}
LAGS = "NCCL RAS: rank 1 has launched 31 AllReduce in communicator 63e59fe8c2f77187 (4 ranks), "


def answered(name: str = "lagging") -> bytes:
    return encode_ras(read_answer(moved(name, PIDS), 100, lambda _: True))


class World:
    """A job of four ranks on two nodes, whose agents answer immediately."""

    def __init__(self, backend: str = "nccl") -> None:
        self.job = Job(4).group("dp", range(4)).all_reduce("dp", 0)
        infos = self.job.attempt.tables.ranks.infos
        for rank, info in list(infos.items()):
            infos[rank] = replace(info, pid=100 + rank, backends=(backend,) if backend else ())
        self.job.run(1)
        self.asked: list[int] = []
        self.data = answered()
        self.errors: dict[int, str] = {}
        self.events: list[FindingEvent] = []
        self.opinions = SecondOpinions(self, self.job.engine, self.attach)  # type: ignore[arg-type]

    def attach(self, finding_id: str, evidence: Evidence) -> None:
        self.events += self.job.engine.attach(finding_id, evidence)

    def one_by_agent(self, key: AttemptKey, ranks: Iterable[int], most: int) -> list[int]:
        nodes: dict[int, int] = {}
        for rank in ranks:
            nodes.setdefault(rank // 2, rank)
        return list(nodes.values())[:most]

    async def ask(
        self, key: AttemptKey, ranks: Sequence[int], *, timeout_s: float, **parts: bool
    ) -> AsyncGenerator[list[Answer], None]:
        assert parts == {"dump": False, "stacks": False, "ras": True}
        (rank,) = ranks
        self.asked.append(rank)
        if self.errors.get(rank) == "gone":
            raise ServiceUnavailable("no agent of these ranks is connected")
        if error := self.errors.get(rank, ""):
            yield [Answer(rank, Part.RAS, error=error)]
            return
        half = len(self.data) // 2
        yield [Answer(rank, Part.RAS, self.data[:half], last=False)]
        yield [Answer(rank, Part.RAS, self.data[half:])]

    def hang(self, absent: Sequence[int] = ()) -> Finding:
        """All ranks join, none completes; or some do not join."""
        self.job.join("dp", [rank for rank in range(4) if rank not in absent], 1)
        self.job.run(8)
        return self.job.only()

    async def see(self, *events: FindingEvent) -> Finding:
        """Publish; returns the finding when all questions are answered."""
        self.opinions.see(events)
        await self.opinions._turns.wait(60)
        return self.job.findings()[0]


def opened(finding: Finding) -> FindingEvent:
    return FindingEvent(Change.OPENED, finding)


def updated(finding: Finding) -> FindingEvent:
    return FindingEvent(Change.UPDATED, finding)


async def test_a_finding_without_a_suspect() -> None:
    """One agent is asked once, however often the finding is updated, and the verdict stays."""
    world = World()
    before = world.hang()
    assert before.reason is Reason.NETWORK_OR_DEVICE
    after = await world.see(opened(before))
    assert after == replace(before, second_opinion=(LAGS + "the others 32",))
    await world.see(updated(after), updated(before))
    assert world.asked == [0]
    assert [event.change for event in world.events] == [Change.UPDATED]


async def test_a_rank_that_is_alone_in_an_op() -> None:
    """The other ranks have completed it: one of them is asked before the suspect."""
    world = World()
    world.job.join("dp", range(4), 1).complete("dp", range(1, 4), 1).join("dp", range(1, 4), 2)
    world.job.run(30)
    finding = world.job.only()
    assert [(s.rank, s.reason) for s in finding.suspects] == [(0, Reason.IN_COLLECTIVE_ALONE)]
    assert (await world.see(opened(finding))).second_opinion
    assert world.asked == [1]


async def test_other_findings() -> None:
    """A rank has not joined: frd needs no opinion on it."""
    world = World()
    finding = world.hang(absent=[2])
    await world.see(opened(finding))
    assert world.asked == []


async def test_a_diagnosis_that_changes() -> None:
    """It becomes one of those that are asked about, and later the other one: once for each."""
    world = World()
    finding = world.hang()
    suspect = replace(World().hang(absent=[2]).suspects[0], reason=Reason.IN_COLLECTIVE_ALONE)
    await world.see(opened(replace(finding, reason=None)))
    assert world.asked == []
    await world.see(updated(finding))
    alone = replace(finding, reason=None, suspects=(suspect,))
    await world.see(updated(alone), updated(alone), updated(finding))
    assert len(world.asked) == 2


async def test_a_second_agent_is_asked_if_the_first_has_no_answer() -> None:
    """An error, or no agent: then the agent of the other node. If it has none either, the finding
    is as it was."""
    for error in ("NCCL RAS: 127.0.0.1:28028: refused", "gone"):
        world = World()
        finding = world.hang()
        world.errors[0] = error
        assert (await world.see(opened(finding))).second_opinion
        assert world.asked == [0, 2]
    world = World()
    finding = world.hang()
    world.errors = {0: "no answer", 2: "no answer"}
    assert await world.see(opened(finding)) == finding
    assert world.asked == [0, 2]
    assert world.events == []


@pytest.mark.parametrize(
    ("backend", "asked"), [("gloo", []), ("cpu:gloo,cuda:nccl", [0]), ("", [0])]
)
async def test_ranks_without_nccl_are_not_asked(backend: str, asked: list[int]) -> None:
    """As far as their backends are known."""
    world = World(backend)
    await world.see(opened(world.hang()))
    assert world.asked == asked


@pytest.mark.parametrize("data", [b"", b"{", b"[]" * 99, b'{"communicators": [{"hash": "x"}]}'])
async def test_an_answer_that_cannot_be_read(data: bytes) -> None:
    """It is counted, and the finding is as it was."""
    world = World()
    finding = world.hang()
    world.data = data
    assert await world.see(opened(finding)) == finding
    assert (world.opinions.refused, world.asked) == (1, [0])


async def test_an_answer_of_another_job() -> None:
    """Its processes are not those of the group."""
    world = World()
    finding = world.hang()
    infos = world.job.attempt.tables.ranks.infos
    infos[3] = replace(infos[3], pid=999)
    assert await world.see(opened(finding)) == finding
    assert world.opinions.refused == 0


async def test_a_finding_of_an_earlier_process() -> None:
    """It has an opinion, and no agent is asked again; one without is asked about."""
    world = World()
    finding = world.hang()
    await world.see(updated(replace(finding, second_opinion=("NCCL RAS: x",))))
    assert world.asked == []
    await world.opinions.close()
    world.opinions = SecondOpinions(world, world.job.engine, world.attach)  # type: ignore[arg-type]
    await world.see(updated(finding))
    assert world.asked == [0]
    world.opinions.see([FindingEvent(Change.CLOSED, finding)])
    assert world.opinions._asked == {}


async def test_questions_end_with_the_service() -> None:
    """They are cancelled."""
    world = World()
    world.opinions.see([opened(world.hang())])
    await world.opinions.close()
    assert world.events == []


def test_an_agent_has_time_for_all_questions_of_the_service() -> None:
    """It answers them one after the other, and each may take its whole time limit."""
    assert TIMEOUT_S * _MARGIN >= MAX_AT_ONCE * QUESTION_S
