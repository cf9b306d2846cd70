"""Takes dumps: asks the agents, stores answers as they arrive, and records ranks without an answer.

A rank has answered when its dump is complete. Stacks are optional: summary.json lists the ranks
without one. `rank_<rank>.json` is the agent's report, also of a rank that has no dump, with the end
of its log and two things that only the service knows: the clock's offset and the dump's source.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from frd.errors import StoreError
from frd.model import AttemptKey
from frd.service.clocks.real_time import RealTime
from frd.service.clocks.view import clock_json
from frd.service.evidence.inquiries import Inquiries, Piece
from frd.service.ingest.streams import Streams
from frd.service.state import DumpResult
from frd.store.dumps import DumpStore, DumpWriter
from frd.wire.messages import Part

OnStack = Callable[[int, str], None]


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
