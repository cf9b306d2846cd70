"""Requests to a reader process and its answers: typed messages, each after its length.

Columns travel as they are in memory. A message of no bytes ends the parts of a piece.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import msgspec
import numpy as np

from frd.offline.memory.events.files import Part, Piece
from frd.offline.memory.events.lines import Refusal, Refusals
from frd.offline.memory.telemetry import TOTAL, Block, Identity, Origin
from frd.offline.phases.marks import PhaseMark

_LENGTH: Final = struct.Struct("<Q")


class _Piece(msgspec.Struct, array_like=True):
    file: int
    path: bytes
    begin: int
    end: int | None


class _Part(msgspec.Struct, array_like=True):
    identity: bytes
    at_ns: bytes
    counters: bytes
    origin: bytes
    identities: list[Identity]
    origins: list[Origin]
    marks: list[PhaseMark]
    first: list[Refusal]
    more: int
    unit: str
    count: int
    damage: list[str]
    at: int


_encoder = msgspec.msgpack.Encoder()
_piece = msgspec.msgpack.Decoder(_Piece)
_part = msgspec.msgpack.Decoder(_Part)


def write_piece(file: IO[bytes], piece: Piece) -> None:
    path = os.fsencode(piece.path)
    _write(file, _encoder.encode(_Piece(piece.file, path, piece.begin, piece.end)))


def read_pieces(file: IO[bytes]) -> Iterator[Piece]:
    """Until the other side closes the pipe."""
    with suppress(EOFError):
        while True:
            piece = _piece.decode(_read(file))
            yield Piece(piece.file, Path(os.fsdecode(piece.path)), piece.begin, piece.end)


def write_parts(file: IO[bytes], parts: Iterable[Part]) -> None:
    for part in parts:
        block, refusals = part.block, part.refusals
        message = _Part(
            block.identity.tobytes(),
            block.at_ns.tobytes(),
            block.counters.tobytes(),
            block.origin.tobytes(),
            part.identities,
            part.origins,
            part.marks,
            refusals.first,
            refusals.more,
            part.unit,
            part.count,
            part.damage,
            part.at,
        )
        _write(file, _encoder.encode(message))
    _write(file, b"")


def read_parts(file: IO[bytes]) -> Iterator[Part]:
    """
    Raises:
        EOFError: the other side is gone.
    """
    while message := _read(file):
        part = _part.decode(message)
        block = Block(
            np.frombuffer(part.identity, np.int32),
            np.frombuffer(part.at_ns, np.int64),
            np.frombuffer(part.counters, np.int64).reshape(-1, TOTAL + 1),
            np.frombuffer(part.origin, np.int32),
        )
        yield Part(
            block,
            part.identities,
            part.origins,
            part.marks,
            Refusals(part.first, part.more),
            part.unit,
            part.count,
            part.damage,
            part.at,
        )


def _write(file: IO[bytes], message: bytes) -> None:
    file.write(_LENGTH.pack(len(message)))
    file.write(message)
    file.flush()


def _read(file: IO[bytes]) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(file, _LENGTH.size))
    return _exactly(file, length)


def _exactly(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data
