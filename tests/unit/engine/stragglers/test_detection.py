"""Who is a straggler by what was counted alone: windows made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from frd.engine.clocks.alignment import RankClocks
from frd.engine.matching.lateness import BUCKETS, Lateness, LostTime, as_culprit
from frd.engine.policy import Policy
from frd.engine.stragglers.detection import Judgement, judge
from frd.model import AlignedNs, Int32s, Int64s
from tests.world.scene import Scene

MS = 1_000_000
S = 1_000_000_000
BUCKET_NS = 10 * S
START = 1_700_000_000 * S
WORLD = tuple(range(8))
"""Two ranks a node."""


@dataclass(frozen=True)
class Lost:
    """So often in each of these buckets a group lost so much to one culprit."""

    group: int
    culprit: int
    ms: float
    often: int
    buckets: Sequence[int] = range(BUCKETS)

    def charges(self) -> LostTime:
        n = self.often * len(self.buckets)
        group: Int32s = np.full(n, self.group, np.int32)
        at: Int64s = np.repeat(START + BUCKET_NS * np.array(self.buckets), self.often)
        return LostTime(group, np.full(n, self.culprit), at, np.full(n, round(self.ms * MS)))


def joined(rows: Iterable[Lost]) -> LostTime:
    parts = [row.charges() for row in rows]
    return LostTime(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("group", "culprit", "at", "lost_ns")
        )
    )


def judged(
    groups: Sequence[tuple[int, ...]],
    charged: Sequence[Lost],
    waited: Sequence[Lost] | None = None,
    *,
    often: int = 100,
) -> Judgement:
    """Of as many collectives in each group and bucket; members `waited` as long as they were
    `charged` where nothing else is said."""
    policy = Policy(straggler_window_s=BUCKETS * BUCKET_NS / S, telemetry_late_s=0.0)
    lateness = Lateness(policy)
    buckets = np.repeat(START + BUCKET_NS * np.arange(BUCKETS), often)
    end = AlignedNs(START + BUCKETS * BUCKET_NS)
    lateness.add(
        len(groups),
        np.repeat(np.arange(len(groups), dtype=np.int32), len(buckets)),
        np.tile(buckets, len(groups)),
        joined(charged),
        joined(charged if waited is None else waited),
        end,
    )
    scene = Scene(len(WORLD))
    for name, group in enumerate(groups):
        scene.group(str(name), group)
    nodes = RankClocks(np.array(WORLD, np.int32) // 2, np.zeros(len(WORLD), np.int64))
    window = lateness.window(end)
    assert window is not None
    return judge(window, lambda: replace(scene.snapshot(), clocks=nodes), policy)


def culprits(of: Judgement) -> list[int]:
    return [one.culprit for one in of.stragglers]


def test_a_bad_minute_is_no_habit() -> None:
    """The same lateness, all of it in one part of the window."""
    assert culprits(judged([WORLD], [Lost(0, 3, 200, 72, buckets=[2])])) == []


def test_a_slow_rank_makes_no_slow_node() -> None:
    """2 is last 3,300 times in ten seconds, and in one of six of them 3 comes before it: a little
    more than the one in seven that chance has, beyond doubt, and far from being the cause."""
    rank, node = Lost(0, 2, 4, 3300), Lost(0, as_culprit(1), 4, 550)
    assert culprits(judged([WORLD], [rank, node], [rank], often=4000)) == [2]


def test_a_rank_is_not_excused_by_who_waited_for_it_elsewhere() -> None:
    """3 keeps a second group waiting as long as the first, and no other rank does."""
    groups = [(0, 1, 2, 3), (3, 4, 5)]
    assert culprits(judged(groups, [Lost(0, 3, 200, 12), Lost(1, 3, 200, 12)])) == [3]


@pytest.mark.parametrize(("late", "held_up"), [(3, {3}), (as_culprit(1), set())])
def test_a_rank_or_node_that_waited_elsewhere_is_excused(late: int, held_up: set[int]) -> None:
    """3, or its node, is late in the first group, and the second one, without most of the ranks
    that it keeps waiting, has waited for 4."""
    groups, other = [(0, 1, 2, 3), (2, 3, 4, 5)], Lost(1, 4, 200, 12)
    judgement = judged(groups, [Lost(0, late, 200, 12), other], [Lost(0, 3, 200, 12), other])
    assert culprits(judgement) == [4]
    assert judgement.held_up == held_up


def test_a_group_of_all_ranks_that_wait_excuses_no_rank() -> None:
    """3 is late in a group of four, and in one of all eight members wait for each other by turns:
    those four together."""
    by_turns = [Lost(1, rank, 200, 3) for rank in WORLD]
    late = Lost(0, 3, 200, 12)
    assert culprits(judged([(0, 1, 2, 3), WORLD], [late], [late, *by_turns])) == [3]
