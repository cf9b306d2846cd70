"""Progress of a rank between two dumps, and the time up to which it is complete."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from frd.flight.entry import Entry, Status
from frd.model import NodeRawNs
from frd_agent import tap
from frd_agent.recorder.group_progress import GroupWatermarks
from frd_agent.recorder.rank_progress import (
    RankProgress,
    final_progress,
    live_progress,
)
from frd_agent.recorder.transitions import RecorderTracker
from tests.world.entries import T0, Ring, gloo, nccl

DUMPED = NodeRawNs(T0 + 10**9)
PUBLISHED = NodeRawNs(T0 + 2 * 10**9)
BACKENDS = {"gloo": gloo, "nccl": nccl}


def ring_of(*entries: Entry, at: NodeRawNs = DUMPED, **status: tuple[int, int, int]) -> Ring:
    ring = Ring(number=tap.GENERIC)
    ring.read(*entries, at=at, **status)
    return ring


def tracker_of(entries: Iterable[Entry], *counters: int) -> RecorderTracker:
    """After one dump, with these counters of group 0."""
    enqueued, started, completed = counters
    return ring_of(*entries, g0=(enqueued, started, completed)).tracker


def at(tracker: RecorderTracker, *counters: int) -> RankProgress:
    return live_progress([tracker], {(0, 0): Status(*counters)}, PUBLISHED)


def test_unchanged_counters_carry_the_dump_forward() -> None:
    """Nothing has happened since the dump: it is complete up to the publication."""
    tracker = tracker_of([gloo(0, 1), gloo(1, 2, done=False)], 2, -1, 1)
    assert at(tracker, 2, -1, 1) == RankProgress(
        [(0, GroupWatermarks(2, -1, 1, T0 + 1000))], PUBLISHED, True
    )


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_counters_that_moved_claim_nothing(backend: str) -> None:
    """The counters are 5 ahead: they count sends, too, so no watermark follows from them."""
    entries = [BACKENDS[backend](i, i + 1) for i in range(300)]
    tracker = tracker_of(entries, 300, -1, 300)
    assert at(tracker, 305, -1, 305) == RankProgress(
        [(0, GroupWatermarks(300, -1, 300))], DUMPED, False
    )


@pytest.mark.parametrize(
    ("torn", "whole"),
    [
        ([gloo(0, 1)], [gloo(0, 1), gloo(1, 2)]),  # op 2 is counted, its entry is still to come
        (
            [gloo(0, 1), gloo(1, 2, done=False)],
            [gloo(0, 1), gloo(1, 2)],
        ),  # so is the mark of its end
    ],
)
def test_a_dump_between_counter_and_entry(torn: list[Entry], whole: list[Entry]) -> None:
    """The rank is idle, but the dump fell in the middle of its last op: another dump is needed."""
    counters = (2, -1, 2)
    ring = ring_of(*torn, g0=counters)
    assert not ring.tracker.is_whole
    torn_progress = at(ring.tracker, *counters)
    assert (torn_progress.as_of_ns, torn_progress.exact) == (DUMPED, False)
    ring.read(*whole, at=DUMPED + 1, g0=counters)
    assert at(ring.tracker, *counters) == RankProgress(
        [(0, GroupWatermarks(2, -1, 2))], PUBLISHED, True
    )


def test_counters_ahead_of_entries_in_two_dumps_are_so_for_good() -> None:
    """Op 2 hangs, op 3 is over, and a send was counted: the second dump is complete."""
    entries, counters = [gloo(0, 1), gloo(1, 2, done=False), gloo(2, 3)], (4, -1, 3)
    ring = ring_of(*entries, g0=counters)
    ring.read(*entries, at=DUMPED, g0=counters)
    assert at(ring.tracker, *counters) == RankProgress(
        [(0, GroupWatermarks(3, -1, 1, T0 + 1000))], PUBLISHED, True
    )


def test_the_first_op_of_a_group_is_counted_before_it_is_seen() -> None:
    """A dump has counters of a group but no entry: the group is not known to be idle."""
    ring = ring_of(gloo(0, 1), g0=(1, -1, 1), g7=(1, -1, 0))
    assert not ring.tracker.is_whole


def test_a_group_that_no_entry_has_named_yet() -> None:
    """A new process group has counters, and the dump is older: the dump is not complete."""
    tracker = tracker_of([gloo(0, 1)], 1, -1, 1)
    raw = {(0, 0): Status(1, -1, 1), (0, 5): Status(1, -1, 0)}
    assert live_progress([tracker], raw, PUBLISHED).as_of_ns == DUMPED


def test_a_group_that_was_destroyed_is_not_waited_for() -> None:
    """The tap has no counters of a closed group any more; the others have not moved since."""
    tracker = ring_of(gloo(0, 1), gloo(1, 1, pg_id=1), g0=(1, -1, 1), g1=(1, -1, 1)).tracker
    tracker.close(lambda name: name == "1")
    progress = at(tracker, 1, -1, 1)
    assert (progress.as_of_ns, progress.exact) == (PUBLISHED, True)


def test_without_counters_the_dump_is_all() -> None:
    """The tap cannot be read, or the recorder has no counters: progress is as of the dump."""
    tracker = tracker_of([gloo(0, 1)], 1, -1, 1)
    assert live_progress([tracker], None, PUBLISHED) == RankProgress(
        [(0, GroupWatermarks(1, -1, 1))], DUMPED, False
    )
    tracker.number = None
    assert live_progress([tracker], {}, PUBLISHED).exact is False


def test_several_recorders_are_known_as_far_as_the_worst_of_them() -> None:
    """One recorder is idle, the other has moved: progress is as of the dump of the other."""
    good = tracker_of([gloo(0, 1)], 1, -1, 1)
    bad = tracker_of([gloo(0, 1), gloo(1, 2)], 2, -1, 2)
    bad.number = tap.NCCL
    raw = {(0, 0): Status(1, -1, 1), (1, 0): Status(9, -1, 9)}
    progress = live_progress([good, bad], raw, PUBLISHED)
    assert (progress.as_of_ns, progress.exact) == (DUMPED, False)


def test_a_dump_newer_than_the_counters_counts() -> None:
    """The GIL is held, but the socket answers: progress is as of the dump."""
    tracker = tracker_of([gloo(0, 1), gloo(1, 2)], 2, -1, 2)
    progress = live_progress([tracker], {(0, 0): Status(1, -1, 1)}, NodeRawNs(DUMPED - 10**9))
    assert progress.watermarks == [(0, GroupWatermarks(2, -1, 2))]
    assert progress.as_of_ns == DUMPED


# -- the end -------------------------------------------------------------------------------------


def last(tracker: RecorderTracker, *counters: int) -> RankProgress | None:
    return final_progress([tracker], {(0, 0): Status(*counters)}, PUBLISHED)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_last_counters_of_a_process_show_how_far_it_came(backend: str) -> None:
    """Ten more collectives came after the last dump, then the process ended."""
    tracker = tracker_of([BACKENDS[backend](i, i + 1) for i in range(30)], 30, -1, 30)
    assert last(tracker, 40, -1, 40) == RankProgress(
        [(0, GroupWatermarks(40, -1, 40))], PUBLISHED, True
    )
    assert last(tracker, 30, -1, 30) == RankProgress(
        [(0, GroupWatermarks(30, -1, 30))], PUBLISHED, True
    )
    inside = last(tracker, 40, -1, 39)
    assert inside is not None
    assert inside.watermarks == [(0, GroupWatermarks(40, -1, 39, PUBLISHED))]


def test_the_last_counters_do_not_separate_sends_from_collectives() -> None:
    """Gloo has counted a send among the ops of the group, so later progress is unknown."""
    tracker = tracker_of([gloo(0, 1), gloo(1, 2, op_id=3)], 3, -1, 3)
    assert last(tracker, 5, -1, 5) is None
    assert last(tracker, 3, -1, 3) == RankProgress(
        [(0, GroupWatermarks(2, -1, 2))], PUBLISHED, True
    )


def test_a_group_that_no_dump_has_shown_leaves_the_end_unknown() -> None:
    """A group was created and used after the last dump."""
    tracker = tracker_of([gloo(0, 1)], 1, -1, 1)
    raw = {(0, 0): Status(1, -1, 1), (0, 1): Status(4, -1, 4)}
    assert final_progress([tracker], raw, PUBLISHED) is None
