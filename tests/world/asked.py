"""A job whose ranks are asked what the engine wants to know, and answer immediately.

No service runs: the questions come from `Engine.advance`, the answers go to `Engine.answer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from frd.engine.evidence.answers import Answer, Stack
from frd.engine.evidence.questions import Occasion, Question, QuestionKind
from frd.flight.stacks.text import RESTED
from frd.model import AlignedNs, FindingEvent
from frd.wire.waits import WaitReport
from tests.world.job import STEP_S, Job

C10D = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def stack_text(op: str = "recv", line: int = 88, ran_ns: int | None = 7_000) -> str:
    """The text of a rank that called `op` in `line`; its own code for no op."""
    rested = f"{RESTED}{ran_ns} ns\n" if ran_ns is not None else ""
    call = f'  File "{C10D}", line 2799 in {op}\n' if op else ""
    own = f'  File "/job/train.py", line {line} in exchange\n'
    return f"{rested}Thread 0x00007f3f56a93b80 (most recent call first):\n{call}{own}"


def answer_to(of: Question, rank: int, at: AlignedNs, **values: Any) -> Answer:
    about = of.number, of.attempt, of.occasion, of.finding, rank
    return Answer(*about, of.asked_at, at, **values)


class Asked:
    """A job, and what its ranks answer."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.began = job.now
        self.questions: list[Question] = []
        self.texts: dict[int, str] = {}
        """Of stacks; a rank without one is in its own code."""
        self.reports: dict[int, WaitReport] = {}
        """Of inspections; a rank without one has an answer that cannot be read."""
        self.silent: set[int] = set()
        """Ranks whose agents do not answer inspections."""
        self.opinion: tuple[str, ...] = ()
        self.dump = ""
        """The id of a dump that a finding gets when it opens."""

    def run(self, seconds: float, each: Callable[[], object] = lambda: None) -> list[FindingEvent]:
        """Half a second at a time: `each`, then the job and the engine, then the answers."""
        events: list[FindingEvent] = []
        for _ in range(round(seconds / STEP_S)):
            each()
            events += self.job.run(STEP_S)
            self.answer_all()
        return events

    def look(self, times: int = 1) -> list[FindingEvent]:
        """The same with an evaluation at the end, so that it has the events of all answers."""
        events = self.run(times)
        return events + self.job.advance()

    def answer_all(self) -> None:
        asked, self.job.questions = self.job.questions, []
        self.questions += asked
        for question in asked:
            for answer in self.answers(question):
                self.job.engine.answer(answer, self.job.now)

    def answers(self, of: Question) -> list[Answer]:
        """What is answered now, if all ranks answer."""
        match of.rule.kind:
            case QuestionKind.INSPECTION:
                each = [self._answer(of, rank, **self._inspected(rank)) for rank in of.ranks]
            case QuestionKind.OPINION:
                values = {"opinion": self.opinion} if self.opinion else {"unanswered": "refused"}
                each = [self._answer(of, -1, **values)]
            case _:
                each = [self._answer(of, rank, stack=self.stack(rank)) for rank in of.ranks]
        if of.rule.kind is QuestionKind.DUMP:
            each.append(self._answer(of, -1, dump=self.dump))
        return each

    def stack(self, rank: int) -> Stack:
        return Stack.of(self.texts.get(rank, stack_text("")))

    def of(self, *occasions: Occasion) -> list[tuple[float, list[int]]]:
        """When which ranks were asked on these occasions, in seconds since the beginning."""
        asked = [*self.questions, *self.job.questions]
        return [
            ((one.asked_at - self.began) / 1e9, list(one.ranks))
            for one in asked
            if one.occasion in occasions
        ]

    def clear(self) -> None:
        self.questions.clear()
        self.job.questions.clear()

    def _inspected(self, rank: int) -> dict[str, Any]:
        if rank in self.silent:
            return {"unanswered": "unknown part", "is_silent": True}
        report = self.reports.get(rank)
        return {"unanswered": "no answer"} if report is None else {"blocked": report}

    def _answer(self, of: Question, rank: int, **values: Any) -> Answer:
        return answer_to(of, rank, self.job.now, **values)
