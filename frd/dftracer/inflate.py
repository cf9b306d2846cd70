"""Gzip as DFTracer writes it: one member after another, the last one often incomplete.

2.x compresses each buffer as a separate member, and the bytes after the last newline of the
compressed data stay in the writer's memory while the job runs. So the end of a file is usually in
the middle of a member: what can be unpacked is data, the rest is missing, not damage.

ISA-L unpacks about three times as fast as zlib, which took a third of the time of an analysis. But
at damage it throws away what it unpacked in the same call, such as a whole member whose checksum is
wrong. Of a member that is not large, zlib then unpacks the rest, byte by byte.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from isal import isal_zlib

MAGIC: Final = b"\x1f\x8b\x08"
"""The first bytes of each member."""
_WINDOW: Final = 31
"""zlib: a gzip header, and the largest window."""
_ERROR: Final[type[Exception]] = isal_zlib.error  # type: ignore[assignment]  # a fault of its stub
_CHUNK: Final = 1 << 20
"""Text that is unpacked in one call. With 64 or 256 KiB, pieces that wait for the end of their
block break up the heap: an analysis of 20 million events then takes 720 MB, not 430."""
_MAX_KEPT: Final = 1 << 18
"""Packed bytes of a member that are kept; one of DFTracer 2 has some ten thousand."""
_PROBE: Final = 4096
_FIRST: Final = (b'{"', b"[")
"""What a buffer of records begins with."""


class Inflater:
    """Unpacks members as their bytes come. `feed` yields pieces of limited size."""

    def __init__(self) -> None:
        self._member = isal_zlib.decompressobj(_WINDOW)
        self._begun = False
        self._kept: list[bytes] = []
        """The packed bytes of the member; none of a large one."""
        self._packed = self._unpacked = 0
        """Bytes of the member, as they came and as they were yielded."""
        self.damaged = ""
        """Why the rest cannot be unpacked; the data before it was unpacked."""

    @property
    def is_cut(self) -> bool:
        """True if the last member is not complete."""
        return self._begun

    def feed(self, packed: bytes) -> Iterator[bytes]:
        if self._begun:
            self._keep(packed)
        while packed and not self.damaged:
            if not self._begun:
                if not (packed := packed.lstrip(b"\0")):
                    return  # padding between members
                self._begun, self._kept, self._packed, self._unpacked = True, [], 0, 0
                self._keep(packed)
            try:
                piece = self._member.decompress(packed, _CHUNK)
            except _ERROR as error:
                self.damaged = str(error)
                piece = self._before_damage()
            if piece:
                self._unpacked += len(piece)
                yield piece
            packed = self._member.unconsumed_tail
            if self._member.eof:
                packed = self._member.unused_data
                self._member, self._begun = isal_zlib.decompressobj(_WINDOW), False

    def _keep(self, packed: bytes) -> None:
        self._packed += len(packed)
        self._kept.append(packed)
        if self._packed > _MAX_KEPT:
            self._kept = []

    def _before_damage(self) -> bytes:
        """What was not yielded yet."""
        member = zlib.decompressobj(_WINDOW)
        text = bytearray()
        packed, known = b"".join(self._kept), self._unpacked
        with suppress(zlib.error):
            for at in range(len(packed)):
                piece = member.decompress(packed[at : at + 1])
                text += piece[known:]
                known = max(known - len(piece), 0)
        return bytes(text)

    def rest(self) -> bytes:
        """What an incomplete member still holds."""
        try:
            return self._member.flush() if self._begun and not self.damaged else b""
        except _ERROR:
            return b""


def begins_member(packed: bytes) -> bool:
    """True if `packed`, some thousand bytes, is the begin of a member that begins with a record.

    The magic bytes alone may also be in the middle of compressed data.
    """
    if not packed.startswith(MAGIC):
        return False
    try:
        text = isal_zlib.decompressobj(_WINDOW).decompress(packed[:_PROBE], 64)
    except _ERROR:
        return False
    return text.lstrip().startswith(_FIRST)
