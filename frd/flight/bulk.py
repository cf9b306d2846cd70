"""Any dump as columns. One that PyTorch pickled costs a tenth of its entries as objects.

The entries that `lockstep` reads become columns directly. Their values are checked against the same
schema; if one fails, the usual parser reads the file and reports the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from frd.errors import DumpError
from frd.flight.batches import batch_ends
from frd.flight.decode import MAX_BYTES, MAX_ENTRIES, PICKLE, check_count, lenient, parse, unpack
from frd.flight.entry import END_OF_BATCH, SHAPES, Entry, parse_profiling_name
from frd.flight.pickles.layout import KINDS, Kind
from frd.flight.pickles.lockstep import InStep, Repeated, read
from frd.flight.plain_entries import Budget
from frd.flight.trace import (
    NARROW,
    STATE_OF,
    TINY,
    WIDE,
    Dictionaries,
    FileColumns,
    columns_of,
    group_index,
    known_groups,
)
from frd.model import MAX_SEQ, YEAR_2200_NS, Bools, Int32s, Int64s

_LIMITED = [at for at, name in enumerate(WIDE) if name not in ("pg_id", "timeout_ms")]
"""Rows of numbers that may not be negative."""
_MOST = [[YEAR_2200_NS if [*WIDE][at].endswith("_ns") else MAX_SEQ] for at in _LIMITED]
"""What they are below."""
_DEFAULTS = {"pg_id": -1}
_MANDATORY: dict[str, Any] = {
    "record_id": 0,
    "process_group": ("", ""),
    "profiling_name": "",
    "collective_seq_id": 0,
}
"""The mandatory values of an entry."""


class _Odd(Exception):
    """A value does not match the schema."""


def parse_columns(data: bytes, into: Dictionaries, *, source: str) -> FileColumns:
    """The dump in `data`, as `parse` reads it.

    Raises:
        DumpError: as `parse`.
    """
    data = unpack(data, source, MAX_BYTES)
    if data.startswith(PICKLE) and (in_step := read(data, source)) is not None:
        try:
            return _columns(in_step, Budget(len(data), source), into, source)
        except (_Odd, DumpError, msgspec.MsgspecError):
            pass
    return columns_of(parse(data, source=source), into)


def _columns(found: InStep, budget: Budget, into: Dictionaries, source: str) -> FileColumns:
    _check(found)
    check_count(len(found), source, MAX_ENTRIES)
    dump = lenient(found.document, budget.size, source)
    if len(dump.entries) != len(found.apart) or dump.damaged:
        raise _Odd
    rest = columns_of(dump, into)
    rows, apart, numbers = found.rows, found.apart, found.numbers
    wide = np.zeros((len(WIDE), len(found)), np.int64)
    for at, key in enumerate(WIDE.values()):
        wide[at, :-1] = numbers.get(key, _DEFAULTS.get(key, 0))
    wide[:, apart] = rest.wide
    if wide[_LIMITED].min() < 0 or (wide[_LIMITED] >= _MOST).any():
        raise _Odd
    narrow = np.full((len(NARROW), len(found)), -1, np.int32)
    tiny = np.zeros((len(TINY), len(found)), np.uint8)
    indexes, is_p2p_kind = _indexes(found, known_groups(dump, into), budget, into)
    for at, name in enumerate(NARROW):
        narrow[at, rows] = indexes.get(name, -1)
    tiny[0, rows] = is_p2p_kind
    tiny[0, :-1] |= numbers["is_p2p"].astype(np.uint8) if "is_p2p" in numbers else np.uint8(0)
    if (state := found.repeated.get("state")) is not None:
        tiny[1, rows] = _looked_up(state, [STATE_OF[word] for word in state.values])
    tiny[2, :-1] = numbers.get("retired", 0)
    duration = np.full(len(found), np.nan)
    duration[:-1] = found.reals.get("duration_ms", np.nan)
    narrow[:, apart], tiny[:, apart] = rest.narrow, rest.tiny
    duration[apart] = rest.duration_ms
    tiny[0, _batch_ends(wide, narrow, tiny[0] != 0, into)] = 1
    return replace(rest, wide=wide, narrow=narrow, tiny=tiny, duration_ms=duration)


def _batch_ends(wide: Int64s, narrow: Int32s, is_p2p: Bools, into: Dictionaries) -> Int64s:
    name, of_wide = narrow[NARROW.index("name")], dict(zip(WIDE, wide, strict=True))
    ends = [at for at, known in enumerate(into.names.items) if known.op == END_OF_BATCH]
    has_lost = bool((of_wide["record_id"][:1] > 0).any())
    numbers = (of_wide["pg_id"], of_wide["p2p_seq"])
    return batch_ends(np.isin(name, ends), is_p2p, *numbers, has_lost=has_lost)


def _check(found: InStep) -> None:
    """Raises `_Odd` if the columns do not match the schema of an entry."""
    if not all(name in found.numbers or name in found.repeated for name in _MANDATORY):
        raise _Odd
    for name, column in found.repeated.items():
        wanted = dict if KINDS.get(name) is Kind.TREE else str
        if not all(isinstance(value, wanted) for value in column.values):
            raise _Odd
    if (states := found.repeated.get("state")) and not STATE_OF.keys() >= {*states.values}:
        raise _Odd


def _indexes(
    found: InStep, known: Mapping[str, int], budget: Budget, into: Dictionaries
) -> tuple[dict[str, Int64s], Int64s]:
    """The dictionary columns, and which rows are P2P ops by their names."""
    columns = found.repeated
    groups = _pairs(columns["process_group"], columns["process_group[1]"])
    spelled = columns["profiling_name"]
    names = [parse_profiling_name(text) for text in spelled.values]
    shapes = columns.get("input_sizes", _all_rows(found, {}))
    parts = [_part(tree, {*SHAPES}, budget) for tree in shapes.values]
    signatures = _pairs(Repeated(spelled.index, names), Repeated(shapes.index, parts))
    indexes = {
        "group": _looked_up(groups, [group_index(pair, known, into) for pair in groups.values]),
        "name": _looked_up(spelled, [into.names.index(name) for name in names]),
        "signature": _looked_up(signatures, [into.signature(*pair) for pair in signatures.values]),
    }
    if (stacks := columns.get("frames")) is not None:
        frames = [_part(tree, {"frames"}, budget).frames for tree in stacks.values]
        indexes["stack"] = _looked_up(stacks, [into.stack(stack) for stack in frames])
    no_text = _all_rows(found, "")
    threads = _pairs(columns.get("thread_name", no_text), columns.get("thread_id", no_text))
    indexes["thread"] = _looked_up(threads, [into.thread(*pair) for pair in threads.values])
    is_p2p = _looked_up(spelled, [name.is_p2p_kind for name in names])
    return indexes, is_p2p


def _part(tree: dict[str, Any], keys: Set[str], budget: Budget) -> Entry:
    """An entry of nothing but the values of one tree."""
    if not tree.keys() <= keys:
        raise _Odd
    entry, unreadable = budget.entry(_MANDATORY | tree)
    if unreadable:
        raise _Odd
    return entry


def _pairs(left: Repeated[Any], right: Repeated[Any]) -> Repeated[Any]:
    """A column of the pairs of two columns."""
    width = len(right.values)
    both = left.index * width + right.index
    different, index = np.unique(both, return_inverse=True)
    values = [(left.values[at // width], right.values[at % width]) for at in different.tolist()]
    return Repeated(index, values)


def _looked_up(column: Repeated[Any], to: list[int]) -> Int64s:
    return np.array(to, np.int64)[column.index]


def _all_rows(found: InStep, value: Any) -> Repeated[Any]:
    """A column of one value, for a key that the dump does not have."""
    return Repeated(np.zeros(len(found.rows), np.int64), [value])
