"""Transfers a `Reading` from a reader process to its parent.

Lengths, a pickle, and the columns behind it as they lie in memory: they are copied once, from the
pipe to where they stay. Both ends are our own; no file's pickle comes this way.
"""

from __future__ import annotations

import pickle
import struct
from io import RawIOBase
from typing import IO

from frd.offline.load.file_reading import Reading

_HEAD = struct.Struct("<QQ")
"""Bytes of the pickle, and how many columns follow it."""
_LENGTH = struct.Struct("<Q")


def send(reading: Reading, out: IO[bytes]) -> None:
    buffers: list[pickle.PickleBuffer] = []
    message = pickle.dumps(reading, 5, buffer_callback=buffers.append)
    columns = [buffer.raw() for buffer in buffers]
    lengths = [_LENGTH.pack(column.nbytes) for column in columns]
    parts: list[bytes | memoryview] = [_HEAD.pack(len(message), len(columns)), *lengths, message]
    for part in (*parts, *columns):
        out.write(part)
    out.flush()


def receive(source: RawIOBase) -> Reading | None:
    """The next one; None when the other end has closed."""
    try:
        size, count = _HEAD.unpack(_exactly(source, _HEAD.size))
        lengths = _exactly(source, count * _LENGTH.size)
        message = _exactly(source, size)
        columns = [_exactly(source, length) for (length,) in _LENGTH.iter_unpack(lengths)]
    except EOFError:
        return None
    reading: Reading = pickle.loads(message, buffers=columns)  # noqa: S301 - our own, see above
    return reading


def _exactly(source: RawIOBase, size: int) -> bytearray:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        got = source.readinto(view[at:])
        if not got:
            raise EOFError
        at += got
    return data
