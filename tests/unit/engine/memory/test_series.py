"""The columns below the incidents of memory: what is usual, what rises, and what is a trend."""

from __future__ import annotations

import numpy as np
import pytest

from frd.engine.memory.walk.levels import Levels
from frd.engine.memory.walk.series import KINDS, Series
from frd.engine.memory.walk.trend import FLOORS, LEAK_WINDOW_NS, Trend
from frd.engine.policy import Policy
from frd.model import Int64s, MemoryColumns, SeriesInfo, SeriesKind
from tests.world.memory import EPOCH, GIB, MIB, Curve, S, level, plus, ramp, step

ROW: Int64s = np.zeros(1, np.int64)
POLICY = Policy(memory_warmup_s=10)


# -- what is usual -------------------------------------------------------------------------------


def levels(*values: int, gap: int = S) -> Levels:
    """One series, and its samples."""
    made = Levels()
    made.reserve(1)
    for value in values:
        made.add(ROW, ROW + value, ROW + value, ROW + 1)
        if len(made.full(ROW)):
            made.complete(ROW, ROW + gap)
    return made


def test_what_is_newest_is_not_usual_yet() -> None:
    """Thirty calm samples, and twenty in which the series has climbed."""
    usual = levels(*[5, 10] * 15, *range(50, 70)).usual(ROW, 1)
    assert (usual.low.tolist(), usual.high.tolist(), usual.former.tolist()) == ([5], [10], [-1])


def test_one_low_sample_says_nothing_of_the_usual_low() -> None:
    """The sampler read nothing, once."""
    assert levels(*[50, 60] * 4, 1, *[50, 60] * 11).usual(ROW, 1).low.tolist() == [50]


def test_a_minute_at_ten_a_second_takes_no_more_cells() -> None:
    """Samples are known one by one at first, and later in cells of so many that they show a minute
    and no more than two."""
    made = levels(*range(2_000), gap=S // 10)
    usual = made.usual(ROW, 1)
    assert made.span[0] == 32
    assert 2_000 - 1_200 < usual.low[0] < 2_000 - 400
    assert 1_600 < usual.high[0] < 1_980


def test_a_level_that_was_left_is_remembered() -> None:
    """Memory is released, and stays so for longer than it ever did: the level is the lower one. It
    comes back: both are usual, and a dip lasts as long as it did."""
    made = levels(*[90] * 20, *[10] * 25, gap=S // 100)
    made.leave(ROW, 50, 1)
    usual = made.usual(ROW, 1)
    assert (usual.high.tolist(), usual.former.tolist()) == ([10], [90])
    made.come_back(ROW)
    assert made.usual(ROW, 1).high.tolist() == [90]


# -- trends --------------------------------------------------------------------------------------


def trend(floors: list[float], *, between: int = 0) -> tuple[float, bool]:
    """Bytes from floor to floor and whether that is a leak's trend; each time the series was higher
    as well, by `between` or some times that."""
    made, apart = Trend(), LEAK_WINDOW_NS // FLOORS
    made.reserve(1)
    for number, floor in enumerate(floors):
        for part, higher in enumerate((between, 0, between * (number % 3))):
            begin = EPOCH + number * apart + part * apart // 3
            made.add(ROW, ROW + begin, ROW + int(floor) + higher)
    made.add(ROW, ROW + EPOCH + len(floors) * apart, ROW)
    assert made.take_news().tolist() == [0]
    rate, steady = made.measure(ROW)
    return float(rate[0]) * apart / S, bool(steady[0])


@pytest.mark.parametrize("between", [0, 500 * MIB])
def test_floors_that_rise_steadily_are_a_leak(between: int) -> None:
    """A megabyte each, whatever the series does above its floor; the ring of floors goes round."""
    for count in (FLOORS, FLOORS + 5):
        rate, steady = trend([100 * MIB + number * MIB for number in range(count)], between=between)
        assert rate == pytest.approx(MIB)
        assert steady


def test_floors_that_rise_ever_more_slowly_are_none() -> None:
    """A cache that fills up: in the second half a little less than half as fast as in the first."""
    half = FLOORS // 2
    slowing = [MIB * (n if n < half else half + 0.45 * (n - half)) for n in range(FLOORS)]
    assert not trend(slowing)[1]
    slower = [MIB * (n if n < half else half + 0.6 * (n - half)) for n in range(FLOORS)]
    assert trend(slower)[1]


# -- what rises ----------------------------------------------------------------------------------


def fed(*curves: Curve, until: float, kinds: tuple[SeriesKind, ...] = (), own: int = -1) -> Series:
    """Series of rank 0 on one device, the first one of the whole, read ten times a second."""
    made = Series(POLICY)
    made.reserve(len(curves))
    row: Int64s = np.arange(len(curves))
    for at in row.tolist():
        kind = kinds[at] if kinds else SeriesKind.DEVICE_USED
        made.rank[at], made.kind[at] = 0, KINDS.index(kind)
        made.shared[at] = kind is SeriesKind.DEVICE_USED
        made.pool[at], made.container[at], made.watched[at] = 0, 0, True
        made.own[at] = own
        made.infos.append(SeriesInfo(0, kind, "GPU-0"))
    capacity = np.full(len(curves), 80 * GIB)
    for second in np.arange(0, until, 0.5):
        times = second + np.arange(5) / 10
        begin = np.tile(EPOCH + np.round(times * S).astype(np.int64), (len(curves), 1))
        values = np.stack([curve(times).astype(np.int64) for curve in curves])
        made.apply(MemoryColumns(row, capacity, begin, begin + S // 1000, values))
    return made


def test_a_rise_that_says_something_is_a_share_of_what_there_is() -> None:
    """Of 80 GiB 64 MiB say nothing; of a device of 4 GiB they do."""
    made = fed(level(40), until=1)
    assert made.visible[0] == 80 * GIB // 200
    later = ROW[None] + EPOCH + 2 * S
    made.apply(MemoryColumns(ROW, ROW + 4 * GIB, later, later, ROW[None] + GIB))
    assert made.visible[0] == POLICY.memory_min_rise_bytes


def test_what_filled_a_device_before_is_not_what_the_process_took() -> None:
    """Another process fills the device at 30 s, which is worth a finding; the rank's own rises at
    40 s. The rank's rise is that of the rank's process."""
    device = plus(level(10), step(30, 30), ramp(30, 2, 30), ramp(40, 4))
    own = plus(level(10), ramp(40, 10, 40))
    kinds = (SeriesKind.DEVICE_USED, SeriesKind.PROCESS_USED)
    made = fed(device, own, until=44, kinds=kinds, own=1)
    assert made.reportable_at[0] > 0
    (found,) = [one for one in made.take_rises() if one.is_rise]
    assert found.kind is SeriesKind.PROCESS_USED
    assert (found.hi - EPOCH) / S == pytest.approx(40, abs=0.2)
