"""Hangs in calls that no recorder shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from frd.engine.findings.builder import Claim
from frd.engine.hangs.detector import claim_of
from frd.engine.hangs.diagnosis import diagnose
from frd.engine.losses.exits import exits
from frd.engine.policy import Policy
from frd.model import DEVICE, IDLE, POLL, REST, Confidence, Kind, RankState, Reason, WaitSource
from tests.world.scene import Scene

HIGH, MEDIUM = Confidence.HIGH, Confidence.MEDIUM
POLICY = Policy(stall_after_s=5.0)
INIT = "init_process_group"


def claims(scene: Scene, policy: Policy = POLICY) -> list[Claim]:
    snapshot = scene.snapshot()
    gone = exits(snapshot)
    diagnoses = diagnose(snapshot, scene.stalls(), policy)
    return [claim_of(snapshot, one, policy, gone) for one in diagnoses]


def only(scene: Scene) -> Claim:
    (claim,) = claims(scene)
    return claim


def blames(claim: Claim) -> dict[int, tuple[Reason, Confidence]]:
    return {one.rank: (one.reason, one.confidence) for one in claim.suspects}


def pipeline(world: int = 4) -> Scene:
    """A job whose ranks completed a collective long ago and are in no op now."""
    scene = Scene(world).group("dp", range(world)).passed("dp", 7, range(world))
    for rank in range(world):
        scene.rank(rank, moved_age=90.0)
    return scene


def starting(world: int, inside: Sequence[int], age: float = 70.0, last: float = 70.0) -> Scene:
    """Ranks without a group, some in init_process_group since `age`, the last of them since `last`;
    the others were seen in no call."""
    scene = Scene(world)
    for rank in range(world):
        scene.rank(rank, moved_age=9_000)
        since = last if rank == inside[-1] else age
        op = INIT if rank in inside else ""
        scene.calls(rank, op, age=since, source=WaitSource.STAGE)
    return scene


# -- sends, receives and barriers ----------------------------------------------------------------


def calling(op: str = "recv", *, age: float = 8.0) -> Scene:
    """Ranks 0, 1 and 3 of the pipeline are in a call, of which no peer is known."""
    scene = pipeline()
    for rank in (0, 1, 3):
        scene.calls(rank, op, age=age)
    return scene


@pytest.mark.parametrize(
    ("scene", "blamed"),
    [
        pytest.param(calling().calls(2, ""), (Reason.CPU_STUCK, HIGH), id="it computes"),
        pytest.param(calling(), (Reason.CPU_STUCK, MEDIUM), id="it may be in recv as well"),
        pytest.param(
            calling().calls(2, "", seen_age=5.0),
            (Reason.CPU_STUCK, MEDIUM),
            id="it may have come since it was seen outside",
        ),
        pytest.param(
            calling().rank(2, state=RankState.FINISHED, state_age=9.0),
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
        pytest.param(calling(age=4.4).calls(2, ""), id="a pause of four seconds"),
        pytest.param(
            calling().calls(2, "").rank(2, moved_age=1.0),
            id="rank 2 completes collectives of another group",
        ),
        pytest.param(moved_since(), id="the receives are over"),
        pytest.param(
            pipeline().calls(0, "recv").calls(1, "recv").calls(2, "").waits("dp", 8, [3], age=2),
            id="rank 3 is in a recorded op, which decides once it is a stall",
        ),
        pytest.param(starting(4, range(3), 50.0, last=50.0), id="initialization takes 50 s"),
        pytest.param(
            starting(3, range(3), last=2.0),
            id="initialization takes a while from when the last has come, which is two seconds ago",
        ),
        pytest.param(
            calling("new_group", age=50.0).calls(2, ""),
            id="rank 2 has a minute to call new_group as the others do",
        ),
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


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(
            pipeline(2).calls(0, "monitored_barrier").calls(1, "monitored_barrier"), id="barrier"
        ),
        pytest.param(starting(3, range(3)), id="initialization"),
    ],
)
def test_no_rank_is_named_if_all_have_come(scene: Scene) -> None:
    """The network or the store is the cause."""
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
    claim = only(calling().rank(2, **change))
    assert (claim.suspects, claim.unknown) == ((), (2,))


def test_a_new_group_that_one_rank_does_not_make() -> None:
    """All ranks have to call new_group; rank 2 has not in more than a minute, and is certain."""
    claim = only(calling("new_group", age=70.0).calls(2, ""))
    assert blames(claim) == {2: (Reason.CPU_STUCK, HIGH)}


# -- polls and devices ---------------------------------------------------------------------------


def doubtful(op: str, free: Sequence[int] = (0,), *, age: float = 8.0, world: int = 4) -> Scene:
    """All ranks of a pipeline but some are in a wait that may be for no rank."""
    scene = pipeline(world)
    for rank in set(range(world)) - {*free}:
        scene.calls(rank, op, age=age, source=WaitSource.INSPECTION)
    return scene


@pytest.mark.parametrize("op", [POLL, DEVICE])
@pytest.mark.parametrize("elsewhere", [REST, ""])
def test_one_rank_does_not_poll(op: str, elsewhere: str) -> None:
    """Rank 0 is blocked in a read, or busy, while all others poll for what it has to write, or wait
    for their devices, in which they wait for each other: it is the cause, never surely."""
    claim = only(doubtful(op).calls(0, elsewhere))
    assert claim.kind is Kind.STALL
    assert blames(claim) == {0: (Reason.CPU_STUCK, MEDIUM)}
    assert claim.victims == (1, 2, 3)


@pytest.mark.parametrize("op", [POLL, DEVICE])
def test_a_rank_whose_collectives_cannot_be_read(op: str) -> None:
    """Torch 2.7 keeps no record of Gloo: rank 0 is in an all_reduce for one of those that poll."""
    scene = doubtful(op).calls(0, REST)
    scene.unread = {0}
    assert claims(scene) == []


def test_a_rank_that_waits_for_a_request() -> None:
    """Those that poll may wait for the same. Those that wait for their devices have work, which
    rank 0 does not get: its queue is filled by a thread of the program."""
    assert claims(doubtful(POLL).calls(0, IDLE)) == []
    assert blames(only(doubtful(DEVICE).calls(0, IDLE))) == {0: (Reason.CPU_STUCK, MEDIUM)}


def test_a_loop_that_waits_for_a_reply() -> None:
    """The frames of rank 0 are those of an idle event loop; /proc shows that no request ends its
    wait, unless it is idle since then."""
    scene = doubtful(POLL).calls(0, REST, seen_age=1.0, source=WaitSource.INSPECTION)
    assert claims(scene.calls(0, IDLE, age=0.8)) == []
    scene.unrecorded[0].pop()
    assert blames(only(scene.calls(0, IDLE))) == {0: (Reason.CPU_STUCK, MEDIUM)}


@pytest.mark.parametrize("op", [POLL, DEVICE])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda scene: scene, id="what rank 0 does is not known"),
        pytest.param(lambda scene: scene.calls(0, REST, seen_age=6.0), id="seen too early"),
        pytest.param(
            lambda scene: scene.calls(0, REST).rank(0, moved_age=1.0), id="rank 0 goes on"
        ),
        pytest.param(
            lambda scene: scene.calls(0, REST).calls(3, "new_group", age=1.0, seen_age=0.1),
            id="the others have just changed",
        ),
    ],
)
def test_doubtful_waits_that_are_no_hang(op: str, change: Callable[[Scene], Scene]) -> None:
    """All others poll, or wait for their devices. Nothing is claimed."""
    assert claims(change(doubtful(op))) == []


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(doubtful(POLL, ()), id="all poll"),
        pytest.param(doubtful(DEVICE, ()), id="all wait for their devices"),
        pytest.param(doubtful(DEVICE, (), world=1), id="a job of one rank"),
        pytest.param(doubtful(POLL, (0, 1)).calls(0, REST).calls(1, REST), id="two ranks do not"),
        pytest.param(doubtful(DEVICE, age=4.4).calls(0, REST), id="a pause of four seconds"),
        pytest.param(doubtful(POLL, (0,)).calls(0, "recv"), id="a server that waits for work"),
        pytest.param(pipeline(1).calls(0, "recv"), id="the only rank waits in recv"),
    ],
)
def test_no_rank_has_to_do_what_others_wait_for(scene: Scene) -> None:
    """Nothing is claimed."""
    assert claims(scene) == []


def test_a_pause_that_was_learned() -> None:
    """The job has shown that its ranks poll for ten seconds while rank 0 writes."""
    scene = doubtful(POLL).calls(0, "")
    scene.learned_s[POLL] = 15.0
    assert claims(scene) == []


def test_the_holder_of_a_lock() -> None:
    """Ranks 1 and 3 wait for a lock that rank 2 holds; rank 0 computes: rank 2 is meant."""
    scene = pipeline().calls(0, "").calls(2, "")
    for rank in (1, 3):
        scene.calls(rank, "lock", [2], source=WaitSource.INSPECTION)
    assert blames(only(scene)) == {2: (Reason.CPU_STUCK, HIGH)}


def test_barrier_and_recv() -> None:
    """Ranks 0 and 1 are in a barrier that rank 2 does not reach, because it is in recv."""
    scene = pipeline(3).calls(0, "monitored_barrier").calls(1, "monitored_barrier")
    claim = only(scene.calls(2, "recv"))
    assert claim.kind is Kind.ORDER
    assert blames(claim) == dict.fromkeys(range(3), (Reason.ORDER, MEDIUM))
    assert claim.disagreement == "rank 2 went into recv while ranks 0-1 are in monitored_barrier"


# -- initialization ------------------------------------------------------------------------------


def seen_lately(scene: Scene) -> Scene:
    """Stacks have shown the call for a second only."""
    for rank in range(3):
        scene.calls(rank, INIT, age=1.0, seen_age=0.1)
    return scene


@pytest.mark.parametrize(
    ("scene", "missing"),
    [
        pytest.param(starting(4, range(3)), [3], id="one"),
        pytest.param(seen_lately(starting(4, range(3))), [3], id="one, by stages and late stacks"),
        pytest.param(starting(4, [0, 1]), [2, 3], id="two, and each of them has to come"),
        pytest.param(starting(4, [0, 1, 3], last=10.0), [2], id="one, another came 10 s ago"),
        pytest.param(
            starting(4, [0, 1, 3]).group("dp", range(4)).passed("dp", 7, range(4)),
            [2],
            id="one, when groups were destroyed and the default group is made again",
        ),
    ],
)
def test_ranks_that_never_come_to_init(scene: Scene, missing: list[int]) -> None:
    """The others have waited for more than a minute."""
    claim = only(scene)
    assert blames(claim) == dict.fromkeys(missing, (Reason.CPU_STUCK, HIGH))
    assert {one.evidence for one in claim.suspects} == {"has not come to init_process_group"}
    assert claim.collective is not None
    assert claim.collective.op == INIT
    assert (claim.collective.group, claim.collective.seq) == ("", -1)


def test_a_rank_that_no_agent_has_ever_seen() -> None:
    """Its process has not started, or runs without frd: it is named as such, never surely."""
    scene = starting(4, range(3)).rank(3, declared=False)
    del scene.unrecorded[3]
    claim = only(scene)
    assert blames(claim) == {3: (Reason.UNREACHABLE, MEDIUM)}
    assert claim.suspects[0].evidence.startswith("no agent has ever seen it")


def test_suspects_are_bounded() -> None:
    """As many as a finding lists; all of them are named."""
    few = replace(POLICY, max_suspects=3)
    (claim,) = claims(starting(16, [0, 1]), few)
    assert (len(claim.suspects), len(claim.named)) == (3, 14)
