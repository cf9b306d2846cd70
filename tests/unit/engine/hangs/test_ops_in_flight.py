"""What a picture says about waiting: the oldest op of a rank, and who attends a collective."""

from __future__ import annotations

import pytest

from frd.engine.hangs.ops_in_flight import Instance, Waits
from frd.model import UNKNOWN_SEQ
from tests.world.scene import Scene, ago


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
    assert waits.is_paired(Instance(0, UNKNOWN_SEQ, 0, 1), 0) is paired
