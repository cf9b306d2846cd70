"""Reads the files that the taps of this node publish: the agent's side of the run directory.

Everything in that directory was written by training processes, so nothing in it is trusted: a file
that is foreign, torn or absurd becomes a `TapFile` with a `problem`, never an exception, and names
inside files never lead out of the directory. The layout of the counters is the tap's own
(`frd_agent.tap`); the meaning of the numbers is not known here, nor whether a process lives.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec

from frd.flight.entry import Frame
from frd.model import AttemptKey, GroupInfo, NodeNs, RankInfo
from frd_agent import tap, untrusted_files
from frd_agent.uplink.dictionary import MAX_WORLD_SIZE

_IDENTITY_NAME = re.compile(r"(?P<token>[0-9a-f]{12})\.json")
_MAX_IDENTITY_BYTES = 64 * 1024 * 1024
_TORN_READS = 5


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """How a rank's program ended, from its own record. A killed one has none, and one that ended by
    `sys.exit` reports itself as clean."""

    kind: Literal["clean", "exception"]
    detail: str
    at_ns: NodeNs
    frames: tuple[Frame, ...] = ()
    """Of the exception's traceback, innermost first."""
    original: str = ""
    """The end of the traceback of a data loader's worker, as text, where the exception was one of a
    worker."""
    interrupted: bool = False
    """The exception was raised while a KeyboardInterrupt was handled."""


@dataclass(frozen=True, slots=True)
class TapGroup:
    info: GroupInfo
    backend: str


@dataclass(frozen=True, slots=True)
class TapIdentity:
    """The identity that a rank process publishes, and its present groups."""

    token: str
    attempt: AttemptKey
    info: RankInfo
    groups: tuple[TapGroup, ...]
    started_at_ns: NodeNs
    """When the tap began to publish, shortly after the first process group."""
    socket: str | None
    """Name of the worker server's socket; None without one (`socket_error`) and after the end."""
    socket_error: str
    exit: ExitRecord | None
    run: str = ""
    """The launch of the job, by the address where its ranks meet; empty if unknown."""


@dataclass(frozen=True)
class TapFile:
    """One identity file: either an `identity`, or a `problem` as text for users."""

    path: Path
    stamp: tuple[int, int, int]
    """Changes with every replacement of the file."""
    identity: TapIdentity | None
    problem: str = ""

    @cached_property
    def socket_path(self) -> Path | None:
        if self.identity is None or self.identity.socket is None:
            return None
        return self.path.with_name(self.identity.socket)

    @cached_property
    def shm_path(self) -> Path:
        return self.path.with_suffix(".shm")


def scan(run_dir: Path, previous: Iterable[TapFile] = (), node: str = "") -> list[TapFile]:
    """All identity files, sorted by name. Unchanged files of `previous` are not read again.

    `node`: name of the node; empty: the name in each file.
    A directory that does not exist has no files; a directory that cannot be read is a problem.
    """
    known = {file.path: file for file in previous}
    try:
        with os.scandir(run_dir) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".json"))
    except FileNotFoundError:
        return []
    except OSError as error:
        problem = f"{run_dir}: {error.strerror}: name a directory that can be read with --run-dir"
        return [TapFile(run_dir, (0, 0, 0), None, problem)]
    found = (_look(run_dir / name, known, node) for name in names)
    return [file for file in found if file is not None]


def _look(path: Path, known: dict[Path, TapFile], node: str) -> TapFile | None:
    """None if the file no longer exists."""
    stamp = (0, 0, 0)
    try:
        if (named := _IDENTITY_NAME.fullmatch(path.name)) is None:
            raise ValueError("not a tap's file")
        with untrusted_files.opened(path) as fd:
            found = os.fstat(fd)
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            if (same := known.get(path)) is not None and same.stamp == stamp:
                return same
            if found.st_size > _MAX_IDENTITY_BYTES:
                raise ValueError("too large")
            raw = untrusted_files.read_up_to(fd, _MAX_IDENTITY_BYTES)
        identity = parse_identity(raw, named["token"])
        info = replace(identity.info, node=node or identity.info.node)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        return TapFile(path, stamp, None, f"{path}: {why}: ignored")
    return TapFile(path, stamp, replace(identity, info=info))


# -- the identity ----------------------------------------------------------------------------

_Name = Annotated[str, msgspec.Meta(max_length=4096)]
_UInt = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Names = Annotated[list[_Name], msgspec.Meta(max_length=256)]
_Time = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Frame(msgspec.Struct, array_like=True):
    file: _Name
    line: _UInt
    name: _Name


class _Exit(msgspec.Struct):
    kind: Literal["clean", "exception"]
    at_ns: _Time
    detail: _Name = ""
    frames: Annotated[list[_Frame], msgspec.Meta(max_length=256)] = []
    original: _Name = ""
    interrupted: bool = False


class _Group(msgspec.Struct):
    name: _Name
    ranks: list[_UInt]
    desc: _Name = ""
    backend: _Name = ""


class _Identity(msgspec.Struct):
    """Contract between tap and agent; keys that a later tap adds are passed over."""

    schema: Literal[1]
    token: str
    job: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    attempt: _UInt
    rank: _UInt
    world_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_WORLD_SIZE)]
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    host: _Name
    boot_id: _Name
    started_at_ns: _Time
    groups: list[_Group]
    local_rank: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] = -1
    torch_version: _Name = ""
    backends: _Names = []
    devices: _Names = []
    socket: str | None = None
    socket_error: _Name = ""
    shm: str | None = None
    run: _Name = ""
    exit: _Exit | None = None


_decoder = msgspec.json.Decoder(_Identity)


def parse_identity(raw: bytes, token: str) -> TapIdentity:
    """
    Raises:
        ValueError: it is not the identity of `token`; the message names the field.
    """
    try:
        decoded = _decoder.decode(raw)
    except untrusted_files.NOT_THE_FORM as error:
        raise ValueError(f"no identity: {error}") from error
    if decoded.token != token:
        raise ValueError(f"token: {decoded.token!r}: not the file's own")
    if decoded.socket not in (None, f"{token}.sock") or decoded.shm not in (None, f"{token}.shm"):
        raise ValueError("socket, shm: not the file's own")
    if decoded.rank >= decoded.world_size:
        raise ValueError(f"rank: {decoded.rank}: not below world_size {decoded.world_size}")
    return TapIdentity(
        token=token,
        attempt=AttemptKey(decoded.job, decoded.attempt),
        info=RankInfo(
            rank=decoded.rank,
            world_size=decoded.world_size,
            node=decoded.host,
            boot_id=decoded.boot_id,
            pid=decoded.pid,
            local_rank=decoded.local_rank,
            torch_version=decoded.torch_version,
            backends=tuple(decoded.backends),
            devices=tuple(decoded.devices),
        ),
        groups=tuple(_group(group, decoded.world_size) for group in decoded.groups),
        started_at_ns=NodeNs(decoded.started_at_ns),
        run=decoded.run,
        socket=decoded.socket,
        socket_error=decoded.socket_error,
        exit=None if decoded.exit is None else _exit_record(decoded.exit),
    )


def _exit_record(decoded: _Exit) -> ExitRecord:
    frames = tuple(Frame(frame.name, frame.file, frame.line) for frame in decoded.frames)
    return ExitRecord(
        decoded.kind,
        decoded.detail,
        NodeNs(decoded.at_ns),
        frames,
        decoded.original,
        decoded.interrupted,
    )


def _group(decoded: _Group, world_size: int) -> TapGroup:
    ranks = tuple(decoded.ranks)
    ascending = all(a < b for a, b in pairwise(ranks))
    if not ascending or (ranks and ranks[-1] >= world_size):
        raise ValueError(f"groups.ranks: of {decoded.name!r}: not ascending below {world_size}")
    return TapGroup(GroupInfo(decoded.name, decoded.desc, ranks), decoded.backend)


# -- the counters ----------------------------------------------------------------------------


class StatusRow(NamedTuple):
    """Raw `pg_status` of one process-local group: counts of ops, not of collectives."""

    recorder: int
    """`tap.GENERIC` or `tap.NCCL`."""
    pg_id: int
    enqueued: int
    started: int
    completed: int


@dataclass(frozen=True, slots=True)
class ShmSample:
    """A rank's counters; `published_at_ns` was read just before them."""

    published_at_ns: NodeNs
    published_mono_ns: int
    """CLOCK_MONOTONIC of the node."""
    rows: list[StatusRow]
    overflowed: bool
    """More groups than rows: some are missing."""


class TapShm:
    """The counters file of one rank. If the counters did not advance, the file is opened again,
    because it may have been replaced."""

    def __init__(self, path: Path) -> None:
        self._file = untrusted_files.KeptOpen(path)
        self._last_at_ns = NodeNs(0)
        self.close = self._file.close

    def read(self) -> ShmSample | None:
        """None if the file is missing, corrupt or not written yet."""
        for _ in range(_TORN_READS):
            if (sample := parse_counters(self._file.read(tap.SHM_SIZE))) is not None:
                if sample.published_at_ns == self._last_at_ns:
                    self._file.close()
                self._last_at_ns = sample.published_at_ns
                return sample
        return None


def parse_counters(raw: bytes) -> ShmSample | None:
    """None if `raw` is not one complete publication."""
    if len(raw) < tap.HEADER_SIZE:
        return None
    magic, sequence = tap.PREFIX.unpack_from(raw)
    if magic != tap.MAGIC or sequence == 0 or sequence % 2:
        return None
    at_ns, mono_ns, row_count, flags = tap.BODY.unpack_from(raw, tap.PREFIX.size)
    end = tap.HEADER_SIZE + row_count * tap.ROW.size
    if row_count > tap.CAPACITY or end > len(raw):
        return None
    body_end = tap.PREFIX.size + tap.BODY.size
    checksum = zlib.crc32(raw[tap.HEADER_SIZE : end], zlib.crc32(raw[tap.PREFIX.size : body_end]))
    if (checksum,) != tap.CHECKSUM.unpack_from(raw, body_end):
        return None
    return ShmSample(
        published_at_ns=NodeNs(at_ns),
        published_mono_ns=mono_ns,
        rows=[StatusRow(*row) for row in tap.ROW.iter_unpack(raw[tap.HEADER_SIZE : end])],
        overflowed=bool(flags & tap.OVERFLOWED),
    )


# -- sockets ----------------------------------------------------------------------------------


class SocketDir:
    """Makes paths of sockets short enough to connect to (`tap.SOCKET_PATH_MAX`)."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._fd: int | None = None

    def address(self, path: Path) -> str:
        """Leads to the socket `path` in the run directory, for as long as this object is open.

        Raises:
            OSError: the run directory cannot be opened.
        """
        if len(os.fsencode(path)) <= tap.SOCKET_PATH_MAX:
            return str(path)
        if self._fd is None:
            self._fd = os.open(self._run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._fd}/{path.name}"

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
