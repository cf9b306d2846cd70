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

The positions of a `Walk` are a numpy array, one in each entry. At each step every entry must have
the expected key, followed by an operand of the expected kind; an entry that does not, or whose last
step does not end exactly where the next entry begins, is out of step. All others are read as
correctly as by a pickle machine, because each step is the only way to read these bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from frd.errors import DumpError
from frd.flight.pickles.layout import Kind, Layout, Step, layout_of
from frd.flight.pickles.unpickle import load_plain
from frd.model import Bools, Float64s, Int64s, UInt8s

MIN_ENTRIES: Final = 64
"""Fewer are unpickled fast enough."""

_TREE = re.compile(rb"(?s:[\](e]|h.|j.{4}|K.|M..|J.{4}|\x8a\x08.{8})*+")
"""Lists of numbers and references, with keys between them. Nothing is defined in them."""
T = TypeVar("T")

MAX_TREE = 512
"""Bytes of a stack or of the shapes of one op that are looked at together."""
_PAD = 1_024
"""A position that runs over the end stays within these bytes: no entry has as many."""


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


def _operands(opcodes: dict[bytes, int]) -> Int64s:
    """Bytes of the operand of each opcode, -1 for an opcode that is not expected."""
    table = np.full(256, -1, np.int64)
    for opcode, size in opcodes.items():
        table[opcode[0]] = size
    return table


_NUMBERS = _operands({b"K": 1, b"M": 2, b"J": 4, b"\x8a": 8})
_NUMBERS_AND_NONE = _operands({b"K": 1, b"M": 2, b"J": 4, b"\x8a": 8, b"N": 0})
_REFERENCES = _operands({b"h": 1, b"j": 4})
_LONG, _INT32, _REAL, _TRUE, _FALSE, _TUPLE = b"\x8aJG\x88\x89\x86"
_FACTORS = np.array(
    [pow(0x9E3779B97F4A7C15, at + 1, 1 << 64) for at in range(MAX_TREE // 8)], np.uint64
)


@cache
def _masks(words: int) -> npt.NDArray[np.uint64]:
    """By number of bytes, up to that of so many words: a mask of these bytes."""
    sizes = np.arange(8 * words + 1)
    ones = np.where(np.arange(8 * words) < sizes[:, None], 255, 0).astype(np.uint8)
    return ones.view("<u8")


@cache
def _low(size: int) -> np.uint64:
    """A mask of so many bytes."""
    return np.uint64((1 << 8 * size) - 1)


@dataclass(frozen=True, slots=True)
class Repeated(Generic[T]):
    """A column of values that repeat."""

    index: Int64s
    """Into `values`."""
    values: Sequence[T]

    def of(self, rows: Bools) -> Repeated[T]:
        """The column of some rows, with the values that they have."""
        used, index = np.unique(self.index[rows], return_inverse=True)
        return Repeated(index, [self.values[at] for at in used.tolist()])


class Walk:
    """Columns of all entries but the last, of which nothing says where it ends.

    Values of entries that are not in step are meaningless.
    """

    def __init__(self, data: bytes, layout: Layout) -> None:
        self._data = data
        self._bytes: UInt8s = np.frombuffer(data + bytes(_PAD), np.uint8)
        # The eight bytes from every position on, as a number.
        size = len(self._bytes) - 8
        self._words = np.ndarray((size,), np.dtype("<u8"), self._bytes.data, strides=(1,))
        key = layout.steps[0].token
        ends = self._find(b"u}(" + key)
        ends = ends[ends >= layout.first]
        self.starts: Int64s = np.concatenate(([layout.first], ends + 1))
        """Of every entry, the last one's too."""
        self.fits: Bools = np.ones(len(ends), np.bool_)
        self.fits[:1] = False  # the first one spells its keys out
        self.numbers: dict[str, Int64s] = {}
        """Flags are 0 or 1, None is 0."""
        self.reals: dict[str, Float64s] = {}
        self.references: dict[str, Int64s] = {}
        """Numbers of the texts; of a pair, `name` and `name[1]`."""
        self.trees: dict[str, tuple[Int64s, Int64s]] = {}
        """Where the trees begin and end."""
        self._at = self.starts[:-1] + 2
        self._ends = ends
        self._steps = layout.steps

    def run(self) -> None:
        """Take all steps."""
        for step in self._steps:
            self._take(step)
        self.fits &= self._at == self._ends

    def alike(self, begin: Int64s, end: Int64s) -> Repeated[bytes | None]:
        """The bytes between positions; None if they are too long, or if two share one hash."""
        size = end - begin
        longest = int(size.max(initial=1))
        if longest > MAX_TREE:
            begin, size = np.where(size > MAX_TREE, 0, begin), np.where(size > MAX_TREE, 0, size)
            longest = MAX_TREE
        rows = self._padded(begin, size, -(-longest // 8))
        words = rows.view("<u8").reshape(len(rows), -1)
        # Equal bytes have equal sums; unequal bytes with equal sums are found below.
        sums = words @ _FACTORS[: words.shape[1]]
        _, first, index = np.unique(sums, return_index=True, return_inverse=True)
        same = words == rows[first[index]].view("<u8").reshape(words.shape)
        odd = (size != size[first[index]]) | (size == 0)
        if not same.all() or odd.any():
            index[odd | ~same.all(axis=1)] = len(first)
        spans = zip(begin[first].tolist(), (begin + size)[first].tolist(), strict=True)
        return Repeated(index, [*(self._data[at:to] for at, to in spans), None])

    def _padded(self, begin: Int64s, size: Int64s, words: int) -> npt.NDArray[np.void]:
        """Items of so many words each: `size` bytes from `begin` on, and zeros."""
        places = len(self._bytes) - 8 * words
        chunks = np.ndarray((places,), f"V{8 * words}", self._bytes.data, strides=(1,))
        items = chunks[begin]
        whole = items.view("<u8").reshape(-1, words)
        whole &= _masks(words).take(size, axis=0)
        return items

    def _take(self, step: Step) -> None:
        name = step.name
        match step.kind:
            case Kind.NUMBER:
                self.numbers[name] = self._number(step.token, _NUMBERS)
            case Kind.NUMBER_OR_NONE:
                self.numbers[name] = self._number(step.token, _NUMBERS_AND_NONE)
            case Kind.FLAG:
                self.numbers[name] = self._flag(step.token)
            case Kind.REAL:
                self.reals[name] = self._real_if(step.token)
            case Kind.TEXT:
                self.references[name] = self._number(step.token, _REFERENCES)
            case Kind.PAIR:
                self.references[name] = self._number(step.token, _REFERENCES)
                self.references[f"{name}[1]"] = self._number(b"", _REFERENCES)
                self.fits &= self._bytes[self._at] == _TUPLE
                self._at += 1
            case Kind.TREE:
                self._expect(step.token)
                self.trees[name] = self._tree(step.until)

    def _expect(self, token: bytes) -> None:
        self.fits &= self._is(token)
        self._at += len(token)

    def _number(self, token: bytes, operands: Int64s) -> Int64s:
        """The number behind the key."""
        self._expect(token)
        opcode = self._bytes[self._at]
        size = operands[opcode]
        self.fits &= size >= 0
        self._at += 1
        if (long := opcode == _LONG).any():
            self.fits &= ~long | (self._bytes[self._at] == 8)
            self._at += long
        size = np.maximum(size, 0)
        unused = np.uint64(64) - np.uint64(8) * size.astype(np.uint64)
        # A shift by all 64 bits is no shift to the processor.
        value: Int64s = ((self._words[self._at] << unused) >> unused).view(np.int64)
        value[size == 0] = 0
        if (signed := opcode == _INT32).any():
            value[signed] = value[signed].astype(np.int32)
        self._at += size
        return value

    def _is(self, token: bytes) -> Bools:
        here = self._words[self._at] & _low(len(token))
        found: Bools = here == np.uint64(int.from_bytes(token, "little"))
        return found

    def _flag(self, token: bytes) -> Int64s:
        self._expect(token)
        opcode = self._bytes[self._at]
        self.fits &= (opcode == _TRUE) | (opcode == _FALSE)
        self._at += 1
        value: Int64s = (opcode == _TRUE).astype(np.int64)
        return value

    def _real_if(self, token: bytes) -> Float64s:
        """The number behind the key where the key is, NaN elsewhere."""
        there = self._is(token)
        at = self._at + len(token)
        self.fits &= ~there | (self._bytes[at] == _REAL)
        value = self._words[at + 1].byteswap().view(np.float64)
        self._at += there * (len(token) + 9)
        return np.where(there, value, np.nan)

    def _tree(self, until: bytes) -> tuple[Int64s, Int64s]:
        """Up to the next key. Bytes that only look like that key put the entry out of step."""
        ends = self._find(until)
        ends = np.append(ends, len(self._bytes) - _PAD)
        begin = self._at
        self._at = ends[np.searchsorted(ends[:-1], begin)]
        return begin, self._at.copy()

    def _find(self, token: bytes) -> Int64s:
        """All places where `token` is."""
        size = len(self._bytes) - len(token)
        there = (self._bytes[:size] == token[0]) & (self._bytes[1 : size + 1] == token[1])
        found = np.flatnonzero(there)
        here = self._words[found] & _low(len(token))
        places: Int64s = found[here == np.uint64(int.from_bytes(token, "little"))]
        return places
