"""A stored timeline and what is known later, and what closing makes of it. It comes back whole, and
a damaged one is refused."""

from __future__ import annotations

import tracemalloc
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frd.service.timelines import timeline as module
from frd.service.timelines.timeline import (
    MAX_LATENESS,
    MAX_MOMENTS,
    Late,
    Reached,
    Timeline,
    closed,
    merged,
)
from tests.world.timelines import at, bar, curve, gap, lane, timeline


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
