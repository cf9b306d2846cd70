"""Dumps of every version and backend become one model; damage costs what is damaged, no more."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from frd.errors import DumpError
from frd.flight.decode import MAX_WARNINGS, parse
from frd.flight.entry import Dump, Entry, Hole, Name, Status, coalesced, parse_profiling_name
from frd.flight.pickles.unpickle import load_plain
from frd.flight.trace import Dictionaries, columns_of
from frd.flight.write import write_pickle
from frd.model import GroupInfo, Signature
from frd.readers.pool import load_dump
from tests.world.dump_files import as_json as as_handlers_write
from tests.world.dump_files import as_torch, document, entry


def dumped(*entries: Any, **changes: Any) -> dict[str, Any]:
    return document(entries, **changes)


def as_json(value: Any) -> bytes:
    """As it is: numbers in strings stay strings, and null stays null."""
    return json.dumps(value).encode()


def parsed(value: Any) -> Dump:
    """Parsed from JSON and from a pickle, which must agree."""
    from_json = parse(as_json(value), source="rank 3")
    assert parse(pickle.dumps(value, 2), source="rank 3") == from_json
    return from_json


def test_json_and_pickle_say_the_same() -> None:
    """One dump: JSON of zeros and strings, JSON of nulls, and a pickle of None, ints and tuples."""
    counters = {"last_completed_collective": 6, "last_enqueued_collective": 7}
    counters["last_started_collective"] = -1
    times = ("time_discovered_started_ns", "time_discovered_completed_ns")
    as_pickle = dumped(entry(0, frames=..., **dict.fromkeys(times)), pg_status={0: counters})
    strings = {name: str(value) for name, value in counters.items()}
    of_torch = entry(0, frames=..., process_group=["0", "default_pg"], **dict.fromkeys(times, 0))
    dump = parsed(dumped(of_torch, pg_status={"0": strings}))
    assert parse(pickle.dumps(as_pickle, 2), source="rank 3") == dump
    assert parse(as_json(as_pickle), source="rank 3") == dump
    assert dump.version == "2.10"
    assert dump.comm_lib_version == "2.27.3"
    assert dump.groups == {"0": GroupInfo("0", "default_pg", (0, 1))}
    assert dump.status == {0: Status(enqueued=7, started=-1, completed=6)}
    assert dump.warnings == ()
    (only,) = dump.entries
    assert (only.group_name, only.group_desc) == ("0", "default_pg")
    assert only.input_sizes == ((4, 2),)
    assert only.time_discovered_completed_ns == 0
    assert only.retired


@pytest.mark.parametrize(
    "pack", [gzip.compress, lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])]
)
@pytest.mark.parametrize("encode", [as_json, pickle.dumps])
def test_gzip_is_unpacked(pack: Any, encode: Any) -> None:
    """A dump file that was compressed, in one piece or in several, reads like the plain one."""
    plain = encode(dumped(entry()))
    assert parse(pack(plain), source="x") == parse(plain, source="x")


@pytest.mark.parametrize("version", ["2.0", "2.2", "2.9", "2.10", "2.11", "2.345"])
def test_known_and_later_minor_versions(version: str) -> None:
    """Old formats lack fields, later ones add some; both are read. Up to 2.9 the version of the
    library is called `nccl_version`."""
    optional = (
        *("thread_id", "thread_name", "is_p2p", "timeout_ms", "op_id", "p2p_seq_id", "retired"),
        *("input_dtypes", "output_dtypes", "time_discovered_started_ns", "pg_id", "duration_ms"),
    )
    old = entry(0, **dict.fromkeys(optional, ...))
    new = entry(1, duration_ms=1.5, colour="green")
    changes = {"pg_status": ..., "comm_lib_version": ..., "nccl_version": "2.20"}
    dump = parsed(dumped(old, new, version=version, **changes))
    assert dump.comm_lib_version == "2.20"
    assert [e.record_id for e in dump.entries] == [0, 1]
    assert dump.entries[0].timeout_ms == 0
    assert dump.entries[1].duration_ms == 1.5
    assert dump.status == {}
    assert dump.warnings == ()


@pytest.mark.parametrize("version", ["3.0", "1.2", "2", "2.x", "", None, 2.1, ["2.1"]])
def test_other_versions_are_refused(version: Any) -> None:
    """Another major version, or none, is an error that names the source and the version."""
    with pytest.raises(DumpError, match=r"rank 3: version .*formats 2\.x"):
        parsed(dumped(version=version))


@pytest.mark.parametrize("value", [[entry()], [], {}, "x", 7, None])
def test_what_is_no_dump_is_refused(value: Any) -> None:
    """An unversioned list, an empty object and other values are errors, as JSON and as pickle."""
    for data in (as_json(value), pickle.dumps(value, 2)):
        with pytest.raises(DumpError, match="rank 3: "):
            parse(data, source="rank 3")


@pytest.mark.parametrize(
    "data", [b"", b"   ", b"\xff\xfe", b"{", b'{"version": "2.10"', b"\x1f\x8b\x08"]
)
def test_damaged_bytes_are_refused(data: bytes) -> None:
    """Nothing, noise and half a file are errors that name the source."""
    with pytest.raises(DumpError, match="rank 3: "):
        parse(data, source="rank 3")


def test_entries_that_are_no_list() -> None:
    """A recorder that has recorded nothing leaves `entries` out; those of a wrong type are left out
    with a warning, and the rest of the dump is kept."""
    empty = dumped()
    del empty["entries"]
    for nothing in (empty, empty | {"entries": None}):
        assert parsed(nothing).entries == ()
    dump = parsed(empty | {"entries": {"0": entry()}})
    assert dump.entries == ()
    assert dump.warnings == ("entries: a dict: left out",)
    assert dump.groups


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        "x",
        entry(record_id=...),
        entry(process_group=...),
        entry(process_group=["0"]),
        entry(collective_seq_id=-1),
        entry(collective_seq_id=2**63),
        entry(profiling_name=7),
        entry(retired="perhaps"),
        entry(state=None, time_discovered_completed_ns=0),
        entry(state="running", retired=True, time_discovered_completed_ns=None),
        entry(state="started", time_discovered_started_ns=2**64),
    ],
)
def test_one_bad_entry_is_a_warning(bad: Any) -> None:
    """One entry that cannot be used is left out by its index, its neighbours are kept."""
    dump = parsed(dumped(entry(0), bad, entry(2)))
    assert [e.record_id for e in dump.entries] == [0, 2]
    (warning,) = dump.warnings
    assert warning.startswith("entry 1: ")
    assert warning.endswith(": left out")
    has_group = isinstance(bad, dict) and "process_group" in bad
    assert dump.holes == (Hole("0" if has_group else None, 1, 1),)
    assert dump.damaged == frozenset({0, 1})  # its neighbours may be parts of the same collective


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("time_created_ns", 2**64),
        ("time_discovered_completed_ns", -1),
        ("time_discovered_started_ns", "noon"),
        ("timeout_ms", "1min"),
        ("duration_ms", []),
        ("input_sizes", None),
        ("input_sizes", [[2**70]]),
        ("input_sizes", [4]),
        ("output_sizes", [[1] * 65]),
        ("output_dtypes", 7),
        ("frames", [{"name": "f"}]),
        ("frames", [{"name": "f", "filename": "x.py", "line": (1 << 61) - 1}]),
        ("frames", [{"name": "f", "filename": "x.py", "line": -2}]),
    ],
)
def test_a_damaged_field_is_unknown_and_the_entry_stays(name: str, bad: Any) -> None:
    """Of an entry whose op is known only the field is lost, and the warning names both."""
    dump = parsed(dumped(entry(0), entry(1, **{name: bad}), entry(2)))
    assert [e.record_id for e in dump.entries] == [0, 1, 2]
    assert not getattr(dump.entries[1], name)
    assert dump.warnings == (f"entry 1: {name}: not readable, taken as unknown",)
    assert dump.holes == ()
    assert dump.damaged == frozenset({1})


@pytest.mark.parametrize("bad", [None, 7, "running", "COMPLETED"])
def test_an_unreadable_state_with_a_time_of_completion_is_completed(bad: Any) -> None:
    """The time says that the op is over; a dump without the key has the default."""
    ended = entry(1, state=bad, time_discovered_completed_ns=5)
    dump = parsed(dumped(entry(0), ended, entry(2, state=...)))
    assert [e.state for e in dump.entries][1:] == ["completed", "scheduled"]
    assert dump.warnings == ("entry 1: state: not readable, taken as unknown",)
    assert dump.damaged == frozenset({1})


def test_holes_are_one_for_each_group() -> None:
    """However many entries cannot be read, the last one of each group is what matters."""
    bad = {"process_group": ["1", ""]}
    dump = parsed(dumped(bad, entry(1), None, bad, entry(4), {}))
    assert set(dump.holes) == {Hole("1", 1, 2), Hole(None, 2, 2)}


def test_warnings_are_bounded() -> None:
    """A thousand bad entries are a short list of warnings that says how many more there were."""
    dump = parsed(dumped(*[{}] * 1000))
    assert len(dump.warnings) == MAX_WARNINGS + 1
    assert dump.warnings[-1] == f"{1000 - MAX_WARNINGS} more like these"


def test_numbers_in_strings_and_bare_dtypes() -> None:
    """What hand-made dumps and other recorders write for numbers and dtypes is understood."""
    odd = entry(
        collective_seq_id="12",
        p2p_seq_id="3",
        time_created_ns="1795190253129820075",
        thread_id=140409514490752,
        process_group=[0, None],
        input_dtypes="float32",
        output_dtypes="",
        output_sizes=[[]],
        timeout_ms=None,
    )
    (found,) = parsed(dumped(odd)).entries
    assert (found.collective_seq_id, found.p2p_seq_id) == (12, 3)
    assert found.time_created_ns == 1795190253129820075
    assert found.thread_id == "140409514490752"
    assert found.process_group == ("0", "")
    assert (found.input_dtypes, found.output_dtypes) == (("float32",), ())
    assert found.output_sizes == ((),)


@pytest.mark.parametrize(
    ("ranks", "members"),
    [("[0, 1]", (0, 1)), ("[1,0,1]", (0, 1)), ([3, 1], (1, 3)), ((3, "1"), (1, 3))],
)
def test_members_in_every_spelling(ranks: Any, members: tuple[int, ...]) -> None:
    """Ranks come as a string with or without spaces, or as numbers, and leave sorted."""
    config = {"7": {"name": "7", "desc": "pp", "ranks": ranks}}
    assert parsed(dumped(pg_config=config)).groups == {"7": GroupInfo("7", "pp", members)}


def test_a_group_without_a_name() -> None:
    """torchft's group of rank 0 of each replica has members and no name: it is a group."""
    unnamed = entry(0, process_group=["", ""])
    dump = parsed(dumped(unnamed, pg_config={"": {"name": "", "desc": "", "ranks": "[0, 2]"}}))
    assert dump.groups == {"": GroupInfo("", "", (0, 2))}


@pytest.mark.parametrize("ranks", ["[]", "[0, 1]"])
def test_gloo_group_is_passed_over(ranks: str) -> None:
    """Gloo's nameless row, with no members or with those of the group that was made last, is
    normal: no group, and no warning every second."""
    of_gloo = entry(0, process_group=["0", "default_pg"])
    dump = parsed(dumped(of_gloo, pg_config={"": {"name": "", "desc": "", "ranks": ranks}}))
    assert dump.groups == {}
    assert dump.warnings == ()


@pytest.mark.parametrize("ranks", ["__import__('os')", "[0, 1", "[0.5]", None, {}, "[[0]]"])
def test_unreadable_members_are_a_warning(ranks: Any) -> None:
    """A group whose ranks cannot be read is left out by name; nothing is evaluated."""
    good = {"name": "1", "desc": "tp", "ranks": "[0]"}
    dump = parsed(dumped(pg_config={"0": {"ranks": ranks, "desc": "x"}, "1": good}))
    assert list(dump.groups) == ["1"]
    (warning,) = dump.warnings
    assert warning.startswith("pg_config '0': ")


def test_unreadable_status_is_a_warning() -> None:
    """A status row that cannot be read is left out, the others are kept."""
    rows = {"0": {"last_enqueued_collective": "many"}, "x": {}, "2": {}}
    dump = parsed(dumped(pg_status=rows))
    assert dump.status == {2: Status(-1, -1, -1)}
    assert [w.partition(":")[0] for w in dump.warnings] == ["pg_status '0'", "pg_status 'x'"]


@pytest.mark.parametrize("container", [None, [], "x", 7])
def test_config_and_status_of_wrong_types(container: Any) -> None:
    """Without usable group tables the entries are still worth having."""
    dump = parsed(dumped(entry(), pg_config=container, pg_status=container))
    assert len(dump.entries) == 1
    assert (dump.groups, dump.status) == ({}, {})


def test_text_that_is_no_utf8() -> None:
    """A group name in another encoding costs its odd bytes, not the dump."""
    data = as_json(dumped(entry(process_group=["0", "gr~ppe"]))).replace(b"~", b"\xfc")
    (found,) = parse(data, source="x").entries
    assert found.group_desc == "gr\N{REPLACEMENT CHARACTER}ppe"


def test_size_is_bounded_packed_and_unpacked() -> None:
    """Neither a large file nor a small one that unpacks to a large one gets past the limit."""
    data = as_json(dumped(entry()))
    assert parse(data, source="x", max_bytes=len(data)).entries
    assert parse(gzip.compress(data), source="x", max_bytes=len(data)).entries
    for bomb in (data + b" ", gzip.compress(data + b" "), gzip.compress(bytes(10_000_000))):
        with pytest.raises(DumpError, match=f"more than {len(data)} bytes"):
            parse(bomb, source="x", max_bytes=len(data))


def test_deep_nesting_is_refused() -> None:
    """Brackets without end are damage, not a crash."""
    depth = 200_000
    for text in ('{"version": "2.10", "entries": ' + "[" * depth, "[" * depth + "]" * depth):
        with pytest.raises(DumpError):
            parse(text.encode(), source="x")


def test_load_dump(tmp_path: Path) -> None:
    """A path or its text; what cannot be opened is an error with the path. A named pipe, such as
    torch's own in a dump folder, is refused immediately."""
    path = tmp_path / "rank_0"
    path.write_bytes(as_json(dumped(entry())))
    assert load_dump(path) == load_dump(str(path))
    assert load_dump(path).entries
    with pytest.raises(DumpError, match="more than 10 bytes"):
        load_dump(path, max_bytes=10)
    for unreadable in (tmp_path / "absent", tmp_path, tmp_path / "nul\0"):
        with pytest.raises(DumpError, match=re.escape(f"{unreadable}: cannot be read")):
            load_dump(unreadable)
    os.mkfifo(tmp_path / "rank0.pipe")
    with pytest.raises(DumpError, match="no regular file"):
        load_dump(tmp_path / "rank0.pipe")


def test_present_format_takes_the_typed_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A well-formed dump of a live rank never falls back to the slow way."""

    def slow(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr("frd.flight.decode.lenient", slow)
    for time in (0, None):
        entries = [entry(at, time_discovered_completed_ns=time) for at in range(2)]
        assert len(parse(as_json(dumped(*entries)), source="x").entries) == 2


# -- profiling names of every backend, known or not, and the signatures of entries -----------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("nccl:all_reduce", Name("nccl", "all_reduce")),
        ("gloo:all_to_all", Name("gloo", "all_to_all")),
        ("nccl:_all_gather_base", Name("nccl", "_all_gather_base")),
        ("nccl:ALLGATHER_coalesced", Name("nccl", "ALLGATHER_coalesced")),
        ("nccl:send 0->3", Name("nccl", "send", 0, 3, is_p2p_kind=True)),
        ("nccl:recv 3<-0", Name("nccl", "recv", 0, 3, is_p2p_kind=True)),
        ("nccl2:recv 1<-?", Name("nccl2", "recv", None, 1, is_p2p_kind=True)),
        ("ncclx:send", Name("ncclx", "send", is_p2p_kind=True)),
        ("my_backend:fused_thing", Name("my_backend", "fused_thing")),
        ("fake:op with words", Name("fake", "op with words")),
        ("a:b:c", Name("a", "b:c")),
        ("all_reduce", Name("", "all_reduce")),
        ("nccl:send 0->", Name("nccl", "send 0->")),
        ("nccl:", Name("nccl", "")),
        ("", Name("", "")),
    ],
)
def test_names(text: str, name: Name) -> None:
    """Known names come apart, unknown ones are kept whole."""
    assert parse_profiling_name(text) == name


def test_signature() -> None:
    """A signature is what the peers must agree with: no sequence, no time, no peer."""
    send = Entry(
        record_id=7,
        process_group=("39", "PIPELINE_MODEL_PARALLEL_GROUP"),
        profiling_name="nccl:send 0->1",
        collective_seq_id=29,
        input_sizes=((2048, 1, 5120),),
        output_sizes=((2048, 1, 5120),),
        input_dtypes=("BFloat16",),
        output_dtypes=("BFloat16",),
        time_created_ns=1,
    )
    into = Dictionaries()
    columns_of(Dump("2.10", entries=(send,)), into)
    assert into.signatures.items[0] == Signature(
        backend="nccl",
        op="send",
        input_sizes=((2048, 1, 5120),),
        output_sizes=((2048, 1, 5120),),
        input_dtypes=("BFloat16",),
        output_dtypes=("BFloat16",),
    )


def part(op: str, *sizes: int) -> Signature:
    shape = tuple((size,) for size in sizes)
    return Signature("nccl", op, shape, shape, ("Float",) * len(sizes), ("Float",) * len(sizes))


@pytest.mark.parametrize(
    ("parts", "op", "sizes"),
    [
        ([part("_broadcast_oop", 4), part("_broadcast_oop", 5), part("ALLGATHER_coalesced", 9)],
         "ALLGATHER_coalesced(_broadcast_oop x2)", ((4,), (5,))),
        ([part("all_reduce", 1), part("broadcast", 2), part("coalesced")],
         "coalesced(all_reduce,broadcast)", ((1,), (2,))),
        ([part("all_reduce", 1), part("all_reduce", 2)], "coalesced(all_reduce x2)", ((1,), (2,))),
        ([part("all_reduce", 1), part("coalesced")], "all_reduce", ((1,),)),
        ([part("REDUCE_SCATTER_coalesced", 7)], "REDUCE_SCATTER_coalesced", ((7,),)),
    ],
)  # fmt: skip
def test_ops_issued_as_one_are_told_as_one(
    parts: list[Signature], op: str, sizes: tuple[tuple[int, ...], ...]
) -> None:
    """The parts count; the entry that ends the series names it, or is alone where parts are not."""
    whole = coalesced(parts)
    assert (whole.op, whole.input_sizes) == (op, sizes)


# -- dump files in PyTorch's own layout (that its own tool reads them is shown end to end) ---------


def written(dump: Dump, membership: Any = None) -> dict[str, Any]:
    loaded: dict[str, Any] = load_plain(write_pickle(dump, membership), source="written")
    return loaded


def test_membership_fills_what_the_dump_lacks() -> None:
    """Groups come from the dump, then from the caller, who knows better; ranks are a string."""
    dump = Dump(
        version="2.10",
        groups={"0": GroupInfo("0", "default_pg", (0, 1)), "1": GroupInfo("1", "wrong", (0,))},
    )
    assert written(dump, {"1": ("pair", [1, 0]), "2": ("tp", (0,))})["pg_config"] == {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"},
        "1": {"name": "1", "desc": "pair", "ranks": "[0, 1]"},
        "2": {"name": "2", "desc": "tp", "ranks": "[0]"},
    }


def test_empty_dump_has_entries() -> None:
    """A rank that has recorded nothing still gets a file that torchfrtrace can open."""
    assert written(Dump(version="2.10")) == {
        "version": "2.10",
        "pg_config": {},
        "comm_lib_version": "",
        "pg_status": {},
        "entries": [],
    }


def test_equal_strings_are_written_once() -> None:
    """Two thousand entries do not repeat their strings two thousand times."""
    entries = parse(as_handlers_write(document([entry()])), source="x").entries * 2000
    data = write_pickle(Dump(version="2.10", entries=entries))
    assert data.count(b"nccl:all_reduce") == 1
    assert data.count(b"Float") == 1


def test_bytes_are_those_that_torch_writes() -> None:
    """A dump of PyTorch's, read and written again, is the same file."""
    rows = [entry(at, **({"duration_ms": 1.5} if at % 2 else {})) for at in range(50)]
    data = as_torch(document(rows))
    assert write_pickle(parse(data, source="x")) == data
