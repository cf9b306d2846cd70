"""Answers as a hostile or broken agent sends them, or as a broken asker passes them on: too late,
twice, of another process or attempt, in turns.

No verdict may go wrong because of them; evidence may get lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from frd.engine.evidence.answers import Answer, Stack
from frd.model import AttemptKey
from frd.wire.messages import Part, ResponsePart
from tests.sim import places
from tests.sim.kernel import Kernel
from tests.sim.places import Place
from tests.sim.stacks import by_faulthandler
from tests.world.clocks import MS, S

_LATE: Final = 0.1
_TWICE: Final = 0.1
_STALE: Final = 0.1
_CONTRADICTS: Final = 0.15
_KEPT: Final = 64


class Falsified:
    """The answers of one agent."""

    def __init__(self, session: str) -> None:
        self._dice = random.Random(f"mutate/{session}")
        self._texts: list[tuple[int, bytes]] = []
        """Stacks that were sent, with the attempts of their processes."""
        self._newest = 0

    def remember(self, attempt: int, text: bytes) -> None:
        self._newest = max(self._newest, attempt)
        self._texts = [*self._texts[-_KEPT:], (attempt, text)]

    def of(self, part: ResponsePart) -> Iterator[tuple[int, ResponsePart]]:
        """What is sent in place of a part, each with its delay."""
        dice = self._dice
        delay = dice.randrange(60 * S) if dice.random() < _LATE else 0
        first, second = part, part
        if part.part is Part.STACK and not part.error:
            old = [text for attempt, text in self._texts if attempt < self._newest]
            if old and dice.random() < _STALE:
                first = replace(part, data=dice.choice(old))
            elif dice.random() < _CONTRADICTS:
                second = replace(part, data=_text(self._other(part.data)))
        pair = [first, second]
        dice.shuffle(pair)
        yield delay, pair[0]
        if second is not part or dice.random() < _TWICE:
            yield delay + dice.randrange(100 * MS), pair[1]

    def _other(self, data: bytes) -> Place:
        """A rank that waits seems to run, one that runs to wait."""
        if b"distributed_c10d" in data:
            return places.computing()
        return places.in_message(sends=self._dice.random() < 0.5)


class FalsifiedDoor:
    """Between the asker and the engine, where no time limit and no stream stops an answer."""

    def __init__(self, kernel: Kernel, take: Callable[[Answer], None], name: str) -> None:
        self._kernel = kernel
        self._take = take
        self._dice = random.Random(f"door/{name}")
        self._kept: list[Answer] = []
        self.is_closed = False

    def take(self, answer: Answer) -> None:
        dice = self._dice
        self._kept = [*self._kept[-_KEPT:], answer]
        self._later(answer, dice.randrange(60 * S) if dice.random() < _LATE else 0)
        for other in self._others(answer):
            self._later(other, dice.randrange(5 * S))

    def _others(self, answer: Answer) -> Iterator[Answer]:
        dice, (job, attempt) = self._dice, (answer.attempt.job, answer.attempt.attempt)
        if dice.random() < _TWICE:
            yield answer
        if dice.random() < _STALE:  # the rank has restarted, and its former process answers
            yield replace(dice.choice(self._kept), attempt=answer.attempt)
        if dice.random() < _STALE:
            yield replace(answer, attempt=AttemptKey(job, attempt + dice.choice((-1, 1))))
        if answer.stack is not None and dice.random() < _CONTRADICTS:
            is_in_call = answer.stack.place is not None and bool(answer.stack.place.op)
            place = places.computing() if is_in_call else places.in_message(sends=True)
            yield replace(answer, stack=Stack.of(by_faulthandler(place)))

    def _later(self, answer: Answer, delay: int) -> None:
        self._kernel.after(delay, lambda: None if self.is_closed else self._take(answer))


def _text(place: Place) -> bytes:
    return by_faulthandler(place).encode()
