"""The interval of the offset between two raw clocks, narrowed by the drift that was observed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from frd.clocks.wall_clock import SLEW_PPM
from frd.engine.clocks.alignment import FAR_NS, WANDER_PPM
from frd.engine.clocks.exchange import DRIFT, Exchange, OffsetBounds, Refusal
from frd.engine.clocks.offset_interval import FEW, OffsetInterval
from frd.engine.clocks.wall_readings import MOST_READINGS, WallReadings
from frd.model import NodeRawNs, ServiceRawNs
from tests.world.clocks import EPOCH, MS, US, Clock, S


def exchange(at: int, *, there: int = MS, back: int = MS, ahead: int = 5 * S) -> Exchange:
    """Sent at a node raw time; the service's raw clock is `ahead`."""
    came = at + there
    service = ServiceRawNs(came + ahead)
    return Exchange(NodeRawNs(at), service, service, NodeRawNs(came + back))


def steady(ppm: float = 0.0) -> Callable[[float], float]:
    """Offset in ns after so many seconds."""
    return lambda second: 5 * S + ppm * 1e3 * second


@dataclass
class Pings:
    """Of a node whose raw clock shows true time."""

    offset: Callable[[float], float] = field(default_factory=steady)
    interval: OffsetInterval | None = None
    dice: random.Random = field(default_factory=lambda: random.Random(1))

    def ping(self, second: float, there: int, back: int) -> OffsetInterval:
        sent = round(second * S)
        came = sent + there
        x = exchange(sent, there=there, back=back, ahead=round(self.offset(came / S)))
        if self.interval is None:
            self.interval = OffsetInterval(x)
        else:
            assert self.interval.narrow(x)
        return self.interval

    def run(self, seconds: Iterable[float], back: int = 60) -> OffsetInterval:
        """Ways of 60 µs there and so many back, and 40 µs more on average."""
        for second in seconds:
            ways = (int((way + self.dice.expovariate(1 / 40)) * US) for way in (60, back))
            made = self.ping(second, *ways)
        return made

    def error(self, second: float) -> tuple[int, int]:
        """Distance of the estimate from the truth, and the largest that is claimed."""
        assert self.interval is not None
        offset, half = self.interval.settle(round(second * S))
        return abs(offset - round(self.offset(second))), half


def test_one_exchange() -> None:
    """The middle of what it proves; nothing is known of the drift."""
    one = Pings().ping(10, 30 * US, 90 * US)
    offset, half = one.settle(10 * S)
    assert offset == pytest.approx(5 * S - 30 * US, abs=20)
    assert half == pytest.approx(60 * US, abs=50)
    assert one.drift == 0
    assert one.growth_ppm(10 * S) == pytest.approx(101, abs=0.1)


@pytest.mark.parametrize("ppm", [-100, -1, 0, 20, 100])
def test_a_drift_is_found(ppm: int) -> None:
    """Two minutes on a LAN: a fraction of a part in a million off, and 50 µs are claimed."""
    pings = Pings(steady(ppm))
    made = pings.run(range(1, 121))
    assert made.drift * 1e6 == pytest.approx(ppm, abs=1)
    assert made.growth_ppm(120 * S) < 7
    error, half = pings.error(120)
    assert error < 10 * US
    assert half < 50 * US


def test_a_young_clock_learns_its_drift() -> None:
    """Ten seconds after connecting the drift is known to a tenth of what it may be."""
    pings = Pings(steady(50))
    made = pings.run([*(1 + i / 100 for i in range(8)), *range(2, 12)])
    assert made.growth_ppm(11 * S) < 20
    assert made.drift * 1e6 == pytest.approx(50, abs=5)


def test_a_silence() -> None:
    """For a minute the claim grows by the range of the drift, and by more the longer it lasts; but
    never faster than any clock drifts."""
    pings = Pings(steady(20))
    made = pings.run(range(1, 121))
    halves = [made.settle((120 + ago) * S)[1] for ago in (0, 30, 60, 7200)]
    fastest = made.growth_ppm(120 * S) * US
    assert halves[1] - halves[0] == pytest.approx(30 * fastest + 450 * WANDER_PPM * US, rel=0.05)
    assert halves[2] - halves[0] == pytest.approx(60 * fastest + 1800 * WANDER_PPM * US, rel=0.05)
    assert halves[3] <= 7200 * 101.1 * US
    assert pings.error(180)[0] < pings.error(180)[1] < 600 * US


def test_times_before_the_last_exchange() -> None:
    """A minute ago is known as well as a minute from now."""
    pings = Pings(steady(20))
    made = pings.run(range(1, 121))
    at = made.settle(120 * S)[0]
    before, after = made.settle(60 * S), made.settle(180 * S)
    assert before[1] == pytest.approx(after[1], rel=0.01)
    assert at - before[0] == pytest.approx(after[0] - at, abs=200)
    assert pings.error(60)[0] < before[1]


def test_a_drift_that_jumps_is_noticed() -> None:
    """It contradicts what was observed: the interval is what exchanges prove, until the new drift
    is known as well as the old one was."""
    pings = Pings(lambda second: 50 * US * max(second - 60, 0))
    pings.run(range(1, 61))
    wrong = 0
    for second in range(61, 200):
        pings.run([second])
        error, half = pings.error(second)
        wrong += error > half
        assert error <= half or second < 70
    assert wrong < 6
    made = pings.run([200])
    assert made.drift * 1e6 == pytest.approx(50, abs=1)
    assert pings.error(200)[1] < 55 * US


def test_an_unlucky_minute() -> None:
    """After a quiet minute one way takes milliseconds more: what is known gets old, by what the
    drift may have changed, but is not forgotten."""
    pings = Pings()
    pings.run(range(1, 61))
    pings.run(range(61, 101), back=4_000)
    error, half = pings.error(100)
    assert error <= half < 250 * US


def test_few_round_trips_show_no_least_way() -> None:
    """What each way takes at least is subtracted as soon as the shortest round trip of so many is
    known."""
    pings = Pings()
    halves = []
    for number in range(2 * FEW):
        pings.ping(1 + number / 1_000, 60 * US, 60 * US)
        halves.append(pings.error(1 + number / 1_000)[1])
    assert min(halves[: FEW - 1]) > 59 * US
    assert max(halves[FEW - 1 :]) < 33 * US


def test_software_that_is_faster_than_ours() -> None:
    """Both ways take 8 µs: half of the interval is claimed, and of what was claimed before it was
    known how fast they are, nothing remains."""
    pings = Pings()
    for number in range(100):
        pings.ping(1 + number / 10, 60 * US, 60 * US)
    pings.ping(20, 8 * US, 8 * US)
    error, half = pings.error(20)
    assert error <= half
    assert half == pytest.approx(4 * US, abs=100)


def test_what_is_proven_can_be_contradicted() -> None:
    """A raw clock stood still for a second."""
    pings = Pings()
    made = pings.run(range(1, 61))
    late = exchange(61 * S, there=0, ahead=6 * S)
    assert not made.narrow(late)


def test_it_is_never_wider_than_what_is_proven() -> None:
    """Asked right after each exchange, of present times and of others."""
    dice = random.Random(2)
    pings, bounds = Pings(steady(60)), None
    at = 1.0
    for _ in range(200):
        at += 10 ** dice.uniform(-2, 1)
        there, back = (int(10 ** dice.uniform(4, 7)) for _ in "ab")
        made = pings.ping(at, there, back)
        ahead = round(pings.offset((round(at * S) + there) / S))
        x = exchange(round(at * S), there=there, back=back, ahead=ahead)
        if bounds is None:
            bounds = OffsetBounds(x)
        else:
            assert bounds.narrow(x)
        for later in (0, S, 60 * S):
            low, high = bounds.at(x.t4 + later)
            offset, half = made.settle(x.t4 + later)
            slack = 2 * abs(later) // S * 100 + 100  # whole nanoseconds, drift of the drift's unit
            assert low - slack <= offset - half <= offset + half <= high + slack


# -- what exchanges alone prove --------------------------------------------------------------------


def test_an_exchange_bounds_on_both_sides() -> None:
    """The ping took a millisecond, the pong three: above by the one, below by the other."""
    low, high = OffsetBounds(exchange(100 * S, back=3 * MS)).at(100 * S)
    assert (low, high) == pytest.approx((5 * S - 3 * MS, 5 * S + MS), abs=1 * MS // 1000)


@pytest.mark.parametrize("later", [-60 * S, -S, S, 60 * S])
def test_a_bound_widens_with_the_distance_from_it(later: int) -> None:
    """Before it as after it, by what clocks may drift, and never by less than that."""
    bounds = OffsetBounds(exchange(100 * S))
    low, high = bounds.at(100 * S + later)
    assert high - (5 * S + MS) > abs(later) / DRIFT
    assert (5 * S - MS) - low > abs(later + 2 * MS) / DRIFT - 2 * MS
    assert high - low < 2 * MS + 2 * abs(later) / DRIFT + MS // 100


def test_of_two_exchanges_each_side_has_the_one_that_binds_more() -> None:
    """One was quick there, the other back."""
    bounds = OffsetBounds(exchange(100 * S, there=MS // 10, back=9 * MS))
    assert bounds.narrow(exchange(101 * S, there=9 * MS, back=MS // 10))
    low, high = bounds.at(101 * S)
    assert high - low < 2 * MS // 10 + S // DRIFT + MS // 100


# -- readings of a node's two clocks: what is refused, and which steps they show -------------------


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
