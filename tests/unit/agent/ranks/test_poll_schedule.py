"""When a rank is asked for its ring: one scene a test, with time as a number."""

from __future__ import annotations

import pytest

from frd.flight.entry import Status
from frd_agent import tap
from frd_agent.ranks.poll_schedule import PollPolicy, PollSchedule, Why
from frd_agent.ranks.tap_files import TapCounters

POLICY = PollPolicy(ring_entries=1000)


def raw(enqueued: int, completed: int | None = None, group: int = 0) -> TapCounters:
    return {(0, group): Status(enqueued, -1, enqueued if completed is None else completed)}


def dumped(schedule: PollSchedule, counters: TapCounters, now: float, entries: int = 100) -> None:
    schedule.asked(now)
    schedule.dumped(counters, entries)


def due(
    schedule: PollSchedule,
    now: float,
    counters: TapCounters | None,
    age_s: float,
    exact: bool = True,
) -> Why | None:
    """The decision after a look at the counters."""
    schedule.see(counters, age_s, exact=exact, now=now)
    return schedule.due(now)


def schedule_of(counters: TapCounters, now: float = 0.0) -> PollSchedule:
    """A schedule whose first dump has just come."""
    schedule = PollSchedule(POLICY)
    assert due(schedule, now, counters, 0.1, exact=False) is Why.FIRST
    dumped(schedule, counters, now)
    schedule.see(counters, 0.1, exact=True, now=now)
    return schedule


def test_a_ring_that_fills_is_read() -> None:
    """Six hundred of a thousand entries are new: the ring is read before it overruns."""
    schedule = schedule_of(raw(10))
    assert due(schedule, 1.5, raw(609), 0.1) is None
    assert due(schedule, 1.6, raw(610), 0.1) is Why.FILL


def test_entries_of_all_groups_fill_the_same_ring() -> None:
    """Two groups of one recorder share its ring; another recorder has its own."""
    schedule = schedule_of(raw(0))
    moved = {(0, 0): Status(400, -1, 400), (0, 1): Status(201, -1, 201), (1, 5): Status(9, -1, 9)}
    assert due(schedule, 1.5, moved, 0.1) is Why.FILL


def test_rest_over_an_op_in_flight_is_read_once() -> None:
    """A rank enters a collective and stays: after a second it is read, and then not again."""
    schedule = schedule_of(raw(10))
    assert due(schedule, 1.2, raw(11, 10), 0.2) is None
    assert due(schedule, 2.1, raw(11, 10), 0.9) is Why.STILL
    dumped(schedule, raw(11, 10), 2.1)
    for second in range(4, 60):
        schedule.see(raw(11, 10), 0.5, exact=True, now=float(second))
        assert schedule.due(float(second)) is None


def test_a_dump_without_counters_covers_what_was_seen_before_it() -> None:
    """A recorder's dump holds no pg_status: rest is read once nevertheless."""
    schedule = schedule_of(raw(10))
    schedule.see(raw(11, 10), 0.2, exact=True, now=3.0)
    assert schedule.due(4.0) is Why.STILL
    dumped(schedule, {}, 4.0)
    assert due(schedule, 9.0, raw(11, 10), 0.5) is None


def test_rest_with_nothing_in_flight_is_read_too() -> None:
    """A rank has done more and rests: only a dump proves where, but not one for every step."""
    schedule = schedule_of(raw(10))
    dumped(schedule, raw(10), 0.0, entries=2000)
    schedule.see(raw(12), 0.1, exact=False, now=1.5)
    assert schedule.due(2.9) is None
    assert schedule.due(3.0) is Why.STILL


def test_a_moving_rank_is_read_as_often_as_its_ring_is_small() -> None:
    """Refreshing takes half a percent of a core: 2 s for few entries, at most 6.5 s for 2,000."""
    small, large = schedule_of(raw(10)), schedule_of(raw(10))
    dumped(large, raw(10), 0.0, entries=2000)
    for schedule in (small, large):
        assert due(schedule, 1.9, raw(20), 0.1, exact=False) is None
        schedule.see(raw(21), 0.1, exact=False, now=2.0)
    assert small.due(2.0) is Why.REFRESH
    assert large.due(2.0) is None
    assert due(large, 6.5, raw(30), 0.1, exact=False) is Why.REFRESH


def test_stale_counters_lead_to_the_socket_every_few_seconds() -> None:
    """The GIL is held: the tap is silent, the socket is asked now and then every few seconds."""
    schedule = schedule_of(raw(10))
    assert due(schedule, 2.9, raw(10), 1.9) is None
    schedule.see(raw(10), 2.1, exact=True, now=3.1)
    assert schedule.is_stale
    assert schedule.due(3.1) is Why.STALE
    schedule.asked(3.1)
    assert schedule.due(6.0) is None
    assert schedule.due(6.2) is Why.STALE


def test_a_tap_that_publishes_rarely_is_not_stale_between_two_publications() -> None:
    """With a thousand groups publishing takes long, so the tap does it every four seconds."""
    schedule = schedule_of(raw(10))
    schedule.see(raw(10), 5.0, exact=True, now=5.0, every_s=4.0)
    assert not schedule.is_stale


def test_a_rank_without_counters_is_stale() -> None:
    """The counters file cannot be read: the socket is all there is."""
    schedule = schedule_of(raw(10))
    assert due(schedule, 4.0, None, 0.0, exact=False) is Why.STALE


def test_never_twice_within_a_second() -> None:
    """Whatever happens, a rank is asked at most once a second."""
    schedule = schedule_of(raw(10))
    schedule.retry()
    assert due(schedule, 0.9, raw(900), 9.0, exact=False) is None
    assert schedule.due(1.0) is Why.RETRY


def test_a_recorder_without_counters_is_read_regularly() -> None:
    """nccl2 publishes no counters: nothing says when something is new."""
    schedule = schedule_of(raw(10))
    assert due(schedule, 2.0, raw(10), 0.1, exact=False) is Why.REFRESH


def test_a_ring_larger_than_the_default_is_learnt_from_its_dumps() -> None:
    """A user gave the recorder 20,000 entries: a share of that is the mark."""
    schedule = schedule_of(raw(10))
    dumped(schedule, raw(10), 0.0, entries=20_000)
    assert due(schedule, 5.0, raw(9_000), 0.1) is None
    assert due(schedule, 5.5, raw(12_010), 0.1) is Why.FILL


HOOK = (tap.HOOKED, 0)


def hooked(ops: int, *, ring: int = 2_000) -> PollSchedule:
    """A rank with a recorder of a hook that has had so many ops, at second 0."""
    schedule = PollSchedule(PollPolicy())
    schedule.needs_gil, schedule.gil_ring = True, ring
    schedule.see({HOOK: Status(ops - 1, -1, ops - 1)}, 0.0, exact=True, now=0.0)
    return schedule


def test_ranks_that_make_progress_are_held_together() -> None:
    """A full ring of 2,000 entries costs 38 ms: at most every 32 s, at multiples of 32 s of the
    wall clock, whenever the rank began. A smaller one is read more often."""
    schedule = hooked(5_000)
    assert schedule.hold_s == pytest.approx(0.038)
    assert schedule.hold_in_s(1.0, wall_s=1_000_000_032.0 - 20) is None
    assert schedule.hold_in_s(1.0, wall_s=1_000_000_032.0 - 1.5 - 1_000_000_032.0 % 32) == 1.5
    assert hooked(50).hold_in_s(1.0, wall_s=1_000_000_000.3) == pytest.approx(0.7)


def test_a_long_hold_waits_for_a_rank_that_waits() -> None:
    """A ring of 20,000 entries holds the interpreter for 380 ms: not while the rank may make
    progress, neither by the first dump nor for a person; but once it has rested for 3 s."""
    schedule = hooked(100_000, ring=20_000)
    assert schedule.hold_in_s(2.9, wall_s=0.0) is None
    assert not schedule.may_be_held(2.9)
    assert schedule.hold_in_s(3.0, wall_s=0.3) == 0
    assert schedule.may_be_held(3.0)
    schedule.asked(3.0)
    schedule.dumped({HOOK: Status(9, -1, 9)}, 20_000, held_at=3.0)
    assert schedule.hold_in_s(70.0, wall_s=0.3) is None  # 0.5 % of the time: 76 s
    assert schedule.hold_in_s(80.0, wall_s=0.3) == 0


def test_what_was_read_by_the_interpreter_is_not_read_again() -> None:
    """The counters have not moved since: nothing is due that holds the interpreter."""
    schedule = hooked(50)
    assert schedule.due(4.0, 0.0) is Why.FIRST
    schedule.asked(4.0)
    schedule.dumped({HOOK: Status(49, -1, 49)}, 50, held_at=4.0)
    assert schedule.due(8.0, 0.0) is None
    schedule.see({HOOK: Status(52, -1, 50)}, 0.0, exact=False, now=9.0)
    assert schedule.due(9.5, 0.0) is Why.FILL
    assert schedule.due(12.5, 0.0) is Why.STILL
