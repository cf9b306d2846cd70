"""The JSON form of a timeline: columns that refer to each other, and the time that it shows."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from frd.forms import utc_text
from frd.model import UNKNOWN_SEQ, Kind
from frd.service.timelines.form import UNKNOWN_ENDS, timeline_json
from frd.service.timelines.timeline import MOMENT_NS, Bar, Gap, Lane, Late, Timeline
from tests.world.timelines import S, at, bar, closed, curve, finding, gap, lane, suspect, timeline


def shown(form: dict[str, Any], what: str, *names: str) -> list[tuple[Any, ...]]:
    """Rows of the columns."""
    return list(zip(*(form[what][name] for name in names), strict=True))


def test_a_hang_in_full() -> None:
    """Ranks 0 and 1 wait in op 7, which rank 2 has not joined: lanes, bars and the gap, with times
    that count from the begin of the picture."""
    of = finding(2, missing=(2,), waiting=(0, 1), opened=15)
    form = timeline_json(
        of,
        timeline(
            20,
            *(lane(2, "suspect"), lane(0, "waiting"), lane(1, "waiting", None)),
            *(bar(0, 6, 8, 9, ended_from=8.5), bar(0, 7, 10), bar(1, 7, 11), gap(2, 7, 10)),
        ),
    )
    assert (form["id"], form["at"]) == ("ab12", utc_text(at(20)))
    assert (form["from"], form["until"]) == (utc_text(at(7.9)), utc_text(at(12)))
    assert [one["rank"] for one in form["lanes"]] == [2, 0, 1]
    assert form["lanes"][0] == {
        "rank": 2,
        "node": "node2",
        "role": "suspect",
        "uncertainty_s": 1e-6,
    }
    assert form["lanes"][2]["uncertainty_s"] is None
    assert (form["groups"], form["ops"]) == (["dp"], ["all_reduce"])
    names = ("lane", "group", "seq", "op", "enqueued_s", "started_s", "end_from_s", "end_s")
    assert shown(form, "bars", *names) == [
        (1, 0, 6, 0, 0.1, None, 0.6, 1.1),
        (1, 0, 7, 0, 2.1, None, None, None),
        (2, 0, 7, 0, 3.1, None, None, None),
    ]
    assert form["bars"]["failed"] == [False] * 3
    assert shown(form, "missing", "lane", "group", "seq", "op", "since_s", "until_s") == [
        (0, 0, 7, 0, 2.1, None)
    ]
    assert (form["ranks"], form["all_ranks"], form["empty"]) == ("0-2", 3, "")
    assert form["memory"] is form["lateness"] is None
    assert form["onsets"] == []


def test_a_straggler_shows_the_last_ops() -> None:
    """It was found at 15 s, and its job goes on: the picture shows what the ranks did last."""
    of = finding(1, kind=Kind.STRAGGLER, opened=15)
    bars = [bar(rank, seq, seq + rank / 10, seq + 0.5) for rank in (0, 1) for seq in range(12, 60)]
    form = timeline_json(of, timeline(60, lane(1, "suspect"), lane(0), *bars))
    seqs = dict(shown(form, "bars", "lane", "seq"))
    assert seqs == {0: 59, 1: 59}
    assert len(form["bars"]["seq"]) == 2 * 8


def test_ops_after_the_begin_do_not_move_the_picture() -> None:
    """Rank 3 of another group goes on while rank 2 is missing: the picture still begins before the
    wait."""
    of = finding(2, missing=(2,), waiting=(0,), opened=15)
    others = [bar(3, seq, seq, seq + 0.5, group="other") for seq in range(5, 60)]
    form = timeline_json(of, timeline(60, bar(0, 6, 9, 9.5), bar(0, 7, 10), gap(2, 7, 10), *others))
    assert form["from"] < utc_text(at(9))


def test_without_a_gap_the_first_open_op_counts() -> None:
    """All ranks have joined an op that none completes, 8 s before the finding opened."""
    of = finding(waiting=(0, 1), opened=20)
    form = timeline_json(of, timeline(25, bar(0, 6, 9, 9.5), bar(0, 7, 12), bar(1, 7, 12.5)))
    assert utc_text(at(8)) < form["from"] < utc_text(at(9))
    assert form["until"] == utc_text(at(15))


def test_of_a_long_wait_the_begin_is_shown() -> None:
    """Ten minutes of waiting after a second of work: the picture ends a second after the begin of
    the wait, and a note says how long it goes on."""
    of = finding(2, missing=(2,), waiting=(0,), opened=15)
    live = timeline(600, bar(0, 6, 9, 9.5), bar(0, 7, 10), gap(2, 7, 10))
    form = timeline_json(of, live)
    assert (form["from"], form["until"]) == (utc_text(at(8.95)), utc_text(at(11)))
    (note,) = form["notes"]
    assert note == "The picture ends at 22:13:31 UTC; the wait still went on at 22:23:20."
    (note,) = timeline_json(closed(of, 700), live)["notes"]
    assert note == "The picture ends at 22:13:31 UTC; the wait ended at 22:25:00."


def test_a_picture_of_what_is_over_needs_no_note() -> None:
    """All ops have ended, or the wait is as short as the picture."""
    of = finding(2, missing=(2,), waiting=(0,), opened=15)
    for parts in ([bar(0, 7, 10, 500)], [bar(0, 6, 1, 2), bar(0, 7, 10)]):
        assert timeline_json(of, timeline(18, *parts, gap(2, 7, 10)))["notes"] == []


def test_each_lane_shows_its_last_ops() -> None:
    """A fast rank has thirty ops before the wait, a slow one nine: the picture begins with the
    eighth last op of the slow one."""
    of = finding(2, missing=(2,), waiting=(0, 1), opened=15)
    fast = [bar(0, n, n, n + 0.5) for n in range(70, 100)]
    slow = [bar(1, n, 10 * n, 10 * n + 5) for n in range(9)]
    form = timeline_json(of, timeline(200, *fast, *slow, gap(2, 100, 100)))
    begin = 10 - (100 - 10) / 20
    assert form["from"] == utc_text(at(begin))
    lanes = [form["lanes"][place]["rank"] for place in form["bars"]["lane"]]
    assert (lanes.count(0), lanes.count(1)) == (30, 8)
    assert min(form["bars"]["enqueued_s"]) == 10 - begin


def test_times_before_the_wait() -> None:
    """The begin of the incident: of a hang the first gap, and without one the first onset; of
    memory the onset, whatever ranks wait for; else the opening."""
    memory = finding(opened=50, kind=Kind.OOM, suspects=(suspect(0, 30), suspect(1, 40)))
    form = timeline_json(memory, timeline(60, gap(0, 7, 25)))
    assert [one["at_s"] for one in form["onsets"]] == [0.005, 10.005]
    of = finding(opened=50, suspects=(suspect(0, 30), suspect(1, 20)))
    at_of = [(one["rank"], one["at_s"]) for one in timeline_json(of, timeline(60))["onsets"]]
    assert at_of == [(0, 10.005), (1, 0.005)]
    assert timeline_json(of, timeline(60, gap(0, 7, 25)))["onsets"][1]["at_s"] == -4.995
    form = timeline_json(finding(opened=50), timeline(60))
    assert form["from"] == utc_text(at(50) - S // 200)
    assert form["empty"].startswith("No ops of these ranks are known.")


def test_what_a_picture_cannot_show() -> None:
    """Ends that are not known, clocks that are not aligned, and calls that leave no entry."""
    of = finding(2, missing=(2,), waiting=(0,))
    assert of.collective is not None
    object.__setattr__(of.collective, "seq", UNKNOWN_SEQ)
    some = timeline(12, lane(3, uncertainty_ns=None), lane(1, uncertainty_ns=None), lane(2))
    assert timeline_json(of, some)["notes"] == [
        "The clock of ranks 1,3 is not aligned: these bars may be displaced.",
        "all_reduce leaves no entry in the Flight Recorder: it is not drawn.",
    ]
    one = timeline(12, lane(3, uncertainty_ns=None), bar(3, 1, 1, 2, ended_from=1.5))
    assert timeline_json(finding(2), one)["notes"] == [
        UNKNOWN_ENDS,
        "The clock of rank 3 is not aligned: these bars may be displaced.",
    ]


def test_memory() -> None:
    """Series of a suspect and a victim: a row of values for each, with gaps, on common moments."""
    of = finding(1, kind=Kind.MEMORY_SPIKE, opened=14, suspects=(suspect(1, 10),))
    first = at(8) // MOMENT_NS
    curves = [curve(1, {first: 10, first + 40: 30}, capacity=99), curve(0, {first + 20: 5})]
    form = timeline_json(of, timeline(20, *curves))
    memory = form["memory"]
    assert [(one["rank"], one["role"], one["capacity_bytes"]) for one in memory["series"]] == [
        (1, "suspect", 99),
        (0, "other", None),
    ]
    assert memory["bytes"] == [[10, None, 30], [None, 5, None]]
    assert memory["at_s"] == [-1.995, 0.005, 2.005]
    assert form["empty"] == ""


def test_lateness_of_a_straggler() -> None:
    """Rank 1 is late in two ops, rank 0 is known in one of them."""
    late = (
        Late(0, "dp", 1, at(10), 0),
        Late(1, "dp", 1, at(10), 300_000_000),
        Late(1, "dp", 2, at(12), 200_000_000),
    )
    of = finding(1, kind=Kind.STRAGGLER, opened=14)
    form = timeline_json(of, timeline(20, lateness=late))
    assert form["lateness"] == {
        "ranks": [1, 0],
        "at_s": [-3.995, -1.995],
        "late_s": [[0.3, 0.2], [0.0, None]],
    }


# -- laws --------------------------------------------------------------------------------------

_RANK, _TIME = st.integers(0, 5), st.integers(1, 100)
_GROUP = st.sampled_from(["a", "b", "c"])
_OP = st.sampled_from(["", "all_reduce", "broadcast"])


@st.composite
def _bars(draw: st.DrawFn) -> Bar:
    enqueued, ended_from, ended = sorted(draw(st.tuples(_TIME, _TIME, _TIME)))
    is_open = draw(st.booleans())
    return Bar(
        draw(_RANK), draw(_GROUP), draw(_TIME), draw(_OP), at(enqueued),
        draw(st.sampled_from([0, at(enqueued)])),
        0 if is_open else at(ended_from), 0 if is_open else at(ended), draw(st.booleans()),
    )  # fmt: skip


_GAPS = st.builds(Gap, _RANK, _GROUP, _TIME, _OP, _TIME.map(at), st.none() | _TIME.map(at))
_LANES = st.lists(
    st.builds(Lane, _RANK, st.just("n"), st.just("other"), st.none() | _TIME),
    unique_by=lambda one: one.rank,
)
_TIMELINES = st.builds(
    Timeline,
    at=_TIME.map(lambda seconds: at(100 + seconds)),
    lanes=_LANES.map(tuple),
    groups=st.dictionaries(_GROUP, st.sampled_from(["dp", "tp"])),
    bars=st.lists(_bars(), max_size=20).map(tuple),
    gaps=st.lists(_GAPS, max_size=5).map(tuple),
)


@given(_TIMELINES, st.booleans())
def test_columns_refer_to_lanes_groups_and_ops(of: Timeline, is_closed: bool) -> None:
    """Whatever a timeline holds, also of ranks without a lane and groups without a label: columns
    are equally long, each index exists, nothing that is listed is unused, and what is shown touches
    the picture."""
    known = finding(2, opened=50)
    form = timeline_json(closed(known, 90) if is_closed else known, of)
    used: dict[str, set[int]] = {"lane": set(), "group": set(), "op": set()}
    for what in ("bars", "missing"):
        columns = form[what]
        assert len({len(column) for column in columns.values()}) == 1
        for name, places in used.items():
            places.update(columns[name])
    assert used["lane"] <= {*range(len(form["lanes"]))}
    assert used["group"] == {*range(len(form["groups"]))}
    assert used["op"] == {*range(len(form["ops"]))}
    assert form["from"] < form["until"]
    for enqueued, start, first, last in shown(
        form, "bars", "enqueued_s", "started_s", "end_from_s", "end_s"
    ):
        assert (first is None) == (last is None)
        assert last is None or 0 <= first <= last >= enqueued
        assert start is None or start >= enqueued
