"""Requests of two owners of a cell to the same agent."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing

from frd.engine.engine import Engine
from frd.engine.policy import Policy
from frd.model import AlignedNs, NodeNs, NodeRawNs, RankInfo, ServiceRawNs
from frd.service.cells.homes import _NoLog
from frd.service.clocks.agent_clocks import AgentClocks
from frd.service.ingest.shared import Shared
from frd.service.ingest.streams import Stream, Streams
from frd.service.requests.inquiries import Inquiries
from frd.wire.encode import encode_agent
from frd.wire.messages import PROTOCOL, Hello, Part, Request, ResponsePart
from tests.world.messages import KEY, declare

HELLO = encode_agent(Hello(PROTOCOL, "test", "n", "boot", "s", NodeNs(1), NodeRawNs(1)))


class Owner:
    """A cell at one of its owners, and an agent with rank 0."""

    def __init__(self) -> None:
        self.streams = Streams(
            Shared(Engine(Policy())),
            AgentClocks(lambda: AlignedNs(1), lambda: ServiceRawNs(1)),
            _NoLog(),
            now=lambda: AlignedNs(1),
            version="test",
            instance="one",
            ids=itertools.count(1),
        )
        self.inquiries = Inquiries(self.streams)
        self.stream: Stream = self.streams.open()
        self.streams.take(self.stream, HELLO)
        self.streams.take(self.stream, encode_agent(declare([RankInfo(0, 1, "n", "boot", 7, 0)])))

    def agent(self, name: str, rank: int) -> Stream:
        """Another agent, with one rank."""
        stream = self.streams.open()
        hello = Hello(PROTOCOL, "test", name, "boot-" + name, name, NodeNs(1), NodeRawNs(1))
        self.streams.take(stream, encode_agent(hello))
        info = RankInfo(rank, 3, name, "boot-" + name, 7, 0)
        self.streams.take(stream, encode_agent(declare([info])))
        return stream

    def asked(self) -> Request:
        (request,) = [one for one in self.stream.outgoing if isinstance(one, Request)]
        return request


async def test_an_answer_to_the_last_owner_is_no_answer_to_this_one() -> None:
    """The agent still sends pieces of a dump that the last owner asked for, on its stream to the
    new owner, which has asked the same rank for its own first dump: they are not spliced."""
    last, new = Owner(), Owner()
    pieces = []
    for owner in (last, new):
        answers = owner.inquiries.ask(KEY, None, dump=True, stacks=False, timeout_s=5.0)
        pieces.append(answers)
        assert await anext(answers) == []
    late, own = (
        ResponsePart(owner.asked().request_id, 0, Part.DUMP, data, True)
        for owner, data in ((last, b"old"), (new, b"new"))
    )
    async with aclosing(pieces[0]), aclosing(pieces[1]) as answers:
        new.inquiries.answered(new.stream.id, late)
        new.inquiries.answered(new.stream.id, own)
        (answer,) = await asyncio.wait_for(anext(answers), 1.0)
        assert answer.data == b"new"


async def test_one_rank_of_each_agent() -> None:
    """In the order of the ranks, up to as many agents as wanted, and without ranks of none."""
    owner = Owner()
    owner.agent("m", 1)
    owner.agent("o", 2)
    assert owner.inquiries.one_by_agent(KEY, [2, 3, 0, 1], 2) == [2, 0]
    assert owner.inquiries.one_by_agent(KEY, range(3), 9) == [0, 1, 2]
    assert owner.inquiries.one_by_agent(KEY, [3], 9) == []


async def test_the_question_for_nccl_asks_for_nothing_else() -> None:
    """An agent of an earlier release finds nothing in it that it knows, and does not answer: when
    the time is over, that is an error."""
    owner = Owner()
    answers = owner.inquiries.ask(KEY, [0], dump=False, stacks=False, ras=True, timeout_s=-0.9)
    async with aclosing(answers):
        assert await anext(answers) == []
        asked = owner.asked()
        assert asked == Request(asked.request_id, (0,), False, False, -0.9, ras=True)
        (answer,) = await asyncio.wait_for(anext(answers), 5.0)
    assert (answer.part, answer.last) == (Part.RAS, True)
    assert answer.error.startswith("no answer within")
