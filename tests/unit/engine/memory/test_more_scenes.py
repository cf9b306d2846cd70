"""More jobs whose memory is known: the same rank twice, alone, restarted, unread, out of memory."""

from __future__ import annotations

import numpy as np
import pytest

from frd.engine.memory import Memory
from frd.engine.policy import Policy
from frd.model import (
    Float64s,
    Kind,
    MemoryEvent,
    MemoryEventKind,
    NodeNs,
    SeriesInfo,
    SeriesKind,
)
from tests.world.memory import (
    GIB,
    Failure,
    History,
    Job,
    Row,
    S,
    Sampler,
    at,
    ends,
    last_of_each,
    level,
    observe,
    only,
    play,
    plus,
    ramp,
    saw,
    seconds,
    step,
)

CALM = level(40)
POLICY = Policy(memory_warmup_s=10)


def test_a_second_spike_of_the_same_height_is_another_one() -> None:
    """What the rank did in the first one has not become usual."""
    twice = plus(CALM, step(30, 36, end=36), step(50, 36))
    reports = last_of_each(play(Job([Row(0, CALM), Row(1, twice)], 60)))
    assert [(one.ranks, one.common) for one in reports] == [((1,), False)] * 2


def test_a_rise_goes_on_through_dips_that_are_usual() -> None:
    """Memory is high for 4 s of every 16 s, as in a long step; the rise shows in these 4 s only."""

    def busy(t: Float64s) -> Float64s:
        return np.where(t % 16 < 4, 10.0 * GIB, 0.0)

    calm = plus(level(62), busy)
    rows = [Row(0, calm), Row(1, plus(calm, step(70, 6)))]
    assert ends(play(Job(rows, 130))) == [(Kind.MEMORY_SPIKE, "")]


def test_a_rank_alone_is_no_common_cause() -> None:
    """The only rank of a job takes all of its device."""
    incident = only(play(Job([Row(0, plus(CALM, step(30, 37)))], 45)))
    assert (incident.ranks, incident.common) == ((0,), False)


def test_a_rank_that_has_just_started_is_not_the_cause_of_what_happens_to_others() -> None:
    """2 is a new process, which warms up when the memory of 1 begins to rise."""
    rows = [
        Row(0, CALM),
        Row(1, plus(CALM, ramp(30, 4))),
        Row(2, plus(level(1), ramp(29, 8, 35)), sampler=Sampler(start=24)),
    ]
    assert {one.ranks for one in play(Job(rows, 42))} == {(1,)}


def test_moments_without_a_sample_are_not_within_the_band() -> None:
    """A batch has two ranks; one has no sample in the half second in which its memory rose."""
    memory = Memory(POLICY)
    handles = [memory.series(SeriesInfo(rank, SeriesKind.HOST_USED)) for rank in (0, 1)]
    history = History(memory)
    for second in range(40):
        sizes = [2 * GIB] * 10 if second < 30 else [60 * GIB] * 10
        if second == 30:
            sizes[:5] = [-1] * 5
        observe(memory, handles, second + np.arange(10) / 10, [GIB] * 10 + sizes)
        history.advance(at(second + 1))
    rise = only(history.versions).rises[1]
    assert seconds(rise.onset[0]) <= 29.9
    assert seconds(rise.onset[1]) == pytest.approx(30.5, abs=0.01)


def test_a_leak_of_all_ranks_is_common_though_some_windows_end_later() -> None:
    """All ranks leak alike; agents started one after the other, so their windows end apart."""
    leaking = plus(CALM, saw(6, 0.9), ramp(20, 0.02))
    rows = [Row(rank, leaking, sampler=Sampler(start=1.4 * rank)) for rank in range(4)]
    policy = Policy(memory_warmup_s=10, memory_leak_window_s=96)
    reports = play(Job(rows, 150, policy=policy))
    assert reports[0].leak
    assert reports[0].common


def test_the_first_of_two_failures_of_a_rank_counts() -> None:
    """1 runs out of memory, then 2, then 1 again, reported together: 1 was the first."""
    failures = [Failure(30.1, rank=1), Failure(30.3, rank=2), Failure(30.5, rank=1)]
    incident = only(play(Job([Row(rank, CALM) for rank in range(4)], 36, failures)))
    assert (incident.ranks, incident.victims, incident.failed) == ((1,), {2}, {1, 2})


def test_headroom_of_a_device_of_unknown_size_is_unknown() -> None:
    """Its memory rises until an allocation fails; no agent reports its capacity."""
    memory = Memory(POLICY)
    handle = memory.series(SeriesInfo(0, SeriesKind.DEVICE_USED, "GPU-1"))
    history = History(memory)
    for second in range(30):
        size = 2 * GIB + max(0, second - 20) * GIB
        observe(memory, [handle], second + np.arange(10) / 10, [size] * 10, capacity=0)
        history.advance(at(second + 1))
    event = MemoryEvent(0, MemoryEventKind.OOM, NodeNs(0), "GPU-1", GIB)
    memory.event(event, at(29.9), S // 1000, at(30))
    history.advance(at(31))
    assert ends(history.versions) == [(Kind.OOM, "")]
    rise = history.versions[0].rises[0]
    assert (rise.headroom_bytes, rise.exhausted_in_s) == (-1, None)
    assert rise.risen_bytes == pytest.approx(9 * GIB, rel=0.2)
