"""Buffered watermarks leave the engine in the same state as watermarks applied one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from frd.engine.engine import Engine
from frd.engine.policy import Policy
from frd.engine.state.watermarks import WatermarkRows
from frd.model import AlignedNs, AttemptKey, GroupInfo, Int32s, RankInfo
from frd.service.clocks.alignments import guess
from frd.service.ingest.buffers.watermarks import WatermarkBuffer

NOW = AlignedNs(1_790_000_000_000_000_000)
WORLD = 4

rows = st.lists(
    st.tuples(st.integers(0, WORLD - 1), st.integers(0, 9), st.integers(0, 3)),
    max_size=5,
    unique_by=lambda row: row[0],
)
messages = st.lists(st.tuples(rows, st.integers(-5, 5)), max_size=6)


def columns(drawn: list[tuple[int, int, int]], pairs: Int32s) -> WatermarkRows:
    """Rows of (rank, enqueued, how many of these are outstanding) of one group."""
    rank = np.array([row[0] for row in drawn], np.int32)
    enqueued = np.array([row[1] for row in drawn], np.int64)
    outstanding = np.array([row[2] for row in drawn], np.int64)
    return WatermarkRows(
        pair=pairs[rank],
        enqueued=enqueued,
        started=np.full(len(drawn), -1, np.int64),
        completed=np.maximum(enqueued - outstanding, -1),
        head_created_ns=np.where(outstanding > 0, NOW - 10_000 + enqueued, 0),
        seen_rank=rank,
        as_of_ns=np.full(len(drawn), NOW - 5_000, np.int64),
    )


def state_after(sent: list[tuple[list[tuple[int, int, int]], int]], *, buffered: bool) -> object:
    engine = Engine(Policy())
    attempt = engine.attempt(AttemptKey("job", 0), WORLD, NOW)
    for rank in range(WORLD):
        attempt.rank(RankInfo(rank, WORLD, "n", "b", rank))
    group = attempt.group(GroupInfo("0", "default_pg", tuple(range(WORLD))))
    pairs = np.array([attempt.pair(rank, group) for rank in range(WORLD)], np.int32)
    buffer = WatermarkBuffer()
    for rows, offset_ns in sent:
        buffer.add(attempt, columns(rows, pairs))
        line = guess(NOW, AlignedNs(NOW + offset_ns))
        attempt.clocks.set(range(WORLD), 1, None, NOW, line)
        if not buffered:
            buffer.flush()
    buffer.flush()
    snapshot = attempt.snapshot(NOW)
    group_now = snapshot.pairs
    parts = (group_now.joined, group_now.completed, group_now.head_since, snapshot.as_of)
    return [part.tolist() for part in (*parts, group_now.moved_at)]


@given(messages)
def test_buffering_changes_nothing(sent: list[tuple[list[tuple[int, int, int]], int]]) -> None:
    """Messages with repeated rows and different clock offsets, buffered and one by one."""
    assert state_after(sent, buffered=True) == state_after(sent, buffered=False)
