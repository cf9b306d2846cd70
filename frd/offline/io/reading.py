"""A piece of a trace as blocks of columns: opens the file, unpacks it, cuts it at newlines.

What is missing in the file is a note, never an error: an empty file, a member that was cut off.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import FileIO
from typing import Final

from frd.dftracer.block import Block, Calls
from frd.dftracer.inflate import Inflater
from frd.dftracer.reader import BlockReader
from frd.offline.io.discovery import Piece, open_trace

_CHUNK: Final = 1 << 21
_LONGEST: Final = 1 << 22
"""A longer line is not a record of DFTracer, whose buffer for a line is 16 KiB."""
NOT_FINALIZED: Final = "0 bytes: the trace is lost, because its process ended without finalizing it"
CUT: Final = "the last gzip member is cut off: the events in it are incomplete"


@dataclass(slots=True)
class PieceReader:
    """Iterate over its blocks once; then `problems` is what was missing."""

    piece: Piece
    calls: Calls = field(default_factory=Calls)
    problems: list[str] = field(default_factory=list)

    def blocks(self) -> Iterator[Block]:
        if not self.piece.file.size:
            self.problems.append(NOT_FINALIZED)
            return
        reader = BlockReader(self.calls)
        for lines in self._lines():
            yield reader.read(lines)

    def _lines(self) -> Iterator[bytes]:
        """Whole lines, some megabytes at a time: every block of columns has its fixed cost."""
        rest: list[bytes] = []
        size = 0
        try:
            for chunk in self._chunks():
                rest.append(chunk)
                size += len(chunk)
                cut = chunk.rfind(b"\n") + 1
                if size < (_CHUNK if cut else _LONGEST):
                    continue
                cut = cut or len(chunk)
                rest[-1] = chunk[:cut]
                yield b"".join(rest)
                rest, size = [chunk[cut:]], len(chunk) - cut
        except OSError as error:
            self.problems.append(f"cannot be read ({error.strerror}): the rest is left out")
        if last := b"".join(rest):
            yield last

    def _chunks(self) -> Iterator[bytes]:
        with open_trace(self.piece.file.path) as file:
            if self.piece.file.packed:
                yield from self._unpacked(file)
            else:
                yield from self._plain(file)

    def _plain(self, file: FileIO) -> Iterator[bytes]:
        """The lines that begin in the piece; a line that began before it is of the piece before."""
        end = self.piece.end
        at = _first_line(file, self.piece.first)
        file.seek(at)
        chunk = b"\n"
        while at < end and (chunk := file.read(min(_CHUNK, end - at))):
            at += len(chunk)
            yield chunk
        while chunk and not chunk.endswith(b"\n") and (chunk := file.read(_CHUNK)):
            chunk = chunk[: chunk.find(b"\n") + 1] or chunk
            yield chunk

    def _unpacked(self, file: FileIO) -> Iterator[bytes]:
        piece, inflater = self.piece, Inflater()
        at = piece.first
        file.seek(at, os.SEEK_SET)
        while at < piece.end and (packed := file.read(min(_CHUNK >> 4, piece.end - at))):
            at += len(packed)
            yield from inflater.feed(packed)
        if rest := inflater.rest():
            yield rest
        if inflater.damaged:
            self.problems.append(f"damaged gzip ({inflater.damaged}): the rest is left out")
        elif inflater.is_cut:
            self.problems.append(CUT)


def _first_line(file: FileIO, first: int) -> int:
    """Where the first line begins that begins at `first` or later."""
    at = first - 1
    file.seek(max(at, 0))
    while at >= 0 and (chunk := file.read(_CHUNK)):
        if (newline := chunk.find(b"\n")) >= 0:
            return at + newline + 1
        at += len(chunk)
    return max(at, 0)
