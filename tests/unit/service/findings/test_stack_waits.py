"""Waits that stacks show, and the occasions on which ranks are asked for stacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise

import pytest
from frd.service.findings.stack_waits import StackWaits
from frd.service.findings.standstills import EVERY_S, MAX_RANKS, Standstills

from frd.engine.findings.builder import finding_of
from frd.engine.findings.claim import Claim
from frd.engine.views import StatusView
from frd.flight.stacks.text import RESTED
from frd.model import AlignedNs, AttemptKey, Kind, UnrecordedWait, WaitSource
from frd.service.state import ServiceState
from tests.world.job import Job

S = 1_000_000_000
KEY = AttemptKey("job", 0)
C10D = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def stack(op: str = "recv", line: int = 88, ran_ns: int | None = 7_000) -> str:
    """The text of a rank that called `op` in `line`; its own code for no op."""
    rested = f"{RESTED}{ran_ns} ns\n" if ran_ns is not None else ""
    call = f'  File "{C10D}", line 2799 in {op}\n' if op else ""
    own = f'  File "/job/train.py", line {line} in exchange\n'
    return f"{rested}Thread 0x00007f3f56a93b80 (most recent call first):\n{call}{own}"


class Seen:
    """What `StackWaits` reports of rank 3, which is asked every ten seconds."""

    def __init__(self) -> None:
        self.reported: list[UnrecordedWait] = []
        self.waits = StackWaits(lambda key, wait: self.reported.append(wait))
        self.at = 0

    def take(
        self, text: str, confirm_after_ns: int | None = None, answered_after_s: int = 1
    ) -> None:
        self.at += 10 * S
        self.waits.take(
            *(KEY, 3, text),
            asked_at=AlignedNs(self.at),
            answered_at=AlignedNs(self.at + answered_after_s * S),
            confirm_after_ns=None if confirm_after_ns is None else lambda op: confirm_after_ns,
        )

    @property
    def intervals(self) -> list[tuple[str, int, int]]:
        return [(wait.op, wait.since_ns // S, wait.as_of_ns // S) for wait in self.reported]


def test_two_stacks_of_one_wait() -> None:
    """It has lasted from the first answer to the second request, and on to the third."""
    seen = Seen()
    for _ in range(3):
        seen.take(stack())
    assert seen.intervals == [("recv", 11, 11), ("recv", 11, 20), ("recv", 11, 30)]
    assert {wait.source for wait in seen.reported} == {WaitSource.STACK}
    assert seen.reported[0].detail == "train.py:88 in exchange"
    assert seen.waits.waiting(KEY) == [3]


@pytest.mark.parametrize(
    "other",
    [
        stack(line=90),
        stack("monitored_barrier"),
        stack(ran_ns=7_001),
        stack(ran_ns=None),
    ],
)
def test_two_stacks_that_do_not_show_one_wait(other: str) -> None:
    """Another line, another call, or a main thread that ran in between: nothing has lasted."""
    seen = Seen()
    seen.take(stack())
    seen.take(other)
    assert all(wait.since_ns == wait.as_of_ns for wait in seen.reported)


def test_a_wait_for_the_store_looks_at_its_time_out() -> None:
    """new_group wakes every ten seconds; more than that is another call."""
    seen = Seen()
    for ran_ns in (7_000, 300_000, 9_000_000):
        seen.take(stack("new_group", ran_ns=ran_ns))
    assert seen.intervals == [("new_group", 11, 11), ("new_group", 11, 20), ("new_group", 31, 31)]


def test_the_end_of_a_wait() -> None:
    """The next stack shows code of the user; a text without a stack shows nothing."""
    seen = Seen()
    for text in (stack(), "# py-spy: not installed\n", stack("")):
        seen.take(text)
    assert seen.intervals == [("recv", 11, 11), ("", 30, 30)]
    assert seen.waits.waiting(KEY) == []


def test_a_new_wait_is_to_be_confirmed_once() -> None:
    """Two seconds after its first stack, and never again."""
    seen = Seen()
    seen.take(stack(), 2 * S)
    assert seen.waits.to_confirm(KEY, AlignedNs(12 * S)) == []
    assert seen.waits.to_confirm(KEY, AlignedNs(13 * S)) == [3]
    assert seen.waits.to_confirm(KEY, AlignedNs(13 * S)) == []
    seen.take(stack(line=90))
    assert seen.waits.to_confirm(KEY, AlignedNs(60 * S)) == []


def test_two_requests_at_the_same_time() -> None:
    """A round of all ranks, and the request for a finding that opened just then: both answers show
    the same wait, but neither proves that it lasted, so that a third one is needed."""
    seen = Seen()
    for confirm_s, asked_s in ((5, 10), (2, 11), (None, 11)):
        seen.at = (asked_s - 10) * S
        seen.take(stack(), confirm_s and confirm_s * S, answered_after_s=2)
    assert seen.waits.to_confirm(KEY, AlignedNs(13 * S)) == []
    assert seen.waits.to_confirm(KEY, AlignedNs(14 * S)) == [3]


# -- who is asked, and when --------------------------------------------------------------------


class Asked:
    """A job, and a dumper that remembers which ranks were asked, and answers immediately."""

    def __init__(self, world: int = 4) -> None:
        self.job = Job(world).group("dp", range(world)).all_reduce("dp", 0)
        self.job.run(1)
        self.asked: list[tuple[float, list[int]]] = []
        self.texts: dict[int, str] = {}
        self.began = self.job.now
        self.waits = StackWaits(lambda key, wait: self.job.attempt.observe_unrecorded(wait))
        self.standstills = Standstills(
            self.job.engine,
            self,  # type: ignore[arg-type]
            self.waits,
            now=lambda: self.job.now,
            state=lambda: ServiceState(self.view),
        )
        self.view = StatusView(AlignedNs(0), (), ())

    async def stacks(
        self,
        key: AttemptKey,
        ranks: Sequence[int],
        *,
        timeout_s: float,
        children_of: Collection[int] | None,
        on_stack: Callable[[int, str], None],
    ) -> None:
        assert children_of == ()
        self.asked.append(((self.job.now - self.began) / S, list(ranks)))
        for rank in ranks:
            on_stack(rank, self.texts.get(rank, stack("")))
        await asyncio.sleep(0)

    def run(self, seconds: float, each: Callable[[], object] = lambda: None) -> None:
        async def go() -> None:
            end = self.job.now + seconds * S
            while self.job.now < end:
                self.job.now = AlignedNs(self.job.now + S // 2)
                each()
                self.job.report()
                self.view = self.job.engine.status_view(self.job.now)
                self.standstills.look()
                for _ in range(4):
                    await asyncio.sleep(0)

        asyncio.run(go())


def test_of_a_job_that_makes_progress_no_rank_is_asked() -> None:
    """An all_reduce every half second for half a minute."""
    asked = Asked()
    steps = iter(range(1, 1_000))
    asked.run(30, lambda: asked.job.all_reduce("dp", next(steps)))
    assert asked.asked == []


def test_a_job_in_which_nothing_moves() -> None:
    """No rank waits: all are asked after the threshold, a minute later, and then less often."""
    asked = Asked()
    asked.run(600)
    assert [ranks for _, ranks in asked.asked] == [[0, 1, 2, 3]] * len(asked.asked)
    first, *later = [at for at, _ in asked.asked]
    assert 5 <= first <= 6
    pauses = [after - before for before, after in pairwise([first, *later])]
    assert pauses == [EVERY_S, 2 * EVERY_S, 4 * EVERY_S]


def test_ranks_that_wait_are_asked_again() -> None:
    """Ranks 1 and 3 are in recv: both once more after the threshold, and all a minute later."""
    asked = Asked()
    asked.texts = {1: stack(), 3: stack()}
    asked.run(70)
    assert [ranks for _, ranks in asked.asked] == [[0, 1, 2, 3], [1, 3], [0, 1, 2, 3]]
    (first, *_), (again, *_), (later, *_) = asked.asked
    assert again - first == pytest.approx(5, abs=0.5)
    assert later - first == EVERY_S
    unrecorded = asked.job.attempt.snapshot(asked.job.now).unrecorded
    seen = {rank: waits[0].op for rank, waits in unrecorded.items()}
    assert seen == {0: "", 1: "recv", 2: "", 3: "recv"}
    assert all(w.as_of_ns - w.since_ns >= EVERY_S * S for (w,) in unrecorded.values() if w.op)


def test_few_ranks_of_a_large_job() -> None:
    """Not more than the limit at a time, other ones the next time, all in turn."""
    asked = Asked(2 * MAX_RANKS)
    asked.run(70)
    assert [len(ranks) for _, ranks in asked.asked] == [MAX_RANKS, MAX_RANKS]
    assert sorted(rank for _, ranks in asked.asked for rank in ranks) == list(range(2 * MAX_RANKS))


def test_while_a_finding_is_open_only_ranks_that_wait_are_asked() -> None:
    """The responder has asked all ranks of the finding; rank 3 was in recv."""
    asked = Asked()
    claim = Claim(Kind.STALL, "x", frozenset({"x"}))
    finding = finding_of(asked.job.key, claim, asked.job.now)
    asked.job.engine.restore([finding], asked.job.now)
    asked.texts = {3: stack()}
    asked.run(1)
    at = asked.job.now
    asked.waits.take(
        asked.job.key, 3, stack(), asked_at=at, answered_at=at, confirm_after_ns=lambda op: S
    )
    asked.run(70)
    assert [ranks for _, ranks in asked.asked] == [[3], [3]]
