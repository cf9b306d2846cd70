"""Stored timelines come back whole, and damaged ones are refused."""

from __future__ import annotations

import tracemalloc
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frd.service.timelines import timeline as module
from frd.service.timelines.timeline import Late, Timeline
from tests.world.timelines import at, bar, curve, gap, lane, timeline

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
