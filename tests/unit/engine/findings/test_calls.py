"""Findings about calls that no recorder shows, from opening to closing."""

from __future__ import annotations

from frd.engine.engine import Engine
from frd.engine.policy import Policy
from frd.forms import finding_json
from frd.model import Change, FindingState, Kind, NodeNs, UnrecordedWait, WaitSource
from tests.world.job import Job

S = 1_000_000_000


class Calls:
    """A job of four ranks in no op, whose ranks are seen in calls every second."""

    def __init__(self) -> None:
        self.job = Job(4, engine=Engine(Policy(stall_after_s=5.0, init_stall_after_s=60.0)))
        self.job.group("dp", range(4)).all_reduce("dp", 0)
        self.job.run(1)
        self.since = self.job.now

    def run(self, seconds: int, **ops: str) -> list[Change]:
        """For each rank (``r0="recv"``) its call; none for the others."""
        changes = []
        for _ in range(seconds):
            for rank in range(4):
                self.see(rank, ops.get(f"r{rank}", ""))
            changes += [event.change for event in self.job.run(1)]
        return changes

    def see(self, rank: int, op: str) -> None:
        since, seen = NodeNs(self.since if op else self.job.now), NodeNs(self.job.now)
        self.job.attempt.observe_unrecorded(
            UnrecordedWait(rank, WaitSource.STACK, op, since, seen, detail="train.py:8 in f")
        )


def test_it_opens_once_and_closes_when_the_wait_is_over() -> None:
    """Rank 2 does not send for 15 s, then it does."""
    calls = Calls()
    waiting = {"r0": "recv", "r1": "recv", "r3": "recv"}
    assert calls.run(4, **waiting) == []
    assert calls.run(3, **waiting).count(Change.OPENED) == 1
    finding = calls.job.only()
    assert finding.kind is Kind.STALL
    assert finding.summary.startswith("recv has waited ")
    assert finding.summary.endswith(" s for rank 2 (alive, but has not joined)")
    assert finding.suspects[0].confidence.value == "high"
    collective = finding_json(finding)["collective"]
    assert (collective["group"], collective["seq"], collective["op"]) == ("", -1, "recv")
    assert Change.OPENED not in calls.run(5, **waiting)
    calls.since = calls.job.now
    assert calls.run(3) == [Change.CLOSED]


def test_a_recorded_hang_that_follows_is_the_same_incident() -> None:
    """Ranks 0, 1 and 3 leave their calls for a collective to which rank 2 does not come."""
    calls = Calls()
    waiting = {"r0": "recv", "r1": "recv", "r3": "recv"}
    calls.run(7, **waiting)
    finding = calls.job.only()
    calls.job.join("dp", [0, 1, 3], 1)
    calls.job.run(10)
    assert [one.suspects[0].rank for one in calls.job.findings()] == [2] * len(calls.job.findings())
    still = [one for one in calls.job.findings() if one.state is FindingState.OPEN]
    assert len(still) == 1
    assert finding.suspects[0].rank == still[0].suspects[0].rank


def test_a_finding_survives_a_restart_of_the_service() -> None:
    """Another engine takes it up, and goes on with it when stacks show the waits again, or closes
    it when they show that they are over."""
    calls = Calls()
    waiting = {"r0": "recv", "r1": "recv", "r3": "recv"}
    calls.run(8, **waiting)
    finding = calls.job.only()
    engine = Engine(Policy(stall_after_s=5.0))
    engine.restore([finding], calls.job.now)
    calls.job = Job(4, engine=engine, now=calls.job.now).group("dp", range(4))
    calls.job.all_reduce("dp", 0)
    assert calls.job.run(10) == []
    calls.since = calls.job.now
    assert Change.OPENED not in calls.run(12, **waiting)
    assert calls.job.only().id == finding.id
    assert calls.run(3) == [Change.CLOSED]
