"""Reads the JSON of NCCL's RAS service: the communicators of one rank, and nothing else of it.

Any process of this machine may listen at that address, so nothing is trusted: numbers have bounds,
unknown keys are ignored, and an answer that breaks a rule is refused as a whole. Process ids repeat
on other hosts, in containers especially: a rank is found by its own and by an address of this host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Annotated, Final

import msgspec

from frd.decodable import decodable
from frd.errors import ServiceUnavailable
from frd.wire.ras import (
    Code,
    Communicator,
    Count,
    Member,
    MemberState,
    Number,
    OpName,
    Pid,
    RasReport,
)

MAX_MEMBERS: Final = 100_000
"""Of all communicators of one rank: about as many as a report can hold."""
_Hash = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{1,16}\Z")]


class _Status(msgspec.Struct, frozen=True):
    init_state: Code = 0
    async_error: Code = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False
    unresponsive: bool = False
    considered_dead: bool = False


class _Rank(msgspec.Struct, frozen=True):
    rank: Number
    pid: Pid
    host: Annotated[str, msgspec.Meta(max_length=256)] = ""
    status: _Status = _Status()
    collective_counts: dict[OpName, Count] | None = None


class _Communicator(msgspec.Struct, frozen=True):
    hash: _Hash
    size: int
    ranks: tuple[_Rank, ...] = ()
    missing_ranks: tuple[_Rank, ...] = ()

    def all_ranks(self) -> Iterator[_Rank]:
        return chain(self.ranks, self.missing_ranks)


@decodable
class _Answer(msgspec.Struct, frozen=True):
    communicators: tuple[_Communicator, ...]


def read_answer(data: bytes, pid: int, is_here: Callable[[str], bool]) -> RasReport:
    """The communicators of the process with this number, as it sees it. `is_here`: whether an
    address is one of this host.

    Raises:
        ServiceUnavailable: `data` is no such answer.
    """
    try:
        found = msgspec.json.decode(data, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ServiceUnavailable(f"NCCL RAS: its answer cannot be read: {error}") from None
    here: dict[str, bool] = {}

    def is_own(rank: _Rank) -> bool:
        if rank.pid != pid:
            return False
        if rank.host not in here:
            here[rank.host] = is_here(rank.host)
        return here[rank.host]

    own = [one for one in found.communicators if any(is_own(rank) for rank in one.all_ranks())]
    if (count := sum(len(one.ranks) + len(one.missing_ranks) for one in own)) > MAX_MEMBERS:
        raise ServiceUnavailable(f"NCCL RAS: its answer has {count} ranks: over {MAX_MEMBERS}")
    hosts: dict[str, int] = {}
    return RasReport(tuple([_communicator(one, hosts) for one in own]))


def _communicator(one: _Communicator, hosts: dict[str, int]) -> Communicator:
    """`hosts` gets the number of each host."""
    ops = tuple(dict.fromkeys(op for rank in one.ranks for op in rank.collective_counts or ()))
    members = [_member(rank, ops, hosts, MemberState(0)) for rank in one.ranks]
    members += [_member(rank, (), hosts, MemberState.MISSING) for rank in one.missing_ranks]
    return Communicator(one.hash.removeprefix("0x"), one.size, ops, tuple(members))


def _member(rank: _Rank, ops: tuple[str, ...], hosts: dict[str, int], state: MemberState) -> Member:
    status = rank.status
    for is_set, flag in (
        (status.unresponsive, MemberState.UNRESPONSIVE),
        (status.considered_dead, MemberState.DEAD),
        (status.finalize_called, MemberState.FINALIZING),
        (status.destroy_flag, MemberState.DESTROYING),
        (status.abort_flag, MemberState.ABORTED),
    ):
        state |= flag if is_set else 0
    launched = rank.collective_counts or {}
    counts = tuple([launched.get(op, 0) for op in ops])
    host = hosts.setdefault(rank.host, len(hosts))
    codes = status.init_state, status.async_error
    return Member(rank.rank, rank.pid, host, state, *codes, counts)
