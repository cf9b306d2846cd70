"""Readings of a node's two clocks: what is refused, and which steps they show."""

from __future__ import annotations

import random

import pytest

from frd.clocks.wall_clock import SLEW_PPM
from frd.engine.clocks.alignment import FAR_NS
from frd.engine.clocks.exchange import Refusal
from frd.engine.clocks.wall_readings import MOST_READINGS, WallReadings
from tests.world.clocks import EPOCH, MS, Clock, S

HALF = S // 2


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ((0, EPOCH, 100), Refusal.ZERO),
        ((12 * S, 0, 100), Refusal.ZERO),
        ((-1, EPOCH, 100), Refusal.NEGATIVE),
        ((12 * S, EPOCH, -1), Refusal.NEGATIVE),
        ((10 * S, EPOCH, 100), Refusal.BACKWARDS),
        ((12 * S, FAR_NS, 100), Refusal.FUTURE),
        ((12 * S, EPOCH + 2 * S, 2 * S), Refusal.LOOSE),
    ],
)
def test_readings_that_cannot_be(row: tuple[int, int, int], why: Refusal) -> None:
    """The whole message is refused, and nothing changes."""
    wall = WallReadings()
    assert wall.read([10 * S], [EPOCH], [100]) is None
    assert wall.read(*zip((11 * S, EPOCH + S, 100), row, strict=True)) is why
    assert wall.last == (10 * S, EPOCH, 100)


def test_too_many_readings() -> None:
    """More than a message may carry."""
    rows = [(i * S, EPOCH + i * S, 100) for i in range(1, MOST_READINGS + 2)]
    assert WallReadings().read(*zip(*rows, strict=True)) is Refusal.FLOOD


def test_refusals_do_not_last_for_ever() -> None:
    """One absurd reading was believed because it came first; soon it is forgotten."""
    wall = WallReadings()
    wall.read([FAR_NS - 5], [EPOCH], [100])
    refusals = [wall.read([second * S], [EPOCH + second * S], [100]) for second in range(20, 40)]
    assert refusals.count(Refusal.BACKWARDS) == 8
    assert wall.last == (39 * S, EPOCH + 39 * S, 100)


@pytest.mark.parametrize("step", [3 * S, -3 * S, 5 * MS])
def test_steps_are_counted(step: int) -> None:
    """Two readings a second: the wall clock is set before the second message, and within the
    third."""
    wall = WallReadings()
    for halves, steps in (((2, 3), (0, 0)), ((4, 5), (1, 1)), ((6, 7), (1, 2))):
        raws = [half * HALF for half in halves]
        shown = [EPOCH + raw + step * so_far for raw, so_far in zip(raws, steps, strict=True)]
        assert wall.read(raws, shown, [100, 100]) is None
    assert wall.steps == 2
    assert wall.last == (7 * HALF, 7 * HALF + EPOCH + 2 * step, 100)


@pytest.mark.parametrize("seed", range(20))
def test_the_truth_is_within(seed: int) -> None:
    """Slew that changes and steps of any size: after every message the true difference is within
    the interval until the next step, and a slew is no step."""
    dice = random.Random(seed)
    raw, real = Clock(7 * S, dice.randint(-90_000, 90_000)), Clock(EPOCH)
    wall, steps = WallReadings(), 0
    for at in range(S // 4, 50 * S, S // 4):
        if at % (5 * S) == 0:
            jump = dice.choice((-1, 1)) * int(10 ** dice.uniform(6, 9))
            real.change(at - 1, ppb=dice.randint(-500_000, 500_000), jump=jump)
            steps += 1
        slack = dice.choice((100, 100, S // 2))
        wall.read([raw(at)], [real(at)], [slack if at % (5 * S) else 100])
        later = at + dice.randrange(S // 4 - 1)
        known = wall.ahead(raw(later))
        assert known is not None
        assert abs(real(later) - raw(later) - known[0]) <= known[1] + 1
    assert wall.steps == steps


def test_an_old_reading_says_less() -> None:
    """By 601 parts in a million of the time passed."""
    wall = WallReadings()
    assert wall.ahead(S) is None
    wall.read([S], [EPOCH], [100])
    (_, now), (_, later) = wall.ahead(9 * S) or (0, 0), wall.ahead(19 * S) or (0, 0)
    assert later - now == 10 * S * SLEW_PPM // 1_000_000
