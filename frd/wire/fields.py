"""Fields of messages: text, times and enums, in both directions, and parts in JSON.

Odd text is no error: characters that UTF-8 cannot encode are escaped. A name that is too long for
the wire is cut and gets a digest of the whole name, so that every member of a group sends the same
name and two long names stay distinct.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, TypeVar

import msgspec
from google.protobuf.message import DecodeError

from frd.errors import WireError
from frd.model import YEAR_2200_NS, ExitKind, MemoryEventKind, RankState, SeriesKind
from frd.v1 import stream_pb2 as pb
from frd.wire.messages import Part

MAX_TEXT_BYTES: Final = 4096
"""Longest string that the wire carries, in UTF-8."""

PART_FIELD: Final = "response.data"
"""What errors call the data of an answer's part."""

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


def enum_member(field: str, members: type[_E], number: int, default: _E | None = None) -> _E:
    """The inverse of `ENUM_NUMBERS`; `default` is for numbers of later releases.

    Raises:
        WireError: naming `field`, as every function here.
    """
    member = _MEMBERS[members].get(number, default)
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


def check_texts(field: str, values: Sequence[str]) -> tuple[str, ...]:
    return tuple([check_text(field, value) for value in values])


def texts_of(
    field: str, message: Any, *names: str, required: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Text fields of `message` by name: `names`, and those that must not be empty (`required`)."""
    texts = {}
    for name in (*required, *names):
        texts[name] = check_text(f"{field}.{name}", getattr(message, name))
        if not texts[name] and name in required:
            raise WireError(f"{field}.{name}", "missing", "empty: send it")
    return texts


def check_time(field: str, at_ns: int) -> None:
    if not 0 <= at_ns < YEAR_2200_NS:
        raise WireError(field, "range", f"{at_ns}: send nanoseconds from 1970 to 2200")


def check_most(field: str, value: int, most: int) -> None:
    """An unsigned `value` is not above `most`."""
    if value > most:
        raise WireError(field, "range", f"{value}: send 0 to {most}")


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
