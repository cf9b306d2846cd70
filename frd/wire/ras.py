"""What NCCL's RAS service says of the communicators of one rank, as it travels: JSON.

The agent leaves out the communicators of other ranks, and all that frd does not compare. Numbers
are those of NCCL: ranks within the communicator, and process ids as the ranks see their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec

from frd.decodable import decodable
from frd.errors import WireError
from frd.model import MAX_WORLD_SIZE
from frd.wire.fields import PART_FIELD, decode_part

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
