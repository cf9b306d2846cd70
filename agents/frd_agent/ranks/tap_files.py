"""Reads the files by which the taps of this node identify their ranks, and what they publish there:
phases of programs, and how many ops each group of a rank has enqueued and completed.

A training process wrote them, so nothing in them is trusted (`token_files`); the layout of the
counters is the tap's own (`frd_agent.tap`). Whether a process lives, and what the numbers prove, is
not known here. Times of phases are stamps of the wall clock, each converted when it is first read:
a later step of the clock moves no phase.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import msgspec

from frd.flight.entry import Status
from frd.model import MAX_WORLD_SIZE, AttemptKey, NodeNs, NodeRawNs, PhaseSpan, RankInfo
from frd.wire.messages import MAX_PHASE_NAME, MAX_PHASE_NAMES, MAX_PHASES
from frd_agent import tap
from frd_agent.counters import Counters
from frd_agent.ranks.token_files import Published, Refused, TokenFile
from frd_agent.untrusted_files import Section, is_begun

_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Texts = Annotated[tuple[_Text, ...], msgspec.Meta(max_length=256)]
_UInt = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Time = Annotated[NodeNs, msgspec.Meta(ge=0, le=2**63 - 1)]


READ_SINCE: Final = (2, 10)
"""From this release of torch on, the generic recorder can be read without the interpreter."""
_RECORDERS: Final = {
    "gloo": ("Gloo", tap.GENERIC, READ_SINCE),
    "xccl": ("XCCL", tap.GENERIC, READ_SINCE),
    "nccl": ("NCCL", tap.NCCL, (2, 5)),
    "nccl-legacy": ("NCCL", tap.NCCL, (2, 5)),
}
"""Backends that record themselves: for people, the recorder's number, and the release of torch from
which on it can be read at any time."""
_HOOKS_SINCE: Final = (2, 15)
"""Since this release of torch the ops of other backends are recorded as well."""
_IDLE: Final = frozenset({"fake", "undefined"})
"""Backends that wait for no other rank."""
_Name = Annotated[str, msgspec.Meta(max_length=MAX_PHASE_NAME)]
TapCounters: TypeAlias = Mapping[tuple[int, int], Status]
"""Raw `pg_status` by recorder (`tap.GENERIC` or `tap.NCCL`) and process-local group id. They count
ops, not collectives."""


def unrecorded(torch_version: str, backends: Collection[str]) -> str:
    """What is missing and what helps, for people."""
    known = [_RECORDERS.get(backend, (backend, 0, _HOOKS_SINCE)) for backend in sorted(backends)]
    names = " and ".join(dict.fromkeys(name for name, _, _ in known))
    text = f"torch {torch_version} keeps no record of {names}"
    since = max(since for _, _, since in known)
    if version_of(torch_version) < since:
        text += ": use torch {}.{} or later".format(*since)
    return text


def version_of(text: str) -> tuple[int, ...]:
    """Major and minor of ``2.13.0+cpu``."""
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())


class ExitFrame(NamedTuple):
    file: _Text
    line: _UInt
    name: _Text
    """Of the function."""


class ExitRecord(msgspec.Struct, frozen=True):
    """How a rank's program ended, from its own record. A killed one has none, and one that ended by
    `sys.exit` reports itself as clean."""

    kind: Literal["clean", "exception"]
    detail: _Text
    at_ns: _Time
    frames: Annotated[tuple[ExitFrame, ...], msgspec.Meta(max_length=256)] = ()
    """Of the exception's traceback, innermost first."""
    original: _Text = ""
    """The end of the traceback of a data loader's worker, as text, where the exception was one of a
    worker."""
    interrupted: bool = False
    """A Ctrl-C came a moment before, or the exception was raised while a KeyboardInterrupt was
    handled."""


class TapGroup(msgspec.Struct, frozen=True):
    name: _Text
    ranks: tuple[_UInt, ...]
    """Global ranks, ascending; empty if the group has members of other jobs."""
    desc: _Text = ""
    backend: _Text = ""
    """Several are separated by commas."""


class TapIdentity(Published, frozen=True, kw_only=True, dict=True):
    """The identity of a rank process, and its present groups."""

    job: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    attempt_number: _UInt = msgspec.field(name="attempt")
    rank: _UInt
    world_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_WORLD_SIZE)]
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    start_ticks: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    """The start of the process as /proc shows it; 0 unknown."""
    pid_namespace: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    """Its inode: `pid` is a number there; 0 unknown."""
    host: _Text
    boot_id: _Text
    started_at_ns: _Time
    """When the tap began to publish, shortly after the first process group."""
    groups: tuple[TapGroup, ...]
    local_rank: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] = -1
    torch_version: _Text = ""
    backends: _Texts = ()
    recorders: _Texts = ()
    """Backends whose ops are recorded by a hook (torch 2.15), in the order of their recorders'
    numbers from `tap.HOOKED` on."""
    devices: _Texts = ()
    socket: str | None = None
    """Name of the worker server's socket; None without one (`socket_error`) and after the end."""
    socket_error: _Text = ""
    shm: str | None = None
    dumps: str | None = None
    """Name of the file of dumps, of recorders that no worker server gives."""
    kept: Annotated[tuple[_UInt, ...], msgspec.Meta(max_length=64)] | None = None
    """Numbers of the recorders that its torch has; None: unknown."""
    ring: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 2_000
    """Most entries of each recorder."""
    off: _Text = ""
    """The setting that switches the recorders off, or ``default``; empty without one."""
    run: _Text = ""
    """The launch of the job, by the address where its ranks meet; empty if unknown."""
    exit: ExitRecord | None = None
    raised: ExitRecord | None = None
    """What the thread that trained has raised, in a process that goes on without training."""
    printed: ExitRecord | None = None
    """An exception that the interpreter has printed, or a Ctrl-C, before the program has ended."""

    def __post_init__(self) -> None:
        token, size = self.token, self.world_size
        names = {"socket": "sock", "shm": "shm", "dumps": "dumps"}
        if any(getattr(self, name) not in (None, f"{token}.{end}") for name, end in names.items()):
            raise ValueError(f"{', '.join(names)}: not of token {token!r}")
        if self.rank >= size:
            raise ValueError(f"rank: {self.rank}: not below world_size {size}")
        for group in self.groups:
            if any(a >= b for a, b in pairwise(group.ranks)):
                raise ValueError(f"groups.ranks: of {group.name!r}: not ascending")

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.job} attempt {self.attempt_number}"

    @cached_property
    def attempt(self) -> AttemptKey:
        return AttemptKey(self.job, self.attempt_number)

    @property
    def ended(self) -> ExitRecord | None:
        """How it ended, once it is gone."""
        return self.exit or self.raised

    @cached_property
    def unread(self) -> str:
        """Why no recorder keeps what some groups do, and what helps; empty if each is kept, at
        least for one kind of device."""
        lacking: set[str] = set()
        for group in self.groups if self.kept is not None else ():
            backends = set(filter(None, group.backend.split(","))) - _IDLE
            if not any(map(self._keeps, backends)):
                lacking |= backends
        return unrecorded(self.torch_version, lacking) if lacking else ""

    @property
    def off_text(self) -> str:
        """That the recorders are off, and what to do; empty if they are on."""
        if self.off != "default":
            what = "switches torch's Flight Recorder off: unset it, or set 2000"
            return f"{self.off} {what}" if self.off else ""
        text = f"torch {self.torch_version} records nothing by default"
        return f"{text}: start the ranks with `frd-agent exec`, or set TORCH_FR_BUFFER_SIZE=2000"

    @property
    def uses_generic(self) -> bool:
        used = {backend for group in self.groups for backend in group.backend.split(",")}
        return not used.isdisjoint(one for one, of in _RECORDERS.items() if of[1] == tap.GENERIC)

    def _keeps(self, backend: str) -> bool:
        known = _RECORDERS.get(backend)
        if known is None:
            return bool(self.recorders)
        return known[1] in (self.kept or ())

    @cached_property
    def seat(self) -> tuple[AttemptKey, int, str]:
        """Which rank of which launch."""
        return self.attempt, self.rank, self.run

    @cached_property
    def info(self) -> RankInfo:
        return RankInfo(
            rank=self.rank,
            world_size=self.world_size,
            node=self.host,
            boot_id=self.boot_id,
            pid=self.pid,
            local_rank=self.local_rank,
            torch_version=self.torch_version,
            backends=self.backends,
            devices=self.devices,
        )


class TapFile(TokenFile[TapIdentity]):
    """The identity file of a rank."""

    SUFFIX = ".json"
    MAX_BYTES = 64 * 1024 * 1024
    DECODER = msgspec.json.Decoder(TapIdentity)

    @staticmethod
    def on(content: TapIdentity, node: str) -> TapIdentity:
        return msgspec.structs.replace(content, host=node)

    @cached_property
    def socket_path(self) -> Path | None:
        if self.content is None or self.content.socket is None:
            return None
        return self.path.with_name(self.content.socket)

    @cached_property
    def shm_path(self) -> Path:
        return self.path.with_suffix(".shm")


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

    def of(self, file: TapFile) -> str | None:
        """The address of the socket that the identity names, if any. Raises as `address`."""
        return None if file.socket_path is None else self.address(file.socket_path)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class Phase(msgspec.Struct, frozen=True):
    path: Annotated[tuple[_Name, ...], msgspec.Meta(min_length=1, max_length=MAX_PHASE_NAMES)]
    since_ns: Annotated[NodeNs, msgspec.Meta(ge=1, le=2**62)]
    until_ns: Annotated[NodeNs, msgspec.Meta(ge=0, le=2**62)] = NodeNs(0)
    """0: it goes on."""

    def __post_init__(self) -> None:
        if 0 < self.until_ns < self.since_ns:
            raise ValueError(f"until_ns: {self.until_ns}: before since_ns")


class PhaseReport(Published, frozen=True, kw_only=True):
    phases: Annotated[tuple[Phase, ...], msgspec.Meta(max_length=MAX_PHASES)]


class PhaseFile(TokenFile[PhaseReport]):
    """The phases file of a rank, whose program may have none."""

    SUFFIX = ".phases"
    MAX_BYTES = 256 * 1024
    DECODER = msgspec.json.Decoder(PhaseReport)


class PhaseReader:
    """The phases of one rank."""

    def __init__(self, path: Path, to_raw: Callable[[NodeNs], NodeRawNs], stats: Counters) -> None:
        """`to_raw` converts a stamp of the wall clock that was made a moment ago."""
        self._path = path
        self._to_raw = to_raw
        self._refused = Refused("phases", stats)
        self._file: PhaseFile | None = None
        self._raw: dict[NodeNs, NodeRawNs] = {}
        """The times in the file."""
        self.spans: tuple[PhaseSpan, ...] | None = None
        """None if the program has never had a phase."""

    def read(self) -> None:
        """Update `spans`. A file that cannot be used changes nothing, and is counted."""
        file = PhaseFile.look(self._path, self._file)
        if file is None or file is self._file:
            return
        self._refused.update([file])
        if file.content is not None:
            self.spans = self._spans(file.content)
        self._file = file

    def _spans(self, report: PhaseReport) -> tuple[PhaseSpan, ...]:
        walls = {wall for one in report.phases for wall in (one.since_ns, one.until_ns) if wall}
        self._raw = {wall: self._raw.get(wall) or self._to_raw(wall) for wall in walls}
        return tuple(self._span(one) for one in report.phases if self._raw[one.since_ns])

    def _span(self, phase: Phase) -> PhaseSpan:
        since_ns = self._raw[phase.since_ns]
        if not phase.until_ns:
            return PhaseSpan(phase.path, since_ns)
        return PhaseSpan(phase.path, since_ns, max(since_ns, self._raw[phase.until_ns]))


class Publication(NamedTuple):
    """`published_at_ns` was read just before the counters."""

    published_at_ns: NodeNs
    published_mono_ns: int
    """CLOCK_MONOTONIC of the node."""
    counters: TapCounters
    overflowed: bool
    """More groups than rows: some are missing."""


class CountersFile:
    """The counters file of one rank, and its newest publication."""

    def __init__(self, path: Path, to_raw: Callable[[NodeNs], NodeRawNs]) -> None:
        """`to_raw` converts a stamp of the wall clock that was made a moment ago."""
        self._to_raw = to_raw
        self._section = Section(path, 0, tap.SHM_SIZE, parse_counters)
        self.latest = Publication(NodeNs(0), 0, {}, overflowed=True)
        """Its times are 0 before the first one."""
        self.published_at_ns = NodeRawNs(0)
        """The time of `latest`, on the raw clock."""
        self.every_s = tap.PUBLISH_S
        """Interval between the last two publications."""
        self.close = self._section.close

    @property
    def status(self) -> TapCounters | None:
        """The counters; None if there are none, or not all."""
        return None if self.latest.overflowed else self.latest.counters

    @property
    def age_s(self) -> float:
        """How long ago the tap published; infinite if it never did."""
        if not self.latest.published_mono_ns:
            return float("inf")
        return max(time.monotonic_ns() - self.latest.published_mono_ns, 0) / 1e9

    def read(self) -> Publication | None:
        """As `Section.read`."""
        found = self._section.read()
        if found is not None and found is not self.latest:
            if self.latest.published_mono_ns:
                every_s = (found.published_mono_ns - self.latest.published_mono_ns) / 1e9
                self.every_s = min(max(every_s, tap.PUBLISH_S), tap.PUBLISH_MAX_S)
            self.latest = found
            self.published_at_ns = self._to_raw(found.published_at_ns)
        return found


def parse_counters(raw: bytes) -> Publication | None:
    """None if `raw` is not one complete publication."""
    if len(raw) < tap.HEADER_SIZE or not is_begun(raw, tap.MAGIC):
        return None
    at_ns, mono_ns, row_count, flags = tap.BODY.unpack_from(raw, tap.PREFIX.size)
    end = tap.HEADER_SIZE + row_count * tap.ROW.size
    if row_count > tap.CAPACITY or end > len(raw):
        return None
    body_end = tap.PREFIX.size + tap.BODY.size
    checksum = zlib.crc32(raw[tap.HEADER_SIZE : end], zlib.crc32(raw[tap.PREFIX.size : body_end]))
    if (checksum,) != tap.CHECKSUM.unpack_from(raw, body_end):
        return None
    counters = {
        (recorder, pg_id): Status(*counts)
        for recorder, pg_id, *counts in tap.ROW.iter_unpack(raw[tap.HEADER_SIZE : end])
    }
    return Publication(NodeNs(at_ns), mono_ns, counters, bool(flags & tap.OVERFLOWED))
