"""Answers as a hostile or broken agent sends them: too late, twice, of another process, in turns.

No verdict may go wrong because of them; evidence may get lost.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from frd.wire.messages import Part, ResponsePart
from tests.sim import places
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


def _text(place: Place) -> bytes:
    return by_faulthandler(place).encode()
