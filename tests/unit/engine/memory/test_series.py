"""The columns below the incidents of memory: what is usual, what rises, and what is a trend."""

from __future__ import annotations

import numpy as np
import pytest
from frd.engine.memory.baseline import BIN_NS, Bins
from frd.engine.memory.onset import Side, current_rises

from frd.engine.memory.walk.series import KINDS, Series
from frd.engine.memory.walk.trend import FLOORS, Trend
from frd.engine.policy import Policy
from frd.model import Int64s, MemoryColumns, SeriesKind
from tests.world.memory import EPOCH, GIB, MIB, Curve, S, level, plus, ramp, step

ROW: Int64s = np.zeros(1, np.int64)
POLICY = Policy(memory_warmup_s=10)


# -- what is usual -------------------------------------------------------------------------------


def bins(*lows_and_highs: tuple[int, int]) -> Bins:
    """One series, and what its bins were."""
    made = Bins()
    made.reserve(1)
    for number, (low, high) in enumerate(lows_and_highs):
        begin, ten = ROW + EPOCH + number * BIN_NS, np.full(1, 10, np.int32)
        made.add(ROW, begin, ROW + low, ROW + high, ten, np.ones(1, np.bool_))
    return made


def test_what_is_newest_is_not_usual_yet() -> None:
    """Ten calm bins, and four in which the series has climbed."""
    usual = bins(*[(5, 10)] * 10, *[(50, 100)] * 4).usual(ROW, ROW)
    assert (usual.low.tolist(), usual.high.tolist(), usual.bins.tolist()) == ([5], [10], [10])


def test_one_low_bin_says_nothing_of_the_usual_low() -> None:
    """The process was restarted in one of them, or its sampler was."""
    usual = bins(*[(50, 60)] * 5, (1, 60), *[(50, 60)] * 8).usual(ROW, ROW)
    assert usual.low.tolist() == [50]


def test_nothing_is_shown_of_a_process_that_was_replaced() -> None:
    """Its bins are forgotten, as values and as what is usual."""
    made = bins(*[(50, 60)] * 8)
    assert made.recent(ROW, 3).tolist() == [[60, 60, 60]]
    made.clear_rows(ROW)
    assert made.recent(ROW, 3).tolist() == [[-1, -1, -1]]
    assert len(made.usual(ROW, ROW).row) == 0


# -- trends --------------------------------------------------------------------------------------


def trend(floors: list[float], *, between: int = 0) -> tuple[float, bool]:
    """Bytes a second and whether that is a leak's trend, of floors ten seconds apart; each time
    the series was higher as well, by `between` or some times that."""
    made = Trend(10.0 * FLOORS)
    made.reserve(1)
    for number, floor in enumerate(floors):
        for part, higher in enumerate((between, 0, between * (number % 3))):
            begin = EPOCH + number * 10 * S + part * 3 * S
            made.add(ROW, ROW + begin, ROW + int(floor) + higher)
    made.add(ROW, ROW + EPOCH + len(floors) * 10 * S, ROW)
    assert made.take_news().tolist() == [0]
    rate, steady = made.measure(ROW)
    return float(rate[0]), bool(steady[0])


@pytest.mark.parametrize("between", [0, 500 * MIB])
def test_floors_that_rise_steadily_are_a_leak(between: int) -> None:
    """A megabyte in ten seconds, whatever the series does above its floor; the ring of floors goes
    round."""
    for count in (FLOORS, FLOORS + 5):
        rate, steady = trend([100 * MIB + number * MIB for number in range(count)], between=between)
        assert rate == pytest.approx(MIB / 10)
        assert steady


def test_floors_that_rise_ever_more_slowly_are_none() -> None:
    """A cache that fills up: in the second half a little less than half as fast as in the first."""
    half = FLOORS // 2
    slowing = [MIB * (n if n < half else half + 0.45 * (n - half)) for n in range(FLOORS)]
    assert not trend(slowing)[1]
    slower = [MIB * (n if n < half else half + 0.6 * (n - half)) for n in range(FLOORS)]
    assert trend(slower)[1]


# -- what rises ----------------------------------------------------------------------------------


def fed(*curves: Curve, until: float, kinds: tuple[SeriesKind, ...] = ()) -> Series:
    """Series of rank 0 on one device, the first one of the whole, read ten times a second."""
    made = Series(POLICY)
    made.reserve(len(curves))
    row: Int64s = np.arange(len(curves))
    for at in row.tolist():
        kind = kinds[at] if kinds else SeriesKind.DEVICE_USED
        made.rank[at], made.kind[at] = 0, KINDS.index(kind)
        made.shared[at] = kind is SeriesKind.DEVICE_USED
        made.pool[at], made.container[at], made.watched[at] = 0, 0, True
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


def test_a_jump_has_no_rate() -> None:
    """A slow rise, with one jump of 20 GiB, which then goes on as before: a second later
    the rate is that of the slow rise."""
    curve = plus(level(10), ramp(30, 0.5), step(33, 20))
    rate = fed(curve, until=34.0).rate[0]
    assert rate == pytest.approx(0.5 * GIB, rel=0.05)


def test_what_filled_a_device_before_is_not_what_the_process_took() -> None:
    """Another process fills the device at 30 s, which is worth a finding; the rank's own rises at
    40 s. The rank's rise is that of the rank's process."""
    device = plus(level(10), step(30, 30), ramp(30, 2, 30), ramp(40, 4))
    own = plus(level(10), ramp(40, 10, 40))
    kinds = (SeriesKind.DEVICE_USED, SeriesKind.PROCESS_USED)
    made = fed(device, own, until=44, kinds=kinds)
    assert made.reportable_at[0] > 0
    made.own[:] = 1
    found = current_rises(made, Side(on_host=False, of_others=False), POLICY)
    assert found.row.tolist() == [1]
    assert (found.hi[0] - EPOCH) / S == pytest.approx(40, abs=0.2)
