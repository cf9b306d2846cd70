"""The difference of two dumps: each change is reported once, in order; nothing is invented."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from frd.flight.entry import Hole
from frd.model import YEAR_2200_NS, Flags
from frd_agent import tap
from frd_agent.ranks.tap_files import TapGroup
from frd_agent.recorder.group_progress import GroupWatermarks
from frd_agent.recorder.rows import columns
from frd_agent.recorder.transitions import RecorderTracker
from tests.world.entries import LATER, T0, Ring, changes, dump, gloo, naming, nccl

J, S, C, F = Flags.JOINED, Flags.STARTED, Flags.COMPLETED, Flags.FAILED


@pytest.fixture
def ring() -> Ring:
    return Ring()


def test_an_open_collective_outlives_its_place_in_the_ring(ring: Ring) -> None:
    """Another group's entries overwrite the entry of a hanging op: the op stays open."""
    ring.read(gloo(0, 1, done=False), gloo(1, 1, pg_id=1))
    others = [gloo(i, i, pg_id=1) for i in range(2, 5)]
    ring.read(*others, g0=(1, -1, 0), g1=(4, -1, 4))
    assert ring.watermarks[0] == GroupWatermarks(1, -1, 0, T0)
    assert ring.changes(*others, g0=(1, -1, 1), g1=(4, -1, 4)) == [(1, C)]


def test_a_reset_recorder_is_a_new_epoch_and_no_loss(ring: Ring) -> None:
    """torchft resets the recorder: ids start again at 0, seqs go on."""
    ring.read(gloo(5, 6), gloo(6, 7))
    diff = ring.read(gloo(0, 8, time_created_ns=T0 + 10**9))
    assert (diff.lost, changes(diff)) == (0, [(8, J | C)])


def test_a_reset_ends_no_op(ring: Ring) -> None:
    """A recorder is reset during a hang: the op stays open until the counters show its end."""
    ring.read(gloo(0, 1), gloo(1, 2, done=False), g0=(2, -1, 1))
    other = gloo(0, 1, pg_id=1, time_created_ns=T0 + 10**9)
    ring.read(other, g0=(2, -1, 1), g1=(1, -1, 1))
    assert ring.watermarks == [GroupWatermarks(2, -1, 1, T0 + 1000), GroupWatermarks(1, -1, 1)]
    assert ring.changes(other, g0=(2, -1, 2), g1=(1, -1, 1)) == [(2, C)]


def test_a_start_after_a_reset_is_seen_in_the_counters(ring: Ring) -> None:
    """A recorder is reset while an op waits for its device: only the counters show its start."""
    ring.read(nccl(0, 1), nccl(1, 2, state="scheduled"), g0=(2, 1, 1))
    assert ring.changes(g0=(2, 1, 1)) == []
    diff = ring.read(at=LATER + 1, g0=(2, 2, 1))
    assert changes(diff) == [(2, S)]
    assert diff.rows[0][5] == LATER + 1
    assert ring.watermarks[0].started == 2
    assert ring.changes(g0=(2, 2, 1)) == []
    assert ring.changes(g0=(2, 2, 2)) == [(2, C)]


def test_what_a_reset_has_taken_is_not_taken_for_absence(ring: Ring) -> None:
    """The entry of seq 2 was removed before it was read: the rank may be in that op until the
    counters are equal and stop changing, or until the next seq appears."""
    ring.read(gloo(0, 1), g0=(1, -1, 1))
    later = [LATER + i for i in range(1, 5)]
    ring.read(at=later[0], g0=(2, -1, 1))
    assert (ring.is_blind, ring.is_waiting, ring.seen_until_ns) == (True, False, LATER)
    ring.read(at=later[1], g0=(2, -1, 2))
    assert (ring.is_blind, ring.seen_until_ns) == (True, LATER)  # its peers may not know yet
    ring.read(at=later[2], g0=(2, -1, 2))
    assert (ring.is_blind, ring.seen_until_ns) == (False, later[2])
    diff = ring.read(gloo(0, 4, time_created_ns=T0 + 9), at=later[3], g0=(4, -1, 4))
    assert (diff.lost, ring.is_blind, changes(diff)) == (2, False, [(4, J | C)])


def test_a_ring_that_was_emptied_before_it_was_first_read(ring: Ring) -> None:
    """Counters show ops without entries: the rank's op is unknown until the counters are equal."""
    ring.read(g0=(5, -1, 4))
    assert (ring.is_blind, ring.seen_until_ns) == (True, 0)
    for _ in range(2):
        ring.read(g0=(5, -1, 5))
    assert (ring.is_blind, ring.seen_until_ns) == (False, LATER)


def test_a_group_that_is_given_up_hides_nothing_for_long(ring: Ring) -> None:
    """torchft aborts a group with a receive in flight and resets the recorder. The counters of
    the group stay unequal, but the rank continues in the next group."""
    recv = nccl(0, 0, "scheduled", p2p_seq_id=1, is_p2p=True, profiling_name="nccl:recv 0<-3")
    ring.read(recv, g0=(1, -1, 0))
    ring.read(g0=(3, -1, 0))
    assert (ring.is_blind, ring.is_waiting) == (True, True)
    for seconds, given_up in ((1, False), (40, True)):
        at = LATER + seconds * 10**9
        new = nccl(seconds, seconds, pg_id=1, time_created_ns=at)
        ring.read(new, at=at + 10**9, g0=(3, -1, 0), g1=(seconds, -1, seconds))
        assert ring.is_blind is not given_up
        assert ring.is_waiting is not given_up


def test_a_group_whose_only_entries_were_wiped_is_not_known_to_be_idle(ring: Ring) -> None:
    """The rank entered its first collective of a group just before the recorder was reset."""
    ring.read(gloo(0, 1), g0=(1, -1, 1))
    for _ in range(3):
        ring.read(g0=(1, -1, 1), g1=(1, -1, 0))
        assert ring.is_blind
    again = gloo(0, 2, time_created_ns=T0 + 10**9)
    ring.read(again, g0=(2, -1, 2), g1=(1, -1, 0))
    assert ring.is_blind


def test_numbers_of_all_groups_together_have_no_gaps(ring: Ring) -> None:
    """torchcomms numbers all ops together, so a gap in a group's seqs after a reset is no loss."""
    one = gloo(9, 10, profiling_name="ncclx:all_reduce", op_id=0)
    ring.read(one)
    two = gloo(0, 40, profiling_name="ncclx:all_reduce", op_id=0, time_created_ns=T0 + 10**9)
    assert ring.read(two).lost == 0


def test_a_group_that_is_gone_hides_nothing(ring: Ring) -> None:
    """torchft aborts a group in which an op is open, which leaves its counters unequal, and resets
    the recorder: the rank no longer waits in it."""
    ring.read(gloo(0, 1, done=False), g0=(1, -1, 0))
    ring.tracker.close(lambda name: name == "0")
    assert ring.watermarks == [GroupWatermarks(1, -1, 1)]
    assert ring.tracker.open.rows() == []
    ring.read(g0=(2, -1, 1))
    assert not ring.is_blind


def test_a_reset_is_seen_even_when_the_ids_have_caught_up(ring: Ring) -> None:
    """More was recorded after a reset than before it: the last record id is a different entry."""
    ring.read(gloo(0, 1), gloo(1, 2))
    again = [gloo(i, i + 3, time_created_ns=T0 + 10**9 + i) for i in range(4)]
    assert ring.changes(*again) == [(3, J | C), (4, J | C), (5, J | C), (6, J | C)]


def test_nccl_retired_without_completed_has_failed(ring: Ring) -> None:
    """NCCL's watchdog gives up an op: its failure is reported once, and the op stays open."""
    ring.read(nccl(0, 1), nccl(1, 2, "scheduled"))
    given_up = [nccl(0, 1), nccl(1, 2, "scheduled", retired=True)]
    assert ring.changes(*given_up) == [(2, F)]
    assert ring.changes(*given_up) == []
    assert ring.watermarks == [GroupWatermarks(2, -1, 1, T0 + 1000)]


@pytest.mark.parametrize("backend", ["ncclx", "xccl", "nccl", "fake"])
@pytest.mark.parametrize("state", ["scheduled", "started"])
def test_ops_that_are_retired_at_issue_are_no_waits(backend: str, state: str) -> None:
    """torchcomms retires an op when it is issued, whatever its backend: the rank neither waits nor
    has given up."""
    ring = Ring(number=tap.GENERIC)
    name = f"{backend}:all_reduce"
    issued = [nccl(at, at + 1, state, retired=True, profiling_name=name) for at in range(3)]
    assert ring.changes(*issued[:2]) == [(1, J | C), (2, J | C)]
    assert ring.changes(*issued) == [(3, J | C)]
    assert ring.watermarks == [GroupWatermarks(3, -1, 3)]
    assert not ring.is_waiting


@pytest.mark.parametrize("at", [T0 + 10**8, T0 + 2 * 10**9], ids=["in time", "timed out"])
def test_the_first_op_of_all_is_retired(at: int) -> None:
    """No op has completed yet. NCCL's own recorder retires what its watchdog gives up, before or
    after the time-out, and a late agent sees no more; Gloo retires what has ended, however late,
    and goes on."""
    first = nccl(0, 1, "scheduled", timeout_ms=1_000)
    retired = msgspec.structs.replace(first, retired=True)
    own = Ring(number=tap.NCCL)
    own.read(first)
    assert own.changes(retired, at=at) == [(1, F)]
    assert Ring(number=tap.NCCL).changes(retired, at=at) == [(1, J | F)]
    other = Ring(number=tap.GENERIC)
    other.read(gloo(0, 1, done=False, timeout_ms=1_000))
    ended = gloo(0, 1, timeout_ms=1_000)
    assert other.changes(ended, at=at) == [(1, C)]
    assert other.changes(ended, gloo(1, 2, timeout_ms=1_000), at=at) == [(2, J | C)]


def test_a_dump_of_active_entries_does_not_show_what_marks_the_end() -> None:
    """An entry that is missing is over; Gloo's entries that are retired later have ended, too."""
    ring = Ring(number=tap.GENERIC)
    ring.read(gloo(3, 4, done=False), gloo(7, 8, done=False))
    assert ring.changes(gloo(7, 8, done=False), gloo(9, 9, done=False, pg_id=1)) == [(4, C), (9, J)]
    whole = [gloo(at, at + 1) for at in range(9)]
    assert ring.changes(*whole, gloo(9, 9, pg_id=1)) == [(8, C), (9, C)]


def test_a_generic_recorder_of_nccl_marks_completion_once_it_has() -> None:
    """nccl2 completes an op, so that one which is retired without it was given up."""
    name = {"profiling_name": "nccl2:all_reduce"}
    ring = Ring(number=tap.GENERIC)
    ring.read(nccl(0, 1, **name), nccl(1, 2, "scheduled", **name))
    assert ring.changes(nccl(1, 2, "scheduled", retired=True, **name)) == [(2, F)]


def test_starts_are_reported_where_timing_is_on(ring: Ring) -> None:
    """With timing the device's start of an op is a transition, and a watermark. The start of the
    next op is shown only after its end."""
    ring.read(nccl(0, 1, "scheduled"))
    started = nccl(0, 1, "started", time_discovered_started_ns=T0 + 5)
    diff = ring.read(started)
    assert changes(diff) == [(1, S)]
    assert columns(7, 1, diff.rows).started_ns.tolist() == [T0 + 5]
    assert ring.watermarks == [GroupWatermarks(1, 1, 0, T0)]
    ring.read(nccl(0, 1), nccl(1, 2))
    assert ring.watermarks == [GroupWatermarks(2, 2, 2)]


def test_a_coalesced_collective_is_one_row_of_all_its_parts(ring: Ring) -> None:
    """Two coalesced broadcasts are one row, which ends with the closing entry."""
    parts = [
        nccl(0, 1, "scheduled", profiling_name="nccl:_broadcast_oop", input_sizes=((4,),)),
        nccl(1, 1, "scheduled", profiling_name="nccl:_broadcast_oop", input_sizes=((5,),)),
    ]
    end = nccl(2, 1, profiling_name="nccl:coalesced")
    diff = ring.read(*parts, end)
    assert changes(diff) == [(1, J | C)]
    signature = ring.names._dictionary.signatures[diff.rows[0][2]].signature
    assert signature.op == "coalesced(_broadcast_oop x2)"
    assert signature.input_sizes == ((4,), (5,))


def test_what_is_left_of_a_coalesced_collective_is_not_compared(ring: Ring) -> None:
    """The first of two coalesced broadcasts was overwritten: only the end is reported, in its
    turn."""
    ring.read(nccl(0, 1))
    left = nccl(2, 2, "scheduled", profiling_name="nccl:_broadcast_oop", input_sizes=((5,),))
    end = nccl(3, 2, "scheduled", profiling_name="nccl:coalesced")
    diff = ring.read(left, end, nccl(4, 3, "scheduled"))
    assert diff.lost == 1
    assert changes(diff) == [(3, J)]
    assert [row[1] for row in ring.tracker.open.rows()] == [3]
    done = nccl(3, 2, profiling_name="nccl:coalesced")
    assert ring.changes(left, done, nccl(4, 3), nccl(5, 4)) == [(2, C), (3, C), (4, J | C)]


def test_a_single_op_behind_a_gap_is_whole(ring: Ring) -> None:
    """An entry that is no part of a coalesced collective is complete by itself."""
    ring.read(nccl(0, 1))
    assert ring.changes(nccl(2, 3), nccl(3, 4)) == [(3, J | C), (4, J | C)]


def test_an_op_that_may_still_grow_is_read_with_the_next_dump(ring: Ring) -> None:
    """A dump falls in the middle of a coalesced collective: neither half is reported."""
    now = T0 + 20_000_000
    part = nccl(1, 2, "scheduled", time_created_ns=now - 10_000_000)
    assert ring.changes(nccl(0, 1, time_created_ns=T0 - 10**9), part, at=now) == [(1, J | C)]
    assert ring.tracker.held
    assert ring.tracker.taken_at_ns == now - 10_000_001
    assert ring.changes(part) == [(2, J)]
    assert not ring.tracker.held


def test_a_final_dump_is_read_whole() -> None:
    """Each conversion of a stamp has its own reading of the clocks, microseconds apart."""
    later = itertools.count(step=1000)
    tracker = RecorderTracker(to_raw=lambda stamps: stamps + next(later))
    diff = tracker.apply(dump([nccl(0, 1), nccl(1, 2)]), T0, naming(), is_final=True)
    assert changes(diff) == [(1, J | C), (2, J | C)]


def test_an_op_whose_stamp_no_clock_has_shown_is_open_since_it_was_read() -> None:
    """The wall clock was set back before the agent began: the time of an op is unknown, which is
    what its row says. That it is open is known from the first dump on, in every later one too."""
    tracker, names = RecorderTracker(to_raw=np.zeros_like), naming()
    for later in range(3):
        entries = [gloo(0, 1, done=False), gloo(1, 1, done=False, pg_id=1)][: later + 1]
        tracker.apply(dump(entries), LATER + later, names)
    assert [row[4] for row in tracker.open.rows()] == [0, 0]
    marks = [progress.watermarks for progress in tracker.groups]
    assert [mark.head_created_ns for mark in marks] == [LATER, LATER + 1]


def test_a_coalesced_collective_is_over_when_its_last_part_is(ring: Ring) -> None:
    """The first of two entries is done: no end is reported before the closing entry is done."""
    part = {"profiling_name": "nccl:_broadcast_oop"}
    end = nccl(1, 1, "scheduled", profiling_name="nccl:coalesced")
    assert ring.changes(nccl(0, 1, "scheduled", **part), end) == [(1, J)]
    assert ring.changes(nccl(0, 1, **part), end) == []
    end = nccl(1, 1, profiling_name="nccl:coalesced")
    assert ring.changes(nccl(0, 1, **part), end) == [(1, C)]


def test_counters_that_count_sends_end_no_collective(ring: Ring) -> None:
    """NCCL numbers sends and collectives together: in a group with sends the counters do not show
    whether a collective whose entry was overwritten is over."""
    send = nccl(0, 0, profiling_name="nccl:send 0->1", is_p2p=True)
    ring.read(send, nccl(1, 1, "scheduled"), nccl(2, 1, pg_id=1))
    others = [nccl(i, i - 1, pg_id=1) for i in range(3, 6)]
    ring.read(*others, g0=(9, -1, 9), g1=(4, -1, 4))
    assert ring.watermarks[0] == GroupWatermarks(1, -1, 0, T0 + 1000)


def test_a_recorder_that_shows_active_entries_only(ring: Ring) -> None:
    """Entries that are missing from a dump of active entries are over, and nothing was lost."""
    ring.read(nccl(3, 4, "scheduled"), nccl(7, 8, "scheduled"))
    diff = ring.read(nccl(7, 8, "scheduled"), nccl(30, 31, "scheduled"))
    assert diff.lost == 0
    assert changes(diff) == [(4, C), (31, J)]


def test_an_entry_that_cannot_be_read_is_lost(ring: Ring) -> None:
    """The ids around it show that it is missing: that is a gap, and not the end of its op."""
    ring.read(nccl(0, 1), nccl(1, 2, "scheduled"))
    rest = dump([nccl(0, 1), nccl(1, 2, "scheduled"), nccl(3, 4, "scheduled")])
    diff = ring.tracker.apply(replace(rest, holes=(Hole("0", 2, 1),)), LATER, ring.names)
    assert diff.lost == 1
    assert changes(diff) == [(4, J)]


def test_a_group_that_is_set_up_again_is_another_group(ring: Ring) -> None:
    """A name comes back under another pg_id: its seqs start again and the old group is closed. The
    entry of its send stays in the recorder and is never completed."""
    former = [
        nccl(0, 1, "scheduled"),
        nccl(1, 0, "scheduled", profiling_name="nccl:send 0->1", is_p2p=True),
    ]
    ring.read(*former)
    assert len(ring.channels.group) == 1
    reborn = nccl(2, 1, pg_id=4, process_group=("0", ""))
    assert ring.tracker.new_groups(dump([*former, reborn]), LATER) == {"0": True}
    assert ring.changes(*former, reborn) == [(1, J | C)]
    assert len(ring.channels.group) == 0
    closed, latter = ring.tracker.groups
    assert closed.watermarks == GroupWatermarks(1, -1, 1)
    assert ring.names._dictionary.groups[latter.group].info.name == "0~1"


def test_entries_of_an_earlier_attempt_are_not_of_this_one(ring: Ring) -> None:
    """The process has set up all groups again: older entries in the recorder are ignored."""
    ring.read(gloo(0, 1), gloo(1, 2))
    ring.tracker.begin_attempt()
    ring.names = naming()
    again = gloo(2, 1, pg_id=3, process_group=("0", ""))
    diff = ring.read(gloo(0, 1), gloo(1, 2), again)
    assert changes(diff) == [(1, J | C)]
    assert ring.names._dictionary.groups[diff.rows[0][0]].info.name == "0"


def test_a_late_agent_takes_the_last_of_several_groups_of_one_name(ring: Ring) -> None:
    """The first dump shows two groups named 0: only the later one is current."""
    entries = [gloo(0, 1), gloo(1, 2), gloo(2, 1, pg_id=3, process_group=("0", ""))]
    assert ring.changes(*entries) == [(1, J | C)]


def test_two_backends_of_one_group_count_apart(ring: Ring) -> None:
    """cpu:gloo,cuda:nccl: each backend counts its own seqs, so the service sees two groups."""
    ring.names.replace([TapGroup("0", (0, 1), "default_pg", "gloo,nccl")])
    diff = ring.read(gloo(0, 1), nccl(1, 1, pg_id=1, process_group=("0", "")))
    group_names = {ring.names._dictionary.groups[row[0]].info.name for row in diff.rows}
    assert group_names == {"0/gloo", "0/nccl"}


def test_p2p_ops_become_channels() -> None:
    """A send and two receives are in flight between members of a group of ranks 4 to 7."""
    ring = Ring(ranks=(4, 5, 6, 7))
    p2p: dict[str, Any] = {"is_p2p": True, "state": "scheduled"}
    entries = [
        nccl(0, 0, profiling_name="nccl:send 0->3", **p2p),
        nccl(1, 0, profiling_name="nccl:recv 0<-1", **p2p),
        nccl(2, 0, profiling_name="nccl:recv 0<-1", **p2p),
        nccl(3, 0, profiling_name="nccl:recv 0<-?", **p2p),
    ]
    ring.read(*entries)
    seen = ring.channels
    rows = zip(seen.peer.tolist(), seen.is_send.tolist(), seen.in_flight.tolist(), strict=True)
    assert sorted(rows) == [(-1, 0, 1), (5, 0, 2), (7, 1, 1)]
    entries[1] = nccl(1, 0, "completed", is_p2p=True, profiling_name="nccl:recv 0<-1")
    ring.read(*entries)
    assert ring.channels.in_flight.tolist() == [1, 1, 1]


def test_channels_show_calls_signatures_and_numbers() -> None:
    """Two sends and a receive of one call, after a send of another size. The first send was over
    in an earlier dump; those that follow have the numbers 1 and 2."""
    ring = Ring()
    p2p: dict[str, Any] = {"is_p2p": True, "profiling_name": "nccl:send 0->3"}
    one, four = {"input_sizes": ((1,),)}, {"input_sizes": ((4,),)}
    before = nccl(0, 0, "completed", p2p_seq_id=1, **one, **p2p)
    ring.read(before)
    assert not len(ring.channels.peer)
    assert not ring.is_waiting
    call = [
        nccl(number, 0, "scheduled", p2p_seq_id=2, **size, **p2p)
        for number, size in ((1, one), (2, four))
    ]
    receive = {**p2p, "profiling_name": "nccl:recv 0<-2"}
    call.append(nccl(3, 0, "scheduled", p2p_seq_id=2, **four, **receive))
    ring.read(before, *call)
    seen = ring.channels
    assert seen.peer.tolist() == [3, 3, 2]
    assert seen.in_flight.tolist() == [1, 1, 1]
    assert seen.batch.tolist() == [2, 2, 2]
    assert seen.posted.tolist() == [1, 2, 0]
    assert len({*seen.signature.tolist()}) == 3
    assert len({*seen.head_created_ns.tolist()}) == 1, "a call has one time"
    assert len(ring.names._dictionary.signatures) == 3, "only what is sent has a number"


def test_sends_are_not_counted_once_entries_are_lost() -> None:
    """The agent starts late, or entries were overwritten between two dumps."""
    for first, second in ((1, 2), (0, 2)):
        ring = Ring()
        p2p: dict[str, Any] = {"is_p2p": True, "profiling_name": "nccl:send 0->3"}
        ring.read(nccl(first, 0, "completed", **p2p))
        ring.read(nccl(second, 0, "scheduled", **p2p))
        assert ring.channels.posted.tolist() == [-1]


def test_a_send_that_is_over_ends_those_before_it(ring: Ring) -> None:
    """The first entry was overwritten, and the second op was over when it was read."""
    send: dict[str, Any] = {"is_p2p": True, "profiling_name": "nccl:send 0->3"}
    ring.read(nccl(0, 0, "scheduled", **send), nccl(1, 1))
    assert ring.is_waiting
    ring.read(nccl(7, 7), nccl(8, 0, "completed", **send))
    assert not ring.is_waiting


def test_a_send_in_flight_outlives_a_reset(ring: Ring) -> None:
    """No entry will show the end of a send: it is in flight until the counters move, and may be in
    flight until they are equal."""
    send = nccl(0, 0, "scheduled", p2p_seq_id=1, is_p2p=True, profiling_name="nccl:send 0->3")
    ring.read(send, g0=(1, -1, 0))
    for _ in range(2):
        ring.read(g0=(1, -1, 0))
        assert ring.channels.in_flight.tolist() == [1]
        assert not ring.is_blind
    ring.read(g0=(2, -1, 1))
    assert (ring.is_waiting, ring.is_blind) == (False, True)


def test_a_batch_of_p2p_ops_ends_with_its_closing_entry(ring: Ring) -> None:
    """batch_isend_irecv: only the closing entry completes, and it ends all ops of the batch."""
    p2p: dict[str, Any] = {"is_p2p": True, "p2p_seq_id": 5}
    ops = [
        nccl(0, 0, "scheduled", profiling_name="nccl:send 0->1", **p2p),
        nccl(1, 0, "scheduled", profiling_name="nccl:recv 0<-1", **p2p),
    ]
    end = nccl(2, 0, "scheduled", profiling_name="nccl:coalesced", **p2p)
    ring.read(*ops, end)
    assert len(ring.channels.group) == 2
    end = nccl(2, 0, "completed", profiling_name="nccl:coalesced", **p2p)
    ring.read(*ops, end)
    assert len(ring.channels.group) == 0


def test_times_that_the_wire_cannot_carry_are_cut() -> None:
    """A recorder's clock is absurd: its rows still fit the wire."""
    rows = columns(0, 1, [[0, 1, 0, 1, 2**63 - 1, -5, 0]])
    assert rows.created_ns.tolist() == [YEAR_2200_NS - 1]
    assert rows.started_ns.tolist() == [0]


def test_a_seq_that_the_wire_cannot_carry_is_passed_by(ring: Ring) -> None:
    """One absurd record in a file: the service would refuse the rows of all ranks because of it."""
    assert ring.changes(gloo(0, 1), gloo(1, 2**60), gloo(2, 2)) == [(1, J | C), (2, J | C)]
    assert ring.watermarks == [GroupWatermarks(2, -1, 2)]
