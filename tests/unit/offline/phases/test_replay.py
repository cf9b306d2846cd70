"""Scopes from marks: what was well nested comes back exactly, and whatever is wrong is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frd.offline.phases import rank_phases, table
from frd.offline.phases.marks import PhaseMark
from frd.offline.phases.table import build_phases, replayed
from tests.world.phases import T0, mark

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
    monkeypatch.setattr(table, "_SEARCHED", 3)
    marks = [mark(at, True, str(at)) for at in range(1, 6)]
    assert "that match no beginning" in replayed([*marks, mark(9, False, "2")], {})[1][0]
    assert not replayed([*marks, mark(9, False, "3")], {})[1]
