"""Stamps of a wall clock as raw times: slews, steps either way, stamps that were never shown."""

from __future__ import annotations

import random

import numpy as np
import pytest

from frd.clocks.wall_clock import MOST_READINGS, MOST_SEGMENTS, WallClock
from frd.model import NodeNs, NodeRawNs
from tests.world.clocks import EPOCH, MS, US, Clock, S

EVERY = S // 4
HOUR = 3600 * S


class Host:
    """Both clocks of a host, which are read every quarter of a second."""

    def __init__(self, ppb: int = 0) -> None:
        self.raw, self.wall = Clock(7 * S), Clock(EPOCH, ppb)
        self.known = WallClock()
        self.now = 0
        self.steps: list[int] = []

    def passes(self, length: int) -> None:
        until = self.now + length
        while self.now < until:
            self.now += EVERY
            self.read()

    def read(self) -> None:
        raw, wall = NodeRawNs(self.raw(self.now)), NodeNs(self.wall(self.now))
        if step := self.known.read(raw, wall, 100):
            self.steps.append(step)

    def step(self, jump: int) -> None:
        """Just after the last reading."""
        self.wall.change(self.now + 1, jump=jump)

    def error(self, at: int) -> int:
        """Of the raw time of a stamp that was made at `at`."""
        return self.known.one_to_raw(NodeNs(self.wall(at))) - self.raw(at)


@pytest.mark.parametrize("seed", range(20))
def test_a_stamp_that_is_read_soon_is_right(seed: int) -> None:
    """Slew that changes and steps of any size: a stamp that was made since the reading after the
    last step is right; one that was made before it is, too, where no later time shows the same."""
    dice = random.Random(seed)
    host = Host()
    host.passes(S)
    for _ in range(200):
        jump = 0
        if dice.random() < 0.2:
            jump = round(10 ** dice.uniform(5, 10) * dice.choice((-1, 1)))
            host.wall.change(host.now + 1, ppb=dice.randint(-500_000, 500_000), jump=jump)
        began = host.now
        host.passes(S)
        for at in (dice.randrange(began + 2, host.now + 1) for _ in range(5)):
            assert abs(host.error(at)) < EVERY // 1_000
        before = host.known.one_to_raw(NodeNs(host.wall(began)))
        if jump >= 0:
            assert abs(before - host.raw(began)) < EVERY // 1_000 + US
        assert before <= host.raw(host.now)


def test_a_waiting_stamp_does_not_move() -> None:
    """A stamp of before a step is read before it; afterwards, the same stamp may mean two times."""
    host = Host()
    host.passes(10 * S)
    assert host.error(host.now) == 0
    host.step(-5 * S)
    host.passes(2 * S)
    stamp = host.wall(host.now)
    assert host.steps == [-5 * S]
    assert host.error(host.now) == 0
    # 10 s after the beginning the clock was set to 5 s: a stamp of 6 s may be of 6 s or of 11 s.
    assert host.known.one_to_raw(NodeNs(EPOCH + 6 * S)) == host.raw(11 * S)
    # 8 s by the new segment would be a second in the future.
    assert host.known.one_to_raw(NodeNs(EPOCH + 8 * S)) == host.raw(8 * S)
    assert host.known.one_to_raw(NodeNs(stamp)) == host.raw(host.now)


def test_a_time_that_was_skipped_is_unknown() -> None:
    """The clock is set an hour ahead: half an hour is a time that it never showed."""
    host = Host()
    host.passes(10 * S)
    host.step(HOUR)
    host.passes(10 * S)
    assert host.known.one_to_raw(NodeNs(EPOCH + HOUR // 2)) == 0
    assert host.error(5 * S) == host.error(15 * S) == 0


def test_a_time_that_two_steps_skip_was_shown_before() -> None:
    """Back by an hour and forward by half of it: what the second step skips, the first segment has
    shown."""
    host = Host()
    host.passes(4000 * S)
    host.step(-HOUR)
    host.passes(10 * S)
    host.step(HOUR // 2)
    host.passes(10 * S)
    assert host.error(1000 * S) == 0


def test_a_stamp_of_the_future_is_unknown() -> None:
    """The clock was set back by an hour before the agent began. A few microseconds are now: the
    stamp was read between two clocks."""
    host = Host()
    host.passes(10 * S)
    assert host.known.one_to_raw(NodeNs(EPOCH + HOUR)) == 0
    assert host.known.one_to_raw(NodeNs(host.wall(host.now) + 5 * US)) == host.raw(host.now)
    assert host.known.one_to_raw(NodeNs(1)) == 1  # before the host booted
    assert host.known.one_to_raw(NodeNs(0)) == 0  # unknown


@pytest.mark.parametrize("seed", range(10))
def test_columns_are_single_stamps(seed: int) -> None:
    """Within a nanosecond, for stamps from long before the first reading to the future."""
    dice = random.Random(seed)
    host = Host(dice.randint(-50_000, 50_000))
    for _ in range(5):
        host.passes(20 * S)
        host.step(dice.randrange(-30 * S, 30 * S))
    host.passes(20 * S)
    stamps = [EPOCH + dice.randrange(-300 * S, 300 * S) for _ in range(300)]
    stamps += [0, 1, *(host.wall(host.now) - dice.randrange(10 * S) for _ in range(100))]
    stamps += [EPOCH + dice.choice((-1, 1)) * HOUR for _ in range(10)]
    for stamp, raw in zip(stamps, host.known.to_raw(np.array(stamps)).tolist(), strict=True):
        assert abs(host.known.one_to_raw(NodeNs(stamp)) - raw) <= 1


def test_stamps_of_any_time_are_converted_in_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message has as many as its sender likes: none of them takes a separate call, whether it
    is old, unknown, skipped or of the future. The last two have no time."""
    host = Host()
    for _ in range(MOST_SEGMENTS):
        host.passes(S)
        host.step(10 * S)
    host.passes(S)
    monkeypatch.delattr(WallClock, "one_to_raw")
    monkeypatch.delattr("frd.clocks.wall_clock._Segment.one")
    stamps = np.resize(np.arange(-HOUR, HOUR, S) + EPOCH, 10_000)
    stamps[::3] = 0
    found = host.known.to_raw(stamps)[stamps > 0]
    assert 0 < (found == 0).sum() < len(found)
    assert not host.known.to_raw(stamps)[stamps == 0].any()


@pytest.mark.parametrize("seed", range(20))
def test_a_result_agrees_with_the_readings_around_it_or_is_unknown(seed: int) -> None:
    """Clocks that slew and step, also before the agent began, and stamps of any time: the wall
    clock showed the stamp at the raw time that it counts as, or there is none."""
    dice = random.Random(seed)
    host = Host(dice.randint(-50_000, 50_000))
    for _ in range(dice.randrange(1, 6)):
        host.passes(dice.randrange(S, 30 * S))
        host.step(round(10 ** dice.uniform(6, 12) * dice.choice((-1, 1))))
    host.passes(20 * S)
    steps = [EPOCH + dice.randrange(-400 * S, 400 * S) for _ in range(300)]
    walls = steps + [host.wall(at) for at in range(0, host.now, S)]
    for wall, raw in zip(walls, host.known.to_raw(np.array(walls)).tolist(), strict=True):
        shown = [
            host.wall(at) - host.raw(at)
            for at in (0, EVERY, host.now, *(raw - host.raw(0) + d for d in (-EVERY, 0, EVERY)))
        ]
        assert raw == 0 or min(abs(wall - raw - ahead) for ahead in shown) < 20 * MS
    assert all(host.known.one_to_raw(NodeNs(host.wall(at))) for at in range(EVERY, host.now, S))


def test_a_clock_that_is_read_loosely_makes_no_stamp_one_of_the_future() -> None:
    """The agent is starved: its readings are loose, while the wall clock is slewed. A stamp of
    just now that seems to be milliseconds ahead is of now, and not of the beginning."""
    host = Host()
    host.passes(10 * S)
    host.wall.change(host.now, ppb=400_000)
    host.now += 6 * S
    raw, wall = host.raw(host.now), host.wall(host.now)
    host.known.read(NodeRawNs(raw), NodeNs(wall + 40 * MS), 40 * MS)
    assert host.known.one_to_raw(NodeNs(wall)) == raw


def test_a_long_life_takes_little_space() -> None:
    """An hour in which the slew changes every minute, and steps at its end: the oldest times are
    still known to a few milliseconds."""
    dice = random.Random(3)
    host = Host()
    for _ in range(60):
        host.wall.change(host.now + 1, ppb=dice.randint(-20_000, 20_000))
        host.passes(60 * S)
    (segment,) = host.known._segments
    assert len(segment.raws) <= MOST_READINGS
    assert max(abs(host.error(at)) for at in range(S, host.now, 10 * S)) < 5 * MS
    for _ in range(2 * MOST_SEGMENTS):
        host.step(10 * S)
        host.passes(S)
    assert len(host.known._segments) == MOST_SEGMENTS


def test_a_loose_reading_is_ignored() -> None:
    """The process loses its core between two readings: the clock is known better than that."""
    host = Host()
    host.passes(10 * S)
    raw, wall = host.raw(host.now + EVERY), host.wall(host.now + EVERY)
    assert host.known.read(NodeRawNs(raw), NodeNs(wall + 40 * MS), 40 * MS) == 0
    assert host.known.one_to_raw(NodeNs(wall)) == raw
