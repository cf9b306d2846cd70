"""Asks the agents of some ranks for dumps, stacks, waits or the status of NCCL, on their streams.

`frd.service.requests.inquiry` matches one request with its answers; this module knows which
streams to ask, and which requests are open.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from typing import Final

from frd.errors import ServiceUnavailable
from frd.model import AttemptKey
from frd.service.ingest.streams import Streams
from frd.service.requests.inquiry import Inquiry, Piece, Target
from frd.wire.messages import Part, Request, ResponsePart

_TRAVEL_S: Final = 1.0
_MAX_OF_JOB: Final = 8
_MAX_INQUIRIES: Final = 32
"""Open inquiries; each may hold `inquiry.MAX_BUFFERED_BYTES` while the disk is slow."""


class Inquiries:
    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._inquiries: dict[int, Inquiry] = {}
        # An agent may still answer a request of the cell's last owner on its new stream.
        self._request_ids = itertools.count(secrets.randbits(48))

    async def ask(
        self,
        key: AttemptKey,
        ranks: Sequence[int] | None,
        *,
        dump: bool = False,
        stacks: bool = False,
        waits: bool = False,
        ras: bool = False,
        children_of: Collection[int] | None = (),
        timeout_s: float,
    ) -> AsyncGenerator[list[Piece], None]:
        """Ask the agents of `ranks` (None: all known ranks of the attempt); see `Inquiry.answers`.

        `waits`: what the ranks are blocked in, of which an agent answers what it knows. `ras`: what
        the RAS service of their NCCL says; agents of earlier releases do not answer.
        `stacks` includes stacks of child processes for the ranks `children_of` (None: all ranks).

        Raises:
            ServiceUnavailable: no agent of the attempt is connected, or too many are open.
        """
        wanted = sorted(self._streams.revisions.ranks(key) if ranks is None else set(ranks))
        owners = {rank: self._streams.owners.of(key, rank) for rank in wanted}
        if not any(owners.values()):
            raise ServiceUnavailable(
                f"job {key.job!r} attempt {key.attempt}: no agent of these ranks is connected: "
                "see frd status"
            )
        of_job = sum(one.job == key.job for one in self._inquiries.values())
        if len(self._inquiries) >= _MAX_INQUIRIES or of_job >= _MAX_OF_JOB:
            count = len(self._inquiries)
            raise ServiceUnavailable(f"dump: {count} are being taken: try again later")
        parts = [Part.DUMP, Part.IDENTITY] * dump + [Part.STACK] * stacks
        parts += [Part.WAITS] * waits + [Part.RAS] * ras
        targets = [Target(r, owner[0].stream, owner[1]) for r, owner in owners.items() if owner]
        inquiry = Inquiry(next(self._request_ids), targets, parts, key.job)
        self._inquiries[inquiry.request_id] = inquiry
        try:
            for stream_id, asked in _by_stream(targets).items():
                of = [t for t in asked if stacks and (children_of is None or t.rank in children_of)]
                request = Request(
                    inquiry.request_id,
                    tuple(target.index for target in asked),
                    dump,
                    stacks,
                    timeout_s,
                    tuple(target.index for target in of),
                    waits,
                    ras,
                )
                self._streams[stream_id].send(request)
            cut_off = [rank for rank, owner in owners.items() if owner is None]
            error = "its agent is not connected"
            yield [Piece(rank, part, error=error) for rank in cut_off for part in parts]
            # The agent keeps to the timeout; its last answer still needs time to arrive.
            async for answers in inquiry.answers(timeout_s + _TRAVEL_S):
                yield answers
        finally:
            del self._inquiries[inquiry.request_id]

    def one_by_agent(self, key: AttemptKey, ranks: Iterable[int], most: int) -> list[int]:
        """The first of `ranks` that each agent reports, for the first `most` agents."""
        found: dict[int, int] = {}
        for rank in ranks:
            if len(found) >= most:
                break
            if (owner := self._streams.owners.of(key, rank)) is not None:
                found.setdefault(owner[0].stream, rank)
        return list(found.values())

    def answered(self, stream: int, part: ResponsePart) -> None:
        """A part of an answer came on this stream."""
        if (inquiry := self._inquiries.get(part.request_id)) is not None:
            inquiry.take(stream, part)

    def ended(self, stream: int) -> None:
        """The stream has ended: what it was asked stays unanswered."""
        for inquiry in self._inquiries.values():
            inquiry.fail("the agent's stream ended", stream)


def _by_stream(targets: Sequence[Target]) -> dict[int, list[Target]]:
    streams: dict[int, list[Target]] = {}
    for target in targets:
        streams.setdefault(target.stream, []).append(target)
    return streams
