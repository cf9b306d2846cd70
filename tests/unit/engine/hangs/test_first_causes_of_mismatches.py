"""First causes of scripted scenes: mismatches."""

from __future__ import annotations

import pytest

from frd.engine.hangs.ops_in_flight import Instance
from frd.engine.state.snapshot import Mismatch
from frd.model import Confidence, Kind, Reason, Signature
from tests.world.scene import Scene, ago, blamed, named


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
