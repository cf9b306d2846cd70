"""Progress of a rank between two dumps, and the time up to which it is complete."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs

from frd.flight.entry import Dump, Entry, Status
from frd.model import AttemptKey, NodeNs
from frd_agent import tap
from frd_agent.ranks.tap_files import TapGroup
from frd_agent.recorder.group_progress import GroupWatermarks
from frd_agent.recorder.naming import Naming
from frd_agent.recorder.rank_progress import (
    RankProgress,
    final_progress,
    live_progress,
)
from frd_agent.recorder.transitions import RecorderTracker
from frd_agent.uplink.dictionary import Dictionary

T0 = 1_700_000_000_000_000_000
JOB = AttemptKey("job", 0)
DUMPED = NodeNs(T0 + 10**9)
PUBLISHED = NodeNs(T0 + 2 * 10**9)


def op(
    record_id: int, seq: int, *, op_id: int = 0, backend: str = "gloo", retired: bool = True
) -> Entry:
    return Entry(
        record_id=record_id,
        process_group=("0", "default_pg"),
        profiling_name=f"{backend}:all_reduce",
        collective_seq_id=seq,
        pg_id=0,
        op_id=op_id or seq,
        time_created_ns=T0 + record_id,
        state="completed" if retired and backend != "gloo" else "scheduled",
        retired=retired,
    )


def naming() -> Naming:
    dictionary = Dictionary()
    names = Naming(dictionary, dictionary.attempt(JOB, 0))
    names.replace([TapGroup("0", (0, 1), "default_pg")])
    return names


def dump(entries: Sequence[Entry], status: Status) -> Dump:
    return Dump("2.10", entries=tuple(entries), status={0: status})


def tracker_of(entries: Sequence[Entry], status: Status) -> RecorderTracker:
    tracker = RecorderTracker(tap.GENERIC)
    tracker.apply(dump(entries, status), DUMPED, naming())
    return tracker


def at(tracker: RecorderTracker, status: Status) -> RankProgress:
    return live_progress([tracker], {(0, 0): status}, PUBLISHED)


def test_unchanged_counters_carry_the_dump_forward() -> None:
    """Nothing has happened since the dump: it is complete up to the publication."""
    tracker = tracker_of([op(0, 1), op(1, 2, retired=False)], Status(2, -1, 1))
    assert at(tracker, Status(2, -1, 1)) == RankProgress(
        [(0, GroupWatermarks(2, -1, 1, T0 + 1))], PUBLISHED, True
    )


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_counters_that_moved_claim_nothing(backend: str) -> None:
    """The counters are 5 ahead: they count sends, too, so no watermark follows from them."""
    entries = [op(i, i + 1, backend=backend) for i in range(300)]
    tracker = tracker_of(entries, Status(300, -1, 300))
    assert at(tracker, Status(305, -1, 305)) == RankProgress(
        [(0, GroupWatermarks(300, -1, 300))], DUMPED, False
    )


def test_what_gloo_completed_last_is_not_all_that_it_completed() -> None:
    """Op 2 hangs in one of Gloo's threads while another thread ends op 3: op 2 is still open."""
    entries = [op(0, 1), op(1, 2, retired=False), op(2, 3, retired=False)]
    tracker = tracker_of(entries, Status(3, -1, 1))
    assert at(tracker, Status(3, -1, 3)).watermarks == [(0, GroupWatermarks(3, -1, 1, T0 + 1))]


@pytest.mark.parametrize(
    ("torn", "whole"),
    [
        ([op(0, 1)], [op(0, 1), op(1, 2)]),  # op 2 is counted, its entry is still to come
        ([op(0, 1), op(1, 2, retired=False)], [op(0, 1), op(1, 2)]),  # so is the mark of its end
    ],
)
def test_a_dump_between_counter_and_entry(torn: list[Entry], whole: list[Entry]) -> None:
    """The rank is idle, but the dump fell in the middle of its last op: another dump is needed."""
    tracker, status = RecorderTracker(tap.GENERIC), Status(2, -1, 2)
    names = naming()
    tracker.apply(dump(torn, status), DUMPED, names)
    assert not tracker.is_whole
    assert (at(tracker, status).as_of_ns, at(tracker, status).exact) == (DUMPED, False)
    tracker.apply(dump(whole, status), NodeNs(DUMPED + 1), names)
    assert at(tracker, status) == RankProgress([(0, GroupWatermarks(2, -1, 2))], PUBLISHED, True)


def test_counters_ahead_of_entries_in_two_dumps_are_so_for_good() -> None:
    """Op 2 hangs, op 3 is over, and a send was counted: the second dump is complete."""
    entries, status = [op(0, 1), op(1, 2, retired=False), op(2, 3)], Status(4, -1, 3)
    tracker, names = RecorderTracker(tap.GENERIC), naming()
    for _ in range(2):
        tracker.apply(dump(entries, status), DUMPED, names)
    assert at(tracker, status) == RankProgress(
        [(0, GroupWatermarks(3, -1, 1, T0 + 1))], PUBLISHED, True
    )


def test_the_first_op_of_a_group_is_counted_before_it_is_seen() -> None:
    """A dump has counters of a group but no entry: the group is not known to be idle."""
    tracker, names = RecorderTracker(tap.GENERIC), naming()
    new = Dump("2.10", entries=(op(0, 1),), status={0: Status(1, -1, 1), 7: Status(1, -1, 0)})
    tracker.apply(new, DUMPED, names)
    assert not tracker.is_whole


def test_a_group_that_no_entry_has_named_yet() -> None:
    """A new process group has counters, and the dump is older: the dump is not complete."""
    tracker = tracker_of([op(0, 1)], Status(1, -1, 1))
    raw = {(0, 0): Status(1, -1, 1), (0, 5): Status(1, -1, 0)}
    assert live_progress([tracker], raw, PUBLISHED).as_of_ns == DUMPED


def test_a_group_that_was_destroyed_is_not_waited_for() -> None:
    """The tap has no counters of a closed group any more; the others have not moved since."""
    other = structs.replace(op(1, 1), process_group=("1", "old"), pg_id=1)
    status = {0: Status(1, -1, 1), 1: Status(1, -1, 1)}
    tracker, names = RecorderTracker(tap.GENERIC), naming()
    tracker.apply(Dump("2.10", entries=(op(0, 1), other), status=status), DUMPED, names)
    tracker.close(lambda name: name == "1")
    progress = at(tracker, Status(1, -1, 1))
    assert (progress.as_of_ns, progress.exact) == (PUBLISHED, True)


def test_without_counters_the_dump_is_all() -> None:
    """The tap cannot be read, or the recorder has no counters: progress is as of the dump."""
    tracker = tracker_of([op(0, 1)], Status(1, -1, 1))
    assert live_progress([tracker], None, PUBLISHED) == RankProgress(
        [(0, GroupWatermarks(1, -1, 1))], DUMPED, False
    )
    tracker.number = None
    assert live_progress([tracker], {}, PUBLISHED).exact is False


def test_several_recorders_are_known_as_far_as_the_worst_of_them() -> None:
    """One recorder is idle, the other has moved: progress is as of the dump of the other."""
    good = tracker_of([op(0, 1)], Status(1, -1, 1))
    bad = tracker_of([op(0, 1), op(1, 2)], Status(2, -1, 2))
    bad.number = tap.NCCL
    raw = {(0, 0): Status(1, -1, 1), (1, 0): Status(9, -1, 9)}
    progress = live_progress([good, bad], raw, PUBLISHED)
    assert (progress.as_of_ns, progress.exact) == (DUMPED, False)


def test_a_dump_newer_than_the_counters_counts() -> None:
    """The GIL is held, but the socket answers: progress is as of the dump."""
    tracker = tracker_of([op(0, 1), op(1, 2)], Status(2, -1, 2))
    progress = live_progress([tracker], {(0, 0): Status(1, -1, 1)}, NodeNs(DUMPED - 10**9))
    assert progress.watermarks == [(0, GroupWatermarks(2, -1, 2))]
    assert progress.as_of_ns == DUMPED


# -- the end -------------------------------------------------------------------------------------


def last(tracker: RecorderTracker, status: Status) -> RankProgress | None:
    return final_progress([tracker], {(0, 0): status}, PUBLISHED)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_last_counters_of_a_process_show_how_far_it_came(backend: str) -> None:
    """Ten more collectives came after the last dump, then the process ended."""
    tracker = tracker_of([op(i, i + 1, backend=backend) for i in range(30)], Status(30, -1, 30))
    assert last(tracker, Status(40, -1, 40)) == RankProgress(
        [(0, GroupWatermarks(40, -1, 40))], PUBLISHED, True
    )
    assert last(tracker, Status(30, -1, 30)) == RankProgress(
        [(0, GroupWatermarks(30, -1, 30))], PUBLISHED, True
    )
    inside = last(tracker, Status(40, -1, 39))
    assert inside is not None
    assert inside.watermarks == [(0, GroupWatermarks(40, -1, 39, PUBLISHED))]


def test_the_last_counters_do_not_separate_sends_from_collectives() -> None:
    """Gloo has counted a send among the ops of the group, so later progress is unknown."""
    tracker = tracker_of([op(0, 1), op(1, 2, op_id=3)], Status(3, -1, 3))
    assert last(tracker, Status(5, -1, 5)) is None
    assert last(tracker, Status(3, -1, 3)) == RankProgress(
        [(0, GroupWatermarks(2, -1, 2))], PUBLISHED, True
    )


def test_a_group_that_no_dump_has_shown_leaves_the_end_unknown() -> None:
    """A group was created and used after the last dump."""
    tracker = tracker_of([op(0, 1)], Status(1, -1, 1))
    raw = {(0, 0): Status(1, -1, 1), (0, 1): Status(4, -1, 4)}
    assert final_progress([tracker], raw, PUBLISHED) is None
