"""Talks to the RAS service of NCCL: asks for the status in JSON, within a time and a size.

The protocol is lines of text. A greeting comes first, so that another program at the same port gets
no command. Commands that change something or cost much (``CONTROL``, ``MONITOR``, ``DIAGNOSTICS``)
are never sent. Jobs of one node may share the port, and the kernel chooses which of them a
connection reaches: if the answer is about other processes, the client connects again.

A job chooses its environment, so it must not choose where the agent connects: only to this machine.
No name is resolved but localhost. RAS of another network namespace is out of reach, and what
listens at the same port here is of another job.

Any process of this machine may listen at that address, so nothing in the answer is trusted: numbers
have bounds, unknown keys are ignored, and an answer that breaks a rule is refused as a whole.
Process ids repeat on other hosts, in containers especially: a rank is found by its own and by an
address of this host. Python objects take many times the memory of their JSON. So the objects of an
answer are counted before they are made, and the counts of a rank stay text until the rank is copied
into the report.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Annotated, Final

import msgspec

from frd.address import join_address, split_address
from frd.decodable import decodable
from frd.errors import ConfigError, ServiceUnavailable, WireError
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
    encode_ras,
)
from frd_agent.inspection.reading.memory import Helper, NotInTime
from frd_agent.proc import content, namespace_of

DEFAULT: Final = "localhost:28028"
_ADDRESS: Final = b"NCCL_RAS_ADDR"
_SWITCH: Final = b"NCCL_RAS_ENABLE"
_MAX_BYTES: Final = 4 * 1024 * 1024
"""More than the kernel takes as arguments and environment by default."""
_ANY_PORT: Final = 9
"""The agent connects a datagram socket to this port and sends nothing through it."""
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


@dataclass(frozen=True, slots=True)
class Place:
    """A local address of this machine."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_address(self.host, self.port)


def place_of(pid: int | None) -> Place:
    """Where RAS listens for the process `pid`; None: a process that /proc does not show. Reading
    its environment takes the lock on its address space, which a process in trouble may hold for
    ever: for a helper only.

    Raises:
        ServiceUnavailable: nowhere, or not where the agent connects; the message says why.
    """
    environment = b"" if pid is None else content(f"{pid}/environ", _MAX_BYTES)
    variables = dict(line.split(b"=", 1) for line in environment.split(b"\0") if b"=" in line)
    if variables.get(_SWITCH, b"").strip() == b"0":
        raise ServiceUnavailable("NCCL RAS: NCCL_RAS_ENABLE=0 switches it off")
    networks = {namespace_of(one, "net") for one in (pid or "self", "self")}
    if len(networks - {0}) > 1:  # 0: the agent has no right to know
        raise ServiceUnavailable(
            "NCCL RAS: the rank is in another network namespace: run the agent in that of its pod"
        )
    given = variables.get(_ADDRESS, b"").decode("utf-8", "replace").strip() or DEFAULT
    try:
        host, port = split_address(given)
    except ConfigError as error:
        raise ServiceUnavailable(f"NCCL RAS: NCCL_RAS_ADDR: {error}") from None
    return Place(_local(host), port)


def is_here(host: str) -> bool:
    """Whether this is an address of this machine; names are not."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or _is_own(str(address), address.version)


def _local(host: str) -> str:
    """The address to connect to.

    Raises:
        ServiceUnavailable: `host` is not an address of this machine.
    """
    if host.lower() == "localhost":
        return "127.0.0.1"
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1" if host == "0.0.0.0" else "::1"
    if is_here(host):
        return host
    raise ServiceUnavailable(
        f"NCCL RAS: NCCL_RAS_ADDR: {host[:100]!r}: not localhost and no address of this machine: "
        "the agent does not connect elsewhere"
    )


def _is_own(address: str, version: int) -> bool:
    """The kernel would reach the address from that same address. A datagram socket that connects
    sends nothing."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, _ANY_PORT))
            own: str = probe.getsockname()[0]
            return own.partition("%")[0] == address.partition("%")[0]  # an interface may follow
    except (OSError, ValueError, TypeError):  # the interface may have any characters
        return False


TIMEOUT_S: Final = 6.0
"""Of everything once a question has its turn: connecting, and up to `_TRIES` answers."""
READ_S: Final = 1.0
"""Of that, for the environment of the rank."""
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""RAS writes about 600 bytes for each rank of each communicator: 28,000 of them, such as a job of
16,384 ranks with one communicator, or one of 4,096 with six each. Kept in memory while it is read.
"""
_RAS_TIMEOUT_S: Final = 3
"""How long RAS itself waits for processes that do not respond."""
_TRIES: Final = 3
_CHUNK: Final = 64 * 1024
_GREETING: Final = b"CLIENT PROTOCOL 2\n"
_SETTINGS: Final = (f"TIMEOUT {_RAS_TIMEOUT_S}\n".encode(), b"SET FORMAT json\n")
_QUESTION: Final = b"VERBOSE STATUS\n"

log = logging.getLogger(__name__)


class RasClient:
    """One question at a time: its answer may be large."""

    def __init__(self, results: Counter[str]) -> None:
        """`results` counts ``answered`` and ``failed`` questions."""
        self._results = results
        self._turn = asyncio.Lock()
        self._helper = Helper(READ_S, "frd-environ-of")

    async def ask(self, pid: int | None, own_pid: int, timeout_s: float) -> bytes:
        """The encoded `RasReport` on a rank: `pid` is its process as /proc shows it, None if it
        does not, and `own_pid` the number that the process has for itself. `timeout_s` includes
        the questions before this one; the question itself has at most `TIMEOUT_S` of it.

        Raises:
            ServiceUnavailable: there is none; the message says why.
        """
        try:
            data = await self._in_turn(pid, own_pid, timeout_s)
        except ServiceUnavailable:
            self._results["failed"] += 1
            raise
        except Exception as error:
            self._results["failed"] += 1
            log.exception("NCCL RAS: a question failed")
            why = f"NCCL RAS: {type(error).__name__}: see the log of the agent"
            raise ServiceUnavailable(why) from None
        self._results["answered"] += 1
        return data

    async def _in_turn(self, pid: int | None, own_pid: int, timeout_s: float) -> bytes:
        began_s = time.monotonic()
        missed = f"other questions took {timeout_s:g} s"
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                left_s = min(TIMEOUT_S, timeout_s - (time.monotonic() - began_s))
                missed = f"no answer within {left_s:.1f} s"
                async with asyncio.timeout(left_s):
                    return await self._ask(await self._place(pid), own_pid)
        except TimeoutError:
            raise ServiceUnavailable(f"NCCL RAS: {missed}") from None

    async def _place(self, pid: int | None) -> Place:
        """On the helper's thread. The thread of `to_thread` only waits for it, at most `READ_S`."""
        try:
            return await asyncio.to_thread(self._helper.run, partial(place_of, pid))
        except NotInTime:
            raise ServiceUnavailable(
                f"NCCL RAS: the environment of process {pid}, or of one before it, cannot be read "
                f"within {READ_S:g} s"
            ) from None

    async def _ask(self, place: Place, own_pid: int) -> bytes:
        for _ in range(_TRIES):
            answer = await _status(place)
            data = await asyncio.to_thread(_report, answer, own_pid)
            if data:
                return data
        raise ServiceUnavailable(f"NCCL RAS: what listens at {place} does not know the rank")


def _report(answer: bytes, own_pid: int) -> bytes:
    """Empty if the answer is about other processes."""
    report = read_answer(answer, own_pid, is_here)
    if not report.communicators:
        return b""
    try:
        return encode_ras(report)
    except WireError as error:
        raise ServiceUnavailable(f"NCCL RAS: its answer cannot be used: {error}") from None


async def _status(place: Place) -> bytes:
    """The JSON document.

    Raises:
        ServiceUnavailable: nothing listens there, or it is no RAS that answers in JSON.
    """
    writer: asyncio.StreamWriter | None = None
    try:
        reader, writer = await asyncio.open_connection(place.host, place.port, limit=_CHUNK)
        writer.write(_GREETING)
        if not (await reader.readline()).startswith(b"SERVER PROTOCOL "):
            raise ServiceUnavailable(f"NCCL RAS: what listens at {place} is something else")
        writer.write(b"".join(_SETTINGS))
        for setting in _SETTINGS:
            if (said := (await reader.readline()).strip()) != b"OK":
                what, why = (text.decode("utf-8", "replace") for text in (setting.strip(), said))
                raise ServiceUnavailable(
                    f"NCCL RAS: {what}: answered with {why[:80]!r}: it needs a newer NCCL"
                )
        writer.write(_QUESTION)
        return await _rest(reader)
    except (OSError, ValueError) as error:  # ValueError: a line that is too long
        raise ServiceUnavailable(f"NCCL RAS: {place}: {error}") from None
    finally:
        if writer is not None:
            writer.transport.abort()


async def _rest(reader: asyncio.StreamReader) -> bytes:
    answer = bytearray()
    while chunk := await reader.read(_CHUNK):
        answer += chunk
        if len(answer) > MAX_ANSWER_BYTES:
            raise ServiceUnavailable(f"NCCL RAS: its answer exceeds {MAX_ANSWER_BYTES} bytes")
    return bytes(answer)


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
