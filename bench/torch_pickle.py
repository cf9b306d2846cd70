"""Pickles as PyTorch writes them: the layout of c10's pickler, byte for byte.

Python's own pickler numbers every container, PyTorch's strings, by value, and the containers
that are used again, which in a Flight Recorder dump are stack frames. So the files differ in size
and shape, and a bench on the wrong kind measures another program.
"""

from __future__ import annotations

import struct
from typing import Any


class TorchPickler:
    """One pickle. Containers that are in `shared` are written once and referred to after that.

    A list or tuple object that is passed again is written from a cache, so the caller must not
    change it in between.
    """

    def __init__(self, shared: tuple[Any, ...] = ()) -> None:
        self._shared = {id(value) for value in shared}
        self._strings: dict[str, bytes] = {}
        self._containers: dict[int, bytes] = {}
        self._fragments: dict[int, bytes] = {}
        self._numbers = 0

    def dumps(self, value: Any) -> bytes:
        body = self._encode(value)
        return b"\x80\x02" + body + self._put() + b"."

    def _encode(self, value: Any) -> bytes:
        match value:
            case None:
                return b"N"
            case bool():
                return b"\x88" if value else b"\x89"
            case str():
                return self._string(value)
            case int():
                return _integer(value)
            case float():
                return b"G" + struct.pack(">d", value)
            case _:
                return self._container(value)

    def _string(self, value: str) -> bytes:
        if (known := self._strings.get(value)) is not None:
            return known
        data = value.encode()
        put = self._put()
        self._strings[value] = _get(put)
        return b"X" + struct.pack("<I", len(data)) + data + put

    def _container(self, value: Any) -> bytes:
        at = id(value)
        if (known := self._containers.get(at) or self._fragments.get(at)) is not None:
            return known
        before = self._numbers
        if isinstance(value, dict):
            items = [self._encode(part) for item in value.items() for part in item]
            data = b"}(" + b"".join(items) + b"u"
        elif isinstance(value, list):
            data = b"](" + b"".join(map(self._encode, value)) + b"e"
        else:
            assert len(value) == 2
            data = b"".join(map(self._encode, value)) + b"\x86"
        if at in self._shared:
            put = self._put()
            self._containers[at] = _get(put)
            return data + put
        if before == self._numbers and not isinstance(value, dict):
            self._fragments[at] = data
        return data

    def _put(self) -> bytes:
        number = self._numbers
        self._numbers += 1
        return b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)


def _get(put: bytes) -> bytes:
    return (b"h" if put[:1] == b"q" else b"j") + put[1:]


def _integer(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return b"K" + bytes([value])
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)
