"""What answers prove, whenever they come: waits that stacks show, and evidence for findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from frd.engine.engine import Engine
from frd.engine.evidence.answers import Answer, Answers, Stack
from frd.engine.evidence.questions import Occasion, Question, QuestionKind
from frd.model import (
    AlignedNs,
    AttemptKey,
    Certainty,
    FindingState,
    NodeRawNs,
    RankState,
    UnrecordedWait,
    WaitKind,
    WaitsFor,
    WaitSource,
)
from frd.wire.waits import WaitReport
from tests.world.asked import Asked, answer_to, stack_text
from tests.world.job import Job, changes, hanging
from tests.world.observe import rank_info

S = 1_000_000_000
KEY = AttemptKey("job", 0)
NO_STACK = "# py-spy: not installed\n"
IN_RECV = Stack.of(stack_text())


class Seen:
    """What the stacks of rank 3 show, which is asked every ten seconds."""

    def __init__(self) -> None:
        self.reported: list[UnrecordedWait] = []
        self.answers = Answers()
        self.at = 0

    def take(
        self, text: str, confirm_after_ns: int | None = None, answered_after_s: int = 1
    ) -> None:
        self.at += 10 * S
        asked_at, answered_at = AlignedNs(self.at), AlignedNs(self.at + answered_after_s * S)
        after_ns = None if confirm_after_ns is None else lambda op: confirm_after_ns
        answer = Answer(1, KEY, Occasion.STILL, "", 3, asked_at, answered_at)
        stack = Stack.of(text)
        if stack.place is not None:
            self.reported.append(self.answers.of_stack(answer, stack, stack.place, after_ns))

    @property
    def intervals(self) -> list[tuple[str, int, int]]:
        return [(wait.op, wait.since_ns // S, wait.as_of_ns // S) for wait in self.reported]


def test_two_stacks_of_one_wait() -> None:
    """It has lasted from the first answer to the second request, and on to the third."""
    seen = Seen()
    for _ in range(3):
        seen.take(stack_text())
    assert seen.intervals == [("recv", 11, 11), ("recv", 11, 20), ("recv", 11, 30)]
    assert {wait.source for wait in seen.reported} == {WaitSource.STACK}
    assert seen.reported[0].detail == "train.py:88 in exchange"
    assert list(seen.answers.waiting) == [3]


@pytest.mark.parametrize(
    "other",
    [
        stack_text(line=90),
        stack_text("monitored_barrier"),
        stack_text(ran_ns=7_001),
        stack_text(ran_ns=None),
    ],
)
def test_two_stacks_that_do_not_show_one_wait(other: str) -> None:
    """Another line, another call, or a main thread that ran in between: nothing has lasted."""
    seen = Seen()
    seen.take(stack_text())
    seen.take(other)
    assert len(seen.reported) == 2
    assert all(wait.since_ns == wait.as_of_ns for wait in seen.reported)


def test_a_replay_that_begins_later_knows_what_earlier_stacks_showed() -> None:
    """What is journaled of an answer holds since when the call is seen, and the line of an
    inspected rank; so an engine that has not had the earlier answers learns the same."""
    job = hang()
    question = asked(job, QuestionKind.DUMP)
    first = answer_to(question, 2, job.now, stack=Stack.of(stack_text()))
    job.engine.answer(first, job.now)
    job.run(3)
    second = replace(first, asked_at=job.now, answered_at=job.now)
    kept = job.engine.answer(second, job.now)
    report = WaitReport(
        WaitsFor(WaitKind.LOCK_INNER, Certainty.SEEN, says="it waits"),
        *(NodeRawNs(job.now - S), NodeRawNs(job.now)),
        may_be_for_peer=True,
    )
    inspection = replace(second, stack=None, blocked=report)
    also = job.engine.answer(inspection, job.now)
    assert kept is not None
    assert also is not None
    whole = {(w.source, w.op, w.since_ns, w.as_of_ns, w.detail) for w in waits(job, 2)}
    job.restart_service()
    job.reconnect(range(4))
    for one in (kept, also):
        job.engine.answer(replace(one, asked_at=job.now, answered_at=job.now), job.now)
    later = {(w.source, w.op, w.since_ns, w.detail) for w in waits(job, 2)}
    assert later == {(source, op, since, detail) for source, op, since, _, detail in whole}


def test_a_wait_for_the_store_looks_at_its_time_out() -> None:
    """new_group wakes every ten seconds; more than that is another call."""
    seen = Seen()
    for ran_ns in (7_000, 300_000, 9_000_000):
        seen.take(stack_text("new_group", ran_ns=ran_ns))
    assert seen.intervals == [("new_group", 11, 11), ("new_group", 11, 20), ("new_group", 31, 31)]


SITE = "/opt/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("frame", "used_ns", "op", "lasts"),
    [
        (f"{SITE}/torch/cuda/__init__.py synchronize", 9 * S, "device", True),
        (f"{SITE}/filelock/_api.py acquire", S // 3, "poll", True),
        (f"{SITE}/filelock/_api.py acquire", S // 2, "poll", False),
    ],
)
def test_waits_that_use_the_processor(frame: str, used_ns: int, op: str, lasts: bool) -> None:
    """One for a device may use all of a core, one that polls a twentieth of the nine seconds that
    are between the two stacks."""
    file, _, name = frame.partition(" ")
    seen = Seen()
    for ran_ns in (S, S + used_ns):
        first, *frames = stack_text("", ran_ns=ran_ns).splitlines(keepends=True)
        call = f'  File "{file}", line 9 in {name}\n'
        seen.take("".join((first, frames[0], call, *frames[1:])))
    assert seen.intervals[-1] == (op, 11 if lasts else 21, 20 if lasts else 21)


def test_a_rank_at_rest_in_a_line_of_its_own() -> None:
    """The first stack shows it there, the second that it has not run since; then it has. Its rest
    is no call that another stack should prove."""
    seen = Seen()
    for ran_ns in (5, 5, 6):
        seen.take(stack_text("", ran_ns=ran_ns), 2 * S)
    assert seen.intervals == [("", 10, 10), ("rest", 11, 20), ("", 30, 30)]
    assert seen.reported[1].detail == "train.py:88 in exchange"
    assert list(seen.answers.waiting) == []
    assert seen.answers.to_confirm(AlignedNs(60 * S)) == []


def test_the_end_of_a_wait() -> None:
    """The next stack shows code of the user."""
    seen = Seen()
    for text in (stack_text(), stack_text("")):
        seen.take(text)
    assert seen.intervals == [("recv", 11, 11), ("", 20, 20)]
    assert list(seen.answers.waiting) == []


def test_a_new_wait_is_to_be_confirmed_once() -> None:
    """Two seconds after its first stack, and never again."""
    seen = Seen()
    seen.take(stack_text(), 2 * S)
    assert seen.answers.to_confirm(AlignedNs(12 * S)) == []
    assert seen.answers.to_confirm(AlignedNs(13 * S)) == [3]
    assert seen.answers.to_confirm(AlignedNs(13 * S)) == []
    seen.take(stack_text(line=90))
    assert seen.answers.to_confirm(AlignedNs(60 * S)) == []


def test_two_requests_at_the_same_time() -> None:
    """A round of all ranks, and the request for a finding that opened just then: both answers show
    the same wait, but neither proves that it lasted, so that a third one is needed."""
    seen = Seen()
    for confirm_s, asked_s in ((5, 10), (2, 11), (None, 11)):
        seen.at = (asked_s - 10) * S
        seen.take(stack_text(), confirm_s and confirm_s * S, answered_after_s=2)
    assert seen.answers.to_confirm(AlignedNs(13 * S)) == []
    assert seen.answers.to_confirm(AlignedNs(14 * S)) == [3]


# -- answers that come late, twice, or for another process -------------------------------------


def asked(job: Job, kind: QuestionKind) -> Question:
    """The last question of that kind."""
    return [one for one in job.questions if one.rule.kind is kind][-1]


def hang() -> Job:
    """Rank 2 does not come, a finding is open, and no question is answered yet."""
    return hanging(6)


def waits(job: Job, rank: int = 2) -> Sequence[UnrecordedWait]:
    return job.attempt.snapshot(job.now).unrecorded.get(rank, ())


def lasted_s(job: Job, rank: int = 2) -> float:
    (wait,) = waits(job, rank)
    return (wait.as_of_ns - wait.since_ns) / S


def test_answers_come_in_any_order() -> None:
    """Two questions, answered the wrong way round, show one wait: nothing else than in order."""
    job = hang()
    first = asked(job, QuestionKind.DUMP)
    job.run(2)
    second = replace(first, number=99, asked_at=job.now)
    answers = [answer_to(second, 2, job.now, stack=IN_RECV)]
    job.run(1)
    answers.append(answer_to(first, 2, job.now, stack=IN_RECV))
    for answer in answers:
        assert job.engine.answer(answer, job.now)
    assert lasted_s(job) == 0
    third = replace(first, number=100, asked_at=job.now)
    assert job.engine.answer(answer_to(third, 2, job.now, stack=IN_RECV), job.now)
    assert lasted_s(job) == 1


def test_a_late_answer_is_evidence() -> None:
    """It comes half a minute after the time for it: the finding gets the stack, and what the stack
    shows may have begun as late as the answer came."""
    job = hang()
    question = asked(job, QuestionKind.DUMP)
    job.run(40)
    assert job.now > question.asked_at + question.rule.within_s * S
    assert job.engine.answer(answer_to(question, 2, job.now, stack=IN_RECV), job.now)
    assert lasted_s(job) == 0
    (event,) = job.advance()
    (suspect,) = event.finding.suspects
    assert suspect.stack == ("train.py:88 in exchange",)


def test_a_stack_that_is_answered_twice_proves_nothing() -> None:
    """The same answer comes again, a minute later too."""
    job = hang()
    answer = answer_to(asked(job, QuestionKind.DUMP), 2, job.now, stack=IN_RECV)
    assert job.engine.answer(answer, job.now)
    job.advance()
    before = job.only()
    for seconds in (0, 60):
        job.run(seconds)
        job.engine.answer(answer, job.now)
        later = replace(answer, answered_at=job.now)
        job.engine.answer(later, job.now)
        assert lasted_s(job) == 0
    job.advance()
    assert job.only().suspects == before.suspects


def test_another_process_has_the_rank_meanwhile() -> None:
    """The answer of the first one says nothing about the second, whose own answers count."""
    job = hang()
    question = asked(job, QuestionKind.DUMP)
    job.run(1)
    job.engine.rank(job.attempt, rank_info(2, 4, per_node=2, pid=999), job.now)
    before = job.only()
    for values in ({"stack": IN_RECV}, {"blocked": inspected(job)}):
        assert not job.engine.answer(answer_to(question, 2, job.now, **values), job.now)
    assert waits(job) == ()
    job.advance()
    assert job.only().suspects == before.suspects
    again = replace(question, asked_at=job.now)
    assert job.engine.answer(answer_to(again, 2, job.now, stack=IN_RECV), job.now)
    assert len(waits(job)) == 1


def test_what_was_seen_of_the_last_process_proves_no_wait_of_the_next() -> None:
    """Both are in the same line, and their main threads have used the same time."""
    job = hang()
    question = asked(job, QuestionKind.DUMP)
    job.engine.answer(answer_to(question, 2, job.now, stack=IN_RECV), job.now)
    job.run(1)
    job.engine.rank(job.attempt, rank_info(2, 4, per_node=2, pid=999), job.now)
    job.run(1)
    again = replace(question, asked_at=job.now)
    job.engine.answer(answer_to(again, 2, job.now, stack=IN_RECV), job.now)
    assert lasted_s(job) == 0


def test_the_same_process_is_declared_again() -> None:
    """Its agent connects again: answers on the way count."""
    job = hang()
    question = asked(job, QuestionKind.DUMP)
    job.run(1)
    job.reconnect(range(4))
    assert job.engine.answer(answer_to(question, 2, job.now, stack=IN_RECV), job.now)


def test_an_answer_of_another_attempt() -> None:
    """Of one that is not known, and of one that was superseded: nothing happens to this one."""
    job = hang()
    question = asked(job, QuestionKind.DUMP)
    unknown = replace(question, attempt=AttemptKey("job", 7))
    assert not job.engine.answer(answer_to(unknown, 2, job.now, stack=IN_RECV), job.now)
    later = Job(4, attempt=1, engine=job.engine, now=job.now, first_pid=500)
    later.run(1)
    job.engine.answer(answer_to(question, 2, later.now, stack=IN_RECV), later.now)
    assert waits(later) == ()
    assert later.open() == []


def test_an_attempt_that_has_started_over() -> None:
    """A person starts the job again under the same number: an answer of the last run is no answer
    of this one, though its finding, which is closed, still gets the dump."""
    job = hang()
    question, finding = asked(job, QuestionKind.DUMP), job.only()
    for rank in range(4):
        job.status(rank, RankState.EXITED)
    job.run(10)
    again = Job(4, engine=job.engine, now=job.now, first_pid=500).group("dp", range(4))
    again.all_reduce("dp", 0).run(1)
    for values in ({"stack": IN_RECV}, {"blocked": inspected(again)}):
        assert not again.engine.answer(answer_to(question, 2, again.now, **values), again.now)
    assert waits(again) == ()
    again.engine.answer(answer_to(question, -1, again.now, dump="d1"), again.now)
    again.run(1)
    assert {f.id: f.dump for f in again.findings()}[finding.id] == "d1"


def test_a_finding_that_is_closed_meanwhile() -> None:
    """The dump is still attached to it, but not what the rank does now."""
    job = hang()
    question, finding = asked(job, QuestionKind.DUMP), job.only()
    job.join("dp", [2], 1).complete("dp", range(4), 1)
    job.run(3)
    assert job.open() == []
    assert job.engine.answer(answer_to(question, 2, job.now, stack=IN_RECV), job.now)
    assert job.engine.answer(answer_to(question, -1, job.now, dump="d1"), job.now)
    updated = [event.finding for event in job.advance()]
    assert [one.state for one in updated] == [FindingState.CLOSED] * len(updated)
    (closed,) = job.findings()
    assert (closed.id, closed.dump, closed.state) == (finding.id, "d1", FindingState.CLOSED)
    assert closed.suspects[0].stack == ()


def test_a_dump_of_an_attempt_that_is_forgotten() -> None:
    """Its finding is remembered, and gets the dump."""
    job = hang()
    question, finding = asked(job, QuestionKind.DUMP), job.only()
    for rank in range(4):
        job.status(rank, RankState.EXITED)
    job.run(3_000)
    assert job.engine.known(job.key) is None
    assert not job.engine.answer(answer_to(question, 2, job.now, stack=IN_RECV), job.now)
    assert job.engine.answer(answer_to(question, -1, job.now, dump="d1"), job.now)
    assert {f.id: f.dump for f in job.findings()}[finding.id] == "d1"


def inspected(job: Job) -> WaitReport:
    """A rank waits for a lock."""
    found = WaitsFor(WaitKind.LOCK_FILE, Certainty.SEEN, "/ckpt/.lock", says="it waits")
    return WaitReport(found, NodeRawNs(job.now - S), NodeRawNs(job.now))


@pytest.mark.parametrize("rank", [9, 10**9, -5])
@pytest.mark.parametrize(
    "values",
    [
        lambda job: {"stack": IN_RECV},
        lambda job: {"blocked": inspected(job)},
        lambda job: {"unanswered": "no answer", "is_silent": True},
        lambda job: {"unanswered": "no answer"},
    ],
)
def test_a_rank_that_the_attempt_does_not_know(
    rank: int, values: Callable[[Job], dict[str, object]]
) -> None:
    """No error, nothing is learned, and the job is watched as before."""
    job = hang()
    before = job.only()
    for kind in (QuestionKind.DUMP, QuestionKind.INSPECTION):
        answer = answer_to(asked(job, kind), rank, job.now, **values(job))
        assert not job.engine.answer(answer, job.now)
    assert waits(job, rank) == ()
    job.run(3)
    assert job.engine.faults == []
    assert job.only().suspects == before.suspects


def test_an_answer_to_no_question() -> None:
    """The journal of an earlier service process may have one, and a question that was never put."""
    job = hanging(6)
    empty = Answer(12_345, KEY, "a later release's", "no finding", 2, job.now, job.now)
    assert not job.engine.answer(empty, job.now)
    assert job.engine.answer(replace(empty, stack=IN_RECV), job.now)
    assert len(waits(job)) == 1


# -- what findings say because of answers ------------------------------------------------------


def test_a_finding_that_opens_gets_stacks_and_a_dump() -> None:
    """The rank involved is in code of the user; a text without a stack is no evidence."""
    agents = Asked(hang())
    job = agents.job
    agents.dump, agents.texts = "d1", {0: NO_STACK}
    agents.answer_all()
    job.advance()
    finding = job.only()
    (suspect,) = finding.suspects
    assert finding.dump == "d1"
    assert suspect.stack == ("train.py:88 in exchange",)


def test_events_come_with_the_next_evaluation() -> None:
    """`answer` says that there is news, and each event is returned once."""
    job = hang()
    question = asked(job, QuestionKind.DUMP)
    assert job.engine.answer(answer_to(question, -1, job.now, dump="d1"), job.now)
    (event,) = job.engine.advance(job.now).events
    assert event.finding.dump == "d1"
    assert job.engine.advance(job.now).events == []
    silent = answer_to(question, 1, job.now, unanswered="x", is_silent=True)
    assert job.engine.answer(silent, job.now) == silent
    assert not job.engine.answer(silent, job.now)


def test_a_wait_of_a_suspect_is_proven() -> None:
    """Ranks 2 and 3 do not come. Rank 3 is in recv: asked before the finding opens and once more,
    its wait is proven, and rank 2 alone is named."""
    job = Job(4).group("dp", range(4)).all_reduce("dp", 0)
    job.run(1)
    job.join("dp", [0, 1], 1)
    agents = Asked(job)
    agents.texts = {3: stack_text()}
    agents.run(8)
    assert [ranks for _, ranks in agents.of(Occasion.SIGHTED)] == [[3]]
    assert [s.rank for s in job.only().suspects] == [2]
    assert {s.rank for event in job.events for s in event.finding.suspects} == {2}


def test_times_are_those_of_the_service_in_utc() -> None:
    """UTC is an hour ahead of aligned time: a late dump of a closed finding changes none of its
    times."""
    engine = Engine(hanging().engine.policy, 3600 * S)
    job = Job(4, engine=engine).group("dp", range(4)).all_reduce("dp", 0)
    job.run(1)
    job.join("dp", [0, 1, 3], 1).run(6)
    question = asked(job, QuestionKind.DUMP)
    job.join("dp", [2], 1).complete("dp", range(4), 1).run(3)
    (before,) = job.findings()
    job.engine.answer(answer_to(question, -1, job.now, dump="d1"), job.now)
    (event,) = job.advance()
    assert event.finding == replace(before, dump="d1") == job.findings()[0]


def test_a_rank_that_is_declared_after_the_question() -> None:
    """It takes no other process's place, so that its answer counts."""
    job = Job(4)
    job.run(1)
    job.engine.rank(job.attempt, rank_info(4, 5), job.now)
    times = AlignedNs(job.now - S), job.now
    answer = Answer(1, KEY, Occasion.STILL, "", 4, *times, stack=IN_RECV)
    assert job.engine.answer(answer, job.now)
    assert changes(job.advance()) == []
