"""Laws of the dump parser: whatever the bytes, a dump or a DumpError, and no entry is altered."""

from __future__ import annotations

import gzip
import json
import pickle
import pickletools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from frd.errors import DumpError
from frd.flight.bulk import parse_columns
from frd.flight.decode import Known, parse, parse_answer
from frd.flight.entry import Dump, Entry, Status, parse_profiling_name
from frd.flight.pickles.unpickle import load_plain
from frd.flight.stacks.places import activity_of
from frd.flight.trace import Dictionaries, columns_of
from frd.flight.write import write_pickle
from frd.model import MAX_SEQ, YEAR_2200_NS, GroupInfo
from tests.world.dump_files import as_torch, document, entry, spelled_out
from tests.world.seeds import examples

TEXT = st.text(max_size=8)
COUNT = st.integers(0, MAX_SEQ - 1)
TIME = st.integers(0, YEAR_2200_NS - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
SHAPES = st.lists(st.lists(st.integers(0, 2**40), max_size=3).map(tuple), max_size=3).map(tuple)

ENTRIES = st.builds(
    Entry,
    record_id=COUNT,
    process_group=st.tuples(TEXT, TEXT),
    profiling_name=TEXT,
    collective_seq_id=COUNT,
    pg_id=INT64,
    p2p_seq_id=COUNT,
    is_p2p=st.booleans(),
    time_created_ns=TIME,
    input_sizes=SHAPES,
    output_dtypes=st.lists(TEXT, max_size=2).map(tuple),
    state=st.sampled_from(["scheduled", "started", "completed"]),
    time_discovered_completed_ns=TIME,
    retired=st.booleans(),
    thread_name=TEXT,
)
DUMPS = st.builds(
    Dump,
    version=st.sampled_from(["2.0", "2.9", "2.10"]),
    comm_lib_version=TEXT,
    entries=st.lists(ENTRIES, max_size=3).map(tuple),
    groups=st.builds(
        lambda name, ranks: {name: GroupInfo(name, "d", tuple(sorted(ranks)))},
        st.text(min_size=1, max_size=4),
        st.sets(st.integers(0, 10_000), min_size=1, max_size=3),
    ),
    status=st.dictionaries(INT64, st.builds(Status, INT64, INT64, INT64), max_size=2),
)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def total(data: bytes) -> None:
    """A dump or a DumpError: any other exception fails the test."""
    try:
        dump = parse(data, source="x")
    except DumpError:
        return
    columns_of(dump, Dictionaries())


@given(st.lists(ENTRIES, min_size=1, max_size=9), st.sets(st.integers(0, 8)), st.integers(0, 8))
def test_what_is_left_out_is_known_and_over(
    entries: list[Entry], still_open: set[int], last: int
) -> None:
    """An answer is read after an earlier one: nothing from the last entry on is missing, nor what
    was open, and each entry is as in the whole answer. After a reset all of it is read."""
    ring = [replace(entry, record_id=at) for at, entry in enumerate(entries)]
    data = msgspec.json.encode({"version": "2.10", "entries": ring})
    whole = parse_answer(data, source="x").entries
    created_ns = whole[last].time_created_ns if last < len(whole) else 1
    news = parse_answer(data, source="x", known=Known(last, created_ns, still_open))
    assert set(news.entries) <= set(whole)
    assert len(news.entries) + news.skipped == len(whole)
    needed = {0, *range(last, len(whole)), *(at for at in still_open if at < len(whole))}
    assert needed <= {entry.record_id for entry in news.entries}
    if last < len(whole):
        assert needed == {entry.record_id for entry in news.entries}
    for other in (Known(last, created_ns + 1, ()), Known(len(whole), 0, ())):
        assert parse_answer(data, source="x", known=other).entries == whole


@given(DUMPS)
def test_written_dumps_read_back(dump: Dump) -> None:
    """Any dump survives PyTorch's layout, as a pickle, packed, and spelled out as JSON."""
    data = write_pickle(dump)
    assert parse(data, source="x") == dump
    assert parse(gzip.compress(data, 0), source="x") == dump
    assert parse(json.dumps(load_plain(data, source="x")).encode(), source="x") == dump


@given(st.binary(max_size=200))
def test_random_bytes(noise: bytes) -> None:
    """Noise, and noise behind the first bytes of each format, raises nothing but DumpError."""
    for start in (b"", b"\x80\x02", b"\x80\x04", b"{", b'{"version":"2.10",', b"\x1f\x8b\x08\x00"):
        total(start + noise)


@given(DUMPS, st.data())
@examples(200)
def test_mutated_dumps(dump: Dump, data: st.DataObject) -> None:
    """A dump with bytes overwritten, cut out or put in raises nothing but DumpError."""
    whole = write_pickle(dump)
    if data.draw(st.booleans(), label="json"):
        whole = json.dumps(load_plain(whole, source="x")).encode()
    at = data.draw(st.integers(0, len(whole)), label="at")
    cut = data.draw(st.integers(0, 12), label="cut")
    total(whole[:at] + data.draw(st.binary(max_size=6), label="put in") + whole[at + cut :])


@given(st.data(), ANYTHING)
@examples(200)
def test_one_field_of_any_shape(data: st.DataObject, value: Any) -> None:
    """Whatever one field of one entry holds, its neighbours are read unharmed."""
    good = Entry(record_id=1, process_group=("0", "d"), profiling_name="a:b", collective_seq_id=1)
    document = load_plain(
        write_pickle(Dump(version="2.10", entries=(good, good, good))), source="x"
    )
    name = data.draw(st.sampled_from(sorted(Entry.__struct_fields__)))
    document["entries"][1] = dict(document["entries"][1]) | {name: value}
    for whole in (json.dumps(document).encode(), pickle.dumps(document, 4)):
        try:
            dump = parse(whole, source="x")
        except DumpError:
            # Only an integer longer than any honest one costs the whole pickle.
            assert whole.startswith(b"\x80")
            continue
        assert (dump.entries[0], dump.entries[-1]) == (good, good)
        assert len(dump.entries) + sum(hole.entries for hole in dump.holes) == 3
        assert bool(dump.damaged) == bool(dump.warnings)


@given(st.text())
def test_names_never_fail(text: str) -> None:
    """Every string is a name, and a name without peers is kept to the letter."""
    name = parse_profiling_name(text)
    if name.src is None and name.dst is None and not name.is_p2p_kind:
        assert text in (name.op, f"{name.backend}:{name.op}")


@given(st.text(), st.text())
def test_stack_texts_never_fail(text: str, odd: str) -> None:
    """Every text has frames or none, and they are printable single lines."""
    framed = f'Thread 0x1 (most recent call first):\n  File "{odd}", line 1 in {odd}\n{text}'
    for frame in activity_of(text).stack + activity_of(framed).stack:
        assert frame.isprintable()


# -- bulk ------------------------------------------------------------------------------------------
# Laws of reading all entries together: it gives what reading them one by one gives, or nothing.


COUNTS = st.integers(0, 300) | st.integers(0, 2**63 - 1)
FORMS = st.lists(st.lists(COUNTS, max_size=2), max_size=2)
FRAMES = [{"name": name, "filename": "/a.py", "line": 7} for name in ("f", "g", "h")]
SHAPE = st.fixed_dictionaries(
    {},
    optional={
        "frames": st.lists(st.sampled_from(FRAMES), max_size=4),
        "process_group": st.tuples(st.sampled_from("01"), st.sampled_from(["", "TP"])),
        "profiling_name": st.sampled_from(["nccl:all_reduce", "nccl:send 0->1", "odd", ""]),
        "thread_name": st.text(max_size=3) | st.just(...),
        "input_sizes": FORMS,
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
