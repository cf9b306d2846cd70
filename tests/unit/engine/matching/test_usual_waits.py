"""The learned pauses of a job: kept by its name, over attempts and restarts."""

from __future__ import annotations

import asyncio
from itertools import permutations
from pathlib import Path

import pytest

from frd.engine.engine import Engine
from frd.engine.matching import learned_pauses
from frd.engine.matching.learned_pauses import JobPauses, LearnedPauses
from frd.engine.matching.usual_waits import LongWait, WaitHistory, united
from frd.engine.policy import Policy
from frd.errors import StoreError
from frd.model import (
    AlignedNs,
    Change,
    ExitInfo,
    ExitKind,
    Flags,
    RankState,
    Severity,
    Signature,
)
from frd.service.findings.evaluator import Evaluator
from frd.service.findings.keepers import LocalKeeper
from frd.service.ingest.shared import Shared
from frd.service.journal.payloads import Settings, decode_pauses, encode_pauses, encode_payload
from frd.service.journal.replay import replay
from frd.service.journal.writer import JournalWriter
from frd.service.state import ServiceState
from frd.store.findings import FindingStore
from frd.store.journal import JournalLimits, read
from frd.store.records import Record, RecordKind
from tests.unit.service.journal.test_replay import incident, recorded
from tests.world import observe
from tests.world.job import START, Job

S = 1_000_000_000
POLICY = Policy(stall_after_s=10.0)
DAY = 24 * 3600 * S


def trained(job: Job, checkpoints: int = 3) -> Job:
    """Steps, and again and again a checkpoint of 25 s on rank 0 while all others wait."""
    seq = 0
    for _ in range(checkpoints):
        for _ in range(4):
            job.all_reduce("dp", seq).run(1)
            seq += 1
        job.join("dp", [1, 2, 3], seq).run(25)
        job.join("dp", [0], seq).complete("dp", range(4), seq).run(3)
        seq += 1
    job.all_reduce("dp", seq).run(1)
    return job


def started(engine: Engine, attempt: int, now: AlignedNs = START) -> Job:
    """A new attempt: other processes, the same groups."""
    job = Job(4, engine=engine, attempt=attempt, now=now, first_pid=100 * (attempt + 1))
    return job.group("dp", range(4))


def changes(job: Job) -> list[tuple[Change, Severity | None]]:
    return [(event.change, event.finding.severity) for event in job.events]


def threshold_s(job: Job) -> float:
    return int(job.attempt.snapshot(job.now).threshold_ns[job.handles["dp"]]) / 1e9


def later(engine: Engine) -> Engine:
    """The next process of the service, with what the store gave back."""
    after = Engine(engine.policy)
    after.learned.recall([JobPauses.decode(one.encode()) for one in engine.learned.all()])
    return after


ONE_WARNING = [(Change.OPENED, Severity.WARNING), (Change.CLOSED, Severity.WARNING)]


# -- runs of a job -----------------------------------------------------------------------------


def test_a_checkpoint_is_reported_once_in_the_life_of_a_job() -> None:
    """Checkpoints of 25 s over three starts and a restart: one warning, at the very first one."""
    first = trained(started(Engine(POLICY), 0))
    assert changes(first) == ONE_WARNING
    second = trained(started(first.engine, 1, first.now))
    assert changes(second) == []
    third = trained(started(later(second.engine), 0, AlignedNs(second.now + DAY)))
    assert changes(third) == []


def test_a_hang_is_still_found_in_a_job_that_pauses() -> None:
    """A wait of twice the only known pause, or five times a usual one, is a finding."""
    for checkpoints, within_s in ((1, 50), (3, 125)):
        job = trained(started(Engine(POLICY), 0), checkpoints)
        again = started(later(job.engine), 1, job.now).all_reduce("dp", 0)
        again.run(1)
        again.join("dp", [1, 2, 3], 1)
        again.run(within_s - 2)
        assert again.events == []
        again.run(5)
        assert [s.rank for s in again.only().suspects] == [0]


def test_no_wait_for_a_rank_that_has_ended_is_usual() -> None:
    """Rank 0, which writes checkpoints of 25 s, returns in the middle of the job; its last rows are
    not known."""
    job = trained(started(Engine(POLICY), 0))
    assert threshold_s(job) > 100
    job.join("dp", [1, 2, 3], 16).run(3)
    job.status(0, RankState.FINISHED, how=ExitInfo(ExitKind.CLEAN, status=0))
    before = len(job.events)
    job.run(6)
    assert len(job.events) == before
    job.run(6)
    assert [s.rank for s in job.only().suspects] == [0]


def test_a_time_that_is_unknown_teaches_nothing() -> None:
    """A rank enters collectives of a running job at times that its agent cannot know: no pause is
    learned from them, and nothing is reported."""
    job = started(Engine(POLICY), 0)
    for seq in range(5):
        job.join("dp", [1, 2, 3], seq)
        observe.entries(
            job.attempt, 0, job.handles["dp"], seq, Flags.JOINED,
            signature=Signature("gloo", "all_reduce", ((4,),), ((4,),)), created=0, now=job.now,
        )  # fmt: skip
        job.marks["dp", 0][:] = [seq, -1, seq - 1, job.now]
        job.run(1)
        job.complete("dp", range(4), seq).run(3)
    job.now = AlignedNs(job.now + 700 * S)
    job.all_reduce("dp", 5).run(3)
    assert threshold_s(job) == POLICY.stall_after_s
    assert (job.engine.learned.all(), job.events) == ([], [])


@pytest.mark.parametrize("comes", [False, True])
def test_a_hang_that_ends_with_the_job_teaches_nothing(comes: bool) -> None:
    """Rank 0 hangs until all ranks are killed, or an interrupt frees it, so that it comes to the
    collective before all ranks exit: the next attempt is watched as closely as before."""
    job = started(Engine(POLICY), 0)
    job.all_reduce("dp", 0).run(1)
    job.join("dp", [1, 2, 3], 1).run(40)
    if comes:
        job.join("dp", [0], 1).complete("dp", range(4), 1).run(1)
    for rank in range(4):
        job.status(rank, RankState.EXITED, "KeyboardInterrupt" if comes else "killed")
    job.run(10)
    assert [one for one in job.engine.learned.all() if one.waits] == []
    assert threshold_s(started(job.engine, 1, job.now)) == 10


def test_only_waits_after_which_the_job_went_on_are_kept() -> None:
    """A job that has pauses ends in a longer wait: only the pauses are kept."""
    job = trained(started(Engine(POLICY), 0))
    job.join("dp", [1, 2, 3], 20).run(60)
    job.join("dp", [0], 20).complete("dp", range(4), 20).run(700)
    (learned,) = job.engine.learned.take_news()
    assert {round((w.end - w.start) / S) for w in learned.waits["dp", 4]} == {25}


def test_a_service_that_restarts_in_a_run_does_not_count_a_wait_twice() -> None:
    """The agents report the wait again to the new process: it still counts once."""
    job = started(Engine(POLICY), 0)
    job.all_reduce("dp", 0).run(1)
    job.join("dp", [1, 2, 3], 1).run(25)
    arrived = job.now
    job.join("dp", [0], 1).complete("dp", range(4), 1).run(1)
    job.all_reduce("dp", 2).run(1)
    again = started(later(job.engine), 0, AlignedNs(arrived - 25 * S))
    assert threshold_s(again) == pytest.approx(50, abs=2)
    again.all_reduce("dp", 0).join("dp", [1, 2, 3], 1)
    again.now = arrived
    again.join("dp", [0], 1).complete("dp", range(4), 1).run(1)
    assert threshold_s(again) == pytest.approx(50, abs=2)


def test_what_was_learned_has_the_ceiling_of_the_policy() -> None:
    """An hour, twice, raises the threshold no further than `stall_after_max_s`."""
    waits = [LongWait.of(START, START + 3600 * S), LongWait.of(START + 7200 * S, START + 10800 * S)]
    engine = Engine(Policy(stall_after_max_s=600.0))
    engine.learned.recall([JobPauses("job", START, {("dp", 4): waits})])
    assert threshold_s(started(engine, 0, AlignedNs(START + DAY))) == 600


def test_only_new_pauses_are_stored() -> None:
    """A pause that is usual is not stored each time."""
    job = trained(started(Engine(POLICY), 0), 2)
    assert [one.job for one in job.engine.learned.take_news()] == ["job"]
    trained(started(job.engine, 1, job.now), 8)
    assert job.engine.learned.take_news() == []


def test_waits_of_a_program_that_runs_ahead_do_not_add_up() -> None:
    """For an hour rank 0 is 3 s late in every step, and its peers are in the next one by then. It
    happens twice: a wait is usual if it takes 3 s, not if it takes an hour."""
    tail = WaitHistory(START)
    for hour in range(2):
        at = START + hour * 7200 * S
        for _ in range(1200):
            tail.add([LongWait.of(at, at + 3 * S)])
            at += 2 * S
    assert tail.threshold_ns(POLICY, AlignedNs(START + 3 * 3600 * S)) == 15 * S


# -- limits ------------------------------------------------------------------------------------


def test_waits_unite_in_any_order() -> None:
    """Overlapping waits unite, in any order of learning; separate waits stay separate."""
    waits = [
        LongWait.of(0, 10),
        LongWait.of(5, 12),
        LongWait.of(12, 13),
        LongWait.of(100, 130),
        LongWait.of(20, 21),
    ]
    for order in permutations(waits):
        assert united(order, 8) == [LongWait(0, 13, 10), LongWait.of(20, 21), LongWait.of(100, 130)]
    assert united(waits, 2) == [LongWait(0, 13, 10), LongWait.of(100, 130)]


def test_what_is_kept_is_bounded_and_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many jobs, groups and waits the most useful stay; after two weeks none does."""
    monkeypatch.setattr(learned_pauses, "KEPT_JOBS", 3)
    known = LearnedPauses()
    for number in range(5):
        waits = {
            (f"g{group}", 4): [
                LongWait.of(at * 100 * S, (at * 100 + 3 + group) * S) for at in range(20)
            ]
            for group in range(40)
        }
        known.learn(f"job{number}", waits, AlignedNs(2000 * S + number))
    assert [one.job for one in known.all()] == ["job2", "job3", "job4"]
    assert known.evicted == 2
    kept = known.of("job4", AlignedNs(2000 * S))
    assert set(kept) == {(f"g{group}", 4) for group in range(24, 40)}
    assert {len(waits) for waits in kept.values()} == {learned_pauses.KEPT_WAITS}
    assert known.of("job4", AlignedNs(15 * DAY)) == {}
    assert known.of("other", AlignedNs(0)) == {}


@pytest.mark.parametrize("name", ["train", "ü\n\ud800", ""])
def test_any_name_is_kept(name: str, tmp_path: Path) -> None:
    """Names of jobs and groups come back as they were, from the store and from the journal."""
    one = JobPauses(name, START, {(name, 4): [LongWait.of(1, 2)]})
    assert decode_pauses(encode_pauses([one, one])) == [one, one]
    store = FindingStore(tmp_path / "db")
    store.save_pauses([one])
    store.save_pauses([one])
    assert store.pauses() == [one]
    store.close()


def test_foreign_pauses_are_an_error() -> None:
    """A payload that has no pauses is an error."""
    for garbage in (b"x", b"[]", b"{}", b'{"job": 1, "learned_at": "x", "groups": []}', b"\xff"):
        with pytest.raises(StoreError, match="journal: pauses of a job"):
            decode_pauses(garbage)
    for number in ("1e999", "NaN", "1" + 400 * "0"):
        wait = f'{{"job":"a","learned_at":0,"groups":[["dp",4,[[0,1,{number}]]]]}}'
        with pytest.raises(StoreError, match="journal: pauses of a job"):
            decode_pauses(wait.encode())


def test_the_store_keeps_the_newest_jobs(tmp_path: Path) -> None:
    """More jobs than are kept, and some from long ago: the newest stay."""
    store = FindingStore(tmp_path / "db")
    old = [JobPauses(f"old{n}", AlignedNs(START - 15 * DAY)) for n in range(3)]
    store.save_pauses(old)
    assert store.pauses() == old
    new = [
        JobPauses(f"new{n:03d}", AlignedNs(START + n)) for n in range(learned_pauses.KEPT_JOBS + 4)
    ]
    store.save_pauses(new)
    assert store.pauses() == new[4:]
    store.close()


# -- over restarts of the service, and in the journal --------------------------------------------


class Service:
    """One process of the service: a real evaluator over a real store and journal."""

    def __init__(self, folder: Path, now: AlignedNs) -> None:
        self.engine = Engine(POLICY)
        self.store = FindingStore(folder / "findings.sqlite3")
        self.now = now
        self.recorder = JournalWriter(
            folder / "journal",
            settings=encode_payload(Settings("1", POLICY)),
            now=now,
            limits=JournalLimits(),
        )
        self.evaluator = Evaluator(
            Shared(self.engine), LocalKeeper(self.store), self.recorder.whole(),
            now=lambda: self.now, project=ServiceState, publish=lambda events: None,
        )  # fmt: skip
        self.evaluator.take_up(self.store.open_findings(), self.store.pauses())

    def run(self, attempt: int) -> Job:
        job = trained(started(self.engine, attempt, self.now))
        self.now = job.now
        asyncio.run(self.evaluator.evaluate())
        return job

    def stop(self) -> None:
        self.recorder.close()
        self.store.close()


def test_the_service_keeps_what_it_learned_and_the_journal_has_it(tmp_path: Path) -> None:
    """The second process begins with the stored pauses, and its journal begins with them."""
    first = Service(tmp_path, START)
    first.run(0)
    learned = first.engine.learned.all()
    first.stop()
    second = Service(tmp_path, AlignedNs(first.now + DAY))
    assert second.engine.learned.all() == learned
    assert changes(second.run(1)) == []
    second.stop()
    records = list(read(tmp_path / "journal", pytest.fail))
    (again,) = [n for n, record in enumerate(records) if record.kind is RecordKind.START][1:]
    assert records[again + 1].kind is RecordKind.LEARNED
    assert decode_pauses(records[again + 1].payload) == learned
    before = [record for record in records[:again] if record.kind is RecordKind.LEARNED]
    assert decode_pauses(before[-1].payload) == learned
    assert replay(records, pytest.fail).findings == ()


def test_a_replay_begins_attempts_as_the_service_did(tmp_path: Path) -> None:
    """The journal of a service that knew of a pause of 25 s: a wait of 30 s is no finding."""
    records = list(incident(until_s=30))
    assert len(replay(records, pytest.fail).findings) == 1
    day_before = records[0].at - DAY
    known = JobPauses(
        "train", START, {("default_pg", 3): [LongWait.of(day_before, day_before + 25 * S)]}
    )
    learned = Record(RecordKind.LEARNED, records[0].at, 0, encode_pauses([known]))
    assert replay([learned, *records], pytest.fail).findings == ()
    folder = recorded(tmp_path, [learned, *records])
    assert replay(read(folder, pytest.fail), pytest.fail).findings == ()


def test_clocks_that_are_not_known_yet_teach_no_pause() -> None:
    """The clocks of two nodes are 30 s apart, which the service learns after some collectives."""
    job = Job(4, POLICY).group("dp", range(4))
    for node in range(2):
        job.attempt.clocks.set([2 * node, 2 * node + 1], node, None, job.now)
    for seq in range(6):
        job.join("dp", [2, 3], seq)
        true_now, job.now = job.now, AlignedNs(job.now - 30 * S)
        job.join("dp", [0, 1], seq)
        job.now = true_now
        job.complete("dp", range(4), seq).run(0.5)
    for node in range(2):
        job.attempt.clocks.set([2 * node, 2 * node + 1], node, 100_000, job.now)
    for seq in range(6, 12):
        job.all_reduce("dp", seq).run(1)
    assert threshold_s(job) == POLICY.stall_after_s
    assert job.engine.learned.all() == []
