"""Asks ranks what the engine wants to know, and gives it one answer for each.

What is asked, when and how often is for the engine (`frd.engine.evidence.questions`); this module
bounds how many questions are under way, and decodes what comes back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias, assert_never

from frd.engine.evidence.answers import Answer, Stack
from frd.engine.evidence.nccl import opinion
from frd.engine.evidence.questions import Question, QuestionKind
from frd.errors import FrdError, ServiceUnavailable, StoreError, WireError
from frd.model import AlignedNs
from frd.service.evidence.inquiries import Dumper, Inquiries
from frd.wire.waits import decode_ras, decode_report

WAIT_REPORT: Final = "wait_report"
RAS_REPORT: Final = "ras_report"
"""Reasons under which `frd_ingest_refused_total` counts reports that cannot be read."""
MAX_AGENTS: Final = 2
"""So many agents are asked for one opinion, one after the other."""
AT_ONCE: Final = {**dict.fromkeys(QuestionKind, 4), QuestionKind.OPINION: 2}
"""Questions of one kind about one job that are asked at the same time."""
_MAX_WAITING: Final = 64
"""The same, with those that wait for their turn."""
_LOGGED: Final = {QuestionKind.DUMP: logging.WARNING, QuestionKind.OPINION: logging.INFO}
"""Of a question without an answer; others are asked again."""
_Turn: TypeAlias = tuple[str, QuestionKind]

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Asker:
    inquiries: Inquiries
    dumper: Dumper
    take: Callable[[Answer], None]
    """Gets each answer when it comes."""
    keep_dumps: bool
    now: Callable[[], AlignedNs]
    _turns: dict[_Turn, tuple[asyncio.Semaphore, set[asyncio.Task[None]]]] = field(
        default_factory=dict
    )
    """Questions under way, so that no job delays the questions about others."""
    refused: Counter[str] = field(default_factory=lambda: Counter({WAIT_REPORT: 0, RAS_REPORT: 0}))
    """Reports that could not be read, by reason."""

    def ask(self, questions: Iterable[Question]) -> None:
        """Does not block."""
        for question in questions:
            kind, asking = question.rule.kind, _Asking(question, self.take, self.now)
            turn = question.attempt.job, kind
            slots, tasks = self._turns.setdefault(turn, (asyncio.Semaphore(AT_ONCE[kind]), set()))
            if len(tasks) >= _MAX_WAITING:
                asking.refuse(f"{_MAX_WAITING} questions about the job wait already")
                asking.end()
                continue
            task = asyncio.create_task(self._in_turn(slots, asking))
            tasks.add(task)
            task.add_done_callback(partial(self._done, turn, asking))

    async def close(self) -> None:
        """Questions under way end without an answer."""
        tasks = [task for _, tasks in self._turns.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, turn: _Turn, asking: _Asking, task: asyncio.Task[None]) -> None:
        _, tasks = self._turns[turn]
        tasks.discard(task)
        if not tasks:
            del self._turns[turn]
        asking.end()  # also if the task was cancelled before it began

    async def _in_turn(self, slots: asyncio.Semaphore, asking: _Asking) -> None:
        kind = asking.question.rule.kind
        try:
            async with slots:
                asking.asked_at = self.now()
                await self._respond(kind, asking)
        except FrdError as error:
            asking.refuse(str(error))
        except Exception:  # an alert must not depend on this
            log.exception("%s: no %s", asking.subject, kind)

    async def _respond(self, kind: QuestionKind, asking: _Asking) -> None:
        match kind:
            case QuestionKind.DUMP if self.keep_dumps:
                await self._dump(asking)
            case QuestionKind.DUMP | QuestionKind.STACK:
                await self._stacks(asking)
            case QuestionKind.INSPECTION:
                async for rank, data in self._answers(asking, asking.question.ranks, waits=True):
                    try:
                        asking.give(rank, blocked=decode_report(data))
                    except WireError as error:
                        self._refuse(WAIT_REPORT, asking, error)
            case QuestionKind.OPINION:
                await self._opinion(asking)
            case _:
                assert_never(kind)

    async def _dump(self, asking: _Asking) -> None:
        of = asking.question
        try:
            taken = await self.dumper.take(
                *(of.attempt, of.ranks),
                stacks=True,
                timeout_s=of.rule.within_s,
                children_of=of.children_of,
                on_stack=asking.stack,
            )
        except StoreError as error:  # stacks need no disk
            log.warning("%s: it has no dump: %s", asking.subject, error)
            await self._stacks(asking)
        else:
            asking.give(-1, dump=taken.id)

    async def _stacks(self, asking: _Asking) -> None:
        of = asking.question
        async for rank, data in self._answers(
            asking, of.ranks, stacks=True, children_of=of.children_of
        ):
            asking.stack(rank, data.decode("utf-8", "replace"))

    async def _answers(
        self, asking: _Asking, ranks: Sequence[int], **parts: Any
    ) -> AsyncIterator[tuple[int, bytes]]:
        """Of the ranks that have the part, as they come."""
        of = asking.question
        asked = self.inquiries.ask(of.attempt, ranks, timeout_s=of.rule.within_s, **parts)
        async with aclosing(asked) as answers:
            async for pieces in answers:
                for one in pieces:
                    if one.error:
                        asking.why = f"rank {one.rank}: {one.error}"
                        asking.give(one.rank, unanswered=one.error, is_silent=True)
                    else:
                        yield one.rank, one.data

    async def _opinion(self, asking: _Asking) -> None:
        of = asking.question
        members, pids = [rank for rank, _ in of.members], dict(of.members)
        asking.why = "no agent of ranks that use NCCL is connected"
        for rank in self.inquiries.one_by_agent(of.attempt, of.ranks, MAX_AGENTS):
            said = None
            try:
                async for _, data in self._answers(asking, [rank], ras=True):
                    report = await asyncio.to_thread(decode_ras, data)
                    said = await asyncio.to_thread(opinion, report, members, pids)
            except ServiceUnavailable as error:
                asking.why = f"rank {rank}: {error}"
            except WireError as error:
                self._refuse(RAS_REPORT, asking, error)
                return
            if said:
                asking.give(-1, opinion=said)
                return
            if said is not None:
                asking.why = "its answer shows nothing about these ranks"
                break
        raise ServiceUnavailable(f"NCCL RAS: {asking.why}")

    def _refuse(self, reason: str, asking: _Asking, error: WireError) -> None:
        self.refused[reason] += 1
        if self.refused[reason] == 1:
            log.warning("%s: %s: is left out", asking.subject, error)


class _Asking:
    """A question under way."""

    def __init__(
        self, question: Question, take: Callable[[Answer], None], now: Callable[[], AlignedNs]
    ) -> None:
        self.question = question
        self.asked_at = now()
        self.why = "no answer"
        """Why ranks have not answered."""
        self._take = take
        self._now = now
        kind = question.rule.kind
        self._left = set(() if kind is QuestionKind.OPINION else question.ranks)
        self._left |= {-1} if kind in (QuestionKind.DUMP, QuestionKind.OPINION) else set()

    @property
    def subject(self) -> str:
        of = self.question
        return f"finding {of.finding}" if of.finding else f"job {of.attempt.job}"

    def stack(self, rank: int, said: str) -> None:
        self.give(rank, stack=Stack.of(said))

    def give(self, rank: int, **values: Any) -> None:
        """The answer of one rank, or of all together (-1); a second one is dropped."""
        if rank in self._left:
            self._left.discard(rank)
            of = self.question
            about = of.number, of.attempt, of.occasion, of.finding, rank
            try:
                self._take(Answer(*about, self.asked_at, self._now(), **values))
            except Exception:  # the other answers count
                log.exception("%s: an answer of rank %d is lost", self.subject, rank)

    def refuse(self, why: str) -> None:
        """There is no answer, because."""
        self.why, kind = why, self.question.rule.kind
        log.log(_LOGGED.get(kind, logging.DEBUG), "%s: no %s: %s", self.subject, kind, why)

    def end(self) -> None:
        """No rank answers any more."""
        for rank in sorted(self._left):
            self.give(rank, unanswered=self.why)
