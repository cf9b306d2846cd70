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


def test_the_only_rank_that_does_not_wait() -> None:
    """Ranks 0, 1 and 3 are in recv, of which no peer is known; 2 computes: 2 is the cause."""
    scene = pipeline().calls(0, "recv").calls(1, "recv").calls(3, "recv").calls(2, "")
    claim = only(scene)
    assert blames(claim) == {2: (Reason.CPU_STUCK, HIGH)}
    assert (claim.kind, claim.victims) == (Kind.STALL, (0, 1, 3))
    assert claim.collective is not None
    assert (claim.collective.op, claim.collective.missing_ranks) == ("recv", (2,))


def test_a_rank_whose_stack_is_not_known() -> None:
    """Nothing shows that rank 2 is not in recv as well."""
    scene = pipeline().calls(0, "recv").calls(1, "recv").calls(3, "recv")
    assert blames(only(scene)) == {2: (Reason.CPU_STUCK, MEDIUM)}


def test_a_rank_that_was_seen_outside_too_early() -> None:
    """Rank 2 was in no call when the others had just begun to wait: it may have come since."""
    scene = pipeline().calls(0, "recv").calls(1, "recv").calls(3, "recv")
    assert blames(only(scene.calls(2, "", seen_age=5.0))) == {2: (Reason.CPU_STUCK, MEDIUM)}


def test_several_ranks_do_not_wait() -> None:
    """Who of ranks 2 and 3 is received from is not known: neither is certain."""
    scene = pipeline().calls(0, "recv").calls(1, "recv").calls(2, "").calls(3, "")
    assert blames(only(scene)) == dict.fromkeys((2, 3), (Reason.CPU_STUCK, MEDIUM))


def test_a_server_that_waits_for_work_is_no_hang() -> None:
    """One rank of four is in recv, for hours."""
    scene = pipeline().calls(3, "recv", age=9_000)
    assert claims(scene.calls(0, "").calls(1, "").calls(2, "")) == []


def test_a_wait_below_the_threshold() -> None:
    """A pause of four seconds."""
    scene = pipeline()
    for rank in (0, 1, 3):
        scene.calls(rank, "recv", age=4.4)
    assert claims(scene.calls(2, "")) == []


def test_the_job_goes_on() -> None:
    """Rank 2 completes collectives of another group meanwhile."""
    scene = pipeline().calls(0, "recv").calls(1, "recv").calls(3, "recv").calls(2, "")
    assert claims(scene.rank(2, moved_age=1.0)) == []


def test_a_rank_that_moved_since_does_not_wait_any_more() -> None:
    """Its receive is over: it completed a collective after its stack was read."""
    scene = pipeline()
    for rank in range(3):
        scene.calls(rank, "recv", seen_age=3.0).rank(rank, moved_age=2.0)
    assert claims(scene.calls(3, "")) == []


def test_a_rank_in_a_recorded_op() -> None:
    """Its wait becomes a stall, and the recorded ops decide."""
    scene = pipeline().calls(0, "recv").calls(1, "recv").calls(2, "").waits("dp", 8, [3], age=2)
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


def test_a_rank_that_exited() -> None:
    """Its process is gone while the others wait for it."""
    scene = pipeline().calls(0, "recv").calls(1, "recv").calls(3, "recv")
    scene.rank(2, state=RankState.FINISHED, state_age=9.0)
    assert blames(only(scene)) == {2: (Reason.EXITED, HIGH)}


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
    scene = pipeline().calls(0, "recv").calls(1, "recv").calls(3, "recv").rank(2, **change)
    claim = only(scene)
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


def test_slow_initialization_is_ordinary() -> None:
    """Images are pulled, ranks come one after the other: 50 s."""
    assert claims(starting(4, range(3), age=50.0)) == []


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


def test_few_of_many_wait_in_init() -> None:
    """Two ranks of sixteen are there after a minute: still the others have to come."""
    claim = only(starting(16, [0, 1]))
    assert len(claim.suspects) == 14


def test_suspects_are_bounded() -> None:
    """As many as a finding lists; all of them are named."""
    few = replace(POLICY, max_suspects=3)
    (claim,) = claims_of_calls(starting(16, [0, 1]).snapshot(), few)
    assert (len(claim.suspects), len(claim.named)) == (3, 14)
