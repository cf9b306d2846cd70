"""Answers of the table of phases, next to those of a naive reader; and sums of gains."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frd.model import SeriesKind
from frd.offline.phases import rank_phases
from frd.offline.phases.answer import Certainty, PhaseAnswer
from frd.offline.phases.marks import PhaseMark
from frd.offline.phases.rank_phases import (
    EVENTS,
    PhaseGain,
    PhaseSeries,
    PhaseSpan,
    PhaseThread,
    RankSpans,
)
from frd.offline.phases.table import PhaseTable, build_phases
from tests.world.phases import T0, scope


def made(*scopes: list[PhaseMark], last: int = 100) -> PhaseTable:
    marks = [mark for some in scopes for mark in some]
    processes = {(mark.job, mark.rank, mark.pid, mark.session) for mark in marks}
    return build_phases(marks, dict.fromkeys(processes, T0 + last))


def at(table: PhaseTable, begin: int, end: int | None = None, **names: object) -> PhaseAnswer:
    end = begin if end is None else end
    return table.at("job", 0, T0 + begin, T0 + end, **names)  # type: ignore[arg-type]


# -- one interval ----------------------------------------------------------------------------------

TRAINING = [
    scope(0, 50, "epoch"),
    scope(10, 20, "epoch", "train"),
    scope(20, 30, "epoch", "eval", scope_id="e"),
]
LOADER = [scope(15, 40, "load", thread=7)]


def test_one_thread_in_one_phase_is_unique() -> None:
    """Within train: the innermost phase, since when, and from where it is known."""
    answer = at(made(*TRAINING), 12, 19)
    assert answer == PhaseAnswer(
        Certainty.UNIQUE, ("epoch", "train"), source=EVENTS, since_ns=T0 + 10
    )
    assert answer.text == "in phase epoch / train"


def test_a_change_within_the_interval_is_ambiguous() -> None:
    """The onset is somewhere from train to eval: both, the most recent first."""
    answer = at(made(*TRAINING), 18, 22)
    assert answer.certainty is Certainty.AMBIGUOUS
    assert answer.candidates == (("epoch", "eval"), ("epoch", "train"))
    assert answer.text == "in one of the phases epoch / eval, epoch / train"
    assert not answer.path


def test_an_end_or_a_beginning_of_all_phases_is_ambiguous() -> None:
    """The rank was in no phase for a part of the interval."""
    answer = at(made(*TRAINING), 45, 55)
    assert answer.candidates == (("epoch",), ())
    assert answer.text == "in phase epoch, or outside of them"
    assert at(made(*TRAINING), 45, 50) == answer
    assert at(made(*TRAINING), -5, 5).candidates == (("epoch",), ())


def test_one_step_after_another_is_one_phase() -> None:
    """The interval has the end of a step and the begin of the next: the phase since the first."""
    answer = at(made(scope(0, 5, "step"), scope(5, 9, "step")), 4, 6)
    assert (answer.certainty, answer.path) == (Certainty.UNIQUE, ("step",))
    assert answer.since_ns == T0


def test_two_threads_are_ambiguous_unless_a_sample_names_one() -> None:
    """A loader's thread is in a phase, too: both, or that of the thread or scope that is named."""
    table = made(*TRAINING, *LOADER)
    assert at(table, 22).candidates == (("epoch", "eval"), ("load",))
    assert at(table, 22, thread_id=7) == PhaseAnswer(
        Certainty.SAME_THREAD, ("load",), source=EVENTS, since_ns=T0 + 15
    )
    assert at(table, 22, thread_id=99).certainty is Certainty.AMBIGUOUS
    exact = at(table, 18, 22, scope_id="e")
    assert (exact.certainty, exact.path) == (Certainty.EXACT, ("epoch", "eval"))
    assert at(table, 45, scope_id="e").path == ("epoch",)


def test_of_scopes_with_one_id_the_most_recent_is_meant() -> None:
    """An id is used again after its scope has ended."""
    table = made(scope(0, 5, "a", scope_id="x"), scope(5, 9, "b", scope_id="x"))
    assert at(table, 4, 6, scope_id="x").path == ("b",)


def test_outside_of_phases_there_is_none() -> None:
    """Before, after, and in a rank or job that has no phases."""
    table = made(*TRAINING)
    none = PhaseAnswer(Certainty.NONE)
    assert at(table, -5, -1) == at(table, 50) == none
    assert table.at("job", 3, T0, T0) == table.at("other", 0, T0, T0) == none
    assert not none.text


def test_the_last_sample_is_in_an_open_phase() -> None:
    """A recording ends within a phase: at its last time the phase still runs."""
    table = made(scope(5, None, "epoch"), last=60)
    answer = at(table, 60)
    assert answer.is_open
    assert answer.path == ("epoch",)
    assert at(table, 61).certainty is Certainty.NONE


@pytest.mark.parametrize(("most", "kept"), [(2, "87"), (16, "876543210")])
def test_candidates_are_limited(monkeypatch: pytest.MonkeyPatch, most: int, kept: str) -> None:
    """A wide interval over many phases: the most recent ones, and how many more there are. The text
    has three at most, so that a verdict stays one line."""
    monkeypatch.setattr(rank_phases, "MAX_CANDIDATES", most)
    answer = at(made(*[scope(n, n + 1, str(n)) for n in range(9)]), 0, 8)
    more = 9 - len(kept)
    assert (answer.candidates, answer.more) == (tuple((name,) for name in kept), more)
    in_text = kept[:3]
    assert answer.text == f"in one of the phases {', '.join(in_text)} and {9 - len(in_text)} more"
    assert answer.to_json().get("more_candidates", 0) == more


names = st.sampled_from(["a", "b", "c"])
rows = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 8), st.integers(0, 2), names, st.booleans()),
    max_size=10,
)


def naive(spans: list[PhaseSpan], begin: int, end: int) -> set[tuple[str, ...]]:
    """Looks at every nanosecond."""
    found: set[tuple[str, ...]] = set()
    for time in range(begin, end + 1):
        inner: dict[PhaseThread, tuple[str, ...]] = {}
        for span in spans:  # a later one is inside the ones before
            until = span.end_ns + 1 if span.is_open else span.end_ns
            if span.begin_ns <= time < until:
                inner[span.thread] = span.path
        found |= set(inner.values()) or {()}
    return found


@given(rows, st.integers(0, 22), st.integers(0, 9))
def test_answers_are_those_of_a_naive_reader(
    some: list[tuple[int, int, int, str, bool]], begin: int, length: int
) -> None:
    """Spans of three threads, nested or not, open or of no length, in any interval."""
    spans = [
        PhaseSpan(
            PhaseThread("job", 0, "h", 1, "", thread, ""),
            (name,),
            begin,
            begin + length,
            is_open,
            "",
            EVENTS,
        )
        for begin, length, thread, name, is_open in sorted(some, key=lambda row: row[0])
    ]
    expected = naive(spans, begin, begin + length)
    answer = RankSpans.of(spans, EVENTS).at(begin, begin + length, "", None)
    if expected == {()}:
        assert answer == PhaseAnswer(Certainty.NONE)
    elif len(expected) == 1:
        assert (answer.certainty, answer.path) == (Certainty.UNIQUE, *expected)
        assert answer.since_ns <= begin
    else:
        assert answer.certainty is Certainty.AMBIGUOUS
        assert set(answer.candidates) == expected
        assert len(answer.candidates) == len(expected)


# -- bytes gained ----------------------------------------------------------------------------------


def series(
    samples: dict[int, int], rank: int = 0, kind: SeriesKind = SeriesKind.DEVICE_USED
) -> PhaseSeries:
    times = np.array([T0 + time for time in samples], np.int64)
    return PhaseSeries("job", rank, kind, times, np.array([*samples.values()], np.int64))


def gained(rows: list[PhaseGain]) -> dict[tuple[str, ...], int]:
    return {row.path: row.bytes_gained for row in rows}


def test_a_byte_counts_in_the_innermost_phase_only() -> None:
    """Growth in eval is not growth of the epoch; what comes after all phases is outside."""
    values = {0: 10, 11: 12, 19: 15, 25: 55, 40: 50, 60: 51}
    found = made(*TRAINING).gains([series(values)])
    assert gained(found) == {
        ("epoch", "eval"): 40,
        ("epoch", "train"): 5,
        (): 1,
        ("epoch",): -5,
    }
    assert [row.path for row in found] == [("epoch", "eval"), ("epoch", "train"), (), ("epoch",)]
    assert {row.path: round(row.seconds * 1e9) for row in found} == {
        ("epoch", "eval"): 10,
        ("epoch", "train"): 10,
        ("epoch",): 30,
        (): 10,
    }
    assert not any(row.shared for row in found)


def test_a_row_names_the_rank_that_gained_the_most() -> None:
    """Three ranks, of which one has no samples: the sum and the largest part of two."""
    table = made(*[scope(10, 20, "eval", rank=rank) for rank in range(3)])
    found = table.gains([series({5: 0, 15: 3}), series({5: 0, 15: 4}, rank=1)])
    assert found[0] == PhaseGain(
        job="job",
        kind=SeriesKind.DEVICE_USED,
        path=("eval",),
        source=EVENTS,
        spans=2,
        ranks=2,
        bytes_gained=7,
        most_bytes=4,
        most_rank=1,
        seconds=10e-9,
        shared=False,
    )
    assert found[0].to_json()["path"] == ["eval"]


def test_series_of_several_kinds_are_never_added() -> None:
    """Reserved memory is part of the device's: each kind has its own rows."""
    kinds = SeriesKind.DEVICE_USED, SeriesKind.TORCH_RESERVED
    found = made(*TRAINING).gains([series({0: 1, 15: 9}, kind=kind) for kind in kinds])
    assert {row.kind: row.bytes_gained for row in found if row.path[-1:] == ("train",)} == (
        dict.fromkeys(kinds, 8)
    )


def test_the_main_threads_phase_counts() -> None:
    """A loader begins after train, and both run: train counts, and the row is shared."""
    found = made(*TRAINING, *LOADER).gains([series({14: 1, 18: 7, 35: 8, 55: 9})])
    assert gained(found)["epoch", "train"] == 6
    assert gained(found)["load",] == 0
    assert {row.path for row in found if row.shared} == {
        ("epoch", "train"),
        ("epoch", "eval"),
        ("epoch",),
    }


samples = st.dictionaries(st.integers(0, 22), st.integers(-1, 1 << 40), max_size=12)


@given(rows, st.lists(samples, max_size=3))
def test_gains_sum_to_the_last_value_minus_the_first(
    some: list[tuple[int, int, int, str, bool]], values: list[dict[int, int]]
) -> None:
    """Any spans on any threads of two ranks: no byte is counted twice, and none is lost."""
    marks = [
        scope(begin, begin + length, name, thread=thread, rank=number % 2, scope_id=str(number))
        for number, (begin, length, thread, name, _) in enumerate(some)
    ]
    given_ = [
        series(dict(sorted(one.items())), rank=number % 2) for number, one in enumerate(values)
    ]
    found = made(*marks).gains(given_)
    known = [one.values[one.values >= 0] for one in given_]
    expected = sum(int(one[-1] - one[0]) for one in known if len(one))
    assert sum(row.bytes_gained for row in found) == expected
    lasted = 0
    for rank in (0, 1):
        of = [one for one in given_ if one.rank == rank]
        times = [time for one in of for time in one.times[one.values >= 0].tolist()]
        lasted += max(times) - min(times) if times else 0
    assert round(sum(row.seconds for row in found) * 1e9) == lasted
    by_path = {row.path: row for row in found}
    assert len(by_path) == len(found)


@given(rows, samples)
def test_growth_counts_in_the_phase_whose_sample_shows_it(
    some: list[tuple[int, int, int, str, bool]], values: dict[int, int]
) -> None:
    """Spans of the main thread (1) and others: a naive reader goes from sample to sample."""
    table = made(
        *[
            scope(begin, begin + length + 1, name, thread=thread, scope_id=str(number))
            for number, (begin, length, thread, name, _) in enumerate(some)
        ]
    )
    expected: Counter[tuple[str, ...]] = Counter()
    known = [(at, value) for at, value in sorted(values.items()) if value >= 0]
    for (_, before), (time, value) in pairwise(known):
        running = [
            (span.thread.is_main, span.begin_ns, number, span.path)
            for number, span in enumerate(table.of_rank("job", 0))
            if span.begin_ns <= T0 + time < span.end_ns
        ]
        expected[max(running)[-1] if running else ()] += value - before
    found = gained(table.gains([series(dict(sorted(values.items())))]))
    assert {path: some for path, some in found.items() if some} == {
        path: some for path, some in expected.items() if some
    }
