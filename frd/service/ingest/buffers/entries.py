"""Entry messages of many ranks, checked when they come, and applied to the engine together.

An engine call costs more than the rows of most messages, so the messages wait: until the engine
advances, until there are many rows, or until something comes that must find them applied (another
message of the rank, a declaration, another clock). They are valid, hence none of them can fail
later, on another stream's time. A message counts as applied, and is acknowledged, only then.

When messages are applied depends on messages and ticks alone, so a replay does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from frd.engine.attempt import Attempt
from frd.engine.state.entry_batch import CheckedEntries

MOST_ROWS: Final = 32_768
"""Rows that may wait. Their columns fit into a processor's cache; twice as many do not pay."""


class _Waiting(NamedTuple):
    attempt: Attempt
    messages: list[CheckedEntries]
    ranks: set[int]


class EntryBuffer:
    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}
        """By identity of the attempt."""
        self._applied: list[Callable[[], None]] = []
        self._rows = 0

    def has(self, attempt: Attempt, rank: int) -> bool:
        """A message of the rank waits."""
        waiting = self._waiting.get(id(attempt))
        return waiting is not None and rank in waiting.ranks

    def add(self, attempt: Attempt, message: CheckedEntries, applied: Callable[[], None]) -> None:
        """Add the message of a rank that has none here; `applied` is called when it is applied."""
        waiting = self._waiting.get(id(attempt))
        if waiting is None:
            waiting = self._waiting[id(attempt)] = _Waiting(attempt, [], set())
        waiting.messages.append(message)
        waiting.ranks.add(message.rows.rank)
        self._applied.append(applied)
        self._rows += len(message.rows)
        if self._rows >= MOST_ROWS:
            self.flush()

    def flush(self) -> None:
        """Apply everything added since the last call."""
        if not self._rows:
            return
        attempts, self._waiting = self._waiting, {}
        applied, self._applied, self._rows = self._applied, [], 0
        for attempt, messages, _ in attempts.values():
            attempt.apply_entries(messages)
        for call in applied:
            call()
