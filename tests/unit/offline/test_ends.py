"""What the end of an op proves: recorders that show none, time-outs, and aborts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from frd.flight.entry import Status
from frd.model import Confidence, Reason
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
