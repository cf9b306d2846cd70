"""Scopes from marks: what was well nested comes back exactly, and whatever is wrong is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frd.offline.io.analysis import IoAnalysis, load_traces
from frd.offline.phases import rank_phases
from frd.offline.phases import table as table_module
from frd.offline.phases.answer import Certainty
from frd.offline.phases.marks import PhaseMark
from frd.offline.phases.rank_phases import Process
from frd.offline.phases.table import PhaseTable, build_phases, replayed
from tests.world.io_traces import DIALECTS, T0_US, Call, Writer, write_trace
from tests.world.phases import T0, mark, scope
from tests.world.phases import T0 as T0_NS

Scope = tuple[tuple[str, ...], int, int, bool]
"""Path, begin, end, whether it is open."""


def scopes(marks: Iterable[PhaseMark], last: int = 0) -> list[Scope]:
    found, _ = replayed(marks, {("job", 0, 10, "s"): T0 + last})
    return [(one.path, one.begin_ns - T0, one.end_ns - T0, one.is_open) for one in found]


# -- laws ------------------------------------------------------------------------------------------


@dataclass
class Tree:
    """A scope and those within it; `before` and `after` are pauses, 0 or more."""

    name: str
    before: int
    inside: list[Tree]
    after: int


pauses = st.integers(0, 3)
names = st.sampled_from(["epoch", "train", "eval", "step"])
trees: st.SearchStrategy[Tree] = st.recursive(
    st.builds(Tree, names, pauses, st.just([]), pauses),
    lambda inner: st.builds(Tree, names, pauses, st.lists(inner, max_size=4), pauses),
    max_leaves=25,
)


class Program:
    """Runs trees of scopes on a thread: the marks it writes, and the truth."""

    def __init__(self, thread: int, *, with_ids: bool) -> None:
        self.thread, self.with_ids = thread, with_ids
        self.now = self.number = 0
        self.marks: list[PhaseMark] = []
        self.truth: list[Scope] = []

    def run(self, tree: Tree, outer: tuple[str, ...] = ()) -> None:
        path = (*outer, tree.name)
        self.now += tree.before
        begin, at = self.now, len(self.truth)
        scope = f"{self.thread}.{at}" if self.with_ids else ""
        self.truth.append((path, begin, -1, False))
        self._mark(True, path, scope)
        for one in tree.inside:
            self.run(one, path)
        self.now += tree.after
        self._mark(False, path, scope)
        self.truth[at] = path, begin, self.now, False

    def _mark(self, entered: bool, path: tuple[str, ...], scope: str) -> None:
        self.number += 1
        self.marks.append(
            mark(
                self.now, entered, *path,
                scope_id=scope, thread=self.thread, sequence=self.number,
            )
        )  # fmt: skip


def ran(forest: list[Tree], *, with_ids: bool = True, thread: int = 1) -> Program:
    program = Program(thread, with_ids=with_ids)
    for tree in forest:
        program.run(tree)
    return program


forests = st.lists(trees, max_size=4)


@given(forests, st.booleans(), st.randoms())
def test_nested_scopes_come_back_exactly(
    forest: list[Tree], with_ids: bool, dice: st.DataObject
) -> None:
    """Any program on two threads, its marks in any order of files, twice: the same scopes."""
    one, two = ran(forest, with_ids=with_ids), ran(forest[::-1], with_ids=with_ids, thread=2)
    marks = (one.marks + two.marks) * 2
    dice.shuffle(marks)  # type: ignore[attr-defined]
    found, warnings = replayed(marks, {})
    assert not warnings
    assert Counter(scopes(marks)) == Counter(one.truth + two.truth)
    assert [s[0] for s in scopes(m for m in marks if m.thread_id == 1)] == [s[0] for s in one.truth]
    assert len(found) == len(one.truth) + len(two.truth)


@given(forests, st.integers(0, 60), st.integers(0, 20))
def test_a_prefix_has_the_running_scopes_open(forest: list[Tree], length: int, more: int) -> None:
    """A recording that ends in the middle: what had not ended is open until its last event."""
    program = ran(forest)
    prefix = program.marks[:length]
    ended = {one.scope_id for one in prefix if not one.entered}
    begun = [one.scope_id for one in prefix if one.entered]
    last = max((one.at_ns - T0 for one in prefix), default=0) + more
    found = scopes(prefix, last)
    assert [is_open for *_, is_open in found] == [scope not in ended for scope in begun]
    for (path, begin, end, is_open), truth in zip(found, program.truth, strict=False):
        assert (path, begin) == truth[:2]
        assert end == (last if is_open else truth[2])


texts = st.sampled_from(["", "a", "b"])
garbage = st.builds(
    PhaseMark,
    job=texts,
    rank=st.integers(-1, 2),
    host=texts,
    pid=st.integers(-1, 1),
    session=texts,
    at_ns=st.one_of(st.integers(-1, 20), st.integers(-(2**80), 2**80)),
    entered=st.booleans(),
    path=st.lists(texts, max_size=3).map(tuple),
    scope_id=texts,
    thread_id=st.integers(-1, 1),
    thread_name=texts,
    sequence=st.integers(-(2**70), 2**70),
)


@given(st.lists(garbage, max_size=40), st.integers(-(2**80), 2**80))
def test_garbage_never_raises(marks: list[PhaseMark], last: int) -> None:
    """Marks of any kind: spans that are in order, and an answer at any time."""
    table = build_phases(marks, {("a", 0, 0, ""): last, ("", 1, 1, "a"): last})
    for span in table.spans:
        assert 0 < span.begin_ns <= span.end_ns <= 2**62
        assert span.path
    for one in marks:
        table.at(one.job, one.rank, one.at_ns, last, scope_id="a", thread_id=one.thread_id)


# -- damage ----------------------------------------------------------------------------------------


def test_an_end_without_a_beginning_is_left_out() -> None:
    """A rotated file begins within a phase: its end is counted, the next phase is as usual."""
    marks = [mark(1, False, "a"), mark(2, True, "b"), mark(3, False, "b")]
    marks += [one._replace(rank=3) for one in marks]
    found, warnings = replayed(marks, {})
    assert [span.path for span in found] == [("b",), ("b",)]
    assert warnings == ["job: ends of phases that match no beginning, left out: 2 (rank 0,3)"]


def test_a_lost_end_ends_with_the_outer_phase() -> None:
    """The end of train is lost: it ends when the epoch ends, not with the recording."""
    marks = [mark(1, True, "epoch"), mark(2, True, "epoch", "train"), mark(5, False, "epoch")]
    assert scopes(marks, last=9) == [
        (("epoch",), 1, 5, False),
        (("epoch", "train"), 2, 5, False),
    ]
    assert "phases without an end, ended with the phase around them: 1" in replayed(marks, {})[1][0]


def test_tasks_that_take_turns_do_not_end_each_other() -> None:
    """Two tasks of one thread: the first to begin ends first, and the other goes on."""
    marks = [
        mark(1, True, "a", scope_id="1"),
        mark(2, True, "b", scope_id="2"),
        mark(3, False, "a", scope_id="1"),
        mark(4, False, "b", scope_id="2"),
    ]
    assert scopes(marks) == [(("a",), 1, 3, False), (("b",), 2, 4, False)]


def test_an_end_finds_its_scope_by_id_and_not_by_its_path() -> None:
    """Two running scopes of one path: the id decides."""
    marks = [
        mark(1, True, "a", scope_id="1"),
        mark(2, True, "a", scope_id="2"),
        mark(3, False, "a", scope_id="1"),
    ]
    assert scopes(marks, last=9) == [(("a",), 1, 3, False), (("a",), 2, 9, True)]


def test_each_process_ends_with_its_own_recording() -> None:
    """A restarted rank: the phase of the first process does not last into the second one."""
    marks = [mark(1, True, "a"), mark(20, True, "a", pid=11)]
    last = {("job", 0, 10, "s"): T0 + 5, ("job", 0, 11, "s"): T0 + 30}
    found, _ = replayed(marks, last)
    assert [(one.begin_ns - T0, one.end_ns - T0) for one in found] == [(1, 5), (20, 30)]


def test_a_thread_may_be_renamed_within_a_phase() -> None:
    """The end has another name of the thread: it is the same thread."""
    marks = [mark(1, True, "a"), mark(2, False, "a")._replace(thread_name="renamed")]
    assert scopes(marks) == [(("a",), 1, 2, False)]


def test_a_mark_without_a_name_or_time_is_counted() -> None:
    """An empty path, and a time of 0: left out with one warning."""
    marks = [mark(1, True), mark(-T0, True, "a")]
    assert replayed(marks, {}) == (
        [],
        ["job: phase events without a name or a possible time, left out: 2 (rank 0)"],
    )


def test_so_many_spans_are_kept_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest ones, and the rest is counted."""
    monkeypatch.setattr(rank_phases, "MAX_SPANS", 2)
    marks = [
        one
        for at, length in ((10, 5), (20, 1), (30, 4))
        for one in (mark(at, True, "a"), mark(at + length, False, "a"))
    ]
    table = build_phases(marks, {})
    assert [span.begin_ns - T0 for span in table.spans] == [10, 30]
    assert table.warnings == ("the shortest phases, too many, left out: 1",)


def test_many_open_scopes_are_searched_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end far below the top of a damaged stack is left out."""
    monkeypatch.setattr(table_module, "_SEARCHED", 3)
    marks = [mark(at, True, str(at)) for at in range(1, 6)]
    assert "that match no beginning" in replayed([*marks, mark(9, False, "2")], {})[1][0]
    assert not replayed([*marks, mark(9, False, "3")], {})[1]


# -- phases from annotations in traces: real files through the real reader -------------------------


PID = 10
RANK = 0
assert T0_NS == T0_US * 1000


def ai(name: str, at: int, dur: int, cat: str = "pipeline", tid: int = 0) -> Call:
    return Call(name, at, dur, cat=cat, tid=tid)


CALLS = [
    ai("epoch", 0, 100),
    ai("train", 10, 50),
    ai("forward", 20, 10, "compute"),
    ai("forward", 20, 10, "compute"),
    Call("read", 22, 3, file="/data/a", ret=5),
    ai("backward", 30, 10, "compute"),
    ai("evaluate", 60, 40),
]


def traced(
    folder: Path,
    calls: Sequence[Call] = CALLS,
    *,
    dialect: str = "v2.2",
    offsets_ns: dict[int, int] | None = None,
) -> IoAnalysis:
    writer = Writer(dialect, PID if dialect != "v0" else RANK)
    lines = list(writer.lines(calls))
    if dialect not in ("v0", "v1"):
        lines.append(writer.metadata("CM", "rank", str(RANK)))
    path = write_trace(folder / f"t-rank{RANK}.pfw", lines)
    return load_traces([path], offsets_ns=offsets_ns)


def table(
    io: IoAnalysis,
    marks: Sequence[PhaseMark] = (),
    last_ns: dict[Process, int] | None = None,
) -> PhaseTable:
    return build_phases(marks, last_ns or {("job", RANK, PID, "s"): T0_NS}, io)


def us(begin: int, end: int) -> tuple[int, int]:
    return T0_NS + begin * 1000, T0_NS + end * 1000


@pytest.mark.parametrize("dialect", DIALECTS)
def test_annotations_become_nested_phases(tmp_path: Path, dialect: str) -> None:
    """Every dialect: paths by containment, a doubled span once in the path, no call of I/O."""
    io = traced(tmp_path, dialect=dialect)
    found = table(io).of_rank("job", RANK)
    assert [
        (" ".join(one.path), (one.begin_ns - T0_NS) // 1000, (one.end_ns - T0_NS) // 1000)
        for one in found
    ] == [
        ("epoch", 0, 100),
        ("epoch train", 10, 60),
        ("epoch train forward", 20, 30),
        ("epoch train forward", 20, 30),
        ("epoch train backward", 30, 40),
        ("epoch evaluate", 60, 100),
    ]


def test_a_call_of_io_makes_no_answer_ambiguous(tmp_path: Path) -> None:
    """An interval in which a read begins and ends: the phase is the forward pass."""
    answer = table(traced(tmp_path)).at("job", RANK, *us(21, 29))
    assert (answer.certainty, answer.path) == (Certainty.UNIQUE, ("epoch", "train", "forward"))
    assert answer.source == "traces"


def test_times_are_those_of_the_host(tmp_path: Path) -> None:
    """Traces were aligned with an offset, samples are not: the offset is taken off again."""
    io = traced(tmp_path, offsets_ns={RANK: 5_000_000_000})
    assert table(io).of_rank("job", RANK)[0].begin_ns == T0_NS


def test_phase_events_come_first_and_traces_are_a_detail(tmp_path: Path) -> None:
    """Both sources: the path of events; the trace's path only where the innermost differs."""
    marks = [*scope(0, 60_000, "fit"), *scope(60_000, 100_000, "evaluate")]
    both = table(traced(tmp_path), marks)
    answer = both.at("job", RANK, *us(22, 25))
    assert (answer.path, answer.source) == (("fit",), "phase events")
    assert answer.detail == ("epoch", "train", "forward")
    assert answer.text == "in phase fit (traces: epoch / train / forward)"
    assert not both.at("job", RANK, *us(70, 80)).detail
    assert both.at("job", RANK, *us(100, 101)).certainty is Certainty.NONE


def test_a_childs_annotations_are_no_phases_of_its_rank(tmp_path: Path) -> None:
    """A forked worker of the loader is traced, and annotates what it reads."""
    calls = [*CALLS, Call("fork", 5, 1, ret=77)]
    child = Writer("v2.2", 77)
    write_trace(tmp_path / "child.pfw", [*child.lines([ai("item", 15, 50, "data")])])
    writer = Writer("v2.2", PID)
    lines = [*writer.lines(calls), writer.metadata("CM", "rank", str(RANK))]
    write_trace(tmp_path / "main.pfw", lines)
    io = load_traces([tmp_path])
    assert [len(one.processes) for one in io.ranks if one.rank == RANK] == [2]
    assert {span.thread.pid for span in table(io).spans} == {PID}


def test_other_threads_are_separate(tmp_path: Path) -> None:
    """A thread prepares data during the training: its span is not inside train."""
    io = traced(tmp_path, [*CALLS, ai("prepare", 25, 10, "data", tid=99)])
    answer = table(io).at("job", RANK, *us(26, 28))
    assert answer.candidates == (("prepare",), ("epoch", "train", "forward"))


@pytest.mark.parametrize(
    ("calls", "paths"),
    [
        pytest.param([("a", 0, 10), ("b", 5, 10), ("c", 6, 3)], ["a", "b", "b c"], id="crossing"),
        pytest.param(
            [("c", 0, 5), ("b", 0, 10), ("a", 0, 10)], ["a", "a b", "a b c"], id="one beginning"
        ),
    ],
)
def test_which_spans_are_nested(
    tmp_path: Path, calls: list[tuple[str, int, int]], paths: list[str]
) -> None:
    """Of spans that cross, the later is not inside the earlier. Of those that begin together the
    longer is outside, and of spans that also end together the one that was written last."""
    io = traced(tmp_path, [ai(*call) for call in calls])
    assert [" ".join(span.path) for span in table(io).spans] == paths


def test_of_several_jobs_the_one_with_the_pid_has_the_trace(tmp_path: Path) -> None:
    """Two jobs with the same rank: the pid decides, and if it cannot, the trace is left out."""
    io = traced(tmp_path)
    last = {("a", RANK, PID, "s"): T0_NS, ("b", RANK, 11, "s"): T0_NS}
    found = table(io, last_ns=last)
    assert {span.thread.job for span in found.spans} == {"a"}
    assert not found.warnings
    last["b", RANK, PID, "s"] = T0_NS
    found = table(io, last_ns=last)
    assert not found.spans
    assert found.warnings == ("traces that may be of several jobs, phases left out: rank 0",)


def test_an_unnamed_job_has_the_name_that_is_given(tmp_path: Path) -> None:
    """Neither samples nor traces name a job."""
    io = traced(tmp_path)
    found = build_phases([], {("", RANK, PID, ""): T0_NS}, io, unnamed="run-1")
    assert found.at("run-1", RANK, *us(62, 63)).path == ("epoch", "evaluate")


def test_a_process_without_a_rank_is_counted(tmp_path: Path) -> None:
    """Its phases cannot be of any rank."""
    path = write_trace(tmp_path / "x.pfw", [*Writer("v2.2", PID).lines(CALLS)])
    found = table(load_traces([path]))
    assert not found.spans
    assert found.warnings == ("traced processes without a rank, phases left out: 1",)


def test_the_longest_spans_of_traces_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More annotations than fit: the short ones are left out, and counted."""
    io = traced(tmp_path)
    monkeypatch.setattr(rank_phases, "MAX_SPANS", 3)
    found = table(io)
    assert [span.path[-1] for span in found.spans] == ["epoch", "train", "evaluate"]
    assert found.warnings == ("the shortest spans of traces, too many, left out: 3",)
