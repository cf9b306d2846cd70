"""Mismatches among the first causes: the first one of a group speaks, and a rank is named once."""

from __future__ import annotations

import pytest

from frd.engine.hangs.ops_in_flight import Instance
from frd.engine.matching.signature_rules import difference
from frd.engine.state.snapshot import Mismatch
from frd.model import Kind, Reason, Signature
from tests.world.scene import Scene, named

REDUCE = Signature("gloo", "all_reduce", ((4,),))
CAST = Signature("gloo", "broadcast", ((4,),))


def fact(group: int, seq: int, odd: int) -> Mismatch:
    """One of four ranks passed a broadcast."""
    others = tuple(rank for rank in range(4) if rank != odd)
    return Mismatch(group, seq, [(REDUCE, others), (CAST, (odd,))], "op", complete=True)


@pytest.mark.parametrize("seqs", [(7, 8), (8, 7)])
def test_what_does_not_match_after_the_first_is_its_consequence(seqs: tuple[int, int]) -> None:
    """Rank 2 made another call at seq 7, which shifts 8 too; whichever is told first."""
    scene = Scene(4).group("dp", range(4)).waits("dp", 7, range(4), ahead=1)
    for seq in seqs:
        scene.mismatch(fact(0, seq, odd=2 if seq == 7 else 1))
    diagnosis = scene.only()
    assert (diagnosis.kind, diagnosis.instance) == (Kind.MISMATCH, Instance(0, 7))
    assert named(diagnosis) == {2: Reason.MISMATCH}


def test_a_rank_that_two_groups_disagree_with_is_one_incident() -> None:
    """Rank 2 went wrong in both of its groups, and all went through: one finding names it."""
    scene = Scene(4).group("dp", range(4)).group("tp", range(4))
    scene.passed("dp", 7, range(4)).passed("tp", 3, range(4))
    scene.mismatch(fact(0, 7, odd=2)).mismatch(fact(1, 3, odd=2))
    diagnosis = scene.only()
    assert named(diagnosis) == {2: Reason.MISMATCH}


def test_ranks_that_two_groups_disagree_with_apart_are_two() -> None:
    """Rank 2 went wrong in one group and 1 in the other."""
    scene = Scene(4).group("dp", range(4)).group("tp", range(4))
    scene.passed("dp", 7, range(4)).passed("tp", 3, range(4))
    scene.mismatch(fact(0, 7, odd=2)).mismatch(fact(1, 3, odd=1))
    assert [set(named(diagnosis)) for diagnosis in scene.find()] == [{2}, {1}]


def test_a_mismatch_and_a_stall_of_one_rank_are_one_incident() -> None:
    """Rank 2 passed something else, which went through; then it never came to another group."""
    scene = Scene(4).group("dp", range(4)).group("tp", range(4))
    scene.passed("dp", 7, range(4)).passed("tp", 2, [2]).waits("tp", 3, [0, 1, 3])
    scene.mismatch(fact(0, 7, odd=2))
    diagnosis = scene.only()
    assert set(named(diagnosis)) == {2}
    assert diagnosis.victims == (0, 1, 3)


@pytest.mark.parametrize(
    ("op", "told"),
    [
        ("reduce", "input dtypes Float and Half"),
        ("broadcast", "output dtypes Int and Long"),
        ("all_reduce", "input sizes [[4]] and [[5]]"),
    ],
)
def test_what_differs_is_what_the_op_compares(op: str, told: str) -> None:
    """Sizes differ on the side where the op permits it, dtypes on both: that is the difference."""
    taken, given = (5, 4) if op != "reduce" else (4, 5)
    one = Signature("nccl", op, ((4,),), ((4,),), ("Float",), ("Int",))
    other = Signature("nccl", op, ((taken,),), ((given,),), ("Half",), ("Long",))
    assert difference(one, other) == told
