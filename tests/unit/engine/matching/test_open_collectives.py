"""Accumulator slots: the sliding window, growth, eviction, and what a closed slot shows."""

from __future__ import annotations

import numpy as np

from frd.engine.matching.open_collectives import FIRST_CAPACITY, OpenCollectives, RetiredCollectives
from frd.model import Int32s, Int64s

NODES: Int32s = np.zeros(1, np.int32)


def open_collectives(
    limit: int = 1 << 20, limit_per_group: int = 1 << 13, groups: int = 2
) -> OpenCollectives:
    made = OpenCollectives(limit, limit_per_group)
    made.windows.reserve(groups)
    return made


def i64(*values: int) -> Int64s:
    return np.array(values, np.int64)


def join(
    ring: OpenCollectives,
    group: int,
    seqs: range | list[int],
    signature: int = 0,
    created: int = 100,
) -> Int64s:
    """One member joins these seqs, one after the other in time; returns its slots."""
    seq = i64(*seqs)
    if len(ring.admit(np.array([group]), seq[:1], seq[-1:])):
        ring.make_room(group, int(seq[0]), int(seq[-1]))
    slot = ring.windows.slot(np.full(len(seq), group, np.int32), seq)
    inside = slot >= 0
    signatures: Int32s = np.full(len(seq), signature, np.int32)
    created_at = (created + seq)[inside]
    ring.merge(slot[inside], seq[inside], signatures[inside], created_at, 0, NODES)
    return slot


def take(ring: OpenCollectives, group: int, upto: int) -> RetiredCollectives:
    return ring.take(np.array([group]), i64(upto))


def test_another_signature_is_pointed_out() -> None:
    """The first signature of a slot stays; a row with another one is reported, row by row."""
    ring = open_collectives()
    slot = join(ring, 0, range(1, 4), signature=7)
    other = ring.merge(slot, i64(1, 2, 3), np.array([7, 8, 7], np.int32), i64(1, 1, 1), 0, NODES)
    assert other.tolist() == [False, True, False]
    assert take(ring, 0, 3).signature.tolist() == [7, 7, 7]


def test_a_chunk_grows_with_what_is_open() -> None:
    """A fast member runs far ahead: the chunk grows and nothing that was merged is lost."""
    ring = open_collectives()
    join(ring, 0, range(1, 10))
    join(ring, 1, range(1, 10))
    join(ring, 0, range(10, 1000))
    join(ring, 0, range(1, 1000))
    closed = take(ring, 0, 10_000)
    assert closed.seq.tolist() == list(range(1, 1000))
    assert (closed.joined == 2).all()
    assert take(ring, 1, 9).joined.tolist() == [1] * 9


def test_a_freed_chunk_is_used_again() -> None:
    """The small chunk that a growing group leaves behind serves the next group."""
    ring = open_collectives(groups=3)
    join(ring, 0, range(1, 2 * FIRST_CAPACITY))
    before = ring.slots.count
    join(ring, 1, [5])
    join(ring, 2, range(1, FIRST_CAPACITY + 1))
    assert ring.slots.count <= before + 2 * FIRST_CAPACITY
    assert take(ring, 2, FIRST_CAPACITY).joined.tolist() == [1] * FIRST_CAPACITY


def test_the_oldest_gives_way_at_the_limit() -> None:
    """One member never comes: the window slides on, what it leaves behind is counted."""
    ring = open_collectives(limit_per_group=16)
    join(ring, 0, range(1, 101))
    assert ring.slots.count <= 1 + 16
    assert ring.open == 16
    join(ring, 0, range(101, 111))
    assert ring.open == 16
    assert ring.evicted == 10
    assert take(ring, 0, 110).seq.tolist() == list(range(95, 111))


def test_a_slot_serves_again_as_new() -> None:
    """The window goes round its chunk: the next collective of a slot has nothing of the last."""
    ring = open_collectives()
    join(ring, 0, range(1, FIRST_CAPACITY + 1), created=500)
    take(ring, 0, FIRST_CAPACITY)
    join(ring, 0, range(FIRST_CAPACITY + 1, 2 * FIRST_CAPACITY + 1), created=100)
    closed = take(ring, 0, 2 * FIRST_CAPACITY)
    assert closed.joined.tolist() == [1] * FIRST_CAPACITY
    assert closed.last_created.tolist() == (100 + closed.seq).tolist()


def test_when_the_one_before_was_over() -> None:
    """It is known if the end of the collective before was reported, in this take or an earlier."""
    ring = open_collectives()
    slot = join(ring, 0, range(1, 5))
    ring.complete(slot[[0, 2]], i64(900, 700), 0, np.zeros(2, np.bool_))
    assert take(ring, 0, 2).freed_at.tolist() == [0, 900]
    assert take(ring, 0, 4).freed_at.tolist() == [0, 700]


def test_rows_of_what_is_over_find_no_slot() -> None:
    """A row of a collective that was retired or evicted must not open it again."""
    ring = open_collectives()
    join(ring, 0, range(1, 6))
    take(ring, 0, 3)
    assert join(ring, 0, range(2, 6)).tolist()[:2] == [-1, -1]
    assert take(ring, 0, 5).joined.tolist() == [2, 2]


def test_an_earlier_seq_widens_the_window_downwards() -> None:
    """A member whose ring reaches further back reports collectives before the first known."""
    ring = open_collectives()
    join(ring, 0, range(50, 60))
    join(ring, 0, range(40, 55))
    closed = take(ring, 0, 100)
    assert closed.seq.tolist() == list(range(40, 60))


def test_no_room_for_another_group() -> None:
    """All slots are taken: another group has no accumulators, and no harm is done."""
    ring = open_collectives(limit=FIRST_CAPACITY + 1)
    join(ring, 0, range(1, 5))
    assert join(ring, 1, range(1, 5)).tolist() == [-1] * 4
    assert ring.open == 4
    assert len(take(ring, 1, 10)) == 0
    assert take(ring, 0, 10).seq.tolist() == [1, 2, 3, 4]


def test_an_absurd_seq_costs_no_memory() -> None:
    """A seq near the end of its type moves the window there and evicts the rest."""
    ring = open_collectives()
    join(ring, 0, range(1, 5))
    join(ring, 0, [2**62])
    assert ring.slots.count < 1 << 14
    assert ring.evicted == 4
    assert take(ring, 0, 2**62).seq.tolist() == [2**62]


def test_completion_times_go_where_their_seq_still_is() -> None:
    """The last completion of an open collective is kept; one of a closed slot is ignored."""
    ring = open_collectives()
    join(ring, 0, range(1, 3))
    group = np.zeros(3, np.int32)
    for late in (30, 20):
        seq = i64(1, 2, 3)
        slot = ring.windows.slot(group, seq)
        held = ring.slots.holds(slot, seq)
        times = i64(late, late + 1, late + 2)[held]
        ring.complete(slot[held], times, 0, np.zeros(len(times), np.bool_))
    assert take(ring, 0, 3).last_completed.tolist() == [30, 31]


def test_a_dropped_group_starts_over() -> None:
    """After a member was replaced, low seqs open collectives again."""
    ring = open_collectives()
    join(ring, 0, range(1, 20))
    take(ring, 0, 10)
    ring.drop(np.array([0]))
    assert ring.open == 0
    join(ring, 0, range(1, 3))
    assert take(ring, 0, 5).seq.tolist() == [1, 2]
