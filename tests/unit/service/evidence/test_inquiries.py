"""Every rank and part that was asked for gets exactly one last answer, whatever happens."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from frd.model import NodeNs, NodeRawNs, RankInfo
from frd.service.evidence.inquiries import MAX_RANK_BYTES, Inquiries, Inquiry, Piece, Target
from frd.service.ingest.streams import Stream
from frd.wire.codec import encode_agent
from frd.wire.messages import PROTOCOL, Hello, Part, Request, ResponsePart
from tests.world.messages import KEY, declare
from tests.world.one_replica import HELLO
from tests.world.sessions import quiet_streams

TARGETS = [Target(rank=4, stream=1, index=0), Target(rank=9, stream=2, index=3)]


def part(
    index: int, data: bytes = b"", *, of: Part = Part.STACK, last: bool = True, error: str = ""
) -> ResponsePart:
    return ResponsePart(1, index, of, data, last, "py-spy", error)


def collect(inquiry: Inquiry, timeout_s: float = 0.0) -> list[Piece]:
    async def run() -> list[Piece]:
        return [answer async for answers in inquiry.answers(timeout_s) for answer in answers]

    return asyncio.run(run())


def test_pieces_come_in_order_under_the_global_rank() -> None:
    """A dump and a stack in two pieces each, and a rank without either: all is answered, and only
    the dump is passed on in pieces."""
    inquiry = Inquiry(1, TARGETS, [Part.DUMP, Part.STACK])
    for data, last in ((b"a", False), (b"b", True)):
        for of in (Part.DUMP, Part.STACK):
            inquiry.take(1, part(0, data, of=of, last=last))
    for of in (Part.DUMP, Part.STACK):
        inquiry.take(2, part(3, of=of, error="no such process"))
    answers = collect(inquiry)
    assert [(a.part, a.data, a.last) for a in answers if a.rank == 4] == [
        (Part.DUMP, b"a", False),
        (Part.DUMP, b"b", True),
        (Part.STACK, b"ab", True),
    ]
    assert [(a.rank, a.error) for a in answers if a.rank == 9] == [(9, "no such process")] * 2


def test_the_deadline_answers_for_silent_agents() -> None:
    """One agent never answers: at the deadline its rank fails with the time limit."""
    inquiry = Inquiry(1, TARGETS, [Part.STACK])
    inquiry.take(1, part(0, b"a"))
    answers = collect(inquiry, 0.01)
    assert [(a.rank, a.error) for a in answers] == [(4, ""), (9, "no answer within 0.01 s")]


def test_a_stream_that_ends_answers_for_its_ranks() -> None:
    """An agent goes away while it is being asked: its ranks fail immediately, the others do not."""
    inquiry = Inquiry(1, TARGETS, [Part.DUMP, Part.STACK])
    inquiry.fail("the agent's stream ended", 2)
    inquiry.take(1, part(0, b"a"))
    inquiry.take(1, ResponsePart(1, 0, Part.DUMP, b"d", True))
    assert sorted((a.rank, a.part, a.error) for a in collect(inquiry)) == [
        (4, Part.DUMP, ""),
        (4, Part.STACK, ""),
        (9, Part.DUMP, "the agent's stream ended"),
        (9, Part.STACK, "the agent's stream ended"),
    ]


def test_answers_to_nothing_are_dropped() -> None:
    """A part from another stream, of an unknown index, or after the last one is dropped."""
    inquiry = Inquiry(1, TARGETS, [Part.STACK])
    inquiry.take(2, part(0, b"not yours"))
    inquiry.take(1, part(7, b"unknown"))
    inquiry.take(1, ResponsePart(1, 0, Part.DUMP, b"not asked", True))
    inquiry.take(1, part(0, b"a"))
    inquiry.take(1, part(0, b"again"))
    inquiry.take(2, part(3, b"b"))
    assert [(a.rank, a.data) for a in collect(inquiry)] == [(4, b"a"), (9, b"b")]


def test_a_dump_without_end() -> None:
    """A dump without end is cut off at the limit, with an error in place of its last piece."""
    inquiry = Inquiry(1, TARGETS[:1], [Part.DUMP])
    piece = bytes(1024 * 1024)
    pieces = MAX_RANK_BYTES // len(piece)
    for _ in range(pieces + 1):
        inquiry.take(1, part(0, piece, of=Part.DUMP, last=False))
    answers = collect(inquiry)
    assert len(answers) == pieces + 1
    assert answers[-1].last
    assert "exceeds" in answers[-1].error


# -- of two owners of a cell to the same agent --------------------------------------------------


class Owner:
    """A cell at one of its owners, and an agent with rank 0."""

    def __init__(self) -> None:
        self.streams = quiet_streams()
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
    """The agent does not answer: when the time is over, that is an error."""
    owner = Owner()
    answers = owner.inquiries.ask(KEY, [0], dump=False, stacks=False, ras=True, timeout_s=-0.9)
    async with aclosing(answers):
        assert await anext(answers) == []
        asked = owner.asked()
        assert asked == Request(asked.request_id, (0,), False, False, -0.9, ras=True)
        (answer,) = await asyncio.wait_for(anext(answers), 5.0)
    assert (answer.part, answer.last) == (Part.RAS, True)
    assert answer.error.startswith("no answer within")
