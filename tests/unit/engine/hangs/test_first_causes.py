"""First causes of scripted scenes: missing ranks, missing telemetry, several groups."""

from __future__ import annotations

from typing import Any

import pytest

from frd.engine.hangs.ops_in_flight import Instance, Waits
from frd.model import UNKNOWN_SEQ, Confidence, Kind, RankState, Reason
from tests.world.scene import Scene, ago, blamed, named


def missing_two(**rank_two: object) -> Scene:
    """Four ranks in one group; 2 never joined seq 7; `rank_two` changes its state."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 6, [2]).waits("dp", 7, [0, 1, 3])
    return scene.rank(2, **rank_two)


def test_a_rank_in_no_collective_is_stuck_in_its_program() -> None:
    """Rank 2 is alive, in no collective, and never joined the op of the three others."""
    diagnosis = missing_two(detail="heartbeat 12 s old: the GIL may be held").only()
    assert diagnosis.kind is Kind.STALL
    assert named(diagnosis) == {2: Reason.CPU_STUCK}
    (suspect,) = diagnosis.suspects
    assert suspect.confidence is Confidence.HIGH
    assert suspect.evidence == "last joined seq 6 of dp; heartbeat 12 s old: the GIL may be held"
    ref = diagnosis.collective
    assert (diagnosis.instance, ref.op) == (Instance(0, 7), "all_reduce")
    assert (ref.waiting_ranks, ref.missing_ranks) == ((0, 1, 3), (2,))
    assert (diagnosis.victims, diagnosis.unknown) == ((0, 1, 3), ())


def test_evidence_of_a_rank_that_never_joined_anything() -> None:
    """Rank 1 has not joined the first collective of the group yet."""
    diagnosis = Scene(2).group("dp", [0, 1]).waits("dp", 1, [0]).only()
    assert diagnosis.suspects[0].evidence == "has not joined a collective of dp yet"


STOPPED = "process 4711 is stopped (state T)"


@pytest.mark.parametrize(
    ("rank_two", "reason", "confidence"),
    [
        pytest.param(
            {"state": RankState.EXITED, "detail": "killed", "state_age": 11, "as_of_age": 12},
            Reason.EXITED, Confidence.HIGH, id="killed",
        ),
        pytest.param(
            {"state": RankState.EXITED, "detail": "killed", "state_age": 2, "as_of_age": 12},
            Reason.EXITED, Confidence.MEDIUM, id="killed, may have joined and waited before that",
        ),
        pytest.param(
            {"state": RankState.FINISHED, "state_age": 11, "as_of_age": 11},
            Reason.EXITED, Confidence.HIGH, id="finished",
        ),
        pytest.param(
            {"state": RankState.SILENT, "detail": STOPPED, "state_age": 11, "as_of_age": 11},
            Reason.UNREACHABLE, Confidence.HIGH, id="stopped",
        ),
        pytest.param(
            {"state": RankState.SILENT, "detail": "no answer", "state_age": 11, "as_of_age": 11},
            Reason.UNREACHABLE, Confidence.MEDIUM, id="silent",
        ),
        pytest.param(
            {"connected": False, "as_of_age": 30},
            Reason.UNREACHABLE, Confidence.MEDIUM, id="its agent is not connected",
        ),
        pytest.param(
            {"as_of_age": 8}, Reason.UNREACHABLE, Confidence.LOW, id="nothing fresh for 8 s"
        ),
        *(
            pytest.param(
                {"moved_age": moved, "as_of_age": reported}, Reason.CPU_STUCK, confidence,
                id=f"in no op, moved {moved} s ago, reported {reported} s ago",
            )
            for moved, reported, confidence in (
                (0.5, 0.1, Confidence.MEDIUM), (7, 3, Confidence.MEDIUM), (7, 1, Confidence.HIGH)
            )
        ),
    ],
)  # fmt: skip
def test_what_is_known_of_the_missing_rank(
    rank_two: dict[str, Any], reason: Reason, confidence: Confidence
) -> None:
    """Its agent says how it is, or nothing is heard of it: it is named as surely as that."""
    diagnosis = missing_two(**rank_two).only()
    assert blamed(diagnosis) == {2: (reason, confidence)}
    assert rank_two.get("detail", "") in diagnosis.suspects[0].evidence
    assert diagnosis.victims == (0, 1, 3)


EXITED = {"state": RankState.EXITED, "detail": "killed", "state_age": 20, "as_of_age": 20}


@pytest.mark.parametrize(
    ("world", "came", "rank_states", "only"),
    [
        pytest.param(3, 1, {}, "only rank 0 of 3 is in it, perhaps", id="one of three"),
        pytest.param(8, 1, {}, "only rank 0 of 8 is in it, perhaps", id="one of eight"),
        pytest.param(9, 2, {}, "only ranks 0-1 of 9 are in it, perhaps", id="two of nine"),
        pytest.param(8, 2, {}, "", id="a quarter"),
        pytest.param(2, 1, {}, "", id="one of two"),
        pytest.param(3, 1, {1: EXITED}, "", id="of three one is gone: one of two"),
        pytest.param(9, 2, {7: {"gap": True}}, "", id="of nine one is not known: two of eight"),
    ],
)
def test_few_ranks_in_an_op_may_be_wrong_instead_of_the_others(
    world: int, came: int, rank_states: dict[int, dict[str, Any]], only: str
) -> None:
    """Rank 0 called a barrier in `if rank == 0`, or all others are late: which, nothing shows."""
    scene = Scene(world).group("dp", range(world)).passed("dp", 6, range(world))
    scene.waits("dp", 7, range(came))
    for rank, state in rank_states.items():
        scene.rank(rank, **state)
    diagnosis = scene.only()
    idle = [s for s in diagnosis.suspects if s.reason is Reason.CPU_STUCK]
    assert len(idle) == world - came - len(rank_states)
    high = Confidence.HIGH if not diagnosis.unknown else Confidence.MEDIUM
    assert {s.confidence for s in idle} == {Confidence.MEDIUM if only else high}
    assert all(only in s.evidence and ("only" in s.evidence) == bool(only) for s in idle)
    gone = [s for s in diagnosis.suspects if s.reason is Reason.EXITED]
    assert all(s.confidence is Confidence.HIGH for s in gone)


def test_a_rank_for_which_another_op_waits_too_is_the_cause() -> None:
    """Only rank 0 is in the barrier, but ranks 1-6 wait for 7 in another group."""
    scene = Scene(8).group("world", range(8)).passed("world", 2, range(8))
    scene.group("tp", range(1, 8)).passed("tp", 6, [7]).waits("tp", 7, range(1, 7))
    diagnosis = scene.waits("world", 3, [0]).only()
    assert blamed(diagnosis) == {7: (Reason.CPU_STUCK, Confidence.HIGH)}


def test_a_rank_that_may_have_waited_in_an_op_before_it_ended() -> None:
    """Rank 2 was killed in an op of 9 s. It is not known whether it did something else meanwhile,
    as all that it did was reported at its end."""
    scene = Scene(5).group("dp", range(4)).passed("dp", 6, [2]).waits("dp", 7, [0, 1, 3])
    scene.group("tp", [2, 4]).passed("tp", 2, [4]).waits("tp", 3, [2], 20)
    scene.rank(2, state=RankState.EXITED, state_age=11, as_of_age=11.5, moved_age=11.5)
    [suspect] = scene.only().suspects
    assert (suspect.rank, suspect.confidence) == (2, Confidence.MEDIUM)


def test_a_rank_that_exited_after_it_completed_is_no_cause() -> None:
    """Rank 3 left after it completed seq 7; 2 is missing in seq 8 of a group without 3."""
    scene = Scene(4).group("tp", [0, 1, 2]).group("dp", range(4)).passed("dp", 7, range(4))
    scene.passed("tp", 7, [2]).waits("tp", 8, [0, 1])
    scene.rank(3, state=RankState.FINISHED, state_age=20, as_of_age=20)
    assert named(scene.only()) == {2: Reason.CPU_STUCK}


@pytest.mark.parametrize(
    ("finished_age", "rank_one", "is_named"),
    [
        pytest.param(3, {}, False, id="a job that hung is ended, its exit is reported first"),
        pytest.param(6, {}, True, id="a threshold ago"),
        pytest.param(6, {"as_of_age": 6.5}, True, id="a threshold ago, and 1 reports no more"),
    ],
)
def test_a_rank_that_finished_is_the_cause_if_that_was_long_ago(
    finished_age: float, rank_one: dict[str, float], is_named: bool
) -> None:
    """0 to 2 have been inside dp and pp for 12 seconds; then 3, the other member, finished."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, range(4))
    scene.group("pp", [2, 3]).flying(2, "pp", 3, send=True, age=12)
    scene.rank(3, state=RankState.FINISHED, state_age=finished_age, as_of_age=finished_age)
    diagnosis = scene.rank(1, **rank_one).only()
    assert named(diagnosis) == ({3: Reason.EXITED} if is_named else {})
    assert diagnosis.unknown == (() if is_named else (3,))
    assert diagnosis.victims == (0, 1, 2)


def test_ranks_that_do_not_report_after_a_finish_prove_nothing() -> None:
    """Rank 3 finished long ago; the others last reported a second after that, still waiting."""
    scene = Scene(2).group("dp", range(2)).waits("dp", 7, range(2), 20)
    scene.rank(0, as_of_age=7, connected=False)
    scene.rank(1, state=RankState.FINISHED, state_age=8, as_of_age=8)
    assert scene.only().suspects == ()


def test_a_rank_that_moves_elsewhere_is_named_with_less_confidence() -> None:
    """Rank 2 is missing in dp, but keeps going through its own group with 3."""
    scene = missing_two().group("pair", [2, 3]).passed("pair", 80, [3]).waits("pair", 81, [2], 0.2)
    diagnosis = scene.only()
    assert blamed(diagnosis) == {2: (Reason.CPU_STUCK, Confidence.MEDIUM)}
    assert "still active in other groups" in diagnosis.suspects[0].evidence


def test_an_absence_is_proven_once_the_wait_for_it_is_a_stall() -> None:
    """The others came 6 s ago, and the threshold is 5 s. Rank 2 was last heard of 1.5 s after they
    had come, so it may have come since; or 5.1 s after, when it had not."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 6, [2]).waits("dp", 7, [0, 1, 3], 6.0)
    diagnosis = scene.rank(2, as_of_age=4.5).only()
    assert (diagnosis.suspects, diagnosis.unknown) == ((), (2,))
    assert blamed(scene.rank(2, as_of_age=0.9).only()) == {2: (Reason.CPU_STUCK, Confidence.HIGH)}


def test_a_moving_rank_is_not_named_if_another_is_stuck() -> None:
    """Ranks 1 and 2 are both missing; 1 makes progress elsewhere, 2 does nothing."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 6, [1, 2]).waits("dp", 7, [0, 3])
    scene.group("pair", [1, 3]).passed("pair", 80, [3]).waits("pair", 81, [1], 0.2)
    diagnosis = scene.only()
    assert named(diagnosis) == {2: Reason.CPU_STUCK}
    assert diagnosis.collective.missing_ranks == (1, 2)


def hidden(scene: Scene) -> Scene:
    scene.hidden.add(("dp", 2))
    return scene


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(missing_two(gap=True), id="gap"),
        pytest.param(missing_two(declared=False), id="never seen"),
        pytest.param(hidden(missing_two()), id="its dump has lost everything of the group"),
    ],
)
def test_a_rank_of_which_too_little_is_known_is_unknown(scene: Scene) -> None:
    """Whether the missing rank has joined cannot be said."""
    diagnosis = scene.only()
    assert (diagnosis.suspects, diagnosis.unknown, diagnosis.victims) == ((), (2,), (0, 1, 3))


@pytest.mark.parametrize("gap_rank", [2, 3])
def test_a_gap_of_one_rank_excuses_no_other(gap_rank: int) -> None:
    """No agent reports rank 0, so rows are not rank numbers: a gap of rank 2 excuses rank 2, a gap
    of rank 3 does not."""
    scene = Scene(4).group("dp", [1, 2, 3]).passed("dp", 6, [2]).waits("dp", 7, [1, 3])
    diagnosis = scene.rank(0, declared=False).rank(gap_rank, gap=True).only()
    assert named(diagnosis) == ({} if gap_rank == 2 else {2: Reason.CPU_STUCK})
    assert diagnosis.unknown == ((2,) if gap_rank == 2 else ())


def test_an_unknown_rank_lowers_the_confidence_in_others() -> None:
    """Ranks 1 and 2 are missing; 2 is provably stuck, of 1 nothing is known."""
    scene = missing_two().passed("dp", 6, [1]).rank(1, declared=False)
    diagnosis = scene.only()
    assert blamed(diagnosis) == {2: (Reason.CPU_STUCK, Confidence.MEDIUM)}
    assert diagnosis.unknown == (1,)


def test_two_independent_roots_are_two_incidents() -> None:
    """Two disjoint groups wait, each for another rank."""
    scene = Scene(4).group("a", [0, 1]).group("b", [2, 3]).waits("a", 1, [0]).waits("b", 9, [3], 20)
    first, second = scene.find()
    assert named(first) == {2: Reason.CPU_STUCK}
    assert (first.victims, second.victims) == ((3,), (0,))
    assert named(second) == {1: Reason.CPU_STUCK}


def test_two_roots_of_one_wait_are_one_incident_by_onset() -> None:
    """All wait for 1 and 2; rank 2 was missing first."""
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


def test_victims_that_are_killed_are_no_cause() -> None:
    """Rank 2 never joined; 0 and 1 waited for 20 s, then watchdogs killed them. Rank 3 waits for
    them elsewhere."""
    scene = Scene(4).group("dp", range(3)).passed("dp", 6, [2]).waits("dp", 7, [0, 1], 20)
    scene.group("tp", [0, 1, 3]).passed("tp", 1, [0, 1]).waits("tp", 2, [3], 18)
    for rank in (0, 1):
        scene.rank(rank, state=RankState.EXITED, state_age=2, as_of_age=2)
    assert named(scene.only()) == {2: Reason.CPU_STUCK}


def test_a_receive_posted_long_ahead_is_no_hang() -> None:
    """Rank 0 ran until it was killed, with a receive from 1 in flight for 45 s; now all wait for
    it."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 4, [0]).waits("dp", 5, [1, 2, 3], 15)
    scene.flying(0, "dp", 1, send=False, age=60)
    scene.rank(0, state=RankState.EXITED, state_age=15.5, as_of_age=16, moved_age=16)
    assert named(scene.only()) == {0: Reason.EXITED}


def test_an_op_that_may_be_over_is_no_wait() -> None:
    """The agent that saw rank 1 in seq 7 is gone, and its successor found no trace of it."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, [1], 100).passed("dp", 6, [0, 2, 3])
    scene.forgotten.add(("dp", 1))
    assert scene.find() == []


def test_a_rank_that_may_be_in_an_op_is_not_certainly_stuck() -> None:
    """All wait for 0 and 1. Rank 0 may still be in the op that its lost agent reported, which waits
    for 1."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 2, [2, 3], 30).passed("dp", 1, [0, 1])
    scene.group("sub", [0, 1]).waits("sub", 1, [0], 40)
    scene.forgotten.add(("sub", 0))
    sure = {suspect.rank: suspect.confidence for suspect in scene.only().suspects}
    assert sure == {0: Confidence.MEDIUM, 1: Confidence.HIGH}


def test_a_rank_that_may_have_joined_is_not_absent() -> None:
    """Ranks 0, 2 and 3 are still in seq 7, and it is not known whether 1 is."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, range(4), 100)
    scene.forgotten.add(("dp", 1))
    diagnosis = scene.only()
    assert (diagnosis.suspects, diagnosis.unknown) == ((), (1,))


def test_a_group_without_known_members() -> None:
    """No member reported who belongs to the group, and none has joined."""
    assert Scene(2).group("x", []).group("dp", [0, 1]).waits("dp", 1, [0]).only().suspects


# -- ops in flight ---------------------------------------------------------------------------------


def test_an_op_of_unknown_age_is_younger_than_any_other() -> None:
    """It is unknown since when rank 0 is in tp: its head is the op of known age."""
    scene = Scene(2).group("tp", [0, 1]).group("dp", [0, 1])
    scene.waits("tp", 3, [0]).waits("dp", 7, [0])
    scene.marks["tp", 0].since = 0
    ops = Waits(scene.snapshot()).ops(0)
    assert [op.instance for op in ops] == [Instance(1, 7), Instance(0, 3)]


def test_who_came_first_and_who_came_last() -> None:
    """Three of four are inside; 2 came first, 3 last, and when 1 did is unknown."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 6, [0])
    scene.waits("dp", 7, [1]).waits("dp", 7, [2], 12).waits("dp", 7, [3], 9)
    scene.marks["dp", 1].since = 0
    those = Waits(scene.snapshot()).attendance(Instance(0, 7))
    assert (those.first_since.at, those.last_since) == (ago(12), ago(9))


@pytest.mark.parametrize(("peer", "paired"), [(0, True), (-1, True), (2, False)])
def test_the_other_end_of_a_channel(peer: int, paired: bool) -> None:
    """0 sends to 1, which receives from 0, from anybody, or from 2."""
    scene = Scene(3).group("pp", range(3)).flying(0, "pp", 1, send=True)
    scene.flying(1, "pp", peer, send=False)
    waits = Waits(scene.snapshot())
    assert waits.op(0, Instance(0, UNKNOWN_SEQ, 0, 1)).is_matched is paired


def test_sends_of_agents_that_know_no_batches() -> None:
    """Rank 0 has two sends to rank 1 in flight, and rank 1 waits in the first receive: they may be
    two calls, of which the first is a pair."""
    scene = Scene(2).group("pp", [0, 1]).flying(0, "pp", 1, send=True, count=2)
    assert scene.flying(1, "pp", 0, send=False).only().reason is Reason.NETWORK_OR_DEVICE


@pytest.mark.parametrize("first", [0, 2])
def test_all_ops_of_a_batch_count(first: int) -> None:
    """Rank 1 has a receive of rank 0 and a send to rank 2 in one call; rank 2 is in no op."""
    scene = Scene(3).group("pp", range(3)).flying(0, "pp", 1, send=True)
    for peer in sorted([0, 2], reverse=first == 2):
        scene.flying(1, "pp", peer, send=peer == 2, batch=7)
    diagnosis = scene.only()
    assert named(diagnosis) == {2: Reason.CPU_STUCK}
    assert diagnosis.victims == (0, 1)
    assert diagnosis.instance == Instance(0, UNKNOWN_SEQ, 1, 2)
