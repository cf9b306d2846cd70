"""Reads the JSON of NCCL's RAS service: the communicators of one rank, and nothing else of it.

Any process of this machine may listen at that address, so nothing is trusted: numbers have bounds,
unknown keys are ignored, and an answer that breaks a rule is refused as a whole. Process ids repeat
on other hosts, in containers especially: a rank is found by its own and by an address of this host.

Python objects take many times the memory of their JSON. So the objects of an answer are counted
before they are made, and the counts of a rank stay text until the rank is copied into the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Annotated, Final

import msgspec

from frd.decodable import decodable
from frd.errors import ServiceUnavailable
from frd.wire.waits import (
    MAX_OPS,
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
MAX_COUNTS: Final = 10 * MAX_MEMBERS
"""Of all members: RAS counts five operations of a rank."""
MAX_OBJECTS: Final = 200_000
"""Of JSON. RAS writes three for a rank: 28,000 ranks fit into an answer."""
_MAX_COUNTS_BYTES: Final = 16 * 1024
"""Of the JSON of one rank's counts: `MAX_OPS` of them with indentation take a third of it."""
_Host = Annotated[str, msgspec.Meta(pattern=r"^[!-~]{0,256}\Z")]
"""An address, possibly with an interface."""
_Hash = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{1,16}\Z")]


_Counts = Annotated[dict[str, Count], msgspec.Meta(max_length=MAX_OPS)]
"""By name of the operation."""
_NONE: Final = msgspec.Raw(b"null")
_COUNTS: Final = msgspec.json.Decoder(_Counts | None)


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
    host: _Host = ""
    status: _Status = _Status()
    collective_counts: msgspec.Raw = _NONE
    """`_Counts`, or null."""


class _Communicator(msgspec.Struct, frozen=True):
    hash: _Hash
    size: int
    ranks: tuple[_Rank, ...] = ()
    missing_ranks: tuple[_Rank, ...] = ()

    @property
    def listed(self) -> int:
        return len(self.ranks) + len(self.missing_ranks)

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
    # Every object has a brace; braces in strings do no harm, because RAS writes none.
    _check_limit(data.count(b"{"), "objects", MAX_OBJECTS)
    try:
        own = _own(msgspec.json.decode(data, type=_Answer), pid, is_here)
        _check_limit(sum(one.listed for one in own), "ranks", MAX_MEMBERS)
        ops = [_ops(one) for one in own]
        counts = sum(len(one.ranks) * len(names) for one, names in zip(own, ops, strict=True))
        _check_limit(counts, "counts", MAX_COUNTS)
        hosts: dict[str, int] = {}
        found = [_communicator(one, names, hosts) for one, names in zip(own, ops, strict=True)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ServiceUnavailable(f"NCCL RAS: its answer cannot be read: {error}") from None
    return RasReport(tuple(found))


def _check_limit(found: int, what: str, most: int) -> None:
    """
    Raises:
        ServiceUnavailable: `found` is over the limit.
    """
    if found > most:
        raise ServiceUnavailable(f"NCCL RAS: its answer has {found} {what}: over {most}")


def _own(answer: _Answer, pid: int, is_here: Callable[[str], bool]) -> list[_Communicator]:
    """The communicators that the process is in."""
    here: dict[str, bool] = {}

    def is_own(rank: _Rank) -> bool:
        if rank.pid != pid:
            return False
        if rank.host not in here:
            here[rank.host] = is_here(rank.host)
        return here[rank.host]

    return [one for one in answer.communicators if any(is_own(rank) for rank in one.all_ranks())]


def _ops(one: _Communicator) -> Sequence[str]:
    """
    Raises:
        ServiceUnavailable: there are more than a report can have.
        msgspec.ValidationError: they are no names.
    """
    ops: dict[str, None] = {}
    for rank in one.ranks:
        ops.update(dict.fromkeys(_launched(rank)))
        _check_limit(len(ops), f"operations in {one.hash}", MAX_OPS)
    return msgspec.convert(tuple(ops), tuple[OpName, ...])


def _communicator(one: _Communicator, ops: Sequence[str], hosts: dict[str, int]) -> Communicator:
    """`hosts` gets the number of each host."""
    members = [_member(rank, ops, hosts, MemberState(0)) for rank in one.ranks]
    members += [_member(rank, (), hosts, MemberState.MISSING) for rank in one.missing_ranks]
    return Communicator(one.hash.removeprefix("0x"), one.size, tuple(ops), tuple(members))


def _member(rank: _Rank, ops: Sequence[str], hosts: dict[str, int], state: MemberState) -> Member:
    status = rank.status
    for is_set, flag in (
        (status.unresponsive, MemberState.UNRESPONSIVE),
        (status.considered_dead, MemberState.DEAD),
        (status.finalize_called, MemberState.FINALIZING),
        (status.destroy_flag, MemberState.DESTROYING),
        (status.abort_flag, MemberState.ABORTED),
    ):
        state |= flag if is_set else 0
    launched = _launched(rank) if ops else {}
    counts = tuple([launched.get(op, 0) for op in ops])
    host = hosts.setdefault(rank.host, len(hosts))
    codes = status.init_state, status.async_error
    return Member(rank.rank, rank.pid, host, state, *codes, counts)


def _launched(rank: _Rank) -> Mapping[str, int]:
    """
    Raises:
        ServiceUnavailable: the text is too long for `MAX_OPS` of them.
        msgspec.DecodeError: it is something else.
    """
    text = rank.collective_counts
    _check_limit(len(memoryview(text)), "bytes of counts in one rank", _MAX_COUNTS_BYTES)
    return _COUNTS.decode(text) or {}
