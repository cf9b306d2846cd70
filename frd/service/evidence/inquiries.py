"""Asks the agents of some ranks for dumps, stacks, waits or the status of NCCL, on their streams.

One `Inquiry` is a request and its answers, bounded in time and bytes. It always gives, for every
rank and part, exactly one last `Piece`, with data or with an error: the agent answered, the
deadline passed, or the stream ended. Pieces of dumps are passed on as they arrive, so that a dump
of 16,384 ranks is never in memory as a whole; all other parts are one piece.

Answers come from agents and are not trusted: an answer is dropped if its stream was not asked.

A dump stores answers as they arrive. A rank has answered when its dump is complete. Stacks are
optional: summary.json lists the ranks without one. `rank_<rank>.json` is the agent's report, also
of a rank that has no dump, with the end of its log and two things that only the service knows: the
clock's offset and the dump's source.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from frd.errors import ServiceUnavailable, StoreError
from frd.model import AttemptKey
from frd.service.clocks.real_time import RealTime
from frd.service.clocks.view import clock_json
from frd.service.ingest.streams import Streams
from frd.service.state import DumpResult
from frd.store.dumps import DumpStore, DumpWriter
from frd.wire.messages import Part, Request, ResponsePart
from frd.wire.waits import MAX_RAS_BYTES, MAX_REPORT_BYTES

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
_TRAVEL_S: Final = 1.0
_MAX_OF_JOB: Final = 16
"""Open inquiries of one job: all that the asker may have under way, and two of people."""
_MAX_INQUIRIES: Final = 64
"""Open inquiries; those for dumps may hold `MAX_BUFFERED_BYTES` each while the disk is slow."""
OnStack = Callable[[int, str], None]


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
        self._begun: dict[tuple[int, Part], bytearray] = {}
        """Parts that are to be one piece, as far as they have come."""
        self._held = 0
        """Their bytes."""
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
        if is_whole := part.part in MAX_WHOLE_BYTES:
            begun = self._begun.setdefault((rank, part.part), bytearray())
            begun += data
            self._held += len(data)
            size, most = len(begun), MAX_WHOLE_BYTES[part.part]
        if size > most:
            self._fail(rank, part.part, f"the answer exceeds {most} bytes")
        elif self._held + self._buffered + len(data) > MAX_BUFFERED_BYTES:
            self._fail(rank, part.part, "answers came faster than they could be stored")
        elif last or not is_whole:
            if is_whole:
                data = self._taken(rank, part.part)
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

    def _taken(self, rank: int, part: Part) -> bytes:
        begun = self._begun.pop((rank, part), bytearray())
        self._held -= len(begun)
        return bytes(begun)

    def _fail(self, rank: int, part: Part, error: str) -> None:
        self._open.discard((rank, part))
        self._taken(rank, part)
        self._give(Piece(rank, part, error=error))

    def _give(self, answer: Piece) -> None:
        self._ready.append(answer)
        self._wake.set()


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
        the RAS service of their NCCL says.
        `stacks` includes stacks of child processes for the ranks `children_of` (None: all ranks).

        Raises:
            ServiceUnavailable: no agent of the attempt is connected, or too many are open.
        """
        wanted = sorted(self._streams.shared.revisions.ranks(key) if ranks is None else set(ranks))
        owners = {rank: self._streams.shared.owners.of(key, rank) for rank in wanted}
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
        by_stream = defaultdict[int, list[Target]](list)
        for target in targets:
            by_stream[target.stream].append(target)
        try:
            for stream_id, asked in by_stream.items():
                of = [t for t in asked if stacks and (children_of is None or t.rank in children_of)]
                indexes, below = (tuple(target.index for target in some) for some in (asked, of))
                about = inquiry.request_id, indexes, dump, stacks, timeout_s, below, waits, ras
                self._streams[stream_id].send(Request(*about))
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
            if (owner := self._streams.shared.owners.of(key, rank)) is not None:
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


@dataclass(eq=False)
class Dumper:
    inquiries: Inquiries
    streams: Streams
    store: DumpStore
    now: RealTime
    stall_after_s: Callable[[], float]
    """The stall threshold, which goes into every dump for its analysis."""
    store_errors: int = 0
    """Dumps that could not be stored."""

    async def take(
        self,
        key: AttemptKey,
        ranks: Sequence[int] | None,
        *,
        stacks: bool,
        timeout_s: float,
        children_of: Collection[int] | None = None,
        on_stack: OnStack = lambda rank, text: None,
    ) -> DumpResult:
        """Dump `ranks` (None: all); `on_stack` is called with every rank's stack as soon as it is
        whole. `children_of` are the ranks whose child processes' stacks are wanted, too (None: all
        of them).

        Raises:
            ServiceUnavailable: no agent of the attempt is connected.
            StoreError: the dump cannot be stored.
        """
        asking = self.inquiries.ask(
            *(key, ranks),
            dump=True,
            stacks=stacks,
            children_of=children_of,
            timeout_s=timeout_s,
        )
        try:
            return await self._take(key, asking, _Parts(on_stack))
        except StoreError:
            self.store_errors += 1
            raise

    async def _take(
        self, key: AttemptKey, asking: AsyncGenerator[list[Piece], None], parts: _Parts
    ) -> DumpResult:
        async with aclosing(asking) as asked:
            # The first answers show that an agent is connected.
            answers = await anext(asked)
            writer = await asyncio.to_thread(self.store.create, key, self.now.utc())
            try:
                await asyncio.to_thread(_store, writer, parts.take(answers))
                async for answers in asked:
                    await asyncio.to_thread(_store, writer, parts.take(answers))
                await asyncio.to_thread(_store, writer, self._identities(key, parts))
                summary = {"stall_after_s": self.stall_after_s(), **parts.summary()}
                dump_id = await asyncio.to_thread(writer.finish, summary)
            except BaseException:
                writer.abandon()
                raise
        return DumpResult(dump_id, tuple(sorted(parts.sources)), parts.failed)

    def _identities(self, key: AttemptKey, parts: _Parts) -> list[Piece]:
        answers = []
        for rank in parts.known():
            clock = self.streams.clock(key, rank)
            identity = {
                "job": key.job,
                "attempt": key.attempt,
                "rank": rank,
                **parts.identity(rank),
                "source": parts.sources.get(rank, ""),
                **({} if clock is None else clock_json(clock.view(self.now()))),
            }
            text = json.dumps(identity, indent=1).encode("ascii")
            answers.append(Piece(rank, Part.IDENTITY, text))
        return answers


class _Parts:
    """The parts that have arrived, by rank."""

    def __init__(self, on_stack: OnStack) -> None:
        self.sources: dict[int, str] = {}
        """Ranks whose dump is complete, with its source."""
        self.failed: dict[int, str] = {}
        self._without_stack: dict[int, str] = {}
        self._identities: dict[int, bytes] = {}
        self._on_stack = on_stack

    def take(self, answers: Sequence[Piece]) -> list[Piece]:
        """Add answers; returns the pieces to be stored unchanged."""
        stored = []
        for answer in answers:
            if answer.error:
                of = {Part.DUMP: self.failed, Part.STACK: self._without_stack}
                of.get(answer.part, {})[answer.rank] = answer.error
                continue
            if answer.part is Part.IDENTITY:
                self._identities[answer.rank] = answer.data
                continue
            stored.append(answer)
            if answer.part is Part.STACK:
                self._on_stack(answer.rank, answer.data.decode("utf-8", "replace"))
            elif answer.last:
                self.sources[answer.rank] = answer.source
        return stored

    def known(self) -> list[int]:
        """Ranks that have a dump, or said at least what they are."""
        return sorted(self.sources.keys() | self._identities.keys())

    def identity(self, rank: int) -> dict[str, Any]:
        """The agent's JSON object; empty when there is none, or it cannot be parsed."""
        try:
            value = json.loads(self._identities.get(rank, b"{}"))
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def summary(self) -> dict[str, Any]:
        return {
            "answered": sorted(self.sources),
            "failed": {str(rank): error for rank, error in sorted(self.failed.items())},
            "without_stack": {str(r): error for r, error in sorted(self._without_stack.items())},
        }


def _store(writer: DumpWriter, answers: Sequence[Piece]) -> None:
    for answer in answers:
        writer.add(answer.rank, answer.part, answer.data, last=answer.last)
