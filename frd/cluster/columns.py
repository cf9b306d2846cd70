"""Columns of numbers inside recorded messages: where they are, and a form that compresses well.

A message is opaque bytes here. The walk over its fields only proposes what to cut out; where it
understands nothing, it proposes nothing. So cutting out and putting back is lossless for any bytes,
also for messages of other releases, and a reader of the log needs no knowledge of the messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from frd.errors import StoreError

FIELDS: Final[Mapping[int, Mapping[int, int]]] = {
    3: {2 + i: width for i, width in enumerate((4, 8, 4, 1, 8, 8, 8), 1)},
    4: {2: 4, 3: 4, 4: 8, 5: 8, 6: 8, 7: 8, 8: 4, 9: 8},
    5: {2: 4, 3: 4, 4: 1, 5: 4, 6: 8, 8: 4, 9: 4, 10: 8},
    9: {1: 4, 2: 8, 3: 8, 4: 8, 5: 8},
}
"""Widths in bytes of the columns of `frd.v1.AgentMessage`, by number of the message's kind and of
the field. A column that is not named here is only compressed less well."""
MAX_SPANS: Final = 64
"""Of one message; more than any kind has columns."""
_MIN_BYTES: Final = 32
"""Shorter columns gain less than they cost."""
_WIDTHS: Final = (1, 4, 8)


class Span(NamedTuple):
    """Bytes `start` to `stop` of a message hold a column; `column` is the same for all columns of
    the same field."""

    start: int
    stop: int
    column: int
    width: int


def spans(message: bytes) -> list[Span]:
    """The columns of an encoded `AgentMessage`, in their order; as far as they can be found."""
    if not message or message[0] & 7 != 2 or (fields := FIELDS.get(message[0] >> 3)) is None:
        return []
    found: list[Span] = []
    try:
        size, at = _varint(message, 1)
        if at + size != len(message):
            return []
        while at < len(message) and len(found) < MAX_SPANS:
            key, at = _varint(message, at)
            match key & 7:
                case 0:
                    _, at = _varint(message, at)
                case 1:
                    at += 8
                case 5:
                    at += 4
                case 2:
                    size, start = _varint(message, at)
                    at = start + size
                    width = fields.get(key >> 3, 0)
                    if width and size >= _MIN_BYTES and not size % width and at <= len(message):
                        found.append(Span(start, at, message[0] << 8 | key >> 3, width))
                case _:
                    break
    except IndexError:
        pass
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The value, and where the next field begins.

    Raises:
        IndexError: `data` ends before.
    """
    value = shift = 0
    while (byte := data[at]) & 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise IndexError
    return value | byte << shift, at + 1


def shuffle(data: bytes, width: int) -> bytes:
    """Differences of the numbers of `width` bytes; then all their first bytes, all second ones.

    Neighbours are close to each other, so most bytes of the differences are 0 (the shuffle filter
    of HDF5 and Blosc).
    """
    if width == 1:
        return data
    numbers = np.frombuffer(data, f"<u{width}")
    differences = np.empty_like(numbers)
    differences[:1] = numbers[:1]
    np.subtract(numbers[1:], numbers[:-1], out=differences[1:])
    return differences.view(np.uint8).reshape(-1, width).T.tobytes()


def unshuffle(data: memoryview, width: int) -> memoryview:
    """What was given to `shuffle`.

    Raises:
        StoreError: no such data.
    """
    if width not in _WIDTHS or len(data) % width:
        raise StoreError(f"column: {len(data)} bytes of width {width}: it is damaged")
    if width == 1:
        return data
    planes: npt.NDArray[Any] = np.frombuffer(data, np.uint8).reshape(width, -1)
    differences = np.ascontiguousarray(planes.T).view(f"<u{width}").reshape(-1)
    return np.cumsum(differences, dtype=differences.dtype).view(np.uint8).data
