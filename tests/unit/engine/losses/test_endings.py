"""How scripted jobs end: which rank is named, and what the finding says afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from frd.engine.clocks.alignment import UncertainTime
from frd.engine.losses.claims import held_up_by
from frd.engine.losses.exits import Exit, Manner
from frd.engine.policy import Policy
from frd.forms import clock_text, finding_from_json, finding_json
from frd.model import (
    Change,
    Confidence,
    ExitInfo,
    ExitKind,
    Finding,
    Kind,
    RankState,
    Reason,
)
from tests.world.job import Job, changes
from tests.world.scene import NOW as SCENE_NOW
from tests.world.scene import Scene

CTRL_C = ExitInfo(ExitKind.INTERRUPT, signal=2, exception="KeyboardInterrupt")
TERM = ExitInfo(ExitKind.SIGNAL, signal=15)
KILL = ExitInfo(ExitKind.SIGNAL, signal=9)
ABORT = ExitInfo(ExitKind.SIGNAL, signal=6)
CLEAN = ExitInfo(ExitKind.CLEAN, status=0)
STATUS_1 = ExitInfo(ExitKind.STATUS, status=1)
STATUS_143 = ExitInfo(ExitKind.STATUS, signal=15, status=143)
UNKNOWN = ExitInfo(ExitKind.UNKNOWN)
RESET = ExitInfo(
    ExitKind.EXCEPTION,
    status=1,
    exception="RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:4711",
    where="train.py:41 step",
)
BAD_BATCH = ExitInfo(
    ExitKind.EXCEPTION, status=1, exception="RuntimeError: bad batch", where="train.py:88 load"
)


def running(world: int = 4, policy: Policy | None = None) -> Job:
    job = Job(world, policy).group("dp", range(world))
    for seq in range(4):
        job.all_reduce("dp", seq).run(0.5)
    return job


def hanging() -> Job:
    """Rank 2 never joins #4, and a finding names it with high confidence."""
    job = running().join("dp", [0, 1, 3], 4)
    job.run(8)
    assert [(s.rank, s.reason) for s in job.only().suspects] == [(2, Reason.CPU_STUCK)]
    assert job.only().suspects[0].confidence is Confidence.HIGH
    return job


def leave(job: Job, rank: int, how: ExitInfo, ago_s: float = 0.0) -> None:
    state = RankState.FINISHED if how.kind is ExitKind.CLEAN else RankState.EXITED
    job.status(rank, state, how=how, at=job.now - round(ago_s * 1e9))


def finish(job: Job, rank: int) -> None:
    """The rank exits with status 0, and everything that it did is known."""
    leave(job, rank, CLEAN, ago_s=0.2)


def named(finding: Finding) -> list[tuple[int, Reason, Confidence]]:
    return [(s.rank, s.reason, s.confidence) for s in finding.suspects]


# -- a cause, and what comes after it --------------------------------------------------------


def end_all(job: Job, how: ExitInfo) -> None:
    for rank in range(4):
        leave(job, rank, how)
        job.run(0.5)


@pytest.mark.parametrize(
    ("how", "ended_by"),
    [
        (CTRL_C, "ended by KeyboardInterrupt at"),
        (TERM, "ended by SIGTERM at"),
        (KILL, "rank 2 ended by SIGKILL at"),
        (ABORT, "rank 2 ended by SIGABRT at"),
        (RESET, "rank 2 ended by RuntimeError: [gloo] Connection closed by peer"),
        (UNKNOWN, "rank 2 ended by an unknown cause (no exit record) at"),
    ],
)
def test_the_cause_of_a_hung_job_outlasts_its_end(how: ExitInfo, ended_by: str) -> None:
    """Rank 2 hangs; all ranks end one by one: one finding with one cause and its end."""
    job = hanging()
    opened = job.only()
    first_end = job.now
    end_all(job, how)
    job.run(10)
    assert job.open() == []
    (finding,) = job.findings()
    assert finding.id == opened.id
    assert named(finding) == named(opened)
    assert finding.close_reason == "the attempt ended"
    assert ended_by in finding.ended_by
    if how in (CTRL_C, TERM):
        assert finding.ended_by == f"{ended_by} {clock_text(first_end)}"
    assert finding.ended_by in finding.summary
    labels = {tuple((s.rank, s.reason) for s in e.finding.suspects) for e in job.events}
    assert labels == {((2, Reason.CPU_STUCK),)}
    for event in job.events:
        for suspect in event.finding.suspects:
            assert suspect.onset_at is not None
            assert suspect.onset_at <= event.finding.opened_at
    assert finding_from_json(finding_json(finding)).ended_by == finding.ended_by


def test_a_rank_killed_after_a_hang_began_is_not_its_cause() -> None:
    """All joined and none completes; then rank 1 is killed: it is not the cause of the hang."""
    job = running().join("dp", range(4), 4)
    job.run(8)
    assert job.only().reason is Reason.NETWORK_OR_DEVICE
    leave(job, 1, KILL)
    job.run(15)
    assert named(job.only()) == []
    assert job.only().ended_by.startswith("rank 1 ended by SIGKILL at")


def test_a_rank_that_still_waits_when_others_gave_up_is_not_the_cause() -> None:
    """All joined and none completes. Rank 1 gives up, which Gloo records as an end of its op, and
    leaves; 0 and 3 catch the same error. Rank 2 is still inside: it does not become the cause."""
    job = running().join("dp", range(4), 4)
    job.run(8)
    job.complete("dp", [1], 4)
    leave(job, 1, RESET)
    job.run(0.5)
    job.complete("dp", [0, 3], 4)
    job.run(20)
    assert [named(finding) for finding in job.findings()] == [[]]


def test_a_certain_cause_stays_when_its_process_is_stopped() -> None:
    """Rank 2 is stuck for sure, and later it turns out to be stopped as well: its reason stays."""
    job = hanging()
    stopped_at = job.only().opened_at - 1_000_000_000
    job.status(2, RankState.SILENT, "process 102 is stopped (state T)", at=stopped_at)
    job.run(20)
    assert named(job.only()) == [(2, Reason.CPU_STUCK, Confidence.HIGH)]


# -- ends without a fault --------------------------------------------------------------------


def spread(job: Job, ends: Iterable[tuple[int, ExitInfo]], every_s: float) -> None:
    for rank, how in ends:
        leave(job, rank, how)
        job.run(every_s)


@pytest.mark.parametrize(
    ("inside", "ends"),
    [
        pytest.param(
            [], [(3, CLEAN, 1), (1, CLEAN, 1), (2, CLEAN, 11), (0, CLEAN, 0)],
            id="all is done, and the last rank takes ten seconds longer",
        ),
        pytest.param(
            [], [(0, CLEAN, 0), (1, RESET, 0.5), (2, RESET, 0.5), (3, RESET, 0.5)],
            id="all is done, and the others find the store of rank 0 gone while they leave",
        ),
        pytest.param(
            [0, 2, 3], [(1, CLEAN, 0.5), (0, CLEAN, 0.5), (2, CLEAN, 0.5), (3, CLEAN, 0.5)],
            id="SIGTERM, and the handler of each calls sys.exit(0), rank 1 before a collective",
        ),
        *(
            pytest.param(
                range(4), [(1, first, 0.5), (0, RESET, 0.5), (3, CTRL_C, 0.5), (2, RESET, 0.5)],
                id=f"Ctrl-C, some ranks report what follows from it, the first {first.exception}",
            )
            for first in (CTRL_C, RESET, BAD_BATCH)
        ),
    ],
)  # fmt: skip
def test_a_job_that_ends_has_no_loss(
    inside: Iterable[int], ends: list[tuple[int, ExitInfo, float]]
) -> None:
    """Some ranks are inside #4; all leave one by one."""
    job = running().join("dp", inside, 4)
    for rank, how, then_s in ends:
        leave(job, rank, how, ago_s=0.2 if how is CLEAN else 0.0)
        job.run(then_s)
    job.run(40)
    assert job.events == []


@pytest.mark.parametrize("last", [CLEAN, STATUS_1, STATUS_143, TERM])
def test_a_preempted_job_that_saves_a_checkpoint_is_no_loss(last: ExitInfo) -> None:
    """SIGTERM to all; rank 0 saves for 3 s (or 20 s) before it leaves, as it likes."""
    for seconds in (3, 20):
        job = running().join("dp", [1, 2, 3], 4)
        spread(job, [(1, TERM), (2, TERM), (3, TERM)], 0.0)
        job.run(seconds)
        leave(job, 0, last)
        job.run(70)
        assert job.events == []


@pytest.mark.parametrize("how", [TERM, STATUS_143, STATUS_1, KILL, UNKNOWN, BAD_BATCH])
def test_most_ranks_that_end_alike_are_the_end_of_the_job(how: ExitInfo) -> None:
    """Eight ranks of a busy machine end over two seconds, and all in one way."""
    job = running(8)
    for rank in (5, 1, 7, 0, 2, 3, 6, 4):
        leave(job, rank, how, ago_s=-0.25 * rank)
    job.run(30)
    assert job.events == []


def test_a_rank_that_was_asked_to_stop_is_lost_when_the_others_run_on_for_long() -> None:
    """SIGTERM to one of four: not before a minute has passed, for the rest may be about to end."""
    job = running(4, Policy(stall_after_s=600))
    leave(job, 1, TERM)
    for seq in range(4, 62):
        job.join("dp", [0, 2, 3], seq)
        job.run(1)
    assert job.events == []
    job.run(6)
    assert named(job.only()) == [(1, Reason.EXITED, Confidence.HIGH)]
    assert "was killed by SIGTERM at" in job.only().summary


# -- the first to go is the cause ----------------------------------------------------------------


def test_who_returns_early_comes_before_those_who_lose_it() -> None:
    """Rank 2 leaves the loop with status 0; the others join #4 and their connection breaks."""
    job = running()
    finish(job, 2)
    job.join("dp", [0, 1, 3], 4).complete("dp", [0, 1, 3], 4)
    job.run(0.5)
    spread(job, [(0, RESET), (1, RESET), (3, TERM)], 0.0)
    job.run(5)
    finding = job.only()
    assert (finding.kind, named(finding)) == (
        Kind.RANK_LOST,
        [(2, Reason.EXITED, Confidence.HIGH)],
    )
    assert finding.victims == (0, 1, 3)
    at = clock_text(finding.suspects[0].onset_at or 0)
    assert finding.summary.startswith(
        f"Rank 2 (node1) exited with status 0 at {at} (last joined #3 on dp); 3 ranks wait for it"
    )


def test_peers_that_catch_the_error_and_wait_do_not_hide_who_left() -> None:
    """Rank 2 returns; the others catch what #4 raises, and do nothing any more."""
    job = running()
    finish(job, 2)
    job.join("dp", [0, 1, 3], 4).complete("dp", [0, 1, 3], 4)
    job.run(5)
    assert named(job.only()) == [(2, Reason.EXITED, Confidence.HIGH)]
    job.run(30)
    assert changes(job.events) == [Change.OPENED]


Ends = dict[int, tuple[ExitInfo, float]]
"""Of each rank how it exits, and how many seconds before the report."""


@pytest.mark.parametrize(
    ("world", "ends", "lost"),
    [
        pytest.param(
            4, {0: (TERM, 0), 1: (STATUS_1, 0), 2: (TERM, 0), 3: (RESET, 0)}, Confidence.HIGH,
            id="sys.exit(1), and torchrun ends the rest, seen at one time",
        ),
        pytest.param(
            4, {0: (KILL, 0), 1: (BAD_BATCH, 0.1), 2: (KILL, 0), 3: (UNKNOWN, 0)}, Confidence.HIGH,
            id="an exception, and the launcher kills the rest immediately",
        ),
        pytest.param(
            4, {0: (TERM, -0.1), 1: (ABORT, 0), 2: (TERM, -0.1), 3: (TERM, -0.1)},
            Confidence.MEDIUM, id="SIGABRT, which may be a watchdog's answer to a peer",
        ),
        *(
            pytest.param(
                world, dict.fromkeys(range(world), (STATUS_1, 0)) | {1: (KILL, later_s)},
                Confidence.HIGH, id=f"SIGKILL, and {world - 1} peers exit {later_s} s later",
            )
            for world in (4, 2)
            for later_s in (0.02, 1.0)
        ),
    ],
)  # fmt: skip
def test_the_first_to_go_is_named(world: int, ends: Ends, lost: Confidence) -> None:
    """Rank 1 ends for its own reason, the others because of that."""
    job = running(world).join("dp", [rank for rank in range(world) if rank != 1], 4)
    for rank, (how, ago_s) in ends.items():
        leave(job, rank, how, ago_s)
    job.run(5)
    assert named(job.only()) == [(1, Reason.EXITED, lost)]


def test_a_crash_is_reported_with_its_line_and_stays_in_the_history() -> None:
    """Rank 1 raises; torchrun ends the rest. The finding stays open for half a minute after that,
    which is two scrapes, and closes with the attempt."""
    job = running().join("dp", [0, 2, 3], 4)
    leave(job, 1, BAD_BATCH)
    job.run(3)
    lost = job.only()
    spread(job, [(0, TERM), (2, RESET), (3, TERM)], 0.0)
    job.run(25)
    assert job.only().id == lost.id
    assert job.only().ended_by.startswith("ended by SIGTERM at ")
    job.run(10)
    (finding,) = job.findings()
    assert finding.close_reason == "the attempt ended"
    assert named(finding) == named(lost) == [(1, Reason.EXITED, Confidence.HIGH)]
    assert "Rank 1 (node0) raised RuntimeError: bad batch (train.py:88 load) at " in finding.summary


DOWNLOAD = replace(BAD_BATCH, exception="RemoteDisconnected: Remote end closed connection")


@pytest.mark.parametrize(
    ("first", "others"),
    [
        (DOWNLOAD, TERM),
        (replace(DOWNLOAD, signal=15, status=None), TERM),
        (DOWNLOAD, RESET),
        (replace(BAD_BATCH, exception="RuntimeError: ProcessGroupGloo::reduce: bad root"), TERM),
    ],
)
def test_a_rank_whose_own_exception_comes_first_is_named(first: ExitInfo, others: ExitInfo) -> None:
    """Rank 2 fails to download or passes a wrong argument; torchrun stops all others, rank 2 while
    it unwinds, or they lose their connections."""
    job = running().join("dp", [0, 1, 3], 4)
    leave(job, 2, first)
    spread(job, [(0, others), (1, others), (3, others)], 0.1)
    job.run(5)
    assert named(job.only()) == [(2, Reason.EXITED, Confidence.HIGH)]


def test_the_rank_that_a_failed_checkpoint_names_is_the_cause() -> None:
    """torch.distributed.checkpoint raises the exception of rank 2 in all ranks."""
    failed = "CheckpointException: CheckpointException ranks:dict_keys([2])"
    job = running()
    for rank in (1, 0, 2, 3):
        leave(job, rank, replace(BAD_BATCH, exception=failed))
    job.run(5)
    assert named(job.only()) == [(2, Reason.EXITED, Confidence.HIGH)]


def test_exceptions_of_most_ranks_are_the_end_of_the_job_whatever_signal_follows() -> None:
    """All raise the same at the same line; SIGTERM reaches half of them while they unwind."""
    job = running(4)
    for rank in range(4):
        how = replace(BAD_BATCH, signal=15, status=None) if rank % 2 else BAD_BATCH
        leave(job, rank, how, ago_s=-0.1 * rank)
    job.run(30)
    assert job.events == []


# -- a library's abort inside a collective -------------------------------------------------------


@pytest.mark.parametrize("late_s", [0.5, 4.0])
@pytest.mark.parametrize("how", [ABORT, RESET])
def test_ranks_that_leave_because_of_a_mismatch_are_its_victims(
    how: ExitInfo, late_s: float
) -> None:
    """Rank 3 skips an op, and Gloo aborts in rank 2, whose last rows are lost. Those of its peers
    come soon, or after the exit was judged: in the end the mismatch is the only finding."""
    job = running()
    leave(job, 2, how)
    job.run(late_s)
    job.join("dp", [0, 1], 4).join("dp", [3], 4, op="broadcast")
    job.run(10)
    finding = job.only()
    assert (finding.kind, named(finding)) == (
        Kind.MISMATCH,
        [(3, Reason.MISMATCH, Confidence.MEDIUM)],
    )
    assert finding.victims == (0, 1, 2)
    if late_s < 1:
        assert changes(job.events).count(Change.OPENED) == 1
    job.run(60)
    assert [f.id for f in job.open()] == [finding.id]


def test_the_disagreement_of_a_subgroup_explains_only_ends_of_its_members() -> None:
    """Ranks 0-2 of a subgroup disagree, and rank 1 aborts; then rank 5, no member, is killed."""
    job = running(6).group("tp", range(3))
    job.all_reduce("tp", 0).run(0.5)
    leave(job, 1, ABORT)
    job.join("tp", [0], 1).join("tp", [2], 1, op="broadcast")
    job.run(5)
    assert job.only().kind is Kind.MISMATCH
    assert 1 in job.only().victims
    leave(job, 5, KILL)
    job.run(5)
    kinds = {finding.kind: finding for finding in job.open()}
    assert kinds.keys() == {Kind.MISMATCH, Kind.RANK_LOST}
    assert named(kinds[Kind.RANK_LOST]) == [(5, Reason.EXITED, Confidence.HIGH)]


def test_ranks_that_the_launcher_kills_in_the_end_are_not_lost() -> None:
    """Ranks 0 and 1 disagree and abort. The others do not heed SIGTERM, and get SIGKILL after 30 s:
    no rank died of that."""
    job = running().group("tp", range(2))
    job.all_reduce("tp", 0).run(0.5)
    job.join("tp", [0], 1).join("tp", [1], 1, op="broadcast").join("dp", [2, 3], 4).run(1)
    spread(job, [(0, ABORT), (1, ABORT)], 0.2)
    job.run(30)
    spread(job, [(2, KILL), (3, KILL)], 0.1)
    job.run(10)
    assert {finding.kind for finding in job.findings()} == {Kind.MISMATCH}


def test_an_abort_without_a_mismatch_is_a_lost_rank() -> None:
    """Rank 1 fails an assertion of a library; the others wait for it."""
    job = running().join("dp", [0, 2, 3], 4)
    leave(job, 1, ABORT)
    job.run(5)
    assert named(job.only()) == [(1, Reason.EXITED, Confidence.MEDIUM)]


@pytest.mark.parametrize(
    ("how", "says"), [(KILL, "was killed by SIGKILL"), (STATUS_1, "exited with status 1")]
)
def test_a_lost_rank_says_who_waits_for_it(how: ExitInfo, says: str) -> None:
    """Rank 1 ends while the others wait in #4."""
    job = running().join("dp", [0, 2, 3], 4)
    leave(job, 1, how)
    job.run(3)
    finding = job.only()
    at = clock_text(finding.suspects[0].onset_at or 0)
    assert finding.summary == (
        f"Rank 1 (node0) {says} at {at} (last seen in #3 on dp); 3 ranks wait for it"
    )
    assert finding.headline == f"Rank 1 (node0) {says}"
    assert (finding.victims, finding.groups_held_up) == ((0, 2, 3), ("dp",))
    assert finding.collective is not None
    assert finding.collective.waiting_ranks == (0, 2, 3)


def test_a_rank_whose_op_may_be_over_is_not_said_to_wait_for_a_lost_one() -> None:
    """Ranks 0, 2 and 3 were in #7, which rank 1 has not joined; the agent of rank 2 is a new one
    that does not find the op any more."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 6, [1]).waits("dp", 7, [0, 2, 3])
    lost = Exit(1, UncertainTime(SCENE_NOW, 0, 0), KILL, Manner.OWN, SCENE_NOW)
    scene.forgotten.add(("dp", 2))
    ref = held_up_by(scene.snapshot(), [lost], {1})
    assert ref is not None
    assert (ref.waiting_ranks, ref.missing_ranks) == ((0, 3), (1,))


def test_a_killed_rank_of_a_job_that_restarts_immediately_is_reported() -> None:
    """SIGKILL to rank 1, SIGTERM to the rest 0.1 s later, the next attempt 2 s later: opened and
    closed with what is known by then."""
    job = running().join("dp", [0, 2, 3], 4)
    leave(job, 1, KILL)
    for rank in (0, 2, 3):
        leave(job, rank, TERM, ago_s=-0.1)
    job.run(0.5)
    assert job.events == []
    again = Job(4, attempt=1, engine=job.engine, now=job.now)
    events = again.run(0.5)
    assert changes(events) == [Change.OPENED, Change.CLOSED]
    assert named(events[-1].finding) == [(1, Reason.EXITED, Confidence.HIGH)]
    assert events[-1].finding.close_reason == "attempt 1 of the job started"


@pytest.mark.parametrize(("finishes", "who"), [(False, "ranks 0-3"), (True, "ranks 1-3")])
def test_if_each_rank_blames_a_peer_no_rank_is_named(finishes: bool, who: str) -> None:
    """All ranks lose a connection, and no agent has reported a rank that exited earlier; or rank 0
    finishes, but its last counters do not show what it joined."""
    job = running()
    leave(job, 0, CLEAN if finishes else RESET)
    job.run(0.0 if finishes else 0.5)
    spread(job, [(1, RESET), (2, RESET), (3, RESET)], 0.5)
    job.run(5)
    finding = job.only()
    assert named(finding) == []
    assert finding.summary == (
        f"{who.capitalize()} ended, and each blames a peer: which rank ended first is not known"
    )


def test_one_that_blames_a_peer_while_all_others_run_on_is_named_with_low_confidence() -> None:
    """Rank 3 is gone; that is all that is known, and it says itself that another is at fault."""
    job = running()
    leave(job, 3, RESET)
    job.run(8)
    assert named(job.only()) == [(3, Reason.EXITED, Confidence.LOW)]


def test_a_restored_loss_that_no_agent_reports_closes_within_a_minute() -> None:
    """The service restarts after a crash; agent and job are gone for good."""
    job = running().join("dp", [0, 2, 3], 4)
    leave(job, 1, KILL)
    job.run(5)
    assert job.only().kind is Kind.RANK_LOST
    job.restart_service()
    job.run(55)
    assert len(job.open()) == 1
    job.run(10)
    assert job.open() == []


def test_an_exit_whose_order_with_a_stop_is_not_known_is_not_named_with_high_confidence() -> None:
    """SIGTERM to all; rank 0 saves for 20 s and exits with status 1. Each node has one rank, and
    nothing is known of the clocks, so rank 0 may have exited before anybody was asked to stop."""
    job = running()
    for rank in range(4):
        job.attempt.clocks.set([rank], rank, None, job.now)
    spread(job, [(1, TERM), (2, TERM), (3, TERM)], 0.0)
    job.run(20)
    leave(job, 0, STATUS_1)
    job.run(5)
    assert named(job.only()) == [(0, Reason.EXITED, Confidence.MEDIUM)]


def test_a_hang_is_ended_by_the_watchdog_and_not_by_the_launcher_after_it() -> None:
    """Later rank 0 aborts, its peer loses it, and the launcher ends the rest."""
    job = hanging()
    job.run(20)
    leave(job, 0, ABORT)
    at = clock_text(job.now)
    leave(job, 1, RESET, ago_s=0.1)
    job.run(0.5)
    spread(job, [(2, TERM), (3, TERM)], 0.0)
    job.run(10)
    assert job.findings()[0].ended_by == f"rank 0 ended by SIGABRT at {at}"


# -- nodes of which nothing is heard any more ------------------------------------------------


def fall_silent(job: Job, *ranks: int, left: bool = False) -> None:
    """The agent of these ranks disconnects; with `left`, it has said before that it leaves."""
    if left:
        job.attempt.agent_leaves(ranks)
    job.attempt.connection(ranks, False)
    job.reporting -= set(ranks)


def test_a_kill_that_an_agent_finds_long_after_its_consequences() -> None:
    """The agent of rank 2 was away when the rank was killed, and finds it when all others have
    ended because of it."""
    job = running()
    fall_silent(job, 2)
    spread(job, [(0, RESET), (1, RESET), (3, RESET)], 0.2)
    job.run(8)
    leave(job, 2, KILL)
    job.run(5)
    assert (2, Reason.EXITED) in {(s.rank, s.reason) for s in job.only().suspects}


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("is_noticed", [False, True])
def test_a_node_of_which_nothing_is_heard_and_its_peers_lose_connections(
    left: bool, is_noticed: bool
) -> None:
    """A node of two ranks dies, or its pod is deleted. The others raise because their connection
    broke. The service may not notice that the connection to the agent there is lost."""
    job = running()
    job.reporting -= {2, 3}
    if is_noticed or left:
        fall_silent(job, 2, 3, left=left)
    job.run(1)
    for rank in (0, 1):
        leave(job, rank, RESET)
    job.run(18)
    assert job.open() == []
    job.run(4)
    finding = job.only()
    assert finding.kind is Kind.RANK_LOST
    assert named(finding) == [
        (2, Reason.UNREACHABLE, Confidence.MEDIUM),
        (3, Reason.UNREACHABLE, Confidence.MEDIUM),
    ]
    assert {s.node for s in finding.suspects} == {"node1"}
    assert finding.victims == (0, 1)
    evidence = finding.suspects[0].evidence
    why = "was stopped while it lived" if left else "has gone without a goodbye"
    assert f"its agent {why}; last report at" in evidence
    assert "ranks 0-1 lost the connection to a peer at" in evidence


def test_an_agent_that_connects_again_says_what_was_the_cause() -> None:
    """The agent of a node has no connection for some seconds, in which its rank raises: the others
    lose their connections, and nothing is said of them until the agent is back."""
    job = running()
    fall_silent(job, 2, 3)
    job.run(1)
    failed_at = job.now
    for rank in (0, 1):
        leave(job, rank, RESET)
    job.run(12)
    assert job.open() == []
    job.attempt.connection([2, 3], True)
    job.reporting.add(3)
    job.status(2, RankState.EXITED, how=BAD_BATCH, at=failed_at - 10**8)
    job.run(5)
    assert named(job.only()) == [(2, Reason.EXITED, Confidence.HIGH)]


def test_a_node_that_was_not_heard_long_before_is_no_loss() -> None:
    """Its agent was killed long ago, and the job trained on: silence alone is no loss. Then two
    ranks lose a connection, or the job is done and one of them does not end in peace."""
    for how in (RESET, CLEAN):
        job = running()
        fall_silent(job, 2, 3)
        job.run(60)
        assert job.open() == []
        leave(job, 0, how, ago_s=0.2 if how is CLEAN else 0.0)
        leave(job, 1, RESET)
        job.run(60)
        assert not [s for f in job.findings() for s in f.suspects if s.reason is Reason.UNREACHABLE]


@pytest.mark.parametrize("order", ["signal first", "broken connection first"])
def test_a_stop_of_the_whole_job_is_no_loss_of_the_node_that_is_not_heard(order: str) -> None:
    """A job is cancelled: the agent of one node says that it leaves, or is killed before that, and
    is gone. On the other node the agent says that it leaves, too; one rank is terminated, another
    raises because its connection broke."""
    job = running()
    fall_silent(job, 2, 3, left=order == "signal first")
    ends = [(0, TERM), (1, RESET)]
    for rank, how in ends if order == "signal first" else reversed(ends):
        leave(job, rank, how)
        job.run(0.5)
        job.attempt.agent_leaves([0, 1])
    job.run(60)
    assert job.open() == []
