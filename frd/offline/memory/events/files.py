"""Files of telemetry events, a piece at a time: JSON lines or one JSON list, gzipped or not.

A file is never read as a whole, so its size costs no memory. A list is cut where an event seems to
end. If the cut is inside a string or a nested value, the part before it is not valid JSON; so a
part that decodes was cut correctly. If no part decodes, brackets are counted.

A plain file of lines may also be read in pieces, by several readers: a piece has the lines that
begin in it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from frd.dftracer.inflate import Inflater
from frd.offline.memory.events import lines
from frd.offline.memory.events.lines import BAD, EventReader, Refusals
from frd.offline.memory.telemetry import Block, Identity, Origin, joined
from frd.offline.phases.marks import PhaseMark
from frd.readers.process import MAX_CPU_S, limit_time

_CHUNK_BYTES: Final = 1 << 19
"""Some thousand events: their columns stay in the cache."""
_MAX_CHUNK: Final = 1 << 20
"""What the inflater yields in one piece."""
_HEAD_BYTES: Final = 64
_PART_ROWS: Final = 1 << 14
_PACKED_BYTES: Final = 1 << 18
_GZIP: Final = b"\x1f\x8b"
_MARK: Final = b"\xef\xbb\xbf"
_BETWEEN: Final = re.compile(rb"\s*,\s*\{")
_BETWEEN_EVENTS: Final = b", \t\r\n"
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_BYTES_A_SECOND: Final = 1 << 20
"""In the file. A core reads ten times as much at least, also packed."""
_CUTS: Final = 4
"""How many places where an event seems to end are tried; nested lists have such places too."""


Bytes = bytes | memoryview


class Piece(NamedTuple):
    """Some bytes of a file; the lines that begin in them."""

    file: int
    """Number of the file."""
    path: Path
    begin: int
    end: int | None
    """None: to the end of the file, however long it is by then."""


@dataclass(frozen=True, slots=True)
class Part:
    """What was read since the part before."""

    block: Block
    """Its identities and origins are numbers of all that the parts of the piece had."""
    identities: list[Identity]
    origins: list[Origin]
    marks: list[PhaseMark]
    refusals: Refusals
    """Numbers begin with 1 in the piece."""
    unit: str
    """What they count: ``line`` or ``event``."""
    count: int
    """How many of these there were."""
    damage: list[str]
    """Why the rest of the file cannot be read."""
    at: int
    """Position in the file."""


def parts_of(piece: Piece) -> Generator[Part, None, None]:
    """In a reader process. A piece is decoded block by block, so the limit of memory is far away;
    that of time grows with what there is to read."""
    with suppress(OSError):
        end = piece.end or piece.path.stat().st_size
        limit_time(MAX_CPU_S + (end - piece.begin) // _BYTES_A_SECOND)
    yield from EventFile(piece).parts()


def lost(piece: Piece, before: Part | None, why: str) -> Part:
    """Follows `before` where the rest of a piece cannot be read."""
    count, unit = (before.count, before.unit) if before else (0, "line")
    return Part(joined([]), [], [], [], Refusals(), unit, count, [why], piece.begin)


def pieces_of(number: int, path: Path, piece_bytes: int) -> list[Piece]:
    """Pieces of about that size; one of a file that cannot be divided."""
    whole = [Piece(number, path, 0, None)]
    if not path.is_file():
        return whole  # a pipe, which can be read once; or its reader says what is wrong
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            size = file.seek(0, io.SEEK_END)
    except OSError:
        return whole
    text = head.removeprefix(_MARK).lstrip()
    if size <= piece_bytes or text.startswith((b"[", _GZIP)) or not text:
        return whole
    ends = range(piece_bytes, size - piece_bytes // 2, piece_bytes)
    return [Piece(number, path, begin, end) for begin, end in pairwise([0, *ends, None])]


class EventFile:
    """The events of one piece, which can be read once."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._reader = EventReader()
        self._damage: list[str] = []
        self._at = piece.begin
        self._unit = "line"
        self._identities = self._origins = 0
        """How many were given to the caller."""

    def parts(self) -> Iterator[Part]:
        """In the order of the file."""
        blocks: list[Block] = []
        rows = count = 0
        for block, count in self._blocks():
            blocks.append(block)
            rows += len(block)
            if rows >= _PART_ROWS:
                yield self._part(blocks, count)
                blocks, rows = [], 0
        yield self._part(blocks, count)

    def _blocks(self) -> Iterator[tuple[Block, int]]:
        """Events, and how many lines (or items) there were until then."""
        with ExitStack() as stack:
            try:
                raw = stack.enter_context(self._piece.path.open("rb"))
            except OSError as error:
                self._damage.append(f"{error.strerror}: name files of telemetry events")
                return
            chunks = self._chunks(raw)
            first = bytes(next(chunks, b""))
            if not self._piece.begin:
                first = first.removeprefix(_MARK)
                if (items := first.lstrip()).startswith(b"["):
                    self._unit = "event"
                    yield from self._of_list(chain([items[1:]], chunks))
                    return
            yield from self._of_lines(chain([first], chunks))

    def _part(self, blocks: list[Block], count: int) -> Part:
        reader, sources = self._reader, self._reader.sources
        part = Part(
            block=joined(blocks),
            identities=sources.identities[self._identities :],
            origins=sources.origins[self._origins :],
            marks=reader.marks,
            refusals=reader.refusals,
            unit=self._unit,
            count=count,
            damage=self._damage,
            at=self._at,
        )
        self._identities, self._origins = len(sources.identities), len(sources.origins)
        reader.marks, reader.refusals, self._damage = [], Refusals(), []
        return part

    # -- bytes -----------------------------------------------------------------------------------

    def _chunks(self, raw: io.BufferedReader) -> Iterator[Bytes]:
        """Each is valid until the next one."""
        try:
            if raw.peek(len(_GZIP)).startswith(_GZIP) and not self._piece.begin:
                yield from self._inflated(raw)
            elif self._piece.begin or self._piece.end is not None:
                yield from self._whole_lines(raw)
            else:
                buffer = memoryview(bytearray(_CHUNK_BYTES))
                while size := raw.readinto(buffer):
                    self._at += size
                    yield buffer[:size]
        except OSError as error:
            self._damage.append(f"{error}: what is before that is used")

    def _inflated(self, raw: io.BufferedReader) -> Iterator[bytes]:
        inflater = Inflater()
        while packed := raw.read(_PACKED_BYTES):
            self._at += len(packed)
            yield from inflater.feed(packed)
        yield inflater.rest()
        if inflater.damaged or inflater.is_cut:
            why = inflater.damaged or "the end of the packed data is missing"
            self._damage.append(f"{why}: what is before that is used")

    def _whole_lines(self, raw: io.BufferedReader) -> Iterator[bytes]:
        """The lines that begin in the piece."""
        at, end = self._piece.begin, self._piece.end
        if at:
            at = raw.seek(at - 1)
            while not (line := raw.readline(_CHUNK_BYTES)).endswith(b"\n"):
                if not line:
                    return
            at = raw.tell()
        while end is None or at < end:
            chunk = raw.read(_CHUNK_BYTES if end is None else min(_CHUNK_BYTES, end - at))
            if not chunk:
                return
            at = self._at = at + len(chunk)
            if at == end:
                while not chunk.endswith(b"\n") and (more := raw.readline(_CHUNK_BYTES)):
                    yield chunk
                    chunk = more
            yield chunk

    # -- JSON lines ------------------------------------------------------------------------------

    def _of_lines(self, chunks: Iterator[Bytes]) -> Iterator[tuple[Block, int]]:
        most = lines.MAX_EVENT_BYTES
        # One buffer for all chunks: new memory for each would take a quarter of the time.
        text = bytearray(most + _MAX_CHUNK)
        size, line, is_too_long = 0, 1, False
        for chunk in chunks:
            text[size : size + len(chunk)] = chunk
            begin, end = 0, text.rfind(b"\n", size, size + len(chunk)) + 1
            size += len(chunk)
            if end and is_too_long:
                line, is_too_long, begin = line + 1, False, text.find(b"\n") + 1
            if end > begin:
                block, count = self._reader.lines(memoryview(text)[begin:end], line)
                line += count
                yield block, line - 1
            if end:
                text[: size - end] = text[end:size]
                size -= end
            if size > most or is_too_long:
                if not is_too_long:
                    self._reader.refusals.add(line, f"longer than {most} bytes")
                size, is_too_long = 0, True
        if size:
            block, count = self._reader.lines(memoryview(text)[:size], line)
            line += count
            yield block, line - 1
        else:
            yield self._reader.each(()), line - 1 + is_too_long

    # -- a JSON list -----------------------------------------------------------------------------

    def _of_list(self, chunks: Iterator[Bytes]) -> Iterator[tuple[Block, int]]:
        rest, count, most = b"", 0, lines.MAX_EVENT_BYTES
        for chunk in chunks:
            rest += chunk
            block, complete, end = self._whole(rest, _cuts(rest), count)
            count += complete
            yield block, count
            rest = rest[end:].lstrip(_BETWEEN_EVENTS)
            if len(rest) > most:
                why = f"no end within {most} bytes: it and all after it"
                self._reader.refusals.add(count + 1, why)
                yield self._reader.each(()), count
                return
        rest = rest.rstrip().removesuffix(b"]").rstrip()
        block, complete, end = self._whole(rest, [len(rest)] if rest else [], count)
        count += complete
        if rest[end:].strip(_BETWEEN_EVENTS):
            self._reader.refusals.add(count + 1, "not whole")
        yield block, count

    def _whole(self, text: bytes, cuts: list[int], count: int) -> tuple[Block, int, int]:
        """The events in a part of the list, how many there are with bad ones, where they end."""
        for cut in cuts:
            try:
                block, complete = self._reader.items(text[:cut], count + 1)
            except msgspec.ValidationError:
                break  # some event is not of the form
            except BAD:
                continue
            return block, complete, cut
        spans = list(_objects(text)) if cuts else []
        texts = ((number, text[a:b]) for number, (a, b) in enumerate(spans, count + 1))
        return self._reader.each(texts), len(spans), spans[-1][1] if spans else 0


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
