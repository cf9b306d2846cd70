"""Findings about initialization and calls that no recorder shows, and waits that open none."""

from __future__ import annotations

import pytest

from frd.engine.engine import Engine
from frd.engine.policy import Policy
from frd.forms import finding_json
from frd.model import (
    AlignedNs,
    AttemptKey,
    Change,
    Confidence,
    ExitInfo,
    ExitKind,
    Finding,
    FindingState,
    Kind,
    NodeNs,
    NodeRawNs,
    RankState,
    RankStatus,
    Stage,
    UnrecordedWait,
    WaitSource,
)
from tests.world import observe
from tests.world.job import START, Job
from tests.world.scene import named

S = 1_000_000_000

WAITING = {"r0": "recv", "r1": "recv", "r3": "recv"}
"""For rank 2."""


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
            for rank in self.job.reporting:
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
    assert calls.run(4, **WAITING) == []
    assert calls.run(3, **WAITING).count(Change.OPENED) == 1
    finding = calls.job.only()
    assert finding.kind is Kind.STALL
    assert finding.headline == "Rank 2 (node1) is alive, but has not joined"
    assert finding.effect.startswith("holds up 3 ranks in recv for ")
    assert finding.suspects[0].confidence.value == "high"
    collective = finding_json(finding)["collective"]
    assert (collective["group"], collective["seq"], collective["op"]) == ("", -1, "recv")
    assert Change.OPENED not in calls.run(5, **WAITING)
    calls.since = calls.job.now
    assert calls.run(3) == [Change.CLOSED]


def test_a_recorded_hang_that_follows_is_the_same_incident() -> None:
    """Ranks 0, 1 and 3 leave their calls for a collective to which rank 2 does not come."""
    calls = Calls()
    calls.run(7, **WAITING)
    calls.job.join("dp", [0, 1, 3], 1)
    calls.job.run(10)
    assert {tuple(named(one)) for one in calls.job.findings()} == {(2,)}
    assert len(calls.job.open()) == 1


def test_a_rank_that_is_out_of_its_call_and_does_not_come_is_named_too() -> None:
    """Ranks 2 and 3 do not come to a collective. Rank 3 is in recv, so only rank 2 is named; then
    rank 3 leaves recv, does not come either, and is named as well when that has lasted."""
    calls = Calls()
    calls.job.join("dp", [0, 1], 1)
    calls.run(8, r3="recv")
    assert set(named(calls.job.only())) == {2}
    assert [calls.run(1), calls.run(1)] == [[], [Change.UPDATED]]
    assert set(named(calls.job.only())) == {2, 3}


def test_a_finding_survives_a_restart_of_the_service() -> None:
    """Another engine takes it up, and goes on with it when stacks show the waits again, or closes
    it when they show that they are over."""
    calls = Calls()
    calls.run(8, **WAITING)
    finding = calls.job.only()
    engine = Engine(Policy(stall_after_s=5.0))
    engine.restore([finding], calls.job.now)
    calls.job = Job(4, engine=engine, now=calls.job.now).group("dp", range(4))
    calls.job.all_reduce("dp", 0)
    assert calls.job.run(10) == []
    calls.since = calls.job.now
    assert Change.OPENED not in calls.run(12, **WAITING)
    assert calls.job.only().id == finding.id
    assert calls.run(3) == [Change.CLOSED]


# -- calls that end well ---------------------------------------------------------------------------


INIT = "init_process_group"
POLICY = Policy(stall_after_s=5.0, init_stall_after_s=60.0)


class Starting:
    """Ranks that have no process group yet: their agents report the stage of each every second."""

    def __init__(
        self, *, engine: Engine | None = None, attempt: int = 0, now: AlignedNs = START
    ) -> None:
        self.world = 4
        self.now = now
        self.first_pid = int(now // S)
        self.engine = engine or Engine(POLICY)
        self.key = AttemptKey("job", attempt)
        self.attempt = self.engine.attempt(self.key, self.world, self.now)
        self.inside: dict[int, AlignedNs] = {}
        """Since when each rank is in the call; of the others, 0."""
        self.op = INIT
        self.unheard: set[int] = set()
        self.opened: list[Finding] = []

    def start(self, *ranks: int) -> None:
        """Agents find the processes of these ranks, in no call yet."""
        for rank in ranks:
            info = observe.rank_info(rank, self.world, per_node=2, first_pid=self.first_pid)
            self.engine.rank(self.attempt, info, self.now)
            self.inside[rank] = AlignedNs(0)
        self.attempt.connection(list(ranks), True)

    def enter(self, *ranks: int) -> None:
        self.inside |= dict.fromkeys(ranks, self.now)

    def leave(self, rank: int, detail: str = "") -> None:
        """The process of a rank ended before it had a group: no exit is reported for it."""
        del self.inside[rank]
        status = RankStatus(rank, RankState.FINISHED, NodeNs(self.now), detail, as_of_ns=self.now)
        self.attempt.observe_status(status, self.now)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now = AlignedNs(self.now + 1_000_000_000)
            for rank in self.inside.keys() - self.unheard:
                self._report(rank)
            events = self.engine.advance(self.now).events
            self.opened += [e.finding for e in events if e.finding.state is FindingState.OPEN]

    def _report(self, rank: int) -> None:
        since = self.inside[rank]
        stage = Stage(self.op if since else "", NodeRawNs(since or self.now), NodeRawNs(self.now))
        status = RankStatus(rank, RankState.LIVE, NodeNs(START), as_of_ns=self.now, stage=stage)
        self.attempt.observe_status(status, self.now)
        observe.watermarks(self.attempt, [], rank, self.now)

    def train(self, seconds: int) -> None:
        """All have come: they make the default group and run."""
        self.op = ""
        self.inside = {}
        for rank in range(self.world):
            status = RankStatus(rank, RankState.LIVE, NodeNs(self.now), as_of_ns=self.now)
            self.attempt.observe_status(status, self.now)
        self.run(seconds)


def without_3(
    seconds: int, *, engine: Engine | None = None, attempt: int = 0, now: AlignedNs = START
) -> Starting:
    """Four ranks start at a time, and all but rank 3 are in the call for so long."""
    job = Starting(engine=engine, attempt=attempt, now=now)
    job.start(0, 1, 2, 3)
    job.enter(0, 1, 2)
    job.run(seconds)
    return job


def test_a_rank_that_never_comes_is_found() -> None:
    """The frame of the tests below does report: rank 3 does not come for 63 s."""
    job = without_3(58)
    assert job.opened == []
    job.run(5)
    assert [s.rank for s in job.opened[-1].suspects] == [3]
    assert job.opened[-1].suspects[0].confidence is Confidence.HIGH
    assert job.opened[-1].effect.startswith("holds up 3 ranks in init_process_group for 6")
    assert len({one.id for one in job.opened}) == 1


def test_an_image_is_pulled() -> None:
    """Ranks 2 and 3 start 50 s after the others, on a node that no agent has reported before."""
    job = Starting()
    job.start(0, 1)
    job.enter(0, 1)
    job.run(50)
    job.start(2, 3)
    job.run(4)
    job.enter(2, 3)
    job.run(2)
    job.train(90)
    assert job.opened == []


@pytest.mark.parametrize("attempt", [1, 0])
def test_a_restart_during_initialization(attempt: int) -> None:
    """After 50 s the launcher starts all ranks again, as another attempt or, if it does not number
    its restarts, as the same; that takes 50 s as well."""
    first = without_3(50)
    again = without_3(50, engine=first.engine, attempt=attempt, now=first.now)
    assert [*first.opened, *again.opened] == []


def test_ctrl_c_during_initialization() -> None:
    """A person stops a job that has waited for 58 s; the ranks end one by one, the last when its
    wait is longer than a minute."""
    job = without_3(58)
    for rank in (3, 0, 2):
        job.leave(rank, "ended before it had a process group: KeyboardInterrupt")
        job.run(1)
    job.run(3)
    job.leave(1, "ended before it had a process group: KeyboardInterrupt")
    job.run(30)
    assert job.opened == []


def test_an_agent_restarts_during_initialization() -> None:
    """Nothing is heard of ranks 2 and 3 for 30 s; rank 3 comes soon after its agent is back."""
    job = without_3(20)
    job.unheard = {2, 3}
    job.attempt.connection([2, 3], False)
    job.run(30)
    job.unheard = set()
    job.attempt.connection([2, 3], True)
    job.run(4)
    job.enter(3)
    job.run(2)
    job.train(60)
    assert job.opened == []


def test_all_reports_are_late() -> None:
    """The service hears nothing of any rank from the 50th second on."""
    job = without_3(50)
    job.unheard = {0, 1, 2, 3}
    job.run(60)
    assert job.opened == []


def test_a_new_group_of_which_only_some_ranks_are_members() -> None:
    """Ranks 0 and 1 wait in new_group with use_local_synchronization, which only members call: that
    they wait does not prove that 2 and 3 are both members."""
    job = Starting()
    job.start(0, 1, 2, 3)
    job.op = "new_group"
    job.enter(0, 1)
    job.run(70)
    assert Confidence.HIGH not in {s.confidence for one in job.opened for s in one.suspects}


def paused(op: str, seconds: int) -> list[Finding]:
    """Again and again, ranks 1 to 3 are in that call for so long while rank 0 is in none."""
    calls = Calls()
    for seq in range(1, 7):
        calls.since = calls.job.now
        calls.run(seconds, r1=op, r2=op, r3=op)
        calls.job.all_reduce("dp", seq).run(1)
    return calls.job.findings()


def test_a_job_is_stopped_in_recv() -> None:
    """Ctrl-C before the threshold; rank 3 is seen in recv for some seconds after others left."""
    calls = Calls()
    calls.run(3, **WAITING)
    for rank, then_s in ((2, 1), (0, 1), (1, 4), (3, 30)):
        how = ExitInfo(ExitKind.INTERRUPT, exception="KeyboardInterrupt")
        calls.job.status(rank, RankState.EXITED, "KeyboardInterrupt", how=how)
        calls.run(then_s, **WAITING)
    assert calls.job.findings() == []


@pytest.mark.parametrize("op", ["monitored_barrier", "recv"])
@pytest.mark.parametrize(("seconds", "opened"), [(4, 0), (8, 1)])
def test_a_checkpoint_on_rank_0(op: str, seconds: int, opened: int) -> None:
    """The others wait in a barrier, or in recv, again and again: for less than the threshold of
    five seconds, or for longer, which is a finding at the first one, as for collectives, and none
    at the next ones."""
    found = paused(op, seconds)
    assert [one.state for one in found] == [FindingState.CLOSED] * opened


def minutes(number: int) -> AlignedNs:
    return AlignedNs(START + number * 60 * S)


def test_slow_starts_of_a_job_are_learned() -> None:
    """Rank 3 needs 63 s at each start: a finding at the first, and none at the next."""
    engine = Engine(POLICY)
    opened = []
    for attempt in range(3):
        job = without_3(63, engine=engine, attempt=attempt, now=minutes(10 * attempt))
        job.enter(3)
        job.run(1)
        job.train(20)
        opened.append(len(job.opened) > 0)
    assert opened == [True, False, False]


def test_a_start_that_fails_teaches_nothing() -> None:
    """Rank 3 never comes, and the job ends: the next start is judged as the first."""
    engine = Engine(POLICY)
    for attempt in range(2):
        job = without_3(63, engine=engine, attempt=attempt, now=minutes(10 * attempt))
        assert job.opened
        for rank in range(4):
            job.leave(rank, "ended before it had a process group: KeyboardInterrupt")
        job.run(20)
