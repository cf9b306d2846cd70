"""Every rank and part that was asked for gets exactly one last answer, whatever happens."""

from __future__ import annotations

import asyncio

from frd.service.requests.inquiry import MAX_RANK_BYTES, Answer, Inquiry, Target
from frd.wire.messages import Part, ResponsePart

TARGETS = [Target(rank=4, stream=1, index=0), Target(rank=9, stream=2, index=3)]


def part(index: int, data: bytes = b"", *, last: bool = True, error: str = "") -> ResponsePart:
    return ResponsePart(1, index, Part.STACK, data, last, "py-spy", error)


def collect(inquiry: Inquiry, timeout_s: float = 0.0) -> list[Answer]:
    async def run() -> list[Answer]:
        return [answer async for answers in inquiry.answers(timeout_s) for answer in answers]

    return asyncio.run(run())


def test_pieces_come_in_order_under_the_global_rank() -> None:
    """A stack in two pieces and one that failed: both ranks are answered, and the inquiry ends."""
    inquiry = Inquiry(1, TARGETS, [Part.STACK])
    inquiry.take(1, part(0, b"a", last=False))
    inquiry.take(2, part(3, error="no such process"))
    inquiry.take(1, part(0, b"b"))
    answers = collect(inquiry)
    assert [(a.rank, a.data, a.last) for a in answers if a.rank == 4] == [
        (4, b"a", False),
        (4, b"b", True),
    ]
    assert [(a.rank, a.error) for a in answers if a.rank == 9] == [(9, "no such process")]


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
    inquiry = Inquiry(1, TARGETS[:1], [Part.STACK])
    piece = bytes(1024 * 1024)
    pieces = MAX_RANK_BYTES // len(piece)
    for _ in range(pieces + 1):
        inquiry.take(1, part(0, piece, last=False))
    answers = collect(inquiry)
    assert len(answers) == pieces + 1
    assert answers[-1].last
    assert "exceeds" in answers[-1].error
