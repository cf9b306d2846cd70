"""When a job in which nothing moves is a finding without a stall, and when there is no finding."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from frd.engine.evidence.questions import Occasion
from frd.engine.policy import Policy
from frd.model import (
    CHILD,
    DEVICE,
    IDLE,
    NATIVE,
    POLL,
    REST,
    AlignedNs,
    Change,
    Confidence,
    Finding,
    FindingEvent,
    Kind,
    NodeNs,
    RankState,
    Severity,
    UnrecordedWait,
    WaitSource,
)
from tests.world.asked import Asked
from tests.world.job import STEP_S, Job, changes

AFTER_S = 30.0
POLICY = Policy(stall_after_s=5.0, standstill_after_s=AFTER_S)
BUSY = ""


class Still:
    """Four ranks that were in one all_reduce, and then in nothing that a recorder shows."""

    def __init__(self, *ops: str, job: Job | None = None) -> None:
        self.job = job or Job(4, POLICY).group("dp", range(4)).all_reduce("dp", 0)
        self.job.run(1)
        self.seen = dict[tuple[int, WaitSource], tuple[str, str, AlignedNs]]()
        for rank, op in enumerate(ops):
            self.rests(op, [rank])

    def rests(
        self,
        op: str,
        ranks: Iterable[int],
        where: str = "train.py:88 in step",
        source: WaitSource = WaitSource.STAGE,
    ) -> Still:
        """From now on each look shows these ranks there."""
        for rank in ranks:
            self.seen[rank, source] = op, where, self.job.now
        return self

    def run(self, seconds: float) -> list[FindingEvent]:
        events = []
        for _ in range(round(seconds / STEP_S)):
            for (rank, source), (op, where, since) in self.seen.items():
                times = NodeNs(since), NodeNs(self.job.now)
                self.job.attempt.observe_sighting(
                    UnrecordedWait(rank, source, op, *times, detail=where)
                )
            events += self.job.run(STEP_S)
        return events

    def opened(self, seconds: float = AFTER_S + 5) -> Finding:
        (event,) = self.run(seconds)
        assert event.change is Change.OPENED
        return event.finding


def blocked(still: Still, *ranks: int) -> Still:
    """What /proc shows of these ranks."""
    says = "it has been in read() of /data/shard"
    return still.rests(REST, ranks, says, WaitSource.INSPECTION)


# -- what is one ---------------------------------------------------------------------------------


def test_all_ranks_read_from_one_dead_mount() -> None:
    """A warning after the time without movement, that names line and file, and stays a warning."""
    still = blocked(Still(REST, REST, REST, REST), 0, 1, 2, 3)
    assert still.run(AFTER_S - 2) == []
    finding = still.opened(4)
    assert (finding.kind, finding.severity) == (Kind.STANDSTILL, Severity.WARNING)
    assert [one.confidence for one in finding.suspects] == [Confidence.MEDIUM] * 4
    where = "at train.py:88 in step: it has been in read() of /data/shard"
    assert finding.headline == f"Ranks 0-3 {where}"
    assert finding.effect.startswith("nothing of the job has moved since ")
    assert finding.suspects[0].evidence.startswith(f"has been at rest {where}")
    assert still.run(10 * AFTER_S) == []
    assert still.job.only().severity is Severity.WARNING


def test_a_rank_whose_file_is_known_comes_first() -> None:
    """Then the others by line; those that wait for other ranks are no suspects."""
    still = Still(REST, NATIVE, NATIVE, REST)
    blocked(still.rests(REST, [3], "load.py:7 in load"), 3)
    finding = still.opened()
    assert finding.headline == "Rank 3 at load.py:7 in load: it has been in read() of /data/shard"
    assert finding.effect.endswith(
        "; rank 0 at train.py:88 in step; ranks 1-2 in a native call at train.py:88 in step"
    )
    sure = {one.rank: one.confidence for one in finding.suspects}
    assert sure == {3: Confidence.MEDIUM, 0: Confidence.LOW}
    assert finding.victims == (1, 2)


def test_many_places_are_cut() -> None:
    """Eight ranks in eight lines."""
    job = Job(8, POLICY).group("dp", range(8)).all_reduce("dp", 0)
    still = Still(job=job)
    for rank in range(8):
        still.rests(REST, [rank], f"train.py:{rank} in step")
    assert still.opened().summary.endswith("; rank 3 at train.py:3 in step; 4 ranks elsewhere")


@pytest.mark.parametrize("first", [NATIVE, POLL])
def test_calls_in_which_no_rank_is_the_cause(first: str) -> None:
    """What may be a wait for another rank counts as rest, and gives no suspect."""
    finding = Still(first, NATIVE, NATIVE, NATIVE).opened()
    assert (finding.kind, finding.suspects) == (Kind.STANDSTILL, ())
    assert finding.victims == (0, 1, 2, 3)


# -- no finding --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ops",
    [
        (POLL, POLL, POLL, POLL),
        (IDLE, IDLE, IDLE, IDLE),
        (IDLE, POLL, POLL, POLL),
        (IDLE, REST, REST, REST),
        (REST, REST, BUSY, REST),
        (REST, DEVICE, REST, REST),
        (REST, REST, REST),
    ],
    ids=["polls", "servers", "engine", "waits for a server", "computes", "device", "not seen"],
)
def test_no_standstill(ops: tuple[str, ...]) -> None:
    """Idle jobs, a rank that works, one that no look has shown."""
    assert Still(*ops).run(4 * AFTER_S) == []


def test_a_loop_that_waits_for_a_reply() -> None:
    """The frames of rank 0 are those of an idle event loop; /proc shows that no request ends its
    wait. It is a suspect as others are."""
    still = Still(IDLE, REST, REST, REST)
    finding = still.rests(REST, [0], "recv() from db:80", WaitSource.INSPECTION).opened()
    assert finding.suspects[0].rank == 0


def test_a_rank_whose_child_computes() -> None:
    """The main thread rests; /proc shows that it waits for a process that may compute."""
    still = Still(REST, REST, REST, REST)
    assert still.rests(CHILD, [2], "", WaitSource.INSPECTION).run(4 * AFTER_S) == []


def test_a_stack_in_no_known_call_is_no_work() -> None:
    """The first of two stacks shows no wait; the tap has seen the rank rest all the time."""
    still = Still(REST, REST, REST, REST)
    assert still.rests(BUSY, [2], "", WaitSource.STACK).opened().kind is Kind.STANDSTILL


def test_a_job_that_has_not_moved_yet() -> None:
    job = Job(4, POLICY).group("dp", range(4))
    assert Still(REST, REST, REST, REST, job=job).run(4 * AFTER_S) == []


def test_a_rank_that_has_worked_until_now() -> None:
    """Seen at rest for less than half of the time: it is claimed when it has rested for that."""
    still = Still(REST, REST, REST, BUSY)
    assert still.run(AFTER_S) == []
    still.rests(REST, [3])
    assert still.run(AFTER_S / 2 - 1) == []
    assert still.opened(3).kind is Kind.STANDSTILL


def test_a_stall_says_why() -> None:
    """Rank 2 rests in a read, the others wait for it in all_reduce #1: one finding."""
    still = blocked(Still(REST, REST, REST, REST), 2)
    still.job.join("dp", [0, 1, 3], 1)
    still.run(4 * AFTER_S)
    assert still.job.only().kind is Kind.STALL


def test_a_wait_that_is_usual() -> None:
    """The group has learned pauses of two minutes: its own threshold decides."""
    still = Still(REST, REST, REST, REST, job=Job(4, POLICY).group("dp", range(4)))
    still.job.all_reduce("dp", 0).run(1)
    still.job.attempt.tables.groups.threshold_ns[:] = round(100 * AFTER_S * 1e9)
    still.job.join("dp", [0, 1, 3], 1)
    assert still.run(4 * AFTER_S) == []


@pytest.mark.parametrize("what", ["disconnected", "late", "silent", "missing"])
def test_a_rank_that_is_not_known(what: str) -> None:
    """Nothing is guessed of it."""
    job = Job(5 if what == "missing" else 4, POLICY).group("dp", range(4)).all_reduce("dp", 0)
    still = Still(REST, REST, REST, REST, job=job)
    match what:
        case "disconnected":
            job.attempt.connection([1], False)
        case "late":
            job.reporting.discard(1)
        case "silent":
            job.status(1, RankState.SILENT)
        case _:
            del job.attempt.tables.ranks.infos[4]
            job.attempt.tables.ranks.declared[4] = False
            job.attempt.tables.ranks._sorted = None
    assert Kind.STANDSTILL not in {event.finding.kind for event in still.run(3 * AFTER_S)}


# -- how long ------------------------------------------------------------------------------------


def rested(seconds: float) -> Still:
    """The job rests for so long, and goes on."""
    still = Still(REST, REST, REST, REST)
    still.run(seconds)
    still.job.all_reduce("dp", 1)
    return still.rests(REST, range(4))


def test_ten_times_the_longest_rest() -> None:
    """The job has rested for 10 s before: 100 s are needed."""
    still = rested(10)
    assert still.run(97) == []
    still.opened(15)


def test_the_next_attempt_knows_the_rest() -> None:
    """After a rest of 10 s the job went on for ten minutes."""
    job = rested(10).job
    for seq in range(2, 250):
        job.all_reduce("dp", seq).run(2.5)
    again = Job(4, attempt=1, engine=job.engine, now=job.now, first_pid=900)
    again.group("dp", range(4)).all_reduce("dp", 0)
    still = Still(REST, REST, REST, REST, job=again)
    assert still.run(97) == []
    still.opened(15)


def test_a_rest_that_was_reported_is_not_reported_again() -> None:
    """A download of a minute, twice: one warning."""
    still = Still(REST, REST, REST, REST)
    still.opened(60)
    still.job.all_reduce("dp", 1)
    (closed,) = still.run(2)
    assert closed.change is Change.CLOSED
    still.rests(REST, range(4))
    assert still.run(10 * AFTER_S) == []


def test_a_job_that_moves_learns_no_rest() -> None:
    """A step a second, for minutes: the time stays what the policy says."""
    still = Still()
    for seq in range(1, 200):
        still.job.all_reduce("dp", seq)
        still.run(1)
    still.rests(REST, range(4))
    still.opened()


# -- how it ends ---------------------------------------------------------------------------------


def test_a_move_closes_it() -> None:
    still = Still(REST, REST, REST, REST)
    opened = still.opened()
    still.job.all_reduce("dp", 1)
    (closed,) = still.run(3)
    assert (closed.change, closed.finding.id) == (Change.CLOSED, opened.id)
    assert closed.finding.close_reason == "something of the job moves"


def test_a_rank_at_work_closes_it() -> None:
    """No collective, but its main thread runs again."""
    still = Still(REST, REST, REST, REST)
    still.opened()
    assert changes(still.rests(BUSY, [0]).run(3)) == [Change.CLOSED]


def test_it_stays_while_a_rank_is_not_known() -> None:
    still = Still(REST, REST, REST, REST)
    still.opened()
    still.job.attempt.connection([1], False)
    assert still.run(AFTER_S) == []


def test_a_stall_takes_its_place() -> None:
    """A rank comes to a collective at last, and then its peers do not."""
    still = Still(REST, REST, REST, REST)
    still.opened()
    still.job.join("dp", [0, 1, 3], 1)
    still.run(10)
    assert still.job.only().kind is Kind.STALL


def test_a_restart_of_the_service() -> None:
    """What agents report first looks like a move; the first real one closes it."""
    still = Still(REST, REST, REST, REST)
    opened = still.opened()
    still.job.restart_service()
    still.job.reconnect(range(4))
    assert still.run(2 * AFTER_S) == []
    assert still.job.only().id == opened.id
    still.job.all_reduce("dp", 1)
    assert changes(still.run(3)) == [Change.CLOSED]


# -- what ranks are asked ------------------------------------------------------------------------


def test_suspects_are_inspected_before_it_opens() -> None:
    """From nine tenths of the time on, so that it opens with what /proc shows of them."""
    still = Still(REST, REST, REST, REST)
    of = Asked(still.job)
    for _ in range(round((AFTER_S - 1) / STEP_S)):
        still.run(STEP_S)
        of.answer_all()
    later = [one for one in of.of(Occasion.SUSPECTED) if one[0] > 0.7 * AFTER_S]
    first, ranks = later[0]
    assert (ranks, 0.85 * AFTER_S <= first <= 0.97 * AFTER_S) == ([0, 1, 2, 3], True)
    assert still.job.open() == []
    still.job.all_reduce("dp", 1)
    still.rests(REST, range(4)).run(1)
    of.clear()
    still.run(3)
    assert of.of(Occasion.SUSPECTED) == []


def test_a_job_that_moves_is_asked_nothing_for_it() -> None:
    still = Still(REST, REST, REST, REST)
    of = Asked(still.job)
    for seq in range(1, 40):
        still.job.all_reduce("dp", seq)
        still.run(2)
        of.answer_all()
    assert of.of(Occasion.SUSPECTED) == []
