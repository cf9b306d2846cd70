"""The line in the middle of the widest corridor between upper and lower points."""

from __future__ import annotations

import random

import pytest

from frd.engine.clocks.feasible_line import BATCH_NS, FeasibleLine

S = 1_000_000_000
US = 1_000
STEEPEST = 1e-4


def corridor(points: list[tuple[int, int, int]]) -> FeasibleLine:
    (x, upper, lower), *others = points
    made = FeasibleLine(STEEPEST, x, upper, lower)
    for point in others:
        made.add(*point)
    return made


def test_one_pair_of_points() -> None:
    """The middle, and no slope."""
    one = corridor([(5 * S, 40, -20)])
    assert one.at(5 * S) == one.at(60 * S) == 10
    assert one.slope == 0


@pytest.mark.parametrize("slope", [-9e-5, -1e-6, 0.0, 2e-5, 1e-4])
def test_a_slope_is_found(slope: float) -> None:
    """Two minutes of points at random distances from a line, about as far above as below it."""
    dice = random.Random(1)
    base = 10**18
    points = []
    for second in range(120):
        y = base + int(slope * second * S)
        up, down = (60 * US + int(dice.expovariate(1) * 40 * US) for _ in range(2))
        points.append((second * S, y + up, y - down))
    made = corridor(points)
    assert made.slope == pytest.approx(slope, abs=3e-7)
    assert made.at(120 * S) == pytest.approx(base + slope * 120 * S, abs=10 * US)


def test_no_line_is_steeper_than_allowed() -> None:
    """Points that rise by a part in a thousand."""
    made = corridor([(i * S, i * S // 1000 + US, i * S // 1000 - US) for i in range(100)])
    assert abs(made.slope) <= STEEPEST


def test_a_drift_that_changes_is_followed() -> None:
    """No line fits both the old points and the new ones: the new ones count."""
    bend = 60
    heights = [50 * US * max(i - bend, 0) for i in range(150)]
    made = corridor([(i * S, y + US, y - US) for i, y in enumerate(heights)])
    assert made.slope == pytest.approx(5e-5, rel=0.02)
    assert made.at(150 * S) == pytest.approx(50 * US * (150 - bend), abs=20 * US)


def test_an_unlucky_minute_says_nothing() -> None:
    """After a quiet minute one way takes milliseconds: the line goes on as it was."""
    quiet = [(i * S, 50 * US, -50 * US) for i in range(60)]
    busy = [(i * S, 80 * US, -4_000 * US) for i in range(60, 100)]
    assert abs(corridor(quiet + busy).at(100 * S)) < 10 * US


def test_a_line_that_no_point_cuts_is_fitted_again() -> None:
    """A tight half minute, and then another drift under looser points that stay around the line:
    the new drift is learned though no point proves the old one wrong."""
    made = corridor([(i * S, US, -US) for i in range(30)])
    for second in range(30, 300):
        y = 2 * US * second
        made.add(second * S, y + 2_000 * US, y - 2_000 * US)
    assert made.slope == pytest.approx(2e-6, rel=0.01)
    assert made.at(300 * S) == pytest.approx(600 * US, abs=5 * US)


def test_what_is_old_is_forgotten() -> None:
    """Two tight points, and hours later looser ones around another line."""
    made = corridor([(0, US, -US)])
    for second in range(0, 3600, 5):
        made.add((second + 1) * S + BATCH_NS, 500 * US, 300 * US)
    assert made.at(3600 * S + BATCH_NS) == pytest.approx(400 * US, abs=US)
