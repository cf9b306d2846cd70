"""First causes of scripted pictures: every reason, every doubt, and who is left in peace."""

from __future__ import annotations

import numpy as np
import pytest

from frd.engine.hangs.diagnosis import Diagnosis
from frd.engine.hangs.ops_in_flight import Instance
from frd.engine.matching.signature_rules import is_synchronizing
from frd.engine.state.snapshot import Mismatch, StalledOp
from frd.model import Confidence, Kind, RankState, Reason, Signature
from tests.world.scene import Scene, named


def all_reduce(*ranks: int) -> tuple[Signature, tuple[int, ...]]:
    return Signature("gloo", "all_reduce", ((4,),)), ranks


def broadcast(*ranks: int) -> tuple[Signature, tuple[int, ...]]:
    return Signature("gloo", "broadcast", ((4,),)), ranks


def missing_two(**rank_two: object) -> Scene:
    """Four ranks in one group; 2 never came to seq 7, and stands as told."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 6, [2]).waits("dp", 7, [0, 1, 3])
    return scene.rank(2, **rank_two)


# -- one missing rank ------------------------------------------------------------------------


def test_a_rank_in_no_collective_is_stuck_in_its_program() -> None:
    """Rank 2 is alive, in no collective, and never joined what the three others wait in."""
    diagnosis = missing_two(detail="heartbeat 12 s old: the GIL may be held").only()
    assert diagnosis.kind is Kind.STALL
    assert named(diagnosis) == {2: Reason.CPU_STUCK}
    (suspect,) = diagnosis.suspects
    assert suspect.confidence is Confidence.HIGH
    assert suspect.evidence == "last joined seq 6 of dp; heartbeat 12 s old: the GIL may be held"
    assert (diagnosis.instance, diagnosis.op) == (Instance(0, 7), "all_reduce")
    assert (diagnosis.waiting, diagnosis.missing) == ((0, 1, 3), (2,))
    assert (diagnosis.victims, diagnosis.unknown) == ((0, 1, 3), ())


def test_a_rank_that_never_joined_anything_is_told_so() -> None:
    """Rank 1 has not joined the first collective of the group yet."""
    diagnosis = Scene(2).group("dp", [0, 1]).waits("dp", 1, [0]).only()
    assert diagnosis.suspects[0].evidence == "has not joined a collective of dp yet"


@pytest.mark.parametrize(
    ("state", "detail", "reason", "confidence"),
    [
        (RankState.EXITED, "killed", Reason.EXITED, Confidence.HIGH),
        (RankState.FINISHED, "", Reason.EXITED, Confidence.HIGH),
        (
            RankState.SILENT,
            "process 4711 is stopped (state T)",
            Reason.UNREACHABLE,
            Confidence.HIGH,
        ),
        (RankState.SILENT, "its socket does not answer", Reason.UNREACHABLE, Confidence.MEDIUM),
    ],
)
def test_positive_evidence_of_an_agent(
    state: RankState, detail: str, reason: Reason, confidence: Confidence
) -> None:
    """The missing rank's agent says that its process exited, finished early, or is frozen."""
    diagnosis = missing_two(state=state, detail=detail, state_age=11, as_of_age=11).only()
    assert named(diagnosis) == {2: reason}
    assert diagnosis.suspects[0].confidence is confidence
    assert detail in diagnosis.suspects[0].evidence
    assert diagnosis.victims == (0, 1, 3)


def test_a_process_that_died_inside_an_op_is_the_cause_when_all_joined() -> None:
    """All four joined seq 7, then 2 was killed in it; the three others wait for ever."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, range(4))
    diagnosis = scene.rank(2, state=RankState.EXITED, state_age=11, as_of_age=11).only()
    assert named(diagnosis) == {2: Reason.EXITED}
    assert diagnosis.victims == (0, 1, 3)


def test_a_frozen_process_inside_an_op_is_the_cause_when_all_joined() -> None:
    """All four joined seq 7, but 2 was stopped by a signal in it."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, range(4))
    scene.rank(2, state=RankState.SILENT, detail="process 5 is stopped", state_age=11)
    assert named(scene.only()) == {2: Reason.UNREACHABLE}


def test_a_frozen_process_speaks_before_those_it_left_inside() -> None:
    """2 was stopped inside seq 7; its data still let 3 through, and 0 and 1 are left in it."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, [0, 1, 2], 13).waits("dp", 8, [3], 12)
    scene.rank(2, state=RankState.SILENT, detail="process 5 is stopped", state_age=11)
    diagnosis = scene.only()
    assert named(diagnosis) == {2: Reason.UNREACHABLE}
    assert diagnosis.victims == (0, 1, 3)


def test_a_node_that_went_down_inside_an_op_is_unreachable() -> None:
    """All joined seq 7; then the node of 2 and 3 went down with its agent."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, range(4))
    for rank in (2, 3):
        scene.rank(rank, connected=False, as_of_age=11)
    diagnosis = scene.only()
    assert named(diagnosis) == {2: Reason.UNREACHABLE, 3: Reason.UNREACHABLE}
    assert {suspect.confidence for suspect in diagnosis.suspects} == {Confidence.MEDIUM}
    assert diagnosis.victims == (0, 1)


def test_when_nobody_is_heard_of_nobody_is_unreachable() -> None:
    """All joined seq 7, and then all agents were cut off: that is no cause of the stall."""
    scene = Scene(2).group("dp", [0, 1]).waits("dp", 7, [0, 1], 30)
    for rank in (0, 1):
        scene.rank(rank, connected=False, as_of_age=11)
    assert scene.only().suspects == ()


def test_a_rank_that_exited_after_it_completed_is_no_cause() -> None:
    """Rank 3 left after it completed seq 7; 2 is missing in seq 8 of a group without 3."""
    scene = Scene(4).group("tp", [0, 1, 2]).group("dp", range(4)).passed("dp", 7, range(4))
    scene.passed("tp", 7, [2]).waits("tp", 8, [0, 1])
    scene.rank(3, state=RankState.FINISHED, state_age=20, as_of_age=20)
    assert named(scene.only()) == {2: Reason.CPU_STUCK}


def ending(finished_age: float, **rank_one: object) -> Diagnosis:
    """0 to 2 have been inside dp and pp for 12 seconds; then 3, with whom they were, finished."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, range(4))
    scene.group("pp", [2, 3]).flying(2, "pp", 3, send=True, age=12)
    scene.rank(3, state=RankState.FINISHED, state_age=finished_age, as_of_age=finished_age)
    scene.rank(1, **rank_one)
    return scene.only()


def test_a_job_that_ends_does_not_end_at_one_moment() -> None:
    """A job that hung is ended, and the end of rank 3 is heard of first: no more is known."""
    diagnosis = ending(3)
    assert (diagnosis.suspects, diagnosis.unknown, diagnosis.victims) == ((), (3,), (0, 1, 2))


def test_who_waits_on_for_a_rank_that_finished_waits_for_it() -> None:
    """Rank 3 finished long enough ago; that rank 1 is not heard of any more changes nothing."""
    assert named(ending(6)) == {3: Reason.EXITED}
    assert named(ending(6, as_of_age=6.5)) == {3: Reason.EXITED}


def test_a_job_that_may_have_ended_since_nobody_was_heard_of() -> None:
    """Rank 3 finished long ago, and the others told last that they waited a second after that."""
    scene = Scene(2).group("dp", range(2)).waits("dp", 7, range(2), 20)
    scene.rank(0, as_of_age=7, connected=False)
    scene.rank(1, state=RankState.FINISHED, state_age=8, as_of_age=8)
    assert scene.only().suspects == ()


def test_a_rank_that_moves_elsewhere_is_named_with_less_confidence() -> None:
    """Rank 2 is missing in dp, but keeps going through its own group with 3."""
    scene = missing_two().group("pair", [2, 3]).passed("pair", 80, [3]).waits("pair", 81, [2], 0.2)
    diagnosis = scene.only()
    assert named(diagnosis) == {2: Reason.CPU_STUCK}
    assert diagnosis.suspects[0].confidence is Confidence.MEDIUM
    assert "still active in other groups" in diagnosis.suspects[0].evidence


def test_an_absence_that_has_only_begun_is_not_stuck_for_sure() -> None:
    """Rank 2 was last heard of 1.5 s after the others had come, and the threshold is 5 s."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 6, [2]).waits("dp", 7, [0, 1, 3], 6.0)
    diagnosis = scene.rank(2, as_of_age=4.5).only()
    assert named(diagnosis) == {2: Reason.CPU_STUCK}
    assert diagnosis.suspects[0].confidence is Confidence.MEDIUM


def test_a_rank_between_two_collectives_is_not_called_stuck_for_sure() -> None:
    """Rank 2 has nothing outstanding, but one of its watermarks rose a moment ago, or less than a
    stall's time before its last word."""
    assert missing_two(moved_age=0.5).only().suspects[0].confidence is Confidence.MEDIUM
    assert missing_two(moved_age=7, as_of_age=3).only().suspects[0].confidence is Confidence.MEDIUM
    assert missing_two(moved_age=7, as_of_age=1).only().suspects[0].confidence is Confidence.HIGH


def test_a_mover_is_not_named_beside_a_rank_that_is_stuck() -> None:
    """Ranks 1 and 2 are both missing; 1 makes progress elsewhere, 2 does nothing."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 6, [1, 2]).waits("dp", 7, [0, 3])
    scene.group("pair", [1, 3]).passed("pair", 80, [3]).waits("pair", 81, [1], 0.2)
    diagnosis = scene.only()
    assert named(diagnosis) == {2: Reason.CPU_STUCK}
    assert diagnosis.missing == (1, 2)


# -- missing telemetry -----------------------------------------------------------------------


def test_an_agent_that_is_gone_makes_a_rank_unreachable() -> None:
    """The stream of the missing rank's agent is down, and nobody else is to suspect."""
    diagnosis = missing_two(connected=False, as_of_age=30).only()
    assert named(diagnosis) == {2: Reason.UNREACHABLE}
    assert diagnosis.suspects[0].confidence is Confidence.MEDIUM


def test_late_telemetry_makes_a_rank_unreachable_at_most() -> None:
    """Nothing fresh came from the missing rank for 8 s, though its agent is connected."""
    diagnosis = missing_two(as_of_age=8).only()
    assert named(diagnosis) == {2: Reason.UNREACHABLE}
    assert diagnosis.suspects[0].confidence is Confidence.LOW


@pytest.mark.parametrize(
    "standing",
    [
        pytest.param({"gap": True}, id="gap"),
        pytest.param({"declared": False}, id="never seen"),
    ],
)
def test_a_rank_of_which_too_little_is_known_is_unknown(standing: dict[str, object]) -> None:
    """The missing rank's telemetry has a gap, or no agent ever reported the rank."""
    diagnosis = missing_two(**standing).only()
    assert diagnosis.suspects == ()
    assert diagnosis.unknown == (2,)
    assert diagnosis.victims == (0, 1, 3)


@pytest.mark.parametrize("of", [2, 3])
def test_a_gap_is_that_of_the_rank_and_of_no_other(of: int) -> None:
    """Nobody reports rank 0, so ranks are not where they are in a job that is all there: a gap in
    what 2 told excuses 2, one in what 3 told does not."""
    scene = Scene(4).group("dp", [1, 2, 3]).passed("dp", 6, [2]).waits("dp", 7, [1, 3])
    diagnosis = scene.rank(0, declared=False).rank(of, gap=True).only()
    assert named(diagnosis) == ({} if of == 2 else {2: Reason.CPU_STUCK})
    assert diagnosis.unknown == ((2,) if of == 2 else ())


def test_absence_older_than_the_wait_is_no_absence() -> None:
    """The last word of rank 2 is fresh enough, but from before the others began to wait."""
    scene = Scene(4, threshold_s=1.0).group("dp", range(4))
    scene.passed("dp", 6, [2]).waits("dp", 7, [0, 1, 3], age=2.0).rank(2, as_of_age=3.0)
    diagnosis = scene.only()
    assert (diagnosis.suspects, diagnosis.unknown) == ((), (2,))


def test_an_unknown_rank_lowers_the_confidence_in_others() -> None:
    """Ranks 1 and 2 are missing; 2 is provably stuck, of 1 nothing is known."""
    scene = missing_two().passed("dp", 6, [1]).rank(1, declared=False)
    diagnosis = scene.only()
    assert named(diagnosis) == {2: Reason.CPU_STUCK}
    assert diagnosis.suspects[0].confidence is Confidence.MEDIUM
    assert diagnosis.unknown == (1,)


# -- more than one group ---------------------------------------------------------------------


def test_a_cascade_over_two_layers_of_groups_leads_to_its_root() -> None:
    """5 is missing in tp1, whose ranks are missing in dp, in which everybody else waits."""
    scene = Scene(8).group("tp0", range(4)).group("tp1", range(4, 8)).group("dp", range(8))
    scene.passed("tp0", 4, range(4)).passed("dp", 1, range(8)).passed("tp1", 3, [5])
    scene.waits("tp1", 4, [4, 6, 7], age=12).waits("dp", 2, range(4), age=11.8)
    diagnosis = scene.only()
    assert named(diagnosis) == {5: Reason.CPU_STUCK}
    assert diagnosis.instance == Instance(1, 4)
    assert diagnosis.stalled == (StalledOp(1, 4), StalledOp(2, 2))
    assert diagnosis.victims == (0, 1, 2, 3, 4, 6, 7)


def test_a_culprit_outside_the_groups_that_most_wait_in() -> None:
    """0-3 wait in a for 4, which waits in b for 5, which waits in c for 6: only 6 is named."""
    scene = Scene(7).group("a", [0, 1, 2, 3, 4]).group("b", [4, 5]).group("c", [5, 6])
    scene.waits("a", 1, range(4), 10).waits("b", 1, [4], 11).waits("c", 1, [5], 12)
    diagnosis = scene.only()
    assert named(diagnosis) == {6: Reason.CPU_STUCK}
    assert diagnosis.victims == (0, 1, 2, 3, 4, 5)
    assert diagnosis.instance == Instance(2, 1)


def test_two_independent_roots_are_two_incidents() -> None:
    """Two disjoint groups wait, each for a rank of its own."""
    scene = Scene(4).group("a", [0, 1]).group("b", [2, 3]).waits("a", 1, [0]).waits("b", 9, [3], 20)
    first, second = scene.find()
    assert named(first) == {2: Reason.CPU_STUCK}
    assert (first.victims, second.victims) == ((3,), (0,))
    assert named(second) == {1: Reason.CPU_STUCK}


def test_two_roots_of_one_wait_are_one_incident_by_onset() -> None:
    """Everybody waits for 1 and 2; something was missing of 2 first."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, [0, 3], 10)
    scene.group("pair", [2, 3]).group("other", [0, 1]).waits("dp", 7, [0, 3], 10)
    scene.rank(2, state=RankState.EXITED, state_age=14)
    diagnosis = scene.only()
    assert [suspect.rank for suspect in diagnosis.suspects] == [2, 1]


def test_a_member_still_in_an_earlier_collective_holds_up_the_later_one() -> None:
    """0 and 1 are in seq 8; 2 has enqueued it too, but is still inside seq 7 of the group."""
    scene = Scene(3).group("dp", range(3)).waits("dp", 8, [0, 1], 10)
    scene.waits("dp", 7, [2], 12, ahead=1)
    assert named(scene.only()) == {2: Reason.IN_COLLECTIVE_ALONE}


# -- wrong order -----------------------------------------------------------------------------


def circle(**rank_zero: object) -> Scene:
    """Rank 2 waits in all for everybody, and everybody in dp for rank 2, for 20 s; 0 is no more."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 6, [2]).waits("dp", 7, [0, 1, 3], 20)
    scene.group("all", range(4)).passed("all", 4, [0, 1, 3]).waits("all", 5, [2], 20)
    return scene.rank(0, state=RankState.SILENT, detail="process is stopped (state T)", **rank_zero)


def test_who_is_stopped_in_a_circle_is_not_what_closed_it() -> None:
    """Rank 0 was stopped when the circle had stood for 17 s."""
    diagnosis = circle(state_age=3, as_of_age=3).only()
    assert diagnosis.kind is Kind.ORDER
    sure = [suspect.rank for suspect in diagnosis.suspects if suspect.confidence is Confidence.HIGH]
    assert sure == [2]


def test_who_is_stopped_before_anything_hangs_is_the_first_cause() -> None:
    """Rank 0 was stopped three seconds after it had come to dp, which is nothing long yet."""
    assert named(circle(state_age=17, as_of_age=17).only()) == {0: Reason.UNREACHABLE}


def test_victims_that_are_killed_are_no_cause() -> None:
    """Rank 2 never came; 0 and 1 waited for 20 s, then watchdogs killed them, for whom 3 waits
    elsewhere."""
    scene = Scene(4).group("dp", range(3)).passed("dp", 6, [2]).waits("dp", 7, [0, 1], 20)
    scene.group("tp", [0, 1, 3]).passed("tp", 1, [0, 1]).waits("tp", 2, [3], 18)
    for rank in (0, 1):
        scene.rank(rank, state=RankState.EXITED, state_age=2, as_of_age=2)
    assert named(scene.only()) == {2: Reason.CPU_STUCK}


def test_who_has_posted_a_receive_long_ahead_is_not_hung() -> None:
    """Rank 0 ran until it was killed, with a receive from 1 in flight for 45 s; now all wait for
    it."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 4, [0]).waits("dp", 5, [1, 2, 3], 15)
    scene.flying(0, "dp", 1, send=False, age=60)
    scene.rank(0, state=RankState.EXITED, state_age=15.5, as_of_age=16, moved_age=16)
    assert named(scene.only()) == {0: Reason.EXITED}


# -- what nobody can tell any more -----------------------------------------------------------


def test_who_may_be_over_with_it_waits_in_nothing() -> None:
    """The agent that saw rank 1 in seq 7 is gone, and its successor found no trace of it."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, [1], 100).passed("dp", 6, [0, 2, 3])
    scene.forgotten.add(("dp", 1))
    assert scene.find() == []


def test_who_may_be_in_something_is_not_stuck_for_sure() -> None:
    """All wait for 0 and 1, and 0 may be in what it was in when its agent went, which waits for
    1."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 2, [2, 3], 30).passed("dp", 1, [0, 1])
    scene.group("sub", [0, 1]).waits("sub", 1, [0], 40)
    scene.forgotten.add(("sub", 0))
    sure = {suspect.rank: suspect.confidence for suspect in scene.only().suspects}
    assert sure == {0: Confidence.MEDIUM, 1: Confidence.HIGH}


def test_who_may_have_come_is_not_absent() -> None:
    """Ranks 0, 2 and 3 are still in seq 7, and nothing tells whether 1 is."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, range(4), 100)
    scene.forgotten.add(("dp", 1))
    diagnosis = scene.only()
    assert diagnosis.suspects == ()
    assert diagnosis.unknown == (1,)


def test_two_ranks_in_opposite_order_are_a_cycle() -> None:
    """0 entered a before b, and 1 entered b before a; 2 waits in a too and is a victim."""
    scene = Scene(3).group("a", [0, 1, 2], s3="broadcast").group("b", [0, 1])
    scene.passed("a", 2, [1]).waits("a", 3, [0, 2]).passed("b", 4, [0]).waits("b", 5, [1], 11)
    diagnosis = scene.only()
    assert diagnosis.kind is Kind.ORDER
    assert named(diagnosis) == {0: Reason.ORDER, 1: Reason.ORDER}
    assert diagnosis.victims == (2,)
    evidence = {suspect.rank: suspect.evidence for suspect in diagnosis.suspects}
    assert evidence[0] == "is in broadcast #3 on a, and has not joined all_reduce #5 on b"
    assert evidence[1] == "is in all_reduce #5 on b, and has not joined broadcast #3 on a"


def test_three_ranks_in_a_circle() -> None:
    """0 waits for 1 in a, 1 for 2 in b, 2 for 0 in c."""
    scene = Scene(3).group("a", [0, 1]).group("b", [1, 2]).group("c", [0, 2])
    scene.waits("a", 1, [0]).waits("b", 1, [1]).waits("c", 1, [2])
    diagnosis = scene.only()
    assert diagnosis.kind is Kind.ORDER
    assert named(diagnosis) == dict.fromkeys(range(3), Reason.ORDER)
    assert diagnosis.victims == ()


def test_opposite_order_among_enqueued_collectives() -> None:
    """Both ranks enqueued both collectives, but the devices run them in opposite orders."""
    scene = Scene(2).group("a", [0, 1]).group("b", [0, 1])
    scene.waits("a", 1, [0], 12).waits("b", 1, [0], 11)
    scene.waits("b", 1, [1], 12).waits("a", 1, [1], 11)
    diagnosis = scene.only()
    assert diagnosis.kind is Kind.ORDER
    assert named(diagnosis) == {0: Reason.ORDER, 1: Reason.ORDER}
    assert "which it entered before all_reduce #1 on b" in diagnosis.suspects[0].evidence


def test_two_ranks_that_only_send_to_each_other_are_a_cycle() -> None:
    """0 and 1 each wait in a send that the other has posted no receive for."""
    scene = Scene(2).group("pp", [0, 1])
    scene.flying(0, "pp", 1, send=True).flying(1, "pp", 0, send=True)
    diagnosis = scene.only()
    assert diagnosis.kind is Kind.ORDER
    assert named(diagnosis) == {0: Reason.ORDER, 1: Reason.ORDER}


def test_who_has_moved_since_may_have_sent() -> None:
    """0 waits in a receive as of 2 s ago, and 1, as of now, has no send in flight: it is absent, if
    it has not moved for longer; else it may have sent, and 0 may have received."""
    scene = Scene(2).group("pp", [0, 1]).flying(0, "pp", 1, send=False).rank(0, as_of_age=2)
    assert named(scene.only()) == {1: Reason.CPU_STUCK}
    diagnosis = scene.rank(1, moved_age=1.5).only()
    assert (diagnosis.suspects, diagnosis.unknown) == ((), (1,))


def test_reports_of_different_age_make_no_circle() -> None:
    """0 received as of 2 s ago; 1 has sent that since, and receives: not from each other."""
    scene = Scene(2).group("pp", [0, 1]).rank(0, as_of_age=2)
    scene.flying(0, "pp", 1, send=False).flying(1, "pp", 0, send=False, age=8)
    assert scene.only().kind is Kind.ORDER
    diagnosis = scene.rank(1, moved_age=1.5).only()
    assert (diagnosis.kind, diagnosis.suspects) == (Kind.STALL, ())


def test_a_receive_posted_long_ahead_does_not_make_a_circle() -> None:
    """0 has posted a receive from 1 long ago and is stuck in b for 2; 1 waits for 0 in a."""
    scene = Scene(3).group("pp", [0, 1]).group("a", [0, 1]).group("b", [0, 2])
    scene.flying(0, "pp", 1, send=False, age=14).waits("b", 1, [0], 12).waits("a", 1, [1], 11)
    diagnosis = scene.only()
    assert diagnosis.kind is Kind.STALL
    assert named(diagnosis) == {2: Reason.CPU_STUCK}
    assert diagnosis.victims == (0, 1)


# -- everybody joined ------------------------------------------------------------------------


def test_a_rank_inside_what_its_peers_completed_is_named_alone() -> None:
    """1-3 completed seq 7 and wait in seq 8 for 0, which never came out of seq 7."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, [0], 13).waits("dp", 8, [1, 2, 3], 12)
    diagnosis = scene.only()
    assert named(diagnosis) == {0: Reason.IN_COLLECTIVE_ALONE}
    assert diagnosis.suspects[0].confidence is Confidence.HIGH
    assert diagnosis.suspects[0].evidence == (
        "still inside all_reduce #7 on dp, which ranks 1-3 completed"
    )
    assert diagnosis.victims == (1, 2, 3)


def recovering(report_age: float) -> Scene:
    """1-3 are known to have completed seq 7 for two seconds; 0 was inside of it then."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, [0], 13).waits("dp", 8, [1, 2, 3], 12)
    return scene.moved("dp", [1, 2, 3], 2).rank(0, as_of_age=report_age)


@pytest.mark.parametrize("report_age", [3, 1.5])
def test_a_rank_may_have_left_what_its_peers_completed_after_its_last_word(
    report_age: float,
) -> None:
    """A hang has just ended: what 0 told of itself is older than what its peers tell, or hardly
    younger than that, so that its recorder may not have noticed yet."""
    diagnosis = recovering(report_age).only()
    assert (diagnosis.suspects, diagnosis.unknown, diagnosis.victims) == ((), (0,), (1, 2, 3))


def test_a_rank_that_is_still_inside_well_after_its_peers_completed_is_named() -> None:
    """The same, but 0 has told since, and is where it was."""
    assert named(recovering(0.5).only()) == {0: Reason.IN_COLLECTIVE_ALONE}


def test_of_two_left_inside_only_the_one_that_has_told_since_is_named() -> None:
    """2 and 3 completed seq 7; 0 tells that it did not, and 1 has told nothing since."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, [0, 1], 13).waits("dp", 8, [2, 3], 12)
    diagnosis = scene.moved("dp", [2, 3], 2).rank(1, as_of_age=3).only()
    assert named(diagnosis) == {0: Reason.IN_COLLECTIVE_ALONE}


def test_most_of_a_group_left_behind_is_a_weaker_claim() -> None:
    """Only 3 completed seq 7; three ranks that are left inside are hardly three local faults."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, [0, 1, 2], 13).waits("dp", 8, [3], 12)
    diagnosis = scene.only()
    assert set(named(diagnosis)) == {0, 1, 2}
    assert {suspect.confidence for suspect in diagnosis.suspects} == {Confidence.MEDIUM}


def test_an_op_that_does_not_synchronize_lets_its_root_go() -> None:
    """0 and 1 completed a broadcast that 2 and 3 are inside of: nobody can be named for that."""
    scene = Scene(4).group("dp", range(4), s7="broadcast").passed("dp", 7, [0, 1])
    diagnosis = scene.waits("dp", 7, [2, 3]).only()
    assert diagnosis.suspects == ()
    assert diagnosis.reason is Reason.NETWORK_OR_DEVICE


def test_a_device_that_never_started_what_its_peers_started() -> None:
    """With timing on: all joined, the devices of 0, 1 and 3 started, the one of 2 did not."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, range(4))
    scene.started("dp", 7, [0, 1, 3]).started("dp", 6, [2])
    diagnosis = scene.only()
    assert named(diagnosis) == {2: Reason.DEVICE_STUCK}
    assert diagnosis.suspects[0].confidence is Confidence.HIGH
    assert diagnosis.victims == (0, 1, 3)


def test_a_device_may_have_started_after_the_last_word_of_its_rank() -> None:
    """Devices went on a second ago; what is known of 2 is older than that."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, range(4))
    scene.started("dp", 7, [0, 1, 3]).started("dp", 6, [2]).moved("dp", [0, 1, 3], 1)
    diagnosis = scene.rank(2, as_of_age=1.5).only()
    assert (diagnosis.suspects, diagnosis.unknown, diagnosis.victims) == ((), (2,), (0, 1, 3))


def test_a_device_that_has_just_come_out_of_something_else_is_not_stuck() -> None:
    """The others' devices started seq 7 long ago; that of 2 was in another group until now."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, range(4)).rank(2, moved_age=0.5)
    diagnosis = scene.started("dp", 7, [0, 1, 3]).started("dp", 6, [2]).only()
    assert (diagnosis.suspects, diagnosis.unknown) == ((), (2,))


def test_without_timing_nobody_is_device_stuck() -> None:
    """2's recorder tells no starts at all: that it has not started proves nothing."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, range(4)).started("dp", 7, [0, 1, 3])
    diagnosis = scene.only()
    assert diagnosis.suspects == ()
    assert diagnosis.reason is Reason.NETWORK_OR_DEVICE


def test_a_device_busy_with_another_op_leads_on_to_that() -> None:
    """The device of 2 has not started dp because it is in tp, where it waits for 4."""
    scene = Scene(5).group("dp", range(4)).group("tp", [2, 4]).waits("dp", 7, range(4), 11)
    scene.started("dp", 7, [0, 1, 3]).waits("tp", 1, [2], 12).started("tp", 1, [2])
    diagnosis = scene.only()
    assert named(diagnosis) == {4: Reason.CPU_STUCK}
    assert diagnosis.victims == (0, 1, 2, 3)


def test_all_joined_and_nobody_completes_is_nobodys_fault() -> None:
    """All four ranks are inside seq 7: network or device, and no suspect is invented."""
    diagnosis = Scene(4).group("dp", range(4)).waits("dp", 7, range(4)).only()
    assert (diagnosis.suspects, diagnosis.victims) == ((), (0, 1, 2, 3))
    assert diagnosis.reason is Reason.NETWORK_OR_DEVICE


def test_a_late_comer_has_just_arrived() -> None:
    """Three ranks waited for long, the fourth came a moment ago: the op is on its way."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, [0, 1, 3]).waits("dp", 7, [2], 0.3)
    assert scene.find() == []


def test_a_rank_left_inside_that_is_not_heard_of_any_more() -> None:
    """0 was left inside seq 7, but its agent is gone: perhaps it has come out since."""
    scene = Scene(3).group("dp", range(3)).waits("dp", 7, [0], 13).waits("dp", 8, [1, 2], 12)
    diagnosis = scene.rank(0, connected=False, as_of_age=7).only()
    assert named(diagnosis) == {0: Reason.UNREACHABLE}


# -- P2P -------------------------------------------------------------------------------------


def test_a_chain_of_pipeline_stages_leads_to_the_one_that_does_nothing() -> None:
    """Stage 0 sends to 1, 1 to 2, 2 to 3; 3 posted no receive and is in no collective."""
    scene = Scene(4).group("pp", range(4))
    for stage in (0, 1, 2):
        scene.flying(stage, "pp", stage + 1, send=True, age=10 + stage)
    diagnosis = scene.only()
    assert named(diagnosis) == {3: Reason.CPU_STUCK}
    assert diagnosis.victims == (0, 1, 2)
    assert diagnosis.op == "send 2->3"
    assert diagnosis.suspects[0].evidence == "has posted no recv that matches rank 2 on pp"


def test_a_paired_receive_leads_to_what_its_rank_is_stuck_in() -> None:
    """1 has posted the receive for 0's send, but its oldest op waits for 2 in tp."""
    scene = Scene(3).group("pp", [0, 1]).group("tp", [1, 2])
    scene.flying(0, "pp", 1, send=True, age=11).flying(1, "pp", 0, send=False, age=11)
    scene.waits("tp", 4, [1], 12)
    diagnosis = scene.only()
    assert named(diagnosis) == {2: Reason.CPU_STUCK}
    assert diagnosis.victims == (0, 1)


def test_a_receive_from_any_source_names_nobody() -> None:
    """1 receives from whoever sends: nobody in particular is missing."""
    diagnosis = Scene(3).group("pp", range(3)).flying(1, "pp", -1, send=False).only()
    assert diagnosis.suspects == ()
    assert diagnosis.reason is Reason.NETWORK_OR_DEVICE


def test_a_receive_from_any_source_matches_a_send() -> None:
    """0's send to 1 is met by 1's receive from any source."""
    scene = Scene(2).group("pp", [0, 1])
    scene.flying(0, "pp", 1, send=True).flying(1, "pp", -1, send=False)
    assert all(diagnosis.suspects == () for diagnosis in scene.find())


# -- mismatch --------------------------------------------------------------------------------


def test_the_minority_of_a_mismatch_is_named() -> None:
    """Three ranks passed all_reduce, 2 passed broadcast: 2 is the suspect, the others victims."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, range(4))
    fact = Mismatch(0, 7, [all_reduce(0, 1, 3), broadcast(2)], "ops differ", complete=True)
    diagnosis = scene.mismatch(fact).only()
    assert diagnosis.kind is Kind.MISMATCH
    assert named(diagnosis) == {2: Reason.MISMATCH}
    assert diagnosis.suspects[0].confidence is Confidence.HIGH
    assert diagnosis.victims == (0, 1, 3)
    words = "called broadcast where ranks 0-1,3 called all_reduce (#7 on dp)"
    assert diagnosis.suspects[0].evidence.startswith(words)
    assert diagnosis.disagreement == f"rank 2 {words}"


def test_a_tie_names_everybody() -> None:
    """Two ranks, two ops: no majority can be wrong about the other."""
    scene = Scene(2).group("dp", [0, 1]).waits("dp", 7, [0, 1])
    scene.mismatch(Mismatch(0, 7, [all_reduce(0), broadcast(1)], "ops differ", complete=True))
    diagnosis = scene.only()
    assert named(diagnosis) == {0: Reason.MISMATCH, 1: Reason.MISMATCH}
    assert {suspect.confidence for suspect in diagnosis.suspects} == {Confidence.MEDIUM}


def test_a_mismatch_outranks_the_absence_that_follows_from_it() -> None:
    """2 mismatched in tp, so 2 and 3 never came to dp: one incident, and it is the mismatch."""
    scene = Scene(4).group("dp", range(4)).group("tp", [1, 2, 3]).waits("dp", 7, [0], 10)
    scene.waits("tp", 3, [1, 2, 3], 12)
    fact = Mismatch(1, 3, [all_reduce(1, 3), broadcast(2)], "ops differ", complete=True)
    diagnosis = scene.mismatch(fact).only()
    assert diagnosis.kind is Kind.MISMATCH
    assert named(diagnosis) == {2: Reason.MISMATCH}
    assert diagnosis.victims == (0, 1, 3)
    assert diagnosis.instance == Instance(1, 3)


def test_only_the_first_mismatch_of_a_group_counts() -> None:
    """After one skipped call nothing of the group matches any more; the first says it all."""
    scene = Scene(3).group("dp", range(3)).passed("dp", 9, range(3))
    for seq in (9, 8, 7):
        fact = Mismatch(0, seq, [all_reduce(0, 2), broadcast(1)], "ops", complete=True)
        scene.mismatch(fact)
    assert scene.only().instance == Instance(0, 7)


def test_sums_that_do_not_balance_name_all_with_little_confidence() -> None:
    """An all_to_all whose members all look alike but put in more than they take out."""
    scene = Scene(2).group("ep", [0, 1]).waits("ep", 1, [0, 1])
    diagnosis = scene.mismatch(Mismatch(0, 1, [all_reduce(0, 1)], "+8", complete=True)).only()
    assert set(named(diagnosis)) == {0, 1}
    assert {suspect.confidence for suspect in diagnosis.suspects} == {Confidence.LOW}


# -- nothing to tell -------------------------------------------------------------------------


def test_no_confirmed_wait_is_no_incident() -> None:
    """Ranks that have waited for less than the threshold are no stall."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 6, [2]).waits("dp", 7, [0, 1, 3], 4.0)
    assert scene.find() == []


def test_a_job_without_groups() -> None:
    """Nothing was declared yet."""
    assert Scene(2).find() == []
    assert Scene(0).find() == []


def test_a_group_without_known_members() -> None:
    """No member ever told who belongs to the group, and none has shown up."""
    assert Scene(2).group("x", []).group("dp", [0, 1]).waits("dp", 1, [0]).only().suspects


def test_sixteen_thousand_ranks_waiting_for_one() -> None:
    """Size alone changes nothing: one missing rank of 16,384 is found, all others are victims."""
    scene = Scene(16_384).group("world", range(16_384)).passed("world", 6, [7_777])
    others = np.delete(np.arange(16_384), 7_777).tolist()
    diagnosis = scene.waits("world", 7, others).only()
    assert named(diagnosis) == {7_777: Reason.CPU_STUCK}
    assert len(diagnosis.victims) == 16_383


# -- dumps that lack something ---------------------------------------------------------------


def test_a_member_whose_marks_are_hidden_is_unknown() -> None:
    """Rank 2 shows nothing of seq 7, but its dump has lost all it knew of the group."""
    scene = missing_two()
    scene.hidden.add(("dp", 2))
    diagnosis = scene.only()
    assert (named(diagnosis), diagnosis.unknown) == ({}, (2,))


def test_a_circle_of_collectives_stands_whatever_an_unknown_rank_does() -> None:
    """0 and 1 entered tp and dp in opposite orders; both also wait for 2, of which nobody knows."""
    scene = Scene(3).group("tp", range(3)).group("dp", range(3)).rank(2, declared=False)
    diagnosis = scene.waits("tp", 1, [0]).waits("dp", 1, [1]).only()
    assert named(diagnosis) == {0: Reason.ORDER, 1: Reason.ORDER}
    assert {suspect.confidence for suspect in diagnosis.suspects} == {Confidence.MEDIUM}
    assert diagnosis.unknown == (2,)


def test_a_circle_of_collectives_stands_whatever_never_completes_elsewhere() -> None:
    """0 and 1 entered tp and dp in opposite orders; 0 also waits for 2, who is in an op that all
    have joined and nobody completes."""
    scene = Scene(4).group("tp", range(3)).group("dp", range(2)).group("cp", [2, 3])
    scene.waits("tp", 1, [0]).waits("dp", 1, [1]).waits("cp", 1, [2, 3])
    assert any(named(v) == {0: Reason.ORDER, 1: Reason.ORDER} for v in scene.find())


def test_who_enters_in_another_order_than_most_is_surer_the_cause() -> None:
    """0 entered dp before tp, 1, 2 and 3 the other way round."""
    scene = Scene(4).group("tp", range(4)).group("dp", range(4))
    diagnosis = scene.waits("dp", 1, [0]).waits("tp", 1, [1, 2, 3]).only()
    assert diagnosis.kind is Kind.ORDER
    assert {suspect.rank: suspect.confidence for suspect in diagnosis.suspects} == {
        0: Confidence.HIGH, 1: Confidence.MEDIUM, 2: Confidence.MEDIUM, 3: Confidence.MEDIUM
    }  # fmt: skip


def test_a_circle_is_not_called_while_a_younger_wait_may_explain_it() -> None:
    """As before, but 0 has a younger op in flight, to which the unknown rank may not have come."""
    scene = Scene(4).group("tp", range(3)).group("dp", range(3)).group("cp", [0, 3])
    scene.rank(2, declared=False).rank(3, declared=False)
    diagnosis = scene.waits("tp", 1, [0]).waits("dp", 1, [1]).waits("cp", 1, [0], age=11).only()
    assert (named(diagnosis), diagnosis.unknown) == ({}, (2,))


@pytest.mark.parametrize(("gone_age", "first"), [(3, Reason.DEVICE_STUCK), (9, Reason.EXITED)])
def test_a_rank_that_went_when_others_hung_already_is_no_first_cause(
    gone_age: float, first: Reason
) -> None:
    """All are in seq 7 for 12 seconds, and the device of 2 never started it. Rank 3 was killed 3
    seconds ago, as watchdogs do; or 9 seconds ago, when nobody could call that a hang."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, range(4), 12)
    scene.started("dp", 7, [0, 1, 3]).started("dp", 6, [2])
    scene.rank(3, state=RankState.EXITED, state_age=gone_age, as_of_age=gone_age)
    assert set(named(scene.only()).values()) == {first}


@pytest.mark.parametrize(("gone_age", "first"), [(3, Reason.ORDER), (9, Reason.EXITED)])
def test_a_circle_outlives_the_ranks_that_wait_for_it(gone_age: float, first: Reason) -> None:
    """0 and 1 are in tp and dp in opposite orders; 2 waits in dp and was killed meanwhile."""
    scene = Scene(3).group("tp", [0, 1]).group("dp", range(3))
    scene.waits("dp", 1, [0], 12).waits("tp", 1, [0], 11.5)
    scene.waits("tp", 1, [1], 12).waits("dp", 1, [1], 11.5).waits("dp", 1, [2], 12)
    scene.rank(2, state=RankState.EXITED, state_age=gone_age, as_of_age=gone_age)
    assert set(named(scene.only()).values()) == {first}


def test_a_device_that_stands_still_is_named_although_a_rank_is_unknown() -> None:
    """0 and 1 have started seq 7, the device of 2 has not, and of 3 nobody knows."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, range(3)).rank(3, declared=False)
    diagnosis = scene.started("dp", 7, [0, 1]).started("dp", 6, [2]).only()
    assert named(diagnosis) == {2: Reason.DEVICE_STUCK}
    assert diagnosis.suspects[0].confidence is Confidence.MEDIUM
    assert diagnosis.unknown == (3,)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("coalesced(all_reduce x3)", True),
        ("coalesced(broadcast,_all_gather_base)", True),
        ("ALLGATHER_coalesced(_broadcast_oop x2)", True),
        ("coalesced(broadcast x2)", False),
        ("_broadcast_oop", False),
    ],
)
def test_ops_issued_as_one_are_as_strict_as_the_strictest(op: str, expected: bool) -> None:
    """Nobody completes a coalesced collective alone when one of its parts forbids it."""
    assert is_synchronizing(op) is expected
