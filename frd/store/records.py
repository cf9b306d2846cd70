"""What a journal is made of: records, and bundles of them.

The form of a record's head is here, because a record in a bundle has one too. Where records begin
and end in a file, checksums and preambles are the journal's business.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from frd.errors import StoreError
from frd.model import AlignedNs

MAX_PAYLOAD_BYTES = 32 * 1024 * 1024
"""More than any accepted message, or bundle of them; a greater length in a file is damage."""
HEAD = struct.Struct("<IBqQ")  # length, kind, at_ns, stream
_PACK_LEVEL = 1


class RecordKind(IntEnum):
    START = 1
    """A service process began, or input was lost: nothing read before is live. Payload: settings,
    JSON."""
    OPENED = 2
    """A stream came."""
    MESSAGE = 3
    """An accepted message of a stream, as received."""
    CLOSED = 4
    """A stream went."""
    TICK = 5
    """The engine advanced."""
    ALIGNED = 6
    """The times of a stream's later messages are aligned like this."""
    SETTINGS = 7
    """The service took up other settings, JSON; all that is live goes on."""
    DISMISSED = 8
    """Somebody closed a finding by hand. Payload: which one and why, JSON."""
    LEARNED = 9
    """The pauses that are known of jobs from here on, all of them. Payload: JSON lines."""


@dataclass(frozen=True, slots=True)
class Record:
    kind: RecordKind
    at: AlignedNs
    stream: int
    payload: bytes


def known(kind: int, where: str) -> RecordKind:
    """
    Raises:
        StoreError: as all functions here; `where` begins what it says.
    """
    try:
        return RecordKind(kind)
    except ValueError as error:
        raise StoreError(
            f"{where}: {error}: a newer frd wrote it; replay it with that one"
        ) from None


def bundled(records: Sequence[Record]) -> bytes:
    parts: list[bytes] = []
    for one in records:
        parts += (HEAD.pack(len(one.payload), one.kind, one.at, one.stream), one.payload)
    return zlib.compress(b"".join(parts), _PACK_LEVEL)


def unbundled(data: bytes, where: str) -> list[Record]:
    """The inverse of `bundled`."""
    whole = _unpacked(data, where)
    records, place = [], 0
    while place < len(whole):
        begin = place + HEAD.size
        if begin > len(whole):
            raise _cut(where)
        length, kind, at, stream = HEAD.unpack_from(whole, place)
        place = begin + length
        if place > len(whole):
            raise _cut(where)
        records.append(Record(known(kind, where), AlignedNs(at), stream, whole[begin:place]))
    return records


def _unpacked(packed: bytes, where: str) -> bytes:
    """At most what a payload may have: a foreign file must not fill the memory."""
    unpacker = zlib.decompressobj()
    try:
        whole = unpacker.decompress(packed, MAX_PAYLOAD_BYTES)
    except zlib.error:
        whole = b""
    if not unpacker.eof:
        raise _cut(where)
    return whole


def _cut(where: str) -> StoreError:
    return StoreError(
        f"{where}: a bundle that does not unpack: only what is before it can be replayed"
    )
