"""Memory: impossible samples, too many samples, and more ranks than a finding lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from frd.engine.memory.attempt_memory import Memory
from frd.engine.memory.walk import trend
from frd.engine.policy import Policy
from frd.engine.views import Attribution, Rise
from frd.model import (
    Confidence,
    Kind,
    MemoryColumns,
    MemoryEvent,
    MemoryEventKind,
    NodeNs,
    SeriesInfo,
    SeriesKind,
)
from frd.model import SeriesKind as Series
from tests.world.memory import (
    EPOCH,
    GIB,
    Curve,
    History,
    Job,
    Row,
    S,
    Sampler,
    at,
    feeds_of,
    level,
    observe,
    play,
    plus,
    ramp,
    refused_of,
    seconds,
    step,
)


def made(ranks: int, **limits: float) -> Memory:
    """Host memory of so many ranks."""
    memory = Memory(Policy(memory_warmup_s=5, **limits))  # type: ignore[arg-type]  # by name
    for rank in range(ranks):
        memory.series(SeriesInfo(rank, Series.HOST_USED))
    return memory


def out_of_memory(memory: Memory, rank: int, second: float, reported_at: float) -> None:
    event = MemoryEvent(rank, MemoryEventKind.OOM_KILL, NodeNs(0))
    memory.event(event, at(second), S // 100, at(reported_at))


# -- samples -------------------------------------------------------------------------------------


TOMORROW = 86_400.0
TIMES = [0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    ("batches", "used"),
    [
        pytest.param([(TIMES, [1, -2, 3], 1)], 3, id="negative"),
        pytest.param([(TIMES, [1, -1, 3], 0)], 3, id="no sample"),
        pytest.param([(TIMES, [1, 1 << 51, 3], 1)], 3, id="absurd"),
        pytest.param(
            [(TIMES, [-2, 1 << 51, -7], 3), (TIMES, [10, 20, 30], 0)],
            30,
            id="a batch of nonsense takes no place in time",
        ),
        pytest.param(
            [([0.1, 0.3, 0.2, 0.4], [10, 30, 20, 40], 1), ([0.1, 0.3], [11, 31], 0)],
            40,
            id="out of order within a batch, and sent again",
        ),
        pytest.param([([0.4], [40], 0), ([0.4], [41], 0)], 40, id="the last one sent again"),
        pytest.param(
            [
                ([0.1, 0.2, TOMORROW], [10, 20, 30], 1),
                ([TOMORROW + 0.1], [40], 1),
                ([0.3], [50], 0),
            ],
            50,
            id="a clock that was set ahead for a moment",
        ),
    ],
)
def test_samples_that_cannot_be(
    batches: list[tuple[list[float], list[int], int]], used: int
) -> None:
    """They are refused one by one, and all others count."""
    memory = made(1)
    for times, values, refused in batches:
        assert observe(memory, [0], times, values) == refused
    memory.advance(at(1))
    assert memory.view().used.tolist() == [used]


def test_a_hole_within_a_batch_is_a_hole() -> None:
    """No samples for four seconds in the middle of a batch: samples before and after them count."""
    memory = made(1)
    times = [n / 2 for n in range(1, 21)]
    values = [2 * GIB if t < 3 else 3 * GIB if t > 7 else -1 for t in times]
    assert observe(memory, [0], times, values) == 0
    assert memory.advance(at(11)) == []
    assert set(memory.view().recent[0].tolist()) == {-1, 2 * GIB, 3 * GIB}
    assert memory.view().used.tolist() == [3 * GIB]


def test_more_samples_than_may_wait_do_not_wait() -> None:
    """40,000 come before the engine looks again: they are applied, not kept."""
    memory = made(10)
    values = np.full((10, 1_000), 7)
    series, capacity = np.arange(10, dtype=np.int32), np.full(10, 64 * GIB)
    for second in range(4):
        begin = EPOCH + second * S + np.arange(1_000) * (S // 1000)
        memory.observe(MemoryColumns(series, capacity, begin, begin + 1, values), at(60))
        assert memory.view().used.max() == (7 if second == 3 else -1)


def test_series_that_were_turned_away_do_not_hide_others() -> None:
    """A batch has two series, of which one was accepted; a table has one, which was not."""
    memory = made(1)
    assert observe(memory, [-1, 0], [0.1], [5, 6]) == 0
    none = np.array([-1], np.int32)
    table = np.full((1, 1), EPOCH + S)
    assert memory.observe_table(MemoryColumns(none, np.array([64 * GIB]), table, table, table)) == 0
    memory.advance(at(1))
    assert memory.view().used.tolist() == [6]


def test_batches_of_one_series_are_applied_one_after_another() -> None:
    """A sample of the first rank alone, then one of both ranks: all count."""
    memory = made(2)
    observe(memory, [0], [1.0], [40])
    observe(memory, [0, 1], [1.5], [20, 30])
    memory.advance(at(3))
    assert memory.view().used.tolist() == [20, 30]
    assert memory.view().recent[:, -1].tolist() == [40, 30]


def test_a_value_may_be_up_to_four_times_its_own_capacity() -> None:
    """A small device and a large one in a batch: each has its own limit."""
    memory = made(2)
    begin, capacity = np.array([EPOCH + S]), np.array([10, 100]) * GIB
    values = np.array([[41], [90]]) * GIB
    columns = MemoryColumns(np.arange(2, dtype=np.int32), capacity, begin, begin + 1, values)
    assert refused_of(memory, columns, at(2)) == 1
    memory.advance(at(2))
    assert memory.view().used.tolist() == [-1, 90 * GIB]


# -- failures ------------------------------------------------------------------------------------


def test_a_lost_device_is_no_lack_of_memory() -> None:
    """A GPU falls off the bus: that is no finding about memory."""
    memory = made(1)
    memory.event(MemoryEvent(0, MemoryEventKind.DEVICE_LOST, NodeNs(0)), at(1), 0, at(1))
    assert [*memory.advance(at(2)), *memory.advance(at(10))] == []


def test_failures_without_a_rise_are_over_in_the_end() -> None:
    """A kill, and no sample of its rank: it closes when none has followed for a while."""
    memory = made(1)
    out_of_memory(memory, 0, 1, reported_at=1)
    history = History(memory)
    for second in range(2, 310):
        history.advance(at(second))
    assert [(one.kind, one.over) for one in history.versions] == [
        (Kind.OOM, ""),
        (Kind.OOM, "no allocation has failed for 300 s"),
    ]


def test_a_late_failure_of_more_ranks_than_a_finding_lists() -> None:
    """Three ranks fail together and one agent is slow: all may be first, two are described."""
    memory = made(3, max_suspects=2)
    for rank in (0, 1):
        out_of_memory(memory, rank, 1, reported_at=1)
    history = History(memory)
    (first,) = history.advance(at(3))
    out_of_memory(memory, 2, 1, reported_at=3)
    (second,) = history.advance(at(5))
    assert (first.ranks, second.ranks) == ((0, 1), (0, 1, 2))
    assert list(second.rises) == [0, 1]


@pytest.mark.usefixtures("short_leaks")
def test_more_leaks_than_a_finding_lists() -> None:
    """Three of six ranks leak: all are named, two are described."""
    policy = Policy(memory_warmup_s=10, max_suspects=2)
    leaking = plus(level(40), ramp(20, 0.02))
    rows = [Row(rank, leaking if rank < 3 else level(40)) for rank in range(6)]
    reports = play(Job(rows, 200, policy=policy))
    assert {one.ranks for one in reports if one.leak} == {(0, 1, 2)}
    assert {len(one.rises) for one in reports} == {2}


def test_a_leak_that_no_sample_confirms_is_not_named_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process and its whole device leak; the next process is calm and reports no device."""
    monkeypatch.setattr(trend, "LEAK_WINDOW_NS", 48 * S)
    memory = Memory(Policy(memory_warmup_s=5))
    kinds = Series.TORCH_RESERVED, Series.DEVICE_USED
    series = [memory.series(SeriesInfo(0, kind, "GPU-0")) for kind in kinds]
    history = History(memory)
    for second in range(300):
        if second == 90:
            memory.forget(0)
        leaks = second < 90
        used = GIB * 20 + (GIB // 20 * second if leaks else 0)
        reported = series if leaks else series[:1]
        observe(memory, reported, [second], [used] * len(reported), now_s=second)
        history.advance(at(second + 1))
    assert [one.over for one in history.versions] == ["", "", "memory no longer rises"]


# -- samples of many nodes as a table --------------------------------------------------------------


def test_a_table_refuses_what_cannot_be() -> None:
    """Values beyond sense, ends before beginnings, moments that do not rise; the rest is taken.
    A table that is given again is refused."""
    memory = made(1)
    rows, capacity = np.array([0, -1], np.int32), np.array([80 * GIB, 0])
    begin = np.array([[10, 20, 20, 30, 40], [1, 2, 3, 4, 5]]) * S
    end = begin + np.array([[1, 1, 1, -1, 1], [1] * 5])
    values = np.array([[GIB, -7, GIB, GIB, 999 * GIB], [GIB] * 5])
    columns = MemoryColumns(rows, capacity, begin, end, values)
    assert memory.observe_table(columns) == 4
    assert memory.observe_table(columns) == 5
    assert memory.view().used.tolist() == [GIB]


# -- every rise of a live job, alarming or not: what a view shows while samples come ---------------


CALM = level(20)
HIGH, MEDIUM = Confidence.HIGH, Confidence.MEDIUM


def shown(rows: Sequence[Row], until: float) -> list[Rise]:
    """The rises in a view at that time; no finding was opened before."""
    memory = Memory(Policy())
    history, feeds = History(memory), feeds_of(memory, rows, until)
    for second in range(1, int(until) + 2):
        for feed in feeds:
            feed.upto(second, at(second))
        assert history.advance(at(second)) == []
    return list(memory.view().rises)


def ranks(*curves: Curve) -> list[Row]:
    return [Row(rank, curve) for rank, curve in enumerate(curves)]


def suspects(rise: Rise) -> list[tuple[int, Confidence]]:
    return [(one.rank, one.confidence) for one in rise.suspects]


@pytest.mark.parametrize(
    ("takes", "gib"), [(ramp(10, 5, 30), 30), (ramp(8, 0.2, 8), 8), (step(12, 2), 2)]
)
def test_a_rise_in_the_first_minute(takes: Curve, gib: float) -> None:
    """30 GiB of 80 in six seconds, a tenth of the device in forty, or a jump, while the job is
    warming up: shown, and no finding."""
    (rise,) = shown(ranks(level(4), plus(level(4), takes), level(4)), 56)
    assert (suspects(rise), rise.alarming) == ([(1, HIGH)], False)
    assert rise.bytes == pytest.approx(gib * GIB, rel=0.02)


def test_a_start_of_all_ranks_names_none() -> None:
    """They load, each a little more than the one before."""
    (rise,) = shown(ranks(*(ramp(1, 3, 20 + 0.2 * rank) for rank in range(4))), 30)
    assert (rise.ranks, rise.suspects, rise.common_cause) == ((0, 1, 2, 3), (), True)


def test_who_leaves_the_others_behind_at_the_start() -> None:
    """All load; rank 2 goes on when the others have stopped."""
    load = ramp(1, 3, 20)
    common, left = shown(ranks(load, load, plus(load, ramp(9, 4, 25)), load), 30)
    assert common.common_cause
    assert suspects(left) == [(2, MEDIUM)]
    assert left.text.startswith("memory of rank 2 went on to rise when that of ranks 0-1,3 had")
    assert [seconds(when) for when in left.onset] == pytest.approx([9, 9], abs=1.5)


def test_unlike_sizes_are_not_together() -> None:
    """At one moment rank 1 gains 30 GiB, and each of the others one."""
    rises = shown(ranks(*(plus(CALM, step(70, 30 if r == 1 else 1)) for r in range(4))), 80)
    assert [(one.ranks, suspects(one)) for one in sorted(rises, key=lambda one: one.bytes)] == [
        ((0, 2, 3), []),
        ((1,), [(1, MEDIUM)]),
    ]


def test_a_level_that_returns_is_no_rise() -> None:
    """Memory is released for half a minute, as between two phases, and taken again."""
    gone = step(20, -6, end=50)
    assert shown(ranks(CALM, plus(CALM, gone)), 70) == []


def test_a_rise_to_a_level_of_before_is_seen_if_it_goes_beyond() -> None:
    """The same, but it takes two more than before."""
    changes = plus(step(20, -6, end=50), step(50, 2))
    (rise,) = shown(ranks(CALM, plus(CALM, changes)), 70)
    assert [one.rank for one in rise.suspects] == [1]


def test_a_habit_is_not_certain() -> None:
    """Each 25 s rank 1 takes two GiB for five seconds: the first time is unheard of."""
    often = plus(CALM, *(step(70 + 25 * n, 2, end=75 + 25 * n) for n in range(3)))
    rises = shown(ranks(CALM, often, CALM), 150)
    assert [suspects(one) for one in rises] == [[(1, HIGH)], [(1, MEDIUM)], [(1, MEDIUM)]]


def test_at_most_sixteen_are_shown() -> None:
    """Twenty ranks rise one after the other: the last ones."""
    rises = shown(ranks(*(plus(CALM, step(20 + 3 * rank, 1)) for rank in range(20))), 90)
    assert [one.ranks for one in rises] == [(rank,) for rank in range(4, 20)]


def test_what_is_long_over_is_not_shown() -> None:
    """It fell back more than five minutes ago."""
    rows = [Row(0, CALM, sampler=Sampler(period=0.5))]
    rows += [Row(1, plus(CALM, step(70, 3, end=80)), sampler=Sampler(period=0.5))]
    assert len(shown(rows, 200)) == 1
    assert shown(rows, 400) == []


# -- shared devices ------------------------------------------------------------------------------


def on_one_gpu(*torch: Curve, whole: Curve) -> list[Row]:
    """Ranks with one device, whose level all of them read, and what torch holds of each."""
    rows = [Row(rank, whole, device="GPU-0") for rank in range(2)]
    held = [
        Row(rank, curve, SeriesKind.TORCH_RESERVED, "GPU-0") for rank, curve in enumerate(torch)
    ]
    return rows + held


def test_a_shared_device_accuses_by_what_own_processes_hold() -> None:
    """Two ranks share a GPU; torch of rank 1 took what the device shows for both."""
    takes = ramp(70, 0.3, 5)
    rows = on_one_gpu(level(5), plus(level(5), takes), whole=plus(CALM, takes))
    (rise,) = shown(rows, 80)
    assert suspects(rise) == [(1, HIGH)]
    assert (rise.series, rise.attribution) == (SeriesKind.TORCH_RESERVED, Attribution.ALLOCATOR)


def test_a_shared_device_alone_accuses_no_rank() -> None:
    """Nothing is known of the processes on it."""
    assert shown(on_one_gpu(whole=plus(CALM, ramp(70, 0.3, 5))), 80) == []
