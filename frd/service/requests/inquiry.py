"""Requests to agents and their answers, matched, and bounded in time and bytes.

One `Inquiry` asks some ranks of one attempt for dumps, stacks or both. It always gives, for every
rank and part, exactly one last `Piece`, with data or with an error: the agent answered, the
deadline passed, or the stream ended. Pieces of dumps are passed on as they arrive, so that a dump
of 16,384 ranks is never in memory as a whole; all other parts are one piece.

Answers come from agents and are not trusted: an answer is dropped if its stream was not asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final

from frd.wire.messages import Part, ResponsePart
from frd.wire.ras import MAX_RAS_BYTES
from frd.wire.waits import MAX_REPORT_BYTES

MAX_RANK_BYTES: Final = 64 * 1024 * 1024
"""Maximum data of one rank in the answers to one inquiry."""
MAX_WHOLE_BYTES: Final = {
    Part.IDENTITY: 64 * 1024,
    Part.STACK: 1024 * 1024,
    Part.WAITS: MAX_REPORT_BYTES,
    Part.RAS: MAX_RAS_BYTES,
}
"""Of a part that is one piece."""
MAX_BUFFERED_BYTES: Final = 128 * 1024 * 1024
"""Bound on data that waits for the caller."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the dump of one rank, in order; or another part, whole."""

    rank: int
    """Global."""
    part: Part
    data: bytes = b""
    last: bool = True
    source: str = ""
    error: str = ""
    """Why the part has no data, or no more of it."""


@dataclass(frozen=True, slots=True)
class Target:
    """A rank to ask: its stream, and its index there."""

    rank: int
    stream: int
    index: int


class Inquiry:
    """An open request."""

    def __init__(
        self, request_id: int, targets: Iterable[Target], parts: Iterable[Part], job: str = ""
    ) -> None:
        self.request_id = request_id
        self.job = job
        self._ranks = {(target.stream, target.index): target.rank for target in targets}
        self._streams = {rank: stream for (stream, _), rank in self._ranks.items()}
        self._open = {(rank, part) for rank in self._streams for part in parts}
        self._bytes = dict.fromkeys(self._streams, 0)
        self._buffered = 0
        self._begun: dict[tuple[int, Part], bytes] = {}
        """Parts that are to be one piece, as far as they have come."""
        self._ready: list[Piece] = []
        self._wake = asyncio.Event()

    def take(self, stream: int, part: ResponsePart) -> None:
        """A part from an agent; it is dropped if this inquiry has not asked for it."""
        rank = self._ranks.get((stream, part.rank_index))
        if rank is None or (rank, part.part) not in self._open:
            return
        last, data = part.last or bool(part.error), part.data
        self._bytes[rank] += len(data)
        size, most = self._bytes[rank], MAX_RANK_BYTES
        if part.part in MAX_WHOLE_BYTES:
            data = self._begun.pop((rank, part.part), b"") + data
            size, most = len(data), MAX_WHOLE_BYTES[part.part]
        if size > most:
            self._fail(rank, part.part, f"the answer exceeds {most} bytes")
        elif self._buffered + len(data) > MAX_BUFFERED_BYTES:
            self._fail(rank, part.part, "answers came faster than they could be stored")
        elif not last and part.part in MAX_WHOLE_BYTES:
            self._begun[rank, part.part] = data
        else:
            if last:
                self._open.discard((rank, part.part))
            self._buffered += len(data)
            self._give(Piece(rank, part.part, data, last, part.source, part.error))

    def fail(self, error: str, stream: int | None = None) -> None:
        """All open parts end with `error`; with `stream`, only those asked of this stream."""
        for rank, part in sorted(self._open):
            if stream is None or self._streams[rank] == stream:
                self._fail(rank, part, error)

    async def answers(self, timeout_s: float) -> AsyncIterator[list[Piece]]:
        """Answers as they arrive, until the last one or the deadline."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._open or self._ready:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._wake.wait()
            except TimeoutError:
                self.fail(f"no answer within {timeout_s:g} s")
            answers, self._ready = self._ready, []
            self._wake.clear()
            self._buffered = 0
            yield answers

    def _fail(self, rank: int, part: Part, error: str) -> None:
        self._open.discard((rank, part))
        self._give(Piece(rank, part, error=error))

    def _give(self, answer: Piece) -> None:
        self._ready.append(answer)
        self._wake.set()
