"""Samples between the sampler and a stream: columns, bounds, reconnects. No thread, no time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from frd.model import MemoryColumns, MemoryEvent, MemoryEventKind, NodeNs, SeriesInfo, SeriesKind
from frd_agent.memory.samples import Samples
from frd_agent.memory.target import ABSURD_BYTES, NO_SAMPLE, Reading

GIB = 1 << 30
S = 1_000_000_000
START = 1_790_000_000 * S
HOST = [SeriesInfo(rank, SeriesKind.HOST_USED) for rank in range(4)]
TENSORS = SeriesInfo(0, SeriesKind.TORCH_ALLOCATED, "GPU-1")


def samples(max_bytes: int = 1 << 20, max_moments: int = 1000) -> Samples:
    known = [*HOST, TENSORS]
    return Samples(max_bytes, known.index, max_moments)


def reading(series: SeriesInfo, value: int, attempt: int = 0, capacity: int = 64 * GIB) -> Reading:
    return Reading(attempt, series, capacity, value)


def add(into: Samples, at: int, *readings: Reading, late: bool = False) -> bool:
    return into.add(START + at, START + at + 10, readings, late=late)


def batches(of: Samples) -> list[MemoryColumns]:
    return list(iter(of.next_batch, None))


def only(items: Iterable[MemoryColumns]) -> MemoryColumns:
    (item,) = items
    return item


def test_moments_become_columns() -> None:
    """Two ranks at three moments, the second unread once: one batch, -1 where nothing was read."""
    kept = samples()
    add(kept, 0, reading(HOST[0], 5), reading(HOST[1], 6))
    add(kept, 100, reading(HOST[0], 7))
    add(kept, 200, reading(HOST[1], 9), reading(HOST[0], 8))
    batch = only(batches(kept))
    assert batch.series.tolist() == [0, 1]
    assert batch.capacity.tolist() == [64 * GIB, 64 * GIB]
    assert batch.begin_ns.tolist() == [START, START + 100, START + 200]
    assert batch.end_ns.tolist() == [START + 10, START + 110, START + 210]
    assert batch.values.tolist() == [[5, 7, 8], [6, NO_SAMPLE, 9]]
    assert batches(kept) == []


def test_ranks_of_several_attempts_never_share_a_batch() -> None:
    """Two jobs on one node, sampled at the same moments."""
    kept = samples()
    for at in (0, 100):
        add(kept, at, reading(HOST[0], at, attempt=0), reading(HOST[1], at, attempt=1))
    assert [(b.series.tolist(), b.values.tolist()) for b in batches(kept)] == [
        ([0], [[0, 100]]),
        ([1], [[0, 100]]),
    ]


def test_another_rank_or_another_limit_begins_another_batch() -> None:
    """What a batch says of its columns holds for all of its moments."""
    kept = samples()
    add(kept, 0, reading(HOST[0], 1))
    add(kept, 100, reading(HOST[0], 2), reading(HOST[1], 3))
    add(kept, 200, reading(HOST[0], 4, capacity=8 * GIB))
    first, second, third = batches(kept)
    assert (first.series.tolist(), first.values.tolist()) == ([0], [[1]])
    assert sorted(second.series.tolist()) == [0, 1]
    assert third.capacity[third.series.tolist().index(0)] == 8 * GIB


def test_columns_of_a_rank_that_is_gone_are_gone() -> None:
    """Its last moments still go out; the next ones know nothing of it."""
    kept = samples()
    add(kept, 0, reading(HOST[0], 1), reading(HOST[1], 2))
    kept.follow({0}, {1})
    assert kept.latest() == {HOST[1]: 2}
    add(kept, 100, reading(HOST[1], 3))
    assert [batch.series.tolist() for batch in batches(kept)] == [[0, 1], [1]]
    kept.follow((), ())
    assert kept.latest() == {}


def test_values_that_cannot_be_true_are_not_sent() -> None:
    """A driver reports a pebibyte, or a negative size; a moment with no other values is dropped."""
    kept = samples()
    add(kept, 0, reading(HOST[0], ABSURD_BYTES), reading(HOST[1], -7), reading(HOST[2], 1))
    add(kept, 100, reading(HOST[0], 2**64 - 1))
    assert only(batches(kept)).values.tolist() == [[NO_SAMPLE], [NO_SAMPLE], [1]]


def test_moments_rise_and_late_ones_stand_apart() -> None:
    """A part that is late is sent in columns of the late; one of the same moment again is not."""
    kept = samples()
    add(kept, 100, reading(HOST[0], 1))
    add(kept, 50, reading(HOST[1], 2), late=True)
    add(kept, 100, reading(HOST[0], 3))
    add(kept, 200, reading(HOST[0], 4))
    add(kept, 40, reading(HOST[1], 5), late=True)
    add(kept, 60, reading(HOST[1], 6), late=True)
    main, late = batches(kept)
    assert (main.series.tolist(), main.values.tolist()) == ([0], [[1, 4]])
    assert (late.series.tolist(), late.values.tolist()) == ([1], [[2, 6]])


def test_the_newest_value_is_shown_late_or_not() -> None:
    """A series is read late once, on time afterwards, and late again: always the last value."""
    kept = samples()
    for at, late in ((0, True), (100, False), (200, True)):
        add(kept, at, reading(HOST[0], at), reading(HOST[1], 7), late=late)
        assert kept.latest() == {HOST[0]: at, HOST[1]: 7}


def test_a_jump_is_urgent_and_the_swing_of_tensors_is_not() -> None:
    """64 MiB, or a 64th of what there is; measured from the last jump, so that a slow climb is
    reported now and then."""
    kept = samples()
    assert not add(kept, 0, reading(HOST[0], GIB, capacity=4 * GIB), reading(TENSORS, 0))
    assert not add(kept, 1, reading(TENSORS, 30 * GIB))
    for step in range(1, 65):
        assert not add(kept, 1 + step, reading(HOST[0], GIB + (step << 20), capacity=4 * GIB))
    assert not kept.urgent
    assert add(kept, 70, reading(HOST[0], GIB + (65 << 20), capacity=4 * GIB))
    assert kept.urgent
    batches(kept)
    assert not kept.urgent


def test_a_jump_is_reported_once() -> None:
    """The value stays where it has jumped to, and jumps back later."""
    kept = samples()
    jumps = [GIB, 3 * GIB, 3 * GIB, 3 * GIB + 1, GIB]
    jumped = [add(kept, at, reading(HOST[0], value)) for at, value in enumerate(jumps)]
    assert jumped == [False, True, False, False, True]


def test_what_is_passed_over_keeps_its_turn() -> None:
    """A batch is of one attempt and ends where its columns change: moments of the other attempt
    that came before that go out before those that came after it."""
    kept = samples()
    for at in range(4):
        add(kept, at, reading(HOST[at // 2], at, attempt=0), reading(HOST[2], at, attempt=1))
    begun = [(b.series.tolist(), b.begin_ns.tolist()) for b in batches(kept)]
    of_other = [begin for series, begins in begun if series == [2] for begin in begins]
    assert of_other == [START + at for at in range(4)]


def test_what_is_forgotten_takes_no_room() -> None:
    """There is room for 50 moments, and an agent whose ranks live for ten seconds now and then:
    the moments of each are kept as long as those of the first."""
    kept = samples(max_bytes=50 * (256 + 8))
    for start in range(0, 1000, 100):
        for second in range(start, start + 10):
            add(kept, second * S, reading(HOST[0], second))
            batches(kept)
        assert (kept.moments, kept.dropped) == (10, 0)


def test_what_was_sent_of_late_goes_out_again_on_a_new_stream() -> None:
    """Writes succeed into a network that is cut; 10 s later the agent knows. Events are kept for a
    minute, because a replica that is cut off from its cluster hears agents for longer."""
    kept = samples()
    events = [MemoryEvent(0, MemoryEventKind.OOM, NodeNs(START + at * S)) for at in (-5, 5)]
    for event in events:
        kept.event(event)
    kept.next_events()
    for second in range(60):
        add(kept, second * S, reading(HOST[0], second))
        batches(kept)
    add(kept, 60 * S, reading(HOST[0], 60))
    kept.rewind()
    assert only(batches(kept)).values.tolist() == [list(range(49, 61))]
    again = kept.next_events()
    assert again is not None
    assert (again.events, kept.dropped) == ((events[1],), 0)


def test_events_go_out_once_a_stream() -> None:
    """They do not wait for the next round; a new stream hears those of late again."""
    kept = samples()
    event = MemoryEvent(0, MemoryEventKind.OOM, NodeNs(START), "GPU-1", GIB)
    kept.event(event)
    assert kept.urgent
    sent = kept.next_events()
    assert sent is not None
    assert sent.events == (event,)
    assert kept.next_events() is None
    kept.rewind()
    assert kept.next_events() == sent


def test_nothing_grows_past_its_bounds() -> None:
    """A service that is away for an hour: the oldest moments go, and are counted. If another job
    appears and takes half of the room, so do more of them."""
    for kept in (samples(max_moments=50), samples(max_bytes=50 * (256 + 8))):
        for at in range(200):
            add(kept, at, reading(HOST[0], at))
            kept.event(MemoryEvent(0, MemoryEventKind.OOM, NodeNs(START + at)))
        assert (kept.moments, kept.dropped) == (50, 150)
        kept.limit(25 * (256 + 8))
        assert (kept.moments, kept.dropped) == (25, 175)
        assert only(batches(kept)).values.tolist() == [list(range(175, 200))]


def test_what_was_sent_makes_room_first() -> None:
    """Moments that the service probably has are not counted as lost."""
    kept = samples(max_moments=10)
    for at in range(10):
        add(kept, at, reading(HOST[0], at))
    batches(kept)
    for at in range(10, 20):
        add(kept, at, reading(HOST[0], at))
    assert (kept.moments, kept.dropped) == (10, 0)


def test_a_backlog_comes_in_messages_of_bounded_size() -> None:
    """After half an hour without a service a message is a quarter of a mebibyte at most."""
    kept = samples(max_bytes=1 << 24, max_moments=40_000)
    for at in range(18_000):
        add(kept, at, *(reading(series, at) for series in HOST))
    sizes = [batch.values.nbytes for batch in batches(kept)]
    assert max(sizes) <= 256 * 1024
    assert sum(sizes) == 18_000 * 4 * 8
    assert np.diff(sizes[:-1]).tolist() == [0] * (len(sizes) - 2)
