"""The limits of one message of an agent, checked on its bytes before anything decodes them.

Two bytes of a message may be an item of a repeated field, which costs protobuf up to 100 bytes and
Python microseconds. So the items are counted on the wire: one pass over the messages that have
repeated fields, which ends at the first limit. Any other field is one object at most, however often
it comes, and protobuf reads a MiB of them in 6 ms. Rows of columns are no objects, so their columns
are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from frd.errors import WireError
from frd.v1 import stream_pb2 as pb
from frd.wire.codec import encode_agent
from frd.wire.columns import count_ranks
from frd.wire.messages import (
    MAX_BUNDLED,
    MAX_MESSAGE_BYTES,
    MAX_PHASE_NAMES,
    MAX_PHASES,
    MAX_UNREADABLE,
    AgentEvent,
)

MAX_MEMBERS: Final = 1 << 18
"""Ranks in the groups of one message: twice the default of policy.max_ranks."""


class Limit(NamedTuple):
    each: int
    """Items that the field may have in one message that has it."""
    in_all: int
    """Items in one `AgentMessage`."""


LIMITS: Final = {
    "declare.attempts": Limit(32, 32),
    "declare.ranks": Limit(512, 512),
    "declare.ranks.backends": Limit(64, 4_096),
    "declare.ranks.devices": Limit(64, 4_096),
    "declare.groups": Limit(1_000, 1_000),
    "declare.groups.ranks": Limit(MAX_MEMBERS, MAX_MEMBERS),
    "declare.signatures": Limit(1_000, 1_000),
    "declare.signatures.input_sizes": Limit(1_024, 4_096),
    "declare.signatures.output_sizes": Limit(1_024, 4_096),
    "declare.signatures.input_sizes.dims": Limit(64, 65_536),
    "declare.signatures.output_sizes.dims": Limit(64, 65_536),
    "declare.signatures.input_dtypes": Limit(1_024, 4_096),
    "declare.signatures.output_dtypes": Limit(1_024, 4_096),
    "declare.series": Limit(1_000, 1_000),
    "statuses.statuses": Limit(256, 256),
    "statuses.phases": Limit(32, 32),
    "statuses.phases.spans": Limit(MAX_PHASES, 32 * MAX_PHASES),
    "statuses.phases.spans.path": Limit(MAX_PHASE_NAMES, 32 * MAX_PHASES * MAX_PHASE_NAMES),
    "statuses.unreadable.texts": Limit(MAX_UNREADABLE, MAX_UNREADABLE),
    "memory_events.events": Limit(1_024, 1_024),
    "bundle.messages": Limit(MAX_BUNDLED, MAX_BUNDLED),
}
"""Of every repeated field, by its path in an `AgentMessage`, and of the members of groups."""
OTHER_FIELDS: Final = 32_768
"""Fields without a separate limit in one `AgentMessage`, where the pass sees them: those of a
signature, for example, and those that this release does not know."""

_GROUP_MEMBERS: Final = "declare.groups.ranks"
_VARINT, _BYTES = 0, 2
"""Types of fields on the wire."""
_FIXED_BYTES: Final = {1: 8, 5: 4}
"""Their size, by type."""
_NUMBER_BYTES: Final = 10
"""Longest varint."""
_64_BITS: Final = (1 << 64) - 1
_CONTINUED: Final = bytes(range(128, 256))
"""Bytes of a varint that are not its last."""


class _Field(NamedTuple):
    """What the pass does with the fields of one tag."""

    name: str
    limit: Limit
    inner: _Fields | None = None
    """Of a message that has items."""
    items_in: Callable[[bytes], int] | None = None
    """None: it is one item."""


_Fields: TypeAlias = Mapping[int, _Field]
"""By tag."""


def _packed(data: bytes) -> int:
    """Varints in a packed field."""
    return len(data.translate(None, _CONTINUED))


def _fields(message: Any, within: str = "") -> _Fields:
    """The fields with items of a message, and its fields with messages that have items."""
    fields: dict[int, _Field] = {}
    for field in message.fields:
        name = f"{within}.{field.name}" if within else field.name
        inner = _fields(field.message_type, name) if field.message_type else {}
        limit = LIMITS.get(name)
        if limit is None and (inner or not within):
            limit = Limit(1, 1)
        if limit is not None:
            is_number = field.type in (field.TYPE_INT64, field.TYPE_UINT32)
            count = count_ranks if name == _GROUP_MEMBERS else _packed if is_number else None
            fields[field.number << 3 | _BYTES] = _Field(name, limit, inner or None, count)
            if is_number:
                fields[field.number << 3 | _VARINT] = _Field(name, limit)
    return fields


_OTHER: Final = _Field("message", Limit(OTHER_FIELDS, OTHER_FIELDS))
_MESSAGE: Final = _fields(pb.AgentMessage.DESCRIPTOR)


def check_message(data: bytes) -> int:
    """Returns how many items one `frd.v1.AgentMessage` has.

    Raises:
        WireError: it is too large, or has too many of a field, which the error names.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        why = f"{len(data)} bytes: send {MAX_MESSAGE_BYTES} or fewer"
        raise WireError("message", "too_large", why)
    items: dict[str, int] = {}
    try:
        _count(data, 0, len(data), _MESSAGE, items)
    except IndexError:
        raise _broken() from None
    return sum(items.values())


def fits(event: AgentEvent) -> bool:
    """The service accepts the event in one message."""
    try:
        check_message(encode_agent(event))
    except WireError:
        return False
    return True


def _count(data: bytes, at: int, end: int, fields: _Fields, items: dict[str, int]) -> None:
    """Add the items of the message at these bytes, by name.

    Raises:
        IndexError: the data ends before the message does.
        WireError: see `check_message`.
    """
    here: dict[str, int] = {}
    while at < end:
        if (tag := data[at]) < 128:
            at += 1
        else:
            tag, at = _number(data, at)
        wire, size = tag & 7, 0
        if wire == _BYTES:
            if (size := data[at]) < 128:
                at += 1
            else:
                size, at = _number(data, at)
        elif wire == _VARINT:
            _, at = _number(data, at)
        elif wire in _FIXED_BYTES:
            size = _FIXED_BYTES[wire]
        else:  # a group, which proto3 does not have
            raise _broken()
        start, at = at, at + size
        if at > end:
            raise _broken()
        name, limit, inner, items_in = fields.get(tag, _OTHER)
        more = 1 if items_in is None else items_in(data[start:at])
        here[name] = one = here.get(name, 0) + more
        items[name] = every = items.get(name, 0) + more
        if one > limit.each or every > limit.in_all:
            most = limit.each if one > limit.each else limit.in_all
            short = name.removeprefix("statuses.")
            raise WireError(short, "too_large", f"over {most} in one message: send {most} or fewer")
        if inner is not None:
            _count(data, start, at, inner, items)


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A varint of 64 bits, and where it ends: protobuf drops what is beyond them, too."""
    if (number := data[at]) < 128:
        return number, at + 1
    number &= 127
    for shift in range(7, 7 * _NUMBER_BYTES, 7):
        at += 1
        byte = data[at]
        number |= (byte & 127) << shift
        if byte < 128:
            return number & _64_BITS, at + 1
    raise _broken()


def _broken() -> WireError:
    return WireError("message", "parse", "no frd.v1.AgentMessage")
