"""Bundles of a cell's log: records, packed for few bytes, and unpacked as they were.

Records are packed into *frames*. A frame is compressed as a whole, and columns of its messages are
put together by field first: that is what makes it small. A frame of more bytes than a bundle may
have is cut into *parts*, one a bundle. A bundle begins with a head, which can be read without
unpacking: where the last complete checkpoint began, and whether the bundle is of a checkpoint.

Whatever the bytes are, reading them raises `StoreError` or gives what was written, and takes memory
in proportion to `MAX_FRAME_BYTES` at most. This is the only module that knows the compression.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from frd.cluster.columns import MAX_SPANS, Span, shuffle, spans, unshuffle
from frd.cluster.log import MAX_BUNDLE_BYTES, Bundle
from frd.errors import StoreError
from frd.model import AlignedNs
from frd.store.records import Record, RecordKind

VERSION: Final = 1
"""First byte of every bundle. Higher ones are of newer releases."""
FRAME_BYTES: Final = 6 * 1024 * 1024
"""Payloads of one frame: entries of this size fill most of a bundle."""
FRAME_RECORDS: Final = 65_536
MAX_RECORD_BYTES: Final = 32 * 1024 * 1024
"""Payload of one record: twice the largest message of an agent."""
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
"""Unpacked. More than any frame has; one with more is damaged or forged."""
_LEVEL: Final = 1
_SMALL_BYTES: Final = 16 * 1024
_HEAD: Final = struct.Struct("<BBHH2xQ")
_COUNTS: Final = struct.Struct("<III")
_MAX_COLUMNS: Final = 256
_MAX_PARTS: Final = MAX_FRAME_BYTES // (MAX_BUNDLE_BYTES - _HEAD.size) + 2
_ADVICE: Final = "only the records before it can be used"


class Mark(IntFlag):
    """What a frame is, if it is part of a checkpoint."""

    FIRST = 1
    """A checkpoint begins with it."""
    LAST = 2
    """A checkpoint ends with it: it is complete."""
    MIDDLE = 4
    """A checkpoint goes on."""
    START = 8
    """The checkpoint is of a new process of the service: nothing recorded before is live. Without
    this mark it repeats what the records before it say, too."""


NO_MARK: Final = Mark(0)


class Head(NamedTuple):
    """What a bundle says of itself."""

    mark: Mark
    part: int
    """Of its frame, from 0."""
    parts: int
    checkpoint: int
    """Number of the bundle with which the last complete checkpoint began; 0: unknown."""


# -- writing -----------------------------------------------------------------------------------


def frames(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Runs of records that fit into one frame each."""
    start = size = 0
    for index, record in enumerate(records):
        if index > start and (
            size + len(record.payload) > FRAME_BYTES or index - start == FRAME_RECORDS
        ):
            yield records[start:index]
            start, size = index, 0
        size += len(record.payload)
    if start < len(records):
        yield records[start:]


def pack(records: Sequence[Record], mark: Mark = NO_MARK, *, checkpoint: int = 0) -> list[bytes]:
    """The bundles of one frame, in order; `records` are one of `frames`.

    Raises:
        StoreError: a record has more than `MAX_RECORD_BYTES`.
    """
    if (largest := max((len(r.payload) for r in records), default=0)) > MAX_RECORD_BYTES:
        raise StoreError(
            f"log: a record of {largest} bytes: at most {MAX_RECORD_BYTES} are allowed"
        )
    import zstandard  # noqa: PLC0415  only a cluster needs this package

    packer = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    packed = packer.compress(_encode(records))
    size = MAX_BUNDLE_BYTES - _HEAD.size
    parts = max(-(-len(packed) // size), 1)
    return [
        _HEAD.pack(VERSION, mark, part, parts, checkpoint) + packed[part * size : (part + 1) * size]
        for part in range(parts)
    ]


class _Column(NamedTuple):
    number: int
    width: int
    pieces: list[memoryview]


def _encode(records: Sequence[Record]) -> bytes:
    """Counts of records, cuts and columns; arrays; the columns; the payloads without columns."""
    columns: dict[int, _Column] = {}
    rest: list[bytes | memoryview] = []
    lengths: list[int] = []
    counts: list[int] = []
    cuts: list[tuple[int, int, int]] = []
    layouts: dict[tuple[int, int], list[Span]] = {}
    for record in records:
        payload, at, length = memoryview(record.payload), 0, 0
        found = _spans(record, layouts)
        for start, stop, key, width in found:
            if (column := columns.get(key)) is None:
                column = columns[key] = _Column(len(columns), width, [])
            column.pieces.append(payload[start:stop])
            rest.append(payload[at:start])
            length += start - at
            cuts.append((length, stop - start, column.number))
            at = stop
        rest.append(payload[at:])
        lengths.append(length + len(payload) - at)
        counts.append(len(found))
    joined = [(b"".join(column.pieces), column.width) for column in columns.values()]
    offsets, sizes, indexes = zip(*cuts, strict=True) if cuts else ((), (), ())
    return b"".join(
        (
            _COUNTS.pack(len(records), len(cuts), len(joined)),
            _array([record.kind for record in records], "u1"),
            shuffle(_array([record.at for record in records], "<i8"), 8),
            shuffle(_array([record.stream for record in records], "<u8"), 8),
            _array(lengths, "<u4"),
            _array(counts, "u1"),
            _array(offsets, "<u4"),
            _array(sizes, "<u4"),
            _array(indexes, "u1"),
            _array([width for _, width in joined], "u1"),
            _array([len(data) for data, _ in joined], "<u4"),
            *(shuffle(data, width) for data, width in joined),
            *rest,
        )
    )


def _spans(record: Record, layouts: dict[tuple[int, int], list[Span]]) -> list[Span]:
    """The columns of the record. Small messages of the same kind and size mostly have the same
    layout; if one has not, it only becomes less small."""
    payload = record.payload
    if record.kind is not RecordKind.MESSAGE or not payload:
        return []
    if len(payload) > _SMALL_BYTES:
        return spans(payload)
    key = payload[0], len(payload)
    if (found := layouts.get(key)) is None:
        found = layouts[key] = spans(payload)
    return found


def _array(items: Sequence[int], dtype: str) -> bytes:
    return np.array(items, dtype).tobytes()


# -- reading -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame as it was read, not unpacked yet."""

    first: int
    """Number of its first bundle."""
    last: int
    epoch: int
    head: Head
    """Of its first bundle."""
    packed: bytes

    @property
    def mark(self) -> Mark:
        return self.head.mark

    def records(self) -> list[Record]:
        """
        Raises:
            StoreError: the frame is damaged, or has records of a kind that this release does not
                know.
        """
        where = f"log: bundle {self.first}"
        try:
            decoded = list(_decode(_decompressed(self.packed)))
        except (ValueError, OverflowError, StoreError) as error:
            raise StoreError(f"{where} is damaged: {error}: {_ADVICE}") from None
        try:
            return [
                Record(RecordKind(kind), AlignedNs(at), stream, payload)
                for kind, at, stream, payload in decoded
            ]
        except ValueError as error:
            raise StoreError(f"{where}: {error}: a newer frd wrote it: use that release") from None


def read_head(bundle: Bundle) -> Head:
    """
    Raises:
        StoreError: it is no bundle of records, or one of a newer release.
    """
    where = f"log: bundle {bundle.number}"
    if not bundle.data or not bundle.data[0] or len(bundle.data) > MAX_BUNDLE_BYTES:
        raise StoreError(f"{where} is damaged: {len(bundle.data)} bytes: {_ADVICE}")
    if bundle.data[0] > VERSION:
        raise StoreError(
            f"{where}: format {bundle.data[0]}: a newer frd wrote it: use that release"
        )
    if len(bundle.data) < _HEAD.size:
        raise StoreError(f"{where} is damaged: {len(bundle.data)} bytes: {_ADVICE}")
    _, mark, part, parts, checkpoint = _HEAD.unpack_from(bundle.data)
    if part >= parts or parts > _MAX_PARTS or mark > sum(Mark):
        raise StoreError(f"{where} is damaged: part {part} of {parts}, mark {mark}: {_ADVICE}")
    return Head(Mark(mark), part, parts, checkpoint)


class Joiner:
    """Joins the parts of frames, for one reader that passes the bundles of a log in order."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._first: Bundle | None = None

    def add(self, bundle: Bundle) -> Frame | None:
        """The frame that the bundle completes.

        Raises:
            StoreError: see `read_head`.
        """
        head = read_head(bundle)
        first = self._first
        expected = len(self._parts) if first is not None and first.epoch == bundle.epoch else 0
        if head.part == 0 or first is None:
            self._drop()
            self._first = first = bundle
        elif head.part != expected or bundle.number != first.number + expected:
            self._drop()
        if head.part != len(self._parts):
            self._first = None  # its owner was fenced, or the log has deleted its first bundles
            return None
        self._parts.append(bundle.data[_HEAD.size :])
        if len(self._parts) < head.parts:
            return None
        frame = Frame(
            *(first.number, bundle.number, bundle.epoch),
            read_head(first),
            b"".join(self._parts),
        )
        self._parts, self._first = [], None
        return frame

    def _drop(self) -> None:
        self._parts, self._first = [], None


def _decompressed(packed: bytes) -> memoryview:
    import zstandard  # noqa: PLC0415  only a cluster needs this package

    try:
        size = zstandard.get_frame_parameters(packed).content_size
        if size > MAX_FRAME_BYTES:  # or it is not known
            raise ValueError(f"over {MAX_FRAME_BYTES} bytes")
        unpacker = zstandard.ZstdDecompressor()
        return memoryview(unpacker.decompress(packed, max_output_size=size, allow_extra_data=False))
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None


class _Reader:
    """Takes arrays and bytes from the front."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def take(self, size: int) -> memoryview:
        if size > len(self._data):
            raise ValueError("it is cut off")
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def array(self, count: int, dtype: str) -> npt.NDArray[Any]:
        return np.frombuffer(self.take(count * np.dtype(dtype).itemsize), dtype)

    @property
    def left(self) -> int:
        return len(self._data)


def _decode(data: memoryview) -> Iterator[tuple[int, int, int, bytes]]:
    """Kind, time, stream and payload of each record."""
    reader = _Reader(data)
    count, cut_count, column_count = _COUNTS.unpack(reader.take(_COUNTS.size))
    if count > FRAME_RECORDS or cut_count > count * MAX_SPANS or column_count > _MAX_COLUMNS:
        raise ValueError(f"{count} records with {cut_count} pieces of {column_count} columns")
    kinds = reader.array(count, "u1").tolist()
    at = np.frombuffer(unshuffle(reader.take(8 * count), 8), "<i8").tolist()
    streams = np.frombuffer(unshuffle(reader.take(8 * count), 8), "<u8").tolist()
    lengths = reader.array(count, "<u4").tolist()
    counts = reader.array(count, "u1").tolist()
    offsets = reader.array(cut_count, "<u4").tolist()
    sizes = reader.array(cut_count, "<u4").tolist()
    indexes = reader.array(cut_count, "u1").tolist()
    widths = reader.array(column_count, "u1").tolist()
    column_sizes = reader.array(column_count, "<u4").tolist()
    columns = [
        _Reader(unshuffle(reader.take(size), width))
        for size, width in zip(column_sizes, widths, strict=True)
    ]
    if sum(counts) != cut_count or sum(lengths) != reader.left:
        raise ValueError("its lengths disagree")
    if any(index >= column_count for index in indexes):
        raise ValueError("a column is missing")
    cut = 0
    for kind, time, stream, length, cuts in zip(kinds, at, streams, lengths, counts, strict=True):
        rest = reader.take(length)
        if not cuts:
            yield kind, time, stream, bytes(rest)
            continue
        pieces: list[memoryview] = []
        done = 0
        for one in range(cut, cut + cuts):
            if not done <= offsets[one] <= length:
                raise ValueError("a column is outside its message")
            pieces += (rest[done : offsets[one]], columns[indexes[one]].take(sizes[one]))
            done = offsets[one]
        yield kind, time, stream, b"".join((*pieces, rest[done:]))
        cut += cuts
    if any(column.left for column in columns):
        raise ValueError("a column is left over")
