"""What the end of an op proves: recorders that show none, time-outs, and aborts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from frd.flight.entry import Status
from frd.model import Activity, Confidence, Kind, RankInfo, Reason
from frd.offline.analysis.analyze import Analysis, analyze
from tests.world.traces import Folder, Row, done, suspects, waits

STUCK = Reason.CPU_STUCK
TIMEOUT_MS = 12_000
DEADLINE = 4_000 + TIMEOUT_MS
"""Of the ops that are enqueued at second 4."""


def ran(seq: int, group: str = "0", **fields: Any) -> Row:
    """An op at second `seq` that took 10 ms."""
    at = 1_000 * seq
    fields = {"completed_at": at + 10, "timeout_ms": TIMEOUT_MS} | fields
    return done(seq, group, at=at, **fields)


def aborted(seq: int, group: str = "0", **fields: Any) -> Row:
    """An op that the abort of its communicator completed."""
    return ran(seq, group, completed_at=DEADLINE + 500, **fields)


def in_flight(seq: int, group: str = "0") -> Row:
    return waits(seq, group, at=1_000 * seq, timeout_ms=TIMEOUT_MS)


def confidence(found: Analysis) -> list[Confidence]:
    return [suspect.confidence for one in found.findings for suspect in one.suspects]


# -- aborts ----------------------------------------------------------------------------------


def test_completion_past_the_timeout_proves_no_attendance() -> None:
    """Rank 3 never joins #4, which completes on its peers when their communicators are aborted."""
    before = [ran(1), ran(2), ran(3)]
    folder = Folder().group("0", range(4)).all_ranks(*before, aborted(4), ranks=range(3))
    found = analyze(folder.rank(3, *before).trace())
    assert suspects(found) == {3: STUCK}
    assert confidence(found) == [Confidence.HIGH]
    assert found.findings[0].victims == (0, 1, 2)
    assert found.waiting[0].is_proven


@pytest.mark.parametrize(("is_late", "has_file"), list(product(product((0, 1), repeat=2), (0, 1))))
def test_dumps_before_and_after_the_abort_give_one_finding(
    is_late: tuple[int, int], has_file: int
) -> None:
    """Rank 2 is stuck; the files of ranks 0 and 1, which torch's watchdog wrote, are from before or
    after the abort, and that of rank 2 may be missing. Ranks 0 and 1 also share a group."""
    before = [ran(1), ran(2), ran(1, "1"), ran(3)]
    folder = Folder().group("0", range(3)).group("1", range(2))
    for rank, late in enumerate(is_late):
        last = aborted if late else in_flight
        folder.rank(rank, *before, last(4))
    if has_file:
        folder.rank(2, ran(1), ran(2), ran(3))
    found = analyze(folder.trace())
    if has_file:
        assert len(found.findings) == 1
        assert suspects(found) == {2: STUCK}
    else:
        assert suspects(found) == {}
        assert all(one.unknown == (2,) for one in found.findings)


def test_an_abort_ends_what_is_queued_behind_and_in_other_groups() -> None:
    """Ranks 0 and 1 wait for rank 2 in #4; the abort also completes #5, queued behind it, and an op
    of another group that rank 2 has not joined either."""
    folder = Folder().group("0", range(3)).group("1", range(3))
    behind = [ran(5, "1"), aborted(4), aborted(5), aborted(6, "1")]
    folder.all_ranks(ran(3), *behind, ranks=range(2)).rank(2, ran(3), ran(5, "1"))
    found = analyze(folder.trace())
    assert len(found.findings) == 1
    assert suspects(found) == {2: STUCK}
    assert found.findings[0].collective is not None
    assert found.findings[0].collective.seq == 4


def test_a_slow_op_that_all_joined_is_no_fault() -> None:
    """#4 took longer than its timeout, which is not enforced, and the job went on."""
    rows = [ran(3), aborted(4), ran(20), ran(21)]
    found = analyze(Folder().group("0", range(3)).all_ranks(*rows, ranks=range(3)).trace())
    assert (found.findings, found.not_proven) == ((), ())
    assert found.collectives.completed.tolist() == [3] * 4


def test_an_op_that_began_after_the_slow_one_proves_attendance() -> None:
    """Long after the slow op, ranks 0 and 1 complete #21, and rank 2 is alone inside it."""
    rows = [ran(3), aborted(4), ran(20)]
    folder = Folder().group("0", range(3)).all_ranks(*rows, ran(21), ranks=range(2))
    found = analyze(folder.rank(2, *rows, in_flight(21)).trace())
    assert suspects(found) == {2: Reason.IN_COLLECTIVE_ALONE}


def test_all_joined_and_the_abort_ended_it_on_one_rank() -> None:
    """The network fails in #4: rank 0's dump is from after its abort, the others' from before."""
    folder = Folder().group("0", range(3)).rank(0, ran(3), aborted(4))
    found = analyze(folder.all_ranks(ran(3), in_flight(4), ranks=(1, 2)).trace())
    assert suspects(found) == {}
    assert [one.reason for one in found.findings] == [Reason.NETWORK_OR_DEVICE]


def test_completions_by_abort_bound_no_clock() -> None:
    """The clock of rank 1 is 5 minutes ahead: #4, which the abort completed, does not say so."""
    ahead = 300_000
    folder = Folder().group("0", range(3)).all_ranks(aborted(4), ranks=(0, 2))
    folder.rank(1, replace(aborted(4), at=4_000 + ahead, completed_at=DEADLINE + 500 + ahead))
    found = analyze(folder.trace())
    assert [one.kind for one in found.findings] == []
    assert set(found.clock_uncertainties_ns.values()) == {None}


# -- recorders that show no ends -------------------------------------------------------------


def issued(
    backend: str, count: int, *, state: str = "scheduled", retired: bool = True
) -> list[Row]:
    """Ops that say nothing about their ends."""
    return [
        Row(
            f"{backend}:all_reduce",
            seq,
            at=1_000 * seq,
            state=state,
            retired=retired,
            started_at=1_000 * seq if state == "started" else None,
        )
        for seq in range(1, count + 1)
    ]


def counters(enqueued: int, completed: int) -> dict[str, Any]:
    return {"status": {0: Status(enqueued=enqueued, started=-1, completed=completed)}}


TORCHCOMMS, AT_ENQUEUE, NEVER = "torchcomms", "xccl that retires at enqueue", "xccl that does not"


def recorded(name: str, counts: Sequence[int], backend: str, state: str = "scheduled") -> Analysis:
    """Ranks that issued so many ops each."""
    folder = Folder().group("0", range(len(counts)))
    for rank, count in enumerate(counts):
        rows = issued(backend, count, state=state, retired=name != NEVER)
        status = counters(count, -1 if name == NEVER else count) if name != TORCHCOMMS else {}
        folder.rank(rank, *rows, **status)
    return analyze(folder.trace())


@pytest.mark.parametrize("name", [TORCHCOMMS, AT_ENQUEUE, NEVER])
@pytest.mark.parametrize("backend", ["nccl", "ncclx", "xccl", "fake"])
def test_a_recorder_without_ends_shows_an_absence_and_no_wait(name: str, backend: str) -> None:
    """Rank 3 has not joined the last op: it is named, not with high confidence. When all have, no
    fault is shown, and the answer says that waits cannot be seen."""
    found = recorded(name, [5, 5, 5, 4], backend)
    assert suspects(found) == {3: STUCK}
    assert confidence(found) == [Confidence.MEDIUM]
    assert found.findings[0].collective is not None
    assert found.findings[0].collective.seq == 5
    assert f"no entry of {backend} shows whether" in found.findings[0].suspects[0].evidence
    healthy = recorded(name, [5] * 4, backend)
    assert not healthy.fault
    (text,) = healthy.not_proven
    assert text.startswith(f"no entry of {backend} shows whether its op has ended")


def test_started_at_issue_is_no_end() -> None:
    """torchcomms with timing: all ops are retired and started."""
    assert suspects(recorded(TORCHCOMMS, [5, 5, 4], "ncclx", "started")) == {2: STUCK}
    assert not recorded(TORCHCOMMS, [5, 5, 5], "ncclx", "started").fault


@pytest.mark.parametrize("retired", [False, True])
def test_sends_before_a_collective_are_no_waits(retired: bool) -> None:
    """A message from rank 0 to rank 1, then two collectives: nothing shows that it is under way."""
    folder = Folder().group("0", range(2))
    for rank, name in enumerate(("xccl:send 0->1", "xccl:recv 1<-0")):
        message = Row(name, 0, at=1, p2p=True, p2p_seq=1, state="scheduled", retired=retired)
        folder.rank(rank, message, *issued("xccl", 2, retired=retired), **counters(2, -1))
    assert not analyze(folder.trace()).fault


def test_members_of_an_op_that_may_not_have_ended_are_not_accused() -> None:
    """Ranks 2 and 3 have all joined their own group's first op and nothing since; ranks 0 and 1
    wait for them in another group: nothing shows that they left the first op."""
    folder = Folder().group("1", (2, 3)).group("2", range(4))
    first, second = (replace(issued("xccl", 1)[0], group=group) for group in "12")
    folder.all_ranks(first, ranks=(2, 3)).all_ranks(second, ranks=(0, 1))
    found = analyze(folder.trace())
    assert suspects(found) == {}
    assert [one.reason for one in found.findings] == [Reason.NETWORK_OR_DEVICE]


@pytest.mark.parametrize("marks", [False, True])
def test_ops_that_are_retired_on_time_out_are_no_ends(marks: bool) -> None:
    """HCCL retires #3 when it times out on ranks 0 and 1, whether it marks completion or not; rank
    2 has not joined it."""
    before = issued("hccl", 2, state="completed" if marks else "scheduled", retired=False)
    last = replace(issued("hccl", 3)[-1], retired=True)
    folder = Folder().group("0", range(3)).all_ranks(*before, last, ranks=(0, 1))
    found = analyze(folder.rank(2, *before).trace())
    assert suspects(found) == {2: STUCK}
    assert confidence(found) == [Confidence.HIGH if marks else Confidence.MEDIUM]


def test_gloo_in_flight_shows_its_mark() -> None:
    """Ranks 0 and 1 wait in #3 and have retired what was before it: #1 and #2 have ended."""
    before, last = issued("gloo", 2), issued("gloo", 3, retired=False)[-1]
    folder = Folder().group("0", range(3)).all_ranks(*before, last, ranks=(0, 1))
    found = analyze(folder.rank(2, *before).trace())
    assert suspects(found) == {2: STUCK}
    assert confidence(found) == [Confidence.HIGH]


def test_an_idle_gloo_job_accuses_no_rank() -> None:
    """All ops are retired; rank 2 was dumped some milliseconds before the others, and had not
    joined the last op."""
    folder = Folder().group("0", range(3))
    folder.all_ranks(*issued("gloo", 3), ranks=(0, 1), taken=(3_010, 3_020))
    folder.rank(2, *issued("gloo", 2), taken=(2_990, 3_000))
    found = analyze(folder.trace())
    assert not found.fault
    assert len(found.not_proven) == 1


def test_nothing_has_ever_completed() -> None:
    """All ranks are in the first collective of an NCCL job: another recorder would show the same of
    a healthy job. With starts, the recorder shows ends as well."""
    rows = issued("nccl", 2, retired=False)
    found = analyze(Folder().group("0", range(2)).all_ranks(*rows, ranks=range(2)).trace())
    assert (found.fault, len(found.not_proven)) == (False, 1)
    rows[0] = replace(rows[0], state="started", started_at=1_001)
    found = analyze(Folder().group("0", range(2)).all_ranks(*rows, ranks=range(2)).trace())
    (finding,) = found.findings
    assert finding.reason is Reason.NETWORK_OR_DEVICE
    assert finding.collective is not None
    assert finding.collective.seq == 1


def test_counters_that_follow_ends_show_the_mark() -> None:
    """A recorder that was reset: no entry has completed, and the counters say that ops have."""
    rows = issued("nccl", 3, retired=False)[2:]
    folder = Folder().group("0", range(2)).all_ranks(*rows, ranks=range(2), **counters(3, 2))
    (finding,) = analyze(folder.trace()).findings
    assert finding.reason is Reason.NETWORK_OR_DEVICE


# -- A wait is a hang only if it lasted: what dumps prove about the length of a wait ---------------


def checkpoint(taken: tuple[float, float] | None, **of_wait: Any) -> Folder:
    """Rank 0 saves a checkpoint; rank 1 has been waiting for it since 1 s."""
    folder = Folder(standing={0: Activity(("train.py:7 in save",))}).group("0", range(2))
    folder.rank(0, done(1, at=0), taken=taken, info=here(0))
    mine = (done(1, at=0), waits(2, at=1_000, **of_wait))
    return folder.rank(1, *mine, taken=taken, info=here(1))


def here(rank: int) -> RankInfo:
    """A rank of the one node, so that there is one clock."""
    return RankInfo(rank, 2, "node0", "boot0", 100 + rank)


def dumped(folder: Folder, at_ms: float) -> Analysis:
    """All ranks were dumped at that time, within 10 ms."""
    for one in folder.ranks.values():
        one.taken = (at_ms, at_ms + 10)
    return analyze(folder.trace())


# -- one dump ----------------------------------------------------------------------------------


def test_a_young_wait_is_no_finding() -> None:
    """Rank 1 had waited for 0.6 s when dumped: nothing is claimed, and the wait is named."""
    found = analyze(checkpoint((1_600, 1_650)).trace())
    assert (list(found.findings), found.fault) == ([], False)
    assert found.not_proven == (
        "rank 0 had kept rank 1 waiting for 0.6 s when dumped (in all_reduce #2 on default_pg; "
        "rank 0 was at train.py:7 in save); take another dump in a minute",
    )
    assert found.summary == "the dumps prove no communication fault"
    assert found.to_json()["not_proven"] == list(found.not_proven)


def test_a_wait_that_lasted_is_a_finding() -> None:
    """The same wait, dumped 30 s later: rank 0 is the first cause."""
    found = analyze(checkpoint((31_000, 31_050)).trace())
    assert suspects(found) == {0: Reason.CPU_STUCK}
    assert found.not_proven == ()
    (waiting,) = found.waiting
    assert (waiting.is_proven, waiting.at_least_s) == (True, 30.0)
    (waited,) = found.to_json()["waited"]
    assert waited == {
        "finding": found.findings[0].id,
        "at_least_s": 30.0,
        "at_most_s": pytest.approx(30.05),
    }
    assert found.findings[0].collective is not None
    assert found.findings[0].collective.waited_s == 30.0


def test_the_threshold_is_the_callers_or_the_folders() -> None:
    """A wait of 4 s: the caller's threshold counts, then the one of the service, then 10 s."""
    folder = checkpoint((5_000, 5_000))
    assert not analyze(folder.trace()).fault
    assert analyze(folder.trace(), stall_after_s=3).fault
    of_service = replace(folder.trace(), stall_after_s=3.0)
    assert analyze(of_service).fault
    assert not analyze(of_service, stall_after_s=5).fault


def test_dumps_that_do_not_tell_their_time_are_those_of_a_hang() -> None:
    """It is unknown when they were taken: the verdict holds, and the open question is reported."""
    found = analyze(checkpoint(None).trace())
    assert suspects(found) == {0: Reason.CPU_STUCK}
    (waiting,) = found.waiting
    assert (waiting.is_proven, waiting.at_most_s) == (False, None)


def test_the_time_of_a_file_bounds_from_above_only() -> None:
    """Files written 0.9 s after the wait began acquit; files written days later prove nothing."""
    assert not analyze(checkpoint((0, 1_900)).trace()).fault
    late = analyze(checkpoint((0, 400_000_000)).trace())
    assert suspects(late) == {0: Reason.CPU_STUCK}
    assert not late.waiting[0].is_proven


def test_files_from_before_the_timeout_are_of_a_job_that_ran() -> None:
    """Written 60 s after the wait began, which times out after 600 s: torch did not take them, so
    who is named is named with less than high confidence, until a second dump proves the wait."""
    (finding,) = analyze(checkpoint((0, 61_000)).trace()).findings
    assert [(s.rank, s.confidence) for s in finding.suspects] == [(0, Confidence.MEDIUM)]
    (finding,) = analyze(checkpoint((0, 700_000)).trace()).findings
    assert finding.suspects[0].confidence is Confidence.HIGH
    first = checkpoint((0, 1_900)).trace()
    (finding,) = analyze(checkpoint((0, 61_000)).trace(), earlier=[first]).findings
    assert finding.suspects[0].confidence is Confidence.HIGH


def test_a_file_that_is_older_than_its_records_tells_nothing() -> None:
    """Its time of writing is of another clock, or was set by hand."""
    assert analyze(checkpoint((0, 900)).trace()).fault


def test_what_the_absent_recorded_meanwhile_proves_the_wait() -> None:
    """Rank 0 recorded in another group for 20 s after rank 1 began to wait."""
    folder = checkpoint(None).group("1", [0])
    folder.ranks[0].rows.append(done(1, "1", at=21_000))
    found = analyze(folder.trace())
    assert found.waiting[0].is_proven
    assert found.waiting[0].at_least_s == 20


def test_an_op_that_outlasted_its_own_timeout_is_stuck() -> None:
    """The timeout is 2 s, below the threshold; and what the watchdog gave up is stuck anyway."""
    assert not analyze(checkpoint((2_500, 2_500), timeout_ms=2_000).trace()).fault
    assert analyze(checkpoint((3_100, 3_100), timeout_ms=2_000).trace()).fault
    gave_up = analyze(checkpoint((1_600, 1_600), retired=True).trace())
    assert suspects(gave_up) == {0: Reason.CPU_STUCK}


def test_an_op_waits_from_the_end_of_the_one_before() -> None:
    """Rank 1 enqueued op 2 at 1 s, far ahead; op 1 ran until 30 s and the dump is of 31 s."""
    folder = Folder().group("0", range(2))
    first = done(1, at=0, completed_at=30_000)
    folder.rank(0, first, info=here(0)).rank(1, first, waits(2, at=1_000), info=here(1))
    assert not dumped(folder, 31_000).fault
    assert suspects(dumped(folder, 45_000)) == {0: Reason.CPU_STUCK}


def test_who_came_late_a_moment_ago_is_no_network_fault() -> None:
    """Rank 0 joined after 12 s, just before the dump: all are there and it will complete."""
    folder = Folder().group("0", range(2))
    for rank, at in ((0, 13_000), (1, 1_000)):
        folder.rank(rank, done(1, at=0), waits(2, at=at))
    assert not dumped(folder, 13_050).fault
    (finding,) = dumped(folder, 25_000).findings
    assert finding.reason is Reason.NETWORK_OR_DEVICE


def test_dumps_of_ranks_at_different_times() -> None:
    """Rank 1 was dumped half a second later and is 20 collectives further: both move."""
    folder = Folder().group("0", range(2))
    first = [done(seq, at=seq) for seq in range(1, 10)]
    folder.rank(0, *first, waits(10, at=10), taken=(11, 12))
    second = [done(seq, at=seq * 10) for seq in range(10, 30)]
    folder.rank(1, *first, *second, waits(30, at=500), taken=(511, 512))
    found = analyze(folder.trace())
    assert not found.fault
    assert found.not_proven


def test_mismatch_and_order_need_no_time() -> None:
    """Ranks that disagree, or entered two groups in different orders, are wrong however short the
    wait."""
    folder = Folder().group("0", range(3)).all_ranks(waits(1, at=1_000), ranks=(0, 1))
    folder.rank(2, waits(1, at=1_000, ins=[[9]], outs=[[9]]))
    (finding,) = dumped(folder, 1_100).findings
    assert (finding.kind, finding.suspects[0].rank) == (Kind.MISMATCH, 2)

    folder = Folder().group("1", range(2)).group("2", range(2))
    folder.rank(0, waits(1, "1", at=1_000)).rank(1, waits(1, "2", at=1_000))
    (finding,) = dumped(folder, 1_100).findings
    assert finding.kind is Kind.ORDER


@pytest.mark.parametrize("taken", [None, (0, 2_000_000)])
@pytest.mark.parametrize(
    ("others_wait", "until_ms", "confidence"),
    [
        pytest.param(False, 2, Confidence.MEDIUM, id="the others may go on"),
        pytest.param(True, 2, Confidence.HIGH, id="all others wait for it"),
        pytest.param(False, 60_000, Confidence.HIGH, id="it lasted"),
    ],
)
def test_a_rank_that_is_still_inside_may_have_been_dumped_earlier(
    others_wait: bool, until_ms: float, confidence: Confidence, taken: tuple[float, float] | None
) -> None:
    """Rank 0 is in an op that the others completed: a hang, or a healthy job whose dumps were taken
    milliseconds apart. Only the first holds up all others, or lasts."""
    folder = Folder().group("0", range(3)).group("1", [0])
    folder.rank(0, done(1), waits(2, at=1), done(1, "1", at=until_ms), taken=taken, info=here(0))
    for rank in (1, 2):
        last = [waits(3, at=2)] if others_wait else []
        folder.rank(rank, done(1), done(2, at=1), *last, taken=taken, info=here(rank))
    found = analyze(folder.trace())
    assert suspects(found) == {0: Reason.IN_COLLECTIVE_ALONE}
    assert found.findings[0].suspects[0].confidence is confidence


def test_receives_that_both_posted_ahead_are_no_circle() -> None:
    """Ranks 0 and 1 posted their receives and compute what they will send: no deadlock yet."""
    folder = Folder().group("0", range(2))
    for rank, name in enumerate(("nccl:recv 0<-1", "nccl:recv 1<-0")):
        folder.rank(rank, Row(name, 0, at=1_000, p2p=True, p2p_seq=1, state="scheduled"))
    assert not dumped(folder, 1_500).fault
    (finding,) = dumped(folder, 60_000).findings
    assert finding.kind is Kind.ORDER


def test_a_young_wait_beside_a_hang_is_of_the_hang() -> None:
    """Ranks 2 and 3 joined the pile a moment ago; the finding speaks for all, and for rank 0."""
    folder = Folder().group("0", range(4)).rank(0, done(1, at=0))
    for rank, at in ((1, 1_000), (2, 30_900), (3, 30_990)):
        folder.rank(rank, done(1, at=0), waits(2, at=at))
    found = dumped(folder, 31_000)
    assert suspects(found) == {0: Reason.CPU_STUCK}
    assert found.findings[0].suspects[0].confidence is Confidence.HIGH
    assert found.findings[0].victims == (1, 2, 3)
    assert found.not_proven == ()


# -- two dumps ---------------------------------------------------------------------------------


def test_two_dumps_prove_what_neither_does_alone() -> None:
    """Files show only the end of their dumps; that the same op waits in both proves 60 s."""
    first, second = checkpoint((0, 1_900)).trace(), checkpoint((0, 61_900)).trace()
    assert not analyze(first).fault
    alone = analyze(second)
    assert not alone.waiting[0].is_proven
    both = analyze(second, earlier=[first])
    assert suspects(both) == {0: Reason.CPU_STUCK}
    assert both.waiting[0].is_proven
    assert both.waiting[0].at_least_s == 60.0


def test_another_wait_in_the_second_dump_is_not_the_same() -> None:
    """The job moved on between the dumps: what waits now has not waited since the first."""
    folder = checkpoint((0, 61_900))
    folder.ranks[0].rows.append(done(2, at=2_000))
    folder.ranks[1].rows[-1] = done(2, at=1_000)
    folder.ranks[1].rows.append(waits(3, at=61_000))
    found = analyze(folder.trace(), earlier=[checkpoint((0, 1_900)).trace()])
    assert not found.fault
    (text,) = found.not_proven
    assert "waiting for 0.0 to 0.9 s" in text


def test_a_time_out_without_end() -> None:
    """A program turned the watchdog off with a time-out of 110,000 days: its waits are judged as
    without one."""
    endless = 110_000 * 86_400_000
    trace = checkpoint((31_000, 31_050), timeout_ms=endless).trace()
    assert suspects(analyze(trace)) == {0: Reason.CPU_STUCK}
    assert suspects(analyze(trace, stall_after_s=60)) == {}
