"""First causes of scripted scenes: ranks and devices that are stuck inside an op."""

from __future__ import annotations

import pytest

from frd.engine.matching.signature_rules import is_synchronizing
from frd.model import Confidence, RankState, Reason
from tests.world.scene import Scene, blamed, named


def all_joined() -> Scene:
    """All four ranks of dp are in seq 7."""
    return Scene(4).group("dp", range(4)).waits("dp", 7, range(4))


@pytest.mark.parametrize(
    ("ranks", "how", "blame"),
    [
        pytest.param(
            [2], {"state": RankState.EXITED, "state_age": 11, "as_of_age": 11},
            (Reason.EXITED, Confidence.HIGH), id="killed",
        ),
        pytest.param(
            [2], {"state": RankState.SILENT, "state_age": 11, "detail": "process 5 is stopped"},
            (Reason.UNREACHABLE, Confidence.HIGH), id="stopped by a signal",
        ),
        pytest.param(
            [2, 3], {"connected": False, "as_of_age": 11},
            (Reason.UNREACHABLE, Confidence.MEDIUM), id="its node went down with its agent",
        ),
    ],
)  # fmt: skip
def test_a_process_that_is_gone_inside_an_op_is_the_cause_when_all_joined(
    ranks: list[int], how: dict[str, object], blame: tuple[Reason, Confidence]
) -> None:
    """All four joined seq 7, then some are gone; the others wait for ever."""
    scene = all_joined()
    for rank in ranks:
        scene.rank(rank, **how)
    diagnosis = scene.only()
    assert blamed(diagnosis) == dict.fromkeys(ranks, blame)
    assert diagnosis.victims == tuple(rank for rank in range(4) if rank not in ranks)


def test_a_frozen_process_outranks_the_ranks_that_it_left_inside() -> None:
    """2 was stopped inside seq 7; its data still let 3 through, and 0 and 1 are left in it."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, [0, 1, 2], 13).waits("dp", 8, [3], 12)
    scene.rank(2, state=RankState.SILENT, detail="process 5 is stopped", state_age=11)
    diagnosis = scene.only()
    assert named(diagnosis) == {2: Reason.UNREACHABLE}
    assert diagnosis.victims == (0, 1, 3)


def test_without_any_connected_agent_no_rank_is_unreachable() -> None:
    """All joined seq 7, and then all agents were cut off: that is no cause of the stall."""
    scene = Scene(2).group("dp", [0, 1]).waits("dp", 7, [0, 1], 30)
    for rank in (0, 1):
        scene.rank(rank, connected=False, as_of_age=11)
    assert scene.only().suspects == ()


def test_a_rank_inside_what_its_peers_completed_is_named_alone() -> None:
    """1-3 completed seq 7 and wait in seq 8 for 0, which never came out of seq 7."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, [0], 13).waits("dp", 8, [1, 2, 3], 12)
    diagnosis = scene.only()
    assert blamed(diagnosis) == {0: (Reason.IN_COLLECTIVE_ALONE, Confidence.HIGH)}
    assert diagnosis.suspects[0].evidence == (
        "still inside all_reduce #7 on dp, which ranks 1-3 completed"
    )
    assert diagnosis.victims == (1, 2, 3)


@pytest.mark.parametrize(("report_age", "is_inside"), [(3, False), (1.5, False), (0.5, True)])
def test_a_rank_may_leave_an_op_after_its_last_report(report_age: float, is_inside: bool) -> None:
    """1-3 are known to have completed seq 7 for two seconds. The report that 0 is inside is older
    than that, or so little newer that its recorder may not have noticed the completion; or it is
    newer."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, [0], 13).waits("dp", 8, [1, 2, 3], 12)
    diagnosis = scene.moved("dp", [1, 2, 3], 2).rank(0, as_of_age=report_age).only()
    assert named(diagnosis) == ({0: Reason.IN_COLLECTIVE_ALONE} if is_inside else {})
    assert diagnosis.unknown == (() if is_inside else (0,))
    assert diagnosis.victims == (1, 2, 3)


def test_of_two_ranks_left_inside_only_the_one_that_reported_since_is_named() -> None:
    """2 and 3 completed seq 7; 0 reports that it did not, and 1 has not reported since."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, [0, 1], 13).waits("dp", 8, [2, 3], 12)
    assert named(scene.moved("dp", [2, 3], 2).rank(1, as_of_age=3).only()) == {
        0: Reason.IN_COLLECTIVE_ALONE
    }


def test_most_of_a_group_left_behind_is_a_weaker_claim() -> None:
    """Only 3 completed seq 7; three ranks that are left inside are hardly three local faults."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, [0, 1, 2], 13).waits("dp", 8, [3], 12)
    diagnosis = scene.only()
    assert set(named(diagnosis)) == {0, 1, 2}
    assert {suspect.confidence for suspect in diagnosis.suspects} == {Confidence.MEDIUM}


def not_started() -> Scene:
    """With timing on: all joined, the devices of 0, 1 and 3 started, the one of 2 did not."""
    return all_joined().started("dp", 7, [0, 1, 3]).started("dp", 6, [2])


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(not_started(), id="all report"),
        pytest.param(not_started().rank(1, as_of_age=9.0), id="a rank that started is silent"),
    ],
)
def test_a_device_that_never_started_what_its_peers_started(scene: Scene) -> None:
    """It is stuck; it needs none of its peers to start."""
    diagnosis = scene.only()
    assert blamed(diagnosis) == {2: (Reason.DEVICE_STUCK, Confidence.HIGH)}
    assert diagnosis.victims == (0, 1, 3)


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(
            not_started().moved("dp", [0, 1, 3], 1).rank(2, as_of_age=1.5),
            id="devices went on a second ago, the report of 2 is older",
        ),
        pytest.param(not_started().rank(2, moved_age=0.5), id="it was in another group until now"),
    ],
)
def test_a_device_that_may_start_is_not_stuck(scene: Scene) -> None:
    """What is known of rank 2 does not exclude that its device starts in a moment."""
    diagnosis = scene.only()
    assert (diagnosis.suspects, diagnosis.unknown, diagnosis.victims) == ((), (2,), (0, 1, 3))


def test_a_device_busy_with_another_op_leads_on_to_that() -> None:
    """The device of 2 has not started dp because it is in tp, where it waits for 4."""
    scene = Scene(5).group("dp", range(4)).group("tp", [2, 4]).waits("dp", 7, range(4), 11)
    scene.started("dp", 7, [0, 1, 3]).waits("tp", 1, [2], 12).started("tp", 1, [2])
    diagnosis = scene.only()
    assert named(diagnosis) == {4: Reason.CPU_STUCK}
    assert diagnosis.victims == (0, 1, 2, 3)


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(all_joined(), id="an op that synchronizes"),
        pytest.param(
            Scene(4).group("dp", range(4), s7="broadcast").waits("dp", 7, range(4)), id="broadcast"
        ),
        pytest.param(
            all_joined().started("dp", 7, [0, 1, 3]),
            id="rank 2's recorder records no starts, so that it has not started proves nothing",
        ),
    ],
)
def test_no_rank_is_named_if_all_joined_and_none_completes(scene: Scene) -> None:
    """All four ranks are inside seq 7: network or device, and no suspect is invented."""
    diagnosis = scene.only()
    assert (diagnosis.suspects, diagnosis.victims) == ((), (0, 1, 2, 3))
    assert diagnosis.reason is Reason.NETWORK_OR_DEVICE
    assert diagnosis.disagreement == ""


def test_an_op_that_a_late_rank_has_just_joined_is_no_incident() -> None:
    """Three ranks waited for long, the fourth joined a moment ago: the op is about to complete."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, [0, 1, 3]).waits("dp", 7, [2], 0.3)
    assert scene.find() == []


def test_a_rank_left_inside_whose_agent_disconnects_is_unreachable() -> None:
    """0 was left inside seq 7, but its agent is gone: it may have left the op since."""
    scene = Scene(3).group("dp", range(3)).waits("dp", 7, [0], 13).waits("dp", 8, [1, 2], 12)
    assert named(scene.rank(0, connected=False, as_of_age=7).only()) == {0: Reason.UNREACHABLE}


@pytest.mark.parametrize(("gone_age", "first"), [(3, Reason.DEVICE_STUCK), (9, Reason.EXITED)])
def test_a_rank_that_exits_after_a_hang_began_is_no_first_cause(
    gone_age: float, first: Reason
) -> None:
    """All are in seq 7 for 12 seconds, and the device of 2 never started it. Rank 3 was killed 3
    seconds ago, as watchdogs do; or 9 seconds ago, before the stall threshold."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, range(4), 12)
    scene.started("dp", 7, [0, 1, 3]).started("dp", 6, [2])
    scene.rank(3, state=RankState.EXITED, state_age=gone_age, as_of_age=gone_age)
    assert set(named(scene.only()).values()) == {first}


def test_a_stuck_device_is_named_although_a_rank_is_unknown() -> None:
    """0 and 1 have started seq 7, the device of 2 has not, and nothing is known of 3."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, range(3)).rank(3, declared=False)
    diagnosis = scene.started("dp", 7, [0, 1]).started("dp", 6, [2]).only()
    assert blamed(diagnosis) == {2: (Reason.DEVICE_STUCK, Confidence.MEDIUM)}
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
def test_a_coalesced_op_synchronizes_if_one_of_its_parts_does(op: str, expected: bool) -> None:
    """No rank completes a coalesced collective alone if one of its parts synchronizes."""
    assert is_synchronizing(op) is expected


def test_a_broadcast_that_some_members_have_completed() -> None:
    """All joined; rank 1 has completed the broadcast, the others have not: another root is as
    likely as a broken link, so no rank is named, and the finding says which ranks are where."""
    scene = Scene(3).group("dp", range(3), s7="broadcast")
    scene.passed("dp", 7, [1]).waits("dp", 7, [0, 2])
    diagnosis = scene.only()
    assert (diagnosis.suspects, diagnosis.reason) == ((), Reason.NETWORK_OR_DEVICE)
    assert diagnosis.disagreement == (
        "rank 1 has completed it, ranks 0,2 have not: their roots may differ, "
        "or the link between them failed"
    )
