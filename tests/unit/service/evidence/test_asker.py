"""Each question gets one answer for each of its ranks, whatever happens, and few are under way."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from frd.engine.evidence.answers import Answer
from frd.engine.evidence.questions import RULES, Occasion, Question, QuestionKind
from frd.errors import ServiceUnavailable
from frd.model import AlignedNs, AttemptKey, Certainty, NodeRawNs, WaitKind, WaitsFor
from frd.service.evidence.asker import AT_ONCE, RAS_REPORT, WAIT_REPORT, Asker
from frd.service.evidence.inquiries import Dumper, Piece
from frd.store.dumps import DumpStore
from frd.wire.messages import Part
from frd.wire.waits import WaitReport, encode_ras, encode_report
from frd_agent.nccl_ras.client import TIMEOUT_S as QUESTION_S
from frd_agent.nccl_ras.client import read_answer
from frd_agent.uplink.answers import _MARGIN
from tests.world.asked import stack_text
from tests.world.ras_server import moved
from tests.world.virtual_time import in_virtual_time

S = 1_000_000_000
RANKS = (0, 1, 2, 3)
PIDS = {671: 100, 674: 101, 677: 102, 678: 103}
MEMBERS = tuple((rank, 100 + rank) for rank in RANKS)
LAGS = "NCCL RAS: rank 1 has launched 31 AllReduce in communicator 63e59fe8c2f77187 (4 ranks), "
LOCK = WaitReport(
    WaitsFor(WaitKind.LOCK_FILE, Certainty.SEEN, "/ckpt/.lock", says="it waits"),
    *(NodeRawNs(5 * S), NodeRawNs(9 * S)),
)
_OF_KIND = {
    QuestionKind.DUMP: Occasion.OPENED,
    QuestionKind.STACK: Occasion.STILL,
    QuestionKind.INSPECTION: Occasion.SUSPECTED,
    QuestionKind.OPINION: Occasion.UNDECIDED,
}
each_kind = pytest.mark.parametrize("kind", [*QuestionKind])


def ras(name: str = "lagging", pids: dict[int, int] | None = None) -> bytes:
    return encode_ras(read_answer(moved(name, pids or PIDS), 100, lambda _: True))


class Agents:
    """Two ranks on each node; what they answer, and what they were asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[int]]] = []
        """Jobs and ranks."""
        self.parts: list[set[str]] = []
        self.children: list[Collection[int] | None] = []
        self.takes_s: dict[str, float] = {}
        """How long an answer takes, by job."""
        self.under_way: Counter[str] = Counter()
        self.most_under_way: Counter[str] = Counter()
        self.errors: dict[int, str] = {}
        self.gone: set[int] = set()
        """Ranks without an agent."""
        self.ends_early: set[int] = set()
        """Ranks that send nothing."""
        self.fault: Exception | None = None
        self.reports: dict[int, bytes] = dict.fromkeys(RANKS, encode_report(LOCK))
        self.ras = ras()

    def one_by_agent(self, key: AttemptKey, ranks: Iterable[int], most: int) -> list[int]:
        nodes: dict[int, int] = {}
        for rank in ranks:
            nodes.setdefault(rank // 2, rank)
        return list(nodes.values())[:most]

    async def ask(
        self,
        key: AttemptKey,
        ranks: Sequence[int],
        *,
        timeout_s: float,
        children_of: Collection[int] | None = (),
        **parts: bool,
    ) -> AsyncGenerator[list[Piece], None]:
        wanted = {name for name, value in parts.items() if value}
        self.asked.append((key.job, list(ranks)))
        self.parts.append(wanted)
        self.children.append(children_of)
        if self.fault is not None:
            raise self.fault
        if self.gone.issuperset(ranks):
            raise ServiceUnavailable("no agent of these ranks is connected")
        self.under_way[key.job] += 1
        self.most_under_way |= self.under_way
        try:
            yield []
            await asyncio.sleep(self.takes_s.get(key.job, 0.0))
            for rank in ranks:
                if rank not in self.ends_early:
                    yield self._of(rank, wanted)
        finally:
            self.under_way[key.job] -= 1

    def _of(self, rank: int, wanted: set[str]) -> list[Piece]:
        each = {
            "dump": [(Part.DUMP, b"dump"), (Part.IDENTITY, b"{}")],
            "stacks": [(Part.STACK, stack_text().encode())],
            "waits": [(Part.WAITS, self.reports[rank])],
            "ras": [(Part.RAS, self.ras)],
        }
        error = self.errors.get(rank, "")
        return [
            Piece(rank, part, b"" if error else data, error=error)
            for name in sorted(wanted)
            for part, data in each[name]
        ]


class World:
    def __init__(self, folder: Path, *, keep_dumps: bool = True) -> None:
        self.agents = Agents()
        self.store = DumpStore(folder / "dumps", max_count=4, max_bytes=1 << 20)
        now = SimpleNamespace(utc=lambda: AlignedNs(S))
        dumper = Dumper(
            self.agents,  # type: ignore[arg-type]
            SimpleNamespace(clock=lambda key, rank: None),  # type: ignore[arg-type]
            self.store,
            now,  # type: ignore[arg-type]
            stall_after_s=lambda: 10.0,
        )
        self.dumper = dumper
        self.taken: list[Answer] = []
        self.asker = Asker(
            self.agents,  # type: ignore[arg-type]
            dumper,
            self.taken.append,
            keep_dumps=keep_dumps,
            now=lambda: AlignedNs(round(asyncio.get_running_loop().time() * S)),
        )
        self._count = 0

    def question(
        self, kind: QuestionKind, ranks: Sequence[int] = RANKS, job: str = "job"
    ) -> Question:
        self._count += 1
        members = MEMBERS if kind is QuestionKind.OPINION else ()
        about = self._count, AttemptKey(job, 0), _OF_KIND[kind], tuple(ranks), self.now
        return Question(*about, "f1", children_of=(1,), members=members)

    @property
    def now(self) -> AlignedNs:
        return AlignedNs(round(asyncio.get_running_loop().time() * S))

    async def ask(self, *questions: Question) -> list[Answer]:
        """The answers, when all have come."""
        self.taken.clear()
        self.asker.ask(questions)
        await self.settled()
        return list(self.taken)

    async def settled(self) -> None:
        while self.asker._turns:
            await asyncio.sleep(0.01)


def expected(of: Question) -> Counter[int]:
    """The ranks of which an answer is due, once each."""
    kind = of.rule.kind
    together = [-1] * (kind in (QuestionKind.DUMP, QuestionKind.OPINION))
    return Counter([*(of.ranks if kind is not QuestionKind.OPINION else ()), *together])


def ranks_of(answers: Iterable[Answer]) -> Counter[int]:
    return Counter(answer.rank for answer in answers)


@each_kind
@in_virtual_time
async def test_each_rank_answers_once(kind: QuestionKind, tmp_path: Path) -> None:
    """All agents answer: what they say is in the answers, with the times of request and answer."""
    world = World(tmp_path)
    world.agents.takes_s = {"job": 0.5}
    question, began = world.question(kind), world.now
    answers = await world.ask(question)
    assert ranks_of(answers) == expected(question)
    assert not any(answer.unanswered or answer.is_silent for answer in answers)
    of = {(one.question, one.attempt, one.occasion, one.finding) for one in answers}
    assert of == {(question.number, question.attempt, question.occasion, "f1")}
    assert {(one.asked_at - began, one.answered_at - began) for one in answers} == {(0, S // 2)}
    assert all(one.stack is not None and one.stack.place is not None for one in answers
               if one.rank >= 0 and kind in (QuestionKind.DUMP, QuestionKind.STACK))  # fmt: skip
    assert all(one.blocked == LOCK for one in answers if kind is QuestionKind.INSPECTION)
    together = {one.rank: one for one in answers}.get(-1)
    if kind is QuestionKind.DUMP:
        assert together is not None
        assert [together.dump] == world.store.ids()
    if kind is QuestionKind.OPINION:
        assert together is not None
        assert together.opinion == (LAGS + "the others 32",)


@in_virtual_time
async def test_what_agents_are_asked_for(tmp_path: Path) -> None:
    """Each kind has its parts. Stacks of children are wanted of a few ranks only."""
    world = World(tmp_path)
    parts = {
        QuestionKind.DUMP: {"dump", "stacks"},
        QuestionKind.STACK: {"stacks"},
        QuestionKind.INSPECTION: {"waits"},
        QuestionKind.OPINION: {"ras"},
    }
    for kind in QuestionKind:
        await world.ask(world.question(kind))
        assert world.agents.parts[-1] == parts[kind]
        has_stacks = "stacks" in parts[kind]
        assert world.agents.children[-1] == ((1,) if has_stacks else ())


@each_kind
@in_virtual_time
async def test_a_rank_that_cannot_answer(kind: QuestionKind, tmp_path: Path) -> None:
    """Its agent says why; the others answer."""
    world = World(tmp_path)
    world.agents.errors = {1: "no such process"}
    question = world.question(kind)
    answers = await world.ask(question)
    assert ranks_of(answers) == expected(question)
    failed = [one.rank for one in answers if one.unanswered]
    assert failed == ([] if kind is QuestionKind.OPINION else [1])
    if kind is QuestionKind.INSPECTION:  # it is left alone for a while
        assert [one.rank for one in answers if one.is_silent] == [1]


@in_virtual_time
async def test_a_rank_without_a_dump_is_in_the_folder(tmp_path: Path) -> None:
    """Its identity has the end of its log, which people need most when the rank is gone."""
    world = World(tmp_path)
    said = Piece(1, Part.IDENTITY, b'{"log": {"path": "/l", "lines": ["x"], "why": ""}}')
    world.agents._of = lambda rank, wanted: [  # type: ignore[method-assign]
        Piece(rank, Part.DUMP, error="gone, and it left no dump"),
        dataclasses.replace(said, rank=rank),
    ]
    taken = await world.dumper.take(AttemptKey("job", 0), [1], stacks=False, timeout_s=1.0)
    assert (taken.answered, list(taken.failed)) == ((), [1])
    found = json.loads(world.store.identity(taken.id, 1) or b"")
    assert (found["rank"], found["source"], found["log"]["lines"]) == (1, "", ["x"])


def no_agent(world: World) -> None:
    world.agents.gone = set(RANKS)


def no_rank(world: World) -> None:
    world.agents.ends_early = set(RANKS)


def some_rank(world: World) -> None:
    world.agents.ends_early = {2, 3}


def a_fault(world: World) -> None:
    world.agents.fault = ValueError("a defect of the service")


@pytest.mark.parametrize("prevents", [no_agent, no_rank, some_rank, a_fault])
@each_kind
@in_virtual_time
async def test_what_does_not_come(
    kind: QuestionKind, prevents: Callable[[World], None], tmp_path: Path
) -> None:
    """No agent is connected, some or all ranks send nothing, the service has a defect: each
    rank has an answer which says that it has none, and the next question is asked as usual."""
    world = World(tmp_path)
    prevents(world)
    question = world.question(kind)
    answers = await world.ask(question)
    assert ranks_of(answers) == expected(question)
    silent = {2, 3} if prevents is some_rank else set(RANKS)
    assert all(one.unanswered for one in answers if one.rank in silent)
    assert not any(one.is_silent for one in answers)
    world.agents.gone, world.agents.ends_early, world.agents.fault = set(), set(), None
    assert not any(one.unanswered for one in await world.ask(world.question(kind)))


@each_kind
@in_virtual_time
async def test_questions_end_with_the_service(kind: QuestionKind, tmp_path: Path) -> None:
    """Some are under way, some wait for their turn, one has just been put: each rank has its answer
    that there is none, and no request is left."""
    world = World(tmp_path)
    world.agents.takes_s = {"job": 1000.0}
    questions = [world.question(kind) for _ in range(AT_ONCE[kind] + 3)]
    world.asker.ask(questions[:-1])
    await asyncio.sleep(1)
    world.asker.ask(questions[-1:])
    await world.asker.close()
    assert len(world.agents.asked) == AT_ONCE[kind]
    for question in questions:
        of_it = [one for one in world.taken if one.question == question.number]
        assert ranks_of(of_it) == expected(question)
        assert all(one.unanswered for one in of_it)
    assert not any(world.agents.under_way.values())
    assert not world.asker._turns


@each_kind
@in_virtual_time
async def test_too_many_questions_about_one_job(kind: QuestionKind, tmp_path: Path) -> None:
    """A hundred findings open: a few are asked about at a time, as many wait as there is room for,
    and those that do not wait have their answers immediately."""
    world = World(tmp_path)
    world.agents.takes_s = {"job": 1.0}
    questions = [world.question(kind) for _ in range(100)]
    world.asker.ask(questions)
    refused = {one.question for one in world.taken}
    assert len(refused) == 100 - 64
    await world.settled()
    assert world.agents.most_under_way["job"] == AT_ONCE[kind]
    for question in questions:
        of_it = [one for one in world.taken if one.question == question.number]
        assert ranks_of(of_it) == expected(question)
        assert all(bool(one.unanswered) == (question.number in refused) for one in of_it)


@in_virtual_time
async def test_each_job_has_its_turns(tmp_path: Path) -> None:
    """The agents of job a answer nothing for a minute; a question about b is asked immediately, and
    a question of another kind about a, too."""
    world = World(tmp_path)
    world.agents.takes_s = {"a": 60.0}
    began = world.now
    stacks = [world.question(QuestionKind.STACK, job="a") for _ in range(6)]
    inspection = world.question(QuestionKind.INSPECTION, job="a")
    answers = await world.ask(*stacks, world.question(QuestionKind.STACK, job="b"), inspection)
    began_s = {one.question: (one.asked_at - began) / S for one in answers}
    assert list(began_s.values()).count(0) == 4 + 1 + 1
    assert [began_s[one.number] for one in stacks] == [0, 0, 0, 0, 60, 60]
    assert began_s[inspection.number] == 0
    assert not world.asker._turns


# -- dumps -------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_dump_that_cannot_be_stored(tmp_path: Path) -> None:
    """The disk refuses it: the ranks are asked for their stacks alone."""
    (tmp_path / "dumps").write_text("no folder")
    world = World(tmp_path)
    question = world.question(QuestionKind.DUMP)
    answers = await world.ask(question)
    assert world.agents.parts == [{"dump", "stacks"}, {"stacks"}]
    assert ranks_of(answers) == expected(question)
    assert [one.rank for one in answers if one.unanswered] == [-1]
    assert all(one.stack is not None for one in answers if one.rank >= 0)
    assert world.dumper.store_errors == 1


@in_virtual_time
async def test_a_service_that_keeps_no_dumps(tmp_path: Path) -> None:
    """Stacks alone are asked for."""
    world = World(tmp_path, keep_dumps=False)
    question = world.question(QuestionKind.DUMP)
    answers = await world.ask(question)
    assert world.agents.parts == [{"stacks"}]
    assert ranks_of(answers) == expected(question)
    assert [one.rank for one in answers if one.unanswered] == [-1]
    assert world.store.ids() == []


# -- reports that cannot be read ---------------------------------------------------------------


@in_virtual_time
async def test_bytes_that_are_no_report(tmp_path: Path) -> None:
    """They are counted, and the other suspect's report is used."""
    world = World(tmp_path)
    world.agents.reports[1] = b"{"
    answers = await world.ask(world.question(QuestionKind.INSPECTION, [1, 2]))
    assert {one.rank: (one.blocked, bool(one.unanswered)) for one in answers} == {
        1: (None, True),
        2: (LOCK, False),
    }
    assert not any(one.is_silent for one in answers)
    assert world.asker.refused == {WAIT_REPORT: 1, RAS_REPORT: 0}


@pytest.mark.parametrize("data", [b"", b"{", b"[]" * 99, b'{"communicators": [{"hash": "x"}]}'])
@in_virtual_time
async def test_an_opinion_that_cannot_be_read(data: bytes, tmp_path: Path) -> None:
    """It is counted, and no other agent is asked."""
    world = World(tmp_path)
    world.agents.ras = data
    (answer,) = await world.ask(world.question(QuestionKind.OPINION))
    assert (answer.rank, answer.opinion, bool(answer.unanswered)) == (-1, (), True)
    assert world.asker.refused == {WAIT_REPORT: 0, RAS_REPORT: 1}
    assert world.agents.asked == [("job", [0])]


# -- second opinions ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["NCCL RAS: 127.0.0.1:28028: refused", "gone"])
@in_virtual_time
async def test_a_second_agent_is_asked_if_the_first_has_no_answer(how: str, tmp_path: Path) -> None:
    """An error, or no agent: then the agent of the other node."""
    world = World(tmp_path)
    world.agents.gone, world.agents.errors = ({0}, {}) if how == "gone" else (set(), {0: how})
    (answer,) = await world.ask(world.question(QuestionKind.OPINION))
    assert answer.opinion
    assert world.agents.asked == [("job", [0]), ("job", [2])]


@in_virtual_time
async def test_no_agent_has_an_opinion(tmp_path: Path) -> None:
    """Two are asked, not the third."""
    world = World(tmp_path)
    world.agents.errors = dict.fromkeys(range(6), "no answer")
    (answer,) = await world.ask(world.question(QuestionKind.OPINION, range(6)))
    assert answer.unanswered
    assert world.agents.asked == [("job", [0]), ("job", [2])]


@in_virtual_time
async def test_an_opinion_about_another_job(tmp_path: Path) -> None:
    """Its processes are not those of the group: it shows nothing, and is no refused report."""
    world = World(tmp_path)
    world.agents.ras = ras(pids={**PIDS, 678: 999})
    (answer,) = await world.ask(world.question(QuestionKind.OPINION))
    assert (answer.opinion, bool(answer.unanswered)) == ((), True)
    assert world.asker.refused == {WAIT_REPORT: 0, RAS_REPORT: 0}


def test_an_agent_has_time_for_all_questions_of_the_service() -> None:
    """It answers them one after the other, and each may take its whole time limit."""
    within_s = RULES[Occasion.UNDECIDED].within_s
    assert within_s * _MARGIN >= AT_ONCE[QuestionKind.OPINION] * QUESTION_S
