"""Decodes events of the public "TelemetryEventV2" form to columns.

Bytes in, numbers out; files, lines and errors are handled by `frd.offline.memory.event_files`. Of
an event's twenty fields those are decoded that say whose memory it is and how much, by a struct
that leaves the rest unread: a million events a second and a core. Versions 2, 3 (which adds
``session_id``) and 4 (any counter may be null) differ in nothing else. Later versions are read like
version 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec
import numpy as np

from frd.model import Int32s, Int64s

SAMPLE: Final = "sample"
KNOWN_VERSIONS: Final = (2, 3, 4)
NONE: Final = -(1 << 62)
"""A counter that is missing in the event. All other negative numbers are invalid, also -1."""
ABSURD: Final = 1 << 62
"""Any counter that is too large for a column."""
MAX_RANKS: Final = 1 << 16
MAX_IDENTITIES: Final = 65_536
"""Most distinct sources of events that are read; no training job has more."""

ALLOCATED, RESERVED, USED, TOTAL = range(4)
"""Columns of `Block.counters`."""


class Event(msgspec.Struct, gc=False):
    """The fields of an event that are read; the others are skipped."""

    schema_version: int
    timestamp_ns: int
    event_type: str
    collector: str | None = None
    pid: int | None = None
    host: str | None = None
    device_id: int | None = None
    allocator_allocated_bytes: int | None = None
    allocator_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    device_total_bytes: int | None = None
    job_id: str | None = None
    rank: int | None = None
    world_size: int | None = None
    session_id: str | None = None


class Identity(NamedTuple):
    """The source and the kind of an event: the fields that all events of one stream share."""

    schema_version: int
    event_type: str
    collector: str | None
    pid: int | None
    host: str | None
    device_id: int | None
    job_id: str | None
    rank: int | None
    world_size: int | None
    session_id: str | None

    @property
    def is_sample(self) -> bool:
        return self.event_type == SAMPLE

    @property
    def is_oom(self) -> bool:
        kind = self.event_type.lower()
        return "oom" in kind or "out_of_memory" in kind

    @property
    def of_host(self) -> bool:
        """It has the memory of a host process, not of a device."""
        no_device = self.device_id is not None and self.device_id < 0
        return no_device or "cpu" in (self.collector or "")


_identity = attrgetter(*Identity._fields)
_numbers = attrgetter(
    "timestamp_ns",
    "allocator_allocated_bytes",
    "allocator_reserved_bytes",
    "device_used_bytes",
    "device_total_bytes",
)
_WIDTH: Final = 5


@dataclass(frozen=True, slots=True)
class Block:
    """Parallel columns, one row an event, in the order of the file."""

    identity: Int32s
    """Index into `Identities.by_number`; -1 where there are too many of them."""
    at_ns: Int64s
    counters: Int64s
    """(n, 4), bytes; `NONE` if missing in the event."""

    def __len__(self) -> int:
        return len(self.at_ns)


class Identities(dict[tuple[object, ...], int]):
    """Numbers for identities, in the order in which they show up."""

    def __init__(self) -> None:
        super().__init__()
        self.by_number: list[Identity] = []

    def __missing__(self, key: tuple[object, ...]) -> int:
        if len(self.by_number) >= MAX_IDENTITIES:
            return -1
        self.by_number.append(Identity(*key))  # type: ignore[arg-type]
        number = self[key] = len(self.by_number) - 1
        return number


def block_of(events: Sequence[Event], identities: Identities) -> Block:
    """The columns of some events; new identities are added to `identities`."""
    count = len(events)
    number = map(identities.__getitem__, map(_identity, events))
    identity = np.fromiter(number, np.int32, count)
    try:
        flat = np.fromiter(chain.from_iterable(map(_numbers, events)), np.int64, count * _WIDTH)
    except (TypeError, OverflowError):  # some are null, or beyond 64 bits
        numbers = map(_bounded, chain.from_iterable(map(_numbers, events)))
        flat = np.fromiter(numbers, np.int64, count * _WIDTH)
    table = flat.reshape(count, _WIDTH)
    return Block(identity, table[:, 0].copy(), table[:, 1:].copy())


def _bounded(number: int | None) -> int:
    if number is None:
        return NONE
    return number if -ABSURD < number < ABSURD else ABSURD
