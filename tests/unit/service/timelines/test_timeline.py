"""A stored timeline and what is known later, and what closing makes of it. It comes back whole, and
a damaged one is refused."""

from __future__ import annotations

import dataclasses
import tracemalloc
import zlib
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frd.engine.views import AttemptView, MemoryView
from frd.model import Finding, Flags, Kind, SeriesInfo, SeriesKind
from frd.service.timelines import timeline as module
from frd.service.timelines.timeline import (
    MAX_LATENESS,
    MAX_MOMENTS,
    MOMENT_NS,
    Late,
    Reached,
    Timeline,
    closed,
    merged,
)
from frd.service.timelines.timelines import drawn, lanes_of, roles_of
from tests.world import observe
from tests.world.job import Job, hanging
from tests.world.timelines import S, at, bar, curve, gap, lane, timeline
from tests.world.timelines import finding as made


def test_kept_bars_get_their_ends() -> None:
    """The op goes on in what was kept, and has ended by now."""
    kept = timeline(10, bar(0, 7, 1), bar(1, 7, 2), gap(2, 7, 1))
    live = timeline(20, bar(0, 7, 1, 15), bar(1, 7, 2))
    found = merged(kept, live)
    assert found.bars == (bar(0, 7, 1, 15), bar(1, 7, 2))
    assert found.gaps == kept.gaps
    assert (found.at, found.lanes) == (at(20), kept.lanes)


def test_what_is_new_is_added() -> None:
    """An open finding: more ranks, bars and groups appear; bars are sorted by rank, then time."""
    kept = timeline(10, bar(1, 7, 2))
    live = timeline(20, bar(1, 8, 6), bar(0, 7, 3), gap(3, 7, 2), groups={"g": "dp", "h": "tp"})
    found = merged(kept, live)
    assert found.bars == (bar(0, 7, 3), bar(1, 7, 2), bar(1, 8, 6))
    assert found.gaps == live.gaps
    assert sorted(one.rank for one in found.lanes) == [0, 1, 3]
    assert found.groups == {"g": "dp", "h": "tp"}


def test_lanes_are_those_of_now() -> None:
    """The clock of a rank is known only now, and another rank has come: each has its newest
    lane, and a rank that is gone keeps its last one."""
    kept = timeline(10, lane(0, "waiting"), lane(1, "member", None))
    live = timeline(20, lane(2, "other"), lane(1, "suspect"))
    found = merged(kept, live).lanes
    assert {one.rank: one for one in found} == {
        0: kept.lanes[0],
        1: live.lanes[1],
        2: live.lanes[0],
    }
    assert len(found) == 3


def test_a_rank_that_has_joined_is_missing_no_longer() -> None:
    """Two ranks were missing; one has joined, while the finding stays open for the other."""
    kept = timeline(10, gap(2, 7, 1), gap(3, 7, 1))
    live = timeline(20, bar(3, 7, 15), gap(2, 7, 1))
    found = merged(kept, live)
    assert {one.rank: one.until for one in found.gaps} == {2: None, 3: at(15)}


def test_a_finding_that_closes_ends_its_gaps() -> None:
    """A missing rank was missing until it joined; one that never did, until the end. A gap that has
    an end keeps it."""
    found = closed(timeline(30, gap(1, 7, 1), gap(2, 7, 1), gap(3, 7, 1, 5), bar(1, 7, 20)), at(25))
    assert [one.until for one in found.gaps] == [at(20), at(25), at(5)]


def test_curves_are_united_and_bounded() -> None:
    """Each look adds some values, and has others again at times that are a little different; the
    oldest ones go beyond half an hour."""
    kept = timeline(10, curve(0, {10: 10, 30: 20}), curve(1, {10: 5}))
    live = timeline(20, curve(0, {31: 21, 50: 30}, capacity=99), curve(2, {30: 7}))
    found = merged(kept, live).curves
    assert {one.rank: one.values for one in found} == {
        0: {10: 10, 31: 21, 50: 30},
        1: {10: 5},
        2: {30: 7},
    }
    assert found[0].capacity == 99
    long = Timeline(at=0)
    for first in range(0, 3 * MAX_MOMENTS, 100):
        values = dict.fromkeys(range(20 * first, 20 * first + 4000, 20), 1)
        long = merged(long, timeline(20, curve(0, values)))
    last = 20 * (3 * MAX_MOMENTS + 100)
    assert [*long.curves[0].values] == [*range(last - 20 * MAX_MOMENTS, last, 20)]


def test_lateness_is_united_and_bounded() -> None:
    """Each look has some ops again and some new ones: each is there once, the last ones stay."""
    known = Timeline(at=0)
    for first in range(0, 3 * MAX_LATENESS, 50):
        rows = tuple(
            Late(rank, "dp", n, at(n), n) for n in range(first, first + 100) for rank in (0, 1)
        )
        known = merged(known, Timeline(at=1, lateness=rows))
    moments = sorted({late.at for late in known.lateness})
    assert len(moments) == MAX_LATENESS
    assert len(known.lateness) == 2 * MAX_LATENESS
    assert moments[-1] == at(1499 + 100)


def test_nothing_grows_while_nothing_changes() -> None:
    """The same look again and again leaves what is kept as it is."""
    one = timeline(10, bar(0, 7, 1), bar(0, 6, 0.5, 0.9), gap(2, 7, 1), curve(0, {1: 1}))
    found = merged(one, one)
    assert found == merged(found, one)
    assert (len(found.bars), len(found.gaps), len(found.lanes)) == (2, 1, 2)


def test_an_op_that_others_have_replaced_has_ended() -> None:
    """The engine has no row of op 7 any more, and its watermarks say that rank 0 has completed 9;
    of rank 1 they say nothing."""
    kept = timeline(10, bar(0, 7, 1), bar(1, 7, 1))
    live = timeline(20, lane(0), lane(1), reached=(Reached(0, "g", 9, 9),))
    assert merged(kept, live).bars == (bar(0, 7, 1, 20, ended_from=1), bar(1, 7, 1))


def test_a_gap_is_over_once_the_rank_is_known_to_have_joined() -> None:
    """Rank 2 is at op 8 now, and its row of op 7 is gone; of rank 3 a restarted engine knows
    nothing yet."""
    kept = timeline(10, gap(2, 7, 1), gap(3, 7, 1))
    live = timeline(20, lane(2), lane(3), reached=(Reached(2, "g", 8, 6),))
    assert [(one.rank, one.until) for one in merged(kept, live).gaps] == [(2, at(20)), (3, None)]


def test_the_better_known_end_stays() -> None:
    """First only a bound is known, then the exact time."""
    rough = timeline(10, bar(0, 7, 1, 9, ended_from=2))
    exact = timeline(20, bar(0, 7, 1, 6))
    assert merged(rough, exact).bars == merged(exact, rough).bars == exact.bars


# -- stored ------------------------------------------------------------------------------------

WHOLE = timeline(
    30,
    lane(0, "suspect", None),
    lane(1, "waiting"),
    bar(1, 7, 1, 9, ended_from=8, failed=True),
    bar(1, 8, 9),
    gap(0, 7, 1, 8.5),
    gap(0, 8, 9),
    curve(0, {3: 1 << 40, -1: 0}, capacity=1 << 41),
    lateness=(Late(0, "dp", 3, at(1), -5),),
)


def test_what_is_stored_comes_back() -> None:
    """All parts of a timeline, with absent values and large ones."""
    assert Timeline.decode(WHOLE.encode()) == WHOLE
    assert Timeline.decode(Timeline(at=1).encode()) == Timeline(at=1)


def test_a_file_of_a_newer_release() -> None:
    """It has keys that this release does not know, after a downgrade: the others are read."""
    text = {**msgspec.json.decode(zlib.decompress(WHOLE.encode())), "colour": ["red"]}
    assert Timeline.decode(zlib.compress(msgspec.json.encode(text))) == WHOLE


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        zlib.compress(b""),
        zlib.compress(b"[]"),
        zlib.compress(b"{}"),
        zlib.compress(b'{"at": "now"}'),
        zlib.compress(b'{"at": 1, "lanes": [[0]]}'),
        zlib.compress(b'{"at": 1, "groups": {"\xff": ""}}'),
        zlib.compress(b'{"at": 1, "more": ' + b"[" * 100_000),
        WHOLE.encode()[:-20],
    ],
    ids=range(10),
)
def test_damaged_bytes_are_refused(data: bytes) -> None:
    """Nothing, something else, and half of a timeline: a ValueError, whatever it is."""
    with pytest.raises(ValueError, match=r"."):
        Timeline.decode(data)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    """Random bytes, packed or not, are no timeline and no other fault."""
    for body in (data, zlib.compress(data)):
        with pytest.raises(ValueError, match=r"."):
            Timeline.decode(body)


def test_a_bomb_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes that unpack to many megabytes: unpacked up to the limit, then refused."""
    monkeypatch.setattr(module, "_MAX_BYTES", 100_000)
    bomb = zlib.compress(b'{"at": 1, "groups": {"a": "' + b"x" * 50_000_000 + b'"}}')
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="not a timeline"):
            Timeline.decode(bomb)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


# -- timelines of findings of real engines, from what the engine remembers -------------------------


def view_of(job: Job) -> AttemptView:
    (view,) = job.engine.status_view(job.now).attempts
    return view


def test_a_hang() -> None:
    """Rank 2 does not join op 1: it is the first lane, with a gap; the others have an open bar."""
    job = hanging(8)
    drawing = drawn(job.only(), view_of(job), job.now, None)
    assert [(one.rank, one.node, one.role) for one in drawing.lanes] == [
        (2, "node1", "suspect"),
        (0, "node0", "waiting"),
        (1, "node0", "waiting"),
        (3, "node1", "waiting"),
    ]
    assert [(bar.rank, bar.seq, bar.ended > 0) for bar in drawing.bars] == [
        (0, 0, True), (0, 1, False), (1, 0, True), (1, 1, False), (2, 0, True),
        (3, 0, True), (3, 1, False),
    ]  # fmt: skip
    (gap,) = drawing.gaps
    began = next(bar.enqueued for bar in drawing.bars if bar.seq == 1)
    assert (gap.rank, gap.seq, gap.op, gap.since, gap.until) == (2, 1, "all_reduce", began, None)
    assert drawing.groups == {gap.group: "dp"}
    assert (drawing.at, drawing.all_ranks, drawing.has_unknown_ends) == (job.now, 4, False)
    assert (drawing.curves, drawing.lateness) == ((), ())


# -- lanes -------------------------------------------------------------------------------------

RANKS = st.lists(st.integers(0, 60), max_size=30, unique=True)


def test_those_that_matter_most_come_first() -> None:
    """Sixteen lanes of a thousand ranks: suspects, the witness, some of the missing, then waiting
    ones at even distances, the first and the last of them included."""
    of = made(500, 7, missing=(500, 7, *range(100, 120)), waiting=range(200, 301), witness=250)
    chosen = lanes_of(of, range(1000), 16)
    assert chosen[:3] == [500, 7, 250]
    assert len(chosen) == len({*chosen}) == 16
    missing = [rank for rank in chosen if 100 <= rank < 120]
    assert (len(missing), missing[-1]) == (3, 119)
    waiting = [rank for rank in chosen[3:] if 200 <= rank <= 300]
    assert waiting[:1] + waiting[-1:] == [200, 300]
    steps = [b - a for a, b in pairwise(waiting)]
    assert max(steps) - min(steps) <= 2


def test_other_ranks_fill_the_lanes() -> None:
    """Rank 3 is the only one that is involved: others are shown for comparison."""
    assert lanes_of(made(3), range(8), 4) == [3, 0, 4, 7]


def test_more_suspects_than_have_room() -> None:
    """Forty suspects of four lanes, and of sixteen: others have their lanes too."""
    of = made(*range(40), waiting=range(40, 80))
    assert lanes_of(of, range(80), 4) == [0, 1, 2, 3]
    chosen = lanes_of(of, range(80), 16)
    assert chosen[:8] == [*range(8)]
    assert [rank for rank in chosen if rank >= 40] == chosen[8:]


@given(RANKS, RANKS, RANKS, RANKS, st.integers(0, 60), st.integers(1, 20))
def test_lanes_are_bounded_and_of_known_ranks(
    ranks: list[int], suspects: list[int], missing: list[int], waiting: list[int], who: int, n: int
) -> None:
    """Whatever a finding says: at most so many lanes, each of a known rank, none twice, and none
    is left free that a rank could have."""
    of = made(*suspects, missing=missing, waiting=waiting, witness=who)
    chosen = lanes_of(of, sorted(ranks), n)
    assert {*chosen} <= {*ranks}
    assert len({*chosen}) == len(chosen) == min(n, len(ranks))


def test_the_role_of_a_rank() -> None:
    """A rank has the role that says most: a suspect that is missing is a suspect."""
    of = made(1, missing=(1, 2), waiting=(3, 4), victims=(5,), unknown=(6, 4), witness=4)
    assert roles_of(of, range(8)) == {
        0: "other",
        1: "suspect",
        2: "member",
        3: "waiting",
        4: "witness",
        5: "waiting",
        6: "member",
        7: "other",
    }
    assert roles_of(of, [3]) == {3: "waiting"}
    assert roles_of(made(), [0]) == {0: "other"}


# -- a straggler -------------------------------------------------------------------------------


def straggling(ops: int = 20) -> tuple[Finding, Job]:
    """Rank 3 enqueues each op 300 ms after ranks 0 to 2, which do so a millisecond apart."""
    job = Job(4).group("dp", range(4))
    for seq in range(ops):
        for rank in range(4):
            late = 300_000_000 if rank == 3 else rank * 1_000_000
            observe.entries(
                job.attempt, rank, job.handles["dp"], seq, Flags.JOINED | Flags.COMPLETED,
                created=job.now + seq * S + late, now=job.now,
            )  # fmt: skip
    job.now = type(job.now)(job.now + (ops + 1) * S)
    return made(3, kind=Kind.STRAGGLER, victims=(0, 1, 2)), job


def test_how_late_a_straggler_is() -> None:
    """Of each op: when its first rank enqueued it, and how much later the suspect and some others
    did."""
    of, job = straggling()
    drawing = drawn(of, view_of(job), job.now, None)
    by_rank: dict[int, set[int]] = {}
    for one in drawing.lateness:
        by_rank.setdefault(one.rank, set()).add(one.late_ns)
    assert by_rank == {0: {0}, 1: {1_000_000}, 2: {2_000_000}, 3: {300_000_000}}
    assert len(drawing.lateness) == 4 * 20


@pytest.mark.parametrize("victims", [(), (77,)])
def test_a_straggler_without_peers(victims: tuple[int, ...]) -> None:
    """No other rank is known that one could compare it with."""
    of, job = straggling()
    of = dataclasses.replace(of, victims=victims)
    assert drawn(of, view_of(job), job.now, None).lateness == ()


# -- memory ------------------------------------------------------------------------------------


def with_memory(*series: SeriesInfo) -> AttemptView:
    """Series whose last three values are 1, unknown and 3, one each two seconds."""
    view = view_of(hanging(8))
    recent = np.tile(np.array([1, -1, 3]), (len(series), 1))
    used = np.full(len(series), 3)
    last = np.full(len(series), view.rank_columns.as_of.max())
    memory = MemoryView(series, used, used * 9, recent, 2.0, last - 9 * S // 4, last)
    return dataclasses.replace(view, memory=memory)


def test_memory_of_suspects_and_some_others() -> None:
    """All series of the suspect; of others those of the same kinds, but not those of a cgroup,
    which ranks share."""
    host, cgroup, device = SeriesKind.HOST_USED, SeriesKind.CGROUP_USED, SeriesKind.DEVICE_USED
    view = with_memory(
        *(SeriesInfo(0, host), SeriesInfo(0, cgroup), SeriesInfo(1, device, "GPU-1")),
        *(SeriesInfo(2, host), SeriesInfo(2, cgroup), SeriesInfo(3, host)),
    )
    of = made(2, kind=Kind.MEMORY_SPIKE, victims=(0, 1))
    curves = drawn(of, view, view.rank_columns.as_of.max(), None).curves
    assert [(one.rank, one.kind) for one in curves] == [
        (2, "host_used"), (2, "cgroup_used"), (0, "host_used"), (3, "host_used"),
    ]  # fmt: skip
    last = int(view.rank_columns.as_of.max())
    assert curves[0].values == {(last - 9 * S // 4) // MOMENT_NS: 1, last // MOMENT_NS: 3}
    assert curves[0].capacity == 27
    assert drawn(made(2), view, 1, None).curves == ()  # of a hang


def test_no_memory_is_known() -> None:
    """An allocation failed, and no agent reports memory: nothing to draw, and no fault."""
    view = view_of(hanging(8))
    assert drawn(made(2, kind=Kind.OOM), view, 1, None).curves == ()


def test_memory_is_bounded() -> None:
    """A suspect with a hundred devices: a few curves."""
    series = [SeriesInfo(2, SeriesKind.DEVICE_USED, f"GPU-{n}") for n in range(100)]
    view = with_memory(*series)
    assert len(drawn(made(2, kind=Kind.OOM), view, 1, None).curves) == 16
