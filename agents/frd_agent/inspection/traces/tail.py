"""The end of a trace that grows: bytes in, records out, pure.

At first the last `LOOK` bytes are wanted, then what was appended; of much, the last part only. Of a
plain file, whole lines are used; of a gzipped one, whole members. Both may begin in the middle of
one, end in one, be cut off at the front, or be damaged.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from enum import Enum
from typing import Final

from frd.dftracer.inflate import MAGIC, begins_member
from frd.dftracer.line import Record, records_of

LOOK: Final = 64 * 1024
"""Bytes of a file that are read at a time."""
_MOST_RAW: Final = 1024 * 1024
"""Of the contents of gzip members: more are not unpacked at a time."""
_WINDOW: Final = 31
"""zlib: a gzip header, and the largest window."""
_FEW: Final = 8
"""Lines that a member has if the writer keeps none back."""
BUFFER: Final = 16 * 1024 * 1024
"""What DFTracer 2 keeps back by default."""
_LINE: Final = 16 * 1024
"""The longest line that it writes."""


class Buffering(Enum):
    """Whether the writer keeps lines back."""

    LIVE = "live"
    BUFFERED = "buffered"
    UNKNOWN = "unknown"


class Tail:
    def __init__(self, *, is_packed: bool) -> None:
        self._is_packed = is_packed
        self._next = -1
        """Where the last piece ended; negative before the first one."""
        self._size = -1
        """Negative if nothing has been read yet."""
        self._rest = b""
        """The begin of a line or member."""
        self._is_inside = False
        """The next byte is inside of a line or member whose begin is not known."""
        self._lines = 0
        """Of the last whole member."""
        self._is_large = False
        """There is a member that is larger than what is read."""
        self.broken = 0
        """Lines and members that were left out."""

    def wants(self, size: int) -> tuple[int, int]:
        """What to read of a file that has `size` bytes: offset and length."""
        is_next = 0 <= self._next <= size <= self._next + LOOK
        offset = self._next if is_next else max(0, size - LOOK)
        return offset, size - offset

    def feed(self, offset: int, data: bytes, size: int) -> list[Record]:
        """`data` is at `offset` of a file that has `size` bytes."""
        self._size = size
        if offset != self._next:  # the first piece, or the file was cut off, or grew by too much
            self._rest, self._is_inside = b"", offset > 0
        self._next = offset + len(data)
        pieces = self._members(data) if self._is_packed else [self._whole_lines(data)]
        records: list[Record] = []
        for piece in pieces:
            for line in piece.split(b"\n"):
                found, is_broken = records_of(line)
                records += found
                self.broken += is_broken
        return records

    @property
    def buffering(self) -> Buffering:
        if self._is_packed:
            if self._is_large or self._lines > _FEW:
                return Buffering.BUFFERED
            return Buffering.LIVE if self._lines else Buffering.UNKNOWN
        return buffering_of(self._size) if self._size >= 0 else Buffering.UNKNOWN

    def _whole_lines(self, data: bytes) -> bytes:
        if self._is_inside:
            _, newline, data = data.partition(b"\n")
            self._is_inside = not newline
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest
        if len(rest) > LOOK:
            self.broken += 1
            self._rest, self._is_inside = b"", True
        return whole

    def _members(self, data: bytes) -> Iterator[bytes]:
        """The contents of whole members."""
        packed, left = self._rest + data, _MOST_RAW
        self._rest = b""
        while packed := packed.lstrip(b"\0"):
            if self._is_inside:
                at = _first_member(packed)
                if at < 0:
                    self._is_large = self._is_large or len(packed) >= LOOK // 2
                    return
                packed, self._is_inside = packed[at:], False
            member = zlib.decompressobj(_WINDOW)
            try:
                raw = member.decompress(packed, left)
            except zlib.error:
                self.broken += 1
                packed, self._is_inside = packed[1:], True
                continue
            if member.eof:
                packed, self._lines, self._is_large = member.unused_data, raw.count(b"\n"), False
                left = max(left - len(raw), 1)  # 0 would be no limit
                yield raw
            elif member.unconsumed_tail or len(packed) > LOOK:
                self._is_large = self._is_inside = True
                return
            else:
                self._rest = packed
                return


def _first_member(packed: bytes) -> int:
    """-1 if none begins in it."""
    at = packed.find(MAGIC)
    while at >= 0 and not begins_member(packed[at : at + LOOK]):
        at = packed.find(MAGIC, at + 1)
    return at


def buffering_of(size: int) -> Buffering:
    """Of a plain file with `size` bytes. A full buffer is written in one piece, and its last line
    may exceed it: the size of a file that is written so is a multiple and little more."""
    if not size:
        return Buffering.BUFFERED
    buffers, more = divmod(size, BUFFER)
    if more > (excess := buffers * _LINE):
        return Buffering.LIVE
    return Buffering.BUFFERED if excess <= BUFFER // 16 else Buffering.UNKNOWN
