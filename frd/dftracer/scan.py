"""The usual lines of a trace, read as bytes by numpy: three times as fast as by any JSON parser.

DFTracer prints every call with one format string: the same keys in the same order, no spaces, no
escapes. So commas separate fields, and the eight bytes of a key are one comparison of integers. All
lines with the same number of fields are read together, column by column. What is read is verified:
every key, every digit, the end of the line. A line that differs in any way (another dialect, a
definition, a long name, a comma in a text, a cut or glued line, an argument that is an object) is
left to `frd.dftracer.reader`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from frd.dftracer.block import Calls, KeyTable, UInt64s
from frd.dftracer.line import FORKS, ITEMS, MOST_BYTES, TRACER, Kind, kind_of
from frd.model import Bools, Int64s

MIN_LINES: Final = 64
"""Of fewer lines with the same number of fields, calls of numpy would cost more than they save."""
_WORDS: Final = 4
"""Names of up to 32 bytes."""
_PADDING: Final = 16
"""Bytes before and after the text, so that the 16 bytes that end anywhere can be read."""
_ESCAPES: Final = frozenset('"\\')
_COMMA, _NEWLINE, _QUOTE, _BRACE = b',\n"{'
_MASK: Final = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)
"""The first n bytes of a word."""
_LAST: Final = ~_MASK[::-1]
"""The last n bytes of a word."""
_MIX: Final = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)


def _key(text: bytes) -> tuple[np.uint64, np.uint64, int]:
    """The word, its mask, and its length."""
    word = np.uint64(int.from_bytes(text.ljust(8, b"\0"), "little"))
    return word, _MASK[len(text)], len(text)


_ID, _NAME, _CAT, _TYPE = map(_key, (b'{"id":', b'"name":"', b'"cat":"', b'"type":'))
_PID, _TID, _TS, _DUR = map(_key, (b'"pid":', b'"tid":', b'"ts":', b'"dur":'))
_COMPLETE: Final = {True: _key(b'"ph":1,'), False: _key(b'"ph":"X"')}
"""By whether the line has a type, as 2.2 writes it."""
_ARGS, _END = _key(b'"args":{'), _key(b"}}\n")
_RET, _FHASH, _STEP, _EPOCH = map(_key, (b'"ret":', b'"fhash":', b'"step":', b'"epoch":'))


def scan(text: bytes, calls: Calls) -> tuple[dict[str, npt.NDArray[Any]], bytes] | None:
    """Read the lines of `text` that are as usual: columns as in `frd.dftracer.block.Block`, and the
    other lines as text. None if there are few or none of the former.

    `text` is whole lines. One that is not ended by a newline is left to the rest.
    """
    source = _Source(text)
    found: list[tuple[Int64s, dict[str, npt.NDArray[Any]]]] = []
    is_read = np.zeros(len(source.begin), np.bool_)
    for fields in np.flatnonzero(np.bincount(source.commas)).tolist():
        lines = np.flatnonzero(source.commas == fields)
        if fields < 8 or len(lines) < MIN_LINES:
            continue
        columns, ok = _group(source, lines, fields, calls)
        if ok.any():
            found.append((lines[ok], {name: column[ok] for name, column in columns.items()}))
            is_read[lines[ok]] = True
    rest = source.without(is_read)
    if source.objects() - rest.count(_BRACE) != 2 * int(is_read.sum()):
        is_read &= source.objects_by_line() == 2
        found = [
            (lines, {name: column[is_read[lines]] for name, column in columns.items()})
            for lines, columns in found
        ]
        rest = source.without(is_read)
    if not is_read.any():
        return None
    names = found[0][1]
    return {name: np.concatenate([columns[name] for _, columns in found]) for name in names}, rest


class _Source:
    """The bytes between padding, and where lines and commas are in them."""

    def __init__(self, text: bytes) -> None:
        self.text = padded = bytes(_PADDING) + text + bytes(_PADDING)
        self._words: UInt64s = np.ndarray((len(padded) - 8,), "<u8", padded, strides=(1,))
        self._raw = raw = np.frombuffer(padded, np.uint8)
        marks = np.flatnonzero((raw == _COMMA) | (raw == _NEWLINE))
        newlines = np.flatnonzero(raw[marks] == _NEWLINE)
        self.marks = marks
        self.end: Int64s = marks[newlines]
        """Of each line: where it ends and begins, its first comma in `marks`, and how many."""
        self.begin: Int64s = np.concatenate(([_PADDING], self.end[:-1] + 1))[: len(self.end)]
        self.first: Int64s = np.concatenate(([0], newlines[:-1] + 1))[: len(self.end)]
        self.commas: Int64s = newlines - self.first
        self.ended = int(self.end[-1]) + 1 if len(self.end) else _PADDING

    def word(self, at: Int64s) -> UInt64s:
        """The eight bytes from each position on, which may be up to 16 bytes before the text."""
        return self._words[at]

    def objects(self) -> int:
        """How many objects begin: two in a line, if no argument is an object."""
        return int(np.count_nonzero(self._raw == _BRACE))

    def objects_by_line(self) -> Int64s:
        at = np.flatnonzero(self._raw == _BRACE)
        return np.searchsorted(at, self.end) - np.searchsorted(at, self.begin)

    def without(self, is_read: Bools) -> bytes:
        """The lines that are not read yet, and what is behind the last newline."""
        others = np.flatnonzero(~is_read)
        spans = zip(self.begin[others].tolist(), self.end[others].tolist(), strict=True)
        left = [self.text[begin:end] for begin, end in spans]
        return b"\n".join([*left, self.text[self.ended : -_PADDING]])


def _group(
    source: _Source, lines: Int64s, fields: int, calls: Calls
) -> tuple[dict[str, npt.NDArray[Any]], Bools]:
    """Columns of lines with the same number of commas, and which lines are as usual."""
    begin, end = source.begin[lines], source.end[lines]
    comma = source.marks[source.first[lines] + np.arange(fields)[:, None]]
    ok = _is(source, begin, _ID) & _is(source, end - 2, _END)
    typed = bool(_is(source, comma[2][:1] + 1, _TYPE)[0])
    at = 3 + typed  # the field of the pid
    if fields < at + 5:
        return {}, np.zeros(len(lines), np.bool_)
    if typed:
        ok &= _is(source, comma[2] + 1, _TYPE)
    names, is_name = _texts(source, comma[0] + 1, comma[1], _NAME)
    cats, is_cat = _texts(source, comma[1] + 1, comma[2], _CAT)
    numbers: dict[str, Int64s] = {}
    for place, (column, key) in enumerate(
        (("pid", _PID), ("tid", _TID), ("start", _TS), ("dur", _DUR))
    ):
        first, last = comma[at + place - 1] + 1, comma[at + place]
        ok &= _is(source, first, key)
        numbers[column], good = _integers(source, first + key[2], last)
        ok &= good
    ok &= is_name & is_cat & _is(source, comma[at + 3] + 1, _COMPLETE[typed])
    ok &= _is(source, comma[at + 4] + 1, _ARGS)
    args = [comma[at + 4] + 1 + _ARGS[2], *(one + 1 for one in comma[at + 5 :])]
    ends = [*comma[at + 5 :], end - 2]
    values, good = _arguments(source, args, ends, calls)
    ok &= good
    name, cat, kind, good = _calls(names, cats, ok, calls)
    ok &= good
    ret = values.pop("ret")
    is_io = kind >= Kind.IO
    moves = (kind == Kind.READ) | (kind == Kind.WRITE)
    return {
        "name": name,
        "cat": cat,
        "kind": kind,
        **numbers,
        "file": values["file"],
        "nbytes": np.where(moves, np.minimum(ret, MOST_BYTES), 0),
        "failed": np.zeros(len(lines), np.uint8),
        "epoch": np.where(is_io, -1, values["epoch"]),
        "step": np.where(is_io, -1, values["step"]),
    }, ok


def _is(source: _Source, at: Int64s, key: tuple[np.uint64, np.uint64, int]) -> Bools:
    found: Bools = (source.word(at) & key[1]) == key[0]
    return found


def _integers(source: _Source, begin: Int64s, end: Int64s) -> tuple[Int64s, Bools]:
    """Numbers of up to 16 digits, and which ones are such."""
    length = end - begin
    ok = (length > 0) & (length <= 16)
    low, good = digits(source.word(end - 8), np.clip(length, 0, 8))
    ok &= good
    if (length > 8).any():
        high, good = digits(source.word(end - 16), np.clip(length - 8, 0, 8))
        ok &= good
        low = low + high * np.uint64(100_000_000)
    return low.astype(np.int64), ok


def digits(word: UInt64s, length: Int64s | int) -> tuple[UInt64s, Bools]:
    """The number that the last `length` bytes of each word spell, by pairs, fours and eights."""
    x = (word ^ np.uint64(0x3030303030303030)) & _LAST[length]
    above = (x + np.uint64(0x7676767676767676)) | x
    ok: Bools = (above & np.uint64(0x8080808080808080)) == 0
    x = (x * np.uint64(10) + (x >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    x = (x * np.uint64(100) + (x >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    x = (x * np.uint64(10_000) + (x >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return x, ok


@dataclass(frozen=True, slots=True)
class _Texts:
    """Texts of up to 32 bytes, as words."""

    words: Sequence[UInt64s]
    mixed: UInt64s
    """One number for each text; equal texts have the same."""

    def text(self, row: int) -> str:
        raw = b"".join(int(word[row]).to_bytes(8, "little") for word in self.words)
        return raw.rstrip(b"\0").decode("utf-8", "replace")


def _texts(
    source: _Source, begin: Int64s, end: Int64s, key: tuple[np.uint64, np.uint64, int]
) -> tuple[_Texts, Bools]:
    """Texts in quotes after a key, and which ones are such."""
    first = begin + key[2]
    length = end - 1 - first
    ok = _is(source, begin, key) & (length >= 0) & (length <= 8 * _WORDS)
    ok &= _is_quote(source, end - 1)
    longest = int(length[ok].max(initial=0))
    words = []
    mixed = np.zeros(len(begin), np.uint64)
    for number in range(max((longest + 7) // 8, 1)):
        # A line that is too short for this word has zeros in it, as it has for `mixed`.
        size = np.clip(length - 8 * number, 0, 8)
        word = source.word(np.minimum(first + 8 * number, end)) & _MASK[size]
        mixed = (mixed ^ word) * _MIX[number & 1]
        mixed ^= mixed >> np.uint64(29)
        words.append(word)
    return _Texts(words, mixed), ok


def _arguments(
    source: _Source, begins: Sequence[Int64s], ends: Sequence[Int64s], calls: Calls
) -> tuple[dict[str, Int64s], Bools]:
    """`ret`, `file`, `epoch` and `step`, and which lines have them as usual."""
    count = len(begins[0])
    ok = np.ones(count, np.bool_)
    out = {
        "ret": np.zeros(count, np.int64),
        **{name: np.full(count, -1, np.int64) for name in ("file", "epoch", "step")},
    }
    for begin, end in zip(begins, ends, strict=True):
        word = source.word(begin)
        # A record that is glued to this one begins with its id and has a name.
        ok &= word != _NAME[0]
        for name, key in (("ret", _RET), ("step", _STEP), ("epoch", _EPOCH), ("file", _FHASH)):
            rows = np.flatnonzero((word & key[1]) == key[0])
            if not len(rows):
                continue
            first, last = begin[rows] + key[2], end[rows]
            if name == "file":
                values, good = _hashes(source, first, last, calls)
            else:
                values, good = _integers(source, first, last)
            out[name][rows] = values
            ok[rows] &= good
    return out, ok


def _hashes(source: _Source, begin: Int64s, end: Int64s, calls: Calls) -> tuple[Int64s, Bools]:
    """Indexes of files by a hash: 16 characters in quotes, or in v1 a number."""
    if not bool(_is_quote(source, begin[:1])[0]):
        numbers, ok = _integers(source, begin, end)
        word = numbers.view(np.uint64)
        values, ok = calls.numbers.find(
            word * _MIX[0], [word], ok, lambda row: (calls.files[str(numbers[row])],)
        )
        return values[0], ok
    ok = (end - begin == 18) & _is_quote(source, begin) & _is_quote(source, end - 1)
    pair = source.word(begin + 1), source.word(begin + 9)

    def index(row: int) -> tuple[int]:
        raw = b"".join(int(word[row]).to_bytes(8, "little") for word in pair)
        return (calls.files[raw.decode("utf-8", "replace")],)

    values, ok = calls.hashes.find((pair[0] * _MIX[0]) ^ (pair[1] * _MIX[1]), pair, ok, index)
    return values[0], ok


def _is_quote(source: _Source, at: Int64s) -> Bools:
    found: Bools = (source.word(at) & _MASK[1]) == np.uint64(_QUOTE)
    return found


def _calls(
    names: _Texts, cats: _Texts, ok: Bools, calls: Calls
) -> tuple[Int64s, Int64s, npt.NDArray[np.uint8], Bools]:
    """Indexes of name and category, kinds, and which lines need no look at other arguments."""
    widths = len(names.words), len(cats.words)
    if widths not in calls.texts:
        calls.texts[widths] = KeyTable(words=sum(widths), values=4)

    def meaning(row: int) -> tuple[int, int, int, bool]:
        name, cat = names.text(row), cats.text(row)
        usual = cat != TRACER and name not in FORKS and name not in ITEMS
        usual &= _ESCAPES.isdisjoint(name + cat)
        return calls.names[name], calls.cats[cat], kind_of(cat, name), usual

    mixed = names.mixed ^ (cats.mixed << np.uint64(1))
    values, ok = calls.texts[widths].find(mixed, (*names.words, *cats.words), ok, meaning)
    name, cat, kind, usual = values
    return name, cat, kind.astype(np.uint8), ok & (usual != 0)
