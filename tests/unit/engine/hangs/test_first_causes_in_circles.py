"""First causes of scripted scenes: ranks that wait for each other in a circle, and P2P ops."""

from __future__ import annotations

from signal import SIGABRT, SIGKILL, SIGTERM

import pytest

from frd.engine.hangs.ops_in_flight import Instance
from frd.engine.state.snapshot import Mismatch
from frd.model import Confidence, ExitInfo, ExitKind, Kind, RankState, Reason, Signature
from tests.world.scene import Scene, ago, blamed, named


@pytest.mark.parametrize(
    ("stopped_age", "sure"), [(3, {2: Reason.ORDER}), (17, {0: Reason.UNREACHABLE})]
)
def test_a_rank_stopped_inside_a_circle(stopped_age: float, sure: dict[int, Reason]) -> None:
    """Rank 2 waits in all for the others, and they wait in dp for rank 2, for 20 s. Rank 0 was
    stopped when that had lasted for 17 s; or three seconds after it had joined, before the stall
    threshold: then it is the first cause."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 6, [2]).waits("dp", 7, [0, 1, 3], 20)
    scene.group("all", range(4)).passed("all", 4, [0, 1, 3]).waits("all", 5, [2], 20)
    stopped = {"detail": "process is stopped (state T)", "as_of_age": stopped_age}
    scene.rank(0, state=RankState.SILENT, state_age=stopped_age, **stopped)
    diagnosis = scene.only()
    assert diagnosis.kind is (Kind.ORDER if stopped_age == 3 else Kind.STALL)
    certain = [one for one in diagnosis.suspects if one.confidence is Confidence.HIGH]
    assert {suspect.rank: suspect.reason for suspect in certain} == sure


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


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(
            Scene(3).group("a", [0, 1]).group("b", [1, 2]).group("c", [0, 2])
            .waits("a", 1, [0]).waits("b", 1, [1]).waits("c", 1, [2]),
            id="0 waits for 1 in a, 1 for 2 in b, 2 for 0 in c",
        ),
        pytest.param(
            Scene(2).group("pp", [0, 1])
            .flying(0, "pp", 1, send=True).flying(1, "pp", 0, send=True),
            id="each waits in a send for which the other has posted no receive",
        ),
        pytest.param(
            Scene(2).group("pp", [0, 1])
            .flying(0, "pp", 1, send=False).flying(1, "pp", 0, send=False),
            id="each waits in a receive for which the other has posted no send",
        ),
        pytest.param(
            Scene(3).group("pp", range(3))
            .flying(0, "pp", 1, send=True).flying(1, "pp", 2, send=True)
            .flying(2, "pp", 0, send=True),
            id="three ranks send round a ring, and none receives",
        ),
        pytest.param(
            Scene(3).group("pp", range(3))
            .flying(0, "pp", 1, send=True).flying(2, "pp", 1, send=True)
            .flying(1, "pp", 0, send=True, batch=1).flying(1, "pp", 2, send=True, batch=1),
            id="all stages of a pipeline send first: that the middle one has two peers is no fault",
        ),
        pytest.param(
            Scene(4).group("a", range(4)).group("b", range(4))
            .waits("a", 1, [0, 1]).waits("b", 1, [2, 3]),
            id="two ranks against two",
        ),
    ],
)  # fmt: skip
def test_all_ranks_are_in_a_circle(scene: Scene) -> None:
    """Each of them waits for another one."""
    diagnosis = scene.only()
    assert diagnosis.kind is Kind.ORDER
    assert blamed(diagnosis) == dict.fromkeys(range(scene.world), (Reason.ORDER, Confidence.MEDIUM))
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


def test_a_peer_that_has_moved_since_may_have_sent() -> None:
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


def test_a_circle_of_collectives_is_named_although_a_rank_is_unknown() -> None:
    """0 and 1 entered tp and dp in opposite orders; both also wait for rank 2, which is unknown."""
    scene = Scene(3).group("tp", range(3)).group("dp", range(3)).rank(2, declared=False)
    diagnosis = scene.waits("tp", 1, [0]).waits("dp", 1, [1]).only()
    assert named(diagnosis) == {0: Reason.ORDER, 1: Reason.ORDER}
    assert {suspect.confidence for suspect in diagnosis.suspects} == {Confidence.MEDIUM}
    assert diagnosis.unknown == (2,)


def test_a_circle_of_collectives_is_named_although_another_op_never_completes() -> None:
    """0 and 1 entered tp and dp in opposite orders; 0 also waits for 2, which is in an op that
    all have joined and none completes."""
    scene = Scene(4).group("tp", range(3)).group("dp", range(2)).group("cp", [2, 3])
    scene.waits("tp", 1, [0]).waits("dp", 1, [1]).waits("cp", 1, [2, 3])
    assert any(named(v) == {0: Reason.ORDER, 1: Reason.ORDER} for v in scene.find())


def test_the_rank_whose_order_differs_from_most_is_the_surest_suspect() -> None:
    """0 entered dp before tp, 1, 2 and 3 the other way round."""
    scene = Scene(4).group("tp", range(4)).group("dp", range(4))
    diagnosis = scene.waits("dp", 1, [0]).waits("tp", 1, [1, 2, 3]).only()
    assert diagnosis.kind is Kind.ORDER
    assert {suspect.rank: suspect.confidence for suspect in diagnosis.suspects} == {
        0: Confidence.HIGH, 1: Confidence.MEDIUM, 2: Confidence.MEDIUM, 3: Confidence.MEDIUM
    }  # fmt: skip


def test_a_rank_through_which_all_circles_lead_is_the_cause() -> None:
    """0 is in a barrier of all; 1 and 2 wait for it in ops that it never joined. 3 only waits."""
    scene = Scene(4).group("all", range(4), s1="barrier")
    scene.group("b", [0, 1], s1="broadcast").group("c", [0, 2, 3])
    diagnosis = scene.waits("all", 1, [0]).waits("b", 1, [1]).waits("c", 1, [2, 3]).only()
    sure = [one for one in diagnosis.suspects if one.confidence is Confidence.HIGH]
    assert [one.rank for one in sure] == [0]
    assert diagnosis.disagreement == (
        "rank 0 is in barrier #1 on all, and has not joined broadcast #1 on b, where rank 1 waits "
        "and all_reduce #1 on c, where ranks 2-3 wait"
    )


def test_a_rank_that_entered_two_ops_too_late_is_the_cause() -> None:
    """0 enqueued the op of all before those of two pairs, whose other ranks did not."""
    scene = Scene(3).group("all", range(3)).group("b", [0, 1]).group("c", [0, 2])
    scene.waits("all", 1, [0], 12).waits("b", 1, [0], 11).waits("c", 1, [0], 11)
    diagnosis = scene.waits("b", 1, [1]).waits("c", 1, [2]).only()
    assert blamed(diagnosis)[0] == (Reason.ORDER, Confidence.HIGH)
    assert diagnosis.disagreement == (
        "rank 0 is in all_reduce #1 on all, which it entered before all_reduce #1 on b, where "
        "rank 1 waits and all_reduce #1 on c, where rank 2 waits"
    )


def test_receives_that_one_rank_left_out() -> None:
    """1 and 2 send to 0, which is in a collective of all and has posted no receive."""
    scene = Scene(3).group("all", range(3)).group("pp", range(3)).waits("all", 1, [0])
    scene.flying(1, "pp", 0, send=True).flying(2, "pp", 0, send=True)
    diagnosis = scene.only()
    sure = [one.rank for one in diagnosis.suspects if one.confidence is Confidence.HIGH]
    assert sure == [0]
    assert diagnosis.disagreement.endswith(
        "and has not joined send 1->0 on pp, where rank 1 waits and send 2->0 on pp, where rank 2 "
        "waits"
    )


def test_a_circle_is_not_called_while_a_younger_wait_may_explain_it() -> None:
    """As before, but 0 has a younger op in flight, to which the unknown rank may not have come."""
    scene = Scene(4).group("tp", range(3)).group("dp", range(3)).group("cp", [0, 3])
    scene.rank(2, declared=False).rank(3, declared=False)
    diagnosis = scene.waits("tp", 1, [0]).waits("dp", 1, [1]).waits("cp", 1, [0], age=11).only()
    assert (named(diagnosis), diagnosis.unknown) == ({}, (2,))


@pytest.mark.parametrize(("gone_age", "first"), [(3, Reason.ORDER), (9, Reason.EXITED)])
def test_a_circle_outlives_the_ranks_that_wait_for_it(gone_age: float, first: Reason) -> None:
    """0 and 1 are in tp and dp in opposite orders; 2 waits in dp and was killed meanwhile."""
    scene = Scene(3).group("tp", [0, 1]).group("dp", range(3))
    scene.waits("dp", 1, [0], 12).waits("tp", 1, [0], 11.5)
    scene.waits("tp", 1, [1], 12).waits("dp", 1, [1], 11.5).waits("dp", 1, [2], 12)
    scene.rank(2, state=RankState.EXITED, state_age=gone_age, as_of_age=gone_age)
    assert set(named(scene.only()).values()) == {first}


def test_a_chain_of_pipeline_stages_leads_to_the_one_that_does_nothing() -> None:
    """Stage 0 sends to 1, 1 to 2, 2 to 3; 3 posted no receive and is in no collective."""
    scene = Scene(4).group("pp", range(4))
    for stage in (0, 1, 2):
        scene.flying(stage, "pp", stage + 1, send=True, age=10 + stage)
    diagnosis = scene.only()
    assert named(diagnosis) == {3: Reason.CPU_STUCK}
    assert diagnosis.victims == (0, 1, 2)
    assert diagnosis.collective.op == "send 2->3"
    assert diagnosis.suspects[0].evidence == "has posted no recv that matches rank 2 on pp"


def test_a_paired_receive_leads_to_what_its_rank_is_stuck_in() -> None:
    """1 has posted the receive for 0's send, but its oldest op waits for 2 in tp."""
    scene = Scene(3).group("pp", [0, 1]).group("tp", [1, 2])
    scene.flying(0, "pp", 1, send=True, age=11).flying(1, "pp", 0, send=False, age=11)
    scene.waits("tp", 4, [1], 12)
    diagnosis = scene.only()
    assert named(diagnosis) == {2: Reason.CPU_STUCK}
    assert diagnosis.victims == (0, 1)


def test_a_receive_from_any_source_names_no_rank() -> None:
    """1 receives from any sender: no particular rank is missing."""
    diagnosis = Scene(3).group("pp", range(3)).flying(1, "pp", -1, send=False).only()
    assert (diagnosis.suspects, diagnosis.reason) == ((), Reason.NETWORK_OR_DEVICE)


def test_a_receive_from_any_source_matches_a_send() -> None:
    """0's send to 1 is met by 1's receive from any source."""
    scene = Scene(2).group("pp", [0, 1])
    scene.flying(0, "pp", 1, send=True).flying(1, "pp", -1, send=False)
    assert all(diagnosis.suspects == () for diagnosis in scene.find())


def test_a_rank_that_its_library_aborted_is_not_certain() -> None:
    """Rank 1 was killed by SIGABRT in the middle of the job; the others wait for it."""
    scene = Scene(3).group("dp", range(3)).waits("dp", 7, [0, 2]).passed("dp", 6, [1])
    how = ExitInfo(ExitKind.SIGNAL, signal=SIGABRT)
    scene.rank(1, state=RankState.EXITED, state_age=12.5, as_of_age=12.6, exit=how)
    assert blamed(scene.only()) == {1: (Reason.EXITED, Confidence.MEDIUM)}
    scene.rank(1, exit=ExitInfo(ExitKind.SIGNAL, signal=SIGKILL))
    assert blamed(scene.only()) == {1: (Reason.EXITED, Confidence.HIGH)}


def test_a_rank_that_a_launcher_stops_after_another_has_ended_is_not_certain() -> None:
    """Rank 1 got SIGTERM, and the others wait for it; if rank 2 ended before, by a launcher."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, [0, 2, 3]).passed("dp", 6, [1])
    stopped = ExitInfo(ExitKind.SIGNAL, signal=SIGTERM)
    scene.rank(1, state=RankState.EXITED, state_age=12.5, as_of_age=12.6, exit=stopped)
    assert blamed(scene.only())[1] == (Reason.EXITED, Confidence.HIGH)
    aborted = ExitInfo(ExitKind.SIGNAL, signal=SIGABRT)
    scene.rank(2, state=RankState.EXITED, state_age=13.2, as_of_age=13.3, exit=aborted)
    assert blamed(scene.only())[1] == (Reason.EXITED, Confidence.MEDIUM)


# -- first causes of scripted scenes: mismatches ---------------------------------------------------


def all_reduce(*ranks: int) -> tuple[Signature, tuple[int, ...]]:
    return Signature("gloo", "all_reduce", ((4,),)), ranks


def broadcast(*ranks: int) -> tuple[Signature, tuple[int, ...]]:
    return Signature("gloo", "broadcast", ((4,),)), ranks


def odd_broadcast(group: int, seq: int, odd: int) -> Mismatch:
    """One of four ranks passed a broadcast."""
    others = tuple(rank for rank in range(4) if rank != odd)
    return Mismatch(group, seq, [all_reduce(*others), broadcast(odd)], "op", complete=True)


@pytest.mark.parametrize("seqs", [(7, 8), (8, 7)])
def test_what_does_not_match_after_the_first_is_its_consequence(seqs: tuple[int, int]) -> None:
    """Rank 2 made another call at seq 7, which shifts 8 too; whichever is reported first."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, range(4), ahead=1)
    for seq in seqs:
        scene.mismatch(odd_broadcast(0, seq, odd=2 if seq == 7 else 1))
    diagnosis = scene.only()
    assert (diagnosis.kind, diagnosis.instance) == (Kind.MISMATCH, Instance(0, 7))
    assert named(diagnosis) == {2: Reason.MISMATCH}


@pytest.mark.parametrize(("other", "incidents"), [(2, [{2}]), (1, [{2}, {1}])])
def test_a_rank_that_two_groups_disagree_with_is_one_incident(
    other: int, incidents: list[set[int]]
) -> None:
    """Rank 2 went wrong in one of two groups, and all went through; in the other it was that rank,
    too, or another."""
    scene = Scene(4).group("dp", range(4)).group("tp", range(4))
    scene.passed("dp", 7, range(4)).passed("tp", 3, range(4))
    scene.mismatch(odd_broadcast(0, 7, odd=2)).mismatch(odd_broadcast(1, 3, odd=other))
    assert [set(named(diagnosis)) for diagnosis in scene.find()] == incidents


def test_a_mismatch_and_a_stall_of_one_rank_are_one_incident() -> None:
    """Rank 2 passed something else, which went through; then it never came to another group."""
    scene = Scene(4).group("dp", range(4)).group("tp", range(4))
    scene.passed("dp", 7, range(4)).passed("tp", 2, [2]).waits("tp", 3, [0, 1, 3])
    scene.mismatch(odd_broadcast(0, 7, odd=2))
    diagnosis = scene.only()
    assert set(named(diagnosis)) == {2}
    assert diagnosis.victims == (0, 1, 3)


def test_a_mismatch_outranks_the_absence_that_follows_from_it() -> None:
    """2 mismatched in tp, so 2 and 3 never came to dp: one incident, and it is the mismatch."""
    scene = Scene(4).group("dp", range(4)).group("tp", [1, 2, 3]).waits("dp", 7, [0], 10)
    scene.waits("tp", 3, [1, 2, 3], 12)
    mismatch = Mismatch(1, 3, [all_reduce(1, 3), broadcast(2)], "ops differ", complete=True)
    diagnosis = scene.mismatch(mismatch).only()
    assert diagnosis.kind is Kind.MISMATCH
    assert named(diagnosis) == {2: Reason.MISMATCH}
    assert diagnosis.victims == (0, 1, 3)
    assert diagnosis.instance == Instance(1, 3)


def test_sums_that_do_not_balance_name_all_with_little_confidence() -> None:
    """An all_to_all whose members all look alike but put in more than they take out."""
    scene = Scene(2).group("ep", [0, 1]).waits("ep", 1, [0, 1])
    diagnosis = scene.mismatch(Mismatch(0, 1, [all_reduce(0, 1)], "+8", complete=True)).only()
    assert set(named(diagnosis)) == {0, 1}
    assert {suspect.confidence for suspect in diagnosis.suspects} == {Confidence.LOW}


def pair(sent: int, received: int, **of_receiver: float) -> Scene:
    """Rank 0 sends to rank 1; `of_receiver` is its standing."""
    scene = Scene(2).group("pp", [0, 1])
    scene.flying(0, "pp", 1, send=True, signature=Signature("nccl", "send", ((sent,),), ()))
    taken = Signature("nccl", "recv", (), ((received,),))
    return scene.flying(1, "pp", 0, send=False, signature=taken).rank(1, **of_receiver)


def test_two_ends_of_a_channel_that_disagree() -> None:
    """Of two ranks none is the majority."""
    diagnosis = pair(4, 8).only()
    assert diagnosis.kind is Kind.MISMATCH
    medium = Reason.MISMATCH, Confidence.MEDIUM
    assert blamed(diagnosis) == {0: medium, 1: medium}
    assert diagnosis.disagreement == "rank 1 receives [[8]] where rank 0 sends [[4]]"


def test_two_ends_that_were_not_in_their_ops_together() -> None:
    """Rank 1 was last heard of before rank 0 posted its send: by now its receive may be another."""
    scene = pair(4, 8, as_of_age=4.0)
    scene.channels[0] = (*scene.channels[0][:5], ago(3.0), *scene.channels[0][6:])
    assert all(not diagnosis.suspects for diagnosis in scene.find())


def test_signatures_that_are_not_known_are_not_compared() -> None:
    """The agent of rank 1 reports no signatures: the pair is in flight, and no rank is named."""
    scene = pair(4, 8)
    scene.channels[1] = (*scene.channels[1][:7], -1, -1)
    assert scene.only().reason is Reason.NETWORK_OR_DEVICE


@pytest.mark.parametrize("numbers", [(1, 2), (-1, 0), (0, -1), (-1, -1)])
def test_ops_that_need_not_be_a_pair_are_not_compared(numbers: tuple[int, int]) -> None:
    """A send completed early, so the ops in flight have other numbers; or these are not known."""
    scene = pair(4, 8)
    scene.channels = [(*of[:8], number) for of, number in zip(scene.channels, numbers, strict=True)]
    assert scene.only().reason is Reason.NETWORK_OR_DEVICE
