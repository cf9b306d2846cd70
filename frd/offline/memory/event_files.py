"""Files of telemetry events, a chunk at a time: JSON lines or one JSON list, gzipped or not.

A file is never read as a whole, so its size costs no memory. Each chunk is decoded in one call;
only a chunk with an error is split, and the error is a warning with its line number (in a list:
event number). A list is cut where an event seems to end. If the cut is inside a string or a nested
value, the part before it is not valid JSON; so a part that decodes was cut correctly. If no part
decodes, brackets are counted.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from frd.errors import TelemetryError
from frd.offline.memory.telemetry import Event

MAX_WARNINGS_A_FILE: Final = 8
MAX_EVENT_BYTES: Final = 1 << 20
_CHUNK_BYTES: Final = 1 << 18
"""A few hundred events: their objects stay in the cache."""
_GZIP: Final = b"\x1f\x8b"
_MARK: Final = b"\xef\xbb\xbf"
_BETWEEN: Final = re.compile(rb"\s*,\s*\{")
_BETWEEN_EVENTS: Final = b", \t\r\n"
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_CUTS: Final = 4
"""How many places where an event seems to end are tried; nested lists have such places too."""
_BAD: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

Progress = Callable[[int], None]
"""Progress callback: position in the file, in bytes."""


class EventFile:
    """The events of one file, which can be read once."""

    def __init__(self, path: Path, progress: Progress = lambda at: None) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._progress = progress
        self._bad = 0
        self._one = msgspec.json.Decoder(Event)
        self._list = msgspec.json.Decoder(list[Event])

    def events(self) -> Iterator[list[Event]]:
        """In the order of the file.

        Raises:
            TelemetryError: it cannot be opened. What happens later is a warning.
        """
        with ExitStack() as stack:
            try:
                raw = stack.enter_context(self.path.open("rb"))
            except OSError as error:
                raise TelemetryError(
                    f"{self.path}: {error.strerror}: name files of telemetry events"
                ) from None
            chunks = self._chunks(raw, stack)
            first = next(chunks, b"").removeprefix(_MARK)
            if first.lstrip().startswith(b"["):
                yield from self._of_list(first.lstrip()[1:], chunks)
            else:
                yield from self._of_lines(first, chunks)
        if (more := self._bad - MAX_WARNINGS_A_FILE) > 0:
            self.warnings.append(f"{self.path}: {more} more that cannot be read: left out, too")

    def _chunks(self, raw: io.BufferedReader, stack: ExitStack) -> Iterator[bytes]:
        try:
            source: io.BufferedIOBase = raw
            if raw.peek(len(_GZIP)).startswith(_GZIP):
                source = stack.enter_context(gzip.GzipFile(fileobj=raw))
            while chunk := source.read(_CHUNK_BYTES):
                if raw.seekable():
                    self._progress(raw.tell())
                yield chunk
        except (OSError, EOFError, zlib.error) as error:
            self.warnings.append(f"{self.path}: {error}: what is before that is used")

    def _refuse(self, what: str, why: object) -> None:
        self._bad += 1
        if self._bad <= MAX_WARNINGS_A_FILE:
            self.warnings.append(f"{self.path}: {what}: {why}: left out")

    # -- JSON lines ------------------------------------------------------------------------------

    def _of_lines(self, rest: bytes, chunks: Iterator[bytes]) -> Iterator[list[Event]]:
        line, is_too_long = 1, False
        for chunk in chunks:
            rest += chunk
            end = rest.rfind(b"\n") + 1
            if end and is_too_long:
                line, is_too_long, begin = line + 1, False, rest.find(b"\n") + 1
                rest, end = rest[begin:], end - begin
            if end:
                yield self._lines(memoryview(rest)[:end], line)
                line += rest.count(b"\n", 0, end)
                rest = rest[end:]
            if len(rest) > MAX_EVENT_BYTES or is_too_long:
                if not is_too_long:
                    self._refuse(f"line {line}", f"longer than {MAX_EVENT_BYTES} bytes")
                rest, is_too_long = b"", True
        if rest:
            yield self._lines(rest, line)

    def _lines(self, text: bytes | memoryview, line: int) -> list[Event]:
        try:
            return self._one.decode_lines(text)
        except _BAD:
            lines = enumerate(bytes(text).split(b"\n"), line)
            return self._each((f"line {at}", one) for at, one in lines if one.strip())

    def _each(self, texts: Iterator[tuple[str, bytes]]) -> list[Event]:
        events = []
        for what, text in texts:
            try:
                events.append(self._one.decode(text))
            except _BAD as error:
                self._refuse(what, error)
        return events

    # -- a JSON list -----------------------------------------------------------------------------

    def _of_list(self, rest: bytes, chunks: Iterator[bytes]) -> Iterator[list[Event]]:
        count = 0
        for chunk in chunks:
            rest += chunk
            events, complete, end = self._whole(rest, _cuts(rest), count)
            yield events
            count += complete
            rest = rest[end:].lstrip(_BETWEEN_EVENTS)
            if len(rest) > MAX_EVENT_BYTES:
                why = f"no end within {MAX_EVENT_BYTES} bytes: it and all after it"
                self._refuse(f"event {count + 1}", why)
                return
        if rest := rest.rstrip().removesuffix(b"]").rstrip():
            events, complete, end = self._whole(rest, [len(rest)], count)
            yield events
            if rest[end:].strip(_BETWEEN_EVENTS):
                self._refuse(f"event {count + complete + 1}", "not whole")

    def _whole(self, text: bytes, cuts: list[int], count: int) -> tuple[list[Event], int, int]:
        """The events in a part of the list, how many there are with bad ones, where they end."""
        for cut in cuts:
            try:
                events = self._list.decode(b"[%b]" % text[:cut])
            except msgspec.ValidationError:
                break  # some event is not of the form
            except _BAD:
                continue
            return events, len(events), cut
        spans = list(_objects(text)) if cuts else []
        named = ((f"event {at}", text[a:b]) for at, (a, b) in enumerate(spans, count + 1))
        return self._each(named), len(spans), spans[-1][1] if spans else 0


def _cuts(text: bytes) -> list[int]:
    """Where a part of a list that ends between two events might end, the last place first."""
    cuts: list[int] = []
    at = len(text)
    while len(cuts) < _CUTS and (at := text.rfind(b"}", 0, at)) >= 0:
        if _BETWEEN.match(text, at + 1):
            cuts.append(at + 1)
    return cuts


def _objects(text: bytes) -> Iterator[tuple[int, int]]:
    """Where the whole objects of a part of a list begin and end, whatever else they are."""
    depth = begin = 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case b"{" | b"[":
                begin = begin if depth else token.start()
                depth += 1
            case b"}" | b"]":
                if depth == 1:
                    yield begin, token.end()
                depth = max(0, depth - 1)
            case b'"':
                return  # of a text that goes on in the next chunk
