"""Decodes thousands of entries of a torch pickle together instead of one after another.

PyTorch pickles every entry with the same sequence of opcodes; only numbers and references differ.
`Walk` runs that sequence once, on all entries in step. Repeated values (stacks, shapes, names) are
recognized by their bytes or their number and decoded once. That takes a fraction of the time of
unpickling, makes no object per entry, and executes nothing.

An entry that differs in any way (the first use of a string or a stack, which defines it; an odd
value) is left as it is. These entries, with the head of the file, are a small pickle: the
restricted loader loads it, together with the values that the entries in step refer to.

A file of another layout, or with an error, gives None: the usual parser then reads it and reports
the error. One thing is not checked: that each memo number is defined once, as PyTorch does. In a
damaged file where it is not, this parser and the usual one may both be wrong, differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from frd.errors import DumpError
from frd.flight.pickles.layout import layout_of
from frd.flight.pickles.unpickle import load_plain
from frd.flight.pickles.walk import Repeated, Walk
from frd.model import Float64s, Int64s

MIN_ENTRIES: Final = 64
"""Fewer are unpickled fast enough."""

_TREE = re.compile(rb"(?s:[\](e]|h.|j.{4}|K.|M..|J.{4}|\x8a\x08.{8})*+")
"""Lists of numbers and references, with keys between them. Nothing is defined in them."""


@dataclass(frozen=True, slots=True)
class InStep:
    """A dump, most of its entries as columns."""

    document: Any
    """The rest of the dump as plain values, with the entries that are not in step."""
    rows: Int64s
    """The entries in step, which are the rows of `repeated`."""
    apart: Int64s
    """The entries in `document`; the last one always is."""
    numbers: dict[str, Int64s]
    """Numbers; flags (0 and 1); 0 for None. Of all entries but the last; of one in `document`,
    meaningless."""
    reals: dict[str, Float64s]
    """Likewise; NaN where an entry has none."""
    repeated: dict[str, Repeated[Any]]
    """Texts (a pair is `name` and `name[1]`), and trees: dicts of the key and of those of the trees
    behind it. The types of referenced values are not checked."""

    def __len__(self) -> int:
        return len(self.rows) + len(self.apart)


def read(data: bytes, source: str) -> InStep | None:
    """The dump in `data`; None if it has another layout than PyTorch's, or an error."""
    layout = layout_of(data)
    if layout is None:
        return None
    walk = Walk(data, layout)
    if len(walk.starts) < MIN_ENTRIES:
        return None
    walk.run()
    rows = np.flatnonzero(walk.fits)
    if len(rows) < MIN_ENTRIES:
        return None
    trees = {name: walk.alike(begin[rows], end[rows]) for name, (begin, end) in walk.trees.items()}
    plain = np.ones(len(rows), np.bool_)
    for tree in trees.values():
        plain &= np.array([_is_plain(value) for value in tree.values], np.bool_)[tree.index]
    rows = rows[plain]
    if len(rows) < MIN_ENTRIES or len(rows) * 2 < len(walk.starts):
        return None
    keys = {step.name: step.token for step in layout.steps}
    pickles = {name: _references(numbers[rows]) for name, numbers in walk.references.items()}
    for name, tree in trees.items():
        used = tree.of(plain)
        as_dicts = [b"}(%b%bu" % (keys[name], value or b"") for value in used.values]
        pickles[name] = Repeated(used.index, as_dicts)
    left = np.ones(len(walk.starts), np.bool_)
    left[rows] = False
    apart = np.flatnonzero(left)
    head = [data[: layout.first], *_entries(data, walk.starts, apart)]
    decoded = _decode(head, pickles, len(apart), source)
    if decoded is None:
        return None
    return InStep(
        document=decoded[0],
        rows=rows,
        apart=apart,
        numbers=walk.numbers,
        reals=walk.reals,
        repeated=decoded[1],
    )


def _is_plain(tree: bytes | None) -> bool:
    return tree is not None and _TREE.fullmatch(tree) is not None


def _references(numbers: Int64s) -> Repeated[bytes]:
    different, index = np.unique(numbers, return_inverse=True)
    tokens = [
        b"h%c" % number if number < 256 else b"j" + number.to_bytes(4, "little")
        for number in different.tolist()
    ]
    return Repeated(index, tokens)


def _entries(data: bytes, starts: Int64s, which: Int64s) -> Iterator[bytes]:
    """The bytes of some entries; the last one's with all that follows, but for the stop."""
    ends = np.append(starts[1:], len(data) - 1)
    begin, end = starts[which].tolist(), ends[which].tolist()
    return (data[at:to] for at, to in zip(begin, end, strict=True))


def _decode(
    head: list[bytes], pickles: dict[str, Repeated[bytes]], entries: int, source: str
) -> tuple[Any, dict[str, Repeated[Any]]] | None:
    """One small pickle: the document, whose parts are in `head`, and what entries refer to."""
    wanted = [value for column in pickles.values() for value in column.values]
    try:
        loaded = load_plain(b"".join((*head, b"](", *wanted, b"e\x86.")), source=source)
    except DumpError:
        return None
    match loaded:
        case ({"entries": list(found)} as document, list(values)):
            if len(found) != entries or len(values) != len(wanted):
                return None
        case _:
            return None
    value = iter(values)
    return document, {
        name: Repeated(column.index, [*islice(value, len(column.values))])
        for name, column in pickles.items()
    }
