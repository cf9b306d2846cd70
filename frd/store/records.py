"""Records of a journal, and the rows that hold them: batches, compressed, with a checksum."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import Annotated, Final, TypeAlias

import msgspec

from frd.errors import StoreError
from frd.model import YEAR_2200_NS, AlignedNs

Row: TypeAlias = tuple[int, int, int, int, int, int, bytes]
"""A row of the table `batches`: id, preamble, first_ns, last_ns, compressed, crc, body."""
_ROW_BYTES: Final = 4 * 1024 * 1024
MAX_ROW_BYTES: Final = 64 * 1024 * 1024
"""Uncompressed. More than any row has; a row with more is damaged or forged."""
_Time: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=YEAR_2200_NS)]
_Stream: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Batch: TypeAlias = Annotated[
    list[tuple[int, _Time, _Stream, bytes]], msgspec.Meta(max_length=1 << 20)
]
_SMALL_BYTES: Final = 16 * 1024
"""Payloads up to this size are compressed: agents send them every second, and most repeat the last.
Larger ones are transitions, of which more may arrive in a second than one core can compress."""
_ZLIB_LEVEL: Final = 1


class RecordKind(IntEnum):
    """Records of no stream have, where a record has its stream, the tag of a cell: 0 in a service
    without a cluster, otherwise 1 plus the number of the cell; see `cell_tag`."""

    START = 1
    """A service process began, or input was lost: nothing read before is live. Payload: settings,
    JSON. With the tag of a cell of a cluster: the cell begins."""
    OPENED = 2
    """A stream was opened. Payload: the tag of its cell in ASCII digits, empty if it is 0."""
    MESSAGE = 3
    """An accepted message of a stream, as received."""
    CLOSED = 4
    """A stream was closed."""
    TICK = 5
    """The engine advanced."""
    ALIGNED = 6
    """How the times of the stream's later messages are aligned."""
    SETTINGS = 7
    """The service applied other settings, JSON; streams stay open."""
    DISMISSED = 8
    """A user closed a finding. Payload: its id and the reason, JSON."""
    LEARNED = 9
    """The learned pauses of all jobs. Payload: JSON lines."""
    RESTORED = 12
    """Follows START: a finding that was open then, or dismissed while its trouble lasted, JSON."""
    LEFT = 14
    """The cell went to another replica, or comes from one: what was known of it is not live."""
    ANSWERED = 13
    """A rank answered a question of the engine, JSON."""


@dataclass(frozen=True, slots=True)
class Record:
    kind: RecordKind
    at: AlignedNs
    stream: int
    payload: bytes


OF_STREAMS: Final = frozenset(
    (RecordKind.OPENED, RecordKind.MESSAGE, RecordKind.ALIGNED, RecordKind.CLOSED)
)


def cell_tag(record: Record) -> int:
    """Of a record that belongs to no stream, or opens one.

    Raises:
        StoreError: it is damaged.
    """
    if record.kind is not RecordKind.OPENED:
        return record.stream
    if not record.payload.isdigit() and record.payload:
        raise StoreError(f"journal: stream {record.stream}: damaged")
    return int(record.payload or b"0")


def batches(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Runs of records that are all compressed or all not, of about `_ROW_BYTES` at most."""
    for _, some in groupby(records, lambda record: len(record.payload) <= _SMALL_BYTES):
        batch, size = [], 0
        for record in some:
            batch.append(record)
            size += len(record.payload)
            if size >= _ROW_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


def encode(batch: Sequence[Record]) -> tuple[bool, bytes]:
    """The body of a row, and whether it is compressed."""
    data = msgspec.msgpack.encode([(r.kind, r.at, r.stream, r.payload) for r in batch])
    if len(batch[0].payload) > _SMALL_BYTES:
        return False, data
    return True, zlib.compress(data, _ZLIB_LEVEL)


def decode(row: Row, expected: int, where: str) -> list[Record]:
    """
    Raises:
        StoreError: the row is damaged, or holds a kind of record that this release does not know.
    """
    *key, crc, body = row
    try:
        if key[0] != expected:
            raise ValueError("it is missing")
        if checksum(key, body) != crc:
            raise ValueError("wrong checksum")
        data = _decompressed(body) if key[-1] else body
        batch = msgspec.msgpack.decode(data, type=_Batch)
    except (TypeError, ValueError, zlib.error) as error:  # msgspec's errors are ValueErrors
        raise StoreError(
            f"{where} is damaged: {error}: only the records before it can be replayed"
        ) from None
    try:
        return [Record(RecordKind(k), AlignedNs(at), stream, data) for k, at, stream, data in batch]
    except ValueError as error:
        raise StoreError(
            f"{where}: {error}: a newer frd wrote it; replay it with that one"
        ) from None


def _decompressed(body: bytes) -> bytes:
    """Limited to the size of a row: a forged file must not fill the memory."""
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(body, MAX_ROW_BYTES)
    if not unpacker.eof:
        raise ValueError(f"cut off, or over {MAX_ROW_BYTES} bytes")
    return data


def checksum(key: Sequence[int], body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(repr([*key]).encode()))
