"""How far a real clock is ahead of a raw one, between readings and beyond them."""

from __future__ import annotations

import random

import pytest

from frd.engine.clocks.realtime_table import SLEW_PPM, RealtimeTable
from tests.world.clocks import EPOCH, MS, US, Clock, S


def table(raw: Clock, real: Clock, moments: list[int]) -> RealtimeTable[int, int]:
    made: RealtimeTable[int, int] = RealtimeTable()
    for at in moments:
        made.read(raw(at), real(at), 100)
    return made


@pytest.mark.parametrize("seed", range(20))
def test_the_truth_is_within(seed: int) -> None:
    """Slew that changes and steps of any size, at most one between two readings: at every moment
    the true difference is within the interval, before and after a step is seen."""
    dice = random.Random(seed)
    raw, real = Clock(7 * S, dice.randint(-90_000, 90_000)), Clock(EPOCH)
    moments = [i * S // 4 for i in range(1, 200)]
    for i in sorted(dice.sample(range(1, 198), 20)):
        at = moments[i] + dice.randrange(1, S // 4)
        jump = int(10 ** dice.uniform(2, 9)) * dice.choice((-1, 0, 1))
        real.change(at, ppb=dice.randint(-500_000, 500_000), jump=jump)
    readings = table(raw, real, moments)
    for _ in range(500):
        at = dice.randrange(moments[0], moments[-1])
        ahead, loose = readings.ahead(raw(at))
        assert abs(real(at) - raw(at) - ahead) <= loose + 1


def test_steps_are_seen_and_slews_are_not() -> None:
    """A slew of 500 ppm for ten seconds, then a millisecond's step."""
    raw, real = Clock(7 * S), Clock(EPOCH, 500_000)
    real.change(11 * S - 1, jump=MS)
    moments = [i * S // 4 for i in range(4, 44)]
    readings: RealtimeTable[int, int] = RealtimeTable()
    assert not any(readings.read(raw(at), real(at), 100) for at in moments)
    assert readings.read(raw(11 * S), real(11 * S), 100)
    assert not readings.read(raw(12 * S), real(12 * S), 100)


def test_beyond_the_last_reading_the_interval_grows() -> None:
    """By 601 parts in a million of the time passed."""
    readings = table(Clock(7 * S), Clock(EPOCH), [S, 2 * S])
    _, now = readings.ahead(9 * S)
    _, later = readings.ahead(19 * S)
    assert later - now == 10 * S * SLEW_PPM // 1_000_000


def test_calm_readings_are_one() -> None:
    """Four in order without a step leave the last; one that shows a step, or is out of order, and
    none is taken."""
    readings = table(Clock(7 * S), Clock(EPOCH), [S])
    raws, ahead = [9 * S, 10 * S], EPOCH - 7 * S
    assert readings.read_calm(raws, [raw + ahead for raw in raws], [100, 100])
    assert (len(readings), readings.last_raw) == (2, 10 * S)
    for later in ([11 * S, 10 * S], [10 * S, 11 * S]):
        assert not readings.read_calm(later, [raw + ahead for raw in later], [100, 100])
    assert not readings.read_calm([11 * S], [11 * S + ahead + 200 * US], [100])
    assert (len(readings), readings.last_raw) == (2, 10 * S)


def test_memory_is_bounded() -> None:
    """A thousand readings, of which the newest are kept."""
    made: RealtimeTable[int, int] = RealtimeTable(most=16)
    for second in range(1, 1_000):
        made.read(second * S, second * S + EPOCH, 100)
        assert len(made) <= 33
    ahead, loose = made.ahead(990 * S)
    assert ahead == EPOCH
    assert loose < MS
