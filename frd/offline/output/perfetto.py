"""The part of Perfetto's trace format that a timeline needs: tracks, slices, arrows, annotations.

A Perfetto trace is a protobuf message of packets. Written by hand, because the few messages used
here are small and their numbers are fixed for ever, and because a packet an op through a protobuf
library would take minutes for a big job. A `Template` is the encoding of one kind of packet with
holes of fixed width in it; filling it for many rows is a few operations on arrays. A number may be
shorter than its hole: a varint stays valid with leading zero groups.

The numbers are those of Perfetto's `protos/perfetto/trace/perfetto_trace.proto`. Knows bytes, and
nothing of ranks.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np

from frd.model import Int64s, UInt8s

_VARINT, _FIXED64, _LENGTH = 0, 1, 2  # wire types

_PACKET: Final = 1  # Trace
_CLOCKS, _TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 6, 8, 10, 11, 12, 13, 60
_SEQUENCE_ID: Final = 1
"""All packets are of one sequence: what it interned once stays known."""
_CLEARED, _NEEDED = 1, 2  # sequence_flags

BEGIN, END, INSTANT = 1, 2, 3
"""Types of a track event."""
_CATEGORY, _ANNOTATION, _TYPE, _NAME, _TRACK, _FLOW = 3, 4, 9, 10, 11, 47  # TrackEvent
_REALTIME, _BOOTTIME = 1, 6  # BuiltinClock
_EXPLICIT_ORDER: Final = 3  # TrackDescriptor.ChildTracksOrdering


@dataclass(frozen=True, slots=True)
class Slot:
    """A hole in a template: `width` bytes of a varint, or eight of a fixed64."""

    name: str
    width: int
    fixed: bool = False


Chunk: TypeAlias = bytes | Slot
Chunks: TypeAlias = Sequence[Chunk]


def slot(name: str, bits: int) -> Slot:
    """A hole for numbers of so many bits."""
    return Slot(name, -(-bits // 7))


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append((value & 127) | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: int | str | bytes | Slot | Chunks) -> list[Chunk]:
    """One field: a number, a text, a hole, or a message (its fields, one after the other)."""
    match value:
        case Slot():
            kind = _FIXED64 if value.fixed else _VARINT
            return [varint(number << 3 | kind), value]
        case int():
            return [varint(number << 3 | _VARINT) + varint(value)]
        case str():
            return field(number, value.encode("utf-8", "replace"))
        case bytes():
            return [varint(number << 3 | _LENGTH) + varint(len(value)) + value]
        case _:
            length = sum(c.width if isinstance(c, Slot) else len(c) for c in value)
            return [varint(number << 3 | _LENGTH) + varint(length), *value]


def encoded(chunks: Chunks) -> bytes:
    """Fields without holes."""
    return b"".join(chunk for chunk in chunks if isinstance(chunk, bytes))


def packet(*fields: Chunks) -> list[Chunk]:
    return field(_PACKET, [*chain(*fields), *field(_SEQUENCE, _SEQUENCE_ID)])


class Template:
    """Packets of one shape; `fill` writes one a row."""

    def __init__(self, chunks: Chunks) -> None:
        bare = bytearray()
        self._holes: list[tuple[int, Slot]] = []
        for chunk in chunks:
            if isinstance(chunk, Slot):
                self._holes.append((len(bare), chunk))
                bare += bytes(chunk.width)
            else:
                bare += chunk
        self._bare = np.frombuffer(bytes(bare), np.uint8)

    def fill(self, rows: int, **columns: Int64s | int) -> bytes:
        """`columns` by the names of the holes; no value may be negative or wider than its hole."""
        table = np.tile(self._bare, (rows, 1))
        for at, hole in self._holes:
            values = np.broadcast_to(np.asarray(columns[hole.name], np.int64), rows)
            _write(table[:, at : at + hole.width], values, 8 if hole.fixed else 7)
        return table.tobytes()


def _write(hole: UInt8s, values: Int64s, bits: int) -> None:
    """Little-endian groups of `bits`; all but the last of a varint say that more follows."""
    last = hole.shape[1] - 1
    for at in range(last + 1):
        group = (values >> (bits * at)) & ((1 << bits) - 1)
        hole[:, at] = group | 128 if bits == 7 and at < last else group


# -- packets -----------------------------------------------------------------------------------


def preamble(at_ns: int) -> bytes:
    """Opens the sequence and says that all times are nanoseconds since the epoch."""
    clocks = [field(1, [*field(1, clock), *field(2, at_ns)]) for clock in (_BOOTTIME, _REALTIME)]
    return encoded(packet(field(_FLAGS, _CLEARED))) + encoded(
        packet(field(_TIMESTAMP, at_ns), field(_CLOCKS, list(chain(*clocks))))
    )


def track(uuid: int, name: str, *, parent: int = 0, order: int = 0, ordered: bool = False) -> bytes:
    """Tracks of one name under one parent are shown as one, whose slices may overlap.

    `order` counts among the children of `parent`, if that was `ordered`.
    """
    descriptor = [*field(1, uuid), *field(2, name)]
    if parent:
        descriptor += field(5, parent)
    if ordered:
        descriptor += field(11, _EXPLICIT_ORDER)
    descriptor += field(12, order)
    return encoded(packet(field(_DESCRIPTOR, descriptor)))


def event(
    kind: int,
    *,
    flows: bool = False,
    numbers: Mapping[str, int] = MappingProxyType({}),
    texts: Mapping[str, int] = MappingProxyType({}),
) -> Template:
    """Track events with the holes `at_ns`, `track`, and but for an end `name` and `category`.

    `flows` adds `flow`, which ties events of equal value together by arrows in order of time.
    `numbers` and `texts` add annotations, each with a hole of its name; the values are what an
    `Interner` numbered those names. The holes of texts take an `Interner`'s numbers too.
    """
    fields = [*field(_TYPE, kind), *field(_TRACK, slot("track", 32))]
    if kind != END:
        fields += [*field(_NAME, slot("name", 28)), *field(_CATEGORY, slot("category", 7))]
    if flows:
        fields += field(_FLOW, Slot("flow", 8, fixed=True))
    for name, number in numbers.items():
        fields += field(_ANNOTATION, [*field(1, number), *field(4, slot(name, 63))])
    for name, number in texts.items():
        fields += field(_ANNOTATION, [*field(1, number), *field(17, slot(name, 28))])
    return Template(
        packet(field(_TIMESTAMP, slot("at_ns", 63)), field(_FLAGS, _NEEDED), field(_EVENT, fields))
    )


# -- interned strings --------------------------------------------------------------------------

CATEGORIES, NAMES, ANNOTATION_NAMES, ANNOTATION_TEXTS = 1, 2, 3, 29
"""Kinds of interned string: the fields of InternedData."""


class Interner:
    """Numbers for strings of one kind, from 1. `pending` are those not written to a packet yet."""

    def __init__(self, kind: int) -> None:
        self._kind = kind
        self._numbers: dict[Hashable, int] = {}
        self._pending: list[Chunk] = []

    def number(self, key: Hashable) -> int:
        """0 for a key that has no text yet."""
        return self._numbers.get(key, 0)

    def add(self, key: Hashable, text: str) -> int:
        number = self._numbers[key] = len(self._numbers) + 1
        self._pending += field(self._kind, [*field(1, number), *field(2, text)])
        return number

    def text(self, text: str) -> int:
        return self.number(text) or self.add(text, text)

    def flush(self) -> bytes:
        """The packet with the strings added since the last; empty when there are none."""
        if not self._pending:
            return b""
        out = encoded(packet(field(_FLAGS, _NEEDED), field(_INTERNED, self._pending)))
        self._pending = []
        return out
