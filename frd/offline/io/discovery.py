"""Which files are traces, and the pieces of them that are read independently.

A file is a piece, unless it is large: then a plain file is cut at newlines, a compressed one at the
members of which DFTracer 2 makes it. To find them, only names, sizes and some bytes are read. Links
to folders are not followed and the number of files is bounded, because a user may name ``/``.

A piece is read as blocks of columns: opened, unpacked, cut at newlines. What is missing in the file
is a note, never an error: an empty file, a member that was cut off.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import FileIO
from itertools import islice, pairwise
from pathlib import Path
from typing import Final

from frd.dftracer.block import Block, Calls
from frd.dftracer.inflate import MAGIC, Inflater, begins_member
from frd.dftracer.reader import BlockReader
from frd.errors import TraceError
from frd.offline.load.discovery import has_dumps, walk

MAX_FILES: Final = 1_000_000
PLAIN, PACKED = ".pfw", ".pfw.gz"
PLAIN_PIECE: Final = 64 << 20
"""Bytes of a plain file that are read as one piece, about 300,000 events."""
PACKED_PIECE: Final = 6 << 20
"""Bytes of a compressed file; traces are packed by a factor of ten to twenty."""
_PROBE: Final = 8192
_CHUNK: Final = 1 << 21
_LONGEST: Final = 1 << 22
"""A longer line is not a record of DFTracer, whose buffer for a line is 16 KiB."""
NOT_FINALIZED: Final = "0 bytes: the trace is lost, because its process ended without finalizing it"
CUT: Final = "the last gzip member is cut off: the events in it are incomplete"


@dataclass(frozen=True, slots=True)
class TraceFile:
    path: Path
    size: int
    packed: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file: whole records, from byte `first` to before byte `end`.

    In a plain file these are any bytes: the piece has the lines that begin in them. In a packed one
    they are the bounds of members.
    """

    file: TraceFile
    first: int
    end: int


def find_traces(paths: Sequence[Path]) -> tuple[list[TraceFile], list[str]]:
    """The traces in files and folders, by path, and warnings.

    Raises:
        TraceError: a path does not exist or cannot be read or has dumps in place of traces, or
            there is no trace at all.
    """
    warnings: list[str] = []
    found: dict[tuple[int, int], TraceFile] = {}
    for given in paths:
        path = Path(os.path.abspath(given))
        names = list(islice(_names(path, warnings), MAX_FILES + 1))
        for one in names:
            if len(found) >= MAX_FILES:
                warnings.append(f"{path}: more than {MAX_FILES} traces: the others are left out")
                break
            _add(one, found, warnings)
        if not any(name.name.endswith((PLAIN, PACKED)) for name in names):
            _check_no_dumps(path)
        if not names:
            warnings.append(f"{path}: no trace in it")
    if not found:
        raise TraceError(_nothing(paths))
    files = {file.path: file for file in found.values()}
    _drop_doubles(files, warnings)
    return [files[path] for path in sorted(files)], warnings


def _names(path: Path, warnings: list[str]) -> Iterator[Path]:
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        message = f"{path}: no such file or folder: name DFTracer's files or folder"
        raise TraceError(message) from None
    except OSError as error:
        message = f"{path}: {error.strerror}: name files that this user may read"
        raise TraceError(message) from None
    return _in_folder(path, warnings) if is_folder else iter([path])


def _check_no_dumps(path: Path) -> None:
    """`--traces` takes all paths up to the next option, so it may take DIR as well."""
    if has_dumps(path):
        raise TraceError(
            f"--traces: {path}: has Flight Recorder dumps, no traces: name it before --traces"
        )


def _in_folder(folder: Path, warnings: list[str]) -> Iterator[Path]:
    for parent, _, names in walk(folder, warnings):
        yield from (Path(parent, name) for name in sorted(names) if name.endswith((PLAIN, PACKED)))


def _add(path: Path, found: dict[tuple[int, int], TraceFile], warnings: list[str]) -> None:
    """Add a file, unless it is there under another name; a link gives way to what it leads to."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            warnings.append(f"{path}: no regular file: left out")
            return
        with open_trace(path) as opened:
            file = TraceFile(path, status.st_size, opened.read(len(MAGIC)) == MAGIC)
        of = status.st_dev, status.st_ino
        old = found.setdefault(of, file)
        if old.path == path:
            return
        if old.path.is_symlink() and not path.is_symlink():
            found[of], file = file, old
    except OSError as error:
        warnings.append(f"{path}: {error.strerror}: left out")
    else:
        warnings.append(f"{file.path}: the same file as {found[of].path}: counted once")


def open_trace(path: Path) -> FileIO:
    return open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0)


def _drop_doubles(found: dict[Path, TraceFile], warnings: list[str]) -> None:
    """While `gzip` packs a trace, and if it is killed, the plain file is the whole one; an empty
    one is what a killed process left of another run."""
    for path in [path for path in found if path.name.endswith(PACKED)]:
        if (plain := found.get(path.with_suffix(""))) is None:
            continue
        if plain.size or not found[path].size:
            warnings.append(f"{path}: the same trace is there unpacked: left out")
            del found[path]
        else:
            warnings.append(f"{plain.path}: 0 bytes, and {path.name} is not empty: left out")
            del found[plain.path]


def _nothing(paths: Sequence[Path]) -> str:
    named = ", ".join(map(str, paths[:3])) + (", ..." if len(paths) > 3 else "")
    return (
        f"{named}: no trace: name files {PLAIN} or {PACKED} of DFTracer, or a folder that has some "
        "(the job needs DFTRACER_ENABLE=1, and DFTRACER_LOG_FILE says where)"
    )


def pieces_of(file: TraceFile) -> list[Piece]:
    """The pieces of one file, in order; at least one."""
    cuts = _member_cuts(file) if file.packed else range(PLAIN_PIECE, file.size, PLAIN_PIECE)
    bounds = [0, *cuts, max(file.size, 1)]
    return [Piece(file, *bound) for bound in pairwise(bounds)]


def _member_cuts(file: TraceFile) -> list[int]:
    if file.size <= PACKED_PIECE:
        return []
    cuts: list[int] = []
    try:
        with (
            open_trace(file.path) as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as packed,
        ):
            at = packed.find(MAGIC, PACKED_PIECE)
            while at >= 0:
                step = 1
                if begins_member(packed[at : at + _PROBE]):
                    cuts.append(at)
                    step = PACKED_PIECE
                at = packed.find(MAGIC, at + step)
    except (OSError, ValueError):
        return []
    return cuts


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
