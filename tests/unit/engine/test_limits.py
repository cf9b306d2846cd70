"""An engine at its limits: no room for findings or attempts, and a policy that changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from frd.engine.engine import Engine
from frd.engine.memory.attempt_memory import Memory
from frd.engine.policy import Policy
from frd.model import (
    AlignedNs,
    AttemptKey,
    Change,
    Finding,
    FindingState,
    GroupInfo,
    Int64s,
    Kind,
    RankInfo,
    RankState,
    SeriesInfo,
    SeriesKind,
)
from tests.world.job import START, Job, changes
from tests.world.memory import GIB, at, observe
from tests.world.race import Race, S, arrivals

OTHERS = Finding("00112233445566aa", Kind.STALL, FindingState.OPEN, "other", 0, START)


# -- room for findings ---------------------------------------------------------------------------


def test_of_two_incidents_one_is_reported_where_there_is_room_for_one() -> None:
    """Two groups wait; one finding may be open: the second opens when the first is over."""
    job = (
        Job(4, Policy(stall_after_s=5, max_findings_per_job=1))
        .group("a", [0, 1])
        .group("b", [2, 3])
    )
    job.join("a", [0], 0).join("b", [3], 0)
    job.run(8)
    assert [suspect.rank for suspect in job.only().suspects] == [1]
    job.join("a", [1], 0).complete("a", [0, 1], 0)
    job.run(4)
    assert [suspect.rank for suspect in job.only().suspects] == [2]


def pairs_of(count: int, name: str, engine: Engine, now: AlignedNs = START) -> Job:
    """A job with so many groups of two ranks; the first rank of each waits for the second."""
    job = Job(2 * count, engine=engine, now=now, name=name)
    for number in range(count):
        job.group(f"g{number}", [2 * number, 2 * number + 1])
        job.join(f"g{number}", [2 * number], 0)
    return job


def together(seconds: int, *jobs: Job) -> None:
    """Jobs of one engine report each second."""
    for _ in range(seconds):
        now = AlignedNs(jobs[0].now + S)
        for job in jobs:
            job.now = now
            job.report()
        jobs[0].engine.advance(now)


def test_a_job_with_many_findings_leaves_room_for_others() -> None:
    """Job a has more incidents than one job may have open; the hang of job b is found as if it
    were alone, and what a lacks is counted once."""
    engine = Engine(Policy(stall_after_s=5, max_findings=1, max_findings_per_job=2))
    a, b = pairs_of(5, "a", engine), Job(2, engine=engine, name="b").group("dp", [0, 1])
    b.join("dp", [0], 0)
    together(8, a, b)
    view = engine.status_view(b.now)
    assert sorted(finding.job for finding in view.findings) == ["a", "a", "b"]
    assert view.evicted["findings_not_opened"] == 3
    assert {one.key.job: one.not_opened for one in view.attempts} == {"a": 3, "b": 0}
    a.join("g0", [1], 0).complete("g0", [0, 1], 0)
    together(4, a, b)
    view = engine.status_view(b.now)
    assert {one.key.job: one.not_opened for one in view.attempts} == {"a": 2, "b": 0}


def test_jobs_share_what_is_remembered() -> None:
    """Job b had one finding long ago, job a has one after the other: a's are forgotten."""
    engine = Engine(Policy(stall_after_s=1, max_findings=3))
    b = Job(2, engine=engine, name="b").group("dp", [0, 1]).join("dp", [0], 0)
    b.run(4)
    b.join("dp", [1], 0).complete("dp", [0, 1], 0).run(4)
    a = Job(2, engine=engine, now=b.now, name="a")
    for group in ("g1", "g2", "g3", "g4"):
        a.group(group, [0, 1]).join(group, [0], 0).run(4)
        a.join(group, [1], 0).complete(group, [0, 1], 0).run(4)
    assert [finding.job for finding in a.findings()] == ["b", "a", "a"]


@pytest.mark.parametrize("large", [1, 5])
def test_a_large_job_costs_others_one_evaluation(
    monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    """The attempts of job a take longer than a call of `advance` may: each call looks at one of
    them at most, and at those first that have waited longest."""
    monkeypatch.setattr("frd.engine.engine._PAIRS_PER_ADVANCE", 300)
    engine = Engine(Policy(stall_after_s=5))
    others = [pairs_of(50, f"a{number}", engine) for number in range(large)]
    b = Job(2, engine=engine, name="b").group("dp", [0, 1]).join("dp", [0], 0)
    waits = []
    for _ in range(8 * (large + 1)):
        b.now = AlignedNs(b.now + S)
        for job in (*others, b):
            job.now = b.now
            job.report()
        engine.advance(b.now)
        looked = {key.job: one.looked_at for key, one in engine._evaluations.items()}
        assert sum(at == b.now for job, at in looked.items() if job != "b") <= 1
        waits.append((b.now - looked["b"]) / S)
    assert max(waits[large:]) == large
    assert "b" in {finding.job for finding in b.findings()}


def test_new_attempts_do_not_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Job a begins an attempt before each call, which is as large as a call may be: job b, which
    has waited for longer, is looked at in every other call."""
    monkeypatch.setattr("frd.engine.engine._PAIRS_PER_ADVANCE", 300)
    engine = Engine(Policy(stall_after_s=5))
    b = Job(2, engine=engine, name="b").group("dp", [0, 1]).join("dp", [0], 0)
    for number in range(20):
        b.now = AlignedNs(b.now + S)
        Job(100, engine=engine, now=b.now, name="a", attempt=number).group("g", range(100))
        b.report()
        engine.advance(b.now)
        assert b.now - engine._evaluations[b.key].looked_at <= 2 * S
    assert [finding.job for finding in b.findings()] == ["b"]


def test_an_attempt_with_groups_and_no_rank() -> None:
    """An agent declares them and no rank; then the job begins another attempt."""
    engine = Engine(Policy())
    attempt = engine.attempt(AttemptKey("a", 0), 4, START)
    attempt.group(GroupInfo("0", "default_pg", tuple(range(4))))
    assert engine.advance(AlignedNs(START + S)).events == []
    engine.attempt(AttemptKey("a", 1), 4, AlignedNs(START + S))
    assert engine.faults == []
    engine.status_view(AlignedNs(START + S))
    assert engine.faults == []


def late(rank: int, steps: int, by_s: float = 0.02) -> list[Int64s]:
    """A step each 50 ms, of which one rank makes more."""
    work = np.full((steps, 4), 0.05)
    work[:, rank] += by_s
    return list(arrivals(4, [[range(4)]], steps, lambda step, layer: work[step]))


# -- attempts ------------------------------------------------------------------------------------


def test_an_attempt_that_is_forgotten_leaves_its_finding() -> None:
    """A rank was lost and its job never came back; another job needs the place of the attempt."""
    policy = Policy(stall_after_s=5, max_attempts=1, lost_close_after_s=60)
    gone = Job(2, policy).group("dp", [0, 1]).all_reduce("dp", 0)
    gone.run(1)
    gone.status(1, RankState.EXITED, "killed")
    gone.run(3)
    gone.status(0, RankState.EXITED)
    gone.run(10)
    lost = gone.only()
    other = Job(2, engine=gone.engine, now=gone.now, name="other")
    other.run(1)
    status_view = gone.engine.status_view(other.now)
    assert [view.key.job for view in status_view.attempts] == ["other"]
    assert [finding.id for finding in status_view.findings] == [lost.id]
    assert changes(other.run(60)) == [Change.CLOSED]


def test_a_job_that_restarts_without_end_takes_no_place_of_others() -> None:
    """There is room for 12 attempts; job a makes 40, one after the other. The attempt of job b,
    which has ended, is still known, and so is the last one of a."""
    engine = Engine(Policy(max_attempts=12))
    b = Job(1, engine=engine, name="b").status(0, RankState.EXITED)
    b.run(1)
    for attempt in range(40):
        Job(1, engine=engine, now=b.now, name="a", attempt=attempt).run(1)
    views = engine.status_view(b.now).attempts
    assert [view.key.attempt for view in views if view.key.job == "a"] == [*range(32, 40)]
    assert [view.key.job for view in views if view.key.job != "a"] == ["b"]


def test_attempts_of_the_job_with_most_are_forgotten_first() -> None:
    """All places are taken: a new job gets that of an earlier attempt of job a, not that of b."""
    engine = Engine(Policy(max_attempts=4))
    b = Job(1, engine=engine, name="b").status(0, RankState.EXITED)
    b.run(1)
    for attempt in range(3):
        Job(1, engine=engine, now=b.now, name="a", attempt=attempt).run(1)
    Job(1, engine=engine, now=b.now, name="c")
    keys = [view.key for view in engine.status_view(b.now).attempts]
    assert [f"{key.job}{key.attempt}" for key in keys] == ["b0", "a1", "a2", "c0"]


def test_a_late_process_of_an_old_attempt_does_not_revive_it() -> None:
    """Attempt 1 runs when an unknown rank of attempt 0 appears: 1 is still the job."""
    old = Job(2).group("dp", [0, 1])
    old.run(1)
    for rank in (0, 1):
        old.status(rank, RankState.EXITED)
    old.run(1)
    new = Job(2, attempt=1, engine=old.engine, now=old.now)
    late_one = RankInfo(1, 2, "node9", "boot9", 999)
    old.engine.rank(old.attempt, late_one, new.now)
    views = {view.key.attempt: view for view in old.engine.status_view(new.now).attempts}
    assert [(n, view.superseded) for n, view in sorted(views.items())] == [(0, True), (1, False)]
    assert [rank.info.rank for rank in views[0].ranks] == [0, 1]


def test_what_was_dismissed_is_taken_up_and_not_shown() -> None:
    """An earlier process left an open finding and a dismissed one, which is closed."""
    engine = Engine(Policy())
    closed = replace(OTHERS, id="ff", state=FindingState.CLOSED, closed_at=START)
    engine.restore([closed, OTHERS], START)
    assert [finding.id for finding in engine.status_view(START).findings] == [OTHERS.id]
    assert engine.dismissed == {"ff"}


def test_clock_hints_are_taken_once() -> None:
    """Of the attempts that exist, next to a finding of one that has not come back yet."""
    race = Race(4, [[range(4)]], per_node=2, uncertainty_ns=50_000, lasts_ns=300_000)
    race.engine.restore([OTHERS], race.now)
    race.clock_error[:] = 0
    race.attempt.clocks.set([2, 3], 1, 10_000_000, race.now)
    race.run(late(2, steps=40, by_s=0.001))
    hints = list(race.engine.take_clock_hints())
    assert {attempt.key for attempt, _ in hints} == {AttemptKey("race", 0)}
    assert list(race.engine.take_clock_hints()) == []


def test_ranks_of_one_node_show_nothing_of_its_clock() -> None:
    """Whoever of them is early or late: it is the same clock."""
    race = Race(4, [[range(4)]], per_node=4, uncertainty_ns=10_000_000, lasts_ns=300_000)
    race.run(late(2, steps=40, by_s=0.001))
    assert list(race.engine.take_clock_hints()) == []


# -- a policy that changes -----------------------------------------------------------------------


def opened_after_s(race: Race) -> float:
    (finding,) = [event.finding for event in race.events if event.change is Change.OPENED]
    return (finding.opened_at - START) / S


def test_what_was_seen_of_lateness_outlives_another_threshold() -> None:
    """`stall_after_s` is changed in the middle of a window: the straggler is reported no later."""
    policy = Policy(straggler_window_s=20)
    whole, halves = (Race(4, [[range(4)]], policy=policy) for _ in range(2))
    whole.run(late(2, steps=600))
    halves.run(late(2, steps=150))
    halves.engine.adopt(replace(policy, stall_after_s=7))
    halves.run(late(2, steps=450))
    assert opened_after_s(halves) <= opened_after_s(whole) + 2


def test_a_policy_holds_for_attempts_that_come_back() -> None:
    """A finding waits for its attempt after a restart; the policy changes, then its ranks come."""
    engine = Engine(Policy(stall_after_s=50))
    engine.restore([replace(OTHERS, job="job")], START)
    engine.adopt(Policy(stall_after_s=5))
    job = Job(2, engine=engine).group("dp", [0, 1])
    job.join("dp", [0], 0)
    assert Change.OPENED in changes(job.run(7))


def leak_reported_after_s(policy: Policy, other: Policy, at_s: int) -> int:
    """When a leak of one rank is reported; the policy changes at a given second."""
    memory = Memory(policy)
    handle = memory.series(SeriesInfo(0, SeriesKind.DEVICE_USED, "GPU-0"))
    for second in range(300):
        times = second + np.arange(10) / 10
        values = ((40 + 0.02 * times) * GIB).astype(np.int64)
        observe(memory, [handle], times, values, 80 * GIB, now_s=second + 1)
        if memory.advance(at(second + 1)):
            return second
        if second == at_s:
            memory.adopt(other)
    return 300


@pytest.mark.usefixtures("short_leaks")
def test_what_was_seen_of_a_leak_outlives_another_threshold() -> None:
    """If a threshold that has no part in leaks changes, the report is not delayed."""
    policy = Policy(memory_warmup_s=10)
    usual = leak_reported_after_s(policy, policy, -1)
    assert usual < 200
    assert leak_reported_after_s(policy, replace(policy, stall_after_s=77), 90) == usual


# -- a policy that is replaced ---------------------------------------------------------------------


KEY = AttemptKey("job", 0)
T0 = AlignedNs(1_700_000_000_000_000_000)


def other(policy: Policy) -> Policy:
    """A policy of which no value is like before."""
    values = {field.name: getattr(policy, field.name) for field in fields(policy)}
    return replace(policy, **{name: value * 4 for name, value in values.items()})


def engine(policy: Policy) -> Engine:
    """One that knows a job, its ranks, a group and a memory series."""
    made = Engine(policy)
    attempt = made.attempt(KEY, 4, T0)
    for rank in range(4):
        made.rank(attempt, RankInfo(rank, 4, f"n{rank}", f"b{rank}", 10 + rank), T0)
    attempt.group(GroupInfo("0", "default_pg", (0, 1, 2, 3)))
    attempt.memory.series(SeriesInfo(0, SeriesKind.DEVICE_USED, "GPU-0"))
    made.advance(T0)
    return made


def parts(thing: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """All that can be reached from `thing` within frd, numbers and policies."""
    if id(thing) in seen or isinstance(thing, str | bytes | type | count):
        return
    seen.add(id(thing))
    if isinstance(thing, bool | int | float | Policy):
        yield path, thing
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from parts(value, f"{path}[{key}]", seen)
    elif isinstance(thing, list | tuple | set | frozenset):
        for at, value in enumerate(thing):
            yield from parts(value, f"{path}[{at}]", seen)
    elif isinstance(thing, np.ndarray):
        yield path, thing.tolist()
    else:
        names = set(getattr(thing, "__dict__", ()))
        for kind in type(thing).__mro__:
            names |= set(getattr(kind, "__slots__", ()))
        if is_dataclass(thing):
            names |= {field.name for field in fields(thing)}
        for name in sorted(names):
            if hasattr(thing, name):
                yield from parts(getattr(thing, name), f"{path}.{name}", seen)


def known(of: Engine) -> dict[str, Any]:
    return dict(parts(of, "engine", set()))


def test_nothing_is_left_of_the_old_policy() -> None:
    """An engine that adopted a policy is, part for part, one that has had it all along."""
    before = Policy()
    after = other(before)
    adopted = engine(before)
    assert known(adopted) != known(engine(after))
    adopted.adopt(after)
    assert known(adopted) == known(engine(after))
    assert sum(isinstance(value, Policy) for value in known(adopted).values()) == 1
