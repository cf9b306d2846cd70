"""Stragglers in scripted jobs: who is named, what they cost, and who is left alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from frd.engine.clocks.alignment import RankClocks
from frd.engine.matching.lateness import BUCKETS, Lateness, LostTime, as_culprit
from frd.engine.policy import Policy
from frd.engine.stragglers.detection import Judgement, judge
from frd.forms import finding_from_json, finding_json
from frd.model import (
    AlignedNs,
    Change,
    Confidence,
    Finding,
    FindingEvent,
    GroupInfo,
    Int32s,
    Int64s,
    Kind,
    RankInfo,
    Reason,
)
from tests.world import observe
from tests.world.race import START, Layer, Race, S, Work, arrivals
from tests.world.scene import Scene

Seconds = npt.NDArray[np.floating[Any]]

WORLD = [list(range(16))]
ROWS = [list(range(first, first + 4)) for first in range(0, 16, 4)]
COLUMNS = [list(range(first, 16, 4)) for first in range(4)]
HALVES = [list(range(8)), list(range(8, 16))]
ACROSS = [[rank, rank + 8] for rank in range(8)]


def even(world: int, mean_s: float = 0.05, jitter_s: float = 0.0005) -> Work:
    """All ranks work about equally long."""
    dice = np.random.default_rng(5)
    return lambda step, layer: dice.normal(mean_s, jitter_s, world)


def slower(
    work: Work, ranks: Sequence[int], by_s: float, *, every: int = 1, layer: int = 0
) -> Work:
    """These ranks take longer in the work before one layer of every few steps."""

    def slow(step: int, of: int) -> Seconds:
        seconds = work(step, of)
        if of == layer and step % every == 0:
            seconds[list(ranks)] += by_s
        return seconds

    return slow


def raced(
    world: int,
    layers: Sequence[Layer],
    work: Work,
    *,
    seconds: float = 100,
    per_node: int = 0,
    policy: Policy | None = None,
) -> Race:
    race = Race(world, layers, per_node=per_node, uncertainty_ns=100_000, policy=policy)
    race.run(arrivals(world, layers, round(seconds / 0.055 / len(layers)), work))
    return race


def suspects(finding: Finding) -> tuple[int, ...]:
    return tuple(suspect.rank for suspect in finding.suspects)


def named(race: Race) -> list[tuple[int, ...]]:
    return sorted(suspects(one) for one in race.open() if one.kind is Kind.STRAGGLER)


def lost_between(came: Int64s, rank: int, first: int, last: int) -> float:
    """Seconds that a single group waited for one rank alone."""
    others = np.delete(came, rank, axis=1).max(axis=1)
    arrived = came.max(axis=1)
    inside = (arrived >= first) & (arrived < last)
    return float(np.maximum(came[:, rank] - others, 0)[inside].sum()) / S


# -- who is named --------------------------------------------------------------------------------


@pytest.mark.parametrize("per_node", [1, 8])
def test_two_stragglers_of_one_group_are_distinguished(per_node: int) -> None:
    """Rank 3 is 200 ms late every tenth time, rank 5 5 ms each time; the job knows what it lost."""
    work = slower(slower(even(8, jitter_s=0.0002), [3], 0.2, every=10), [5], 0.005)
    came = arrivals(8, [[range(8)]], 1_800, work)
    race = Race(8, [[range(8)]], per_node=per_node, uncertainty_ns=100_000)
    race.run(came)
    assert named(race) == [(3,), (5,)]
    for finding in race.open():
        (suspect,) = finding.suspects
        assert (finding.kind, suspect.reason) == (Kind.STRAGGLER, Reason.LATE)
        assert suspect.confidence is Confidence.HIGH
        assert finding.lost_s is not None
        reported_until = (race.now - START) // (10 * S) * 10 * S - 10 * S
        truth = lost_between(came[0], suspect.rank, 0, reported_until)
        assert finding.lost_s == pytest.approx(truth, rel=0.1)
        assert finding.victims == tuple(r for r in range(8) if r != suspect.rank)
        assert f"layer0 has waited {finding.lost_s:.1f} s for it" in finding.summary
        assert ("10 % of its collectives" in finding.summary) is (suspect.rank == 3)


@pytest.mark.parametrize("world", [4, 8])
def test_waiting_where_all_are_late_by_turns_is_no_lateness(world: int) -> None:
    """Even ranks meet once more in each step, and leave that when the slowest of them has come;
    then they come late to the odd one that shares a pair with each."""
    dice = np.random.default_rng(7)
    pairs = [[rank, rank + 1] for rank in range(0, world, 2)]
    layers = [pairs, [list(range(0, world, 2))]]

    def work(step: int, layer: int) -> Seconds:
        return dice.uniform(0.0, 0.03, world) * (layer == 0)

    race = Race(world, layers)
    assert race.run(arrivals(world, layers, 4_000, work)) == []


def test_peers_that_come_together_are_late_too() -> None:
    """1 and 3 have just met, so neither of them is ever last alone, but often both are."""
    dice = np.random.default_rng(7)
    layers = [[[0, 2], [1, 3]], [[0, 1, 3]]]

    def work(step: int, layer: int) -> Seconds:
        return dice.uniform(0.0, 0.06, 4) * (layer == 0)

    race = Race(4, layers)
    assert race.run(arrivals(4, layers, 3_000, work)) == []


def test_a_group_of_silent_members_may_have_held_anybody_up() -> None:
    """0 and 3 are late alike, but 0 shares a group with 8, whose agent is gone: 0 is left alone."""
    pairs = [[0, 4], [1, 5], [2, 6], [3, 7]]
    race = Race(9, [pairs], per_node=1, uncertainty_ns=100_000)
    race.attempt.group(GroupInfo("dark", "dark", (0, 8)))
    race.attempt.connection([8], False)
    race.run(arrivals(9, [pairs], 1_300, slower(even(9), [0, 3], 0.03)))
    assert named(race) == [(3,)]


@pytest.mark.parametrize("layers", [[WORLD], [ACROSS], [HALVES, ACROSS, WORLD]])
def test_a_slow_node_is_named_as_its_ranks(layers: Sequence[Layer]) -> None:
    """Eight of sixteen ranks share a slow node: one finding with all of them, however they meet."""
    work = slower(even(16), range(8, 16), 0.02)
    race = raced(16, layers, work, per_node=8)
    assert named(race) == [tuple(range(8, 16))]
    (finding,) = race.open()
    assert finding.summary.startswith("Node node1 (ranks 8-15) comes late again and again")


def test_a_slow_rank_of_a_node_is_not_the_node() -> None:
    """Rank 9 delays its node, which then is late among the others."""
    work = slower(even(16), [9], 0.02)
    assert named(raced(16, [HALVES, ACROSS, WORLD], work, per_node=8)) == [(9,)]


@pytest.mark.parametrize("moved", [range(8), range(1), range(16)])
def test_lateness_by_a_clock_that_is_gone_accuses_no_rank(moved: range) -> None:
    """A new agent gives the ranks of a slow node, or one of them, or all that there are, a new
    clock: what comes later counts for that."""
    work = slower(even(16), range(8), 0.02)
    race = raced(16, [WORLD], work, per_node=8, seconds=30)
    race.attempt.clocks.set(moved, 7, 100_000, race.now)
    race.run(arrivals(16, [WORLD], 300, work))
    race.attempt.clocks.set(range(8), 7, 100_000, race.now)
    race.attempt.clocks.set(range(8, 16), 8, 100_000, race.now)
    race.run(arrivals(16, [WORLD], 1_000, work))
    assert named(race) == [tuple(range(8))]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_rank_that_may_have_waited_in_a_send_is_less_certain(backend: str) -> None:
    """Rank 2 is late, and sends to rank 3 in a group of their own. Gloo's recorder shows no sends:
    with Gloo, a group without collectives is enough. The evidence says what is not recorded."""
    race = Race(4, [[range(4)]])
    pair = race.attempt.group(GroupInfo("pair", "pair", (2, 3)))
    info = RankInfo(2, 4, "node0", "boot0", 102, backends=(backend,))
    race.engine.rank(race.attempt, info, START)
    for in_flight in (1, 0) if backend == "nccl" else ():
        observe.p2p_ops(race.attempt, 2, [(pair, 3, True, in_flight, START)], START)
    race.run(arrivals(4, [[range(4)]], 1_000, slower(even(4), [2], 0.02)))
    [suspect] = race.open()[0].suspects
    assert suspect.confidence is Confidence.MEDIUM
    assert suspect.evidence.endswith("; its waits in sends and receives are not recorded")


# -- who is not ----------------------------------------------------------------------------------


def test_lateness_that_costs_little_is_no_straggler() -> None:
    """A rank is always 10 ms late, but once a second only: 0.6 s a minute."""
    came = arrivals(4, [[range(4)]], 150, slower(even(4, 1.0), [2], 0.01))
    race = Race(4, [[range(4)]])
    assert race.run(came) == []


def test_an_unknown_clock_accuses_no_rank() -> None:
    """One of two nodes is unsynchronized: groups across them are not judged, those inside are."""
    work = slower(even(16), [12], 0.03)
    for layers, ranks in (([WORLD], []), ([HALVES], [(12,)])):
        race = Race(16, layers, per_node=8, uncertainty_ns=100_000)
        race.attempt.clocks.set(range(8, 16), 1, None, race.now)
        race.run(arrivals(16, layers, 1_300, work))
        assert named(race) == ranks


def test_ops_that_do_not_wait_for_all_say_nothing() -> None:
    """A rank that is late for a broadcast keeps no other waiting if it only receives."""
    came = arrivals(4, [[range(4)]], 1_800, slower(even(4), [2], 0.05))
    race = Race(4, [[range(4)]], op="broadcast")
    assert race.run(came) == []


# -- the life of a finding -----------------------------------------------------------------------


def straggling(seconds: float = 100, policy: Policy | None = None) -> tuple[Race, Finding]:
    race = raced(4, [[range(4)]], slower(even(4), [2], 0.02), seconds=seconds, policy=policy)
    (finding,) = race.open()
    return race, finding


def test_it_is_reported_within_a_window_and_kept_up_to_date() -> None:
    """Opened within a minute, reported again once a minute; a query shows the latest sum."""
    race, finding = straggling(seconds=240)
    (opened, *updates) = race.events
    assert opened.change is Change.OPENED
    assert opened.finding.opened_at - START <= 62 * S
    minutes = (race.now - opened.finding.opened_at) // (60 * S)
    assert [event.change for event in updates] == [Change.UPDATED] * minutes
    sums = [event.finding.lost_s for event in race.events]
    assert sums == sorted(sums, key=lambda lost_s: lost_s or 0.0)
    assert (finding.lost_s or 0.0) > (sums[-1] or 0.0)


def test_it_closes_when_the_rank_comes_in_time_for_a_window() -> None:
    """The rank recovers, and another one becomes slow: the finding closes about a minute later,
    with the whole sum."""
    race, finding = straggling()
    race.run(arrivals(4, [[range(4)]], 1_800, slower(even(4), [3], 0.02)))
    (closed,) = [event for event in race.events if event.change is Change.CLOSED]
    assert closed.finding.id == finding.id
    assert closed.finding.close_reason == "no longer late"
    assert (closed.finding.lost_s or 0.0) >= (finding.lost_s or 0.0)
    assert named(race) == [(3,)]


def test_it_goes_on_after_a_restart_of_the_service() -> None:
    """A restored finding is found again under its id and goes on counting."""
    before, finding = straggling()
    after = Race(4, [[range(4)]])
    after.engine.restore([finding_from_json(finding_json(finding))], AlignedNs(before.now))
    after.run(arrivals(4, [[range(4)]], 1_800, slower(even(4), [2], 0.02)))
    (same,) = [f for f in after.open() if f.kind is Kind.STRAGGLER]
    assert same.id == finding.id
    assert (same.lost_s or 0.0) > (finding.lost_s or 0.0)
    assert [e for e in after.events if e.change is Change.OPENED] == []


def test_a_shorter_window_is_judged_sooner() -> None:
    """policy.straggler_window_s decides how long it takes."""
    policy = Policy(straggler_window_s=12, straggler_min_lost_s=0.2, telemetry_late_s=4)
    race, _ = straggling(seconds=30, policy=policy)
    assert race.events[0].finding.opened_at - START <= 16 * S


# -- when others turn out to be to blame -----------------------------------------------------------


def run(race: Race, layers: Sequence[Layer], ranks: Sequence[int], layer: int) -> None:
    """A hundred seconds in which some ranks take 30 ms longer before one layer of each step."""
    work = slower(even(race.world), ranks, 0.03, layer=layer)
    race.run(arrivals(race.world, layers, round(100 / 0.065 / len(layers)), work))


def ends(events: Sequence[FindingEvent]) -> list[tuple[tuple[int, ...], str]]:
    closed = [event.finding for event in events if event.change is Change.CLOSED]
    return [(suspects(finding), finding.close_reason) for finding in closed]


def test_a_rank_whose_whole_node_becomes_slow_is_part_of_that() -> None:
    """Rank 5 is slow; later all of its node are: one finding, about the node."""
    layers = [[range(16)]]
    race = Race(16, layers, per_node=4, uncertainty_ns=100_000)
    run(race, layers, [5], 0)
    assert named(race) == [(5,)]
    run(race, layers, [4, 5, 6, 7], 0)
    assert named(race) == [(4, 5, 6, 7)]
    assert ends(race.events) == [((5,), "part of the lateness of ranks 4-7")]


def test_a_rank_that_others_hold_up_from_now_on_is_not_kept_as_a_straggler() -> None:
    """Rank 5 is slow before its column; later 6 delays their row, and 5 is late because of that."""
    layers = [ROWS, COLUMNS]
    race = Race(16, layers, per_node=1, uncertainty_ns=100_000)
    run(race, layers, [5], 1)
    assert named(race) == [(5,)]
    run(race, layers, [6], 0)
    assert named(race) == [(6,)]
    assert race.open()[0].groups_held_up == ("layer0", "layer1")
    assert ends(race.events) == [((5,), "other ranks delayed it")]


# -- who is a straggler by what was counted alone: windows made by hand ----------------------------


MS = 1_000_000
BUCKET_NS = 10 * S
RANKS = tuple(range(8))
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
    scene = Scene(len(RANKS))
    for name, group in enumerate(groups):
        scene.group(str(name), group)
    nodes = RankClocks(np.array(RANKS, np.int32) // 2, np.zeros(len(RANKS), np.int64))
    window = lateness.window(end)
    assert window is not None
    return judge(window, lambda: replace(scene.snapshot(), clocks=nodes), policy)


def culprits(of: Judgement) -> list[int]:
    return [one.culprit for one in of.stragglers]


def test_a_bad_minute_is_no_habit() -> None:
    """The same lateness, all of it in one part of the window."""
    assert culprits(judged([RANKS], [Lost(0, 3, 200, 72, buckets=[2])])) == []


def test_a_slow_rank_makes_no_slow_node() -> None:
    """2 is last 3,300 times in ten seconds, and in one of six of them 3 comes before it: a little
    more than the one in seven that chance has, beyond doubt, and far from being the cause."""
    rank, node = Lost(0, 2, 4, 3300), Lost(0, as_culprit(1), 4, 550)
    assert culprits(judged([RANKS], [rank, node], [rank], often=4000)) == [2]


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
    by_turns = [Lost(1, rank, 200, 3) for rank in RANKS]
    late = Lost(0, 3, 200, 12)
    assert culprits(judged([(0, 1, 2, 3), RANKS], [late], [late, *by_turns])) == [3]
