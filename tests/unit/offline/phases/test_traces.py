"""Phases from annotations in traces: real files through the real reader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from frd.offline.io.analysis import IoAnalysis, load_traces
from frd.offline.phases import rank_phases
from frd.offline.phases.answer import Certainty
from frd.offline.phases.marks import PhaseMark
from frd.offline.phases.rank_phases import Process
from frd.offline.phases.table import PhaseTable, build_phases
from tests.world.io_traces import DIALECTS, T0_US, Call, Writer, write_trace
from tests.world.phases import T0 as T0_NS
from tests.world.phases import scope

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
