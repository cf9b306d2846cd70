"""Fields of messages: text, times and enums, in both directions, and parts in JSON.

A message of `frd.v1` has the fields of its frozen value, under the same names. `read` makes the
value of a message by the types of its fields; `frd.wire.codec` is the inverse.

Odd text is no error: characters that UTF-8 cannot encode are escaped. A name that is too long for
the wire is cut and gets a digest of the whole name, so that every member of a group sends the same
name and two long names stay distinct.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from types import NoneType
from typing import Any, Final, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from google.protobuf.message import DecodeError

from frd.errors import WireError
from frd.model import (
    MAX_WORLD_SIZE,
    YEAR_2200_NS,
    ExitKind,
    MemoryEvent,
    MemoryEventKind,
    RankPhases,
    RankState,
    RankStatus,
    SeriesInfo,
    SeriesKind,
)
from frd.v1 import stream_pb2 as pb
from frd.wire.messages import Part

MAX_TEXT_BYTES: Final = 4096
"""Longest string that the wire carries, in UTF-8."""

PART_FIELD: Final = "response.data"
"""What errors call the data of an answer's part."""

INLINE: Final = ("key", "info", "signature")
"""Fields of values whose own fields the message holds directly."""
OF_STREAM: Final = (RankStatus, RankPhases, MemoryEvent, SeriesInfo)
"""Values whose `rank` is a stream index: the message has it as `rank_index`."""

_Read: TypeAlias = Callable[[Any], Any]
"""From a message to one field of its value."""
_REQUIRED: Final = (
    *("hello.node", "hello.boot_id", "hello.session", "hello.sent_raw_ns"),
    *("clock.boot_id", "clock.session"),
    *("declare.attempts.job", "declare.ranks.boot_id", "phases.spans.path"),
)
_MOST: Final = {
    "declare.attempts.world_size": MAX_WORLD_SIZE,
    "declare.ranks.world_size": MAX_WORLD_SIZE,
    "memory_events.requested_bytes": 2**63 - 1,
    "statuses.gap_entries": 2**63 - 1,
    "statuses.exit.signal": 64,
    "statuses.exit.status": 255,
}
_E = TypeVar("_E", bound=Enum)
_T = TypeVar("_T")
_ENUMS: Final[dict[type[Enum], Any]] = {
    RankState: pb.State,
    ExitKind: pb.ExitKind,
    SeriesKind: pb.SeriesKind,
    MemoryEventKind: pb.MemoryEventKind,
    Part: pb.Part,
}


def _numbers(members: type[Enum], numbers: Any) -> dict[Enum, int]:
    """Members have the same names in an enum of `frd.v1`, after a prefix; UNKNOWN is
    `_UNSPECIFIED` there, 0. A member that is missing there is an error at import."""
    prefix = numbers.Name(0).removesuffix("UNSPECIFIED")
    return {
        member: 0 if member.name == "UNKNOWN" else numbers.Value(f"{prefix}{member.name}")
        for member in members
    }


ENUM_NUMBERS: Final = {members: _numbers(members, numbers) for members, numbers in _ENUMS.items()}
"""The number on the wire of each member, by enum."""
_MEMBERS: Final = {
    members: {number: member for member, number in numbers.items()}
    for members, numbers in ENUM_NUMBERS.items()
}


_OF_LATER_RELEASES: Final[dict[type[Enum], Enum]] = {ExitKind: ExitKind.UNKNOWN}
"""What unknown numbers mean, where they are no error."""


def read(kind: Callable[..., _T], message: Any, field: str) -> _T:
    """The value of the dataclass `kind` in `message`. The caller checks indexes, and what
    concerns several fields.

    Raises:
        WireError: naming the field below `field`, as every function here.
    """
    return kind(**{name: value(message) for name, value in _plan(kind, field)})


@cache
def _plan(kind: Callable[..., Any], field: str) -> list[tuple[str, _Read]]:
    return [
        (name, _reader(kind, f"{field}.{name}".lstrip("."), name, hint))
        for name, hint in get_type_hints(kind).items()
    ]


def _reader(kind: Callable[..., Any], path: str, name: str, hint: Any) -> _Read:
    if NoneType in get_args(hint):
        whole = _reader(kind, path, name, get_args(hint)[0])
        return lambda m: whole(m) if m.HasField(name) else None
    if name in INLINE:
        within = path.rpartition(".")[0]
        return lambda m: read(hint, m, within)
    if name == "rank" and kind in OF_STREAM:
        return attrgetter("rank_index")
    if (check := _check(path, name, hint)) is None:
        return attrgetter(name)
    if path not in _REQUIRED:
        return lambda m: check(path, getattr(m, name))

    def required(message: Any) -> Any:
        if not (item := getattr(message, name)):
            raise WireError(path, "missing", "empty: send it")
        return check(path, item)

    return required


def _check(path: str, name: str, hint: Any) -> Callable[[str, Any], Any] | None:
    """Returns the value of an item of a message, for a field of this type; None: the same."""
    if hint is str:
        return check_text
    if get_origin(hint) is tuple:
        of = get_args(hint)[0]
        each = _shape if get_origin(of) is tuple else _check(path, name, of)
        if each is None:
            return lambda _, items: tuple(items)
        return lambda path, items: tuple([each(path, item) for item in items])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda path, number: enum_member(path, hint, number)
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda path, item: read(hint, item, path)
    if path in _MOST:
        return lambda path, number: check_most(path, number, _MOST[path])
    return check_time if name.endswith("_ns") else None


def _shape(field: str, shape: Any) -> tuple[int, ...]:
    sizes = tuple(shape.dims)
    if sizes and min(sizes) < 0:
        raise WireError(field, "range", f"{min(sizes)}: send sizes of 0 or more")
    return sizes


def enum_member(field: str, members: type[_E], number: int) -> _E:
    """The inverse of `ENUM_NUMBERS`."""
    member = _MEMBERS[members].get(number, _OF_LATER_RELEASES.get(members))
    if not isinstance(member, members):
        name = _ENUMS[members].DESCRIPTOR.full_name
        raise WireError(field, "range", f"{number}: send a number of {name}")
    return member


def parse(field: str, message: type[Any], data: bytes, limit: int) -> Any:
    """The message of type `message` in `data`, at most `limit` bytes."""
    if len(data) > limit:
        raise WireError(field, "too_large", f"{len(data)} bytes: send {limit} or fewer")
    try:
        return message.FromString(data)
    except DecodeError:
        name = message.DESCRIPTOR.full_name
        raise WireError(field, "parse", f"{len(data)} bytes are no {name}") from None


def text(value: str) -> str:
    """`value` as the wire carries it."""
    raw = value.encode("utf-8", "backslashreplace")
    if len(raw) > MAX_TEXT_BYTES:
        digest = hashlib.blake2b(raw, digest_size=8).hexdigest().encode()
        raw = raw[: MAX_TEXT_BYTES - 32].decode("utf-8", "ignore").encode() + b"#" + digest
    return raw.decode("utf-8")


def check_text(field: str, value: str) -> str:
    if len(value) > MAX_TEXT_BYTES or (
        len(value) * 4 > MAX_TEXT_BYTES and len(value.encode()) > MAX_TEXT_BYTES
    ):
        raise WireError(field, "too_large", f"longer than {MAX_TEXT_BYTES} bytes: shorten it")
    return value


def check_time(field: str, at_ns: int) -> int:
    if not 0 <= at_ns < YEAR_2200_NS:
        raise WireError(field, "range", f"{at_ns}: send nanoseconds from 1970 to 2200")
    return at_ns


def check_most(field: str, value: int, most: int) -> int:
    """An unsigned `value` is not above `most`."""
    if value > most:
        raise WireError(field, "range", f"{value}: send 0 to {most}")
    return value


def decode_part(data: bytes, kind: type[_T], *, what: str, max_bytes: int) -> _T:
    """An optional part of an answer, in JSON. A bad one is an error for the caller, never the end
    of a stream.

    Raises:
        WireError: `data` is over `max_bytes`, or no `kind`, which messages call `what`.
    """
    if len(data) > max_bytes:
        size = f"{len(data)} bytes: send {max_bytes} or fewer"
        raise WireError(PART_FIELD, "too_large", size)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(PART_FIELD, "parse", f"no {what}: {error}") from None
