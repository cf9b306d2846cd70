"""A torch pickle of thousands of entries, decoded all at once instead of one after another.

PyTorch pickles every entry by the same program; only numbers and references differ. `Walk` runs
that program once, on all entries in step. What repeats (stacks, shapes, names) is recognized by its
bytes or its number and decoded once. It takes a fraction of the time of unpickling, makes no object
an entry, and executes nothing.

An entry that differs in any way (the first use of a string or a stack, which defines it; an odd
value) is left as it is. What is left, with the head of the file, is itself a small pickle: the
restricted loader loads it, and together with it the values that the entries in step refer to.

A file of another layout, or with anything wrong in it, gives None: the usual parser then reads it,
and knows what to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from frd.errors import DumpError
from frd.flight.layout import Layout, layout_of
from frd.flight.unpickle import load_plain
from frd.flight.walk import Bools, Walk
from frd.model import Float64s, Int64s

MIN_ENTRIES: Final = 64
"""Fewer are unpickled in no time."""

_TREE = re.compile(rb"(?s:[\](e]|h.|j.{4}|K.|M..|J.{4}|\x8a\x08.{8})*+")
"""Lists of numbers and references, with keys between them. Nothing is defined in them."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """A column of values that repeat."""

    index: Int64s
    """Into `values`."""
    values: Sequence[Any]


@dataclass(frozen=True, slots=True)
class InStep:
    """A dump, most of its entries as columns."""

    document: Any
    """All else of the dump, as plain values, with the entries that are not in step."""
    rows: Int64s
    """Which entries the columns are of."""
    apart: Int64s
    """Which entries are in `document`."""
    numbers: dict[str, Int64s]
    """Numbers; flags (0 and 1); 0 for None."""
    reals: dict[str, Float64s]
    """NaN where an entry has none."""
    texts: dict[str, Repeated]
    """Of whatever the file refers to: nothing is known of the types."""
    trees: dict[str, Repeated]
    """Of dicts, which hold the key and those of the trees behind it."""

    def __len__(self) -> int:
        return len(self.rows) + len(self.apart)


def read(data: bytes, source: str) -> InStep | None:
    """The dump in `data`, None when it is not laid out as PyTorch does it, or not sound."""
    layout = layout_of(data)
    if layout is None:
        return None
    walk = Walk(data, layout)
    count = len(walk.starts)
    rows = np.flatnonzero(walk.fits)
    trees = {name: _trees(data, places, rows) for name, places in walk.trees.items()}
    plain = {name: _plain(tree.values) for name, tree in trees.items()}
    sound = np.ones(len(rows), np.bool_)
    for name, tree in trees.items():
        sound &= plain[name][tree.index]
    rows = rows[sound]
    trees = {name: _kept(tree, plain[name], sound) for name, tree in trees.items()}
    if len(rows) < MIN_ENTRIES or len(rows) * 2 < count:
        return None
    return _load(data, layout, walk, rows, trees, source)


def _trees(data: bytes, places: tuple[Int64s, Int64s], rows: Int64s) -> Repeated:
    """The bytes of the trees of some entries."""
    begin, end = (place[rows].tolist() for place in places)
    seen: dict[bytes, int] = {}
    index = [seen.setdefault(data[at:to], len(seen)) for at, to in zip(begin, end, strict=True)]
    return Repeated(np.array(index, np.int64), list(seen))


def _plain(trees: Sequence[bytes]) -> Bools:
    return np.array([_TREE.fullmatch(tree) is not None for tree in trees], np.bool_)


def _kept(trees: Repeated, plain: Bools, sound: Bools) -> Repeated:
    """Only trees that are plain, of entries that are sound."""
    place = np.cumsum(plain) - 1
    values = [tree for tree, keep in zip(trees.values, plain.tolist(), strict=True) if keep]
    return Repeated(place[trees.index[sound]], values)


def _distinct(numbers: Int64s, bound: int) -> tuple[Int64s, Int64s] | None:
    """The different ones, and for each number which of them it is; None when one is too large."""
    if (largest := int(numbers.max())) >= bound:
        return None
    there = np.zeros(largest + 1, np.bool_)
    there[numbers] = True
    return np.flatnonzero(there), np.cumsum(there)[numbers] - 1


def _load(
    data: bytes, layout: Layout, walk: Walk, rows: Int64s, trees: dict[str, Repeated], source: str
) -> InStep | None:
    """Decode what is not in step and what the entries in step refer to, in one small pickle."""
    left = np.ones(len(walk.starts), np.bool_)
    left[rows] = False
    apart = np.flatnonzero(left)
    texts: dict[str, tuple[Int64s, Int64s]] = {}
    for name, numbers in walk.references.items():
        if (found := _distinct(numbers[rows], len(data))) is None:
            return None
        texts[name] = found
    keys = {step.name: step.token for step in layout.steps}
    wanted = [
        *(_reference(number) for different, _ in texts.values() for number in different.tolist()),
        *(b"}(%b%bu" % (keys[name], tree) for name, of in trees.items() for tree in of.values),
    ]
    pieces = _entries(data, walk.starts, apart)
    small = b"".join((data[: layout.first], *pieces, b"](", *wanted, b"e\x86."))
    try:
        match load_plain(small, source=source):
            case ({"entries": [*entries]} as document, [*values]):
                pass
            case _:
                return None
    except DumpError:
        return None
    if len(entries) != len(apart) or len(values) != len(wanted):
        return None
    value = iter(values)
    return InStep(
        document=document,
        rows=rows,
        apart=apart,
        numbers={name: column[rows] for name, column in walk.numbers.items()},
        reals={name: column[rows] for name, column in walk.reals.items()},
        texts={n: Repeated(at, [*islice(value, len(d))]) for n, (d, at) in texts.items()},
        trees={n: Repeated(t.index, [*islice(value, len(t.values))]) for n, t in trees.items()},
    )


def _reference(number: int) -> bytes:
    return b"h%c" % number if number < 256 else b"j" + number.to_bytes(4, "little")


def _entries(data: bytes, starts: Int64s, which: Int64s) -> Iterator[bytes]:
    """The bytes of some entries; the last one's with all that follows, but for the stop."""
    ends = np.append(starts[1:], len(data) - 1)
    begin, end = starts[which].tolist(), ends[which].tolist()
    return (data[at:to] for at, to in zip(begin, end, strict=True))
