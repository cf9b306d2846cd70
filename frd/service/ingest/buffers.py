"""Messages of many streams that wait to be applied to the engine together: entries, watermarks.

An engine call costs more than the rows of most messages, so entry messages wait: until the engine
advances, until there are many rows, or until something comes that must find them applied (another
message of the rank, a declaration, another clock). A message counts as applied, and is
acknowledged, only then. Messages of which one is wrong, or on which the engine fails because of a
bug, are applied one by one: of a wrong one, the rows that contradict what their rank has reported
are refused, and only the stream of a message that fails again must start over. When messages are
applied depends on messages and ticks alone, so a replay does the same.

Every agent sends a small watermark message a second. Applied one by one, 2,048 of them cost more in
calls than in work; together they are a few vectorized passes. Only `Engine.advance` reads their
effect, so they wait for it, unless there are many. Code that depends on their order (a rank is
declared again) must call `flush` first. Entries need no flush, because watermarks only rise, in any
order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Final, TypeAlias

import numpy as np

from frd.engine.attempt import Attempt
from frd.engine.state.entry_batch import EntryMessage
from frd.engine.state.tables import repeats
from frd.engine.state.watermarks import WatermarkRows
from frd.errors import WireError

MOST_ROWS: Final = 16_384
"""Entry rows that may wait, and, about, watermark rows of one call. Their columns fit into a
processor's cache: a second's watermarks of 98,304 ranks in 10 groups in one call take half as long
again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the rows of an entry message."""

    duplicates: int = 0
    """Rows that report nothing new."""
    refused: int = 0
    """Rows that contradict what their rank has reported: the others are applied."""
    why: str = ""
    """They are refused."""
    has_failed: bool = False
    """Because of a bug of the engine, not all rows are applied."""


Settled: TypeAlias = Callable[[Outcome], None]
_COLUMNS: Final = [column.name for column in fields(WatermarkRows)]
_NUMBERS: Final = "pair", "seen_rank"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Waiting:
    attempt: Attempt
    messages: list[EntryMessage] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)
    """By message."""
    ranks: set[int] = field(default_factory=set)

    def apply(self) -> None:
        try:
            outcomes = [Outcome(count) for count in self.attempt.apply_entries(self.messages)]
        except WireError:
            outcomes = [self._apply_alone(message) for message in self.messages]
        except Exception as error:
            # What was applied before the failure counts as known.
            again = [replace(message, is_replay=True) for message in self.messages]
            outcomes = [self._apply_alone(message) for message in again]
            log.error(
                "entries of %d ranks, those of %d not applied: internal error",
                *(len(outcomes), sum(one.has_failed for one in outcomes)),
                exc_info=error,
            )
        for settled, outcome in zip(self.settled, outcomes, strict=True):
            settled(outcome)

    def _apply_alone(self, message: EntryMessage) -> Outcome:
        attempt = self.attempt
        try:
            try:
                return Outcome(sum(attempt.apply_entries([message])))
            except WireError as error:
                bad = attempt.contradicting(message.rows, replay=message.is_replay)
                refused, why = int(bad.sum()), str(error)
            if refused == len(bad):
                return Outcome(refused=refused, why=why)
            rest = replace(message, rows=message.rows.only(~bad))
            return Outcome(sum(attempt.apply_entries([rest])), refused, why)
        except Exception:
            log.exception("entries of rank %d of %s", message.rows.rank, attempt.key.job)
            return Outcome(has_failed=True)


class EntryBuffer:
    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}
        """By identity of the attempt."""
        self._rows = 0

    def has(self, attempt: Attempt, rank: int) -> bool:
        """A message of the rank waits."""
        waiting = self._waiting.get(id(attempt))
        return waiting is not None and rank in waiting.ranks

    def add(self, attempt: Attempt, message: EntryMessage, settled: Settled) -> None:
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
        self._rows = 0
        self._fault: Exception | None = None

    @property
    def is_full(self) -> bool:
        """One more call at the next tick would keep the event loop for long."""
        return self._rows >= MOST_ROWS

    def add(self, attempt: Attempt, rows: WatermarkRows) -> None:
        """Add one message."""
        self._batches.setdefault(id(attempt), (attempt, []))[1].append(rows)
        self._rows += len(rows.pair)

    def flush(self) -> None:
        """Apply everything added since the last call."""
        if not self._batches:
            return
        batches, self._batches, self._rows = self._batches, {}, 0
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
