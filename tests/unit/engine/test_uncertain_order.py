"""Orders of times by several clocks: before only beyond doubt, otherwise a reported tie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from frd.engine.clocks.alignment import UNKNOWN_NS, RankClocks, UncertainTime, ties
from frd.engine.findings.headlines import worded
from frd.engine.hangs.detector import claim_of
from frd.engine.hangs.diagnosis import diagnose
from frd.engine.hangs.facts import Fact, RankFacts
from frd.engine.hangs.ops_in_flight import Instance, Waits
from frd.engine.hangs.wait_graph import Graph, Member, UnknownRank, Wait
from frd.engine.losses.exits import exits
from frd.engine.losses.lost_ranks import first_lost
from frd.engine.policy import Policy
from frd.engine.state.snapshot import Snapshot
from frd.forms import finding_from_json, finding_json
from frd.model import AlignedNs, Confidence, Finding, FindingState, Kind, RankState, Reason
from tests.world.scene import NOW, Scene, ago

MS = 1_000_000


def moment(at_ms: float, node: int = 0, within_ms: float | None = 0.0) -> UncertainTime:
    bound = None if within_ms is None else round(within_ms * MS)
    return UncertainTime(AlignedNs(round(at_ms * MS)), node, bound)


def under(snapshot: Snapshot, nodes: list[int], within_ms: list[float | None]) -> Snapshot:
    """The picture with these clocks."""
    bounds = [UNKNOWN_NS if ms is None else round(ms * MS) for ms in within_ms]
    clocks = RankClocks(np.array(nodes, np.int32), np.array(bounds, np.int64))
    return replace(snapshot, clocks=clocks)


# -- moments -------------------------------------------------------------------------------------


def test_times_of_one_clock_need_no_margin() -> None:
    """A microsecond is enough, even when nothing is known of the clock."""
    first, second = moment(1.0, within_ms=None), moment(1.001, within_ms=None)
    assert first.is_before(second)
    assert not second.is_before(first)
    assert not first.is_before(first)


@pytest.mark.parametrize(("apart_ms", "before"), [(2.9, False), (3.0, False), (3.1, True)])
def test_times_of_two_clocks_are_in_order_beyond_both_uncertainties(
    apart_ms: float, before: bool
) -> None:
    """Clocks known to 1 and 2 ms order what is more than 3 ms apart."""
    first, second = moment(1.0, 0, 1.0), moment(1.0 + apart_ms, 1, 2.0)
    assert first.is_before(second) is before
    assert ties([first, second]) == [not before, not before]


def test_an_unknown_clock_orders_nothing() -> None:
    """Not even what is an hour apart."""
    assert ties([moment(0), moment(3_600_000, 1, None)]) == [True, True]


def test_one_of_three_may_be_first_for_sure() -> None:
    """The other two are a tie."""
    assert ties([moment(0), moment(10, 1, 1.0), moment(11, 2, 1.0)]) == [False, True, True]


# -- what people see -----------------------------------------------------------------------------


def two_gone(apart_ms: float) -> Scene:
    """Ranks 2 and 5 went away one after the other, and are missed in the same collective."""
    scene = Scene(6).group("dp", range(6)).waits("dp", 7, [0, 1, 3, 4])
    scene.rank(2, state=RankState.EXITED, state_age=9.0)
    return scene.rank(5, state=RankState.EXITED, state_age=9.0 - apart_ms / 1e3)


def finding_of(snapshot: Snapshot, scene: Scene) -> Finding:
    (diagnosis,) = diagnose(snapshot, scene.stalls())
    claim = claim_of(snapshot, diagnosis, Policy())
    finding = Finding(
        "id",
        Kind.STALL,
        FindingState.OPEN,
        "job",
        0,
        NOW,
        collective=claim.collective,
        suspects=claim.suspects,
    )
    return worded(finding)


NODES = [0, 0, 0, 1, 1, 1]


def first_ranks(snapshot: Snapshot) -> list[int]:
    loss = first_lost(snapshot, exits(snapshot), Policy())
    return [one.rank for one in loss.exits] if loss is not None else []


@pytest.mark.parametrize(
    ("apart_ms", "within_ms", "is_tied", "says"),
    [
        pytest.param(
            2.0, [1.2] * 6, True, "; they began at the same time, within 2.4 ms", id="tie"
        ),
        pytest.param(2.0, [0.9] * 6, False, "", id="an order beyond doubt"),
        pytest.param(
            3_000,
            [0.1] * 3 + [None] * 3,
            True,
            "; their clocks are not exact enough to say which was first",
            id="node 1 is unsynchronized",
        ),
    ],
)
def test_a_tie_is_named_as_one(
    apart_ms: float, within_ms: list[float | None], is_tied: bool, says: str
) -> None:
    """The exits are apart by less or more than what their clocks may be off."""
    scene = two_gone(apart_ms)
    finding = finding_of(under(scene.snapshot(), NODES, within_ms), scene)
    assert [(s.rank, s.tied) for s in finding.suspects] == [(2, is_tied), (5, is_tied)]
    assert [s.onset_at for s in finding.suspects] == [ago(9.0), ago(9.0 - apart_ms / 1e3)]
    bounds = [None if ms is None else ms / 1e3 for ms in (within_ms[2], within_ms[5])]
    assert [s.onset_uncertainty_s for s in finding.suspects] == bounds
    assert finding.summary.endswith(says)
    assert is_tied or "at the same time" not in finding.summary
    assert finding_from_json(finding_json(finding)) == finding


@pytest.mark.parametrize(("within_ms", "lost"), [(5.0, [2]), (20.0, [2, 5]), (None, [2, 5])])
def test_who_was_lost_first_is_known_as_well_as_clocks_are(
    within_ms: float | None, lost: list[int]
) -> None:
    """Two processes end 80 ms apart on two nodes, the rest runs on."""
    snapshot = under(two_gone(80.0).snapshot(), NODES, [within_ms] * 6)
    assert first_ranks(snapshot) == lost


@pytest.mark.parametrize(("within_ms", "proven"), [(1.0, True), (300.0, False), (None, True)])
def test_absence_is_proven_beyond_what_clocks_may_be_off(
    within_ms: float | None, proven: bool
) -> None:
    """Rank 5 was last heard of 500 ms after rank 0 came to what 5 has not come to; an
    unbounded clock is used as it is."""
    scene = Scene(6).group("dp", range(6)).waits("dp", 7, range(5), age=2.0)
    snapshot = under(scene.rank(5, as_of_age=1.5).snapshot(), NODES, [within_ms] * 6)
    stalled_at = snapshot.moment(5, AlignedNs(0))
    graph = Graph(waits := Waits(snapshot), RankFacts(waits, 10.0, stalled_at), {})
    graph.explore([wait := Wait(Instance(0, 7))])
    assert graph.edges[wait] == (Member(5) if proven else UnknownRank(5, Fact.UNPROVEN),)


@pytest.mark.parametrize(
    ("within_ms", "confidence"), [(1.0, Confidence.HIGH), (None, Confidence.MEDIUM)]
)
def test_no_claim_about_clocks_that_are_unknown_is_certain(
    within_ms: float | None, confidence: Confidence
) -> None:
    """Rank 5 is alone on its node, and has not joined for 30 s."""
    scene = Scene(6).group("dp", range(6)).passed("dp", 6, [5]).waits("dp", 7, range(5), age=30.0)
    snapshot = under(scene.rank(5, moved_age=40.0).snapshot(), NODES, [within_ms] * 6)
    [diagnosis] = diagnose(snapshot, scene.stalls())
    assert [(s.rank, s.confidence) for s in diagnosis.suspects] == [(5, confidence)]


def test_when_not_all_can_be_named_the_surest_are() -> None:
    """3 entered dp before tp, the other five the other way round, and two may be named."""
    scene = Scene(6).group("tp", range(6)).group("dp", range(6))
    snapshot = scene.waits("dp", 1, [3]).waits("tp", 1, [0, 1, 2, 4, 5]).snapshot()
    (diagnosis,) = diagnose(snapshot, scene.stalls())
    named = claim_of(snapshot, diagnosis, Policy(max_suspects=2)).suspects
    assert [(suspect.rank, suspect.confidence.value) for suspect in named] == [
        (3, "high"),
        (0, "medium"),
    ]


# -- which agent reports it ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agents", "confidence"),
    [
        ([0, 0, 0, 0], Confidence.HIGH),
        ([0, 0, 1, 1], Confidence.HIGH),
        ([0, 0, 0, 1], Confidence.MEDIUM),
    ],
)
def test_one_agent_alone_does_not_convict_a_rank_of_another(
    agents: list[int], confidence: Confidence
) -> None:
    """Rank 3 is inside what all others are done with, as the agents of these say."""
    scene = Scene(4).group("dp", range(4)).passed("dp", 7, [0, 1, 2]).waits("dp", 7, [3])
    (diagnosis,) = diagnose(under(scene.snapshot(), agents, [0.0] * 4), scene.stalls())
    (suspect,) = diagnosis.suspects
    assert (suspect.rank, suspect.reason) == (3, Reason.IN_COLLECTIVE_ALONE)
    assert suspect.confidence is confidence


@pytest.mark.parametrize(("connected", "lost"), [(True, [0]), (False, [])])
def test_a_loss_is_reported_although_nothing_shows_what_the_others_do(
    connected: bool, lost: list[int]
) -> None:
    """Rank 0 ended a minute ago; of rank 1 nothing was read since before, though its agent would
    have reported an end."""
    scene = Scene(2).rank(0, state=RankState.EXITED, state_age=60, detail="RuntimeError: CUDA")
    scene.rank(1, as_of_age=70, connected=connected)
    assert first_ranks(scene.snapshot()) == lost
