"""Decodes all entries of a torch pickle together: one sequence of steps, a position in each entry.

The positions are a numpy array. At each step every entry must have the expected key, followed by an
operand of the expected kind; an entry that does not, or whose last step does not end exactly where
the next entry begins, is out of step. All others are read as correctly as by a pickle machine,
because each step is the only way to read these bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from frd.flight.pickles.layout import Kind, Layout, Step
from frd.model import Bools, Float64s, Int64s, UInt8s

T = TypeVar("T")

MAX_TREE = 512
"""Bytes of a stack or of the shapes of one op that are looked at together."""
_PAD = 1_024
"""A position that runs over the end stays within these bytes: no entry has as many."""


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
