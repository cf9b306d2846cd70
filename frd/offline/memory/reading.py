"""Reads all files of a recording into one `Recorded`, with the warnings about them.

Large recordings are read by several processes (`frd.offline.memory.events.pool`), a piece each; the
result does not depend on how many there are, because parts are taken in the order of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Final

import numpy as np

from frd.model import Int32s
from frd.offline.memory.events.files import Part, Piece, pieces_of
from frd.offline.memory.events.lines import MAX_BAD
from frd.offline.memory.events.pool import read_pieces
from frd.offline.memory.samples import Recorded, Samples
from frd.offline.memory.time_order import TimeOrder
from frd.readers.pool import cores, is_packed

SMALL_BYTES: Final = 64 << 20
"""Fewer bytes of text in all are read here: other processes take 0.2 s to start."""
_PACKED: Final = 8
"""Bytes of text in one byte of a gzipped file, about."""
_PIECE_BYTES: Final = 48 << 20
"""Of a large file for one reader; in each piece the form of its lines is learned again."""
MAX_READERS: Final = 8

Progress = Callable[[int, int], None]
"""Called with the bytes that are read, and the bytes of all files."""


def read_recording(
    files: Sequence[Path],
    warnings: list[str],
    progress: Progress = lambda done, total: None,
    readers: int | None = None,
) -> Recorded:
    """All events of some files; `warnings` gets what is wrong with them.

    Args:
        readers: how many processes read, 1 for only this one, unless a file is compressed; by
            default one a core, and one if the recording is small.
    """
    sizes = [path.stat().st_size if path.is_file() else 0 for path in files]
    total = sum(sizes)
    if readers is None:
        text = sum(
            size * (_PACKED if path.suffix == ".gz" else 1)
            for path, size in zip(files, sizes, strict=True)
        )
        readers = 1 if text < SMALL_BYTES else min(cores(), MAX_READERS)
    pieces: list[Piece] = []
    for number, (path, size) in enumerate(zip(files, sizes, strict=True)):
        pieces += pieces_of(number, path, _PIECE_BYTES if readers > 1 else size)
    collected = _Collected(warnings)
    before = [0, *accumulate(sizes)]
    apart = any(map(is_packed, files))
    for piece, parts in read_pieces(pieces, min(readers, len(pieces)), apart=apart):
        collected.begin(piece)
        for part in parts:
            collected.add(part)
            progress(before[piece.file] + part.at, total)
    return collected.recorded()


class _Collected:
    """Parts of pieces, in the order of the files."""

    def __init__(self, warnings: list[str]) -> None:
        self._samples = Samples()
        self._warnings = warnings
        self._piece: Piece | None = None
        self._identities = self._origins = np.empty(0, np.int32)
        """By number in the piece: the number here."""
        self._listed = self._more = 0
        """Refusals of the file."""
        self._before = self._count = 0
        """Lines of the pieces before, and of this one."""
        self._order = TimeOrder()

    def begin(self, piece: Piece) -> None:
        if self._piece is None or self._piece.file != piece.file:
            self._end_file()
            self._before = self._count = self._listed = self._more = 0
        self._before, self._count = self._before + self._count, 0
        self._piece = piece
        self._identities = self._origins = np.full(1, -1, np.int32)

    def _end_file(self) -> None:
        if self._piece is None:
            return
        if self._more:
            more = f"{self._more} more that cannot be read: left out, too"
            self._warnings.append(f"{self._piece.path}: {more}")
        if backward := self._order.end_file():
            self._warnings.append(f"{self._piece.path}: {backward}: no onset there is certain")

    def add(self, part: Part) -> None:
        assert self._piece is not None
        sources = self._samples.sources
        self._identities = _extended(self._identities, map(sources.identity, part.identities))
        self._origins = _extended(self._origins, map(sources.origin, part.origins))
        block = part.block
        # The last place is for -1.
        identity, origin = self._identities[block.identity], self._origins[block.origin]
        if len(block):
            lines = part.count - self._count
            unit = part.unit if lines == len(block) else f"near {part.unit}"
            self._order.add(identity, block.at_ns, unit, self._before + self._count)
        self._samples.add(replace(block, identity=identity, origin=origin))
        self._samples.mark(part.marks)
        self._warn(self._piece.path, part)
        self._count = part.count

    def _warn(self, path: Path, part: Part) -> None:
        for number, why in part.refusals.first:
            if self._listed < MAX_BAD:
                at = f"{part.unit} {self._before + number}"
                self._warnings.append(f"{path}: {at}: {why}: left out")
                self._listed += 1
            else:
                self._more += 1
        self._more += part.refusals.more
        self._warnings += [f"{path}: {why}" for why in part.damage]

    def recorded(self) -> Recorded:
        self._end_file()
        return self._samples.recorded(self._order.backward)


def _extended(numbers: Int32s, more: Iterator[int]) -> Int32s:
    return np.concatenate((numbers[:-1], np.fromiter(more, np.int32), numbers[-1:]))
