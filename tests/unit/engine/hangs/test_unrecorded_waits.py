"""First causes of scenes in which ranks wait in something that no recorder shows."""

from __future__ import annotations

import pytest

from frd.model import (
    DEVICE,
    IDLE,
    NATIVE,
    POLL,
    REST,
    Confidence,
    Kind,
    Reason,
    WaitSource,
)
from tests.world.scene import Scene, blamed, named


def pipeline() -> Scene:
    """Ranks 0 and 1 wait in all_reduce; 2 and 3 are in no op."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 6, [2, 3])
    return scene.waits("dp", 7, [0, 1])


@pytest.mark.parametrize(("op", "peers"), [("recv", (2,)), ("recv", ()), (NATIVE, ())])
def test_a_receiver_is_a_victim_of_the_rank_that_does_not_send(
    op: str, peers: tuple[int, ...]
) -> None:
    """Rank 3 is in recv, from rank 2 or from a rank that is not known, or in a native call that may
    be a receive; 2 computes."""
    diagnosis = pipeline().calls(3, op, peers).only()
    assert blamed(diagnosis) == {2: (Reason.CPU_STUCK, Confidence.HIGH)}
    assert (diagnosis.victims, diagnosis.cleared) == ((0, 1, 3), (3,))
    is_known = diagnosis.suspects[0].evidence.endswith("rank 3 waits in recv for it")
    assert is_known == bool(peers)


def test_a_wait_that_is_over_proves_nothing() -> None:
    """Rank 3 was in recv, and a watermark of it moved since."""
    scene = pipeline().calls(3, "recv", [2], seen_age=2).rank(3, moved_age=1.5)
    assert 3 in named(scene.only())


@pytest.mark.parametrize(("age", "seen_age"), [(1.5, 0.5), (30.0, 10.0)])
def test_a_wait_that_does_not_count(age: float, seen_age: float) -> None:
    """Rank 3 was seen in recv for one second, which may pass; or before the others had waited for
    half of a threshold, after which it may have gone on."""
    scene = pipeline().calls(3, "recv", [2], age=age, seen_age=seen_age)
    assert named(scene.only()) == {2: Reason.CPU_STUCK, 3: Reason.CPU_STUCK}


def test_an_op_in_flight_counts_more() -> None:
    """The stack of rank 3 shows a wait, but it is in a recorded op, in which 4 is missing."""
    scene = Scene(5).group("dp", range(4)).passed("dp", 6, [2, 3]).waits("dp", 7, [0, 1])
    scene.group("tp", [3, 4]).waits("tp", 1, [3]).calls(3, "recv", [2])
    assert named(scene.only()) == {2: Reason.CPU_STUCK, 4: Reason.CPU_STUCK}


def test_the_holder_of_a_lock_is_the_cause() -> None:
    """Four ranks are missing; three of them wait for a lock that the fourth holds."""
    scene = Scene(6).group("dp", range(6)).passed("dp", 6, range(4)).waits("dp", 7, [4, 5])
    for rank in (0, 1, 2):
        scene.calls(
            rank, "lock", [3], source=WaitSource.INSPECTION, detail="/ckpt/.lock held by pid 9"
        )
    diagnosis = scene.only()
    assert blamed(diagnosis) == {3: (Reason.CPU_STUCK, Confidence.HIGH)}
    assert diagnosis.victims == (0, 1, 2, 4, 5)
    words = "ranks 0-2 wait for a lock of it (/ckpt/.lock held by pid 9)"
    assert diagnosis.suspects[0].evidence.endswith(words)


def test_a_holder_that_is_in_the_op_itself() -> None:
    """Rank 3 waits in all_reduce for ranks that wait for its lock."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 6, range(3)).waits("dp", 7, [3])
    for rank in (0, 1, 2):
        scene.calls(rank, "lock", [3], source=WaitSource.INSPECTION)
    diagnosis = scene.only()
    assert diagnosis.kind is Kind.ORDER
    assert blamed(diagnosis)[3] == (Reason.ORDER, Confidence.HIGH)
    assert {confidence for rank, (_, confidence) in blamed(diagnosis).items() if rank < 3} == {
        Confidence.MEDIUM
    }
    evidence = {suspect.rank: suspect.evidence for suspect in diagnosis.suspects}
    assert evidence[3] == "is in all_reduce #7 on dp"
    assert evidence[0] == "waits for a lock of rank 3"


def test_two_ranks_that_receive_from_each_other() -> None:
    """Neither sends: both are named, and neither is certain."""
    diagnosis = pipeline().calls(2, "recv", [3]).calls(3, "recv", [2]).only()
    assert blamed(diagnosis) == dict.fromkeys((2, 3), (Reason.ORDER, Confidence.MEDIUM))
    assert diagnosis.disagreement == "ranks 2-3 are in recv"


def test_the_rank_that_does_not_call_a_barrier() -> None:
    """Ranks 1 and 3 are in monitored_barrier and wait for all; rank 2 is not in it."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 6, [1, 2, 3]).waits("dp", 7, [0])
    scene.calls(1, "monitored_barrier", range(4)).calls(3, "monitored_barrier", range(4))
    diagnosis = scene.only()
    assert 2 in named(diagnosis)
    assert {1, 3}.isdisjoint(named(diagnosis))


@pytest.mark.parametrize(
    ("op", "confidence", "words"),
    [("recv", Confidence.MEDIUM, "recv"), (NATIVE, Confidence.HIGH, "a native call")],
)
def test_a_wait_of_the_only_missing_rank(op: str, confidence: Confidence, words: str) -> None:
    """Rank 3 alone is missing. If it waits in recv, that is for a rank that is not known; whatever
    a native call waits for, the others wait for rank 3."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 6, [3]).waits("dp", 7, [0, 1, 2])
    diagnosis = scene.calls(3, op, detail="train.py:88 in exchange").only()
    assert blamed(diagnosis) == {3: (Reason.CPU_STUCK, confidence)}
    [suspect] = diagnosis.suspects
    assert suspect.evidence == (
        f"last joined seq 6 of dp; waits in {words} (train.py:88 in exchange)"
    )


def pipelines(world: int = 4) -> Scene:
    """Two pipelines of two stages, each stage with its replica in a group: 3 waits for 1, 2 for 0.
    Rank 1 is in a receive from 0, which is in no op."""
    scene = Scene(world).group("dp0", [0, 2]).passed("dp0", 6, [0]).waits("dp0", 7, [2])
    scene.group("dp1", [1, 3]).passed("dp1", 6, [1]).waits("dp1", 7, [3])
    return scene.group("world", range(world)).passed("world", 1, range(world))


@pytest.mark.parametrize("op", ["recv", NATIVE])
def test_the_only_rank_that_waits_for_nothing(op: str) -> None:
    """The rank that rank 1 waits for is not known, but all ranks of the job except rank 0 wait: it
    is one incident, and rank 0 is its cause."""
    diagnosis = pipelines().calls(1, op).only()
    assert blamed(diagnosis) == {0: (Reason.CPU_STUCK, Confidence.HIGH)}
    assert (diagnosis.victims, diagnosis.cleared) == ((1, 2, 3), (1,))


def test_a_native_call_while_the_only_other_rank_goes_on() -> None:
    """Rank 0 is in no op, but moved a moment ago: the native call of rank 1 may wait for anything,
    and rank 1 stays the suspect of its group."""
    scene = Scene(3).group("dp1", [1, 2]).passed("dp1", 6, [1]).waits("dp1", 7, [2])
    scene.group("world", range(3)).passed("world", 1, range(3)).rank(0, moved_age=0.1)
    diagnosis = scene.calls(1, NATIVE, source=WaitSource.INSPECTION).only()
    assert blamed(diagnosis) == {1: (Reason.CPU_STUCK, Confidence.HIGH)}


def test_two_ranks_that_wait_for_nothing() -> None:
    """A fifth rank computes, too: rank 1 may wait for either, so it remains a suspect of its group,
    with less confidence."""
    scene = pipelines(5).calls(1, "recv")
    found = {rank: confidence for one in scene.find() for rank, confidence in blamed(one).items()}
    assert found == {
        0: (Reason.CPU_STUCK, Confidence.HIGH),
        1: (Reason.CPU_STUCK, Confidence.MEDIUM),
    }


@pytest.mark.parametrize(
    ("connected", "reason"), [(True, Reason.CPU_STUCK), (False, Reason.UNREACHABLE)]
)
def test_a_cause_outside_the_group_that_waits(connected: bool, reason: Reason) -> None:
    """Rank 3 waits for rank 4, which is not a member of the group: it is in no op, or nothing is
    known of it because its agent is not connected."""
    scene = Scene(5).group("dp", range(4)).passed("dp", 6, [3]).waits("dp", 7, [0, 1, 2])
    scene.group("world", range(5)).rank(4, connected=connected).calls(3, "recv", [4])
    diagnosis = scene.only()
    assert blamed(diagnosis) == {4: (reason, Confidence.MEDIUM)}
    assert diagnosis.victims == (0, 1, 2, 3)


# -- of two sightings ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "source", "is_over"),
    [
        pytest.param("", WaitSource.STAGE, True, id="its frames show it elsewhere"),
        pytest.param(IDLE, WaitSource.STAGE, True, id="its frames show it idle"),
        pytest.param(REST, WaitSource.INSPECTION, False, id="/proc shows no calls"),
        pytest.param(NATIVE, WaitSource.INSPECTION, False, id="a native call may be recv"),
    ],
)
def test_a_newer_sighting(op: str, source: WaitSource, is_over: bool) -> None:
    """Rank 3 was in recv from rank 2, and is seen again later."""
    scene = pipeline().calls(3, "recv", [2], seen_age=3).calls(3, op, seen_age=1, source=source)
    assert (3 in named(scene.only())) is is_over


def test_the_more_specific_sighting_counts() -> None:
    """Rank 3 alone is missing: /proc shows a native call, an earlier stack that it is in recv."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 6, [3]).waits("dp", 7, [0, 1, 2])
    scene.calls(3, NATIVE, seen_age=0.2, source=WaitSource.INSPECTION)
    (suspect,) = scene.calls(3, "recv", seen_age=2.0).only().suspects
    assert suspect.evidence.endswith("waits in recv")


# -- initialization ------------------------------------------------------------------------------


def test_new_group_and_a_collective() -> None:
    """Rank 2 is in all_reduce, for which it needs ranks 0 and 1, and these have called new_group,
    which needs rank 2: a circle of three from the first look on. Which of them is wrong is not
    known."""
    scene = Scene(3).group("dp", range(3)).passed("dp", 6, [0, 1]).waits("dp", 7, [2])
    for rank in (0, 1):
        scene.calls(rank, "new_group", age=0.1, seen_age=0.1, source=WaitSource.STAGE)
    diagnosis = scene.only()
    assert diagnosis.kind is Kind.ORDER
    assert blamed(diagnosis) == dict.fromkeys(range(3), (Reason.ORDER, Confidence.MEDIUM))
    words = "rank 2 went into all_reduce on dp while ranks 0-1 are in new_group"
    assert diagnosis.disagreement == words


def test_new_group_for_which_a_rank_is_missing() -> None:
    """Rank 0 waits in all_reduce for ranks 1 to 3; 1 and 2 are in new_group, and 3 computes."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 6, [1, 2, 3]).waits("dp", 7, [0])
    scene.calls(1, "new_group", source=WaitSource.STAGE).calls(2, "new_group")
    diagnosis = scene.only()
    assert set(blamed(diagnosis)) == {3}
    assert diagnosis.cleared == (1, 2)


# -- polls and devices ---------------------------------------------------------------------------


@pytest.mark.parametrize("op", [POLL, DEVICE])
def test_ranks_that_poll_for_one_that_does_not(op: str) -> None:
    """Rank 0 waits in a barrier; 1 and 3 poll, or wait for their devices, and 2 is in a read."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 6, [1, 2, 3]).waits("dp", 7, [0])
    scene.calls(1, op).calls(3, op).calls(2, REST)
    assert set(blamed(scene.only())) == {2}


def test_the_holder_of_a_lock_that_is_polled() -> None:
    """The same with the package filelock: who holds the lock is known, and ranks 4 and 5, which
    compute, are not meant."""
    scene = Scene(6).group("dp", range(4)).passed("dp", 6, [1, 2, 3]).waits("dp", 7, [0])
    scene.group("world", range(6)).passed("world", 1, range(6))
    for rank in (1, 3):
        scene.calls(rank, POLL, [2], source=WaitSource.INSPECTION, detail="/hub/x held by pid 9")
    diagnosis = scene.only()
    assert set(blamed(diagnosis)) == {2}
    words = "ranks 1,3 wait for a lock of it (/hub/x held by pid 9)"
    assert diagnosis.suspects[0].evidence.endswith(words)


@pytest.mark.parametrize(
    ("others", "confidence"),
    [
        pytest.param("waits", Confidence.HIGH, id="all others wait in the op"),
        pytest.param("", Confidence.MEDIUM, id="it may poll for rank 3, which computes"),
        pytest.param(POLL, Confidence.MEDIUM, id="rank 3 polls, too"),
    ],
)
def test_a_rank_that_polls_is_all_that_is_left(others: str, confidence: Confidence) -> None:
    """Ranks 0 and 1 wait for rank 2, which polls. Rank 3 is not in their group."""
    scene = Scene(4).group("dp", range(3)).passed("dp", 6, [2]).waits("dp", 7, [0, 1])
    scene.group("world", range(4)).passed("world", 1, range(4)).calls(2, POLL)
    if others == "waits":
        scene.waits("world", 2, [3])
    else:
        scene.calls(3, others).rank(3, moved_age=0.1 if not others else 60.0)
    assert blamed(scene.only())[2] == (Reason.CPU_STUCK, confidence)
