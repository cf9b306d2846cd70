"""Entry messages of many ranks, checked when they come, and applied to the engine together.

An engine call costs more than the rows of most messages, so the messages wait: until the engine
advances, until there are many rows, or until something comes that must find them applied (another
message of the rank, a declaration, another clock). They are valid, hence none of them can fail
later, on another stream's time. A message counts as applied, and is acknowledged, only then.

If the engine fails nevertheless, because of a bug, the messages are applied one by one, so that
only the stream of a message that fails again must start over.

When messages are applied depends on messages and ticks alone, so a replay does the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from frd.engine.attempt import Attempt
from frd.engine.state.entry_batch import CheckedEntries

MOST_ROWS: Final = 32_768
"""Rows that may wait. Their columns fit into a processor's cache; twice as many do not pay."""
Settled: TypeAlias = Callable[[bool], None]
"""Called with True when the message is applied; with False when the engine has failed on it."""

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
