"""Messages of many streams that wait to be applied to the engine together: entries, watermarks.

An engine call costs more than the rows of most messages, so entry messages, checked when they come,
wait: until the engine advances, until there are many rows, or until something comes that must find
them applied (another message of the rank, a declaration, another clock). They are valid, hence none
of them can fail later, on another stream's time. A message counts as applied, and is acknowledged,
only then. If the engine fails nevertheless, because of a bug, the messages are applied one by one,
so that only the stream of a message that fails again must start over. When messages are applied
depends on messages and ticks alone, so a replay does the same.

Every agent sends a small watermark message a second. Applied one by one, 2,048 of them cost more in
calls than in work; together they are a few vectorized passes. Only `Engine.advance` reads their
effect, so they wait for it. Code that depends on their order (a rank is declared again) must call
`flush` first. Entries need no flush, because watermarks only rise, in any order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Final, TypeAlias

import numpy as np

from frd.engine.attempt import Attempt
from frd.engine.state.entry_batch import CheckedEntries
from frd.engine.state.tables import repeats
from frd.engine.state.watermarks import WatermarkRows

MOST_ROWS: Final = 32_768
"""Entry rows that may wait, and, about, watermark rows of one call. Their columns fit into a
processor's cache: a second's watermarks of 98,304 ranks in 10 groups in one call take half as long
again."""
Settled: TypeAlias = Callable[[bool], None]
"""Called with True when the message is applied; with False when the engine has failed on it."""
_COLUMNS: Final = [column.name for column in fields(WatermarkRows)]
_NUMBERS: Final = "pair", "seen_rank"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Waiting:
    attempt: Attempt
    messages: list[CheckedEntries] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    """By message."""
    ranks: set[int] = field(default_factory=set)

    def apply(self) -> None:
        try:
            self.attempt.apply_entries(self.messages)
            done = [True] * len(self.messages)
        except Exception as error:
            done = [self._apply_again(message) for message in self.messages]
            log.error(
                "entries of %d ranks, those of %d not applied: internal error",
                *(len(done), done.count(False)),
                exc_info=error,
            )
        for settled, is_applied in zip(self.settled, done, strict=True):
            settled(is_applied)

    def _apply_again(self, message: CheckedEntries) -> bool:
        """Alone. What was applied of it before the failure counts as known."""
        try:
            again = self.attempt.check_entries(
                message.rows, replay=True, session=message.session, now=message.now
            )
            self.attempt.apply_entries([again])
        except Exception:
            return False
        return True


class EntryBuffer:
    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}
        """By identity of the attempt."""
        self._rows = 0

    def has(self, attempt: Attempt, rank: int) -> bool:
        """A message of the rank waits."""
        waiting = self._waiting.get(id(attempt))
        return waiting is not None and rank in waiting.ranks

    def add(self, attempt: Attempt, message: CheckedEntries, settled: Settled) -> None:
        """Add the message of a rank that has none here."""
        waiting = self._waiting.get(id(attempt))
        if waiting is None:
            waiting = self._waiting[id(attempt)] = _Waiting(attempt)
        waiting.messages.append(message)
        waiting.settled.append(settled)
        waiting.ranks.add(message.rows.rank)
        self._rows += len(message.rows)
        if self._rows >= MOST_ROWS:
            self.flush()

    def flush(self) -> None:
        """Apply everything added since the last call."""
        if not self._rows:
            return
        attempts, self._waiting, self._rows = self._waiting, {}, 0
        for waiting in attempts.values():
            waiting.apply()


class WatermarkBuffer:
    def __init__(self) -> None:
        self._batches: dict[int, tuple[Attempt, list[WatermarkRows]]] = {}
        """By identity of the attempt."""
        self._fault: Exception | None = None

    def add(self, attempt: Attempt, rows: WatermarkRows) -> None:
        """Add one message."""
        self._batches.setdefault(id(attempt), (attempt, []))[1].append(rows)

    def flush(self) -> None:
        """Apply everything added since the last call."""
        if not self._batches:
            return
        batches, self._batches = self._batches, {}
        for attempt, messages in batches.values():
            for some in _calls(messages):
                self._fault = _apply(attempt, some) or self._fault

    def take_fault(self) -> Exception | None:
        """Why messages were not applied since the last call: a bug of the engine."""
        fault, self._fault = self._fault, None
        return fault


def _apply(attempt: Attempt, messages: list[WatermarkRows]) -> Exception | None:
    """If the engine fails on some of them, because of a bug, the others count nevertheless: what is
    applied twice has no effect. The next message of an agent reports everything again."""
    try:
        attempt.observe_watermarks(_joined(messages))
    except Exception as error:
        if len(messages) > 1:
            for message in messages:
                _apply(attempt, [message])
        return error
    return None


def _joined(messages: list[WatermarkRows]) -> WatermarkRows:
    columns = ([getattr(rows, name) for rows in messages] for name in _COLUMNS)
    return WatermarkRows(*map(np.concatenate, columns))


def _calls(messages: list[WatermarkRows]) -> list[list[WatermarkRows]]:
    """All messages in a few calls; each in its own if a pair or a rank occurs twice, because an
    agent has sent two messages since the last flush: the engine takes each once per call."""
    if any(repeats(np.concatenate([getattr(m, name) for m in messages])) for name in _NUMBERS):
        return [[message] for message in messages]
    calls: list[list[WatermarkRows]] = []
    rows = MOST_ROWS
    for message in messages:
        if rows >= MOST_ROWS:
            rows = 0
            calls.append([])
        calls[-1].append(message)
        rows += len(message.pair)
    return calls
