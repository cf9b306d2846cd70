"""The life of findings in scripted jobs: one incident, one finding, one id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from frd.engine.findings.attachments import Evidence
from frd.engine.findings.claim import Known
from frd.engine.findings.tracker import Tracker
from frd.engine.hangs.detector import lifetime_of, look_at
from frd.engine.hangs.diagnosis import Diagnosis
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Snapshot, StalledOp, StallTable
from frd.errors import WireError
from frd.forms import clock_text
from frd.model import (
    Activity,
    AlignedNs,
    Change,
    Confidence,
    ExitInfo,
    ExitKind,
    Kind,
    RankState,
    Reason,
)
from tests.world.job import Job, changes
from tests.world.scene import Scene

OPENED, UPDATED, CLOSED = Change.OPENED, Change.UPDATED, Change.CLOSED


def hanging() -> Job:
    """Four ranks; rank 2 never comes to seq 1."""
    job = Job(4).group("dp", range(4)).all_reduce("dp", 0)
    job.run(1)
    return job.join("dp", [0, 1, 3], 1)


# -- stalls ----------------------------------------------------------------------------------


def test_a_stall_opens_within_two_seconds_of_the_threshold_and_closes_when_it_is_over() -> None:
    """Rank 2 comes 9 s late; the finding opens once, names it, and closes with its id."""
    job = hanging()
    assert job.run(4.5) == []
    assert changes(job.run(2)) == [OPENED]
    finding = job.only()
    assert (finding.kind, finding.suspects[0].rank) == (Kind.STALL, 2)
    assert finding.suspects[0].reason is Reason.CPU_STUCK
    assert finding.victims == (0, 1, 3)
    assert finding.groups_held_up == ("dp",)
    assert finding.collective is not None
    assert finding.collective.missing_ranks == (2,)
    assert finding.summary == (
        f"all_reduce #1 on dp has waited {finding.collective.waited_s:.1f} s "
        "for rank 2 (alive, but has not joined)"
    )
    job.run(3)
    job.join("dp", [2], 1).complete("dp", range(4), 1)
    (event,) = job.run(3)
    assert (event.change, event.finding.id) == (CLOSED, finding.id)
    assert event.finding.close_reason == "the job moved on"
    assert event.finding.closed_at is not None
    assert job.open() == []
    assert [f.id for f in job.findings()] == [finding.id]


def test_waiting_longer_is_no_news() -> None:
    """A minute of the same stall: one event, but the snapshot's waiting time goes on."""
    job = hanging()
    job.run(60)
    assert changes(job.events) == [OPENED]
    ref = job.only().collective
    assert ref is not None
    assert ref.waited_s == pytest.approx(60, abs=1)


def test_one_incident_over_two_layers_of_groups_is_one_finding() -> None:
    """Rank 3 is missing in tp; 2 therefore in dp; more groups stall later under the same id."""
    job = Job(4).group("tp", [2, 3]).group("dp", [0, 1, 2]).group("late", [0, 1])
    job.all_reduce("tp", 0).all_reduce("dp", 0).all_reduce("late", 0)
    job.run(1)
    job.join("tp", [2], 1).join("dp", [0], 1)
    job.run(4)
    job.join("late", [1], 1)
    job.run(8)
    finding = job.only()
    assert changes(job.events)[0] is OPENED
    assert OPENED not in changes(job.events)[1:]
    assert finding.groups_held_up == ("tp", "dp", "late")
    assert [s.rank for s in finding.suspects] == [3]
    assert finding.victims == (0, 1, 2)


def test_two_incidents_are_two_findings() -> None:
    """Disjoint groups, each with a missing rank of its own."""
    job = Job(4).group("a", [0, 1]).group("b", [2, 3])
    job.join("a", [0], 0).join("b", [3], 0)
    job.run(8)
    assert {finding.suspects[0].rank for finding in job.open()} == {1, 2}
    assert len({finding.id for finding in job.open()}) == 2


def test_findings_that_turn_out_to_be_one_incident_become_one() -> None:
    """a waits for 1 and b for 2; then 1 and 2 turn out to wait for 3 themselves."""
    job = Job(5).group("a", [0, 1]).group("b", [2, 4]).group("c", [1, 2, 3])
    job.join("a", [0], 0).join("b", [4], 0)
    job.run(6)
    assert len(job.open()) == 2
    first = min(job.open(), key=lambda finding: (finding.opened_at, finding.id))
    job.join("c", [1, 2], 0)
    job.run(12)
    finding = job.only()
    assert [s.rank for s in finding.suspects] == [3]
    closed = {event.finding.id: event.finding for event in job.events if event.change is CLOSED}
    assert {tuple(s.rank for s in f.suspects) for f in closed.values()} == {(1,), (2,)}
    assert closed[first.id].close_reason == (
        f"its suspects joined; what waits now is in finding {finding.id}"
    )


def test_a_suspect_is_not_exchanged_on_a_passing_sight() -> None:
    """The late rank comes; for half a second its peers completed and one has not yet."""
    job = hanging()
    job.run(8)
    job.join("dp", [2], 1).complete("dp", [0, 1, 2], 1)
    job.run(0.5)
    job.complete("dp", [3], 1)
    job.run(3)
    assert changes(job.events) == [OPENED, CLOSED]
    assert [s.rank for s in job.events[-1].finding.suspects] == [2]


def left_inside() -> tuple[Snapshot, StallTable, Diagnosis]:
    """Rank 3 is still inside what the others have completed, which may be true for a moment of
    any collective; two groups are stalled."""
    scene = Scene(4).group("dp", range(4)).group("tp", [0, 1])
    scene.passed("dp", 7, [0, 1, 2]).waits("dp", 7, [3])
    (diagnosis,) = scene.find()
    assert {suspect.reason for suspect in diagnosis.suspects} == {Reason.IN_COLLECTIVE_ALONE}
    return scene.snapshot(), scene.stalls(), diagnosis


def looked(looks: Sequence[tuple[float, Sequence[Diagnosis]]]) -> list[list[Change]]:
    """What is told when diagnoses are as they are so many seconds from now."""
    snapshot, stalls, _ = left_inside()
    policy, life = Policy(), lifetime_of(Policy())
    tracker = Tracker(snapshot.key, [life])
    events = []
    for seconds, diagnoses in looks:
        now = replace(snapshot, now=AlignedNs(snapshot.now + round(seconds * 1e9)))
        look = look_at(now, stalls, diagnoses, policy, Known(), since=AlignedNs(0))
        events.append(changes(tracker.update(life, look, room=10)))
    return events


def test_what_passes_is_told_when_it_has_not_passed() -> None:
    """A diagnosis that reports of different age could fake stands for 1.5 s, while it grows."""
    *_, diagnosis = left_inside()
    larger = replace(diagnosis, stalled=(StalledOp(0, 7), StalledOp(1, 3)))
    assert looked([(0, [diagnosis]), (1, [larger]), (1.5, [larger])]) == [[], [], [OPENED]]


def test_what_passed_is_not_held_against_what_comes_again() -> None:
    """The same diagnosis twice, two seconds apart, and all was well in between."""
    *_, diagnosis = left_inside()
    assert looked([(0, [diagnosis]), (1, []), (2, [diagnosis]), (3, [diagnosis])]) == [
        [],
        [],
        [],
        [],
    ]


def test_somebody_is_named_at_once_where_nobody_was() -> None:
    """All joined, so it seems to be the network; then 2 turns out to have been stopped since."""
    job = Job(4).group("dp", range(4)).all_reduce("dp", 0)
    job.run(1)
    job.join("dp", range(4), 1)
    job.run(1)
    stopped_at = job.now
    job.run(7)
    before = job.only()
    assert (before.reason, before.suspects) == (Reason.NETWORK_OR_DEVICE, ())
    job.status(2, RankState.SILENT, "process 102 is stopped (state T)", at=stopped_at)
    (event,) = job.run(0.5)
    assert (event.change, event.finding.id) == (UPDATED, before.id)
    assert event.finding.reason is None
    assert [(s.rank, s.reason) for s in event.finding.suspects] == [(2, Reason.UNREACHABLE)]


def test_a_stuck_suspect_that_exits_keeps_its_reason() -> None:
    """Somebody kills the rank that a stall names: how it ended is told beside the cause."""
    job = hanging()
    job.run(8)
    before = job.only()
    killed_at = job.now
    job.status(2, RankState.EXITED, how=ExitInfo(ExitKind.SIGNAL, signal=9))
    job.run(20)
    finding = job.only()
    assert finding.id == before.id
    assert finding.suspects == before.suspects
    assert finding.kind is Kind.STALL
    assert finding.ended_by == f"rank 2 ended by SIGKILL at {clock_text(killed_at)}"
    assert finding.summary.endswith(f"; {finding.ended_by}")


def test_late_telemetry_takes_no_certainty_away() -> None:
    """After the finding opened, the suspect's agent goes away: it stays `cpu_stuck`, high."""
    job = hanging()
    job.run(8)
    job.reporting.discard(2)
    job.attempt.connection([2], False)
    job.run(20)
    (suspect,) = job.only().suspects
    assert (suspect.reason, suspect.confidence) == (Reason.CPU_STUCK, Confidence.HIGH)


def test_who_finished_early_is_named() -> None:
    """Rank 2 ended its program cleanly while the others still count on it."""
    job = hanging()
    job.status(2, RankState.FINISHED)
    job.run(8)
    assert [(s.rank, s.reason) for s in job.only().suspects] == [(2, Reason.EXITED)]
    assert job.only().kind is Kind.STALL


def test_healthy_steps_open_nothing() -> None:
    """A minute of steps, with a pause of 4 s in the middle of it."""
    job = Job(4).group("dp", range(4)).group("tp", [0, 1])
    for seq in range(60):
        job.all_reduce("dp", seq).all_reduce("tp", seq)
        job.run(4 if seq == 30 else 0.5)
    assert job.events == []


# -- evidence --------------------------------------------------------------------------------


def test_a_stack_that_comes_later_is_in_the_same_finding() -> None:
    """The agent's stack arrives: evidence and summary name the line, and both survive looks."""
    job = hanging()
    job.run(6)
    frames = ("/srv/app/train.py:88 in load_batch", "/srv/app/train.py:120 in main")
    (event,) = job.engine.attach(job.only().id, Evidence(2, Activity(frames)))
    assert event.change is UPDATED
    job.run(5)
    finding = job.only()
    (suspect,) = finding.suspects
    assert suspect.stack == frames
    assert suspect.evidence == ("last joined seq 0 of dp; main thread at train.py:88 in load_batch")
    assert finding.summary.endswith("for rank 2 (train.py:88 load_batch)")
    job.join("dp", [2], 1).complete("dp", range(4), 1)
    (closed,) = job.run(3)
    assert closed.finding.suspects == finding.suspects


def test_the_first_waiting_stack_is_the_witness() -> None:
    """Stacks of two ranks that wait arrive, out of order: the lowest rank's line is told."""
    job = hanging()
    job.run(6)
    finding = job.only()
    assert finding.witness is None
    job.engine.attach(finding.id, Evidence(3, Activity(("train.py:95 in step",))))
    job.engine.attach(finding.id, Evidence(1, Activity(("train.py:90 in step",))))
    job.engine.attach(finding.id, Evidence(2, Activity(("train.py:88 in load_batch",))))
    job.run(3)
    witness = job.only().witness
    assert witness is not None
    assert (witness.rank, witness.stack) == (1, ("train.py:90 in step",))


def test_a_dump_is_named_even_after_the_finding_closed() -> None:
    """The dump took long; the job had moved on by then."""
    job = hanging()
    job.run(6)
    finding = job.only()
    job.join("dp", [2], 1).complete("dp", range(4), 1)
    job.run(3)
    (event,) = job.engine.attach(finding.id, Evidence(dump="20261120-1"))
    assert event.finding.dump == "20261120-1"
    assert job.findings()[0].dump == "20261120-1"
    assert job.engine.attach("0123456789abcdef", Evidence(dump="x")) == []


def test_texts_survive_hostile_names() -> None:
    """A group whose name holds control characters, a right-to-left override and a surrogate."""
    name = "dp\x1b[31m\n\u202eevil\udcff"
    job = Job(2).group(name, [0, 1]).join(name, [0], 0, op="all\x00reduce")
    job.run(6)
    finding = job.only()
    activity = Activity(("tr\udc80ain.py:8 in f\x07",), note="odd\x1b")
    job.engine.attach(finding.id, Evidence(1, activity))
    finding = job.only()
    texts = [finding.summary, *finding.groups_held_up, finding.suspects[0].evidence]
    assert finding.collective is not None
    texts += [finding.collective.group, finding.collective.op, *finding.suspects[0].stack]
    assert all(text.encode() and text.isprintable() for text in texts)


# -- mismatch --------------------------------------------------------------------------------


def test_a_mismatch_is_found_live_and_is_one_finding() -> None:
    """Rank 2 calls broadcast where the others call all_reduce, and all hang: no stall beside."""
    job = Job(4).group("dp", range(4)).all_reduce("dp", 0)
    job.run(1)
    job.join("dp", [0, 1, 3], 1).join("dp", [2], 1, op="broadcast")
    job.run(2)
    finding = job.only()
    assert finding.kind is Kind.MISMATCH
    assert [(s.rank, s.reason) for s in finding.suspects] == [(2, Reason.MISMATCH)]
    job.run(10)
    assert job.only().id == finding.id
    assert job.only().victims == (0, 1, 3)
    assert job.only().summary.startswith(
        "rank 2 called broadcast where ranks 0-1,3 called all_reduce (#1 on dp); "
    )


def test_a_mismatch_without_all_members_is_told_after_a_grace() -> None:
    """Ranks 0 and 1 do not agree and 2 has not come: not at once, but before a stall."""
    job = Job(3).group("dp", range(3)).all_reduce("dp", 0)
    job.run(1)
    job.join("dp", [0], 1).join("dp", [1], 1, op="broadcast")
    assert job.run(0.5) == []
    job.run(2)
    assert job.only().kind is Kind.MISMATCH
    assert {s.rank for s in job.only().suspects} == {0, 1}


def test_a_mismatch_that_ends_in_exceptions_stays_the_mismatch() -> None:
    """The ranks do not agree, and at once all of them raise and exit: one finding, the mismatch."""
    job = Job(4).group("dp", range(4)).all_reduce("dp", 0)
    job.run(1)
    job.join("dp", [0, 1, 3], 1).join("dp", [2], 1, op="broadcast")
    for rank in range(4):
        job.status(rank, RankState.EXITED, "RuntimeError: op.preamble.length <= op.nbytes")
    job.run(8)
    opened = [event.finding for event in job.events if event.change is OPENED]
    assert [finding.kind for finding in opened] == [Kind.MISMATCH]
    assert [(s.rank, s.reason) for s in job.findings()[0].suspects] == [(2, Reason.MISMATCH)]
    assert job.findings()[0].close_reason == "the attempt ended"


# -- lost ranks ------------------------------------------------------------------------------


def test_a_killed_rank_is_lost_while_others_live() -> None:
    """2 is killed, the others wait: one finding from beginning to end, and it is `rank_lost`."""
    job = hanging()
    job.status(2, RankState.EXITED, "process 102 is gone")
    job.run(3)
    finding = job.only()
    assert finding.kind is Kind.RANK_LOST
    assert [(s.rank, s.reason) for s in finding.suspects] == [(2, Reason.EXITED)]
    assert finding.victims == (0, 1, 3)
    job.run(10)
    assert OPENED not in changes(job.events[1:])
    assert job.only().id == finding.id
    assert job.only().groups_held_up == ("dp",)


def test_ranks_that_vanish_together_just_ended() -> None:
    """The scheduler ends the job: all processes are gone within 50 ms and left no word."""
    job = hanging()
    for rank in range(4):
        job.status(rank, RankState.EXITED, "process is gone")
    job.run(10)
    assert job.events == []


def test_exceptions_of_peers_do_not_hide_who_was_killed() -> None:
    """2 is killed; the others raise because of it, and its own exit is told a second later."""
    job = hanging()
    for rank in (0, 1, 3):
        job.status(rank, RankState.EXITED, "RuntimeError: Connection closed by peer [::1]:4711")
    assert job.run(1.5) == []
    job.status(2, RankState.EXITED, "killed: no exit record")
    job.run(5)
    finding = job.only()
    assert finding.kind is Kind.RANK_LOST
    assert [s.rank for s in finding.suspects] == [2]
    assert finding.victims == (0, 1, 3)


def test_an_exception_of_its_own_speaks_before_who_was_terminated() -> None:
    """1 raises; the launcher kills the rest, whose exits are seen a little earlier."""
    job = hanging()
    job.status(0, RankState.EXITED).status(2, RankState.EXITED).status(3, RankState.EXITED)
    job.now = AlignedNs(job.now + 200_000_000)
    job.status(1, RankState.EXITED, "ValueError: loss is NaN")
    job.run(5)
    assert [s.rank for s in job.only().suspects] == [1]


def test_the_same_exception_everywhere_at_once_is_no_lost_rank() -> None:
    """A wrong option makes every rank raise within 50 ms: none of them began it."""
    job = hanging()
    for rank in range(4):
        job.status(rank, RankState.EXITED, "ValueError: unknown option")
    job.run(10)
    assert job.events == []


def test_an_exception_while_others_run_on() -> None:
    """1 raises and is gone; the others are alive a second later."""
    job = hanging()
    job.status(1, RankState.EXITED, "ValueError: loss is NaN")
    job.run(3)
    assert [s.rank for s in job.only().suspects] == [1]
    assert "ValueError: loss is NaN" in job.only().suspects[0].evidence


def test_ranks_that_a_stall_tore_down_are_not_lost_again() -> None:
    """A stall is open; its victims time out and exit: the stall tells it all, until the end."""
    job = hanging()
    job.run(8)
    stall = job.only()
    job.status(0, RankState.EXITED, "RuntimeError: timed out")
    job.run(5)
    assert job.only().id == stall.id
    for rank in (1, 2, 3):
        job.status(rank, RankState.EXITED, "RuntimeError: timed out")
    events = job.run(5)
    assert changes(events)[-1] is CLOSED
    assert events[-1].finding.close_reason == "the attempt ended"
    assert job.open() == []


def test_a_lost_rank_closes_half_a_minute_after_the_end_of_the_attempt() -> None:
    """After the crash everybody is gone: the finding is open for two scrapes more, then history."""
    job = hanging()
    job.status(2, RankState.EXITED, "ValueError: x")
    job.run(3)
    lost = job.only()
    for rank in (0, 1, 3):
        job.status(rank, RankState.EXITED, how=ExitInfo(ExitKind.SIGNAL, signal=15))
    job.run(25)
    assert job.only().id == lost.id
    assert job.only().ended_by.startswith("ended by SIGTERM at ")
    (event,) = job.run(10)
    assert (event.change, event.finding.close_reason) == (CLOSED, "the attempt ended")
    assert event.finding.suspects == lost.suspects


def test_a_lost_rank_stays_told_until_a_new_attempt() -> None:
    """A rank is lost and the others wait for it; the finding is open until the job comes back."""
    job = hanging()
    job.status(2, RankState.EXITED)
    job.run(60)
    lost = job.only()
    again = Job(4, attempt=1, engine=job.engine, now=job.now)
    (event,) = again.run(0.5)
    assert (event.change, event.finding.id) == (CLOSED, lost.id)
    assert event.finding.close_reason == "attempt 1 of the job started"


def test_a_lost_rank_of_a_job_that_never_comes_back_is_closed_in_the_end() -> None:
    """Nobody restarts the job; after `lost_close_after_s` the finding closes."""
    job = Job(2, Policy(stall_after_s=5, lost_close_after_s=30)).group("dp", [0, 1])
    job.all_reduce("dp", 0).run(1)
    job.status(1, RankState.EXITED)
    job.run(25)
    assert len(job.open()) == 1
    job.run(15)
    assert job.open() == []


# -- attempts and restarts -------------------------------------------------------------------


def test_a_new_attempt_closes_the_stall_of_the_old_one_and_is_clean() -> None:
    """The job is restarted during a stall; the old attempt's late words change nothing."""
    job = hanging()
    job.run(8)
    again = Job(4, attempt=1, engine=job.engine, now=job.now)
    again.group("dp", range(4)).all_reduce("dp", 0)
    assert changes(again.run(1)) == [CLOSED]
    job.now = again.now
    job.run(20)
    assert job.open() == []


def test_other_jobs_are_not_concerned() -> None:
    """Two jobs stall; one is restarted; the other's finding stays."""
    one = hanging()
    other = Job(2, engine=one.engine, now=one.now, name="other").group("dp", [0, 1])
    other.join("dp", [0], 0)
    other.run(1)
    one.run(1)
    for _ in range(16):
        one.run(0.5)
        other.now = one.now
        other.report()
    assert {finding.job for finding in one.open()} == {"job", "other"}
    Job(4, attempt=1, engine=one.engine, now=one.now).run(1)
    assert {finding.job for finding in one.open()} == {"other"}


def test_a_restarted_service_goes_on_with_the_same_finding() -> None:
    """Killed during a stall; agents resync one by one: same id, no duplicate, no other suspect."""
    job = hanging()
    job.run(8)
    before = job.only()
    job.restart_service()
    assert job.only().id == before.id
    job.reconnect([0, 1])
    job.run(4)
    job.reconnect([2, 3])
    job.run(10)
    finding = job.only()
    assert finding.id == before.id
    assert [(s.rank, s.reason) for s in finding.suspects] == [(2, Reason.CPU_STUCK)]
    assert [f.id for f in job.findings()] == [before.id]


def test_a_restored_finding_closes_when_the_job_has_moved_on() -> None:
    """The job went on while the service was down; only when all who waited have reported."""
    job = hanging()
    job.run(8)
    before = job.only()
    job.restart_service()
    job.marks.update({("dp", rank): [5, -1, 5, 0] for rank in range(4)})
    job.reconnect([0, 1])
    job.run(5)
    assert job.only().id == before.id
    job.reconnect([2, 3])
    (event,) = job.run(3)
    assert (event.change, event.finding.id) == (CLOSED, before.id)


def test_a_restored_finding_of_a_job_that_is_gone_is_closed_in_the_end() -> None:
    """No agent ever tells of the job again."""
    job = hanging()
    job.run(8)
    job.restart_service()
    job.run(10)
    assert len(job.open()) == 1
    job.now = AlignedNs(job.now + 1_000_000_000_000)
    (event,) = job.run(0.5)
    assert event.finding.close_reason == "nothing new for 900 s"


def test_a_restarted_service_does_not_tell_of_an_old_loss_again() -> None:
    """A rank was lost, told, and closed with it; later the service restarts and agents resync."""
    job = Job(4, Policy(stall_after_s=5, lost_close_after_s=30)).group("dp", range(4))
    job.all_reduce("dp", 0).run(1)
    job.status(2, RankState.EXITED)
    job.run(60)
    assert changes(job.events) == [OPENED, CLOSED]
    job.restart_service()
    job.reconnect(range(4))
    assert job.run(10) == []


def test_a_restored_loss_is_told_once() -> None:
    """The service restarts right after a loss, and the job stays as it is until that is old."""
    policy = Policy(stall_after_s=5, lost_close_after_s=30)
    job = Job(4, policy).group("dp", range(4))
    job.all_reduce("dp", 0).run(1)
    job.status(2, RankState.EXITED).run(4)
    before = job.only()
    job.restart_service()
    job.reconnect(range(4))
    job.run(60)
    assert [f.id for f in job.findings()] == [before.id]
    assert job.open() == []


# -- limits ----------------------------------------------------------------------------------


def test_no_more_attempts_than_allowed_but_old_ones_make_room() -> None:
    """Two live attempts fill a policy of two; a third job is refused until one has ended."""
    job = Job(1, Policy(max_attempts=2), name="a")
    other = Job(1, engine=job.engine, name="b")
    with pytest.raises(WireError, match="max_attempts"):
        Job(1, engine=job.engine, name="c")
    other.status(0, RankState.FINISHED)
    other.run(1)
    Job(1, engine=job.engine, name="c")
    keys = [view.key.job for view in job.engine.status_view(job.now).attempts]
    assert keys == ["a", "c"]


def test_no_more_open_at_once_than_allowed() -> None:
    """Two groups stall at the same moment, and there is room for one finding."""
    job = Job(4, Policy(stall_after_s=1, max_findings=1)).group("a", [0, 1]).group("b", [2, 3])
    job.join("a", [0], 0).join("b", [3], 0).run(8)
    assert len(job.findings()) == 1


def test_remembered_findings_are_bounded() -> None:
    """Ten stalls in a row with room for three: the oldest are forgotten, and counted."""
    job = Job(2, Policy(stall_after_s=1, max_findings=3))
    for name in map(str, range(10)):
        job.group(name, [0, 1]).join(name, [0], 0).run(3)
        job.join(name, [1], 0).complete(name, [0, 1], 0).run(3)
    assert len(job.findings()) == 3
    assert job.engine.status_view(job.now).evicted["findings"] >= 7
