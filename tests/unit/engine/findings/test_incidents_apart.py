"""Where one incident ends and another begins: several stalls, and stalls around lost ranks."""

from __future__ import annotations

from frd.engine.policy import Policy
from frd.model import Change, Kind, RankState, Reason
from tests.world.job import Job, changes, hanging


def test_a_stall_elsewhere_is_a_finding_of_its_own() -> None:
    """A stall is over, and its finding still open, when another group has waited enough."""
    policy = Policy(stall_after_s=5, close_after_s=5)
    job = Job(4, policy).group("a", [0, 1]).group("b", [2, 3])
    job.join("a", [0], 0)
    job.run(4)
    job.join("b", [3], 0)
    job.run(4.5)
    first = job.only()
    job.join("a", [1], 0).complete("a", [0, 1], 0)
    job.run(2)
    assert [[s.rank for s in finding.suspects] for finding in job.open()] == [[1], [2]]
    assert job.open()[0].id == first.id


def test_receives_of_one_group_are_findings_of_their_own() -> None:
    """1 waits for 0 and 3 for 2, in one group and since the same moment: two ids, which stay, with
    another process of the service too."""
    job = Job(4).group("pp", range(4))
    begin = job.now
    job.receive(1, "pp", 0, begin).receive(3, "pp", 2, begin)
    job.run(20)
    assert changes(job.events) == [Change.OPENED] * 2
    named = {finding.id: [s.rank for s in finding.suspects] for finding in job.open()}
    assert sorted(named.values()) == [[0], [2]]
    job.restart_service()
    job.reconnect(range(4))
    job.receive(1, "pp", 0, begin).receive(3, "pp", 2, begin)
    job.run(20)
    assert {finding.id: [s.rank for s in finding.suspects] for finding in job.open()} == named


def test_what_waits_after_a_loss_is_the_loss() -> None:
    """2 is killed; then 1, alive, does not come to another group any more: still one finding."""
    job = Job(4).group("dp", range(4)).group("tp", [0, 1])
    job.all_reduce("dp", 0).all_reduce("tp", 0)
    job.run(1)
    job.status(2, RankState.EXITED, "killed")
    job.run(4)
    lost = job.only()
    job.join("tp", [0], 1)
    job.run(10)
    assert [finding.id for finding in job.findings()] == [lost.id]
    assert job.only().kind is Kind.RANK_LOST
    assert [(s.rank, s.reason) for s in job.only().suspects] == [(2, Reason.EXITED)]
    assert job.only().groups_held_up == ("tp",)


def test_what_stood_still_before_a_loss_is_not_the_loss() -> None:
    """1 keeps 0 waiting; three seconds later 3 is killed in another group: two findings."""
    job = Job(4).group("a", [0, 1]).group("b", [2, 3])
    job.all_reduce("a", 0).all_reduce("b", 0)
    job.run(1)
    job.join("a", [0], 1)
    job.run(3)
    job.status(3, RankState.EXITED, "killed")
    job.run(8)
    assert {(f.kind, f.suspects[0].rank) for f in job.open()} == {
        (Kind.RANK_LOST, 3),
        (Kind.STALL, 1),
    }


def test_an_exit_is_judged_before_a_stall_may_name_it() -> None:
    """2 is killed half a second before the others have waited long enough for a stall."""
    job = hanging(4.5)
    job.status(2, RankState.EXITED, "killed")
    job.run(8)
    assert [(f.kind, f.suspects[0].reason) for f in job.findings()] == [
        (Kind.RANK_LOST, Reason.EXITED)
    ]


def test_stalls_that_share_what_comes_after_them_stay_apart() -> None:
    """0 waits for 1, and 3 for 2; both have enqueued the next op of one larger group already."""
    job = Job(4).group("a", [0, 1]).group("b", [2, 3]).group("all", range(4))
    job.join("a", [0], 0).join("b", [3], 0)
    job.run(0.5)
    job.join("all", [0, 3], 0)
    job.run(20)
    assert changes(job.events).count(Change.OPENED) == 2
    assert sorted(s.rank for finding in job.open() for s in finding.suspects) == [1, 2]


def test_an_agent_that_goes_away_does_not_take_an_incident_apart() -> None:
    """2 does not come, and all wait for it, two by two; then no agent reports 4 and 5: what
    waits for them is part of what was known before, and is again when they are back."""
    job = Job(8).group("dp", range(0, 8, 2))
    for rank in range(0, 8, 2):
        job.group(f"tp{rank}", [rank, rank + 1])
    job.join("dp", [0, 4, 6], 0).join("tp0", [1], 0).join("tp4", [5], 0).join("tp6", [7], 0)
    job.run(8)
    first = job.only()
    for _ in range(3):
        job.attempt.connection([4, 5], False)
        job.reporting -= {4, 5}
        job.run(4)
        job.attempt.connection([4, 5], True)
        job.reporting |= {4, 5}
        job.run(4)
    assert [finding.id for finding in job.findings()] == [first.id]
    assert [s.rank for s in job.only().suspects] == [2]


def test_it_is_not_the_network_at_first_sight() -> None:
    """All have joined, and have waited long when it is seen first; half a second later it is
    over, as when a job goes on and agents report it one by one."""
    job = hanging().join("dp", [2], 1)
    job.run(6)
    job.complete("dp", range(4), 1)
    job.run(5)
    assert job.findings() == []
    job.join("dp", range(4), 2)
    job.run(8)
    assert job.only().reason is Reason.NETWORK_OR_DEVICE
