"""On which occasion which ranks are asked what, how often, and when no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise

import pytest

from frd.engine.evidence.answers import Answer, Answers
from frd.engine.evidence.questions import (
    LEAST_OFTEN_S,
    MAX_RANKS,
    MUTE_S,
    ROUND_S,
    RULES,
    Occasion,
    Question,
    QuestionKind,
    Questions,
)
from frd.engine.findings.builder import Claim, finding_of
from frd.engine.policy import Policy
from frd.model import (
    AlignedNs,
    Certainty,
    Change,
    ExitInfo,
    ExitKind,
    FindingEvent,
    FindingState,
    Kind,
    RankState,
    Reason,
    WaitKind,
    WaitsFor,
)
from frd.wire.waits import WaitReport
from tests.world.asked import Asked, answer_to, stack_text
from tests.world.job import Job, changes

LAGS = ("NCCL RAS: rank 1 has launched 31 AllReduce, the others 32",)
ALL = [0, 1, 2, 3]


def running(world: int = 4, policy: Policy | None = None) -> Asked:
    """A job that has done one step, and whose ranks answer."""
    job = Job(world, policy).group("dp", range(world)).all_reduce("dp", 0)
    job.run(1)
    return Asked(job)


def hanging(*absent: int, world: int = 4, seconds: float = 6) -> Asked:
    """These ranks do not come to the next step."""
    asked = running(world)
    asked.job.join("dp", [rank for rank in range(world) if rank not in absent], 1)
    asked.run(seconds)
    return asked


def ranks_of(asked: Asked, *occasions: Occasion) -> list[list[int]]:
    return [ranks for _, ranks in asked.of(*occasions)]


# -- while nothing moves -----------------------------------------------------------------------


def test_of_a_job_that_makes_progress_no_rank_is_asked() -> None:
    """An all_reduce every half second for half a minute."""
    asked = running()
    steps = count(1)
    asked.run(30, lambda: asked.job.all_reduce("dp", next(steps)))
    assert asked.questions == []


def test_a_job_in_which_nothing_moves() -> None:
    """No rank waits: all are asked after the threshold, a minute later, and then less often, and
    each time inspected for about two thresholds."""
    asked = running()
    asked.run(500)
    assert {one.occasion for one in asked.questions} == {Occasion.STILL, Occasion.SUSPECTED}
    assert ranks_of(asked, Occasion.STILL) == [ALL] * 4
    assert 40 <= len(asked.of(Occasion.SUSPECTED)) <= 60
    first, *later = [at for at, _ in asked.of(Occasion.STILL)]
    assert first == pytest.approx(5, abs=0.5)
    pauses = [after - before for before, after in pairwise([first, *later])]
    assert pauses == [ROUND_S, 2 * ROUND_S, 4 * ROUND_S]


def test_the_longest_pause_between_two_rounds() -> None:
    """A job computes for an hour; then it moves, and rests again: two minutes later it is asked
    again."""
    asked = running(2)
    asked.run(2830)
    times = [at for at, _ in asked.of(Occasion.STILL)]
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[-2:] == [LEAST_OFTEN_S, LEAST_OFTEN_S]
    asked.job.all_reduce("dp", 1)
    asked.clear()
    asked.run(LEAST_OFTEN_S + 2 * ROUND_S)
    times = [at for at, _ in asked.of(Occasion.STILL)]
    assert min(after - before for before, after in pairwise(times)) == 2 * ROUND_S


def test_ranks_that_wait_are_asked_again() -> None:
    """Ranks 1 and 3 are in recv: both once more after the threshold, and all a minute later."""
    asked = running(policy=Policy(stall_after_s=5.0))
    asked.texts = {1: stack_text(), 3: stack_text()}
    asked.run(11)
    assert ranks_of(asked, Occasion.STILL, Occasion.SIGHTED) == [ALL, [1, 3]]
    (first, _), (again, _) = asked.of(Occasion.STILL, Occasion.SIGHTED)
    assert again - first == pytest.approx(5, abs=0.5)
    unrecorded = asked.job.attempt.snapshot(asked.job.now).unrecorded
    seen = {rank: (waits[0].op, waits[0].as_of_ns - waits[0].since_ns >= 5e9)
            for rank, waits in unrecorded.items()}  # fmt: skip
    assert seen == {0: ("rest", True), 1: ("recv", True), 2: ("rest", True), 3: ("recv", True)}


def test_few_ranks_of_a_large_job() -> None:
    """Not more than the limit at a time, other ones the next time, all in turn."""
    asked = running(2 * MAX_RANKS)
    asked.run(70)
    rounds = ranks_of(asked, Occasion.STILL)
    assert [len(ranks) for ranks in rounds] == [MAX_RANKS, MAX_RANKS]
    assert sorted(rank for ranks in rounds for rank in ranks) == list(range(2 * MAX_RANKS))


def test_ranks_that_have_ended_are_not_asked() -> None:
    """Rank 3 has finished early, without any harm."""
    asked = running()
    asked.job.status(3, RankState.FINISHED)
    asked.run(10)
    assert ranks_of(asked, Occasion.STILL) == [[0, 1, 2]]


def test_while_a_finding_is_open_only_ranks_that_wait_are_asked() -> None:
    """All ranks of the finding were asked when it opened. Rank 3 is in recv, so it is asked once
    more soon, and then every minute. Where no rank is in a call, none is asked."""
    asked = hanging(2, 3)
    asked.texts = {3: stack_text()}
    asked.job.questions.clear()
    opened = next(one for one in asked.questions if one.occasion is Occasion.OPENED)
    answer = answer_to(opened, 3, asked.job.now, stack=asked.stack(3))
    asked.job.engine.answer(answer, asked.job.now)
    asked.clear()
    asked.run(130)
    stacks = (Occasion.SIGHTED, Occasion.WAITING, Occasion.STILL, Occasion.OPENED, Occasion.NAMED)
    assert ranks_of(asked, *stacks) == [[3]] * 3
    first, second = [at for at, _ in asked.of(Occasion.WAITING)]
    assert second - first == ROUND_S
    in_own_code = hanging(2)
    in_own_code.clear()
    in_own_code.run(70)
    assert ranks_of(in_own_code, *stacks) == []


def test_a_wait_that_has_ended_is_asked_about_no_more() -> None:
    """Rank 3 comes out of recv: the question of the next minute shows it, and is the last one."""
    asked = running()
    asked.texts = {3: stack_text()}
    asked.job.join("dp", [0, 1], 1)
    asked.run(10)
    asked.clear()
    asked.texts.clear()
    asked.run(200)
    assert ranks_of(asked, Occasion.WAITING) == [[3]]


def test_a_finding_about_calls_that_is_restored() -> None:
    """An earlier process of the service has seen ranks 1 and 3 in recv: this one asks them again,
    though no stack has shown it anything."""
    asked = running()
    asked.texts = {rank: stack_text() for rank in range(4)}
    asked.run(70)
    (finding,) = asked.job.open()
    assert finding.collective is not None
    assert not finding.collective.group_id
    asked.job.restart_service()
    asked.job.reconnect(range(4))
    asked.clear()
    asked.run(1)
    assert ranks_of(asked, Occasion.OPENED, Occasion.NAMED, Occasion.STILL) == []
    asked.run(64)
    assert ranks_of(asked, Occasion.WAITING)[0] == ALL


def test_a_rank_that_is_in_another_call_each_time() -> None:
    """It does not wait. It was asked a second time, and is not asked a third time before the next
    round."""
    asked = running()
    lines = count(1)
    asked.run(60, lambda: asked.texts.update({1: stack_text(line=next(lines))}))
    assert ranks_of(asked, Occasion.STILL, Occasion.SIGHTED) == [ALL, [1]]


def test_one_round_at_a_time() -> None:
    """A rank that may wait was asked once more when the next round is due, and has not answered:
    the round waits until there is no time left for that answer."""
    asked = running(policy=Policy(stall_after_s=57.0))
    asked.texts = {1: stack_text()}
    asked.run(60)
    asked.job.run(600)
    (first, _), (second, _) = asked.of(Occasion.STILL)[:2]
    ((again, _),) = asked.of(Occasion.SIGHTED)
    assert first + 50 < again < first + ROUND_S
    assert second == again + 400


def test_ranks_that_wait_are_asked_every_minute_after_a_long_rest() -> None:
    """Nothing moves for an hour, so that the last rounds are sixteen minutes apart. Then the job
    goes on, and hangs: rank 2, in recv, is asked every minute from then on."""
    asked = running()
    asked.run(2_830)
    steps = count(1)
    asked.run(100, lambda: asked.job.all_reduce("dp", next(steps)))
    asked.job.join("dp", [0, 1, 3], next(steps))
    asked.texts = {2: stack_text()}
    asked.clear()
    asked.run(200)
    times = [at for at, _ in asked.of(Occasion.WAITING)]
    assert [after - before for before, after in pairwise(times)] == [ROUND_S, ROUND_S]


def test_a_round_that_is_not_answered() -> None:
    """The service has lost it: in the end the next one comes as if it had been."""
    asked = running()
    asked.job.run(430)
    first, second = (at for at, _ in asked.of(Occasion.STILL))
    assert second - first == 400


# -- about findings ----------------------------------------------------------------------------


def test_a_finding_that_opens() -> None:
    """Its ranks are asked once, the suspect first and with the stacks of its children; agents that
    do not answer are not asked again."""
    asked = hanging(2, seconds=0)
    asked.job.run(100)
    (opened,) = [one for one in asked.job.questions if one.occasion is Occasion.OPENED]
    assert opened.ranks == (2, 0, 1, 3)
    assert opened.children_of == (2,)
    assert opened.finding == asked.job.only().id
    assert opened.rule.kind is QuestionKind.DUMP
    assert opened.until - opened.asked_at > 60 * 10e9 / 2


@pytest.mark.parametrize("absent", [[2], []])
def test_a_finding_that_an_answer_may_improve(absent: list[int]) -> None:
    """As long as a suspect does not give its stack; if there is no suspect, any rank. One that has
    given it before the finding opened, is waited for no more."""
    asked, slow = running(), (absent or [1])[0]
    all_of = asked.answers
    asked.silent = {*ALL}
    asked.answers = lambda of: [  # type: ignore[method-assign]
        one
        for one in all_of(of)
        if of.rule.kind is QuestionKind.INSPECTION or one.rank not in (slow, -1)
    ]
    asked.job.join("dp", [rank for rank in ALL if rank not in absent], 1)
    asked.run(12)
    finding = asked.job.only()
    assert [one.rank for one in finding.suspects] == absent
    assert asked.job.engine.advance(asked.job.now).asking == {finding.id}
    for question in asked.questions:
        for answer in all_of(question):
            asked.job.engine.answer(answer, asked.job.now)
    assert asked.job.engine.advance(asked.job.now).asking == frozenset()
    known = hanging(*absent, seconds=12)
    assert known.job.only().suspects or not absent
    assert known.job.engine.advance(known.job.now).asking == frozenset()


def test_the_children_of_a_suspect_may_improve_its_finding() -> None:
    """The suspect has given its own stack early; the stacks of its loader workers, which are asked
    when the finding opens, say what it waits for."""
    asked, held = running(), list[Question]()
    all_of = asked.answers

    def answers(of: Question) -> list[Answer]:
        if of.occasion is Occasion.OPENED:
            held.append(of)
            return []
        return all_of(of)

    asked.answers = answers  # type: ignore[method-assign]
    asked.texts = {2: stack_text("")}
    asked.job.join("dp", [0, 1, 3], 1)
    asked.run(12)
    finding = asked.job.only()
    assert finding.suspects[0].stack
    assert asked.job.engine.advance(asked.job.now).asking == {finding.id}
    for answer in all_of(held[0]):
        asked.job.engine.answer(answer, asked.job.now)
    assert asked.job.engine.advance(asked.job.now).asking == frozenset()


def test_a_finding_that_opens_before_another_detector_fails() -> None:
    """The memory of the job cannot be judged: the ranks of its hang are asked nevertheless."""
    asked = hanging(2, seconds=4)
    asked.job.attempt.memory = None  # type: ignore[assignment]
    asked.job.run(3)
    assert asked.job.engine.faults
    assert ranks_of(asked, Occasion.OPENED) == [[2, 0, 1, 3]]


def test_a_rank_is_lost_and_the_job_restarts_immediately() -> None:
    """The finding opens when the next attempt has begun. The agent may still have the last dump of
    the rank, so the ranks are asked."""
    job = Job(4).group("dp", range(4)).all_reduce("dp", 0)
    job.run(3)
    job.join("dp", [0, 1, 3], 1)
    for rank, signal in ((2, 9), (0, 15), (1, 15), (3, 15)):
        how, later = ExitInfo(ExitKind.SIGNAL, signal=signal), (signal == 15) * 100_000_000
        job.status(rank, RankState.EXITED, how=how, at=job.now + later)
    job.run(0.5)
    assert job.questions == []
    again = Job(4, engine=job.engine, attempt=1, now=job.now, first_pid=500)
    assert changes(again.run(0.5)) == [Change.OPENED, Change.CLOSED]
    (opened,) = again.questions
    assert (opened.occasion, opened.attempt.attempt) == (Occasion.OPENED, 0)
    assert opened.ranks[0] == 2


def test_a_suspect_that_is_named_later() -> None:
    """No rank is the cause at first. Then all but rank 0 complete the op, which is alone in it: its
    stack is asked for, once."""
    asked = hanging(seconds=8)
    job = asked.job
    assert job.only().suspects == ()
    asked.clear()
    job.complete("dp", range(1, 4), 1).join("dp", range(1, 4), 2)
    asked.run(60)
    assert [suspect.rank for suspect in job.only().suspects] == [0]
    (named,) = [one for one in asked.questions if one.occasion is Occasion.NAMED]
    assert (named.ranks, named.children_of, named.finding) == ((0,), (0,), job.only().id)
    assert asked.of(Occasion.OPENED) == []


@pytest.mark.parametrize("kind", [*Kind])
def test_kinds_that_no_stack_explains(kind: Kind) -> None:
    """A rank that is late in each step, or a clock, is not found in what ranks do now."""
    job = running().job
    finding = finding_of(job.key, Claim(kind, "x", frozenset({"x"})), job.now)
    finding = replace(finding, victims=(1, 2))
    events = [FindingEvent(Change.OPENED, finding)]
    due = Questions(job.key).due(
        *(job.now, job.attempt, Answers(), None, {finding.id: finding}, events), is_over=False
    )
    opened = [one.ranks for one in due if one.occasion is Occasion.OPENED]
    is_explained = kind not in (Kind.STRAGGLER, Kind.CLOCK_UNSYNCHRONIZED)
    assert opened == ([(1, 2)] if is_explained else [])


def test_a_finding_with_many_ranks() -> None:
    """Of a large job that hangs the suspects are asked, and as many others as the limit allows."""
    asked = hanging(100, world=2 * MAX_RANKS, seconds=10)
    (opened,) = ranks_of(asked, Occasion.OPENED)
    assert len(opened) == MAX_RANKS
    assert opened[0] == 100


def test_the_most_urgent_comes_first() -> None:
    """Three jobs: in one nothing moves, in one a suspect is inspected, and in the last one a
    finding opens. The questions about findings come first, whichever job is looked at first."""
    still = Job(4, name="still").group("dp", range(4)).all_reduce("dp", 0)
    jobs = [still]
    for name in ("inspected", "opening"):
        job = Job(4, engine=still.engine, name=name, first_pid=100 * len(name))
        jobs.append(job.group("dp", range(4)).all_reduce("dp", 0))
    urgency = list(Occasion)
    seen = set[tuple[Occasion, ...]]()
    for step in range(60):
        for job in jobs:
            job.now = still.now
        if step == 3:
            jobs[1].join("dp", [0, 1, 3], 1)
        if step == 7:
            jobs[2].join("dp", [0, 1, 3], 1)
        for job in jobs[1:]:
            job.report()
        still.questions.clear()
        still.run(0.5)
        asked = [one.occasion for one in still.questions]
        assert asked == sorted(asked, key=urgency.index)
        seen.add(tuple(dict.fromkeys(asked)))
    assert any(one[0] is Occasion.OPENED and len(one) > 1 for one in seen if one)


def test_numbers_are_those_of_the_attempt() -> None:
    """Two questions never have the same, also if nothing is answered."""
    asked = hanging(2)
    asked.job.run(30)
    numbers = [one.number for one in (*asked.questions, *asked.job.questions)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 4


# -- inspections -------------------------------------------------------------------------------


@pytest.mark.parametrize(("answers", "pause_s"), [(True, 0.9), (False, 40.2)])
def test_an_inspection_that_is_not_answered(*, answers: bool, pause_s: float) -> None:
    """Evaluations are 0.3 s apart. While the service owes an answer, no other inspection of the
    finding is asked for: it may wait for its turn."""
    asked = hanging(2)
    asked.clear()
    for _ in range(600):
        asked.job.now = AlignedNs(asked.job.now + 300_000_000)
        asked.job.report()
        asked.job.advance()
        if answers:
            asked.reports[2] = WaitReport(WaitsFor(WaitKind.ON_CPU, Certainty.SEEN))
            asked.answer_all()
    times = [at for at, _ in asked.of(Occasion.SUSPECTED)]
    pauses = [after - before for before, after in pairwise(times[1:])]
    assert pauses == [pytest.approx(pause_s)] * len(pauses)
    assert len(pauses) >= 3


def test_a_rank_that_does_not_answer_is_left_alone() -> None:
    """Its agent does not answer; the agent of the other suspect answers."""
    asked = hanging(1, 2)
    asked.silent = {2}
    asked.clear()
    asked.run(MUTE_S + 2)
    inspected = Counter(rank for ranks in ranks_of(asked, Occasion.SUSPECTED) for rank in ranks)
    assert inspected[1] >= MUTE_S
    assert inspected[2] == 2


# -- second opinions ---------------------------------------------------------------------------


def of_nccl(asked: Asked, backend: str = "nccl") -> Asked:
    infos = asked.job.attempt.tables.ranks.infos
    for rank, info in list(infos.items()):
        infos[rank] = replace(info, backends=(backend,) if backend else ())
    return asked


def undecided(backend: str = "nccl") -> Asked:
    """All ranks wait in the next step."""
    asked = of_nccl(running(), backend)
    asked.job.join("dp", range(4), 1)
    return asked


def test_a_finding_without_a_suspect() -> None:
    """RAS is asked once, however often the finding is updated, and the verdict stays."""
    asked = undecided()
    asked.run(8)
    before = asked.job.only()
    assert before.reason is Reason.NETWORK_OR_DEVICE
    (question,) = [one for one in asked.questions if one.occasion is Occasion.UNDECIDED]
    assert question.ranks == (0, 1, 2, 3)
    assert question.members == ((0, 100), (1, 101), (2, 102), (3, 103))
    asked.job.engine.answer(answer_to(question, -1, asked.job.now, opinion=LAGS), asked.job.now)
    events = asked.job.advance()
    assert changes(events) == [Change.UPDATED]
    assert asked.job.only() == replace(before, second_opinion=LAGS)
    asked.run(100)
    assert len(asked.of(Occasion.UNDECIDED)) == 1


def test_a_rank_that_is_alone_in_an_op() -> None:
    """The other ranks have completed it: they are asked before the suspect."""
    asked = of_nccl(running())
    job = asked.job
    job.join("dp", range(4), 1).complete("dp", range(1, 4), 1).join("dp", range(1, 4), 2)
    asked.run(30)
    suspects = asked.job.only().suspects
    assert [(s.rank, s.reason) for s in suspects] == [(0, Reason.IN_COLLECTIVE_ALONE)]
    assert ranks_of(asked, Occasion.UNDECIDED) == [[1, 2, 3, 0]]


def test_findings_that_need_no_second_opinion() -> None:
    """A rank has not joined."""
    asked = of_nccl(running())
    asked.job.join("dp", [0, 1, 3], 1)
    asked.run(30)
    assert asked.job.only().suspects
    assert asked.of(Occasion.UNDECIDED) == []


def test_a_diagnosis_that_changes() -> None:
    """No rank is the cause at first. Then all but rank 0 complete the op, and it is alone in it:
    asked once for each of the two reasons."""
    asked = undecided()
    asked.run(8)
    job = asked.job
    job.complete("dp", range(1, 4), 1).join("dp", range(1, 4), 2)
    asked.run(60)
    assert [s.reason for s in job.only().suspects] == [Reason.IN_COLLECTIVE_ALONE]
    assert len(asked.of(Occasion.UNDECIDED)) == 2


@pytest.mark.parametrize(
    ("backend", "asks"), [("gloo", False), ("cpu:gloo,cuda:nccl", True), ("", True)]
)
def test_ranks_without_nccl_are_not_asked(backend: str, *, asks: bool) -> None:
    """As far as their backends are known."""
    asked = undecided(backend)
    asked.run(8)
    assert bool(asked.of(Occasion.UNDECIDED)) == asks


@pytest.mark.parametrize("opinion", [LAGS, ()])
def test_an_undecided_finding_of_an_earlier_process(opinion: tuple[str, ...]) -> None:
    """If it has an opinion, no agent is asked again; one without is asked about, once."""
    asked = undecided()
    asked.opinion = opinion
    asked.run(8)
    asked.job.advance()
    assert asked.job.only().second_opinion == opinion
    asked.job.restart_service()
    asked.job.reconnect(range(4))
    of_nccl(asked)
    asked.clear()
    asked.run(90)
    assert len(asked.of(Occasion.UNDECIDED)) == (0 if opinion else 1)


# -- when no more is asked ---------------------------------------------------------------------


def end(job: Job) -> None:
    for rank in range(4):
        job.status(rank, RankState.EXITED)


def supersede(job: Job) -> None:
    Job(4, attempt=1, engine=job.engine, now=job.now, first_pid=500)


def lose(job: Job) -> None:
    job.reporting = set()
    job.attempt.agent_leaves(range(4))
    job.attempt.connection(list(range(4)), False)


def disconnect(job: Job) -> None:
    job.reporting = set()
    job.attempt.connection(list(range(4)), False)


@pytest.mark.parametrize(("ends", "after_s"), [(end, 20), (supersede, 1), (lose, 200)])
@pytest.mark.parametrize("is_hung", [False, True])
def test_of_a_job_that_is_over_nothing_is_asked(
    ends: Callable[[Job], None], after_s: float, *, is_hung: bool
) -> None:
    """It ended, a newer attempt began, or its agents have left for good, while ranks were seen
    waiting: no rank is asked any more."""
    asked = hanging(2) if is_hung else running()
    asked.texts = {rank: stack_text() for rank in range(4)}
    asked.run(20)
    assert asked.questions
    ends(asked.job)
    asked.run(after_s)
    asked.clear()
    asked.run(400)
    of_this = [one for one in asked.questions if one.attempt == asked.job.key]
    assert of_this == []


def test_agents_that_are_gone_for_a_moment() -> None:
    """The service does not know that they are: it asks on, and what it asks is refused."""
    asked = running()
    disconnect(asked.job)
    asked.run(70)
    assert len(asked.of(Occasion.STILL)) == 2


def test_of_a_restored_finding_no_stacks_are_asked_again() -> None:
    """The earlier process of the service has asked for them; suspects are inspected on, because
    what they wait for may change, and a suspect that is named now is asked for its stack."""
    asked = hanging(2)
    asked.job.restart_service()
    asked.job.reconnect(range(4))
    asked.clear()
    events = asked.run(70)
    assert changes(events) == [Change.UPDATED]  # it is critical now
    assert asked.job.only().state is FindingState.OPEN
    assert {one.occasion for one in asked.questions} == {Occasion.SUSPECTED}
    assert len(asked.questions) >= 60
    assert set(map(tuple, ranks_of(asked, Occasion.SUSPECTED))) == {(2,)}


def test_a_finding_that_was_closed_by_hand() -> None:
    """Its trouble lasts, but no person looks at it: its suspect is not inspected."""
    asked = hanging(2)
    asked.job.engine.dismiss(asked.job.only().id, asked.job.now, "known")
    asked.clear()
    asked.run(4)
    assert asked.of(Occasion.SUSPECTED) == []


def test_every_occasion_has_a_rule() -> None:
    """And there is time to answer each within the pause after which it may come again."""
    assert RULES.keys() == set(Occasion)
    assert max(rule.within_s for rule in RULES.values()) < ROUND_S
