"""Laws of unpacking traces: a cut loses only what is behind it, and damage ends it, no more."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frd.dftracer import inflate
from frd.dftracer.inflate import Inflater
from tests.world.seeds import examples

LINES = b"".join(b'{"id":%d,"name":"read","ts":%d}\n' % (i, i * 37) for i in range(4000))
MEMBERS = [gzip.compress(LINES[at : at + 30_000], 6) for at in range(0, len(LINES), 30_000)]
PACKED = b"".join(MEMBERS)
LARGE = gzip.compress(LINES * 3, 6)
AHEAD = 1 << 16
"""Text that ISA-L itself may hold when it finds damage."""
places = st.integers(0, len(PACKED) - 1)
steps = st.sampled_from([7, 100, 4096, len(PACKED)])


def unpacked(packed: bytes, step: int) -> tuple[bytes, Inflater]:
    inflater = Inflater()
    pieces = [
        piece
        for at in range(0, len(packed), step)
        for piece in inflater.feed(packed[at : at + step])
    ]
    return b"".join([*pieces, inflater.rest()]), inflater


def zlib_unpacked(packed: bytes) -> bytes:
    pieces = []
    while packed:
        member = zlib.decompressobj(31)
        pieces += [member.decompress(packed), member.flush()]
        packed = member.unused_data
    return b"".join(pieces)


def test_a_trace_may_repeat_itself() -> None:
    """A call many million times is packed by a factor of several hundred, and read whole."""
    line = b'{"id":1,"name":"read","ts":37}\n'
    size = 5_500_000 * len(line)
    packed = gzip.compress(line * 5_500_000, 6)
    assert len(packed) * 300 < size
    inflater = Inflater()
    assert sum(map(len, inflater.feed(packed))) == size
    assert not inflater.damaged


@examples(300)
@given(places, steps)
def test_a_cut_loses_what_is_behind_it(cut: int, step: int) -> None:
    """As much comes out as zlib finds, however the bytes come, but for the last three bytes: ISA-L
    decodes up to so many at a time."""
    text, inflater = unpacked(PACKED[:cut], step)
    assert LINES.startswith(text)
    assert len(text) >= len(zlib_unpacked(PACKED[:cut])) - 3
    assert not inflater.damaged


@given(places, st.integers(1, 255), steps)
def test_members_before_damage_are_whole(place: int, flip: int, step: int) -> None:
    """One byte is another one: every member before its own comes out, and nothing is raised."""
    damaged = bytearray(PACKED)
    damaged[place] ^= flip
    text, _ = unpacked(bytes(damaged), step)
    ends = [sum(map(len, MEMBERS[: n + 1])) for n in range(len(MEMBERS))]
    whole = sum(end <= place for end in ends)
    assert text.startswith(LINES[: whole * 30_000])
    begin = ends[whole - 1] if whole else 0
    before = zlib.decompressobj(31).decompress(PACKED[begin:place])
    if place - begin > 10:  # else the header is damaged
        assert text.startswith(LINES[: whole * 30_000] + before)
    if ends[whole] - 8 <= place < ends[whole] - 4:  # the checksum
        assert text == LINES[: (whole + 1) * 30_000]


@given(st.integers(len(LARGE) // 2, len(LARGE) - 9), steps)
def test_of_a_large_member_little_is_lost(place: int, step: int) -> None:
    """A v1 trace is one member. More than is kept has been unpacked before the damage: at most
    what one call unpacks, and what ISA-L holds, is lost."""
    damaged = bytearray(LARGE)
    damaged[place] ^= 0x55
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflate, "_MAX_KEPT", 1_000)
        patch.setattr(inflate, "_CHUNK", 2_000)
        text, _ = unpacked(bytes(damaged), max(step, 100))
    before = zlib.decompressobj(31).decompress(LARGE[:place])
    assert text.startswith(before[: -2_000 - AHEAD])
