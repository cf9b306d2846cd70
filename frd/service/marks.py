"""Watermarks of many streams, gathered and applied to the engine at once.

Every agent sends a small message of watermarks a second. One by one, 2,048 of them cost more in
calls than in work; together they are a few vectorized passes. Only `Engine.advance` reads what
they change, so they wait for it; whatever else depends on their order (a rank that is declared
anew) must `flush` first. Entries need not wait: marks only ever rise, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from frd.engine.attempt import Attempt
from frd.engine.engine import Engine
from frd.model import AlignedNs, Int32s, Int64s, WatermarkColumns


@dataclass(frozen=True, slots=True)
class _Message:
    pair: Int32s
    seen: Int32s
    columns: WatermarkColumns
    offset_ns: int


@dataclass(slots=True)
class _Batch:
    attempt: Attempt
    messages: list[_Message] = field(default_factory=list)


class Marks:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._batches: dict[int, _Batch] = {}
        """By identity of the attempt's table."""

    def add(
        self,
        attempt: Attempt,
        pair: Int32s,
        seen: Int32s,
        columns: WatermarkColumns,
        offset_ns: int,
    ) -> None:
        """One message: engine rows for its rows and its seen ranks, times of the node's clock."""
        batch = self._batches.get(id(attempt))
        if batch is None:
            batch = self._batches[id(attempt)] = _Batch(attempt)
        batch.messages.append(_Message(pair, seen, columns, offset_ns))

    def flush(self, now: AlignedNs) -> None:
        """Apply all that has been added."""
        if not self._batches:
            return
        batches, self._batches = self._batches, {}
        for batch in batches.values():
            if _distinct(batch.messages):
                self._apply(batch.attempt, batch.messages, now)
            else:
                for message in batch.messages:
                    self._apply(batch.attempt, [message], now)

    def _apply(self, attempt: Attempt, messages: list[_Message], now: AlignedNs) -> None:
        columns = [message.columns for message in messages]
        offsets = np.array([message.offset_ns for message in messages])
        heads = [c.head_created_ns for c in columns]
        as_ofs = [c.as_of_ns for c in columns]
        self._engine.observe_watermarks(
            attempt,
            np.concatenate([message.pair for message in messages]),
            np.concatenate([c.enqueued for c in columns]),
            np.concatenate([c.started for c in columns]),
            np.concatenate([c.completed for c in columns]),
            _aligned(heads, offsets),
            np.concatenate([message.seen for message in messages]),
            # An agent cannot have seen what has not happened yet, whatever its clock says.
            np.minimum(_aligned(as_ofs, offsets), now),
            now,
        )


def _aligned(columns: list[Int64s], offsets: Int64s) -> Int64s:
    """Node times on the service's clock; 0, which says unknown, stays 0."""
    node = np.concatenate(columns)
    aligned: Int64s = node + np.repeat(offsets, [len(column) for column in columns])
    aligned[node == 0] = 0
    return aligned


def _distinct(messages: list[_Message]) -> bool:
    """No row occurs twice, as when an agent has spoken twice since the last flush: the engine
    takes a row once in a call."""
    pair = np.concatenate([message.pair for message in messages])
    if not len(pair):
        return True
    order = np.arange(len(pair))
    last = np.empty(int(pair.max()) + 1, np.int64)
    last[pair] = order
    return bool((last[pair] == order).all())
