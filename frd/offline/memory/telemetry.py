"""Decodes events of the public "TelemetryEventV2" form to columns.

Bytes in, numbers out; files, lines and errors are handled by `frd.offline.memory.events.files`. Of
an event's twenty fields those are decoded that say whose memory it is and how much, by a struct
that leaves the rest unread. Versions 2, 3 (which adds ``session_id``) and 4 (any counter may be
null) differ in nothing else. Later versions are read like version 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec
import numpy as np

from frd.decodable import decodable
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
MAX_ORIGINS: Final = 1 << 18
"""Most distinct origins of samples that are kept; further samples have none."""

ALLOCATED, RESERVED, USED, TOTAL = range(4)
"""Columns of `Block.counters`."""


@decodable
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


def is_oom(event_type: str) -> bool:
    """True for events of a failed allocation, whatever a tracker calls them."""
    kind = event_type.lower()
    return "oom" in kind or "out_of_memory" in kind


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
        return is_oom(self.event_type)

    @property
    def of_host(self) -> bool:
        """It has the memory of a host process, not of a device."""
        no_device = self.device_id is not None and self.device_id < 0
        return no_device or "cpu" in (self.collector or "")


class Origin(NamedTuple):
    """What a sample says of the code that took it, where it does."""

    thread_id: int | None
    scope_id: str
    """Of the phase; empty if only the thread is known."""


identity_of = attrgetter(*Identity._fields)
NUMBERS: Final = (
    "timestamp_ns",
    "allocator_allocated_bytes",
    "allocator_reserved_bytes",
    "device_used_bytes",
    "device_total_bytes",
)
_numbers = attrgetter(*NUMBERS)


@dataclass(frozen=True, slots=True)
class Block:
    """Parallel columns, one row an event, in the order of the file."""

    identity: Int32s
    """Index into `Sources.identities`; -1 where there are too many of them."""
    at_ns: Int64s
    counters: Int64s
    """(n, 4), bytes; `NONE` if missing in the event."""
    origin: Int32s
    """Index into `Sources.origins`; -1 for none."""

    def __len__(self) -> int:
        return len(self.at_ns)


def joined(blocks: Sequence[Block]) -> Block:
    """One block after the other."""
    if len(blocks) == 1:
        return blocks[0]
    none = np.empty(0, np.int32)
    at_ns, counters = np.empty(0, np.int64), np.empty((0, TOTAL + 1), np.int64)
    return Block(
        np.concatenate([none, *(block.identity for block in blocks)]),
        np.concatenate([at_ns, *(block.at_ns for block in blocks)]),
        np.concatenate([counters, *(block.counters for block in blocks)]),
        np.concatenate([none, *(block.origin for block in blocks)]),
    )


class Sources:
    """Numbers for identities and origins, in the order in which they show up."""

    def __init__(self) -> None:
        self.identities: list[Identity] = []
        self.origins: list[Origin] = []
        self._identities: dict[tuple[object, ...], int] = {}
        self._origins: dict[Origin, int] = {}

    def identity(self, key: tuple[object, ...]) -> int:
        """`key` has the fields of an `Identity`."""
        number = self._identities.get(key)
        if number is None:
            if len(self.identities) >= MAX_IDENTITIES:
                return -1
            number = self._identities[key] = len(self.identities)
            self.identities.append(Identity(*map(_storable, key)))  # type: ignore[arg-type]
        return number

    def origin(self, origin: Origin | None) -> int:
        if origin is None:
            return -1
        number = self._origins.get(origin)
        if number is None:
            if len(self.origins) >= MAX_ORIGINS:
                return -1
            number = self._origins[origin] = len(self.origins)
            self.origins.append(origin)
        return number


def block_of(
    events: Sequence[Event], sources: Sources, origins: Sequence[Origin | None] = ()
) -> Block:
    """The columns of some events; `origins` has one for each, or is empty."""
    count = len(events)
    known = sources._identities.get
    numbers = list(map(known, map(identity_of, events)))
    if None in numbers:
        numbers = list(map(sources.identity, map(identity_of, events)))
    origin = [sources.origin(one) for one in origins] if origins else [-1] * count
    table = numbers_of(events)
    return Block(
        np.array(numbers, np.int32),
        table[:, 0].copy(),
        table[:, 1:].copy(),
        np.array(origin, np.int32),
    )


def numbers_of(events: Sequence[Event]) -> Int64s:
    """(n, 5): the time and the counters."""
    shape = len(events), len(NUMBERS)
    try:
        flat = np.fromiter(
            chain.from_iterable(map(_numbers, events)), np.int64, shape[0] * shape[1]
        )
    except (TypeError, OverflowError):  # some are null, or beyond 64 bits
        numbers = map(_bounded, chain.from_iterable(map(_numbers, events)))
        return np.fromiter(numbers, np.int64, shape[0] * shape[1]).reshape(shape)
    flat[(flat >= ABSURD) | (flat <= -ABSURD)] = ABSURD
    return flat.reshape(shape)


def _storable(value: object) -> object:
    """A number of any size, as one that other processes can be sent."""
    return max(-ABSURD, min(value, ABSURD)) if isinstance(value, int) else value


def _bounded(number: int | None) -> int:
    if number is None:
        return NONE
    return number if -ABSURD < number < ABSURD else ABSURD
