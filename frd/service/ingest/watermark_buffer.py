"""Watermark messages of many streams, collected and applied to the engine together.

Every agent sends a small watermark message a second. Applied one by one, 2,048 of them cost more in
calls than in work; together they are a few vectorized passes. Only `Engine.advance` reads their
effect, so they wait for it. Code that depends on their order (a rank is declared again) must call
`flush` first. Entries need no flush, because watermarks only rise, in any order.

Waiting messages keep the alignment that was in use when they arrived. When a clock becomes better
known, the heads of its ranks are aligned again, so that no head keeps the error of the first guess.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from frd.engine.attempt import Attempt
from frd.engine.clocks.alignment import Alignment
from frd.engine.state.watermarks import WatermarkRows
from frd.model import AlignedNs, Int32s, Int64s
from frd.service.ingest.stream_handles import StreamHandles


@dataclass(slots=True)
class _Batch:
    attempt: Attempt
    messages: list[tuple[WatermarkRows, Alignment]] = field(default_factory=list)
    """Rows have times of the node's clock."""
    realigned: dict[int, tuple[StreamHandles, list[int], Alignment]] = field(default_factory=dict)
    """Ranks to align again, by identity of their stream's handles."""


class WatermarkBuffer:
    def __init__(self) -> None:
        self._batches: dict[int, _Batch] = {}
        """By identity of the attempt."""

    def add(self, attempt: Attempt, rows: WatermarkRows, alignment: Alignment) -> None:
        """Add one message: engine handles, but times of the node's clock."""
        self._batch(attempt).messages.append((rows, alignment))

    def realign(self, handles: StreamHandles, ranks: list[int], alignment: Alignment) -> None:
        """Align the heads of these ranks, as one stream has reported them, again."""
        self._batch(handles.attempt).realigned[id(handles)] = handles, ranks, alignment

    def _batch(self, attempt: Attempt) -> _Batch:
        batch = self._batches.get(id(attempt))
        if batch is None:
            batch = self._batches[id(attempt)] = _Batch(attempt)
        return batch

    def flush(self, now: AlignedNs) -> None:
        """Apply everything added since the last call."""
        if not self._batches:
            return
        batches, self._batches = self._batches, {}
        for batch in batches.values():
            for messages in _calls(batch.messages):
                batch.attempt.observe_watermarks(_joined(messages, now), now)
            for handles, ranks, alignment in batch.realigned.values():
                _realign(handles, ranks, alignment, now)


def _joined(messages: list[tuple[WatermarkRows, Alignment]], now: AlignedNs) -> WatermarkRows:
    rows = [message for message, _ in messages]
    alignments = [alignment for _, alignment in messages]
    heads, as_ofs = [r.head_created_ns for r in rows], [r.as_of_ns for r in rows]
    return WatermarkRows(
        pair=np.concatenate([r.pair for r in rows]),
        enqueued=np.concatenate([r.enqueued for r in rows]),
        started=np.concatenate([r.started for r in rows]),
        completed=np.concatenate([r.completed for r in rows]),
        # A reported event has happened, whatever the clock of the node shows.
        head_created_ns=np.minimum(_aligned(heads, alignments), now),
        seen_rank=np.concatenate([r.seen_rank for r in rows]),
        as_of_ns=np.minimum(_aligned(as_ofs, alignments), now),
        head_node_ns=np.concatenate(heads),
    )


def _realign(
    handles: StreamHandles, ranks: list[int], alignment: Alignment, now: AlignedNs
) -> None:
    def align(node_ns: Int64s) -> Int64s:
        return np.minimum(alignment.to_aligned(node_ns), now)

    handles.attempt.clocks.realign(ranks, handles.resolved(), align)


def _aligned(columns: list[Int64s], alignments: list[Alignment]) -> Int64s:
    """`Alignment.to_aligned` of each column, in one pass for all."""
    rows = [len(column) for column in columns]
    at, aligned_at = np.repeat([(a.at_ns, a.aligned_ns) for a in alignments], rows, axis=0).T
    rate = np.repeat([a.rate for a in alignments], rows)
    node = np.concatenate(columns)
    passed = node - at
    aligned: Int64s = aligned_at + passed + (passed * rate).astype(np.int64)
    aligned[node == 0] = 0
    return aligned


def _calls(
    messages: list[tuple[WatermarkRows, Alignment]],
) -> list[list[tuple[WatermarkRows, Alignment]]]:
    """All messages in one call; each in its own call if a pair or a rank occurs twice, because an
    agent has sent two messages since the last flush: the engine takes each once per call."""
    rows = [message for message, _ in messages]
    twice = _repeats([r.pair for r in rows]) or _repeats([r.seen_rank for r in rows])
    return [[message] for message in messages] if twice else [messages] if messages else []


def _repeats(parts: list[Int32s]) -> bool:
    """Whether a number occurs more than once."""
    numbers = np.concatenate([*parts, np.zeros(0, np.int32)])
    if not len(numbers):
        return False
    order = np.arange(len(numbers))
    last = np.empty(int(numbers.max()) + 1, np.int64)
    last[numbers] = order
    return not bool((last[numbers] == order).all())
