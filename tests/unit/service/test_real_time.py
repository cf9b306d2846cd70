"""The service's own clock: the wall's, but never backwards and never still."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from frd.model import AlignedNs
from frd.service.clocks.real_time import RealTime

S = 1_000_000_000
HOUR = 3600 * S


class Host:
    """Its two clocks, which the test moves."""

    def __init__(self) -> None:
        self.wall = 1_790_000_000 * S
        self.raw = 5 * S
        self.now = RealTime(lambda: self.wall, lambda: self.raw)

    def pass_s(self, seconds: float) -> None:
        self.wall += round(seconds * S)
        self.raw += round(seconds * S)


def test_it_is_the_wall_clock() -> None:
    """An uneventful minute, and a step forward by an hour that is followed immediately."""
    host = Host()
    host.pass_s(60)
    assert host.now() == host.wall
    host.wall += HOUR
    assert host.now() == host.wall


def test_it_goes_on_after_a_step_back() -> None:
    """NTP takes an hour back: ten seconds later ten seconds have passed, less four milliseconds."""
    host = Host()
    before = host.now()
    host.wall -= HOUR
    assert host.now() == before
    for _ in range(100):
        host.pass_s(0.1)
        host.now()
    assert host.now() - before == round(9.996 * S)


def test_a_core_that_is_lost_in_between_costs_nothing() -> None:
    """The process is put aside between its two readings: afterwards it is the wall clock again."""
    host = Host()
    pauses: Iterator[float] = iter(())

    def late(clock: Callable[[], int]) -> int:
        host.pass_s(next(pauses, 0.0))
        return clock()

    host.now = RealTime(lambda: late(lambda: host.wall), lambda: late(lambda: host.raw))
    pauses = iter([0.0, 0.1])
    host.pass_s(1)
    host.now()
    host.pass_s(1)
    assert host.now() == host.wall


def test_it_goes_on_from_the_time_of_another_machine() -> None:
    """It is set forward by half a second: it goes on from there, is never still, and an earlier
    time changes nothing."""
    host = Host()
    later = AlignedNs(host.wall + S // 2)
    host.now.at_least(later)
    assert host.now() == later
    host.now.at_least(AlignedNs(later - S))
    host.pass_s(0.1)
    assert later < host.now() <= later + S // 10


def test_it_meets_the_wall_clock_again() -> None:
    """A tenth of a second taken back is made up for within five minutes; time never runs
    backwards."""
    host = Host()
    host.wall -= S // 10
    last = host.now()
    for _ in range(300):
        host.pass_s(1)
        assert host.now() > last
        last = host.now()
    assert last == host.wall
