"""The state of one attempt: what observations do to it, and what it answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from frd.engine import attempt
from frd.engine.attempt import Attempt
from frd.engine.matching import collectives
from frd.engine.policy import Policy
from frd.errors import WireError
from frd.model import (
    NATIVE,
    POLL,
    REST,
    UNKNOWN_SEQ,
    Address,
    AttemptKey,
    Flags,
    GroupInfo,
    NodeNs,
    RankState,
    Signature,
    UnrecordedWait,
    WaitSource,
)
from tests.world import observe
from tests.world.attempt import Job, S, at
from tests.world.messages import BOTH
from tests.world.observe import Applied, rank_info

# -- declarations --------------------------------------------------------------------------------


def test_the_namespace_of_a_job_is_that_of_most_of_its_ranks() -> None:
    """It is unknown until agents report it; a rank that starts again elsewhere counts there."""
    job = Job()
    assert job.attempt.view(at(0)).namespace == ""
    for rank, namespace in enumerate(("ml", "ml", "test")):
        info = replace(rank_info(rank, pid=50 + rank), address=Address(namespace=namespace))
        job.attempt.rank(info)
    assert job.attempt.view(at(1)).namespace == "ml"
    for rank in (0, 3):
        info = replace(rank_info(rank, pid=90 + rank), address=Address(namespace="test"))
        job.attempt.rank(info)
    assert job.attempt.view(at(2)).namespace == "test"


def test_handles_are_stable() -> None:
    """The same rank, group, signature and pair declared again by another stream are the same."""
    job = Job()
    again = job.attempt.group(GroupInfo("0", "other words", (0, 1, 2, 3)))
    assert again == job.group
    assert job.attempt.rank(rank_info(2)) == 2
    assert job.attempt.pair(2, job.group) == job.attempt.pair(2, again) >= 0


def test_a_stranger_is_no_member() -> None:
    """A rank outside a group of known membership has no row in it."""
    job = Job()
    group = job.attempt.group(GroupInfo("1", "pair", (0, 2)))
    assert job.attempt.pair(1, group) == -1
    with pytest.raises(WireError, match="row 0: the rank is not in the group"):
        job.entries(1, [1], group=group)


def test_a_group_of_unknown_membership_learns_its_members() -> None:
    """The members of the group are unknown: ranks that join are members, others are no suspects."""
    job = Job()
    group = job.attempt.group(GroupInfo("9", "unknown"))
    job.entries(3, [1, 2], group=group)
    other = job.attempt.group(GroupInfo("10", "", (0, 1)))
    job.entries(0, [1], Flags.JOINED, group=group)
    job.entries(0, [7], group=other)
    snapshot = job.attempt.snapshot(at(0))
    assert snapshot.pairs.of(group).rank.tolist() == [0, 3]
    assert snapshot.pairs.of(group).joined.tolist() == [1, 2]
    assert snapshot.pairs.of(other).joined.tolist() == [7, -1]


@pytest.mark.parametrize(
    ("policy", "declare", "words"),
    [
        (Policy(), lambda a: a.rank(rank_info(4)), "ranks.rank: 4: the attempt has ranks 0..3"),
        (
            Policy(),
            lambda a: a.group(GroupInfo("x", "", (2, 9))),
            "groups.ranks: 'x': rank 9 is not in the world",
        ),
        (Policy(max_groups=1), lambda a: a.group(GroupInfo("x", "", (2, 3))), "max_groups"),
    ],
)
def test_declarations_have_limits(
    policy: Policy, declare: Callable[[Attempt], object], words: str
) -> None:
    """What is outside the world or beyond a limit is refused with the field's name."""
    job = Job(policy=policy)
    with pytest.raises(WireError) as refusal:
        declare(job.attempt)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("most", "declare"),
    [
        (5, lambda a: a.group(GroupInfo("x", "", (2, 3)))),
        (4, lambda a: a.pair(1, a.group(GroupInfo("x", "")))),
    ],
)
def test_members_of_all_groups_have_a_limit(
    most: int, declare: Callable[[Attempt], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a group names its members, or ranks turn up in it."""
    monkeypatch.setattr(attempt, "MAX_PAIRS", most)
    job = Job()
    with pytest.raises(WireError, match=f"more than {most}$"):
        declare(job.attempt)


def test_a_new_process_of_a_rank_starts_with_nothing_known() -> None:
    """The rank came back as another process: its seqs begin again, and it is live."""
    job = Job()
    for rank in job.ranks:
        job.entries(rank, [1, 2, 3])
    job.watermark(1, 3, 2, head=0, as_of=5)
    job.sends(1, (2, False, 1, 4), now=5)
    job.status(1, RankState.EXITED, 6)
    job.attempt.rank(rank_info(1, pid=4711))
    snapshot = job.attempt.snapshot(at(7))
    assert snapshot.pairs.of(job.group).joined.tolist() == [3, -1, 3, 3]
    assert snapshot.state[1] is RankState.LIVE
    assert snapshot.as_of[1] == 0
    assert snapshot.channels.rank.tolist() == []
    assert job.entries(1, [1]) == Applied(1, 0)


# -- watermarks and stalls -----------------------------------------------------------------------


def test_only_waiting_that_telemetry_confirms_is_a_stall() -> None:
    """Three ranks wait; the one whose telemetry is late does not count until it is heard of."""
    job = Job()
    for rank in (0, 1, 3):
        job.watermark(rank, 7, 6, head=0.0, as_of=1)
    job.watermark(2, 6, 6, as_of=1)
    job.hears(9.9)
    assert job.stalled(60) == []
    job.hears(10.0, [0, 1])
    assert job.stalled(60) == [(0, 7), (1, 7)]
    job.hears(60.0)
    assert job.stalled(60) == [(0, 7), (1, 7), (3, 7)]


def test_the_gone_wait_no_more() -> None:
    """A rank that exited while it waited is not stalled; a silent one still is."""
    job = Job()
    for rank in job.ranks:
        job.watermark(rank, 1, 0, head=0.0)
    job.hears(20)
    job.status(0, RankState.EXITED, 20)
    job.status(1, RankState.FINISHED, 20)
    job.status(2, RankState.SILENT, 20)
    assert job.stalled(21) == [(2, 1), (3, 1)]


def test_an_attempt_ends_with_its_last_rank() -> None:
    """Clean and unclean exits of all declared ranks end the attempt, silence does not."""
    job = Job(world=2)
    job.status(0, RankState.EXITED, 1)
    job.status(1, RankState.SILENT, 1)
    assert not job.attempt.tables.all_gone()
    job.status(1, RankState.FINISHED, 3)
    assert job.attempt.tables.all_gone()


def test_marks_only_rise() -> None:
    """A watermark row that is behind the entries changes neither marks nor the head."""
    job = Job()
    job.entries(0, [1, 2, 3], created=1)
    job.entries(0, [4], Flags.JOINED, created=2)
    job.watermark(0, 2, 2)
    group = job.attempt.snapshot(at(5)).pairs.of(job.group)
    assert (group.joined[0], group.completed[0]) == (4, 3)
    assert group.head_since[0] == at(2)


def test_when_a_member_came_as_far_as_it_is() -> None:
    """Ends and starts count: at the time in the row, or in the first report that shows them. While
    there is neither, the member is there by now."""
    job = Job()
    job.watermark(0, 1, 1, as_of=1)
    job.watermark(0, 2, 1, 2, as_of=2)
    job.entries(1, [1], completed=2.5, now=3)
    job.entries(1, [2], Flags.JOINED, now=4)
    job.entries(2, [1, 2], Flags.JOINED, now=3)
    job.entries(2, [1], Flags.STARTED, now=5)
    moved_at = job.attempt.snapshot(at(9)).pairs.of(0).moved_at
    assert moved_at.tolist() == [at(1), at(2.5), at(9), 0]


def test_the_first_report_of_a_watermark_dates_it() -> None:
    """A member completed an op whose row has no time; the reports of that come in any order."""
    for order in itertools.permutations((3, 4, 6)):
        job = Job()
        job.entries(0, [1], now=9)
        for as_of in order:
            job.watermark(0, 1, 1, as_of=as_of)
        snapshot = job.attempt.snapshot(at(9))
        assert (snapshot.moved_at.item(0), snapshot.pairs.moved_at.item(0)) == (at(3), at(3))


def test_a_wait_of_unknown_age_counts_from_its_report() -> None:
    """Only counters are known of a rank, no entry: it waits at least since they said so."""
    job = Job()
    job.watermark(0, 7, 6, as_of=5)
    job.hears(14)
    assert job.stalled(14) == []
    job.hears(15)
    assert job.stalled(15) == [(0, 7)]


def test_the_first_collective_of_a_group_has_its_number() -> None:
    """A job hangs in its very first collective, which this backend numbers 1."""
    job = Job()
    for rank in (0, 1, 2):
        job.entries(rank, [1], Flags.JOINED)
        job.watermark(rank, 1, UNKNOWN_SEQ, head=0.0, as_of=1)
    job.hears(30)
    assert job.stalled(30) == [(0, 1), (1, 1), (2, 1)]
    group = job.attempt.snapshot(at(30)).pairs.of(job.group)
    assert group.completed.tolist() == [0, 0, 0, -1]
    assert job.attempt.snapshot(at(30)).op(job.group, 1) == "all_reduce"


def test_p2p_waits_are_stalls_too() -> None:
    """Two pipeline stages wait in a recv longer than the threshold; a later report of one of them
    replaces its earlier one, and says nothing of the other."""
    job = Job()
    job.sends(3, (2, False, 2, 1), (1, True, 0, 0), now=1)
    job.sends(1, (0, False, 1, 1), now=1)
    job.hears(10.5)
    assert job.stalled(10.5) == []
    job.hears(11)
    assert job.stalled(11) == [(1, UNKNOWN_SEQ), (3, UNKNOWN_SEQ)]
    assert job.attempt.snapshot(at(11)).channels.in_flight.tolist() == [1, 2, 0]
    job.sends(3, (2, False, 2, 12), now=12)
    channels = job.attempt.snapshot(at(12)).channels
    assert (channels.peer.tolist(), channels.since.tolist()) == ([0, 2], [at(1), at(12)])
    job.sends(3, now=12)
    assert job.stalled(12) == [(1, UNKNOWN_SEQ)]


def test_only_another_word_of_sends_is_a_move() -> None:
    """The stream after a lost stream repeats everything."""
    job = Job()
    for second, flying, moved_s in ((1, 1, 1), (5, 1, 1), (9, 2, 9), (12, 0, 12), (15, 0, 12)):
        job.sends(3, (2, False, flying, 0), now=second)
        moved_at = job.attempt.snapshot(at(second)).moved_at
        assert moved_at.tolist()[3] == at(moved_s)


def test_a_gap_lasts_until_the_whole_is_known_again() -> None:
    """Rows were lost: absence proves less until the rank's numbers are exact again."""
    job = Job()
    job.hears(1)
    job.status(2, RankState.LIVE, 2, gap=40)
    assert job.attempt.snapshot(at(2)).gap.tolist() == [False, False, True, False]
    job.hears(3)
    assert not job.attempt.snapshot(at(3)).gap.any()
    job.status(2, RankState.LIVE, 4, gap=45)
    assert job.attempt.gap_entries == 45


def test_the_latest_report_of_a_wait_that_no_recorder_shows_counts() -> None:
    """A rank is in recv, then in new_group; the report on recv is repeated late. Its clock moves,
    and then the next stack of the rank shows its own code."""
    job = Job()

    def seen(op: str, since: float, as_of: float) -> tuple[str, int, int]:
        times = NodeNs(at(since)), NodeNs(at(as_of))
        job.attempt.observe_unrecorded(UnrecordedWait(0, WaitSource.STACK, op, *times))
        (wait,) = job.attempt.snapshot(at(90)).unrecorded[0]
        return wait.op, wait.since_ns, wait.as_of_ns

    assert seen("recv", 10, 20) == ("recv", at(10), at(20))
    assert seen("new_group", 30, 40) == ("new_group", at(30), at(40))
    assert seen("recv", 10, 20) == ("new_group", at(30), at(40))
    job.attempt.tables.move_times(0, 5 * S)
    assert seen("recv", 10, 20) == ("new_group", at(35), at(45))
    assert seen("", 50, 60) == ("", at(50), at(60))


def test_a_pause_in_which_ranks_poll_is_learned() -> None:
    """Inspections show rank 0 as it polls for half a minute, and then in a native call and at rest,
    which say nothing of other ranks: only how long ranks poll is learned."""
    job = Job()
    for op, since, as_of in ((POLL, 10, 40), (NATIVE, 50, 80), (REST, 90, 120), ("", 130, 130)):
        times = NodeNs(at(since)), NodeNs(at(as_of))
        job.attempt.observe_unrecorded(UnrecordedWait(0, WaitSource.INSPECTION, op, *times))
        assert job.attempt.tables.unrecorded.any_waits is (op in (POLL, NATIVE))
    job.attempt.take_waits(at(140))
    learned = job.attempt.call_thresholds_ns(at(140))
    assert learned.keys() == {POLL}
    assert learned[POLL] > 30 * S


def test_marks_of_a_rank_that_is_no_member_are_refused() -> None:
    """One row of two is of no member of its group: the error names it, and nothing is applied."""
    job = Job()
    rows = [(job.attempt.pair(0, job.group), 5, -1, 5, 0), (-1, 5, -1, 5, 0)]
    with pytest.raises(WireError, match="row 1: the rank is not in the group"):
        observe.watermarks(job.attempt, rows, (), 0)
    assert job.attempt.snapshot(at(0)).pairs.joined.max() == -1


def test_rows_that_come_after_the_watermarks_that_passed_them() -> None:
    """The rank is in op 12 since second 12, as its agent said; then rows of ops 5 to 10 arrive."""
    job = Job()
    job.watermark(0, 12, 11, head=12, as_of=13)
    job.entries(0, range(5, 11), Flags.JOINED)
    group = job.attempt.snapshot(at(13)).pairs
    assert (group.joined[0], group.completed[0]) == (12, 11)
    assert group.head_since[0] == at(12)


# -- entries -------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart", [False, True])
def test_what_all_members_completed_is_matched(apart: bool) -> None:
    """Four ranks complete three collectives, 20 ms apart; the last arrival made the skew. It is the
    same if completions come in separate batches, as they do where ops last."""
    job = Job()
    for rank in job.ranks:
        flags = Flags.JOINED if apart else BOTH
        job.entries(rank, [1, 2, 3], flags, created=0.02 * rank, completed=None if apart else 0.5)
    if apart:
        assert job.attempt.view(at(1)).duration == {}
    for rank in job.ranks if apart else ():
        for seqs in ([1, 2], [3]):
            job.entries(rank, seqs, Flags.COMPLETED, completed=0.5)
    view = job.attempt.view(at(1))
    assert view.groups[0].matched == 3
    assert view.groups[0].open_collectives == 0
    skew = view.skew["all_reduce"]
    assert sum(skew.counts) == 3
    assert skew.total == pytest.approx(3 * 0.06)
    assert view.duration["all_reduce"].total == pytest.approx(0.5 + 0.499 + 0.498)
    assert view.transfer["all_reduce"].total == pytest.approx(0.44 + 0.439 + 0.438)


def test_ends_of_ops_that_are_kept_no_more_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More are open than are kept: how long ops last is known from the others, and right."""
    monkeypatch.setattr(collectives, "MAX_OPEN", 64)
    job = Job()
    for flags, completed in ((Flags.JOINED, None), (Flags.COMPLETED, 0.5)):
        for rank in job.ranks:
            job.entries(rank, range(200), flags, completed=completed)
    duration = job.attempt.view(at(1)).duration["all_reduce"]
    kept = sum(duration.counts)
    assert 0 < kept <= 64
    assert duration.total == pytest.approx(sum(0.5 - 0.001 * seq for seq in range(200 - kept, 200)))


def test_what_retires_by_the_thousand_is_learned_from_together() -> None:
    """Nobody looks for a while: what is over does not pile up, and all of it is counted."""
    job = Job()
    for first in range(1, 40_000, 1_000):
        for rank in job.ranks:
            job.entries(rank, range(first, first + 1_000), completed=2)
        assert sum(map(len, job.attempt._collectives._retired)) <= 8_192
    view = job.attempt.view(at(3))
    assert view.groups[0].matched == 40_000
    assert sum(view.duration["all_reduce"].counts) == 40_000


def test_unknown_completion_times_make_no_duration() -> None:
    """Gloo never records when an op completed: skew is known, duration is not."""
    job = Job()
    for rank in job.ranks:
        job.entries(rank, [1])
    view = job.attempt.view(at(1))
    assert sum(view.skew["all_reduce"].counts) == 1
    assert view.duration == {}


def test_joining_and_completing_may_come_apart() -> None:
    """A batch joins 1..3 and completes 1..2 in separate rows, interleaved over groups."""
    job = Job(world=2)
    other = job.attempt.group(GroupInfo("1", "other", (0, 1)))
    a, b = job.group, other
    J, C = int(Flags.JOINED), int(Flags.COMPLETED)
    rows = [(a, 1, J), (b, 1, J), (a, 1, C), (a, 2, J), (b, 2, J), (a, 2, C), (a, 3, J), (b, 1, C)]
    group, seq, flags = (np.array(column) for column in zip(*rows, strict=True))
    barrier = Signature("nccl", "barrier")
    applied = observe.entries(
        job.attempt, 0, group, seq, flags, signature=barrier, created=at(0) + seq * S, now=at(9)
    )
    assert applied == Applied(rows=8, duplicates=0)
    pairs = job.attempt.snapshot(at(9)).pairs
    groups = pairs.of(0), pairs.of(1)
    assert (groups[0].joined[0], groups[0].completed[0]) == (3, 2)
    assert (groups[1].joined[0], groups[1].completed[0]) == (2, 1)
    assert groups[0].head_since[0] == at(3)
    assert groups[1].head_since[0] == at(2)


def test_a_replay_changes_nothing() -> None:
    """An agent was restarted and sends what it had sent before, and a little more."""
    job = Job()
    for rank in job.ranks:
        job.entries(rank, range(1, 10))
    job.entries(0, [10], Flags.JOINED)
    assert job.entries(0, range(5, 11), replay=True) == Applied(6, 5)
    assert job.entries(0, range(5, 13), replay=True) == Applied(8, 6)
    assert job.attempt.view(at(1)).groups[0].matched == 9


@pytest.mark.parametrize("seqs", [[3], [2, 3], [5, 4], [6, 6], [1]])
def test_seqs_that_go_backwards_are_refused_whole(seqs: list[int]) -> None:
    """Fresh rows repeat a seq or step back: the batch is refused and leaves no trace."""
    job = Job()
    job.entries(0, [1, 2, 3])
    before = job.attempt.view(at(1)).groups[0], job.attempt.tick(at(1)).revision
    with pytest.raises(WireError) as refusal:
        job.entries(0, seqs)
    assert (refusal.value.field, refusal.value.reason) == ("entries.seq", "backwards")
    assert (job.attempt.view(at(1)).groups[0], job.attempt.tick(at(1)).revision) == before
    assert job.entries(0, [4]) == Applied(1, 0)


def test_a_failed_op_is_not_complete() -> None:
    """The watchdog gave up on an op: the rank left it, which does not complete it."""
    job = Job()
    job.entries(0, [1], Flags.JOINED)
    job.entries(0, [1], Flags.COMPLETED | Flags.FAILED)
    assert job.attempt.snapshot(at(1)).pairs.of(0).completed[0] <= 0


def test_started_rows_raise_their_mark() -> None:
    """With timing on, the highest op that the device began is known."""
    job = Job()
    job.entries(0, [1, 2, 3], Flags.JOINED)
    job.entries(0, [1, 2], Flags.STARTED)
    group = job.attempt.snapshot(at(1)).pairs.of(0)
    assert (group.started[0], group.started[1]) == (2, UNKNOWN_SEQ)


def test_a_member_that_never_reports_costs_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One rank's agent is down for good: accumulators reach their limit and the rest is counted."""
    monkeypatch.setattr(collectives, "MAX_OPEN_OF_GROUP", 64)
    job = Job()
    for start in range(1, 1000, 50):
        for rank in (0, 1, 2):
            job.entries(rank, range(start, start + 50))
        job.attempt.stalls(at(0))
    assert job.attempt.evicted["collectives"] > 0
    assert job.attempt.view(at(1)).groups[0].matched == 0
    for start in range(1, 1000, 50):
        job.entries(3, range(start, start + 50))
    assert job.attempt.view(at(1)).groups[0].matched == 64
    assert job.attempt.evicted["rows"] > 0


# -- mismatches ----------------------------------------------------------------------------------


def test_a_mismatch_lists_the_majority_first() -> None:
    """Rank 2 passes another size; it does not matter that its rows came first."""
    job = Job()
    job.entries(2, [1], Flags.JOINED, size=8)
    assert job.attempt.snapshot(at(0)).mismatches == []
    job.entries(0, [1], Flags.JOINED)
    (early,) = job.attempt.snapshot(at(0)).mismatches
    assert not early.complete
    job.entries(1, [1], Flags.JOINED)
    job.entries(3, [1], Flags.JOINED)
    (fact,) = job.attempt.snapshot(at(1)).mismatches
    assert fact.complete
    assert [ranks for _, ranks in fact.classes] == [(0, 1, 3), (2,)]
    assert [signature.input_sizes for signature, _ in fact.classes] == [((4,),), ((8,),)]
    assert fact.detail == "input sizes [[4]] and [[8]]"


def test_a_completed_mismatch_is_kept_for_a_while() -> None:
    """The collective went through in spite of it: the fact stays some seconds, then it goes."""
    job = Job(world=2)
    job.entries(0, [1], size=4)
    job.entries(1, [1], op="broadcast")
    assert len(job.attempt.snapshot(at(1)).mismatches) == 1
    assert len(job.attempt.snapshot(at(10)).mismatches) == 1
    assert job.attempt.snapshot(at(12)).mismatches == []


def test_an_all_to_all_must_add_up() -> None:
    """Uneven splits are fine as long as the totals are equal; it shows once all have joined."""
    job = Job(world=2)
    even, odd, more = (
        Signature("nccl", "all_to_all", ((given,),), ((taken,),), ("Float",), ("Float",))
        for given, taken in ((6, 2), (2, 6), (2, 7))
    )
    for rank, ops in enumerate([(even, even), (odd, more)]):
        observe.entries(
            job.attempt, rank, job.group, (1, 2), Flags.JOINED,
            signature=ops, created=at(0), now=at(0),
        )  # fmt: skip
    (fact,) = job.attempt.snapshot(at(1)).mismatches
    assert fact.seq == 2
    assert fact.detail == "all members together put in 1 element fewer than they take out"


# -- the threshold -------------------------------------------------------------------------------


def wait(job: Job, seq: int, start: float, seconds: float) -> float:
    """Rank 0 joins a collective so many seconds after its peers; returns the threshold after it."""
    end = start + seconds
    for rank in job.ranks:
        job.entries(rank, [seq], created=start if rank else end, now=end + 1)
    return job.threshold_s(end + 1)


def test_a_wait_that_was_critical_becomes_usual_only_by_happening_again() -> None:
    """An hour of trouble with the file system, once: hangs are found as fast as before."""
    job = Job()
    assert wait(job, 1, 0, 3600) == 10
    assert wait(job, 2, 7200, 20) == 100
    assert wait(job, 3, 9000, 400) == 400 + 4 * 70, "not 2,000: minutes above the pause"


def test_groups_of_one_sort_learn_from_each_other() -> None:
    """What one tensor-parallel group has shown holds for others, those declared later too: after a
    wait of 30 s the next may take a minute; it is usual when it has happened again, for a day."""
    job = Job()
    other = job.attempt.group(GroupInfo("other", "default_pg", (0, 1)))
    wait(job, 1, 0, 30)
    assert job.threshold_s(31, other) == 10, "another size is another sort"
    alike = job.attempt.group(GroupInfo("alike", "default_pg", tuple(job.ranks)))
    assert job.threshold_s(31, alike) == 60
    wait(job, 2, 600, 30)
    assert job.threshold_s(631, alike) == 150
    assert job.threshold_s(24 * 3600) == 10


def test_buckets_of_one_wait_are_one_wait() -> None:
    """A late rank is late for ten buckets of the same step: that happened once."""
    job = Job()
    for rank in job.ranks:
        job.entries(rank, range(1, 11), created=0 if rank else 30, now=31)
    assert job.threshold_s(31) == pytest.approx(60, abs=0.1)


# -- what people see -----------------------------------------------------------------------------


def test_a_view_says_who_waits_where() -> None:
    """Rank 2 is missing from all_reduce #7; the view names the waits and counts what is open."""
    job = Job()
    for rank in job.ranks:
        job.entries(rank, range(1, 7))
    for rank in (0, 1, 3):
        job.entries(rank, [7], Flags.JOINED, created=1)
    job.hears(21)
    view = job.attempt.view(at(21))
    (group,) = view.groups
    assert group.label == "default_pg"
    assert (group.enqueued, group.completed, group.matched) == (7, 6, 6)
    assert (group.open_collectives, group.stalled_collectives) == (1, 1)
    assert group.stall_s == pytest.approx(20)
    assert [rank.waiting_in for rank in view.ranks] == [
        "all_reduce #7 on default_pg",
        "all_reduce #7 on default_pg",
        "",
        "all_reduce #7 on default_pg",
    ]
    assert view.ranks[0].waiting_s == pytest.approx(20)
    assert view.ranks[-1].info.rank == 3
    assert [rank.info.rank for rank in view.ranks[1:3]] == [1, 2]


def test_a_wait_in_a_view_counts_as_a_stall_does() -> None:
    """A program that runs ahead of its device waits since its last op was completed; a rank that
    has exited waits in nothing."""
    job = Job()
    for rank in job.ranks:
        job.entries(rank, range(1, 5), Flags.JOINED, created=0)
    for done in (1, 2, 3):
        for rank in job.ranks:
            job.watermark(rank, 4, done, 0.0, as_of=float(done))
    job.status(1, RankState.EXITED, 4)
    ranks = job.attempt.view(at(5)).ranks
    assert [rank.waiting_in for rank in ranks[:2]] == ["all_reduce #4 on default_pg", ""]
    assert [rank.waiting_s for rank in ranks[:2]] == [pytest.approx(3), 0]


def test_a_view_does_not_change_afterwards() -> None:
    """Whoever holds a view sees the moment it was taken, whatever comes later."""
    job = Job()
    job.entries(0, [1], Flags.JOINED)
    view, snapshot = job.attempt.view(at(1)), job.attempt.snapshot(at(1))
    job.entries(0, [1], Flags.COMPLETED)
    job.entries(0, range(2, 40))
    job.status(0, RankState.EXITED, 2)
    job.attempt.group(GroupInfo("1", "", (0, 1)))
    assert view.groups[0].enqueued == 1
    assert len(view.groups) == 1
    assert view.ranks[0].waiting_in == "all_reduce #1 on default_pg"
    assert view.ranks[0].status.state is RankState.LIVE
    assert snapshot.pairs.of(0).joined[0] == 1
    assert snapshot.op(0, 1) == "all_reduce"
    assert snapshot.op(0, 2) == ""


def test_a_member_that_was_never_declared_opens_nothing() -> None:
    """The agent of rank 1 is not up yet: its silence is not a heap of open collectives."""
    job = Job(world=1)
    attempt = Attempt(AttemptKey("job", 1), 2, Policy(), at(0))
    attempt.rank(rank_info(0, world=2))
    attempt.group(GroupInfo("0", "", (0, 1)))
    job.attempt, job.group = attempt, 0
    job.entries(0, range(1_000, 1_100))
    (group,) = job.attempt.view(at(0)).groups
    assert (group.open_collectives, group.completed, group.size) == (0, -1, 2)
