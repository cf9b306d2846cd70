"""What an agent answers about ranks, as it travels: JSON.

What a suspect process is blocked in; and what NCCL's RAS service says of the communicators of one
rank. Of the latter, the agent leaves out the communicators of other ranks, and all that frd does
not compare. Numbers are those of NCCL: ranks within the communicator, and process ids as the ranks
see their own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntFlag
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec

from frd.decodable import decodable
from frd.errors import WireError
from frd.model import MAX_WORLD_SIZE, Holder, NodeRawNs, WaitsFor
from frd.wire.fields import PART_FIELD, check_most, check_time, decode_part, text

MAX_REPORT_BYTES: Final = 64 * 1024
_MAX_PID: Final = 2**31 - 1
_UNKNOWN: Final = NodeRawNs(0)
MAX_RAS_BYTES: Final = 4 * 1024 * 1024
"""A rank of one communicator takes about 40 bytes, so that four communicators of 16,384 ranks fit.
"""
MAX_OPS: Final = 64
"""Kinds of operations in one communicator."""

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=MAX_WORLD_SIZE)]
Pid: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Code: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=255)]
"""A result code of NCCL; 0 no error."""
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
OpName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_]{1,32}\Z")]
CommHash: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{1,16}\Z")]


@decodable
@dataclass(frozen=True, slots=True)
class WaitReport:
    """What an agent found out about one rank, as of now."""

    waits_for: WaitsFor
    """Without `since_at` and `text`, which the service fills in."""
    since_ns: NodeRawNs = _UNKNOWN
    """It has waited at least since then; 0 unknown."""
    as_of_ns: NodeRawNs = _UNKNOWN
    """When it was last seen so; 0 if it was not looked at yet."""
    may_be_for_peer: bool = False
    """Its main thread waits for another thread, with a time-out: as for a send or receive."""
    is_poll: bool = False
    """Its main thread wakes from sleep again and again, and does nothing. With a holder, `LIKELY`,
    the rank that has the file lock for which it looks."""
    is_idle: bool = False
    """Its main thread waits for a request: see `frd.model.IDLE`."""


def encode_report(report: WaitReport) -> bytes:
    return msgspec.json.encode(_with_wire_texts(report))


def decode_report(data: bytes) -> WaitReport:
    """
    Raises:
        WireError: `data` is not what `encode_report` returns.
    """
    report = decode_part(data, WaitReport, what="report on a wait", max_bytes=MAX_REPORT_BYTES)
    check_time(f"{PART_FIELD}.since_ns", report.since_ns)
    check_time(f"{PART_FIELD}.as_of_ns", report.as_of_ns)
    _check_number("pid", report.waits_for.pid, _MAX_PID)
    if (holder := report.waits_for.holder) is not None:
        _check_number("holder.pid", holder.pid, _MAX_PID)
        _check_number("holder.rank", holder.rank or 0, MAX_WORLD_SIZE)
    return _with_wire_texts(report)


def _check_number(name: str, value: int, most: int) -> None:
    # A negative number is as wrong as one that is too high.
    check_most(f"{PART_FIELD}.{name}", value if value >= 0 else most + 1, most)


def _with_wire_texts(report: WaitReport) -> WaitReport:
    """With texts as the wire carries them: without what is no UTF-8, and not too long."""
    waits_for = report.waits_for
    holder = waits_for.holder and replace(waits_for.holder, **_texts(waits_for.holder))
    return replace(report, waits_for=replace(waits_for, holder=holder, **_texts(waits_for)))


def _texts(value: WaitsFor | Holder) -> dict[str, Any]:
    named = ((field.name, getattr(value, field.name)) for field in fields(value))
    return {name: text(item) for name, item in named if type(item) is str}


class MemberState(IntFlag):
    MISSING = 1
    """RAS has no answer of the rank."""
    UNRESPONSIVE = 2
    DEAD = 4
    """RAS considers its process dead."""
    FINALIZING = 8
    DESTROYING = 16
    ABORTED = 32


class Member(NamedTuple):
    """A rank of a communicator."""

    rank: Number
    """In the communicator."""
    pid: Pid
    """In the rank's own pid namespace."""
    host: Number
    """Tells hosts of the report apart."""
    state: Annotated[int, msgspec.Meta(ge=0, le=63)] = 0
    """Of `MemberState`."""
    init_code: Code = 0
    error_code: Code = 0
    """Of its last asynchronous error."""
    counts: tuple[Count, ...] = ()
    """Operations launched, one for each of `Communicator.ops`; empty if it is missing."""


@dataclass(frozen=True, slots=True)
class Communicator:
    hash: CommHash
    """As NCCL's log shows it, by which communicators of the same ranks differ."""
    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_WORLD_SIZE)]
    ops: Annotated[tuple[OpName, ...], msgspec.Meta(max_length=MAX_OPS)]
    members: tuple[Member, ...]
    """Those that RAS knows of, each once, in no order."""


@decodable
@dataclass(frozen=True, slots=True)
class RasReport:
    communicators: tuple[Communicator, ...]


def encode_ras(report: RasReport) -> bytes:
    """
    Raises:
        WireError: the report is too large, or breaks a rule of `decode_ras`.
    """
    data = msgspec.json.encode(report)
    decode_ras(data)
    return data


def decode_ras(data: bytes) -> RasReport:
    """
    Raises:
        WireError: `data` is no such report.
    """
    report = decode_part(data, RasReport, what="report of RAS", max_bytes=MAX_RAS_BYTES)
    for one in report.communicators:
        _check(one)
    return report


def _check(one: Communicator) -> None:
    ranks = {member.rank for member in one.members}
    if len(ranks) < len(one.members) or (ranks and max(ranks) >= one.size):
        why = f"ranks of {one.hash}: repeated, or not below {one.size}"
        raise WireError(PART_FIELD, "disagree", why)
    if any(len(member.counts) not in (0, len(one.ops)) for member in one.members):
        why = f"counts of {one.hash}: send one for each of {len(one.ops)} ops"
        raise WireError(PART_FIELD, "length", why)
