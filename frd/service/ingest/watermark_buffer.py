"""Watermarks of many streams, gathered and applied to the engine at once.

Every agent sends a small message of watermarks a second. One by one, 2,048 of them cost more in
calls than in work; together they are a few vectorized passes. Only `Engine.advance` reads what
they change, so they wait for it; whatever else depends on their order (a rank that is declared
anew) must `flush` first. Entries need not wait: marks only ever rise, in any order.

What waits was aligned when it was told. When more is known of the clock it is aligned anew, so that
no mark stays as far off as the first guess at a node's clock was.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from frd.engine.attempt import Attempt
from frd.engine.clocks.alignment import Alignment
from frd.engine.engine import Engine
from frd.model import AlignedNs, Int32s, Int64s, WatermarkColumns
from frd.service.ingest.stream_handles import AttemptHandles


@dataclass(frozen=True, slots=True)
class _Message:
    pair: Int32s
    seen: Int32s
    columns: WatermarkColumns
    alignment: Alignment


@dataclass(slots=True)
class _Batch:
    attempt: Attempt
    messages: list[_Message] = field(default_factory=list)
    realigned: dict[int, tuple[AttemptHandles, list[int], Alignment]] = field(default_factory=dict)
    """By identity of the handles, which are of one stream: of which ranks, and how."""


class WatermarkBuffer:
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
        alignment: Alignment,
    ) -> None:
        """One message: engine rows for its rows and its seen ranks, times of the node's clock."""
        self._batch(attempt).messages.append(_Message(pair, seen, columns, alignment))

    def realign(self, handles: AttemptHandles, ranks: list[int], alignment: Alignment) -> None:
        """What one stream has told of these ranks, with another alignment than before."""
        self._batch(handles.attempt).realigned[id(handles)] = handles, ranks, alignment

    def _batch(self, attempt: Attempt) -> _Batch:
        batch = self._batches.get(id(attempt))
        if batch is None:
            batch = self._batches[id(attempt)] = _Batch(attempt)
        return batch

    def flush(self, now: AlignedNs) -> None:
        """Apply all that has been added."""
        if not self._batches:
            return
        batches, self._batches = self._batches, {}
        for batch in batches.values():
            for messages in _calls(batch.messages):
                self._apply(batch.attempt, messages, now)
            for handles, ranks, alignment in batch.realigned.values():
                _realign(handles, ranks, alignment, now)

    def _apply(self, attempt: Attempt, messages: list[_Message], now: AlignedNs) -> None:
        columns = [message.columns for message in messages]
        alignments = [message.alignment for message in messages]
        heads = [c.head_created_ns for c in columns]
        as_ofs = [c.as_of_ns for c in columns]
        self._engine.observe_watermarks(
            attempt,
            np.concatenate([message.pair for message in messages]),
            np.concatenate([c.enqueued for c in columns]),
            np.concatenate([c.started for c in columns]),
            np.concatenate([c.completed for c in columns]),
            # Nothing that is told has yet to happen, whatever the node's clock says.
            np.minimum(_aligned(heads, alignments), now),
            np.concatenate([message.seen for message in messages]),
            np.minimum(_aligned(as_ofs, alignments), now),
            now,
            head_node_ns=np.concatenate(heads),
        )


def _realign(
    handles: AttemptHandles, ranks: list[int], alignment: Alignment, now: AlignedNs
) -> None:
    def align(node_ns: Int64s) -> Int64s:
        return np.minimum(alignment.to_aligned(node_ns), now)

    handles.attempt.realign(ranks, handles.resolved(), align)


def _aligned(columns: list[Int64s], alignments: list[Alignment]) -> Int64s:
    """As `Alignment.to_aligned` of each column: at once for all times that lie on the lines, as
    nearly all do."""
    rows = [len(column) for column in columns]
    lines = [(a.at_ns, a.line_ns, a.line_from_ns, a.line_to_ns) for a in alignments]
    at, line, since, until = np.repeat(lines, rows, axis=0).T
    rate = np.repeat([a.rate for a in alignments], rows)
    node = np.concatenate(columns)
    aligned: Int64s = node + line + ((node - at) * rate).astype(np.int64)
    aligned[node == 0] = 0
    if (beside := ((node < since) | (node > until)) & (node != 0)).any():
        ends = np.cumsum(rows)
        for i in set(np.searchsorted(ends, np.flatnonzero(beside), "right").tolist()):
            aligned[ends[i] - rows[i] : ends[i]] = alignments[i].to_aligned(columns[i])
    return aligned


def _calls(messages: list[_Message]) -> list[list[_Message]]:
    """All in one call; one by one where a row occurs twice, as when an agent has spoken twice
    since the last flush: the engine takes a row once in a call."""
    if not messages:
        return []
    pair = np.concatenate([message.pair for message in messages])
    if not len(pair):
        return [messages]
    order = np.arange(len(pair))
    last = np.empty(int(pair.max()) + 1, np.int64)
    last[pair] = order
    return [messages] if (last[pair] == order).all() else [[message] for message in messages]
