"""Hangs in calls that no recorder shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frd.engine.findings.claim import Claim
from frd.engine.hangs.calls import claims_of_calls
from frd.engine.policy import Policy
from frd.model import Confidence, Kind, RankState, Reason, WaitSource
from tests.world.scene import Scene

HIGH, MEDIUM = Confidence.HIGH, Confidence.MEDIUM
POLICY = Policy(stall_after_s=5.0)
INIT = "init_process_group"


def claims(scene: Scene) -> list[Claim]:
    return claims_of_calls(scene.snapshot(), POLICY)


def only(scene: Scene) -> Claim:
    (claim,) = claims(scene)
    return claim


def blames(claim: Claim) -> dict[int, tuple[Reason, Confidence]]:
    return {one.rank: (one.reason, one.confidence) for one in claim.suspects}


def pipeline(world: int = 4) -> Scene:
    """A job whose ranks completed a collective a minute ago and are in no op now."""
    return Scene(world).group("dp", range(world)).passed("dp", 7, range(world))


def starting(world: int, inside: range | list[int], age: float = 70.0) -> Scene:
    """Ranks without a group, some in init_process_group; the others were seen in no call."""
    scene = Scene(world)
    for rank in range(world):
        scene.rank(rank, moved_age=9_000)
        op = INIT if rank in inside else ""
        scene.calls(rank, op, age=age, source=WaitSource.STAGE)
    return scene


# -- sends, receives and barriers ----------------------------------------------------------------


def receiving(*, age: float = 8.0) -> Scene:
    """Ranks 0, 1 and 3 of the pipeline are in recv, of which no peer is known."""
    scene = pipeline()
    for rank in (0, 1, 3):
        scene.calls(rank, "recv", age=age)
    return scene


@pytest.mark.parametrize(
    ("scene", "blamed"),
    [
        pytest.param(receiving().calls(2, ""), (Reason.CPU_STUCK, HIGH), id="it computes"),
        pytest.param(receiving(), (Reason.CPU_STUCK, MEDIUM), id="it may be in recv as well"),
        pytest.param(
            receiving().calls(2, "", seen_age=5.0),
            (Reason.CPU_STUCK, MEDIUM),
            id="it may have come since it was seen outside",
        ),
        pytest.param(
            receiving().rank(2, state=RankState.FINISHED, state_age=9.0),
            (Reason.EXITED, HIGH),
            id="its process is gone",
        ),
    ],
)
def test_the_only_rank_that_does_not_wait(scene: Scene, blamed: tuple[Reason, Confidence]) -> None:
    """Rank 2 is the cause, as certain as what is known of it."""
    claim = only(scene)
    assert blames(claim) == {2: blamed}
    assert (claim.kind, claim.victims) == (Kind.STALL, (0, 1, 3))
    assert claim.collective is not None
    assert (claim.collective.op, claim.collective.missing_ranks) == ("recv", (2,))


def test_several_ranks_do_not_wait() -> None:
    """Who of ranks 2 and 3 is received from is not known: neither is certain."""
    scene = pipeline().calls(0, "recv").calls(1, "recv").calls(2, "").calls(3, "")
    assert blames(only(scene)) == dict.fromkeys((2, 3), (Reason.CPU_STUCK, MEDIUM))


def moved_since() -> Scene:
    """All but rank 3 completed a collective after their stacks were read."""
    scene = pipeline().calls(3, "")
    for rank in range(3):
        scene.calls(rank, "recv", seen_age=3.0).rank(rank, moved_age=2.0)
    return scene


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(
            pipeline().calls(3, "recv", age=9_000).calls(0, "").calls(1, "").calls(2, ""),
            id="a server waits for work: one rank of four, for hours",
        ),
        pytest.param(receiving(age=4.4).calls(2, ""), id="a pause of four seconds"),
        pytest.param(
            receiving().calls(2, "").rank(2, moved_age=1.0),
            id="rank 2 completes collectives of another group",
        ),
        pytest.param(moved_since(), id="the receives are over"),
        pytest.param(
            pipeline().calls(0, "recv").calls(1, "recv").calls(2, "").waits("dp", 8, [3], age=2),
            id="rank 3 is in a recorded op, which decides once it is a stall",
        ),
        pytest.param(starting(4, range(3), age=50.0), id="initialization takes 50 s"),
    ],
)
def test_waits_that_are_no_hang(scene: Scene) -> None:
    """Nothing is claimed."""
    assert claims(scene) == []


def test_all_receive_from_each_other() -> None:
    """No rank is left that could send: all are in the circle, and no rank is certain."""
    scene = pipeline(2).calls(0, "recv", detail="train.py:8 in a").calls(1, "recv")
    claim = only(scene)
    assert claim.kind is Kind.ORDER
    assert blames(claim) == dict.fromkeys((0, 1), (Reason.ORDER, MEDIUM))
    assert claim.disagreement == "ranks 0-1 are in recv"
    assert claim.suspects[0].evidence == "waits in recv (train.py:8 in a)"


def test_all_have_come_to_a_barrier() -> None:
    """No rank is missing: the network, or the store."""
    scene = pipeline(2).calls(0, "monitored_barrier").calls(1, "monitored_barrier")
    claim = only(scene)
    assert (claim.suspects, claim.reason) == ((), Reason.NETWORK_OR_DEVICE)


def test_a_rank_that_ended_before_it_came() -> None:
    """Its process ended before it had a group: the evidence says how, and not that it was clean."""
    scene = starting(4, [0, 1, 3])
    scene.rank(2, state=RankState.FINISHED, state_age=9.0, detail="ended early: OSError: no model")
    claim = only(scene)
    assert blames(claim) == {2: (Reason.EXITED, HIGH)}
    (suspect,) = claim.suspects
    assert suspect.evidence.startswith("left the job at ")
    assert suspect.evidence.endswith("; ended early: OSError: no model")


@pytest.mark.parametrize("change", [{"connected": False}, {"as_of_age": 30.0}])
def test_a_rank_whose_telemetry_is_missing(change: dict[str, object]) -> None:
    """It may be in recv as well: it is listed as unknown."""
    claim = only(receiving().rank(2, **change))
    assert (claim.suspects, claim.unknown) == ((), (2,))


def test_a_new_group_that_one_rank_does_not_make() -> None:
    """All ranks have to call new_group; rank 2 has a minute for that, and is certain then."""
    scene = pipeline()
    for rank in (0, 1, 3):
        scene.calls(rank, "new_group", age=50.0)
    scene.calls(2, "").rank(2, moved_age=90.0)
    assert claims(scene) == []
    late = pipeline()
    for rank in (0, 1, 3):
        late.calls(rank, "new_group", age=70.0).rank(rank, moved_age=90.0)
    late.calls(2, "").rank(2, moved_age=90.0)
    assert blames(only(late)) == {2: (Reason.CPU_STUCK, HIGH)}


# -- initialization ------------------------------------------------------------------------------


def test_a_rank_that_never_comes_to_init() -> None:
    """Rank 3 loads a model before; three ranks have waited for more than a minute."""
    claim = only(starting(4, range(3)))
    assert blames(claim) == {3: (Reason.CPU_STUCK, HIGH)}
    assert claim.suspects[0].evidence == "has not come to init_process_group"
    assert claim.collective is not None
    assert claim.collective.op == INIT
    assert (claim.collective.group, claim.collective.seq) == ("", -1)


def test_a_stack_that_shows_the_same_call_later() -> None:
    """The tap has seen the ranks in it for a minute, their stacks for a second only."""
    scene = starting(4, range(3))
    for rank in range(3):
        scene.calls(rank, INIT, age=1.0, seen_age=0.1)
    assert blames(only(scene)) == {3: (Reason.CPU_STUCK, HIGH)}


def test_two_ranks_that_never_come_are_both_certain() -> None:
    """Each of them has to come."""
    claim = only(starting(4, [0, 1]))
    assert blames(claim) == dict.fromkeys((2, 3), (Reason.CPU_STUCK, HIGH))


def test_a_rank_that_no_agent_has_ever_seen() -> None:
    """Its process has not started, or runs without frd: it is named as such, never surely."""
    scene = starting(4, range(3)).rank(3, declared=False)
    del scene.unrecorded[3]
    claim = only(scene)
    assert blames(claim) == {3: (Reason.UNREACHABLE, MEDIUM)}
    assert claim.suspects[0].evidence.startswith("no agent has ever seen it")


def test_a_rank_that_came_is_not_to_blame() -> None:
    """Rank 3 came ten seconds ago: rank 2 alone is missing."""
    scene = starting(4, [0, 1])
    scene.unrecorded[3] = []
    scene.calls(3, INIT, age=10.0, source=WaitSource.STAGE)
    assert blames(only(scene)) == {2: (Reason.CPU_STUCK, HIGH)}


def test_all_have_come_to_init() -> None:
    """The store or the network is the cause: no rank is named."""
    claim = only(starting(3, range(3)))
    assert (claim.suspects, claim.reason) == ((), Reason.NETWORK_OR_DEVICE)


def test_the_last_has_just_come() -> None:
    """Rank 2 came two seconds ago, and init_process_group needs some time from then on."""
    scene = starting(3, range(3))
    scene.unrecorded[2] = []
    assert claims(scene.calls(2, INIT, age=2.0, source=WaitSource.STAGE)) == []


def test_a_second_initialization() -> None:
    """The ranks have destroyed their groups and make the default group again; rank 2 does not
    come."""
    scene = pipeline()
    for rank in range(4):
        scene.rank(rank, moved_age=80.0)
        scene.calls(rank, INIT if rank != 2 else "", age=70.0, source=WaitSource.STAGE)
    assert blames(only(scene)) == {2: (Reason.CPU_STUCK, HIGH)}


def test_suspects_are_bounded() -> None:
    """As many as a finding lists; all of them are named."""
    few = replace(POLICY, max_suspects=3)
    (claim,) = claims_of_calls(starting(16, [0, 1]).snapshot(), few)
    assert (len(claim.suspects), len(claim.named)) == (3, 14)
