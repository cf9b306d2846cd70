"""Hostile and damaged pickles: refused before anything runs, within bounds."""

from __future__ import annotations

import pickle
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from frd.errors import DumpError
from frd.flight.decode import parse
from frd.flight.pickles.unpickle import load_plain
from tests.world.dump_files import Runs

PLAIN: list[Any] = [
    {"version": "2.10", "entries": [{"a": (), "b": (1,), "c": (1, 2), "d": (1, 2, 3, 4)}]},
    [None, True, False, 0, 255, 65_535, -1, 2**31 - 1, -(2**31), 2**62, 2**63, -(2**63)],
    ["", "x" * 255, "y" * 256, "z" * 70_000, "gr\u00fcn", "\U0001f525", 1.5, float("inf")],
    [[i] for i in range(300)],
]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("value", PLAIN)
def test_plain_values_load(value: Any, protocol: int) -> None:
    """What dumps are made of loads unchanged from every binary protocol."""
    assert load_plain(pickle.dumps(value, protocol), source="x") == value


@pytest.mark.parametrize("protocol", [2, 4])
def test_code_does_not_run(tmp_path: Path, protocol: int) -> None:
    """A pickle that would call a function is refused, and the function was not called."""
    trap = tmp_path / "trap"
    with pytest.raises(DumpError, match=r"rank 3: opcode 0x.*hostile"):
        parse(pickle.dumps({"version": "2.10", "x": Runs(trap)}, protocol), source="rank 3")
    assert not trap.exists()


@pytest.mark.parametrize(
    "value", [b"bytes", bytearray(b"x"), {1}, frozenset({1}), 2**72, 1j, Path("x"), print]
)
def test_other_values_are_refused(value: Any) -> None:
    """Honest dumps hold no bytes, sets, objects or giant numbers."""
    with pytest.raises(DumpError):
        load_plain(pickle.dumps(value, 4), source="x")


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00trueR.",
        b"\x80\x02(X\x04\x00\x00\x00trueios\nsystem\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02PX\n.",
        b"\x80\x02K\x00Q.",
        b"\x80\x02]p9999999999\n.",
        b"\x80\x02]g0\n.",
        b"\x80\x09N.",
        b"\x80\x02.",
        b"\x80\x02h\x00.",
        b"\x80\x02(.",
        b"\x80\x02]e.",
        b"\x80\x02}]K\x01s.",
        b"\x80\x02X\xff\xff\xff\xffab.",
        b"\x80\x02\x8c\xffab.",
        b"\x80\x02X\x01",
        b"\x80\x02\x8c",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xffN.",
        b"\x80",
    ],
)
def test_damage_and_forbidden_opcodes(data: bytes) -> None:
    """Imports, instances, extensions, persistent ids, text opcodes and cut files are DumpErrors."""
    with pytest.raises(DumpError, match="rank 3: "):
        load_plain(data, source="rank 3")


@pytest.mark.parametrize("index", [2**31 - 1, 1 << 23])
def test_memo_bomb_is_refused_cheaply(index: int) -> None:
    """Seven bytes that order a memo of gigabytes get none: no dump has eight million values."""
    tracemalloc.start()
    try:
        with pytest.raises(DumpError, match="opcode 0x72"):
            load_plain(b"\x80\x02]r" + struct.pack("<I", index) + b"." * 10, source="x")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


LONG: Any = [[1] * 60] * 60_000
WIDE = {str(key): 0 for key in range(20_000)}
MANY = {"ranks": [1] * 60_000}
SPELLED = {"ranks": str([1] * 60_000)}
ENTRY = {
    "record_id": 0,
    "process_group": ("0", "x"),
    "profiling_name": "nccl:all_reduce",
    "collective_seq_id": 0,
}


@pytest.mark.parametrize(
    "document",
    [
        {"entries": [ENTRY | {"input_sizes": LONG}] * 20_000},
        {"entries": [ENTRY | {"input_sizes": LONG, "timeout_ms": "bad"}] * 20_000},
        {"entries": [ENTRY | {"input_sizes": [[1] * 60] * 400}] * 100},
        {"entries": [ENTRY | {"output_dtypes": ["Float"] * 60_000}] * 20_000},
        {"entries": [ENTRY | {"process_group": LONG}] * 20_000},
        {"entries": [ENTRY | {"frames": [WIDE] * 60_000}] * 20_000},
        {"entries": [ENTRY | WIDE] * 20_000},
        {"pg_config": dict.fromkeys(WIDE, MANY)},
        {"pg_config": dict.fromkeys(WIDE, SPELLED)},
        {"pg_status": dict.fromkeys(WIDE, WIDE)},
    ],
)
def test_shared_values_are_not_multiplied(document: dict[str, Any]) -> None:
    """A small pickle that names one long value many times is not walked as often."""
    data = pickle.dumps({"version": "2.10"} | document, 2)
    with pytest.raises(DumpError, match="more elements than its size allows"):
        parse(data, source="x")


def test_a_list_that_holds_itself() -> None:
    """A cycle in the pickle is an unusable entry, not an endless loop."""
    cycle: list[Any] = []
    cycle.append(cycle)
    dump = parse(pickle.dumps({"version": "2.10", "entries": cycle}, 2), source="x")
    assert dump.entries == ()
    assert len(dump.warnings) == 1


@pytest.mark.parametrize("protocol", [2, 4])
def test_strings_that_are_no_utf8(protocol: int) -> None:
    """A thread name cut inside a character costs that character, not the dump."""
    data = pickle.dumps(["pyth\u00f6n", "plain", "\u20ac", "\u4e2d!"], protocol)
    cut = data.replace("\u00f6".encode(), b"\xc3n").replace("\u20ac".encode(), b"\xed\xa0\x80")
    cut = cut.replace("\u4e2d".encode(), b"\xe4\xb8n")
    assert load_plain(cut, source="x") == ["pyth?nn", "plain", "???", "??n!"]
