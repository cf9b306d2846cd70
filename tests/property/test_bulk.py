"""Laws of reading all entries together: it gives what reading them one by one gives, or nothing."""

from __future__ import annotations

import pickletools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frd.errors import DumpError
from frd.flight.bulk import parse_columns
from frd.flight.decode import parse
from frd.flight.trace import Dictionaries, columns_of
from tests.world.dump_files import as_torch, document, entry, spelled_out
from tests.world.seeds import examples

COUNTS = st.integers(0, 300) | st.integers(0, 2**63 - 1)
SHAPES = st.lists(st.lists(COUNTS, max_size=2), max_size=2)
FRAMES = [{"name": name, "filename": "/a.py", "line": 7} for name in ("f", "g", "h")]
SHAPE = st.fixed_dictionaries(
    {},
    optional={
        "frames": st.lists(st.sampled_from(FRAMES), max_size=4),
        "process_group": st.tuples(st.sampled_from("01"), st.sampled_from(["", "TP"])),
        "profiling_name": st.sampled_from(["nccl:all_reduce", "nccl:send 0->1", "odd", ""]),
        "thread_name": st.text(max_size=3) | st.just(...),
        "input_sizes": SHAPES,
        "output_dtypes": st.lists(st.sampled_from(["Float", "Half"]), max_size=2),
        "state": st.sampled_from(["scheduled", "started", "completed", "novel"]),
        "duration_ms": st.floats(0, 1e9) | st.just(...) | st.none(),
        "retired": st.booleans(),
        "is_p2p": st.booleans() | st.just(...),
        "timeout_ms": st.integers(-(2**40), 2**40),
        "collective_seq_id": COUNTS,
        "pg_id": st.integers(-1, 300),
        "time_discovered_started_ns": COUNTS | st.none(),
        "op_id": COUNTS | st.just(-1),
    },
)


def either_way(data: bytes) -> Any:
    """What `parse` makes of `data`, which `parse_columns` must make of it too."""
    together, in_turn = Dictionaries(), Dictionaries()
    try:
        expected = spelled_out(columns_of(parse(data, source="x"), in_turn), in_turn)
    except DumpError:
        expected = None
    try:
        found = spelled_out(parse_columns(data, together, source="x"), together)
    except DumpError:
        found = None
    # A number that damage defines a second time means one thing or the other: both are wrong.
    assert found == expected or _defines_twice(data)
    return found


def _defines_twice(data: bytes) -> bool:
    numbers = [number for code, number, _ in pickletools.genops(data) if "PUT" in code.name]
    return len(set(numbers)) < len(numbers)


@examples(60)
@given(st.lists(SHAPE, min_size=1, max_size=6), st.integers(66, 150), st.booleans())
def test_together_is_one_by_one(shapes: list[Any], count: int, many_strings: bool) -> None:
    """A program of a few calls, odd values included, over and over."""
    rows = [entry(at, **shapes[at % len(shapes)]) for at in range(count)]
    config = {str(at): {"name": str(at), "desc": "", "ranks": "[0]"} for at in range(280)}
    change: dict[str, Any] = {"pg_config": config} if many_strings else {}
    assert either_way(as_torch(document(rows, **change))) is not None


@examples(150)
@given(st.data())
def test_damage_makes_no_difference(data: st.DataObject) -> None:
    """Bytes changed anywhere: the same columns either way, or an error either way."""
    rows = [
        entry(at, input_sizes=[[at % 3]], state=("completed", "odd")[at % 2]) for at in range(70)
    ]
    dump = bytearray(as_torch(document(rows)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(2, len(dump) - 2))
        dump[at] = data.draw(st.integers(0, 255) | st.sampled_from(b"KMJhjqru}(](eNG."))
    either_way(bytes(dump))


@pytest.mark.parametrize(
    ("part", "damaged", "is_dump"),
    [
        pytest.param(b"](](", b".](", False, id="the pickle stops at an empty list"),
        pytest.param(b"}(h\x10](h", b"}(h\x2b](h", True, id="a key is what another one was"),
    ],
)
def test_damage_to_one_entry(part: bytes, damaged: bytes, is_dump: bool) -> None:
    dump = as_torch(document([entry(at) for at in range(80)]))
    at = dump.index(part, len(dump) // 2)
    found = either_way(dump[:at] + damaged + dump[at + len(part) :])
    assert (found is not None) == is_dump
