"""Laws of unpacking traces: a cut loses only what is behind it, and damage ends it, no more."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frd.dftracer import inflate
from frd.dftracer.inflate import Inflater
from frd.offline.memory.events import files as event_files
from frd.offline.memory.events import lines
from frd.offline.memory.events.files import EventFile, Piece
from frd.offline.memory.events.phases import PHASES, FullEvent, mark_of, origin_of
from frd.offline.memory.telemetry import ABSURD, NONE, NUMBERS, identity_of
from tests.world.seeds import examples
from tests.world.telemetry_files import event

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


# -- event lines -----------------------------------------------------------------------------------
# Laws of reading events: the fast way gives what plain msgspec gives, in whatever pieces.


BYTES = st.one_of(
    st.integers(0, 1 << 40),
    st.none(),
    st.sampled_from([0, 9, 10, 99, -1, -7, 10**18, 10**19 - 1, -(10**19) + 1, 10**25, -(1 << 62)]),
)
TEXTS = st.sampled_from(
    ["sample", "n0", "n1", "", 'a"b', "a\\b", "é", "x,y", "{}", "\n", "oom", "7"]
)
SCOPE = {
    "action": "enter", "name": "eval", "path": ["train", "eval"], "depth": 2, "scope_id": "s1",
    "parent_scope_id": None, "thread_id": 77, "thread_name": "MainThread", "sequence": 3,
    "attributes": {},
}  # fmt: skip
METADATA = st.sampled_from(
    [
        None, ..., {}, {"a": [1, {"rank": 5}]}, {"k": "v", "n": 1.5e3}, {"origin_thread_id": 12},
        {"origin_thread_id": 13, "origin_phase_scope_id": "s1"}, {"origin_phase_scope_id": "s2"},
        {"origin_phase_scope_id": 4}, {"origin_thread_id": "x"}, {"phase_scope": SCOPE}, "text",
        [1], {"origin_phase_scope_id": 'q"'},
    ]
)  # fmt: skip
CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "allocator_allocated_bytes": BYTES,
    "allocator_reserved_bytes": BYTES,
    "allocator_change_bytes": BYTES,
    "device_used_bytes": BYTES,
    "device_total_bytes": BYTES,
    "timestamp_ns": st.integers(1_800_000_000_000_000_000, 1_800_000_000_000_999_999) | BYTES,
    "rank": st.integers(-1, 12) | st.none() | st.just(...) | st.just("one"),
    "pid": st.integers(0, 12_000) | st.just(10**30),
    "host": TEXTS | st.none(),
    "job_id": TEXTS,
    "context": TEXTS | st.none() | st.floats(allow_nan=False),
    "event_type": st.sampled_from(["sample", "simple", "oom", "phase_enter", "phase_start"]),
    "schema_version": st.integers(1, 11),
    "metadata": METADATA,
    "origin_thread_id": st.just(...) | st.integers(1, 3),
    "more": st.just(...) | st.lists(st.integers(0, 20), max_size=2),
}


def line(draw: st.DrawFn, dice: Random) -> bytes:
    """An event as it may be written, or something else."""
    names = draw(st.lists(st.sampled_from(sorted(CHANGES)), max_size=4, unique=True))
    fields = event(0, **{name: draw(CHANGES[name]) for name in names})
    if dice.random() < 0.1:
        fields = dict(sorted(fields.items()))
    separators = dice.choice([(", ", ": "), (",", ":"), (" , ", " :")])
    is_ascii = dice.random() < 0.5
    text = json.dumps(fields, separators=separators, ensure_ascii=is_ascii).encode()
    match dice.randrange(16):
        case 0:
            text = text[: dice.randrange(len(text))]
        case 1:
            text = text[:-1] + b', "rank": 3, "pid": 44}'
        case 2:
            text = text[:-1] + b', "r\\u0061nk": 3}'
        case 3:
            text += b"\r"
        case 4:
            text += text
        case 5:
            at = dice.randrange(len(text))
            text = (
                text[:at] + dice.choice([b'"', b"\\", b"0", b"-", b"\xff", b" "]) + text[at + 1 :]
            )
        case 6:
            text = dice.choice([b"", b" ", b"[]", b"null", b"{}", b'{"rank": 01}'])
    return text


@st.composite
def file(draw: st.DrawFn) -> bytes:
    """Several lines, most of them many times with other digits or texts of the same length."""
    dice = Random(draw(st.integers(0, 1 << 32)))
    lines = [json.dumps(event()).encode()]  # else the file may be a list
    for _ in range(dice.randint(1, 4)):
        one = line(draw, dice)
        lines += [varied(one, dice) for _ in range(dice.choice([1, 10, 30]))]
    return b"\n".join(lines) + dice.choice([b"\n", b""])


def varied(one: bytes, dice: Random) -> bytes:
    """The same line with some other bytes in numbers and texts, sometimes with wrong ones."""
    if dice.random() < 0.1:
        one = one.replace(b"phase_start", b"phase_enter")
    other = bytearray(one)
    numbers = [found.span() for found in re.finditer(rb"(?<=[ :\[])-?[0-9.]+", one)]
    tokens = re.finditer(rb'"([^"\\]*(?:\\.[^"\\]*)*)"(\s*:)?', one)
    texts = [found.span(1) for found in tokens if found[1] and not found[2]]
    for _ in range(dice.choice([0, 1, 2, 3]) if numbers and texts else 0):
        begin, end = dice.choice(dice.choice([numbers, texts]))
        at = dice.randrange(begin, end)
        if one[at : at + 1].isdigit():
            other[at : at + 1] = b"%d" % dice.choice([0, dice.randint(0, 9)])
        elif dice.random() < 0.5:
            other[at] = dice.choice(b'xyz~"\\\x01\x7f')
    return bytes(other)


def plainly(text: bytes) -> tuple[list[Any], list[Any], list[int]]:
    """What msgspec alone gives, line by line: samples, marks, and the numbers of bad lines."""
    decoder = msgspec.json.Decoder(FullEvent)
    samples, marks, bad = [], [], []
    for number, one in enumerate(text.split(b"\n"), 1):
        if not one.strip():
            continue
        try:
            found = decoder.decode(one.strip())
        except (msgspec.MsgspecError, UnicodeDecodeError):
            bad.append(number)
            continue
        if found.event_type not in PHASES:
            numbers = [bounded(getattr(found, name)) for name in NUMBERS]
            samples.append((storable(identity_of(found)), numbers, origin_of(found)))
            continue
        try:
            marks.append(mark_of(found))
        except ValueError:
            bad.append(number)
    return samples, marks, bad


def bounded(number: int | None) -> int:
    if number is None:
        return NONE
    return number if -ABSURD < number < ABSURD else ABSURD


def storable(identity: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(min(v, ABSURD) if isinstance(v, int) else v for v in identity)


def quickly(path: Path, end: int | None = None) -> tuple[list[Any], list[Any], list[int]]:
    """The same by a reader of files, in one piece or two."""
    samples, marks, bad = [], [], []
    before = 0
    for piece in [
        Piece(0, path, 0, end),
        *([Piece(0, path, end, None)] if end is not None else []),
    ]:
        identities, origins, count = [], [], 0
        for part in EventFile(piece).parts():
            identities += part.identities
            origins += [*part.origins]
            block = part.block
            numbers = np.column_stack((block.at_ns, block.counters)).tolist()
            for number, row, origin in zip(block.identity, numbers, block.origin, strict=True):
                of = tuple(identities[number])
                samples.append((of, row, origins[origin] if origin >= 0 else None))
            marks += part.marks
            bad += [before + refusal.number for refusal in part.refusals.first]
            count = part.count
        before += count
    return samples, marks, bad


@examples(300)
@given(data=st.data(), text=file())
def test_the_fast_way_gives_what_msgspec_gives(
    tmp_path_factory: Any, data: st.DataObject, text: bytes
) -> None:
    """The same samples, marks and bad lines, wherever chunks and pieces are cut."""
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes(text)
    chunk = data.draw(st.sampled_from([1 << 19, 3000, 61]))
    end = data.draw(st.none() | st.integers(1, max(len(text), 1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_files, "_CHUNK_BYTES", chunk)
        patch.setattr(lines, "MIN_LINES", 2)
        samples, marks, bad = quickly(path, end)
    expected = plainly(text)
    assert samples == expected[0]
    assert marks == expected[1]
    assert bad[:8] == expected[2][:8]
