"""Readings of a node's two clocks: what is refused, and which steps they show."""

from __future__ import annotations

import pytest

from frd.engine.clocks.alignment import FAR_NS
from frd.engine.clocks.exchange import Refusal
from frd.engine.clocks.wall_readings import MOST_READINGS, WallReadings
from tests.world.clocks import EPOCH, MS, S

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
    assert (wall.last_raw, wall.ahead(10 * S)) == (10 * S, (EPOCH - 10 * S, 101))


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
    assert (wall.last_raw, wall.ahead(39 * S)) == (39 * S, (EPOCH, 101))


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
    assert (wall.last_raw, wall.ahead(7 * HALF)) == (7 * HALF, (EPOCH + 2 * step, 101))
