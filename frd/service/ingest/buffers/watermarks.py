"""Watermark messages of many streams, collected and applied to the engine together.

Every agent sends a small watermark message a second. Applied one by one, 2,048 of them cost more in
calls than in work; together they are a few vectorized passes. Only `Engine.advance` reads their
effect, so they wait for it. Code that depends on their order (a rank is declared again) must call
`flush` first. Entries need no flush, because watermarks only rise, in any order.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Final

import numpy as np

from frd.engine.attempt import Attempt
from frd.engine.state.watermarks import WatermarkRows
from frd.model import Int32s

_MOST_ROWS: Final = 32_768
"""Rows of one call, about: their columns fit into a processor's cache. A second's watermarks of
98,304 ranks in 10 groups in one call take half as long again."""
_COLUMNS: Final = [column.name for column in fields(WatermarkRows)]


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
    if _repeats([m.pair for m in messages]) or _repeats([m.seen_rank for m in messages]):
        return [[message] for message in messages]
    calls: list[list[WatermarkRows]] = []
    rows = _MOST_ROWS
    for message in messages:
        if rows >= _MOST_ROWS:
            rows = 0
            calls.append([])
        calls[-1].append(message)
        rows += len(message.pair)
    return calls


def _repeats(parts: list[Int32s]) -> bool:
    """Whether a number occurs more than once."""
    numbers = np.concatenate(parts)
    if not len(numbers):
        return False
    order = np.arange(len(numbers))
    last = np.empty(int(numbers.max()) + 1, np.int64)
    last[numbers] = order
    return not bool((last[numbers] == order).all())
