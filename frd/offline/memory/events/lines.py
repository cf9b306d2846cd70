"""Events to columns: the lines of a file, or the items of its list, with what is wrong with them.

A tracker writes all its events with one format string, so most lines of a file have the same bytes
except for digits. A layout is learned from one of them, and all lines of the same length are
compared with it together, byte by byte, by numpy. This takes 0.4 µs a line, a quarter of the time
for decoding it to an object and taking the numbers. Lines of no layout are decoded by msgspec in
one call; only if that fails, one by one, so that each error has its line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
import numpy as np

from frd.model import Bools, Int32s, Int64s, UInt8s
from frd.offline.memory.events.layout import Decode, Decoded, Layout, layout_of
from frd.offline.memory.events.phases import (
    PHASES,
    FullEvent,
    has_phases,
    mark_of,
    origin_of,
)
from frd.offline.memory.telemetry import (
    NUMBERS,
    Block,
    Event,
    Sources,
    block_of,
    identity_of,
)
from frd.offline.phases.marks import PhaseMark

MAX_EVENT_BYTES: Final = 1 << 20
MAX_BAD: Final = 8
"""Refusals of a file that are listed; the others are counted."""
BAD: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_NEWLINE: Final = ord("\n")
MIN_LINES: Final = 32
"""Fewer lines of the same length are not worth the calls of numpy."""
MAX_LINE: Final = 1 << 14
_MAX_LAYOUTS: Final = 16
"""Of lines of one length."""
_LEARNED_AT_ONCE: Final = 4
_WORTH: Final = 16
"""How many lines a learned layout must save for the next one to be learned, on average."""
_FREE: Final = 64
"""Layouts that are learned anyway."""
_BLOCK_BYTES: Final = 1 << 18
"""Bytes that are compared together: they stay in the cache."""


class Refusal(NamedTuple):
    """An event that cannot be read."""

    number: int
    """Of the line, or of the event in a list."""
    why: str


@dataclass(slots=True)
class Refusals:
    first: list[Refusal] = field(default_factory=list)
    more: int = 0

    def add(self, number: int, why: object) -> None:
        if len(self.first) < MAX_BAD:
            self.first.append(Refusal(number, str(why)))
        else:
            self.more += 1


class EventReader:
    """Decodes events of one file; what it learns of its lines serves the next ones."""

    def __init__(self) -> None:
        self.sources = Sources()
        self.marks: list[PhaseMark] = []
        """Of the phase events that were read, to be taken by the caller."""
        self.refusals = Refusals()
        self._layouts = Layouts(self._one_line)
        self._of = {full: _Decoders(of) for full, of in ((False, Event), (True, FullEvent))}

    # -- lines -----------------------------------------------------------------------------------

    def lines(self, text: memoryview, number: int) -> tuple[Block, int]:
        """The events in some whole lines, the first of which has that number; how many lines."""
        raw = np.frombuffer(text, np.uint8)
        newline = np.flatnonzero(raw == _NEWLINE)
        begin = np.concatenate(([0], newline + 1))
        end = np.append(newline, len(raw))
        if raw[-1] == _NEWLINE:
            begin, end = begin[:-1], end[:-1]
        rows = Rows.empty(len(begin))
        self._layouts.read(raw, begin, end, rows)
        if rows.done.all():
            at, numbers = np.arange(len(begin)), rows.numbers
        else:
            self._decode(text, begin, end, rows, number)
            at = np.flatnonzero(rows.done)
            numbers = rows.numbers[at]
        block = Block(
            rows.identity[at], numbers[:, 0].copy(), numbers[:, 1:].copy(), rows.origin[at]
        )
        return block, len(begin)

    def _decode(
        self, text: memoryview, begin: Int64s, end: Int64s, rows: Rows, number: int
    ) -> None:
        """Read the lines that are not regular, too."""
        left = np.flatnonzero(~rows.done)
        spans = zip(left.tolist(), begin[left].tolist(), end[left].tolist(), strict=True)
        texts = [(row, one) for row, a, b in spans if (one := bytes(text[a:b]).strip())]
        pairs = self._together([(row + number, one) for row, one in texts])
        if not pairs:
            return
        at = np.array([line - number for line, _ in pairs])
        block = self._block([event for _, event in pairs])
        rows.identity[at], rows.origin[at], rows.done[at] = block.identity, block.origin, True
        rows.numbers[at, 0], rows.numbers[at, 1:] = block.at_ns, block.counters

    def _one_line(self, line: bytes) -> Decoded | None:
        try:
            event = self._of[has_phases(line)].one.decode(line)
        except BAD:
            return None
        origin = self.sources.origin(origin_of(event))
        return Decoded(event, self.sources.identity(identity_of(event)), origin)

    # -- items of a list -------------------------------------------------------------------------

    def items(self, text: bytes, number: int) -> tuple[Block, int]:
        """The events in some items of a list, and how many there are.

        Raises:
            msgspec.ValidationError: one of them is no event.
            msgspec.DecodeError: it is not JSON.
        """
        events = self._of[has_phases(text)].all.decode(b"[%b]" % text)
        pairs = self._without_phases(enumerate(events, number))
        return self._block([event for _, event in pairs]), len(events)

    def each(self, texts: Iterable[tuple[int, bytes]]) -> Block:
        """The events in some texts, each with its number."""
        pairs = self._without_phases(self._one_by_one(texts))
        return self._block([event for _, event in pairs])

    # -- both ------------------------------------------------------------------------------------

    def _together(self, texts: Sequence[tuple[int, bytes]]) -> list[tuple[int, Event]]:
        """The events in some lines, each with its number."""
        if max((len(text) for _, text in texts), default=0) <= MAX_EVENT_BYTES:
            together = b"\n".join([text for _, text in texts])
            try:
                events = self._of[has_phases(together)].one.decode_lines(together)
            except BAD:
                events = []
            if len(events) == len(texts):  # else two are in one line, or one is in two
                numbers = (number for number, _ in texts)
                return self._without_phases(zip(numbers, events, strict=True))
        return self._without_phases(self._one_by_one(texts))

    def _one_by_one(self, texts: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, Event]]:
        for number, text in texts:
            if len(text) > MAX_EVENT_BYTES:
                self.refusals.add(number, f"longer than {MAX_EVENT_BYTES} bytes")
                continue
            try:
                yield number, self._of[has_phases(text)].one.decode(text)
            except BAD as error:
                self.refusals.add(number, error)

    def _without_phases(self, events: Iterable[tuple[int, Event]]) -> list[tuple[int, Event]]:
        """Phase events become marks, the others are returned."""
        others = []
        for pair in events:
            number, event = pair
            if event.event_type not in PHASES:
                others.append(pair)
                continue
            try:
                self.marks.append(mark_of(event))
            except ValueError as error:
                self.refusals.add(number, error)
        return others

    def _block(self, events: Sequence[Event]) -> Block:
        is_full = any(isinstance(event, FullEvent) for event in events)
        origins = [origin_of(event) for event in events] if is_full else ()
        return block_of(events, self.sources, origins)


class _Decoders:
    def __init__(self, of: type[Event]) -> None:
        self.one = msgspec.json.Decoder(of)
        self.all = msgspec.json.Decoder(list[of])  # type: ignore[valid-type]


@dataclass(frozen=True, slots=True)
class Rows:
    """What is read of some lines; one row a line."""

    done: Bools
    """Lines that are read; the others are blank, or left to msgspec."""
    identity: Int32s
    numbers: Int64s
    """(n, 5), as in `NUMBERS`."""
    origin: Int32s

    @classmethod
    def empty(cls, count: int) -> Rows:
        return cls(
            np.zeros(count, np.bool_),
            np.empty(count, np.int32),
            np.empty((count, len(NUMBERS)), np.int64),
            np.full(count, -1, np.int32),
        )


class Layouts:
    """The layouts of the lines of a file, learned while it is read."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._by_length: dict[int, list[Layout]] = {}
        self._learned = self._read = 0

    def read(self, raw: UInt8s, begin: Int64s, end: Int64s, rows: Rows) -> None:
        """Read what is regular of the lines `raw[begin:end]` into `rows`."""
        length = np.minimum(end - begin, MAX_LINE)
        for common in np.flatnonzero(np.bincount(length) >= MIN_LINES).tolist():
            if 0 < common < MAX_LINE:
                at = np.flatnonzero(length == common)
                step = max(_BLOCK_BYTES // common, MIN_LINES)
                for start in range(0, len(at), step):
                    self._group(raw, begin, common, at[start : start + step], rows)

    def _group(self, raw: UInt8s, begin: Int64s, length: int, at: Int64s, rows: Rows) -> None:
        """Lines of the same length."""
        layouts = self._by_length.setdefault(length, [])
        for layout in layouts:
            if not len(at):
                return
            at = self._of_layout(layout, raw, begin, at, rows)
        for _ in range(_LEARNED_AT_ONCE):
            if len(at) < MIN_LINES or not self._may_learn(layouts):
                return
            self._learned += 1
            first = int(begin[at[0]])
            new = self._learn(raw[first : first + length].tobytes())
            if new is None:
                at = at[1:]
                continue
            layouts.append(new)
            at = self._of_layout(new, raw, begin, at, rows)

    def _may_learn(self, layouts: list[Layout]) -> bool:
        is_useful = self._learned < _FREE or self._read > _WORTH * self._learned
        return is_useful and len(layouts) < _MAX_LAYOUTS

    def _learn(self, line: bytes) -> Layout | None:
        decoded = self._decode(line)
        if decoded is None or decoded.event.event_type in PHASES:
            return None
        return layout_of(line, decoded)

    def _of_layout(
        self, layout: Layout, raw: UInt8s, begin: Int64s, at: Int64s, rows: Rows
    ) -> Int64s:
        """Read the lines that are of a layout; the others are returned."""
        matrix = _matrix(raw, begin[at], layout.length)
        identity, origin, ok = layout.sources(matrix, self._decode)
        if ok.all():
            good, left = at, at[:0]
        else:
            good, left = at[ok], at[~ok]
            if not len(good):
                return left
            matrix, identity, origin = matrix[ok], identity[ok], origin[ok]
        rows.identity[good], rows.origin[good], rows.done[good] = identity, origin, True
        rows.numbers[good] = layout.numbers(matrix)
        self._read += len(good)
        return left


def _matrix(raw: UInt8s, begin: Int64s, length: int) -> UInt8s:
    """(n, length): the lines that begin there; a view if they follow each other."""
    first, last, step = int(begin[0]), int(begin[-1]), length + 1
    if last - first == (len(begin) - 1) * step and last + step <= len(raw):
        return raw[first : last + step].reshape(-1, step)[:, :length]
    return np.lib.stride_tricks.sliding_window_view(raw, length)[begin]
