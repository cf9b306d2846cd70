"""The layout of a line of events: which other lines are parsed in the same way, and what they say.

A `Layout` is learned from one line that msgspec has decoded. It has, for each byte, the values that
may take its place without changing how the line is parsed: a number keeps its sign and its count of
digits; a text keeps its length and has no quote, escape or control character; all other bytes are
the same. So msgspec would accept each line of the layout, with the values that are read here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from frd.dftracer.scan import digits
from frd.model import Bools, Int32s, Int64s, UInt8s
from frd.offline.memory.events.phases import ORIGIN_KEYS, PHASES
from frd.offline.memory.telemetry import ABSURD, NONE, NUMBERS, Event, Identity

_MAX_KEYS: Final = 1 << 16
_LEFT: Final = -1 << 40
"""Lines with this key are left to msgspec."""
_WORD: Final = 8
_MAX_DIGITS: Final = 19
_QUOTE, _ESCAPE, _MINUS, _FIRST, _LAST = b'"\\- ~'
_TOKEN: Final = re.compile(
    rb'(?P<text>"[^"\\]*(?:\\.[^"\\]*)*")|(?P<number>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)'
    rb"|(?P<mark>[][{}:,])|\w+|\s+",
    re.DOTALL,
)
_INTEGER: Final = re.compile(rb"-?\d{1,%d}" % _MAX_DIGITS)
_DECIMAL: Final = re.compile(rb"-?(?P<whole>\d+)(?:\.(?P<fraction>\d+))?")
_PLAIN: Final = re.compile(rb"[ !#-\[\]-~]*")
_IDENTITY: Final = frozenset(name.encode() for name in Identity._fields)
_NUMBERS: Final = [name.encode() for name in NUMBERS]


class Decoded(NamedTuple):
    """A line that msgspec has decoded, and the numbers of its identity and its origin."""

    event: Event
    identity: int
    origin: int


Decode = Callable[[bytes], Decoded | None]


class _Word(NamedTuple):
    """Up to eight digits of a number."""

    column: int
    """Of `NUMBERS`."""
    end: int
    """Where they end in a line."""
    digits: int
    power: int
    """How many such words come after it in the number."""
    is_last: bool
    is_negative: bool


class _Allowed(NamedTuple):
    """By byte of a line: the least value, and how much more it may be."""

    low: UInt8s
    reach: UInt8s

    def all_of(self, lines: UInt8s) -> Bools | None:
        """Which lines have only allowed bytes; None for all of them."""
        is_allowed = np.less_equal(lines - self.low, self.reach)
        return None if is_allowed.all() else np.asarray(is_allowed.all(axis=1))


@dataclass(slots=True)
class Layout:
    """What lines of one form have in common, and where they differ."""

    length: int
    same: _Allowed
    """Of lines with the identity, the origin and the texts of the first one: only digits differ."""
    other: _Allowed
    text: Int64s
    """Bytes of texts that may change."""
    key: Int64s
    """Bytes that say which identity and which origin an event has."""
    words: list[_Word]
    """Of all numbers, by column, the last digits first."""
    digits: Int64s
    """(words, 1): how many digits of each belong to the number."""
    first: Decoded
    is_uniform: bool = True
    """Most lines have identity, origin and texts of the first one."""
    known: dict[bytes, int] = field(default_factory=dict)
    """By the bytes at `key`: identity and origin in one number, or `_LEFT`."""

    def sources(self, lines: UInt8s, decode: Decode) -> tuple[Int32s, Int32s, Bools]:
        """Identity and origin of each line, and which lines are of this layout."""
        if not self.is_uniform:
            return self._sources(lines, decode)
        identity = np.full(len(lines), self.first.identity, np.int32)
        origin = np.full(len(lines), self.first.origin, np.int32)
        ok = self.same.all_of(lines)
        if ok is None:
            return identity, origin, np.ones(len(lines), np.bool_)
        self.is_uniform = 2 * int(ok.sum()) >= len(lines)
        others = np.flatnonzero(~ok)
        identity[others], origin[others], ok[others] = self._sources(lines[others], decode)
        return identity, origin, ok

    def _sources(self, lines: UInt8s, decode: Decode) -> tuple[Int32s, Int32s, Bools]:
        ok = self.other.all_of(lines)
        if ok is None:
            ok = np.ones(len(lines), np.bool_)
        text = lines[:, self.text]
        ok &= ~((text == _QUOTE) | (text == _ESCAPE)).any(axis=1)
        at = np.flatnonzero(ok)
        both = np.zeros(len(lines), np.int64)
        both[at] = self._known(lines[at], decode)
        ok &= both != _LEFT
        return (both >> 32).astype(np.int32), both.astype(np.int32), ok

    def _known(self, lines: UInt8s, decode: Decode) -> Int64s:
        if not len(self.key):
            return np.full(len(lines), _joined(self.first))
        if len(self.known) > _MAX_KEYS:
            self.known.clear()
        # No byte is 0, so numpy cuts nothing off.
        keys = np.ascontiguousarray(lines[:, self.key]).view(f"S{len(self.key)}").ravel().tolist()
        try:
            return np.fromiter(map(self.known.__getitem__, keys), np.int64, len(keys))
        except KeyError:
            for row, key in enumerate(keys):
                if key not in self.known:
                    decoded = decode(lines[row].tobytes())
                    is_phase = decoded is None or decoded.event.event_type in PHASES
                    self.known[key] = _LEFT if decoded is None or is_phase else _joined(decoded)
            return np.fromiter(map(self.known.__getitem__, keys), np.int64, len(keys))

    def numbers(self, lines: UInt8s) -> Int64s:
        """(n, 5)."""
        out = np.full((len(lines), len(NUMBERS)), NONE)
        words = np.empty((len(self.words), len(lines)), np.uint64)
        for row, word in enumerate(self.words):
            words[row] = lines[:, word.end - _WORD : word.end].view("<u8")[:, 0]
        values, _ = digits(words, self.digits)
        for row, word in enumerate(self.words):
            if word.power == 0:
                total = values[row]
            else:
                total += values[row] * np.uint64(10 ** (_WORD * word.power))
            if word.is_last:
                bounded = np.minimum(total, np.uint64(ABSURD)).astype(np.int64)
                if word.is_negative:
                    bounded = np.where(bounded < ABSURD, -bounded, ABSURD)
                out[:, word.column] = bounded
        return out


def _joined(decoded: Decoded) -> int:
    return decoded.identity << 32 | decoded.origin & 0xFFFFFFFF


# -- learning --------------------------------------------------------------------------------------


class _Value(NamedTuple):
    """A text or a number of a line."""

    name: bytes
    """The key of the innermost object that it is in."""
    depth: int
    """1 for a field of the event."""
    begin: int
    end: int
    is_number: bool


def layout_of(line: bytes, first: Decoded) -> Layout | None:
    """None if a field that is read has no usual form."""
    if (values := _values(line)) is None:
        return None
    low = np.frombuffer(line, np.uint8)
    same, other = (_Allowed(low.copy(), np.zeros_like(low)) for _ in range(2))
    is_text, is_key = np.zeros(len(line), np.bool_), np.zeros(len(line), np.bool_)
    spans: dict[bytes, tuple[int, int]] = {}
    for value in values:
        begin, end = value.begin, value.end
        if value.depth == 1:
            spans[value.name] = begin, end
        is_source = value.name in ORIGIN_KEYS or (value.depth == 1 and value.name in _IDENTITY)
        if value.is_number:
            _allow_digits(other, line, begin, end)
            if not is_source:
                _allow_digits(same, line, begin, end)
        elif _PLAIN.fullmatch(line, begin + 1, end - 1):
            is_text[begin + 1 : end - 1] = True
            other.low[begin + 1 : end - 1] = _FIRST
            other.reach[begin + 1 : end - 1] = _LAST - _FIRST
        is_key[begin:end] = is_source
    words: list[_Word] = []
    for column, name in enumerate(_NUMBERS):
        if name in spans:  # else it is missing, or null
            begin, end = spans[name]
            if begin < _WORD or not _INTEGER.fullmatch(line, begin, end):
                return None
            words += _words(column, begin, end, is_negative=line[begin] == _MINUS)
    key = np.flatnonzero(is_key & (other.reach > 0))
    counts = np.array([[word.digits] for word in words], np.int64).reshape(-1, 1)
    return Layout(len(line), same, other, np.flatnonzero(is_text), key, words, counts, first)


def _words(column: int, begin: int, end: int, *, is_negative: bool) -> Iterator[_Word]:
    begin += is_negative
    for power, last in enumerate(range(end, begin, -_WORD)):
        count = min(_WORD, last - begin)
        yield _Word(column, last, count, power, last - count == begin, is_negative)


def _allow_digits(allowed: _Allowed, line: bytes, begin: int, end: int) -> None:
    """Other digits of a number; not in its exponent."""
    if (number := _DECIMAL.match(line, begin, end)) is None:
        return
    for part in ("whole", "fraction"):
        first, last = number.span(part)
        allowed.low[first:last], allowed.reach[first:last] = ord("0"), 9
    first, last = number.span("whole")
    if last - first > 1 or line[begin] == _MINUS:
        allowed.low[first], allowed.reach[first] = ord("1"), 8


def _values(line: bytes) -> list[_Value] | None:
    """The texts and numbers of a line that is valid JSON.

    None if a field has two values, or a name has an escape.
    """
    values: list[_Value] = []
    names: list[bytes | None] = []  # by depth; None in a list
    is_name, fields = False, set()
    for token in _TOKEN.finditer(line):
        begin, end = token.span()
        match token.lastgroup, token[0]:
            case "mark", b"{":
                names.append(b"")
                is_name = True
            case "mark", b"[":
                names.append(None)
            case "mark", b"}" | b"]":
                names.pop()
            case "mark", b",":
                is_name = names[-1] is not None
            case "text", text if is_name:
                name = text[1:-1]
                if b"\\" in name or (len(names) == 1 and name in fields):
                    return None
                if len(names) == 1:
                    fields.add(name)
                names[-1], is_name = name, False
            case ("text" | "number") as kind, _:
                within = names[-1] or b""
                values.append(_Value(within, len(names), begin, end, kind == "number"))
    return values
