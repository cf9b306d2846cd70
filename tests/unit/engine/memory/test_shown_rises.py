"""Every rise of a live job, alarming or not: what a view shows while samples come."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from frd.engine.memory.attempt_memory import Memory
from frd.engine.policy import Policy
from frd.engine.views import Attribution, Rise
from frd.model import Confidence, SeriesKind
from tests.world.memory import (
    GIB,
    Curve,
    History,
    Row,
    Sampler,
    at,
    feeds_of,
    level,
    plus,
    ramp,
    seconds,
    step,
)

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
